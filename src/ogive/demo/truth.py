"""What must come out, computed straight from the table's lines: no event, no message and no code of the pipeline takes part.

The times are derived in another way than in ``flights``: from the local clock columns and calendar dates, not from the delays
and epoch minutes. So a mistake in either shows as a difference.
"""

import csv
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from ogive.demo.dataset import MISSING, Dataset, Zone

ON_TIME_MAX_DELAY_MIN: Final = 15
_RANK: Final = {"scheduled": 0, "departed": 1, "arrived": 2, "cancelled": 3}
_ON_BOARD_BEFORE: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
# The two Sundays of 2013 on which the clocks of the United States changed; as wall clock times, whatever zone they are read in.
_SUMMER_STARTS: Final = datetime(2013, 3, 10, 2, tzinfo=UTC)
_SUMMER_ENDS: Final = datetime(2013, 11, 3, 2, tzinfo=UTC)


@dataclass(slots=True)
class Figures:
    """Counts of events and sums of delays of one airport, or of one hour there. Arrivals count at the airport of departure."""

    scheduled: int = 0
    departed: int = 0
    on_time: int = 0  # departures at most 15 minutes late
    delay_min: int = 0  # sum over departures; early ones count negative
    arrived: int = 0
    arrival_delay_min: int = 0  # sum over arrivals with a known delay (a diverted flight has none)
    cancelled: int = 0

    def add(self, other: "Figures") -> None:
        for name, value in zip(self.__slots__, astuple(other), strict=True):
            setattr(self, name, getattr(self, name) + value)


@dataclass(slots=True)
class Truth:
    """The expected figures of a run."""

    kinds: Counter[str] = field(default_factory=Counter)
    hours: dict[tuple[str, int], Figures] = field(default_factory=lambda: defaultdict(Figures))  # (airport, epoch ms of the hour, UTC)
    aircraft: set[str] = field(default_factory=set)
    with_tail: int = 0  # events that belong to an aircraft
    schedule_reversals: int = 0  # departures of an aircraft whose scheduled time is before that of its departure before
    unidentified: Counter[str] = field(default_factory=Counter)  # airport to cancellations without a tail number

    @property
    def events(self) -> int:
        return self.kinds.total()

    @property
    def airports(self) -> dict[str, Figures]:
        return add_up(self.hours)

    def deliveries(self, max_retries: int) -> int:
        """How often the group that takes cancellations is called: once each, and *max_retries* times more where the tail is missing."""
        return self.kinds["cancelled"] + max_retries * self.unidentified.total()


def add_up(hours: Mapping[tuple[str, int], Figures]) -> dict[str, Figures]:
    """Airport to the sum of its hours."""
    sums: dict[str, Figures] = {}
    for (airport, _), figures in sorted(hours.items()):
        sums.setdefault(airport, Figures()).add(figures)
    return sums


class _Moment(NamedTuple):
    """An event's place in event order."""

    at: datetime
    rank: int
    line: int


def compute(dataset: Dataset, limit: int | None = None) -> Truth:
    """The figures of the first *limit* events in event order, of all without a limit."""
    last = None if limit is None else _last_of(dataset, limit)
    truth = Truth()
    departures: defaultdict[str, list[tuple[_Moment, datetime]]] = defaultdict(list)
    for row, moments in _lines(dataset):
        for kind, moment in moments.items():
            if last is not None and moment > last:
                continue
            _count(truth, row, kind, moment.at)
            if kind == "departed":
                departures[row["tailnum"]].append((moment, moments["scheduled"].at))
    for flown in departures.values():
        scheduled = [planned for _, planned in sorted(flown)]
        truth.schedule_reversals += sum(later < earlier for earlier, later in pairwise(scheduled))
    return truth


def _last_of(dataset: Dataset, limit: int) -> _Moment | None:
    places = sorted(moment for _, moments in _lines(dataset) for moment in moments.values())
    return places[limit - 1] if limit <= len(places) else None


def _count(truth: Truth, row: dict[str, str], kind: str, at: datetime) -> None:
    truth.kinds[kind] += 1
    if row["tailnum"] not in MISSING:
        truth.with_tail += 1
        truth.aircraft.add(row["tailnum"])
    elif kind == "cancelled":
        truth.unidentified[row["origin"]] += 1
    figures = truth.hours[row["origin"], int(at.timestamp()) // 3600 * 3_600_000]
    match kind:
        case "scheduled":
            figures.scheduled += 1
        case "departed":
            delay = int(row["dep_delay"])
            figures.departed += 1
            figures.on_time += delay <= ON_TIME_MAX_DELAY_MIN
            figures.delay_min += delay
        case "arrived":
            figures.arrived += 1
            figures.arrival_delay_min += 0 if row["arr_delay"] in MISSING else int(row["arr_delay"])
        case "cancelled":
            figures.cancelled += 1


def _lines(dataset: Dataset) -> Iterator[tuple[dict[str, str], dict[str, _Moment]]]:
    """Each line of the table, with the moments of its events."""
    zones = dataset.zones()
    with dataset.open_flights() as table:
        for number, row in enumerate(csv.DictReader(table)):
            yield row, {kind: _Moment(at, _RANK[kind], number) for kind, at in _moments(row, zones).items()}


def _moments(row: dict[str, str], zones: dict[str, Zone]) -> dict[str, datetime]:
    """When the events of a line happened, UTC."""
    midnight = _day(row["year"], row["month"], row["day"])
    offset = midnight + timedelta(hours=int(row["hour"])) - datetime.fromisoformat(row["time_hour"])
    planned = midnight + _clock(row["sched_dep_time"])
    moments = {"scheduled": planned - offset - _ON_BOARD_BEFORE}
    if row["dep_time"] in MISSING:
        return moments | {"cancelled": planned - offset}
    left = midnight + _clock(row["dep_time"])
    if left < planned - _ON_BOARD_BEFORE:  # nobody leaves an hour early: it was the next day
        left += _DAY
    moments["departed"] = left - offset
    if row["arr_time"] not in MISSING:
        moments["arrived"] = _arrival(moments["departed"], midnight + _clock(row["arr_time"]), zones[row["dest"]])
    return moments


def _arrival(departed: datetime, local: datetime, zone: Zone) -> datetime:
    """*local* is the wall clock at the destination, of a day near the departure: the first such moment after it."""
    wall = local - _DAY
    while (arrived := wall - _offset(wall, zone)) < departed:
        wall += _DAY
    return arrived


def _offset(wall: datetime, zone: Zone) -> timedelta:
    summer = zone.daylight_saving and _SUMMER_STARTS <= wall < _SUMMER_ENDS
    return timedelta(hours=zone.standard_offset_h + summer)


@cache
def _day(year: str, month: str, day: str) -> datetime:
    """Midnight of a local day, written as if it were UTC."""
    return datetime(int(year), int(month), int(day), tzinfo=UTC)


@cache
def _clock(hhmm: str) -> timedelta:
    """Time of day; 2400 is the end of the day."""
    return timedelta(hours=int(hhmm) // 100, minutes=int(hhmm) % 100)
