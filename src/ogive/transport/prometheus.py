"""Metrics in Prometheus's text format."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Rows = Iterable[tuple[Labels, float]]


class Histogram(NamedTuple):
    """How many values were at most each of *bounds*, so each count is in the next one, too; how
    many there were, and their sum.
    """

    bounds: Sequence[float]
    at_most: Sequence[int]
    all: int
    total: float


class MetricsText:
    """One metric after the other. *common*: labels of every line."""

    def __init__(self, common: Labels | None = None) -> None:
        self._common = common or {}
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        """*kind*: counter or gauge. A row is a line's labels and its value."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        for labels, value in rows:
            self._line(name, labels, value)

    def histogram(
        self, name: str, help_text: str, rows: Iterable[tuple[Labels, Histogram]]
    ) -> None:
        """A row is a histogram and its labels."""
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
