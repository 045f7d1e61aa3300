#!/usr/bin/env python3
"""Write the tables of results in docs/reliability.md from the JSON lines that a run of the
reliability tests left.

    make test-slow    # does so at its end; after its parts, run one by one:
    tools/reliability.py .cache/figures/*.jsonl

Tests write the lines with tests/figures.py. A test that ran more than once counts in sum; nothing
in the tables is written by hand.
"""

import json
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs" / "reliability.md"
BEGIN, END = "<!-- results: written by tools/reliability.py -->", "<!-- end of results -->"
# no page without them: tests/rel/conftest.py fails where one is skipped
NEEDED = ("T2", "T4", "T9", "T10", "T11")
COUNTS = ("faults", "attempts", "acknowledged", "received", "lost", "duplicates")
NO_MEASURE = (*COUNTS, "seconds", "peak_rss_kib", "seed")
UNITS = {
    "kib_a_minute": "KiB a minute",
    "ms": "ms",
    "s": "s",
    "kib": "KiB",
    "mib": "MiB",
    "percent": "%",
    "a_second": "a second",
}


def number(test: str) -> tuple[int, str]:
    """Return the key to sort tests by: T2 before T10."""
    return int("".join(c for c in test if c.isdigit()) or 0), test


def rows(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each test and size, sorted by name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        row = found.setdefault((line["test"], line["size"]), {"runs": 0, "seconds": 0.0})
        row["runs"] += 1
        row["seconds"] += line.get("seconds", 0.0)
        for name in COUNTS:
            if isinstance(line.get(name), int):
                row[name] = row.get(name, 0) + line[name]

    def order(item: tuple[tuple[str, str], dict[str, Any]]) -> tuple[int, str, str]:
        (test, size), _ = item
        return *number(test), size

    return [
        {"test": test, "size": size, **row}
        for (test, size), row in sorted(found.items(), key=order)
    ]


def table(lines: list[dict[str, Any]], day: str) -> str:
    text = [
        f"Results of the run of {day}:",
        "",
        "| test | size | runs | " + " | ".join(COUNTS) + " | s |",
        "|---" * 10 + "|",
    ]
    for row in rows(lines):
        counts = [f"{row[name]:,}" if name in row else "" for name in COUNTS]
        cells = [row["test"], row["size"], str(row["runs"]), *counts, f"{row['seconds']:.0f}"]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text)


def named(field: str) -> tuple[str, str]:
    """Return what a field measures, and its unit: ("send p99 alone", "ms") for
    "send_p99_alone_ms". The unit is empty if the field is a count.
    """
    unit = next((unit for unit in UNITS if field.endswith(f"_{unit}")), "")
    return field.removesuffix(f"_{unit}").replace("_", " "), UNITS.get(unit, "")


def measures(lines: list[dict[str, Any]]) -> str:
    """Return the table of the other figures of the long sizes: a range, if a figure was measured
    more than once.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for line in sorted(lines, key=lambda line: number(line["test"])):
        for field, value in line.items():
            if (
                line["size"] == "nightly"
                and field not in NO_MEASURE
                and isinstance(value, int | float)
            ):
                found.setdefault(line["test"], {}).setdefault(field, []).append(value)
    text = ["| test | measured |", "|---|---|"]
    for test, fields in found.items():
        cells = []
        for field, values in fields.items():
            what, unit = named(field)
            cells.append(f"{what} {_span(values)} {unit}".rstrip())
        text.append(f"| {test} | {'; '.join(cells)} |")
    return "\n".join(text)


def _span(values: Collection[int | float]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def replaced(page: str, new: str) -> str:
    """Return *page* with *new* between the two marks. Raises ValueError if they are missing."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{DOCS}: the marks {BEGIN} and {END} are missing")
    return f"{head}{BEGIN}\n\n{new}\n\n{END}{tail}"


def missing(lines: list[dict[str, Any]]) -> list[str]:
    """Return the tests of NEEDED without a line for their long size."""
    found = {line["test"].split()[0] for line in lines if line["size"] == "nightly"}
    return [name for name in NEEDED if name not in found]


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    lines = [
        json.loads(line)
        for file in files
        if file.exists()
        for line in file.read_text("utf-8").splitlines()
    ]
    if gone := missing(lines):
        sys.exit(
            f"{DOCS.name} stays as it is: there are no figures of {', '.join(gone)}. Only a whole "
            "`make test-slow` writes it."
        )
    if losing := [line["test"] for line in lines if line.get("lost")]:
        sys.exit(f"{DOCS.name} stays as it is: messages were lost in {', '.join(losing)}.")
    new = (
        f"{table(lines, f'{datetime.now(UTC):%Y-%m-%d}')}\n\n"
        f"Further measurements of these tests:\n\n{measures(lines)}"
    )
    DOCS.write_text(replaced(DOCS.read_text("utf-8"), new), "utf-8")
    print(f"{DOCS.name}: {len(lines)} lines of figures")


if __name__ == "__main__":
    main()
