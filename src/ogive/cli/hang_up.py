"""SIGHUP: new certificates if their files have changed; else another log level, or the end of a
process whose terminal was closed.
"""

import asyncio
import hashlib
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from ogive.cli.logs import step_log_level
from ogive.transport.event_loop import watch


def hang_up(stop: asyncio.Event) -> None:
    """Handle SIGHUP without new certificates: stop if the terminal was closed, else change the log
    level.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        stop.set()
    else:
        step_log_level()


class CertificateFiles:
    """Contents of files when they were last read, to see which SIGHUP is about them."""

    def __init__(self, *paths: str) -> None:
        self._paths = paths
        self._seen = self._contents()

    def _contents(self) -> list[bytes | None]:
        return [_digest(path) for path in self._paths]

    async def read_again(self, reload: Callable[[], Awaitable[bool]]) -> bool:
        """Call *reload* if a file has changed since the last time that this returned True. Return
        False if none has.
        """
        now = await asyncio.to_thread(self._contents)
        if now == self._seen:
            return False
        if await reload():
            self._seen = now
        return True


def _digest(path: str) -> bytes | None:
    """Return the digest of a file, None for one that TlsConfig will not read."""
    file = Path(path)
    try:
        # opening a pipe, for example, could block for ever
        return hashlib.sha256(file.read_bytes()).digest() if file.is_file() else None
    except OSError:
        return None


def at_hang_up(
    stop: asyncio.Event, files: CertificateFiles, reload: Callable[[], Awaitable[bool]]
) -> None:
    """Let SIGHUP start *reload* if a file has changed, and else do what it does without TLS."""
    # references keep the tasks alive
    running: set[asyncio.Task[None]] = set()

    async def handle() -> None:
        if not await files.read_again(reload):
            hang_up(stop)

    def begin() -> None:
        task = asyncio.create_task(handle(), name="reload")
        running.add(task)
        task.add_done_callback(running.discard)
        watch(task)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, begin)
