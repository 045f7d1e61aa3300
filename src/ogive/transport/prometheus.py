"""Metrics in Prometheus's text format."""

from collections.abc import Iterable, Mapping
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Rows = Iterable[tuple[Labels, float]]


class MetricsText:
    """One metric after the other. *common*: labels of every line."""

    def __init__(self, common: Labels | None = None) -> None:
        self._common = common or {}
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        """*kind*: counter or gauge. A row is a line's labels and its value."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        for labels, value in rows:
            shown = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in {**self._common, **labels}.items())
            self._lines.append(f"{name}{{{shown}}} {int(value) if value % 1 == 0 else value}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
