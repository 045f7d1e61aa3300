"""The tests nearest to a function: those that call it.

The tests of the module's own test file come first, then those that call the fewest functions.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "ogive"
CACHE: Final = ROOT / ".cache" / "mutants" / "calls.json"
SUITES: Final = ("tests/unit", "tests/property", "tests/never")
MOST_TESTS: Final = 400


@dataclass(slots=True)
class Calls:
    """The functions ("store/tables.py:Table.write") that each test calls.

    *files* were traced, and had these checksums.
    """

    files: dict[str, str] = field(default_factory=dict)
    tests: dict[str, frozenset[str]] = field(default_factory=dict)

    def of(self, file: str, function: str) -> list[str]:
        """Return at most MOST_TESTS tests, the nearest first.

        They are those of the whole module if *function* is empty or no test calls it.
        """
        own = f"tests/unit/{Path(file).parent / f'test_{Path(file).name}'}::"
        found = [test for test, called in self.tests.items() if f"{file}:{function}" in called]
        found = found or [
            test
            for test, called in self.tests.items()
            if any(name.startswith(f"{file}:") for name in called)
        ]
        found = found or [test for test in self.tests if test.startswith(own)]
        found.sort(key=lambda test: (not test.startswith(own), len(self.tests[test]), test))
        return found[:MOST_TESTS]

    @classmethod
    def load(cls, path: Path) -> "Calls":
        kept = json.loads(path.read_text("utf-8"))
        names = kept["functions"]
        return cls(
            kept["files"],
            {test: frozenset(names[i] for i in called) for test, called in kept["tests"].items()},
        )

    def save(self, path: Path) -> None:
        numbers = {
            name: i for i, name in enumerate(sorted(frozenset().union(*self.tests.values())))
        }
        tests = {test: [numbers[name] for name in called] for test, called in self.tests.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"files": self.files, "functions": list(numbers), "tests": tests}), "utf-8"
        )


def calls() -> Calls:
    """Return the calls of each test.

    Test files that changed since the last time are traced. Changes of the source are not noticed.
    """
    known = Calls.load(CACHE) if CACHE.exists() else Calls()
    now = {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for suite in SUITES
        for path in sorted((ROOT / suite).rglob("test_*.py"))
    }
    changed = [name for name, digest in now.items() if known.files.get(name) != digest]
    if not changed:
        return known
    print(
        f"tracing what {len(changed)} test files call (kept in {CACHE.relative_to(ROOT)})",
        flush=True,
    )
    kept = {
        test: called
        for test, called in known.tests.items()
        if (name := test.partition("::")[0]) in now and name not in changed
    }
    found = Calls(now, kept | _traced(changed))
    found.save(CACHE)
    return found


def _traced(files: Sequence[str]) -> dict[str, frozenset[str]]:
    with tempfile.TemporaryDirectory(prefix="ogive-calls-") as folder:
        environment = os.environ | {
            "OGIVE_CALLS": folder,
            "OGIVE_NATIVE": "0",
            "PYTHONPATH": str(ROOT / "src"),
        }
        options = [
            "-q",
            "-n",
            "2",
            "--timeout",
            "120",
            "-p",
            "tests.mutants.calls",
            "-p",
            "no:cacheprovider",
        ]
        # not checked, because a test may fail only because it is traced
        with Path(folder, "output").open("wb") as out:
            subprocess.run(
                [sys.executable, "-m", "pytest", *options, *files],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=out,
                check=False,
            )
        lines = [
            json.loads(line)
            for file in Path(folder).glob("*.jsonl")
            for line in file.read_text("utf-8").splitlines()
        ]
        if not any(line["calls"] for line in lines):
            raise RuntimeError(
                "no test could be "
                f"traced:\n{Path(folder, 'output').read_text('utf-8', 'replace')[-2000:]}"
            )
    return {line["test"]: frozenset(line["calls"]) for line in lines}
