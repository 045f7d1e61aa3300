"""Small changes of Python source: every place where one is possible.

A change is one of: another comparison, another operator, a negated condition, another constant,
swapped arguments, a removed statement. Not changed are texts, annotations, decorators, log calls
and messages of exceptions: no behaviour depends on them.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

COMPARISONS: Final = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
OPERATORS: Final = {
    "+": "-",
    "-": "+",
    "*": "//",
    "//": "*",
    "/": "*",
    "%": "*",
    "&": "|",
    "|": "&",
    "<<": ">>",
    ">>": "<<",
}
NAMES: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
LOGGERS: Final = {"log", "logger", "audit_log"}
_COMPARISON: Final = re.compile(r"<=|>=|==|!=|<|>|\bis\s+not\b|\bnot\s+in\b|\bis\b|\bin\b")
_OPERATOR: Final = re.compile(r"//|<<|>>|[-+*/%&|]")


@dataclass(frozen=True, slots=True)
class Mutant:
    """In *file* (below src/ogive) the bytes from *start* to *end* become *new*.

    *function* is the qualified name of the function or class that holds them.
    """

    file: str
    function: str
    line: int
    what: str
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]


def mutants(root: Path, paths: Sequence[str]) -> list[Mutant]:
    """Return every mutant of the modules in *paths*, in the order of the source.

    *paths* are files or folders below *root*.
    """
    files = sorted({file for path in paths for file in _modules(root / path)})
    return [
        mutant
        for file in files
        for mutant in of_source(file.read_bytes(), str(file.relative_to(root)))
    ]


def _modules(path: Path) -> list[Path]:
    if path.is_dir():
        return list(path.rglob("*.py"))
    file = path.with_suffix(".py")
    if not file.is_file():
        raise FileNotFoundError(f"no module and no package at {path}")
    return [file]


def of_source(source: bytes, file: str) -> list[Mutant]:
    finder = _Finder(source, file)
    finder.visit(ast.parse(source))
    found = {(mutant.start, mutant.end, mutant.new): mutant for mutant in finder.mutants}
    return [found[place] for place in sorted(found)]


def compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, source: bytes, file: str) -> None:
        self.mutants: list[Mutant] = []
        self._source = source
        self._file = file
        # names of the classes and functions around, and True for a function
        self._scopes: list[tuple[str, bool]] = []
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    # what holds other nodes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._within(node.name, node.body, function=False)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self._within(node.name, node.body, function=True)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  ast names it

    def _within(self, name: str, body: list[ast.stmt], *, function: bool) -> None:
        self._scopes.append((name, function))
        for statement in body:
            self.visit(statement)
        self._scopes.pop()

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        # "while True" would only hang, or never begin
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
            self.visit(node.test)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for condition in node.ifs:
            self._negate(condition)
        self.generic_visit(node)

    # statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or _logs(node.value):
            return
        if self._in_function() and isinstance(node.value, ast.Call | ast.Await):
            self._add("removed statement", node, "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._in_function() and all(
            isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
        ):
            self._add("removed statement", node, "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("removed statement", node, "pass")
        self._between(node.target, node.value, _OPERATOR, OPERATORS, "another operator")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._add("removed statement", node, "pass")

    def visit_Raise(self, node: ast.Raise) -> None:
        self._add("removed statement", node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._add("removed statement", node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._add("removed statement", node, "pass")

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    # expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
            self._between(left, right, _COMPARISON, COMPARISONS, "another comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not any(
            isinstance(side, ast.Constant) and isinstance(side.value, str)
            for side in (node.left, node.right)
        ):
            self._between(node.left, node.right, _OPERATOR, OPERATORS, "another operator")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, re.compile(rf"\b{old}\b"), {old: new}, "another operator")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("negated condition", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _logs(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in NAMES:
            self._add("another function", node.func, NAMES[node.func.id])
        if isinstance(node.func, ast.Name) and node.func.id in ("TypeVar", "cast", "isinstance"):
            return
        in_any_order = isinstance(node.func, ast.Name) and node.func.id in ("min", "max", "gcd")
        if (
            len(node.args) > 1
            and not in_any_order
            and not any(isinstance(arg, ast.Starred) for arg in node.args[:2])
        ):
            first, second = node.args[:2]
            one, other = self._text(first), self._text(second)
            gap = self._source[self._end(first) : self._start(second)].decode()
            if one != other:
                self._add_range(
                    "swapped arguments",
                    first.lineno,
                    self._start(first),
                    self._end(second),
                    other + gap + one,
                )
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("another constant", node, str(not value))
        elif isinstance(value, int):
            self._add("another constant", node, f"{value + 1}")
            if value > 0:
                self._add("another constant", node, f"{value - 1}")
        elif isinstance(value, float):
            self._add("another constant", node, f"{value * 2 or 1.0}")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # notes

    def _in_function(self) -> bool:
        return any(function for _, function in self._scopes)

    def _negate(self, test: ast.expr) -> None:
        # those are changed themselves
        if not isinstance(test, ast.UnaryOp | ast.Compare):
            self._add("negated condition", test, f"(not ({self._text(test)}))")

    def _between(
        self,
        left: ast.AST,
        right: ast.AST,
        token: re.Pattern[str],
        others: dict[str, str],
        what: str,
    ) -> None:
        start, end = self._end(left), self._start(right)
        text = self._source[start:end].decode()
        found = token.search(text)
        if found is not None and (new := others.get(re.sub(r"\s+", " ", found[0]))) is not None:
            at = start + len(text[: found.start()].encode())
            line = self._source.count(b"\n", 0, at) + 1
            self._add_range(what, line, at, at + len(found[0].encode()), new)

    def _add(self, what: str, node: ast.AST, new: str) -> None:
        # every expression has one
        line = node.lineno  # type: ignore[attr-defined]
        self._add_range(what, line, self._start(node), self._end(node), new)

    def _add_range(self, what: str, line: int, start: int, end: int, new: str) -> None:
        function = ""
        for i, (name, _) in enumerate(self._scopes):
            function += (
                f"{'.<locals>.' if i and self._scopes[i - 1][1] else '.' if i else ''}{name}"
            )
        self.mutants.append(Mutant(self._file, function, line, what, start, end, new))

    def _start(self, node: ast.AST) -> int:
        start: int = self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start

    def _end(self, node: ast.AST) -> int:
        line, column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        end: int = self._starts[line - 1] + column
        return end

    def _text(self, node: ast.AST) -> str:
        return self._source[self._start(node) : self._end(node)].decode()


def _logs(node: ast.expr) -> bool:
    if isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in LOGGERS
