"""The processes of ``part.py``, and what their members' calls show."""

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.processes import stop

ROOT = Path(__file__).parents[2]


class Part:
    """One process.

    Its pauses are remembered: a call that was frozen in one of them is not what its member did.
    """

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rel.part", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=False,
        )
        self.pid = self._process.pid
        self.pauses: list[tuple[float, float]] = []  # by time.monotonic
        self._paused_at: float | None = None

    def address(self) -> str:
        """Where it serves, once it does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line.startswith("ready "), (
            f"a part ended at its start with code {self._process.wait(60)}"
        )
        return line.split()[1]

    def pause(self) -> None:
        self._paused_at = time.monotonic()
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._paused_at is not None:
            self._process.send_signal(signal.SIGCONT)
            self.pauses.append((self._paused_at, time.monotonic()))
            self._paused_at = None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        stop(self._process)
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a member's listener."""

    queue: int
    offset: int
    body: str
    begun: float
    ended: float
    alone: bool
    pid: int


def calls(folder: Path) -> list[Call]:
    """Whole lines of all members that ever were, in the order in which the calls began."""
    lines = [
        line for file in folder.glob("member-*") for line in file.read_bytes().split(b"\n")[:-1]
    ]
    return sorted((Call(**json.loads(line)) for line in lines), key=lambda call: call.begun)


@dataclass(slots=True)
class Findings:
    """What should not be among the calls."""

    # began while another member's call of the queue ran
    overlaps: list[Call] = field(default_factory=list)
    # began while one was frozen in its call: no lease can see that
    frozen: int = 0
    # went on without what lies between
    disordered: list[Call] = field(default_factory=list)


def judge(
    found: Iterable[Call], pauses: dict[int, list[tuple[float, float]]] | None = None
) -> Findings:
    """*pauses*: by the id of the process."""
    found, findings = list(found), Findings()
    ends: defaultdict[int, int] = defaultdict(int)
    for call in found:
        if call.offset > ends[call.queue]:
            findings.disordered.append(call)
        ends[call.queue] = max(ends[call.queue], call.offset + 1)
        if not call.alone:
            others = [
                o
                for o in found
                if o.queue == call.queue and o.pid != call.pid and o.begun <= call.begun <= o.ended
            ]
            if others and all(
                _was_frozen(other, (pauses or {}).get(other.pid, ())) for other in others
            ):
                findings.frozen += 1
            else:
                findings.overlaps.append(call)
    return findings


def _was_frozen(call: Call, pauses: Iterable[tuple[float, float]]) -> bool:
    return any(call.begun <= end and begin <= call.ended for begin, end in pauses)


def figures_of(found: list[Call], findings: Findings) -> dict[str, Any]:
    bodies = {call.body for call in found}
    return {
        "received": len(bodies),
        "duplicates": len(found) - len(bodies),
        "overlaps": len(findings.overlaps),
        "frozen": findings.frozen,
        "disordered": len(findings.disordered),
    }
