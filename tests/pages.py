"""The Python on a page of the documentation, as the programs that a reader would paste together."""

import re
from pathlib import Path


def programs(text: str) -> list[str]:
    """Return the programs of a page, each with its lines where the page has them.

    A block with ``import ogive``, or with a docstring at its top, begins a program. Any other block
    continues the one above it.
    """
    found: list[list[str]] = []
    lines = text.splitlines()
    for fence in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not found or re.search(r'\A"""|^import ogive\b', fence[1], re.MULTILINE):
            found.append([""] * len(lines))
        first = text.count("\n", 0, fence.start(1))
        block = fence[1].splitlines()
        found[-1][first : first + len(block)] = block
    return ["\n".join(program).rstrip() + "\n" for program in found]


def write_programs(page: Path, folder: Path) -> list[Path]:
    """Write the programs of *page* into *folder*, as ``NAME_1.py``, ``NAME_2.py`` and so on."""
    stem = page.stem.lower().replace("-", "_")
    paths = []
    for number, program in enumerate(programs(page.read_text("utf-8")), 1):
        path = folder / f"{stem}_{number}.py"
        path.write_text(program, "utf-8")
        paths.append(path)
    return paths
