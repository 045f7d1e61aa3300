"""Held pulls, waiting for messages in their queue or for their connection's buffer to drain. Nothing polls: arrivals and timers wake them.

Source: PullRequestHoldService.java, 5.3, which looks at every list every 5 seconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Final, Protocol

from ogive.errors import ConnectError
from ogive.store.model import QueueKey
from ogive.transport.connection import Connection
from ogive.transport.unread import Unread


class HeldPull(Protocol):
    """A pull that can be tried again. *offset* is where it waits: woken when the queue's end passes it."""

    @property
    def connection(self) -> Connection: ...
    @property
    def key(self) -> QueueKey: ...
    @property
    def offset(self) -> int: ...
    @property
    def is_costly(self) -> bool:
        """Whether what arrived must be read and compared with an expression to know if it is waited for."""

    def try_answer(self) -> bool:
        """Answer if there is something to deliver now; else say False and keep waiting, at another offset below the queue's end if there is
        more to look at."""

    def answer(self) -> None:
        """Answer with whatever there is."""


COSTLY_SLICE_S: Final = 0.005  # costly pulls are tried for so long before others have their turn


class PullHolds:
    """Held pulls by queue and by connection, within limits. Owner: the event loop.

    An arrival wakes the usual ones at once. Those that are costly are tried in slices, between which the loop turns.
    """

    def __init__(self, max_held: int, max_per_connection: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._max, self._max_per_connection = max_held, max_per_connection
        self._by_queue: dict[QueueKey, dict[HeldPull, asyncio.TimerHandle]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, None]] = {}
        self._count = 0
        self._due: dict[HeldPull, int] = {}  # costly ones, each with the end that its queue has come to
        self._slice_is_due = False
        self.closed = False

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull, timeout_s: float) -> bool:
        """Hold the pull until its queue grows, or for *timeout_s*. False if there is no room, or at the close: then the caller answers.

        There must be no await between the read that found nothing and this call, or an arrival might be missed.
        """
        mine = self._by_connection.get(pull.connection)
        if self.closed or self._count >= self._max or (mine is not None and len(mine) >= self._max_per_connection):
            return False
        self._by_queue.setdefault(pull.key, {})[pull] = self._loop.call_later(timeout_s, self._expired, pull)
        if mine is None:
            mine = self._by_connection[pull.connection] = {}
        mine[pull] = None
        self._count += 1
        return True

    def arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Queues have grown: (topic, queue id) -> new end."""
        waiting = self._by_queue
        for key in ends.keys() & waiting.keys() if len(waiting) < len(ends) else [key for key in ends if key in waiting]:
            end = ends[key]
            for pull in list(waiting.get(key, ())):
                if pull.offset < end:
                    if pull.is_costly:
                        self._due[pull] = end
                    else:
                        self._try(pull, end)
        if self._due and not self._slice_is_due:
            self._try_costly()

    def _try_costly(self) -> None:
        """One slice, at least one pull."""
        self._slice_is_due = False
        until = time.monotonic() + COSTLY_SLICE_S
        while self._due:
            pull = next(iter(self._due))
            self._try(pull, self._due.pop(pull))
            if self._due and time.monotonic() > until:
                self._slice_is_due = True
                self._loop.call_soon(self._try_costly)
                return

    def _try(self, pull: HeldPull, end: int) -> None:
        """An answer may end connections, and with them pulls that are due."""
        before = pull.offset
        if pull.try_answer():
            self._forget(pull)
        elif before != pull.offset < end:
            self._due[pull] = end

    def answer_all(self, key: QueueKey) -> None:
        """Answer every pull that waits at the queue, with whatever there is."""
        for pull in list(self._by_queue.get(key, ())):
            if self._forget(pull):
                pull.answer()

    def drop(self, connection: Connection) -> None:
        """The client is gone: forget its pulls."""
        for pull in list(self._by_connection.get(connection, ())):
            self._forget(pull)

    def close(self) -> None:
        """Answer all held pulls, and hold no more."""
        self.closed = True
        for pulls in list(self._by_connection.values()):
            for pull in list(pulls):
                if self._forget(pull):
                    pull.answer()

    def _expired(self, pull: HeldPull) -> None:
        self._forget(pull)
        pull.answer()

    def _forget(self, pull: HeldPull) -> bool:
        """False: it has been dropped meanwhile. An answer too many for a client that does not read ends its connection at once."""
        by_queue = self._by_queue.get(pull.key, {})
        timer = by_queue.pop(pull, None)
        if timer is None:
            return False
        timer.cancel()
        self._due.pop(pull, None)
        if not by_queue:
            del self._by_queue[pull.key]
        by_connection = self._by_connection[pull.connection]
        del by_connection[pull]
        if not by_connection:
            del self._by_connection[pull.connection]
        self._count -= 1
        return True


LOOK_AGAIN_S: Final = 0.01  # whether the answers before it have reached the socket's buffer


class SlowReaders:
    """Pulls of clients that do not take the answers they already have. They are read from the log when there is room, not before."""

    def __init__(self, max_unsent_bytes: int, unread: Unread) -> None:
        """*unread*: what all connections together have not read. As it grows, pulls wait at less than *max_unsent_bytes*."""
        self._max, self._unread = max_unsent_bytes, unread
        self._queues: dict[Connection, deque[HeldPull]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def must_wait(self, connection: Connection) -> bool:
        most = min(self._max, connection.limits.write_high_bytes) if self._unread.is_tight else self._max
        return connection in self._queues or connection.unsent_bytes >= most or self._unread.is_full

    def put(self, pull: HeldPull) -> None:
        """Answer the pull once its connection has room. The connection's limit of requests in flight bounds how many wait."""
        queue = self._queues.get(pull.connection)
        if queue is not None:
            queue.append(pull)
            return
        self._queues[pull.connection] = deque((pull,))
        task = asyncio.create_task(self._serve(pull.connection), name=f"slow reader {pull.connection.remote_address}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """The connections are closed: nothing is left to wait for."""
        await asyncio.gather(*self._tasks)

    async def _serve(self, connection: Connection) -> None:
        queue = self._queues[connection]
        try:
            while queue:
                await connection.drain()
                while self._unread.is_full:
                    await self._unread.room()
                    await connection.drain()
                queue.popleft().answer()
                await asyncio.sleep(0)  # lets the answer reach the socket's buffer before the next look at it
        except ConnectError:
            pass  # the client is gone, and its pulls with it
        finally:
            del self._queues[connection]
