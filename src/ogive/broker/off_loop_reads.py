"""Reads that have to wait for the disk, on separate threads, so that they do not block other
requests.

A read on the event loop returns data in memory. If the disk is needed it raises Cold: a thread here
loads the bytes into the page cache, and the loop tries the read again. Only the loop changes state.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from ogive.errors import StoreBusy, StoreError
from ogive.store.file_reader import Cold, Place
from ogive.store.message_store import MessageStore
from ogive.store.types import Entry

log = logging.getLogger(__name__)

THREADS: Final = 4
MAX_WAITING: Final = 10_000
# of one request; beyond it, the read waits for the disk
MAX_TRIES: Final = 256

T = TypeVar("T")

Fetch = Callable[[Place, Callable[[StoreError | None], None]], None]
"""ColdReads.fetch"""


class ColdReads:
    """*bring_in* is called on the threads, which are started for the first cold read."""

    def __init__(self, bring_in: Callable[[Place], bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._bring_in, self._loop = bring_in, loop
        self._threads = ThreadPoolExecutor(THREADS, "ogive-cold-read")
        self.waiting = 0

    def fetch(
        self,
        place: Place,
        then: Callable[[StoreError | None], None],
        keep: Callable[[bytes], None] | None = None,
    ) -> None:
        """Call *then* on the loop, with the error if the disk cannot be read; before that *keep*,
        with the data. Raises StoreError, and then never calls them.
        """
        if self.waiting >= MAX_WAITING:
            raise StoreBusy(f"{self.waiting} reads wait for the disk")
        try:
            reading = self._threads.submit(self._bring_in, place)
        except RuntimeError as exc:
            # the machine has no thread left, or the broker stops
            raise StoreError(f"{place.path} cannot be read from the disk: {exc}") from exc
        self.waiting += 1
        reading.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._done, done, then, keep)
        )

    async def bring_in(self, cold: Cold) -> None:
        """Read one place after the other, so that other reads run between them.

        Raises StoreError.
        """
        for place in (cold.place, *cold.others):
            await self.bring_in_place(place)

    async def bring_in_place(
        self, place: Place, keep: Callable[[Place, bytes], None] | None = None
    ) -> None:
        """Call *keep* with the data. Raises StoreError."""
        done: asyncio.Future[StoreError | None] = self._loop.create_future()

        def then(error: StoreError | None) -> None:
            if not done.done():
                done.set_result(error)

        if keep is None:
            self.fetch(place, then)
        else:
            self.fetch(place, then, partial(keep, place))
        if (error := await done) is not None:
            raise error

    async def read(self, store: MessageStore, read: Callable[[], T], cold: Cold | None = None) -> T:
        """Return the result of *read*, and wait off the loop for data that it needs from the disk.

        *read* reads *store* on the event loop, and is called again after each wait. *cold*: the
        data that it is already known to need. Raises StoreError.
        """
        for _ in range(MAX_TRIES):
            if cold is not None:
                await self.bring_in(cold)
            try:
                with store.without_waiting():
                    return read()
            except Cold as exc:
                cold = exc.with_traceback(None)
        with store.waiting():
            return read()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _done(
        self,
        done: "Future[bytes]",
        then: Callable[[StoreError | None], None],
        keep: Callable[[bytes], None] | None,
    ) -> None:
        self.waiting -= 1
        if done.cancelled():
            then(StoreError("the broker stops"))
            return
        error = done.exception()
        # report it to whoever waits all the same, or a job would hang for ever
        if error is not None and not isinstance(error, StoreError):
            log.error("a disk read failed", exc_info=error)
            error = StoreError(f"a read from the disk failed: {error!r}")
        if error is None and keep is not None:
            keep(done.result())
        then(error)


class JobReads:
    """Reads of one of the broker's own jobs, which must not block the loop: if one raises Cold, the
    job passes it to bring_in() and returns; it is woken when it can continue.
    """

    def __init__(
        self, store: MessageStore, fetch: Fetch, wake: Callable[[StoreError | None], None]
    ) -> None:
        """*wake* is called on the loop, with the error if the disk cannot be read."""
        self._store, self._fetch, self._wake = store, fetch, wake
        self._tries = 0
        self.pending = False
        """True if the job will be woken. Until then it has nothing to read."""

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry]:
        """See MessageStore.entries. Raises StoreError, Cold."""
        return self._read(partial(self._store.entries, topic, queue_id, offset, count))

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """See MessageStore.record_at. Raises StoreError, Cold."""
        found = self._read(partial(self._store.record_at, commitlog_offset))
        # here alone: entries that are found again and again are no progress
        self._tries = 0
        return found

    def bring_in(self, cold: Cold) -> None:
        self._tries += 1
        self.pending = True
        try:
            self._fetch(cold.place, self._fetched)
        except StoreError as exc:
            self._fetched(exc)

    def _fetched(self, error: StoreError | None) -> None:
        self.pending = False
        self._wake(error)

    def _read(self, read: Callable[[], T]) -> T:
        if self._tries >= MAX_TRIES:
            return read()
        with self._store.without_waiting():
            return read()
