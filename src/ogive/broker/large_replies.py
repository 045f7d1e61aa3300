"""Fair scheduling of large replies: answers that grow with the number of topics, groups or queues.

One is built at a time, in slices between which the loop serves other requests. Data from the disk
is read on another thread, and meanwhile other replies are built.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from ogive.broker.off_loop_reads import ColdReads
from ogive.broker.pulls.long_polling import LOOK_AGAIN_S, SlowReaders
from ogive.errors import ConnectError
from ogive.store.file_reader import Cold, all_of
from ogive.store.message_store import MessageStore
from ogive.transport.connection import Connection
from ogive.transport.event_loop import SLICE_S
from ogive.wire.command import RemotingCommand

# tries; beyond them, what is read for a reply is kept in memory: the system seems to forget it at
# once
KEEP_AFTER: Final = 4
# of one reply; beyond them, its reads wait for the disk
MAX_TRIES: Final = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InPieces(Generic[T]):
    """Answer of a handler that needs many reads. *finish* builds it from their results."""

    reads: Sequence[Callable[[], T]]
    finish: Callable[[list[T]], RemotingCommand]


class _ClientGone(Exception):
    """The client of the reply is gone."""


class _ClientStalled(Exception):
    """The client does not read its answers. The reply is built again when it does."""


class _DiskTaken(Exception):
    """Another reply is being read from the disk. This one is built again after it."""


class LargeReplies:
    """Turns of large replies.

    Hosts take turns, and so do the connections of a host; the replies of one connection are built
    in order. Only one reply of each host waits for a turn, and only the first of each connection
    for the turn of its host.
    """

    def __init__(
        self,
        store: MessageStore,
        reads: ColdReads,
        slow_readers: SlowReaders,
        now: Callable[[], float],
    ) -> None:
        self.store, self.slow_readers, self.now = store, slow_readers, now
        self.reads = reads
        self.turn = asyncio.Lock()
        """Lock that is held while a reply is built.

        First come, first served: this is the order of the hosts.
        """
        self.disk = asyncio.Lock()
        """Lock of the one reply whose data is read from the disk: it may need some of each
        queue.
        """
        self._by_connection: WeakKeyDictionary[Connection, asyncio.Lock] = WeakKeyDictionary()
        self._by_host: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of connections with a request for a large reply."""
        return len(self._by_connection)

    def of_host(self, connection: Connection) -> asyncio.Lock:
        """Return the lock that is held while *connection*, among those of its host, waits for a
        turn and has it.
        """
        return self._by_host.setdefault(
            connection.remote_address.rpartition(":")[0], asyncio.Lock()
        )

    async def make(
        self, connection: Connection, work: Callable[["LargeReply"], Awaitable[None]]
    ) -> None:
        """Call *work*, which builds and sends one reply, when it is its turn.

        It may be called again from the beginning. Nothing is built for a client that is gone or
        does not read its answers.
        """
        async with self._by_connection.setdefault(connection, asyncio.Lock()):
            while True:
                try:
                    await connection.drain()
                    if self.slow_readers.must_wait(connection):
                        # until the answers before it have reached the socket's buffer
                        await asyncio.sleep(LOOK_AGAIN_S)
                    else:
                        return await LargeReply(self, connection).make(work)
                except _ClientStalled:
                    pass
                except (ConnectError, _ClientGone):
                    return None


class LargeReply:
    """One large reply in progress. It has the turn, except while it waits for the disk."""

    def __init__(self, replies: LargeReplies, connection: Connection) -> None:
        self._replies, self._connection = replies, connection
        self._turn, self._until_sent = AsyncExitStack(), AsyncExitStack()
        self._started = 0.0
        # reads from the disk
        self._tries = 0

    async def make(self, work: Callable[["LargeReply"], Awaitable[None]]) -> None:
        """Call *work* with the turn, and again once the disk is free if another reply had it."""
        async with self._until_sent, self._turn:
            await self._take_turn()
            while not await self._is_made(work):
                await self._turn.aclose()
                await self._take_disk()
                await self._take_turn()

    async def _is_made(self, work: Callable[["LargeReply"], Awaitable[None]]) -> bool:
        """Call *work*. Return False, and hold nothing of it, if another reply has the disk."""
        try:
            await work(self)
        except _DiskTaken:
            return False
        # the answer is written at the end of the turn, and that counts, too
        await asyncio.sleep(0)
        await self._pause()
        return True

    async def read(self, read: Callable[[], T]) -> T:
        """Return the result of *read*, see each()."""
        return (await self.each([read]))[0]

    async def each(self, reads: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results of many reads. Other work runs between two of them.

        Those that need the disk are repeated after it has been read. Raises their errors.
        """
        found: dict[int, T] = {}
        left: Sequence[int] = range(len(reads))
        while left:
            missing: list[Cold] = []
            again: list[int] = []
            for number in left:
                if self._connection.closed:
                    raise _ClientGone
                try:
                    found[number] = self._read_now(reads[number])
                except Cold as cold:
                    # it would keep the frames of as many calls
                    missing.append(cold.with_traceback(None))
                    again.append(number)
                if self._replies.now() >= self._started + SLICE_S:
                    await self._pause()
            if (together := all_of(missing)) is not None:
                # while the disk is read, its places are enough
                del missing
                await self._bring_in(together)
            left = again
        return [found[number] for number in range(len(reads))]

    def _read_now(self, read: Callable[[], T]) -> T:
        """Read without waiting for the disk; after MAX_TRIES, wait for it. Raises Cold."""
        store = self._replies.store
        waiting = store.waiting() if self._tries >= MAX_TRIES else nullcontext()
        with store.without_waiting(), waiting:
            return read()

    async def _pause(self) -> None:
        """Let the loop do other work for as long as the slice took, and begin another slice."""
        await asyncio.sleep(self._replies.now() - self._started)
        self._started = self._replies.now()

    async def _take_turn(self) -> None:
        replies, connection = self._replies, self._connection
        await self._turn.enter_async_context(replies.of_host(connection))
        await self._turn.enter_async_context(replies.turn)
        if connection.closed:
            raise _ClientGone
        if not connection.is_writable or replies.slow_readers.must_wait(connection):
            raise _ClientStalled
        self._started = replies.now()

    async def _take_disk(self) -> None:
        """Hold the disk until the reply is sent."""
        await self._until_sent.enter_async_context(self._replies.disk)
        self._until_sent.callback(self._replies.store.keep_nothing)
        self._tries = 1

    async def _bring_in(self, cold: Cold) -> None:
        """Give up the turn, read from the disk, and take the turn again."""
        if not self._tries and self._replies.disk.locked():
            # results may be large: only those of the one that has the disk are held
            raise _DiskTaken
        await self._turn.aclose()
        if self._tries:
            self._tries += 1
        else:
            await self._take_disk()
        keep = self._replies.store.keep if self._tries > KEEP_AFTER else None
        try:
            for place in (cold.place, *cold.others):
                if self._connection.closed:
                    raise _ClientGone
                await self._replies.reads.bring_in_place(place, keep)
        finally:
            # the wait is no part of a slice, also where the disk failed
            self._started = self._replies.now()
        await self._take_turn()
