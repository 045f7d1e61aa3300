"""Departures of 2013 from New York's airports as a stream of events, in event
order.

Every flight is *scheduled*; then it either *departed* and mostly *arrived*, or was *cancelled*.
When each of these happened, in UTC:

- scheduled: one hour before the scheduled departure, when the flight comes up on the board. No
  flight left earlier than that (the earliest left 43 minutes ahead), so a flight's events are
  always in this order.
- departed: scheduled departure plus the departure delay. The column ``time_hour`` is UTC, the
  minute is added.
- arrived: the first moment after the departure at which the clock at the destination shows
  ``arr_time``.
- cancelled: the scheduled departure.

Event order is by time, then by kind (in the order above), then by line of the table. One aircraft's
events carry the numbers 1, 2, 3 ... in that order. A flight without a tail number (2,512, all
cancelled) belongs to no aircraft and carries no number.
"""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Final, NamedTuple

from examples.demo.dataset import MISSING, Dataset, Zone

KINDS: Final = ("scheduled", "departed", "arrived", "cancelled")
_SCHEDULED, _DEPARTED, _ARRIVED, _CANCELLED = range(4)
_ON_BOARD_BEFORE_MIN: Final = 60
_DAY_MIN: Final = 1440

# Columns by name, in the order of the parameters of _flight.
_COLUMNS: Final = (
    *("year", "month", "day", "carrier", "flight", "tailnum", "origin", "dest"),
    *("sched_dep_time", "dep_time", "dep_delay", "arr_time", "arr_delay", "minute", "time_hour"),
)

# An event's place in the order, packed into one int that sorts: minute, kind, line.
_LINE_BITS: Final = 20
_KIND_BITS: Final = 2
_KIND_MASK: Final = (1 << _KIND_BITS) - 1


class Event(NamedTuple):
    """An event to send: *kind* becomes the tag, *flight* the key, *tail* the sharding key."""

    kind: str
    # date/carrier/number/origin/scheduled time, unique, without blanks
    flight: str
    tail: str | None
    # compact JSON: type flight tail sequence origin dest scheduled at delay; times in epoch ms,
    # delay in minutes or null
    body: bytes


class _Flight(NamedTuple):
    """One line of the table. Times in minutes since the epoch, delays in minutes."""

    flight: str
    tail: str | None
    # the JSON members "origin", "dest" and "scheduled", which all of its events share
    route: str
    scheduled: int
    departed: int | None
    arrived: int | None
    departure_delay: int | None
    arrival_delay: int | None

    def moments(self) -> Iterator[tuple[int, int]]:
        """Yield (kind, minute) of each of its events."""
        yield _SCHEDULED, self.scheduled - _ON_BOARD_BEFORE_MIN
        if self.departed is None:
            yield _CANCELLED, self.scheduled
            return
        yield _DEPARTED, self.departed
        if self.arrived is not None:
            yield _ARRIVED, self.arrived


class EventStream:
    """The first *limit* events (all without a limit), in event order.

    Holds the flights, about 200 MB; makes each event on the way.
    """

    def __init__(self, dataset: Dataset, limit: int | None = None) -> None:
        self._flights = list(_read(dataset))
        places = sorted(
            (minute << _KIND_BITS | kind) << _LINE_BITS | line
            for line, flight in enumerate(self._flights)
            for kind, minute in flight.moments()
        )
        self._places = places[:limit]
        self.kinds = Counter(KINDS[place >> _LINE_BITS & _KIND_MASK] for place in self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Event]:
        sequence: defaultdict[str, int] = defaultdict(int)
        for place in self._places:
            flight = self._flights[place & (1 << _LINE_BITS) - 1]
            kind = place >> _LINE_BITS & _KIND_MASK
            if flight.tail is not None:
                sequence[flight.tail] += 1
            yield _event(
                flight,
                kind,
                place >> _LINE_BITS + _KIND_BITS,
                sequence[flight.tail] if flight.tail else None,
            )


def _event(flight: _Flight, kind: int, minute: int, sequence: int | None) -> Event:
    delay = (
        flight.departure_delay
        if kind == _DEPARTED
        else flight.arrival_delay
        if kind == _ARRIVED
        else None
    )
    # Put together by hand, a third of the time of json.dumps; codes and tail numbers in the table
    # need no escape.
    body = (
        f'{{"type":"{KINDS[kind]}","flight":"{flight.flight}",{flight.route},"at":{minute * 60_000}'
        ","
        f'"delay":{"null" if delay is None else delay},"sequence":{sequence or "null"}}}'
    )
    return Event(KINDS[kind], flight.flight, flight.tail, body.encode("ascii"))


def _read(dataset: Dataset) -> Iterator[_Flight]:
    zones = dataset.zones()
    with dataset.open_flights() as table:
        lines = csv.reader(table)
        header = next(lines)
        columns = itemgetter(*map(header.index, _COLUMNS))
        for line in lines:
            yield _flight(zones, *columns(line))


def _flight(
    zones: dict[str, Zone],
    year: str,
    month: str,
    day: str,
    carrier: str,
    number: str,
    tail: str,
    origin: str,
    dest: str,
    sched_dep_time: str,
    dep_time: str,
    dep_delay: str,
    arr_time: str,
    arr_delay: str,
    minute: str,
    time_hour: str,
) -> _Flight:
    scheduled = _epoch_min(time_hour) + int(minute)
    known_tail = None if tail in MISSING else tail
    departed = None if dep_time in MISSING else scheduled + int(dep_delay)
    return _Flight(
        flight=f"{year}-{month:0>2}-{day:0>2}/{carrier}/{number}/{origin}/{sched_dep_time:0>4}",
        tail=known_tail,
        route=f'"tail":{json.dumps(known_tail)},"origin":"{origin}","dest":"{dest}",'
        f'"scheduled":{scheduled * 60_000}',
        scheduled=scheduled,
        departed=departed,
        arrived=None
        if departed is None or arr_time in MISSING
        else _arrival(departed, arr_time, zones[dest]),
        departure_delay=None if departed is None else int(dep_delay),
        arrival_delay=None if arr_delay in MISSING else int(arr_delay),
    )


@cache
def _epoch_min(time_hour: str) -> int:
    """Return minutes since the epoch. Cached: 336,776 lines have about 7,000 different texts."""
    return int(datetime.fromisoformat(time_hour).timestamp()) // 60


def _arrival(departed: int, hhmm: str, zone: Zone) -> int:
    """Return the first minute after *departed* at which the clock of *zone* shows *hhmm* (2400 is
    midnight).
    """
    clock = int(hhmm) // 100 * 60 + int(hhmm) % 100
    at_departure = zone.offset_min(departed)
    arrived = departed + (clock - departed - at_departure) % _DAY_MIN
    # the clock may be changed while the flight is in the air
    return arrived - (zone.offset_min(arrived) - at_departure)
