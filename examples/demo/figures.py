"""Observed figures beside expected ones: a plain list of checks, which the terminal, the report and
the exit code all read.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, fields
from datetime import UTC, datetime
from typing import Final

from examples.demo import names
from examples.demo.truth import Figures, Truth, add_up

Hours = Mapping[tuple[str, int], Figures]
_SHOWN_DIFFERENCES: Final = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One figure.

    *actual* is None where the pipeline reported none, and that is a difference too.
    """

    section: str
    name: str
    expected: int | float
    actual: int | float | None

    @property
    def ok(self) -> bool:
        return self.expected == self.actual


@dataclass(slots=True, kw_only=True)
class InOrder:
    """Figures of the orderly group."""

    # each event once
    received: int = 0
    aircraft: int = 0
    # events of an aircraft that did not carry the next number
    out_of_order: int = 0
    schedule_reversals: int = 0
    # delivered again, which "at least once" allows; no check
    repeated: int = 0


@dataclass(slots=True, kw_only=True)
class Cancellations:
    """Figures of the concurrent group."""

    deliveries: int = 0
    processed: int = 0
    # of those without a tail number
    by_reconsume_times: dict[int, int] = field(default_factory=dict)

    @property
    def first_deliveries(self) -> int:
        return self.processed + self.by_reconsume_times.get(0, 0)


@dataclass(slots=True, kw_only=True)
class DeadLetters:
    """The dead-letter topic, read as a table."""

    rows: int = 0
    flights: int = 0  # different ones
    without_tail: int = 0
    airports: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Observed:
    """Figures that the pipeline reports at its end."""

    # kind to acknowledged events
    sent: dict[str, int] = field(default_factory=dict)
    in_order: InOrder = field(default_factory=InOrder)
    cancellations: Cancellations = field(default_factory=Cancellations)
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    rows_streamed: int = 0
    parquet: Hours = field(default_factory=dict)
    topic: Hours = field(default_factory=dict)
    # group to messages behind at the end, as the broker sees it
    lag: dict[str, int] = field(default_factory=dict)


def compare(
    truth: Truth, observed: Observed, *, max_retries: int = names.MAX_RETRIES
) -> list[Check]:
    """Return every check of a run, in the order in which a message passes."""
    return [
        *_compare_groups(truth, observed, max_retries),
        *_compare_dead_letters(truth, observed.dead_letters),
        Check("Spark stream", "events read", truth.events, observed.rows_streamed),
        *_compare_airports(truth.airports, add_up(observed.parquet)),
        *_compare_hours("Spark to Parquet", truth.hours, observed.parquet),
        *_compare_hours("Spark to topic", truth.hours, observed.topic),
        *(
            Check("lag at the end", group, 0, observed.lag.get(group))
            for group in names.UNFILTERED_GROUPS
        ),
    ]


def _compare_groups(truth: Truth, observed: Observed, max_retries: int) -> list[Check]:
    unidentified = truth.unidentified.total()
    group, cancellations = observed.in_order, observed.cancellations
    return [
        *(
            Check("sent, acknowledged", kind, truth.kinds[kind], observed.sent.get(kind))
            for kind in truth.kinds
        ),
        Check("sent, acknowledged", "all", truth.events, sum(observed.sent.values())),
        Check("orderly group", "events received", truth.events, group.received),
        Check("orderly group", "aircraft", len(truth.aircraft), group.aircraft),
        Check("orderly group", "events out of order", 0, group.out_of_order),
        Check(
            "orderly group",
            "departures against the schedule's order",
            truth.schedule_reversals,
            group.schedule_reversals,
        ),
        Check(
            "concurrent group",
            "cancellations processed",
            truth.kinds["cancelled"] - unidentified,
            cancellations.processed,
        ),
        *(
            Check(
                "concurrent group",
                f"failed on purpose, delivery {times + 1}",
                unidentified,
                cancellations.by_reconsume_times.get(times, 0),
            )
            for times in range(max_retries + 1)
        ),
        Check(
            "concurrent group",
            "deliveries",
            truth.deliveries(max_retries),
            cancellations.deliveries,
        ),
    ]


def _compare_dead_letters(truth: Truth, table: DeadLetters) -> list[Check]:
    unidentified = truth.unidentified.total()
    return [
        Check("dead letters", "rows", unidentified, table.rows),
        Check("dead letters", "different flights", unidentified, table.flights),
        Check("dead letters", "without a tail number", unidentified, table.without_tail),
        *(
            Check("dead letters", airport, count, table.airports.get(airport))
            for airport, count in sorted(truth.unidentified.items())
        ),
    ]


def _compare_airports(
    expected: Mapping[str, Figures], actual: Mapping[str, Figures]
) -> list[Check]:
    return [
        Check(airport, label, value, found[label] if found else None)
        for airport, figures in expected.items()
        for found in [_labelled(actual[airport]) if airport in actual else None]
        for label, value in _labelled(figures).items()
    ]


def _labelled(figures: Figures) -> dict[str, int | float]:
    return {
        "scheduled": figures.scheduled,
        "departed": figures.departed,
        "departed on time (at most 15 min late)": figures.on_time,
        "sum of departure delays, min": figures.delay_min,
        "mean departure delay, min": round(figures.delay_min / figures.departed, 4)
        if figures.departed
        else 0,
        "arrived": figures.arrived,
        "sum of arrival delays, min": figures.arrival_delay_min,
        "cancelled": figures.cancelled,
    }


def _compare_hours(section: str, expected: Hours, actual: Hours) -> list[Check]:
    """Return one check that counts the equal hours, one that counts surplus ones, and the first few
    differences figure by figure.
    """
    different = sorted(key for key in expected if actual.get(key) != expected[key])
    return [
        Check(
            section,
            "hours per airport, all figures equal",
            len(expected),
            len(expected) - len(different),
        ),
        Check(section, "hours that should not be there", 0, len(actual.keys() - expected.keys())),
        *(
            check
            for key in different[:_SHOWN_DIFFERENCES]
            for check in _differences(section, key, expected[key], actual.get(key))
        ),
    ]


def _differences(
    section: str, key: tuple[str, int], expected: Figures, actual: Figures | None
) -> list[Check]:
    airport, hour_ms = key
    hour = datetime.fromtimestamp(hour_ms / 1000, UTC)
    names = [column.name for column in fields(Figures)]
    found = astuple(actual) if actual else (None,) * len(names)
    checks = (
        Check(section, f"{airport}, {hour:%Y-%m-%d %H:%M} UTC, {name}", want, got)
        for name, want, got in zip(names, astuple(expected), found, strict=True)
    )
    return [check for check in checks if not check.ok]
