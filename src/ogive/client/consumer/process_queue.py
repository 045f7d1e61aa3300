"""Messages of one queue that a member has pulled and not yet finished."""

import asyncio
import enum
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue

_POLL_S: Final = 0.01


class QueueState(enum.Enum):
    """ACTIVE: pulled and consumed.

    RELEASING: no new listener call starts, the running one still counts. DROPPED: nothing counts.
    """

    ACTIVE = enum.auto()
    RELEASING = enum.auto()
    DROPPED = enum.auto()


_NEXT: Final[dict[QueueState, set[QueueState]]] = {
    QueueState.ACTIVE: {QueueState.RELEASING, QueueState.DROPPED},
    QueueState.RELEASING: {QueueState.DROPPED},
    # final: its messages are neither consumed nor committed; the queue comes back as a new object
    QueueState.DROPPED: set(),
}


class ProcessQueue:
    """Pulled but unfinished messages of one MessageQueue.

    The loop owns it; worker threads only read *active* and *leased_until*.

    An orderly group consumes a queue only while the broker's lock on it is fresh: *leased_until* is
    the ``lease_time`` at which our lease ends, infinity for a concurrent group. After a lock was
    refused or ran out the object is not used again: another member may have consumed in between, so
    the queue is dropped and assigned afresh. Differs from Java: while nothing is pending, the
    offset that is safe to commit follows the pull offset, so that filtered messages count as done
    at once. Source: ProcessQueue.java, 5.3.
    """

    __slots__ = (
        "_bytes",
        "_pending",
        "_room",
        "active",
        "busy",
        "consumed_at_ms",
        "doubted",
        "failed_unlocks",
        "leased_until",
        "paused",
        "pull_offset",
        "pulled_at_ms",
        "queue",
        "releasing_since",
        "state",
        "stuck_at",
        "suggested_broker_id",
        "taken",
    )

    def __init__(
        self, queue: MessageQueue, pull_offset: int, leased_until: float = float("inf")
    ) -> None:
        self.queue = queue
        self.pull_offset = pull_offset
        self.leased_until = leased_until
        self.state = QueueState.ACTIVE
        # state is ACTIVE; read by other threads before each listener call
        self.active = True
        # orderly: a listener call is running, or a pause between two tries
        self.busy = False
        # neither pulled nor handed out until ``resume``
        self.paused = False
        # Time of the loop's clock at which it began to be given up to another member.
        self.releasing_since: float | None = None
        # its broker could not be reached, or had forgotten us: others may have gone on in it
        self.doubted = False
        self.suggested_broker_id = 0
        # its next pulls bring bytes that are no message, see ``corrupt_messages.py``
        self.stuck_at: int | None = None
        # orderly: what a worker has now, behind what was consumed and not committed
        self.taken: Sequence[MessageExt] = ()
        # how often it could not be given up because a call was running
        self.failed_unlocks = 0
        # last pull asked, last message finished
        self.pulled_at_ms = self.consumed_at_ms = time.time_ns() // 1_000_000
        # OrderedDict, not dict: acks delete from the front, and dict then scans the holes to find
        # its first key.
        self._pending: OrderedDict[int, MessageExt] = OrderedDict()
        self._bytes = 0
        self._room: asyncio.Future[None] | None = None

    def move_to(self, state: QueueState) -> None:
        if state not in _NEXT[self.state]:
            raise IllegalStateError(f"{self.queue}: {self.state.name} -> {state.name}")
        self.state = state
        self.active = False
        self._wake()
        if state is QueueState.DROPPED:
            self._pending.clear()
            self._bytes = 0

    @property
    def dropped(self) -> bool:
        return self.state is QueueState.DROPPED

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake()

    # --- filling and emptying ---------------------------------------------------------------------

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> list[MessageExt]:
        """Take in one pull's messages; returns those that were not there already."""
        pending = self._pending
        fresh = (
            [message for message in messages if message.queue_offset not in pending]
            if pending
            else list(messages)
        )
        for message in fresh:
            pending[message.queue_offset] = message
            self._bytes += len(message.body)
        self.pull_offset = next_offset
        return fresh

    def ack(self, offsets: Iterable[int]) -> int:
        """Forget finished messages; returns the offset now safe to commit."""
        pending = self._pending
        for offset in offsets:
            message = pending.pop(offset, None)
            if message is not None:
                self._bytes -= len(message.body)
        if self._room is not None:
            self._wake()
        return self.safe_offset

    def replace(self, message: MessageExt) -> bool:
        """Replace the message with the same offset by a changed copy. Return False if it is
        finished already.
        """
        if message.queue_offset not in self._pending:
            return False
        self._pending[message.queue_offset] = message
        return True

    def head(self, count: int, skip: int = 0) -> list[MessageExt]:
        """Return the lowest *count* unfinished messages behind the first *skip*, in order. Messages
        that no listener gets are left out.
        """
        readable = (message for message in self._pending.values() if not message.is_compressed)
        return list(itertools.islice(readable, skip, skip + count))

    # --- looking ----------------------------------------------------------------------------------

    @property
    def safe_offset(self) -> int:
        """Offset to commit: the lowest unfinished one, or the next one to pull if all are
        finished.
        """
        return next(iter(self._pending), self.pull_offset)

    @property
    def count(self) -> int:
        return len(self._pending)

    @property
    def bytes(self) -> int:
        """Bytes of the unfinished bodies."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the lowest to the highest unfinished offset."""
        return next(reversed(self._pending)) - next(iter(self._pending)) if self._pending else 0

    def __contains__(self, offset: int) -> bool:
        return offset in self._pending

    # --- waiting ----------------------------------------------------------------------------------

    async def changed(self, timeout_s: float) -> None:
        """Wait until something was finished or the state changed, at most *timeout_s*.

        One waiter: the queue's pull loop.
        """
        self._room = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((self._room,), timeout=timeout_s)
        finally:
            self._room = None

    def _wake(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)


async def until_quiet(
    is_busy: Callable[[ProcessQueue], bool], process_queue: ProcessQueue, timeout_s: float
) -> bool:
    """Wait until *process_queue* is not busy any more.

    Return False if it still is after *timeout_s*.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while is_busy(process_queue):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True
