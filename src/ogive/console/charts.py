"""Plots as inline SVG, and the samples of figures over the last minutes that they show.

Colours are CSS classes and variables, so that the page decides about light and dark.

The samples of the last ten minutes are as close as they were taken; of those of the day, one in
five minutes is kept.
"""

import itertools
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

# (position on the horizontal axis, value), in rising order
Points = list[tuple[float, float]]

_LEFT = 64
_RIGHT = 16
_TOP = 14
_BOTTOM = 42
# pixels between two numbers of the vertical axis
_TICK_ROOM = 46
# pixels for a letter of a phase's name on a narrow page
_LETTER_ROOM = 12


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve; *style* is the CSS class (c0, c1 ...) for its colour."""

    label: str
    style: str
    points: Points


@dataclass(frozen=True, slots=True)
class Band:
    """A named section of the time axis: a phase of the run."""

    label: str
    start: float
    end: float


def seconds(at: float) -> str:
    return f"{at:g} s"


def line_chart(
    title: str,
    lines: Sequence[Curve],
    bands: Sequence[Band] = (),
    *,
    width: int = 960,
    height: int = 280,
    end: float | None = None,
    columns: int = 10,
    place: Callable[[float], str] = seconds,
) -> str:
    """Draw curves over a horizontal axis from 0 to *end* (None: to the last point) with about
    *columns* ticks, which *place* labels.

    Lines with the same label are parts of one curve.
    """
    points = [point for line in lines for point in line.points]
    end = end or max([at for at, _ in points] + [band.end for band in bands], default=1.0) or 1.0
    rows = (height - _TOP - _BOTTOM) // _TICK_ROOM
    x_ticks = ticks(end, columns)
    y_ticks = ticks(max((value for _, value in points), default=1.0), rows)
    top = y_ticks[-1]

    def x(at: float) -> float:
        return _LEFT + at / end * (width - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return height - _BOTTOM - value / top * (height - _TOP - _BOTTOM)

    parts = [svg_open(width, height, title)]
    for index, band in enumerate(bands):
        left, right = x(band.start), x(band.end)
        size = f'width="{right - left:.1f}" height="{height - _TOP - _BOTTOM}"'
        parts.append(
            f'<rect class="band{index % 2}" x="{left:.1f}" y="{_TOP}" '
            f"{size}><title>{escape(band.label)}</title></rect>"
        )
        if right - left > _LETTER_ROOM * len(band.label):
            parts.append(svg_text(left + 6, _TOP + 18, band.label, "phase", "start"))
    for value in y_ticks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{width - _RIGHT}"/>')
        parts.append(svg_text(_LEFT - 8, y(value) + 4, short(value), "tick", "end"))
    parts += [svg_text(x(at), height - 10, place(at), "tick") for at in x_ticks if at <= end]
    for line in lines:
        # a line from a point to itself is drawn as a dot
        ends = line.points * 2 if len(line.points) == 1 else line.points
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in ends)
        parts.append(
            f'<polyline class="curve {line.style}" '
            f'points="{path}"><title>{escape(line.label)}</title></polyline>'
        )
    # the title already names a single curve
    several = len({line.label for line in lines}) > 1
    return "".join((*parts, "</svg>", legend(lines) if several else ""))


def legend(lines: Sequence[Curve]) -> str:
    styles = {line.label: line.style for line in lines}
    entries = "".join(
        f'<span><i class="{style}"></i>{escape(label)}</span>' for label, style in styles.items()
    )
    return f'<p class="legend">{entries}</p>'


def svg_open(width: float, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'


def svg_text(x: float, y: float, text: str, style: str, anchor: str = "middle") -> str:
    return (
        f'<text class="{style}" text-anchor="{anchor}" x="{x:.1f}" '
        f'y="{y:.1f}">{escape(text)}</text>'
    )


def ticks(highest: float, about: int) -> list[float]:
    """Return round numbers from 0 to at least *highest*, about *about* of them."""
    if highest <= 0:
        return [0.0, 1.0]
    rough = highest / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(highest / step - 1e-9) + 1)]


def short(value: float) -> str:
    """Return 1500 as "1.5k"."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


# --- samples --------------------------------------------------------------------------------------

WINDOW_S: Final = 600.0
DAY_S: Final = 86_400.0
# shortest time between two samples of a series, within the window and before it
STEP_S: Final = 2.0
DAY_STEP_S: Final = 300.0
# a longer pause interrupts the curve: there were no answers, or too many series
GAP_S: Final = 130.0
DAY_GAP_S: Final = 3 * DAY_STEP_S
# 512 series with the samples of a day take 14 MB, and 26 MB if somebody looks at each
MAX_SERIES: Final = 512

Series = tuple[str, ...]


class Samples:
    """Samples by series.

    A series is bounded by its window and step. The one that was added to least recently is dropped
    first.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, limit: int = MAX_SERIES
    ) -> None:
        self._clock, self._limit = clock, limit
        self._series: OrderedDict[Series, deque[tuple[float, float]]] = OrderedDict()
        # what has left the window
        self._earlier: dict[Series, deque[tuple[float, float]]] = {}

    def add(self, series: Series, value: float, *, evict: bool = True) -> None:
        """Add a sample. *evict* False: not if another series had to go for it."""
        if not evict and series not in self._series and len(self._series) >= self._limit:
            return
        now = self._clock()
        points = self._series.setdefault(series, deque())
        self._series.move_to_end(series)
        if points and now - points[-1][0] < STEP_S:
            return
        points.append((now, value))
        while points[0][0] < now - WINDOW_S:
            self._keep(series, points.popleft())
        while len(self._series) > self._limit:
            dropped, _ = self._series.popitem(last=False)
            self._earlier.pop(dropped, None)

    def _keep(self, series: Series, point: tuple[float, float]) -> None:
        earlier = self._earlier.setdefault(series, deque(maxlen=int(DAY_S / DAY_STEP_S)))
        if not earlier or point[0] - earlier[-1][0] >= DAY_STEP_S:
            earlier.append(point)

    def curves(self, series: Series, *, day: bool = False) -> list[Points]:
        """Return stretches without a gap, of (minutes before now, value); the places rise to 0.

        They are of the last minutes, or of the whole *day*.
        """
        return self._stretches(self._points(series, day), day)

    def _points(self, series: Series, day: bool) -> list[tuple[float, float]]:
        return [*(self._earlier.get(series, ()) if day else ()), *self._series.get(series, ())]

    def rates(self, series: Series, *, day: bool = False) -> list[Points]:
        """Return the growth of a total per second, like curves().

        A total that falls was restarted.
        """
        pairs = itertools.pairwise(self._points(series, day))
        return self._stretches(
            [
                (t1, max(0.0, (v1 - v0) / (t1 - t0)))
                for (t0, v0), (t1, v1) in pairs
                if t1 - t0 <= (DAY_GAP_S if day else GAP_S)
            ],
            day,
        )

    def _stretches(self, points: list[tuple[float, float]], day: bool) -> list[Points]:
        now, found, before = self._clock(), list[Points](), 0.0
        for at, value in points:
            if now - at > (DAY_S if day else WINDOW_S):
                continue
            if not found or at - before > (DAY_GAP_S if day else GAP_S):
                found.append([])
            found[-1].append(((at - now) / 60, value))
            before = at
        return found
