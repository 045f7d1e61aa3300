"""Log lines that docs/operating.md tells users to alert on.

ERROR could not save ...: ...            the level, and the text with its values as dots
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "operating.md"
HEADING: Final = "### Lines to alert on"

LEVELS: Final = {
    "critical": "CRITICAL",
    "error": "ERROR",
    "exception": "ERROR",
    "warning": "WARNING",
}


def documented() -> list[str]:
    """Return the lines of the table of the page."""
    section = PAGE.read_text("utf-8").partition(f"{HEADING}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (CRITICAL|ERROR|WARNING) \| `(.+?)` \|", section, re.MULTILINE)
    return [f"{level} {text}" for level, text in rows]


def logged(source: Path = ROOT / "src" / "ogive") -> set[str]:
    """Return every line that the source logs from WARNING up, in the form of the page."""
    texts = (file.read_text("utf-8") for file in source.rglob("*.py"))
    return {
        line
        for text in texts
        # to parse one takes long, and most have no such call
        if any(f"log.{attr}(" in text for attr in LEVELS)
        for node in ast.walk(ast.parse(text))
        for line in _line(node)
    }


def _line(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="log"), attr=attr),
            args=[ast.Constant(value=str(text)), *_],
        ) if attr in LEVELS:
            dotted = re.sub(r"%(?:\.\d+)?[a-z]", "...", text)
            yield f"{LEVELS[attr]} {dotted}"


def lines() -> set[str]:
    """Return the lines that the page lists and the source logs."""
    return logged() & set(documented())
