"""Counts over time, for progress bars and plots."""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from ogive.console.charts import Points


@dataclass(slots=True)
class Timeline:
    """Running totals by name, at seconds since the start of the run.

    Memory is bounded by the samplers: a few points a second for some minutes.
    """

    _totals: defaultdict[str, Points] = field(default_factory=lambda: defaultdict(list))

    def record(self, name: str, at_s: float, total: int) -> None:
        self._totals[name].append((at_s, total))

    def total_at(self, name: str, at_s: float) -> float:
        """Return the total at a moment, on the straight line between the two samples around it; 0
        before the first.
        """
        points = self._totals.get(name, [])
        after = bisect_right(points, (at_s, float("inf")))
        if after == 0:
            return 0.0
        (t0, v0) = points[after - 1]
        if after == len(points):
            return v0
        (t1, v1) = points[after]
        return v0 + (v1 - v0) * (at_s - t0) / (t1 - t0)

    def span(self, name: str) -> tuple[float, float] | None:
        """Return the first and last sample of *name*."""
        points = self._totals.get(name)
        return (points[0][0], points[-1][0]) if points else None

    def rates(self, name: str, step_s: float = 1.0) -> Points:
        """Return rates per second, over steps of *step_s*, each at the middle of its step."""
        return [
            (
                start + step_s / 2,
                (self.total_at(name, start + step_s) - self.total_at(name, start)) / step_s,
            )
            for start in self._steps(name, step_s)
        ]

    def lag(self, produced: str, consumed: str, step_s: float = 0.5) -> Points:
        """Return the difference of *produced* and *consumed* over time, from the first of either to
        the last of *consumed*.
        """
        spans = [span for span in (self.span(produced), self.span(consumed)) if span]
        if len(spans) < 2:
            return []
        start, end = min(span[0] for span in spans), spans[1][1]
        moments = [start + i * step_s for i in range(int((end - start) / step_s) + 1)] + [end]
        return [
            (at, max(0.0, self.total_at(produced, at) - self.total_at(consumed, at)))
            for at in moments
        ]

    def _steps(self, name: str, step_s: float) -> list[float]:
        span = self.span(name)
        return (
            [span[0] + i * step_s for i in range(max(1, round((span[1] - span[0]) / step_s)))]
            if span
            else []
        )
