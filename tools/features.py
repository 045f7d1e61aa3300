"""Check docs/features.toml: every feature it calls shown names tests that exist, and, with --ran FILE, that passed.

python tools/features.py                  the named tests exist
python tools/features.py --ran FILE       and passed: FILE holds a test id a line (OGIVE_RAN=FILE makes pytest write it)
"""

import argparse
import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[1]
FEATURES = 183  # rows of the checklist, numbered from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """shown: feature number -> (name, ids of the tests that show it); open: numbers that no test shows yet."""

    shown: dict[int, tuple[str, tuple[str, ...]]]
    open: frozenset[int]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises KeyError or ValueError on a malformed row."""
        table = tomllib.loads(path.read_text("utf-8"))
        shown = {int(row["number"]): (str(row["name"]), tuple(row["tests"])) for row in table["feature"]}
        if len(shown) != len(table["feature"]):
            raise ValueError(f"{path.name}: a feature number appears twice")
        return cls(shown=shown, open=frozenset(table["open"]))

    def faults(self) -> list[str]:
        """Rows that are neither shown nor open, or both, or shown by nothing."""
        everything = frozenset(range(1, FEATURES + 1))
        found = [f"feature {n} is shown and open" for n in sorted(self.shown.keys() & self.open)]
        found += [f"feature {n} is neither shown nor open" for n in sorted(everything - self.shown.keys() - self.open)]
        found += [f"feature {n} is not on the list" for n in sorted((self.shown.keys() | self.open) - everything)]
        return found + [f"feature {n} ({name}) names no test" for n, (name, tests) in sorted(self.shown.items()) if not tests]


def defined_tests(path: Path) -> set[str]:
    """Names as pytest writes them after the file name: "test_x" and "TestClass::test_x"."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
    return names


def missing_tests(features: Features, root: Path) -> list[str]:
    found = []
    for number, (name, tests) in sorted(features.shown.items()):
        for test in tests:
            file, _, inner = test.partition("::")
            if not (root / file).is_file() or inner not in defined_tests(root / file):
                found.append(f"feature {number} ({name}): there is no test {test}")
    return found


def not_passed(features: Features, ran: set[str]) -> list[str]:
    """*ran* holds test ids, with the parameters in brackets for those that have some."""
    passed = {test.partition("[")[0] for test in ran}
    named = [(n, name, test) for n, (name, tests) in sorted(features.shown.items()) for test in tests]
    return [f"feature {n} ({name}): {test} did not pass" for n, name, test in named if test not in passed]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check docs/features.toml against the tests.")
    parser.add_argument("--ran", type=Path, help="file of the tests that passed, an id a line")
    ran = parser.parse_args().ran
    features = Features.load(ROOT / "docs" / "features.toml")
    faults = features.faults() + missing_tests(features, ROOT)
    if ran is not None:
        faults += not_passed(features, set(ran.read_text("utf-8").split("\n")))
    for fault in faults:
        print(fault, file=sys.stderr)
    if not faults:
        print(f"features: {len(features.shown)} shown, {len(features.open)} open")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
