"""Formats of figures, times, addresses and commands on pages."""

import shlex
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from markupsafe import Markup

from ogive.console.charts import DAY_S, WINDOW_S, Curve, Points, line_chart

# time spans of plots in minutes, and the number of ticks of each
_SPANS: Final = {1.0: 4, 2.0: 4, 5.0: 5, WINDOW_S / 60: 5, 60.0: 3, 360.0: 6, DAY_S / 60: 4}
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_NOTHING: Final = "–"


def number(value: float | None) -> str:
    if value is None:
        return _NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0%}"


def size(count: int) -> str:
    for unit, bytes_ in (("MiB", 1024**2), ("KiB", 1024)):
        if count >= bytes_:
            return f"{count / bytes_:,.1f} {unit}"
    return f"{count} B"


def duration(seconds: float | None) -> str:
    """Return the two largest units: ``3 d 4 h``."""
    if seconds is None:
        return _NOTHING
    left, words = int(seconds), list[str]()
    for length, unit in _UNITS:
        count, left = divmod(left, length)
        if count or (unit == "s" and not words):
            words.append(f"{count} {unit}")
        if len(words) == 2:
            break
    return " ".join(words)


def at(ms: int | None) -> Markup:
    """Return a time in UTC. Brokers may send times that no calendar has."""
    try:
        moment = None if not ms else datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
    except (OverflowError, OSError, ValueError):
        return Markup("{} ms").format(ms)
    if moment is None:
        return Markup(_NOTHING)  # noqa: S704  a constant
    text = moment.isoformat(" ", "milliseconds")
    return Markup('<time datetime="{}Z">{}</time>').format(
        moment.isoformat(timespec="milliseconds"), text
    )


def path_below(root: str, /, *parts: str, **query: object) -> str:
    """Return an address below *root*, in which any name is quoted as one part."""
    place = f"{root}/" + "/".join(quote(part, safe="", errors="replace") for part in parts)
    given = {name: value for name, value in query.items() if value not in (None, "", False, ())}
    return f"{place}?{urlencode(given, doseq=True, errors='replace')}" if given else place


def command(*words: object) -> str:
    """Return a command line that a shell reads as these words."""
    return shlex.join(["ogive", *map(str, words)])


def plot(title: str, curves: list[tuple[str, list[Points]]]) -> Markup:
    """Draw curves of the last minutes or hours, as far as there are samples; '' if there are none
    yet.
    """
    seen = [place for _, pieces in curves for piece in pieces for place, _ in piece]
    if not seen:
        return Markup()
    span = next((span for span in _SPANS if span >= -min(seen)), max(_SPANS))
    # of a long span the ticks are hours
    unit = 60 if span > 60 else 1
    lines = [
        Curve(
            label, f"c{index}", [(max(0.0, span + place) / unit, value) for place, value in piece]
        )
        for index, (label, pieces) in enumerate(curves)
        for piece in pieces
    ]
    drawn = line_chart(
        title,
        lines,
        width=560,
        height=210,
        end=span / unit,
        columns=_SPANS[span],
        place=lambda place: _ago(span - place * unit),
    )
    return Markup(drawn)  # noqa: S704  charts escape what they are given


def _ago(minutes: float) -> str:
    if minutes < 0.001:
        return "now"
    if minutes > 60:
        return f"−{minutes / 60:g} h"
    return f"−{minutes:g} min" if minutes >= 1 else f"−{minutes * 60:.0f} s"


FILTERS: Final = {"number": number, "share": share, "size": size, "duration": duration, "at": at}
