"""Processes of a run. Each has a session of its own, so that Ctrl-C reaches the driver alone, which
then stops them in order.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from ogive.errors import OgiveError

_LINE_LIMIT_BYTES: Final = 1 << 20
_STOP_S: Final = 20.0
_KILL_S: Final = 5.0
_POLL_S: Final = 0.01
_PROC: Final = Path("/proc")


class ChildFailed(OgiveError):
    """A process of the run ended on its own, or did not answer as it should; the message holds the
    end of its output.
    """


class Child:
    """A running process that speaks lines on its standard output. Its errors go to a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log
        self.stopped = False

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: dict[str, str] | None = None,
    ) -> Self:
        log = folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=os.environ | (environment or {}),
                start_new_session=True,
                limit=_LINE_LIMIT_BYTES,
            )
        return cls(name, process, log)

    @property
    def session(self) -> int:
        """Id of its session, and of its first process."""
        return self._process.pid

    async def lines(self) -> AsyncIterator[str]:
        """Yield the lines that it prints, until it ends.

        Raises ChildFailed when it ends with an error, unless it was stopped.
        """
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            yield line.decode().rstrip("\n")
        if (code := await self._process.wait()) and not self.stopped:
            raise self.failed(f"ended with code {code}")

    async def reports(self) -> AsyncIterator[dict[str, Any]]:
        """Yield its lines that are JSON objects; other lines are for people."""
        async for line in self.lines():
            if line.startswith("{"):
                yield json.loads(line)

    def failed(self, what: str) -> ChildFailed:
        text = self._log.read_text("utf-8", "replace") if self._log.exists() else ""
        tail = "\n".join(f"    {line}" for line in text.splitlines()[-15:])
        return ChildFailed(f"{self.name}: {what}" + (f"; its last words:\n{tail}" if tail else ""))

    def finish(self) -> None:
        """Ask it to end on its own: the end of its standard input means that nothing more will
        come.
        """
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> None:
        """End the whole session: SIGTERM, and SIGKILL to what is left after 20 seconds.

        Harmless when it has ended.
        """
        self.stopped = True
        self.finish()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.session, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                # wait() also waits for the heirs of its pipes
                while self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_S):
                await self._kill_members()
                await self._process.wait()

    async def _kill_members(self) -> None:
        while left := members(self.session):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)


def members(session: int) -> list[int]:
    """Return the processes of a session, also the ones in process groups of their
    own.

    Empty where the system has no /proc.
    """
    return [pid for pid in _pids() if _session_of(pid) == session]


def resident_bytes(sessions: Sequence[int]) -> int:
    """Return the resident memory of this process and of all in *sessions*; shared memory counts
    once.

    0 where the system has no /proc.
    """
    return sum(
        _proportional_bytes(pid)
        for pid in _pids()
        if pid == os.getpid() or _session_of(pid) in sessions
    )


def _pids() -> list[int]:
    return (
        [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
        if _PROC.is_dir()
        else []
    )


def _session_of(pid: int) -> int | None:
    """Return the session of a process, None for one that has ended, also when nobody has waited for
    it yet.
    """
    try:
        state, _, _, session = (
            (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
        )
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(session)


def _proportional_bytes(pid: int) -> int:
    """Return memory in which a page that n processes share counts as an n-th, so that a process
    that is just forking does not count twice.
    """
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return sum(
        int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")
    )
