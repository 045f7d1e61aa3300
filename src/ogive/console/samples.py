"""Samples of figures over the last minutes, for plots.

Figures are collected while somebody looks: nothing is asked just for a plot.
"""

import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from ogive.console.charts import Points

WINDOW_S: Final = 600.0
# shortest time between two samples of a series
STEP_S: Final = 2.0
# a longer pause breaks the curve: nobody looked
GAP_S: Final = 45.0
MAX_SERIES: Final = 1024

Series = tuple[str, ...]


class Samples:
    """Samples by series.

    A series is bounded by its window and step. The least recently viewed one is dropped first.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._series: OrderedDict[Series, deque[tuple[float, float]]] = OrderedDict()

    def add(self, series: Series, value: float) -> None:
        now = self._clock()
        points = self._series.setdefault(series, deque())
        self._series.move_to_end(series)
        if points and now - points[-1][0] < STEP_S:
            return
        points.append((now, value))
        while points[0][0] < now - WINDOW_S:
            points.popleft()
        while len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def curves(self, series: Series) -> list[Points]:
        """Return stretches without a gap, of (minutes before now, value); the places rise to 0."""
        return self._stretches(list(self._series.get(series, ())))

    def rates(self, series: Series) -> list[Points]:
        """Return the growth of a total per second, like curves().

        A total that falls was restarted.
        """
        pairs = itertools.pairwise(self._series.get(series, ()))
        return self._stretches(
            [
                (t1, max(0.0, (v1 - v0) / (t1 - t0)))
                for (t0, v0), (t1, v1) in pairs
                if t1 - t0 <= GAP_S
            ]
        )

    def _stretches(self, points: list[tuple[float, float]]) -> list[Points]:
        now, found, before = self._clock(), list[Points](), 0.0
        for at, value in points:
            if now - at > WINDOW_S:
                continue
            if not found or at - before > GAP_S:
                found.append([])
            found[-1].append(((at - now) / 60, value))
            before = at
        return found
