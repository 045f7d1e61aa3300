"""Prometheus's text format for metrics."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Rows = Iterable[tuple[Labels, float]]


class Histogram(NamedTuple):
    """Histogram of values, with their number and their sum.

    *at_most*: for each of *bounds* the number of values up to it, so that each value also counts in
    the following ones.
    """

    bounds: Sequence[float]
    at_most: Sequence[int]
    all: int
    total: float


class Values:
    """Values, counted by *bounds*: those up to the first, those above it up to the second, and so
    on.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += times * value

    def histogram(self) -> Histogram:
        *at_most, count = accumulate(self._counts)
        return Histogram(self._bounds, at_most, count, self._total)


class MetricsText:
    """Text of metrics, one after the other. *common*: labels of every line."""

    def __init__(self, common: Labels | None = None) -> None:
        self._common = common or {}
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        """Add a counter or a gauge, as *kind* says. A row is a line's labels and its value."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        for labels, value in rows:
            self._line(name, labels, value)

    def histogram(
        self, name: str, help_text: str, rows: Iterable[tuple[Labels, Histogram]]
    ) -> None:
        """Add a histogram. A row is its labels and its figures."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} histogram")
        for labels, (bounds, at_most, count, total) in rows:
            for bound, below in zip(bounds, at_most, strict=True):
                self._line(f"{name}_bucket", {**labels, "le": float(bound)}, below)
            self._line(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
            self._line(f"{name}_sum", labels, total)
            self._line(f"{name}_count", labels, count)

    def _line(self, name: str, labels: Labels, value: float) -> None:
        shown = ",".join(
            f'{label}="{_escaped(str(text))}"' for label, text in {**self._common, **labels}.items()
        )
        self._lines.append(f"{name}{{{shown}}} {int(value) if value % 1 == 0 else value}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
