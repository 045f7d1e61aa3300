"""What a reliability test measured, as one JSON line; docs/reliability.md is written from these
lines.

A line holds "test" (its name in the table of tests, such as T15), "size" ("quick" or "nightly"),
"seed", "attempts", "acknowledged", "received", "lost", "duplicates", "faults" (how many were
injected), "peak_rss_kib" and "seconds"; a test adds what only it measures, under a name that ends
with its unit.
"""

import json
import os
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Figures = dict[str, Any]


@contextmanager
def figures(test: str, *, nightly: bool = False, **known: Any) -> Iterator[Figures]:
    """Yields the line to fill in.

    When the block ends without an error it is printed, and appended to the file OGIVE_FIGURES
    names.
    """
    began = time.monotonic()
    line: Figures = {"test": test, "size": "nightly" if nightly else "quick", **known}
    yield line
    line["peak_rss_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line["seconds"] = round(time.monotonic() - began, 1)
    write(line)


def p99_ms(took_s: Sequence[float]) -> float:
    """Milliseconds that 99 of 100 of these times took at most."""
    return round(1000 * statistics.quantiles(took_s, n=100)[98], 2)


def write(line: Figures) -> None:
    """Print a line, and append it to the file OGIVE_FIGURES names, whole even when several
    processes do.
    """
    text = json.dumps(line)
    print(text)
    file = os.environ.get("OGIVE_FIGURES")
    if file:
        # O_APPEND and one write: lines never mix
        with Path(file).open("ab", buffering=0) as out:
            out.write(text.encode() + b"\n")
