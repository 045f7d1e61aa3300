"""Runs tests with a mutant: in a copy of the source, in a process of its own."""

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.named import NAMED
from tests.mutants.nearest import ROOT, SOURCE
from tests.mutants.sites import Mutant

NEAREST_S: Final = 60.0
"""No test of a random mutant begins after this."""
TEST_S: Final = 30
"""One test that hangs for so long has noticed the mutant."""
NAMED_TEST_S: Final = 100
NAMED_S: Final = 180.0
# exit statuses of pytest
PASSED, FAILED, INTERRUPTED, NO_TESTS = 0, 1, 2, 5
_NOT_FOUND: Final = "not found: "


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the tests for a mutant: the one that failed, and the end of their output."""

    killed: bool
    by: str
    said: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of src/, which PYTHONPATH puts before the clone's own."""

    source: Path

    def text(self, file: str) -> bytes:
        return (SOURCE / file).read_bytes()

    @contextmanager
    def changed(self, file: str, text: bytes) -> Iterator[None]:
        """Inside the block the module *file* of the copy has another text."""
        module = self.source / "ogive" / file
        for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
            # it may be as old and as long as the changed one
            compiled.unlink()
        module.write_bytes(text)
        try:
            yield
        finally:
            module.write_bytes(self.text(file))

    def environment(self, *, native: bool) -> dict[str, str]:
        """Return the environment of its tests, which note neither figures nor tests that passed."""
        own = {
            "OGIVE_NATIVE": "" if native else "0",
            "PYTHONPATH": str(self.source),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        own["OGIVE_TEST_WAIT_S"] = "20"
        return {
            name: value
            for name, value in os.environ.items()
            if name not in ("OGIVE_FIGURES", "OGIVE_RAN", "OGIVE_FAILED", "OGIVE_CALLS")
        } | own


@contextmanager
def copied() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory(prefix="ogive-mutants-") as folder:
        copy = Copy(Path(folder, "src"))
        shutil.copytree(ROOT / "src", copy.source, ignore=shutil.ignore_patterns("*.egg-info"))
        where = [sys.executable, "-c", "import ogive; print(ogive.__file__)"]
        found = subprocess.run(
            where, env=copy.environment(native=False), capture_output=True, text=True, check=True
        ).stdout
        if not found.startswith(str(copy.source)):
            raise AssertionError(f"the copy is not what is tested: {found}")
        yield copy


def try_random(copy: Copy, mutant: Mutant, tests: Sequence[str]) -> Outcome:
    """Run the tests nearest to the mutant.

    Those that pass in pure Python run once more with the compiled part, where there is one.
    """
    outcome = Outcome(False, "", "no test calls it")
    with copy.changed(mutant.file, mutant.apply(copy.text(mutant.file))):
        for native in (False, True) if tests else ():
            if native and not any((copy.source / "ogive").glob("_native.*")):
                continue
            outcome = _pytest(copy, tests, native=native, test_s=TEST_S, most_s=NEAREST_S)
            if outcome.killed:
                break
    return outcome


def try_named(copy: Copy, name: str, test: str) -> Outcome:
    path, text = NAMED[name].plant()
    with copy.changed(str(path.relative_to(SOURCE)), text.encode()):
        return _pytest(copy, [test], native=False, test_s=NAMED_TEST_S, most_s=NAMED_S)


def marked_tests() -> dict[str, list[str]]:
    """Return the ids of the tests with the marker "kills", by the faults that it names."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        for test in ast.walk(ast.parse(text)) if "mark.kills(" in text else ():
            if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for mark in test.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.kills":
                    param = "".join(f"[{ast.literal_eval(given.value)}]" for given in mark.keywords)
                    for name in map(ast.literal_eval, mark.args):
                        found[name].append(f"{path.relative_to(ROOT)}::{test.name}{param}")
    return dict(found)


def _pytest(
    copy: Copy, tests: Sequence[str], *, native: bool, test_s: int, most_s: float
) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="ogive-mutant-") as folder:
        chosen, printed = Path(folder, "tests"), Path(folder, "output")
        chosen.write_text("\n".join(tests), "utf-8")
        options = [
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "tests.mutants.calls",
            "-p",
            "no:cacheprovider",
            "--nightly",
            "--timeout",
            str(test_s),
        ]
        command = [
            sys.executable,
            "-m",
            "pytest",
            *options,
            f"--basetemp={folder}/tmp",
            f"@{chosen}",
        ]
        environment = copy.environment(native=native) | {"OGIVE_MOST_S": str(most_s)}
        with printed.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            status = process.wait(most_s + 2 * test_s)
        except subprocess.TimeoutExpired:
            return Outcome(True, "a test that hangs", "it hung")
        # what the tests started and a mutant kept from being stopped
        finally:
            if process.poll() is None or _group_lives(process.pid):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said = printed.read_text("utf-8", "replace")
    if status in (PASSED, NO_TESTS):
        return Outcome(False, "", said[-2000:])
    if status not in (FAILED, INTERRUPTED) and _NOT_FOUND in said:
        raise AssertionError(f"pytest does not know its tests any more: {said[-2000:]}")
    failed = [
        line for line in said.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/"))
    ]
    return Outcome(
        True, failed[0].split()[1] if failed else "what cannot be imported", said[-2000:]
    )


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
