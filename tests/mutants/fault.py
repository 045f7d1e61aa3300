"""Faults to plant: at a place in the source, a piece of code becomes another one.

The place is an object that is imported, and the code is compared as a syntax tree. So a fault
outlives moves and renames that rewrite imports, and any change of layout, quotes or comments.
"""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


class Misplaced(AssertionError):
    """The code that a fault changes is not exactly once at its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """In the function, class or module *at* the code *change* becomes *to*.

    Both are an expression, or both are statements. The statement "pass" removes others.
    """

    at: ModuleType | Callable[..., object]
    change: str
    to: str

    def plant(self) -> tuple[Path, str]:
        """Return the module that holds the place, and its text with the fault. Raises Misplaced."""
        path = Path(inspect.getfile(self.at))
        tree = ast.parse(path.read_text("utf-8"))
        source, first = inspect.getsourcelines(self.at)
        # a module begins at line 0
        lines = range(first, max(first, 1) + len(source))
        old, new = _comparable(ast.parse(self.change).body, ast.parse(self.to).body)
        places = list(_places(tree, lines, old))
        if len(places) != 1:
            raise Misplaced(f"found {len(places)} times in {self.at} of {path}: {self.change!r}")
        [(parent, field, at)] = places
        children = getattr(parent, field)
        if isinstance(children, list):
            children[at : at + len(old)] = new
        else:
            setattr(parent, field, new[0])
        return path, ast.unparse(tree)


def _comparable(old: list[ast.stmt], new: list[ast.stmt]) -> tuple[list[Any], list[Any]]:
    match old, new:
        case [ast.Expr(value=old_value)], [ast.Expr(value=new_value)]:
            return [old_value], [new_value]
        case _:
            return old, new


def _places(tree: ast.AST, lines: range, wanted: list[Any]) -> Iterator[tuple[ast.AST, str, int]]:
    """Yield where nodes that begin in *lines* equal those wanted: parent, field, first in it."""
    texts = [ast.unparse(node) for node in wanted]
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            children = value if isinstance(value, list) else [value]
            for at in range(len(children) - len(wanted) + 1):
                found = children[at : at + len(wanted)]
                if type(found[0]) is not type(wanted[0]) or found[0].lineno not in lines:
                    continue
                if [ast.unparse(node) for node in found] == texts:
                    yield parent, field, at
