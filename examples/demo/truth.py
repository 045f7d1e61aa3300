"""Expected figures, computed straight from the table's lines: no event, no message and no code of
the pipeline takes part.

The times are derived in another way than in ``flights``: from the local clock columns and calendar
dates, not from the delays and epoch minutes. So a mistake in either shows as a difference.
"""

import csv
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Final, NamedTuple

from examples.demo.dataset import MISSING, Dataset, Zone

ON_TIME_MAX_DELAY_MIN: Final = 15
_RANK: Final = {"scheduled": 0, "departed": 1, "arrived": 2, "cancelled": 3}
_ON_BOARD_BEFORE: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
# The two Sundays of 2013 on which the clocks of the United States changed; as wall clock times,
# whatever zone they are read in.
_SUMMER_STARTS: Final = datetime(2013, 3, 10, 2, tzinfo=UTC)
_SUMMER_ENDS: Final = datetime(2013, 11, 3, 2, tzinfo=UTC)


@dataclass(slots=True)
class Figures:
    """Counts of events and sums of delays of one airport, or of one hour there.

    Arrivals count at the airport of departure.
    """

    scheduled: int = 0
    departed: int = 0
    # departures at most 15 minutes late
    on_time: int = 0
    # sum over departures; early ones count negative
    delay_min: int = 0
    arrived: int = 0
    # sum over arrivals with a known delay (a diverted flight has none)
    arrival_delay_min: int = 0
    cancelled: int = 0

    def add(self, other: "Figures") -> None:
        for name, value in zip(self.__slots__, astuple(other), strict=True):
            setattr(self, name, getattr(self, name) + value)


@dataclass(slots=True)
class Truth:
    """The expected figures of a run."""

    kinds: Counter[str] = field(default_factory=Counter)
    # (airport, epoch ms of the hour, UTC)
    hours: dict[tuple[str, int], Figures] = field(default_factory=lambda: defaultdict(Figures))
    aircraft: set[str] = field(default_factory=set)
    # departures of an aircraft whose scheduled time is before that of its departure before
    schedule_reversals: int = 0
    # airport to cancellations without a tail number
    unidentified: Counter[str] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        return self.kinds.total()

    @property
    def airports(self) -> dict[str, Figures]:
        return add_up(self.hours)

    def deliveries(self, max_retries: int) -> int:
        """Return the number of calls of the group that takes cancellations: once each, and
        *max_retries* times more if the tail is missing.
        """
        return self.kinds["cancelled"] + max_retries * self.unidentified.total()


def add_up(hours: Mapping[tuple[str, int], Figures]) -> dict[str, Figures]:
    """Return the sum of the hours of each airport."""
    sums: dict[str, Figures] = {}
    for (airport, _), figures in sorted(hours.items()):
        sums.setdefault(airport, Figures()).add(figures)
    return sums


class _Event(NamedTuple):
    """An event that sorts into event order: by time, kind and line, which no two events share."""

    at: datetime
    rank: int
    line: int
    kind: str
    origin: str
    tail: str | None
    delay_min: int
    # when the flight came up on the board
    scheduled: datetime


def compute(dataset: Dataset, limit: int | None = None) -> Truth:
    """Return the figures of the first *limit* events in event order, of all without a limit."""
    events = _events(dataset)
    truth = Truth()
    departures: defaultdict[str | None, list[_Event]] = defaultdict(list)
    for event in events if limit is None else heapq.nsmallest(limit, events):
        _count(truth, event)
        if event.kind == "departed":
            departures[event.tail].append(event)
    for flown in departures.values():
        truth.schedule_reversals += sum(
            later.scheduled < earlier.scheduled for earlier, later in pairwise(sorted(flown))
        )
    return truth


def _count(truth: Truth, event: _Event) -> None:
    truth.kinds[event.kind] += 1
    if event.tail is not None:
        truth.aircraft.add(event.tail)
    elif event.kind == "cancelled":
        truth.unidentified[event.origin] += 1
    figures = truth.hours[event.origin, int(event.at.timestamp()) // 3600 * 3_600_000]
    match event.kind:
        case "scheduled":
            figures.scheduled += 1
        case "departed":
            figures.departed += 1
            figures.on_time += event.delay_min <= ON_TIME_MAX_DELAY_MIN
            figures.delay_min += event.delay_min
        case "arrived":
            figures.arrived += 1
            figures.arrival_delay_min += event.delay_min
        case "cancelled":
            figures.cancelled += 1


def _events(dataset: Dataset) -> Iterator[_Event]:
    """Yield the events of each line of the table, line by line."""
    zones = dataset.zones()
    with dataset.open_flights() as table:
        for line, row in enumerate(csv.DictReader(table)):
            origin, tail = row["origin"], None if row["tailnum"] in MISSING else row["tailnum"]
            delays = {"departed": _delay(row["dep_delay"]), "arrived": _delay(row["arr_delay"])}
            moments = _moments(row, zones)
            for kind, at in moments.items():
                yield _Event(
                    at,
                    _RANK[kind],
                    line,
                    kind,
                    origin,
                    tail,
                    delays.get(kind, 0),
                    moments["scheduled"],
                )


def _delay(minutes: str) -> int:
    return 0 if minutes in MISSING else int(minutes)


def _moments(row: dict[str, str], zones: dict[str, Zone]) -> dict[str, datetime]:
    """Return the moments of a line's events, UTC."""
    midnight = _day(row["year"], row["month"], row["day"])
    offset = midnight + timedelta(hours=int(row["hour"])) - datetime.fromisoformat(row["time_hour"])
    planned = midnight + _clock(row["sched_dep_time"])
    moments = {"scheduled": planned - offset - _ON_BOARD_BEFORE}
    if row["dep_time"] in MISSING:
        return moments | {"cancelled": planned - offset}
    left = midnight + _clock(row["dep_time"])
    # no flight leaves an hour early: it was the next day
    if left < planned - _ON_BOARD_BEFORE:
        left += _DAY
    moments["departed"] = left - offset
    if row["arr_time"] not in MISSING:
        moments["arrived"] = _arrival(
            moments["departed"], midnight + _clock(row["arr_time"]), zones[row["dest"]]
        )
    return moments


def _arrival(departed: datetime, local: datetime, zone: Zone) -> datetime:
    """Return the first moment after the departure at which the wall clock at the destination shows
    *local*.
    """
    wall = local - _DAY
    while (arrived := wall - _offset(wall, zone)) < departed:
        wall += _DAY
    return arrived


def _offset(wall: datetime, zone: Zone) -> timedelta:
    summer = zone.daylight_saving and _SUMMER_STARTS <= wall < _SUMMER_ENDS
    return timedelta(hours=zone.standard_offset_h + summer)


@cache
def _day(year: str, month: str, day: str) -> datetime:
    """Return midnight of a local day, written as if it were UTC."""
    return datetime(int(year), int(month), int(day), tzinfo=UTC)


@cache
def _clock(hhmm: str) -> timedelta:
    """Return the time of day; 2400 is the end of the day."""
    return timedelta(hours=int(hhmm) // 100, minutes=int(hhmm) % 100)
