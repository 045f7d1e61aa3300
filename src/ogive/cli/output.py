"""Tables for people, JSON lines for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_json(record: dict[str, Any]) -> None:
    """One line, flushed: a reader of the pipe sees it at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their content; numbers right-aligned with thousands separated."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)] if cells else [False] * len(heads)
    widths = [max(len(head), *(len(row[i]) for row in cells)) if cells else len(head) for i, head in enumerate(heads)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)).rstrip()

    print(line([head.upper() for head in heads]))
    for row in cells:
        print(line(row))
    sys.stdout.flush()


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)
