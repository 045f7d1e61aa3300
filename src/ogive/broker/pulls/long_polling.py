"""Held pulls, waiting for messages in their queue or for their connection's buffer to drain.

Nothing polls: arrivals and timers wake them.

Source: PullRequestHoldService.java, 5.3, which looks at every list every 5 seconds.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final, Protocol

from ogive.errors import ConnectError
from ogive.store.types import QueueKey
from ogive.transport.connection import Connection
from ogive.transport.server import Unread


class WaitingRead(Protocol):
    """A request for messages that can be tried again."""

    @property
    def connection(self) -> Connection: ...

    def try_answer(self, *, final: bool = False) -> bool:
        """Answer if there is something to deliver, or, if *final*, in any case."""


class HeldPull(WaitingRead, Protocol):
    """A pull that can be tried again.

    *offset* is its position: it is woken when the queue's end passes it.
    """

    @property
    def key(self) -> QueueKey: ...
    @property
    def offset(self) -> int: ...
    @property
    def is_costly(self) -> bool:
        """True if each arrival must be read and compared with an expression."""

    def try_answer(self, *, final: bool = False) -> bool:
        """Answer if there is something to deliver, or, if *final*, in any case.

        Return False to keep waiting, at another offset below the queue's end if there are more
        messages to check.
        """


# held pulls are tried and answered for so long before others have their turn
SLICE_S: Final = 0.001
# so many go without a look at the clock, and then it is the next queue's turn; a slow one counts as
# all of them
AT_ONCE: Final = 64
# a connection's first ones are held however many others have
FEW: Final = 64


class _Round:
    """The pulls of one queue that still have to be tried up to *end*."""

    __slots__ = ("end", "grown", "slow", "usual")

    def __init__(self, end: int) -> None:
        self.end = end
        self.usual: deque[HeldPull] = deque()
        # costly ones, and those that have been tried and have more to look at
        self.slow: OrderedDict[HeldPull, None] = OrderedDict()
        # the queue has grown: all are to be tried, the usual ones first
        self.grown = False


class PullHolds:
    """Held pulls by queue and by connection, within limits. Owner: the event loop.

    An arrival tries the usual pulls of its queue at once if they are few. If they are many, or
    costly, they are tried in rounds, the usual ones first. Rounds run in slices, between which the
    loop runs other work, and the queues take turns in them. A part of each slice is for pulls whose
    time is over, and for those whose queue was deleted or reset.
    """

    def __init__(self, max_held: int, max_per_connection: int) -> None:
        """Hold at most *max_held* pulls, and always FEW of each connection."""
        self._loop = asyncio.get_running_loop()
        self._max, self._max_per_connection = max_held, max_per_connection
        self.by_queue: dict[QueueKey, dict[HeldPull, None]] = {}
        self._by_connection: dict[Connection, dict[HeldPull, asyncio.TimerHandle]] = {}
        self._count = 0
        self._rounds: OrderedDict[QueueKey, _Round] = OrderedDict()
        # to be answered with whatever there is
        self._over: deque[HeldPull] = deque()
        self._slice_is_due = False
        self.closed = False

    def __len__(self) -> int:
        return self._count

    def hold(self, pull: HeldPull, timeout_s: float) -> bool:
        """Hold the pull until its queue grows, or for *timeout_s*.

        False if there is no room, or at the close: then the caller answers.

        There must be no await between the read that found nothing and this call, or an arrival
        might be missed.
        """
        mine = self._by_connection.get(pull.connection)
        held = len(mine) if mine is not None else 0
        if (
            self.closed
            or held >= self._max_per_connection
            or (self._count >= self._max and held >= FEW)
        ):
            return False
        if mine is None:
            mine = self._by_connection[pull.connection] = {}
        mine[pull] = self._loop.call_later(timeout_s, self._expired, pull)
        self.by_queue.setdefault(pull.key, {})[pull] = None
        self._count += 1
        return True

    def arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Report that queues have grown: (topic, queue id) -> new end."""
        waiting = self.by_queue
        at_once = AT_ONCE
        for key in (
            ends.keys() & waiting.keys()
            if len(waiting) < len(ends)
            else [key for key in ends if key in waiting]
        ):
            end, pulls = ends[key], list(waiting.get(key, ()))
            at_once -= len(pulls)
            if at_once < 0:
                self._round(key, end).grown = True
                continue
            for pull in pulls:
                if pull.offset < end and (pull.is_costly or self._try(pull, end)):
                    self._round(key, end).slow[pull] = None
        if self._rounds and not self._slice_is_due:
            self._slice()

    def _round(self, key: QueueKey, end: int) -> _Round:
        current = self._rounds.get(key)
        if current is None:
            current = self._rounds[key] = _Round(end)
        current.end = end
        return current

    def answer_all(self, key: QueueKey) -> None:
        """Answer every pull of the queue in any case: soon, and before any arrival is handled."""
        pulls = self.by_queue.pop(key, None)
        if pulls is not None:
            self._over.extend(pulls)
            self._slice_soon()

    def drop(self, connection: Connection) -> None:
        """Forget the pulls of a client that is gone."""
        for pull in list(self._by_connection.get(connection, ())):
            self._forget(pull)

    def close(self) -> None:
        """Answer all held pulls, and hold no more."""
        self.closed = True
        for pulls in list(self._by_connection.values()):
            for pull in list(pulls):
                if self._forget(pull):
                    pull.try_answer(final=True)

    def _expired(self, pull: HeldPull) -> None:
        self._over.append(pull)
        self._slice_soon()

    def _slice_soon(self) -> None:
        if not self._slice_is_due:
            self._slice_is_due = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        """Try pulls of at least one queue.

        An answer may close connections, and drop their pulls that still have to be tried.
        """
        self._slice_is_due = False
        until, tried = time.monotonic() + SLICE_S, 0
        try:
            while self._over or self._rounds:
                tried += self._answer_some() + self._try_some()
                if tried >= AT_ONCE:
                    if time.monotonic() > until:
                        return
                    tried = 0
        finally:
            if self._over or self._rounds:
                self._slice_soon()

    def _answer_some(self) -> int:
        """Answer up to AT_ONCE expired pulls.

        Return their total cost; a costly pull costs AT_ONCE.
        """
        count = min(AT_ONCE, len(self._over))
        for _ in range(count):
            pull = self._over.popleft()
            if self._forget(pull):
                pull.try_answer(final=True)
                if pull.is_costly:
                    return AT_ONCE
        return count

    def _try_some(self) -> int:
        """Try usual pulls of the next queue, or one slow pull.

        Return their total cost; a slow pull costs AT_ONCE.
        """
        if not self._rounds:
            return 0
        key, current = self._rounds.popitem(last=False)
        end, usual, slow = current.end, current.usual, current.slow
        if current.grown and not usual:
            usual.extend(self.by_queue.get(key, ()))
            current.grown = False
        count = min(AT_ONCE, len(usual))
        for _ in range(count):
            pull = usual.popleft()
            if self._waits_before(pull, end) and (pull.is_costly or self._try(pull, end)):
                slow[pull] = None
        if not usual and slow:
            pull, _ = slow.popitem(last=False)
            count += 1
            if self._waits_before(pull, end):
                count = AT_ONCE
                if self._try(pull, end):
                    slow[pull] = None
        if usual or slow or current.grown:
            self._rounds[key] = current
        return count

    def _waits_before(self, pull: HeldPull, end: int) -> bool:
        return pull.offset < end and pull in self.by_queue.get(pull.key, ())

    def _try(self, pull: HeldPull, end: int) -> bool:
        """Return True if the pull has to be tried again: it moved, and is still below the end."""
        before = pull.offset
        if pull.try_answer():
            self._forget(pull)
            return False
        return before != pull.offset < end

    def _forget(self, pull: HeldPull) -> bool:
        """Return False if the pull is not held any more.

        An answer to a client that does not read may close its connection at once.
        """
        by_connection = self._by_connection.get(pull.connection, {})
        timer = by_connection.pop(pull, None)
        if timer is None:
            return False
        timer.cancel()
        if not by_connection:
            del self._by_connection[pull.connection]
        by_queue = self.by_queue.get(pull.key, {})
        if pull in by_queue:
            del by_queue[pull]
            if not by_queue:
                del self.by_queue[pull.key]
        self._count -= 1
        return True


# until the next look at a connection whose answers have not reached the socket's buffer
LOOK_AGAIN_S: Final = 0.01


class SlowReaders:
    """Pulls of clients that do not read their previous answers.

    They are read from the log when there is room, not before.
    """

    def __init__(self, max_unsent_bytes: int, unread: Unread) -> None:
        """*unread*: the unread answers of all connections together.

        As they grow, pulls wait at less than *max_unsent_bytes*.
        """
        self._max, self._unread = max_unsent_bytes, unread
        self._queues: dict[Connection, deque[WaitingRead]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def must_wait(self, connection: Connection) -> bool:
        most = (
            min(self._max, connection.limits.write_high_bytes)
            if self._unread.is_tight
            else self._max
        )
        return connection in self._queues or connection.unsent_bytes >= most or self._unread.is_full

    def is_slow(self, connection: Connection) -> bool:
        """Return True if it is this connection that must_wait(), whatever others have not read."""
        return connection in self._queues or connection.unsent_bytes >= self._max

    def put(self, pull: WaitingRead) -> None:
        """Answer the pull when its connection has room.

        The connection's limit of requests in flight limits the number of waiting pulls.
        """
        queue = self._queues.get(pull.connection)
        if queue is not None:
            queue.append(pull)
            return
        self._queues[pull.connection] = deque((pull,))
        task = asyncio.create_task(
            self._serve(pull.connection), name=f"slow reader {pull.connection.remote_address}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Forget all: the connections are closed."""
        await asyncio.gather(*self._tasks)

    async def _serve(self, connection: Connection) -> None:
        queue = self._queues[connection]
        try:
            while queue:
                await connection.drain()
                while self._unread.is_full:
                    await self._unread.room()
                    await connection.drain()
                queue.popleft().try_answer(final=True)
                # lets the answer reach the socket's buffer before the next look at it
                await asyncio.sleep(0)
        except ConnectError:
            # the client is gone, and its pulls with it
            pass
        finally:
            del self._queues[connection]
