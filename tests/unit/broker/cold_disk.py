"""A store's disk as it is when the operating system's memory holds nothing of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ogive.errors import StoreError
from ogive.store.file_reader import Cold, Place
from ogive.store.message_store import MessageStore


class ColdDisk:
    """After forget(), a read that must not wait raises Cold, until what it needs has been brought
    in.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._read, self._read_log = store._disk.read, store._disk.read_log
        self._in_memory: set[tuple[Path, int, int]] = set()
        self.waiting: list[tuple[Place, Callable[[StoreError | None], None]]] = []

    def forget(self) -> None:
        """The log's newest records, too."""
        self._store._log.hot._chunks.clear()
        self._store._log.hot._starts.clear()
        self._in_memory.clear()
        # every read goes through one of the two
        self._store._disk.read = partial(self._now, self._read)  # type: ignore[method-assign]
        read_log = partial(self._now, self._read_log)
        self._store._disk.read_log = read_log  # type: ignore[method-assign]

    def _now(
        self, read: Callable[[Path, int, int], bytes], path: Path, size: int, offset: int
    ) -> bytes:
        disk = self._store._disk
        may_wait = disk.waits or disk.must_wait
        if not may_wait and (path, offset, size) not in self._in_memory:
            raise Cold(
                path, offset, size, self._store._disk.unreadable if read == self._read_log else None
            )
        return read(path, size, offset)

    def fetch(self, place: Place, then: Callable[[StoreError | None], None]) -> None:
        """In the place of ColdReads.fetch."""
        self.waiting.append((place, then))

    def bring_in(self, error: StoreError | None = None) -> None:
        """Carry out what waits, or let it fail."""
        waiting, self.waiting = self.waiting, []
        for place, then in waiting:
            if error is None:
                self._store.bring_in(place)
                self._in_memory.add((place.path, place.offset, place.size))
            then(error)

    def lose(self) -> None:
        """Let what waits go on, though what was read is gone from memory already."""
        waiting, self.waiting = self.waiting, []
        for _, then in waiting:
            then(None)
