"""Report of a run: one self-contained page, without network, scripts or other files."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import groupby
from typing import Final

from examples.demo import names
from examples.demo.dataset import NEW_YORK
from examples.demo.figures import Check, Hours
from examples.demo.heat_map import HeatRow, heat_map
from examples.demo.page import PAGE, STYLE
from examples.demo.timeline import Timeline
from examples.demo.truth import Figures
from ogive.console.charts import Band, Curve, line_chart

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fact:
    """A number for the head of the page."""

    label: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Values of the page."""

    facts: Sequence[Fact]
    phases: Sequence[Band]
    timeline: Timeline
    hours: Hours
    checks: Sequence[Check]


def render(run: Run) -> str:
    """Return the page as HTML."""
    failed = sum(not check.ok for check in run.checks)
    verdict = (
        "every figure is right" if not failed else f"{failed} of {len(run.checks)} figures differ"
    )
    return PAGE.format(
        style=STYLE,
        subtitle=f"{_departures(run.hours)}, as events through a broker, two consumer groups and "
        "Spark.",
        verdict_class="bad" if failed else "good",
        verdict=f"{len(run.checks)} figures compared with the files: {verdict}",
        facts="".join(
            f"<div><b>{escape(fact.value)}</b><span>{escape(fact.label)}</span></div>"
            for fact in run.facts
        ),
        rates=_rates(run),
        lag=_lag(run),
        heat=_heat(run.hours),
        table=table(run.checks),
    )


def _departures(hours: Hours) -> str:
    """Return the part of the year that was read: a run may stop long before the
    year ends.

    The days are those of events "scheduled", on New York's calendar.
    """
    days = [_clock(hour_ms).date() for (_, hour_ms), figures in hours.items() if figures.scheduled]
    if not days:
        return "Departures from New York's airports"
    first, last = min(days), max(days)
    period = (
        f"on {first:%-d %B %Y}" if first == last else f"from {first:%-d %B} to {last:%-d %B %Y}"
    )
    return f"Departures from New York's airports {period}"


def _rates(run: Run) -> str:
    shown = [
        (names.SENT, "sent and acknowledged"),
        (names.IN_ORDER, "orderly group"),
        (names.SPARK, "Spark stream"),
    ]
    lines = [
        Curve(label, f"c{index}", run.timeline.rates(name))
        for index, (name, label) in enumerate(shown)
    ]
    return line_chart("events per second", lines, run.phases)


def _lag(run: Run) -> str:
    groups = [
        ("orderly group, all events", "c1", names.SENT, names.IN_ORDER),
        (
            "concurrent group, cancellations only",
            "c3",
            names.SENT_CANCELLATIONS,
            names.CANCELLATIONS,
        ),
        ("Spark stream, all events", "c2", names.SENT, names.SPARK),
    ]
    lines = [
        Curve(label, style, run.timeline.lag(produced, consumed))
        for label, style, produced, consumed in groups
    ]
    return "".join(
        line_chart(f"lag of the {line.label}", [line], run.phases, height=190) for line in lines
    )


def _heat(hours: Hours) -> str:
    by_clock: defaultdict[str, list[Figures]] = defaultdict(lambda: [Figures() for _ in range(24)])
    for (airport, hour_ms), figures in hours.items():
        by_clock[airport][_clock(hour_ms).hour].add(figures)
    columns = [f"{hour:02}" for hour in range(24)]
    delays, shares = [], []
    for airport, cells in sorted(by_clock.items()):
        details = [_describe(airport, hour, figures) for hour, figures in enumerate(cells)]
        delays.append(
            HeatRow(
                airport, [f.delay_min / f.departed if f.departed else None for f in cells], details
            )
        )
        shares.append(
            HeatRow(
                airport,
                [100 * f.on_time / f.departed if f.departed else None for f in cells],
                details,
            )
        )
    return (
        "<h3>Mean departure delay, minutes</h3>"
        + heat_map("mean departure delay", delays, columns, hue=18, low=0, high=60, digits=0)
        + "<h3>Departures on time (at most 15 minutes late), percent</h3>"
        + heat_map("departures on time", shares, columns, hue=205, low=20, high=100, digits=0)
    )


def _clock(hour_ms: int) -> datetime:
    """Return a moment as New York's clocks and calendars show it."""
    minute = hour_ms // 60_000
    return _EPOCH + timedelta(minutes=minute + NEW_YORK.offset_min(minute))


def _describe(airport: str, hour: int, figures: Figures) -> str:
    if not figures.departed:
        return f"{airport}, {hour:02}:00 to {hour:02}:59: no departures"
    mean, share = figures.delay_min / figures.departed, figures.on_time / figures.departed
    return (
        f"{airport}, {hour:02}:00 to {hour:02}:59: {figures.departed:,} departures, {mean:.1f} "
        f"min late on average, {share:.1%} on time"
    )


def table(checks: Sequence[Check]) -> str:
    """Return the comparison, a body of rows per section; differing rows are marked."""
    bodies = []
    for section, rows in groupby(checks, key=lambda check: check.section):
        cells = "".join(
            f'<tr class="{"ok" if check.ok else "differs"}"><td>{escape(check.name)}'
            f"</td><td>{number(check.expected)}</td>"
            f"<td>{number(check.actual)}</td><td>{'equal' if check.ok else 'DIFFERS'}</td></tr>"
            for check in rows
        )
        bodies.append(f'<tbody><tr><th colspan="4">{escape(section)}</th></tr>{cells}</tbody>')
    return (
        "<table><thead><tr><td></td><td>from the files</td><td>from the "
        f"run</td><td></td></tr></thead>{''.join(bodies)}</table>"
    )


def number(value: int | float | None) -> str:
    return "none" if value is None else f"{value:,}"
