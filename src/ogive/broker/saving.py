"""Saves small tables off the event loop: one write at a time, many changes in one write."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from ogive.errors import StoreError
from ogive.store.fs import reason
from ogive.store.tables import JsonTable

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

Render = Callable[[], dict[str, Any]]
"""Makes the JSON object; runs in a thread, so it must close over values that nobody changes."""


class TableWriter:
    """Owned by the event loop; *snapshot* is called there, and what it returns in a thread."""

    def __init__(self, name: str, table: JsonTable, snapshot: Callable[[], Render]) -> None:
        self._name = name
        self._table = table
        self._snapshot = snapshot
        self.version = 0  # counts changes
        # the version that the file holds
        self.written = 0
        self._writing: asyncio.Task[None] | None = None
        # the newest version that could not be written
        self._failed = 0
        self._failure: OSError | None = None
        self._failed_at = 0.0

    @property
    def unsaved(self) -> bool:
        """Whether a change has not reached stable storage yet."""
        return self.written < self.version

    def mark(self) -> None:
        """The table differs from the file; the next ``saved`` writes it."""
        self.version += 1

    def start(self) -> None:
        """Mark, and begin to write in the background.

        A failure is logged, and the change is kept for the next write.
        """
        self.mark()
        if self._writing is None:
            self._begin().add_done_callback(self._report)

    async def saved(self, version: int | None = None) -> None:
        """Return when every change made before the call, or up to *version*, is on stable storage.

        Raises StoreError.
        """
        wanted = self.version if version is None else version
        while self.written < wanted:
            writing = self._writing or self._begin()
            await asyncio.wait([writing])
            if writing.exception() is not None and self._writing is None and self.written < wanted:
                raise StoreError(
                    f"cannot save {self._name}: {_why(writing.exception())}"
                ) from writing.exception()

    def check(self, version: int) -> None:
        """Raises StoreError where *version* could not be saved, and tries that again for the next
        call.
        """
        if self.written < version <= self._failed:
            self.save_again()
            raise StoreError(f"cannot save {self._name}: {_why(self._failure)}")

    def save_again(self) -> None:
        """Write in the background what could not be written, at most once a second."""
        if (
            self.unsaved
            and self._writing is None
            and asyncio.get_running_loop().time() >= self._failed_at + RETRY_S
        ):
            self._begin().add_done_callback(self._report)

    def _begin(self) -> asyncio.Task[None]:
        self._writing = asyncio.create_task(self._write(), name=f"save {self._name}")
        return self._writing

    async def _write(self) -> None:
        """Until the file holds the newest version, so that changes made during a write need no
        further trigger.
        """
        version = self.version
        try:
            while self.written < self.version:
                version, render = self.version, self._snapshot()
                await asyncio.to_thread(self._save, render)
                self.written = version
        except OSError as exc:
            self._failed, self._failure, self._failed_at = (
                version,
                exc,
                asyncio.get_running_loop().time(),
            )
            raise
        finally:
            self._writing = None

    def _save(self, render: Render) -> None:
        self._table.save(render())

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("cannot save %s: %s", self._name, _why(exc))


def _why(failure: BaseException | None) -> str:
    return reason(failure) if isinstance(failure, OSError) else str(failure)


class Counted(Protocol):
    """A table that changes all the time. *version* grows with every change."""

    @property
    def version(self) -> int: ...

    def snapshot(self) -> Render: ...


class ProgressSaver:
    """Saves a table now and then, and never ahead of the log.

    A state is saved only after everything that was put before it is synced: a power cut must not
    leave progress behind messages that are lost. This matters with flush=async; with flush=sync the
    log is on disk anyway.
    """

    def __init__(
        self, name: str, table: Counted, file: JsonTable, synced: Callable[[], Awaitable[None]]
    ) -> None:
        self._table = table
        self._synced = synced
        self._render: Render = dict
        self._saved = 0
        self._saving = asyncio.Lock()
        self._writer = TableWriter(name, file, lambda: self._render)

    async def save(self) -> None:
        """Raises StoreError."""
        async with self._saving:
            version = self._table.version
            if version == self._saved:
                return
            self._render = self._table.snapshot()
            await self._synced()
            self._writer.mark()
            await self._writer.saved()
            self._saved = version
