"""Print the aims for the size and the form of the source, and what it has now.

python tools/house.py            print the table, which marks each aim that is missed
python tools/house.py --ways     print also the modules that run in a send and in a push
python tools/house.py --check    end with status 1 if an aim is missed

All aims are upper limits. The last rows are measured by tools/ways.py.
"""

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[1]
COLUMNS: Final = 100
CODE: Final = (".py", ".c", ".h", ".java")
GENERATED: Final = "_pb2"
RELATIVE: Final = re.compile(r"\s*(Of|Whether|What|Which|Those|How|That|Who|Where)\b")
PRAGMA: Final = re.compile(r"#\s*(noqa|type:|fmt:|pragma)")
FENCE: Final = re.compile(r"\s*(```|~~~)")
CLIENT: Final = "src/ogive/client/"
BLOCKING: Final = f"{CLIENT}sync/"
WAYS: Final = {"send": 30, "push": 34}


@dataclass(frozen=True, slots=True)
class Row:
    """A figure, and the largest value that it should have."""

    what: str
    aim: int
    now: float

    @property
    def missed(self) -> bool:
        return self.now > self.aim

    def cells(self) -> tuple[str, str, str, str]:
        now = f"{self.now:,}" if isinstance(self.now, int) else f"{self.now:,.1f}"
        return self.what, f"{self.aim:,}", now, "missed" if self.missed else ""


def is_written(path: Path) -> bool:
    """Return False for the output of a generator."""
    return not path.stem.endswith(GENERATED)


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file below src."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def read_all(cls, root: Path) -> list[Self]:
        """Read all modules of src that were not generated. Their paths begin at *root*."""
        paths = [path for path in sorted((root / "src").rglob("*.py")) if is_written(path)]
        texts = {path: path.read_text("utf-8") for path in paths}
        return [
            cls(path.relative_to(root).as_posix(), text, ast.parse(text))
            for path, text in texts.items()
        ]

    def statements(self) -> int:
        return sum(isinstance(node, ast.stmt) for node in ast.walk(self.tree))

    def docstrings(self) -> Iterator[str]:
        """Yield each string that is a statement, also below attributes."""
        for node in ast.walk(self.tree):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value

    def comments(self) -> Iterator[bool]:
        """Yield True for each comment behind code, and False for each line of comment alone."""
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type == tokenize.COMMENT and not PRAGMA.match(token.string):
                yield bool(token.line[: token.start[1]].strip())

    def classes(self) -> list[str]:
        """Return the names of the public classes at the top level."""
        names = [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]
        return [name for name in names if not name.startswith("_")]


def code_blocks(text: str) -> Iterator[str]:
    """Yield the lines of the fenced code blocks in a Markdown file, except printed output."""
    inside = printed = False
    for line in text.splitlines():
        if FENCE.match(line):
            inside = not inside
            printed = line.strip().endswith("text")
        elif inside and not printed:
            yield line


def wide(lines: Iterable[str]) -> int:
    return sum(len(line) > COLUMNS for line in lines)


def lines_of_code(folder: Path) -> list[str]:
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in CODE and is_written(path)]
    return [line for path in files for line in path.read_text("utf-8").splitlines()]


def names_used_twice(modules: Sequence[Module]) -> list[str]:
    """Return the names of several public classes. A class and its blocking form are one."""
    in_client = {
        name
        for module in modules
        if module.path.startswith(CLIENT) and not module.path.startswith(BLOCKING)
        for name in module.classes()
    }
    times = Counter(
        name
        for module in modules
        for name in module.classes()
        if not (module.path.startswith(BLOCKING) and name in in_client)
    )
    return sorted(name for name, count in times.items() if count > 1)


def source_rows(root: Path) -> list[Row]:
    """Count in the files below *root*."""
    modules = Module.read_all(root)
    native = lines_of_code(root / "native")
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    blocks = [line for page in pages for line in code_blocks(page.read_text("utf-8"))]
    openings = [RELATIVE.match(text) for module in modules for text in module.docstrings()]
    trailing = [is_trailing for module in modules for is_trailing in module.comments()]
    above = len(trailing) - sum(trailing)
    too_wide = f"lines over {COLUMNS} columns in"
    return [
        Row("statements in src", 35_000, sum(module.statements() for module in modules)),
        Row("modules in src", 320, len(modules)),
        Row("lines of the largest module", 800, max(len(m.text.splitlines()) for m in modules)),
        Row(f"{too_wide} src", 0, wide(lines_of_code(root / "src"))),
        Row(f"{too_wide} native", 0, wide(native)),
        Row(f"{too_wide} tests", 0, wide(lines_of_code(root / "tests"))),
        Row(f"{too_wide} code blocks of docs and README", 0, wide(blocks)),
        Row("lines in native", 2_500, len(native)),
        Row("docstrings that open with Of, Whether, What, ...", 0, sum(map(bool, openings))),
        Row("trailing comments for ten above the line", 1, 10 * sum(trailing) / max(above, 1)),
        Row("public class names used twice", 0, len(names_used_twice(modules))),
    ]


def ways(root: Path) -> dict[str, list[str]]:
    """Return the modules of each way. Raises CalledProcessError."""
    command = [sys.executable, str(root / "tools" / "ways.py")]
    found: dict[str, list[str]] = json.loads(subprocess.check_output(command))
    return found


def way_rows(found: Mapping[str, Sequence[str]]) -> list[Row]:
    return [
        Row(f"modules in a {way} (DESIGN.md: which decide)", WAYS[way.split()[0]], len(modules))
        for way, modules in found.items()
    ]


def table(rows: Iterable[Row]) -> str:
    lines = [("", "at most", "now", ""), *(row.cells() for row in rows)]
    width = max(len(what) for what, *_ in lines)
    return "\n".join(
        f"{what:{width}}{aim:>9}{now:>9}  {missed}".rstrip() for what, aim, now, missed in lines
    )


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Print the aims for the source, and what it has.")
    parser.add_argument("--check", action="store_true", help="end with 1 if an aim is missed")
    parser.add_argument("--ways", action="store_true", help="list the modules of a send and a push")
    options = parser.parse_args(arguments)
    found = ways(root)
    rows = source_rows(root) + way_rows(found)
    print(table(rows))
    if options.ways:
        for way, modules in found.items():
            print(f"\n{way}:", *modules, sep="\n  ")
    return int(options.check and any(row.missed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
