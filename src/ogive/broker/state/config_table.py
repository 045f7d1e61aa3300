"""Tables of configurations in files: saved off the event loop, many changes in one write."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from ogive.errors import InvalidOption, ProtocolError, StoreError
from ogive.store.fs import reason
from ogive.store.tables import JsonTable
from ogive.wire.bodies.configs import DataVersion, SubscriptionGroupConfig, TopicConfig

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

Render = Callable[[], dict[str, Any]]
"""Builds the JSON object; runs in a thread, so it may only use values that do not change."""


class TableWriter:
    """Owned by the event loop; *snapshot* is called there, and its result in a thread."""

    def __init__(self, name: str, table: JsonTable, snapshot: Callable[[], Render]) -> None:
        self._name = name
        self._table = table
        self._snapshot = snapshot
        # counts changes
        self.version = 0
        # the version that the file holds
        self.written = 0
        self._writing: asyncio.Task[None] | None = None
        # the newest version that could not be written
        self._failed = 0
        self._failure: OSError | None = None
        self._failed_at = 0.0

    @property
    def unsaved(self) -> bool:
        """True if a change has not reached stable storage yet."""
        return self.written < self.version

    def mark(self) -> None:
        """Record that the table differs from the file; the next ``saved`` writes it."""
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
                    f"could not save {self._name}: {_why(writing.exception())}"
                ) from writing.exception()

    def check(self, version: int) -> None:
        """Raise StoreError if *version* could not be saved, and begin another try for the next
        call.
        """
        if self.written < version <= self._failed:
            self.save_again()
            raise StoreError(f"could not save {self._name}: {_why(self._failure)}")

    def save_again(self) -> None:
        """Write changes in the background that could not be written, at most once a second."""
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
        """Write until the file has the newest version, so that changes during a write need no
        further trigger.
        """
        version = self.version
        try:
            while self.written < self.version:
                version, render = self.version, self._snapshot()
                await asyncio.to_thread(self._save, render)
                self.written = version
        except OSError as exc:
            self._failed = version
            self._failure = exc
            self._failed_at = asyncio.get_running_loop().time()
            raise
        finally:
            self._writing = None

    def _save(self, render: Render) -> None:
        self._table.save(render())

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("could not save %s: %s", self._name, _why(exc))


def _why(failure: BaseException | None) -> str:
    return reason(failure) if isinstance(failure, OSError) else str(failure)


class Counted(Protocol):
    """A table that changes all the time. *version* grows with every change."""

    @property
    def version(self) -> int: ...

    def snapshot(self) -> Render: ...


class ProgressSaver:
    """Saves a table from time to time, and never ahead of the log.

    A state is saved only after everything that was put before it is synced: otherwise a power cut
    could leave progress for messages that are lost. This matters with flush=async; with flush=sync
    the log is on disk anyway.
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
        """Save the table if it has changed. Raises StoreError."""
        async with self._saving:
            version = self._table.version
            if version == self._saved:
                return
            self._render = self._table.snapshot()
            await self._synced()
            self._writer.mark()
            await self._writer.saved()
            self._saved = version


# names come from clients and messages
_MAX_MISSED: Final = 1_000

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class ConfigTable(ABC, Generic[C]):
    """Name to configuration. Event-loop only; the file is written off the loop.

    *changed* callbacks run after each change, on the loop, and must be short.
    """

    def __init__(
        self, kind: str, table: JsonTable, *, now_ms: Callable[[], int], limit: int
    ) -> None:
        """*kind*: "topic" or "group", for messages."""
        self._kind, self._now_ms, self._limit = kind, now_ms, limit
        self._configs: dict[str, C] = {}
        self._missed: set[str] = set()
        self._writer = TableWriter(f"{kind}s", table, self._snapshot)
        self.changed: list[Callable[[], None]] = []
        self.data_version = DataVersion()

    def _begin(
        self,
        built_in: Mapping[str, C],
        loaded: Mapping[str, C],
        version: object,
        *,
        differs: bool = False,
    ) -> None:
        """Load the contents of the file, also beyond the limit, and add the built-in entries.

        *differs*: the file does not have all of *loaded*.
        """
        self._configs = {**built_in, **loaded}
        if len(self._configs) > self._limit:
            log.warning(
                "the broker has %d %ss, more than its limit of %d: all are kept, new ones are "
                "refused",
                len(self._configs),
                self._kind,
                self._limit,
            )
        self.data_version = self._read_version(version)
        if differs or not built_in.keys() <= loaded.keys():
            self.data_version = self.data_version.next(self._now_ms())
            self._writer.mark()

    def _read_version(self, version: object) -> DataVersion:
        try:
            return DataVersion.from_json(version or {})
        except ProtocolError as exc:
            log.warning(
                "%ss file: invalid data version, replaced by a new one: %s", self._kind, exc
            )
            return DataVersion().next(self._now_ms())

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str) -> C | None:
        return self._configs.get(name)

    def all(self) -> Mapping[str, C]:
        """Return the live table: do not keep it across an await."""
        return self._configs

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[C]:
        return iter(self._configs.values())

    def __len__(self) -> int:
        return len(self._configs)

    def _is_new_miss(self, name: str) -> bool:
        """Return True if a missing *name* has to be reported: once, until it is created."""
        if name in self._missed or len(self._missed) >= _MAX_MISSED:
            return False
        self._missed.add(name)
        return True

    # --- changing ---------------------------------------------------------------------------------

    @abstractmethod
    def check(self, config: C) -> None:
        """Check the name and the numbers of a configuration. Raises InvalidOption."""

    def create_or_update(self, config: C) -> C:
        """Add or replace a configuration. Raises InvalidOption as check() does, and if the table is
        full.
        """
        self.check(config)
        return self._put(config)

    def _put(self, config: C, *, beyond_limit: bool = False) -> C:
        known = self._configs.get(config.name)
        if known == config:
            return known
        if known is None and len(self._configs) >= self._limit and not beyond_limit:
            raise InvalidOption(
                f"{self._kind} {config.name}: the broker holds {len(self._configs)} {self._kind}s, "
                f"its limit is {self._limit}"
            )
        self._configs[config.name] = config
        self._missed.discard(config.name)
        self._note_change()
        return config

    def _remove(self, name: str) -> bool:
        """Return True if there was one of that name."""
        if self._configs.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def _note_change(self) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self._writer.start()
        for callback in self.changed:
            callback()

    # --- the file ---------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """True if a change has not reached stable storage yet."""
        return self._writer.unsaved

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def save_again(self) -> None:
        """Try again in the background to save what could not be saved."""
        self._writer.save_again()

    @abstractmethod
    def _snapshot(self) -> Render: ...


def read_configs(
    stored: object, kind: type[C], validate: Callable[[str], str], file: str
) -> dict[str, C]:
    """Return the configurations of a file by name.

    Leave out an entry that no command could have made, with a warning.
    """
    configs: dict[str, C] = {}
    entries: dict[Any, Any] = stored if isinstance(stored, dict) else {}
    for name, value in entries.items():
        try:
            config = kind.from_json(value)
            configs[validate(str(name))] = replace(config, name=str(name))
        except (InvalidOption, ProtocolError) as exc:
            log.warning("%s file: ignored the invalid entry %.80r: %s", file, name, exc)
    return configs
