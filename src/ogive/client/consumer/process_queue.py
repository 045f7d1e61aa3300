"""Messages of one queue that a member has pulled and not yet finished."""

import asyncio
import enum
import itertools
import operator
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue
from ogive.wire.message import measure

_POLL_S: Final = 0.01


class QueueState(enum.Enum):
    """ACTIVE: pulled and consumed.

    RELEASING: the listener gets nothing new, and what it has begun still counts. DROPPED: nothing
    counts.
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


def offsets_of(messages: Sequence[MessageExt]) -> Sequence[int]:
    """Return the queue offsets of *messages*: a range if each follows the one before."""
    if messages:
        first, last = messages[0].queue_offset, messages[-1].queue_offset
        if last - first == len(messages) - 1:
            _, ascending, _ = measure(messages)
            if ascending:
                return range(first, last + 1)
    return [message.queue_offset for message in messages]


class _Block:
    """Messages that came together, in the order of their offsets.

    A finished one is None; the first unfinished one is at *low*, and the last one is at the end.
    """

    __slots__ = ("first", "has_compressed", "left", "low", "messages", "offsets")

    def __init__(self, messages: Sequence[MessageExt], *, has_compressed: bool) -> None:
        self.messages: list[MessageExt | None] = list(messages)
        self.offsets = offsets_of(messages)
        self.first = self.offsets[0]
        self.has_compressed = has_compressed
        self.left = len(messages)
        self.low = 0

    def index(self, offset: int) -> int:
        """Return the place of the first message with *offset* or a higher one."""
        return bisect_left(self.offsets, offset, hi=len(self.messages))

    def unfinished(self, start: int = 0, stop: int | None = None) -> list[MessageExt]:
        """Return the unfinished messages between two places."""
        return [one for one in self.messages[max(start, self.low) : stop] if one is not None]

    def finish(self, start: int, stop: int) -> list[MessageExt]:
        """Mark the messages between two places as finished. Return those that were not."""
        messages = self.messages
        finished = self.unfinished(start, stop)
        self.left -= len(finished)
        if not self.left:
            messages.clear()
        elif stop == len(messages):
            del messages[start:]
            while messages[-1] is None:
                messages.pop()
        else:
            messages[start:stop] = [None] * (stop - start)
            if start <= self.low:
                self.low = max(self.low, stop)
                while messages[self.low] is None:
                    self.low += 1
        return finished

    @property
    def lowest(self) -> int:
        """Offset of the first unfinished message."""
        return self.offsets[self.low]

    @property
    def highest(self) -> int:
        """Offset of the last unfinished message."""
        return self.offsets[len(self.messages) - 1]


_first_of: Final = operator.attrgetter("first")


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
        "_blocks",
        "_bytes",
        "_count",
        "_room",
        "active",
        "busy",
        "consumed_at_ms",
        "doubted",
        "end_offset",
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
        # of the broker's queue, when it was pulled last
        self.end_offset: int | None = None
        # its next pulls bring bytes that are no message, see ``delivery.py``
        self.stuck_at: int | None = None
        # orderly: what a worker has now, behind what was consumed and not committed
        self.taken: Sequence[MessageExt] = ()
        # how often it could not be given up because a call was running
        self.failed_unlocks = 0
        # last pull asked, last message finished
        self.pulled_at_ms = self.consumed_at_ms = time.time_ns() // 1_000_000
        # in the order of their offsets, which do not overlap
        self._blocks: list[_Block] = []
        self._count = 0
        self._bytes = 0
        self._room: asyncio.Future[None] | None = None

    def move_to(self, state: QueueState) -> None:
        if state not in _NEXT[self.state]:
            raise IllegalStateError(f"{self.queue}: {self.state.name} -> {state.name}")
        self.state = state
        self.active = False
        self._wake()
        if state is QueueState.DROPPED:
            self._blocks.clear()
            self._count = self._bytes = 0

    @property
    def dropped(self) -> bool:
        return self.state is QueueState.DROPPED

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake()

    # --- filling and emptying ---------------------------------------------------------------------

    def put(self, messages: Sequence[MessageExt], next_offset: int) -> Sequence[MessageExt]:
        """Take in one pull's messages; returns those that were not there already."""
        self.pull_offset = next_offset
        size, ascending, has_compressed = measure(messages)
        if not messages:
            return messages
        if ascending and (not self._blocks or messages[0].queue_offset > self._blocks[-1].highest):
            self._blocks.append(_Block(messages, has_compressed=has_compressed))
        else:
            messages = self._mix(messages)
            size, _, _ = measure(messages)
        self._count += len(messages)
        self._bytes += size
        return messages

    def _mix(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """Put messages between those that are there: the broker has moved back. Return those that
        were not there already.
        """
        pending = {one.queue_offset: one for block in self._blocks for one in block.unfinished()}
        fresh = {one.queue_offset: one for one in messages if one.queue_offset not in pending}
        pending |= fresh
        if pending:
            self._blocks[:] = [
                _Block([pending[offset] for offset in sorted(pending)], has_compressed=True)
            ]
        return list(fresh.values())

    def ack(self, offsets: Iterable[int]) -> int:
        """Forget finished messages; returns the offset now safe to commit.

        A range may hold offsets without a message.
        """
        if isinstance(offsets, range):
            self._ack_range(offsets.start, offsets.stop)
        else:
            self._ack_list(list(offsets))
        if self._room is not None:
            self._wake()
        return self.safe_offset

    def _ack_range(self, start: int, stop: int) -> None:
        blocks = self._blocks
        at = self._block_at(start)
        while at < len(blocks) and blocks[at].first < stop:
            block = blocks[at]
            at += not self._finish(block, block.index(start), block.index(stop))

    def _ack_list(self, offsets: list[int]) -> None:
        """Messages that are neighbours in their block go together: a filter leaves gaps between
        offsets.
        """
        done = 0
        while done < len(offsets) and self._blocks:
            block = self._blocks[self._block_at(offsets[done])]
            start = stop = block.index(offsets[done])
            end = min(len(block.messages), start + len(offsets) - done)
            while stop < end and block.offsets[stop] == offsets[done]:
                stop += 1
                done += 1
            if stop > start:
                self._finish(block, start, stop)
            else:
                # it is not here
                done += 1

    def _block_at(self, offset: int) -> int:
        """Return the place of the block that would have *offset*."""
        return max(0, bisect_right(self._blocks, offset, key=_first_of) - 1)

    def _finish(self, block: _Block, start: int, stop: int) -> bool:
        """Return True if nothing is left of *block*, which is gone then."""
        finished = block.finish(start, stop)
        size, _, _ = measure(finished)
        self._bytes -= size
        self._count -= len(finished)
        if not block.left:
            self._blocks.remove(block)
        return not block.left

    def replace(self, message: MessageExt) -> bool:
        """Replace the message with the same offset by a changed copy. Return False if it is
        finished already.
        """
        found = self._find(message.queue_offset)
        if found is None:
            return False
        block, index = found
        block.messages[index] = message
        return True

    def head(self, count: int, skip: int = 0) -> list[MessageExt]:
        """Return the lowest *count* unfinished messages behind the first *skip*, in order. Messages
        that no listener gets are left out.
        """
        return list(itertools.islice(self._readable(), skip, skip + count))

    def _readable(self) -> Iterator[MessageExt]:
        for block in self._blocks:
            for message in itertools.islice(block.messages, block.low, None):
                if message is not None and not (block.has_compressed and message.is_compressed):
                    yield message

    # --- looking ----------------------------------------------------------------------------------

    @property
    def safe_offset(self) -> int:
        """Offset to commit: the lowest unfinished one, or the next one to pull if all are
        finished.
        """
        return self._blocks[0].lowest if self._blocks else self.pull_offset

    @property
    def count(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """Bytes of the unfinished bodies."""
        return self._bytes

    @property
    def span(self) -> int:
        """Distance from the lowest to the highest unfinished offset."""
        return self._blocks[-1].highest - self._blocks[0].lowest if self._blocks else 0

    def _find(self, offset: int) -> tuple[_Block, int] | None:
        """Return the place of an unfinished message."""
        if not self._blocks:
            return None
        block = self._blocks[self._block_at(offset)]
        index = block.index(offset)
        if (
            index < block.low
            or index == len(block.messages)
            or block.offsets[index] != offset
            or block.messages[index] is None
        ):
            return None
        return block, index

    def __contains__(self, offset: int) -> bool:
        return self._find(offset) is not None

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
