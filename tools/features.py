"""Write docs/features.toml: which tests show which feature.

python tools/features.py               check that the file is what the tests say
python tools/features.py --write       write it
python tools/features.py --ran FILE    check also that the tests passed. FILE holds a test id
                                       a line: OGIVE_RAN=FILE makes pytest write it.

The features are listed in tests/checklist.toml. A test shows those that the marker
`pytest.mark.feature(NUMBER, ...)` names, on the test, its class or its module. Markers are read
from the source: no test is imported.
"""

import argparse
import ast
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[1]
MARKER: Final = "pytest.mark.feature"
MISPLACED: Final = f"{MARKER} must be called, on a test, on a class of tests or in pytestmark"
WRITE: Final = "python tools/features.py --write"
FUNCTION: Final = ast.FunctionDef | ast.AsyncFunctionDef
HEAD: Final = f"""\
# What a RocketMQ consumer, its remoting and its retries must do: {{count}} features, and the tests
# that show each of them. Written by `{WRITE}` from tests/checklist.toml
# and the markers `feature` of the tests. A feature that no test shows yet is in `open`.
"""


@dataclass(frozen=True, slots=True)
class Checklist:
    """Names of the features by number, and the reason of each that differs from its name."""

    names: Mapping[str, str]
    reasons: Mapping[str, str]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises KeyError on a malformed list."""
        table = tomllib.loads(path.read_text("utf-8"))
        return cls(table["names"], table["reasons"])


@dataclass(slots=True)
class Marked:
    """Ids of the tests that show each feature, and a sentence for each marker without a test."""

    tests: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the test files below *folder*, in the order of their paths and lines."""
        marked = cls()
        for path in sorted(folder.rglob("test_*.py")):
            source = path.read_text("utf-8")
            if MARKER in source:
                marked._add(path.relative_to(folder.parent).as_posix(), ast.parse(source))
        return marked

    def _add(self, file: str, tree: ast.Module) -> None:
        on_tests = set()
        for marker, test in _markers_of_tests(tree.body, file, ()):
            on_tests.add(marker.func)
            for number in map(ast.unparse, marker.args):
                shown_by = self.tests.setdefault(number, [])
                if test not in shown_by:
                    shown_by.append(test)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_marker(node) and node not in on_tests:
                self.faults.append(f"{file}:{node.lineno}: {MISPLACED}")


def _markers_of_tests(
    body: Sequence[ast.stmt],
    above: str,
    inherited: Sequence[ast.Call],
) -> Iterator[tuple[ast.Call, str]]:
    """Yield each test of *body* with each of its markers. *above* is the id of the file."""
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            value = node.value
            inherited = _markers(value.elts if isinstance(value, ast.List) else [value], inherited)
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            markers = _markers(node.decorator_list, inherited)
            yield from _markers_of_tests(node.body, f"{above}::{node.name}", markers)
        elif isinstance(node, FUNCTION) and node.name.startswith("test"):
            for marker in _markers(node.decorator_list, inherited):
                yield marker, f"{above}::{node.name}"


def _markers(nodes: Iterable[ast.expr], inherited: Sequence[ast.Call]) -> list[ast.Call]:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [*inherited, *(call for call in calls if _is_marker(call.func))]


def _is_marker(node: ast.expr) -> bool:
    return ast.unparse(node) == MARKER


def faults(checklist: Checklist, marked: Marked) -> list[str]:
    """Return a sentence for each marker that is wrong, and for each feature that no test shows."""
    found = list(marked.faults)
    for number, tests in marked.tests.items():
        if number not in checklist.names:
            unknown = f"shows feature {number}, which the checklist does not have"
            found += [f"{test} {unknown}" for test in tests]
    for number, name in checklist.names.items():
        if number not in marked.tests:
            remedy = f"mark one with @{MARKER}({number})"
            found.append(f"no test shows feature {number} ({name}): {remedy}")
    unnamed = sorted(checklist.reasons.keys() - checklist.names.keys())
    return found + [f"the checklist gives a reason for {n}, and no name" for n in unnamed]


def not_passed(checklist: Checklist, marked: Marked, ran: Iterable[str]) -> list[str]:
    """*ran* holds test ids, with the parameters in brackets for those that have some."""
    passed = {test.partition("[")[0] for test in ran}
    return [
        f"feature {number} ({name}): {test} did not pass"
        for number, name in checklist.names.items()
        for test in marked.tests.get(number, ())
        if test not in passed
    ]


def page(checklist: Checklist, marked: Marked) -> str:
    """Return the text of docs/features.toml."""
    unshown = [number for number in checklist.names if number not in marked.tests]
    lines = [HEAD.format(count=len(checklist.names)) + f"open = [{', '.join(unshown)}]"]
    for number, name in checklist.names.items():
        if tests := marked.tests.get(number):
            lines += ["", "[[feature]]", f"number = {number}", f"name = {_quoted(name)}"]
            if number in checklist.reasons:
                lines.append(f"reason = {_quoted(checklist.reasons[number])}")
            if len(tests) == 1:
                lines.append(f"tests = [{_quoted(tests[0])}]")
            else:
                lines += ["tests = [", *(f"    {_quoted(test)}," for test in tests), "]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Check docs/features.toml, or write it.")
    parser.add_argument("--write", action="store_true", help="write the file")
    parser.add_argument("--ran", type=Path, help="file of the tests that passed, an id a line")
    options = parser.parse_args(arguments)
    checklist = Checklist.load(root / "tests" / "checklist.toml")
    marked = Marked.read(root / "tests")
    written = root / "docs" / "features.toml"
    text = page(checklist, marked)
    if options.write:
        written.write_text(text, "utf-8")
    found = faults(checklist, marked)
    if written.read_text("utf-8") != text:
        found.append(f"docs/features.toml is not what the tests say: run `{WRITE}`")
    if options.ran is not None:
        found += not_passed(checklist, marked, options.ran.read_text("utf-8").split("\n"))
    for fault in found:
        print(fault, file=sys.stderr)
    if not found:
        print(f"features: all {len(checklist.names)} are shown")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
