"""Compare this checkout with one fixed commit: the same loads on both, in turns, in one run.

    python -m bench.yardstick --base-against-itself    # first: how many turns each row needs here
    python -m bench.yardstick                          # then: the comparison
    python -m bench.yardstick --rows acl "Spark sink"  # only rows whose names contain one of these
    python -m bench.yardstick --list                   # the names of the rows

The base is commit 4d913277, taken from the history of this clone and built in .cache/yardstick,
with its own compiled part. Each side is a process with brokers of its own. Both are ready at the
same time, and one works while the other waits: base, today, base, today ... What slows the machine
for a while slows both. A row is the median of its turns; the first turns of a row warm it up and do
not count.

With --base-against-itself both sides are the base. A row whose two medians differ by more than 3 %
gets more turns until they do not, at most 31. The number that was needed is kept in
.cache/yardstick, and later comparisons take it. A row that does not settle is marked "unsettled":
its ratio says nothing on this machine.

"spread" is the range of the middle half of the turns, as a part of the median, of the side where it
is larger. A row of today's that is slower, or larger, by more than 5 % is marked. All rows take
about 20 minutes on two quiet cores with 7 turns; nothing else should run. The exit status is 1 if a
row could not be measured. Ctrl-C stops all that was started, and prints the rows so far.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from bench.side import LOADS, Load

ROOT: Final = Path(__file__).parents[1]
CACHE: Final = ROOT / ".cache" / "yardstick"
BASE: Final = "4d913277"
TURNS: Final = 7
MORE_TURNS: Final = 4
MOST_TURNS: Final = 31
SETTLED: Final = 0.03
SLOWER: Final = 0.05
END_S: Final = 90.0


class Unmeasured(Exception):
    """A side could not carry out a load."""


@dataclass(slots=True)
class Row:
    name: str
    unit: str
    base: list[float] = field(default_factory=list)
    today: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ratio(self) -> float:
        """Today's median by the base's."""
        return statistics.median(self.today) / statistics.median(self.base)

    @property
    def spread(self) -> float:
        return max(_spread(self.base), _spread(self.today))

    @property
    def is_slower(self) -> bool:
        """Without a unit of its own a row is a cost, not a rate."""
        return self.ratio < 1 - SLOWER if self.unit else self.ratio > 1 + SLOWER

    def line(self, *, itself: bool) -> str:
        if self.error or not self.base:
            return f"| {self.name} | | | | | | NOT MEASURED: {self.error or 'no turn'} |"
        median = [
            f"{statistics.median(values):,.{0 if self.unit else 2}f}"
            for values in (self.base, self.today)
        ]
        marked, mark = (
            (abs(self.ratio - 1) > SETTLED, "unsettled") if itself else (self.is_slower, "SLOWER")
        )
        cells = (
            self.name,
            *median,
            f"{self.ratio:.3f}",
            f"{100 * self.spread:.0f} %",
            f"{len(self.base)}",
            mark if marked else "",
        )
        return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return (third - first) / statistics.median(values)


class Process:
    """A side: bench.side with the release in *source* on its path."""

    def __init__(self, name: str, source: Path, log: Path) -> None:
        self.name = name
        self._log = log
        path = os.pathsep.join(map(str, (source, ROOT)))
        environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.side"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        hello = self._answer()
        if Path(hello["ogive"]) != source / "ogive":
            raise SystemExit(f"the side {name} runs {hello['ogive']} instead of {source / 'ogive'}")
        self.build: str = hello["build"]

    def ask(self, *command: Any) -> dict[str, float]:
        """Raises Unmeasured."""
        try:
            self._stdin.write(json.dumps(command).encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise Unmeasured(f"the side {self.name} has ended:\n{self._tail()}") from None
        answer = self._answer()
        if "error" in answer:
            raise Unmeasured(f"{self.name}: {answer['error']}")
        figures: dict[str, float] = answer.get("figures", {})
        return figures

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unmeasured(f"the side {self.name} has ended:\n{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _tail(self) -> str:
        return "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-15:])

    def close(self) -> None:
        """It stops what it has started, then ends."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.yardstick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--base-against-itself",
        action="store_true",
        help="both sides are the base: how many turns each row needs",
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        default=[""],
        metavar="TEXT",
        help="only rows whose names contain one of these",
    )
    parser.add_argument(
        "--turns",
        type=int,
        help=f"turns of each row; default what the base against itself needed, else {TURNS}",
    )
    parser.add_argument(
        "--seconds", type=float, help="of a turn, instead of each load's own: to see that it runs"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every figure into FILE"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows, and end")
    options = parser.parse_args()
    loads = [
        i
        for i, load in enumerate(LOADS)
        if any(text in row for text in options.rows for row in load.rows)
    ]
    if options.turns is not None and options.turns < 1:
        parser.error("--turns must be at least 1")
    if not loads:
        parser.error(f"no row is named like {' or '.join(options.rows)}; --list prints the names")
    if options.list:
        print("\n".join(row for i in loads for row in LOADS[i].rows))
        return 0
    rows: list[Row] = []
    began = time.monotonic()
    interrupted = False
    try:
        compare(loads, options.turns, options.seconds, rows, itself=options.base_against_itself)
    except KeyboardInterrupt:
        interrupted = True
    print(table(rows, itself=options.base_against_itself))
    print(
        f"\n{len(rows)} rows in {(time.monotonic() - began) / 60:.1f} "
        f"minutes{', interrupted' if interrupted else ''}"
    )
    if options.json is not None:
        options.json.write_text(
            json.dumps([as_json(row) for row in rows], indent=1) + "\n", "utf-8"
        )
    if interrupted:
        return 130
    return 1 if any(row.error for row in rows) else 0


def compare(
    loads: Sequence[int], turns: int | None, seconds: float | None, rows: list[Row], *, itself: bool
) -> None:
    """Fill *rows*, load after load."""
    base = built(BASE)
    # a start that compiles takes three times as long
    for tree in (base, ROOT):
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree / "src")], check=True)
    known = kept_turns()
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ogive-yardstick-")))
        sides = []
        for name, source in (
            ("base", base / "src"),
            ("base again" if itself else "today", (base if itself else ROOT) / "src"),
        ):
            sides.append(Process(name, source, logs / f"{name}.log"))
            stack.callback(sides[-1].close)
        builds = [side.build for side in sides]
        say(f"base {BASE}: {builds[0]}; {sides[1].name}: {builds[1]}")
        for number, i in enumerate(loads, 1):
            load = LOADS[i]
            say(f"{number} of {len(loads)}: {load.rows[0]}")
            found = [Row(name, load.unit) for name in load.rows]
            rows.extend(found)
            wanted = turns or max((known.get(row.name, TURNS) for row in found), default=TURNS)
            try:
                with opened(sides, i):
                    measure(sides, load, seconds, found, wanted, itself=itself)
            except Unmeasured as exc:
                for row in found:
                    row.error = row.error or str(exc)
                say(str(exc))
            if itself:
                keep_turns({row.name: len(row.base) for row in found if row.base and not row.error})


@contextmanager
def opened(sides: Sequence[Process], load: int) -> Iterator[None]:
    """Both sides have the load open inside the block. Raises Unmeasured."""
    with ExitStack() as stack:
        for side in sides:
            stack.callback(side.ask, "close")
            side.ask("open", load)
        yield


def measure(
    sides: Sequence[Process],
    load: Load,
    seconds: float | None,
    rows: Sequence[Row],
    turns: int,
    *,
    itself: bool,
) -> None:
    """Raises Unmeasured."""
    length = load.seconds if seconds is None else seconds
    for _ in range(load.warm_up):
        for side in sides:
            side.ask("turn", length)
    done = 0
    while True:
        for _ in range(turns):
            base, today = (side.ask("turn", length) for side in sides)
            for row in rows:
                row.base.append(base[row.name])
                row.today.append(today[row.name])
            done += 1
            say(
                f"  turn {done}: "
                + "; ".join(
                    f"{row.base[-1]:,.2f} and {row.today[-1]:,.2f} {row.unit}" for row in rows
                )
            )
        if not itself or done >= MOST_TURNS or all(abs(row.ratio - 1) <= SETTLED for row in rows):
            return
        turns = min(MORE_TURNS, MOST_TURNS - done)


def built(commit: str) -> Path:
    """Return the tree of *commit* with its compiled part, made once.

    Ends the program with a sentence if it cannot be made.
    """
    folder = CACHE / commit
    if folder.exists():
        return folder
    say(f"building {commit} in {folder.relative_to(ROOT)}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        new = Path(work, "tree")
        new.mkdir()
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, "src", "native", "hatch_build.py"],
            capture_output=True,
            check=False,
        )
        if archive.returncode:
            why = archive.stderr.decode(errors="replace").strip()
            raise SystemExit(
                f"commit {commit} is not in the history of this clone ({why}): git fetch "
                "--unshallow"
            )
        subprocess.run(["tar", "-x", "-C", str(new)], input=archive.stdout, check=True)
        make = (
            "from pathlib import Path; from hatch_build import build; build(Path.cwd(), "
            "Path.cwd() / 'src' / 'ogive')"
        )
        compiled = subprocess.run(
            [sys.executable, "-c", make], cwd=new, capture_output=True, text=True, check=False
        )
        if compiled.returncode:
            raise SystemExit(
                f"the compiled part of {commit} cannot be built:\n{compiled.stderr[-2000:]}"
            )
        shutil.rmtree(new / "build", ignore_errors=True)
        new.rename(folder)
    return folder


def kept_turns() -> dict[str, int]:
    file = CACHE / "turns.json"
    kept: dict[str, int] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return kept


def keep_turns(found: dict[str, int]) -> None:
    (CACHE / "turns.json").write_text(json.dumps(kept_turns() | found, indent=1) + "\n", "utf-8")


def table(rows: Sequence[Row], *, itself: bool) -> str:
    other = "base again" if itself else "today"
    head = (
        f"\n| median; a rate in a second, or what the name says | base | {other} | ratio | spread "
        "| turns | |\n|---" + "|---" * 6 + "|"
    )
    return "\n".join([head, *(row.line(itself=itself) for row in rows)])


def as_json(row: Row) -> dict[str, Any]:
    ratio = (
        {"ratio": row.ratio, "spread": row.spread, "slower": row.is_slower}
        if row.base and not row.error
        else {}
    )
    return {
        "name": row.name,
        "unit": row.unit,
        "base": row.base,
        "today": row.today,
        "error": row.error,
        **ratio,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
