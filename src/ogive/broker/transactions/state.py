"""The state of open transactions, with a limit for each part.

See transaction_table.py for its use.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ogive.errors import StoreError
from ogive.store.types import NewMessage
from ogive.wire.codes import Decision

# marks whose places are remembered one by one; with more, progress in their topic is coarser
MAX_MARKS: Final = 10_000
# of half messages in memory; those of other transactions are read from the log
MAX_READY_BYTES: Final = 16 * 1024 * 1024
# of a half message in memory beside its bytes, about
_OBJECT_BYTES: Final = 512

Ended = Callable[[StoreError | None], None]
"""Called when the end of a transaction is safe, or could not be stored."""


@dataclass(slots=True, eq=False)
class OpenTransaction:
    """An open transaction. *commitlog_offset* and *stored_ms* are those of its newest half
    message.
    """

    identity: bytes
    topic: str
    # of its producers
    group: str
    commitlog_offset: int
    stored_ms: int
    # the age before which it is not asked about, where the producer chose one
    immunity_ms: int | None
    # offsets in the half topic that carry no mark yet; the newest is the last
    places: list[int]
    # a new half message of it is being stored
    moving: bool = False
    # its end is being stored, waits for the move, or only lacks marks
    decision: Decision | None = None
    waiting: list[Ended] = field(default_factory=list)
    # 0: before this start
    opened_ms: int = 0
    # a producer was, and has not answered yet
    asked: bool = False
    checked: bool = False
    """Set at the first check, also of an earlier run: from then on it is checked in each round."""
    # by the loop's clock; None unless the last look found nobody to be asked
    alone_since_s: float | None = None

    @property
    def queue_offset(self) -> int:
        return self.places[-1]


class Step(NamedTuple):
    """A half message, or the end of a transaction, that is stored together with others."""

    transaction: OpenTransaction
    ready: NewMessage | None
    """The message for consumers of a half message; None for an end."""
    place: int
    """Offset of the half message of an end."""
    messages: list[NewMessage]
    """The messages that are stored."""


class MarkProgress:
    """The offset from which on the next start has to read the op topic: it needs the marks of the
    half messages that it reads again.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        # (offset in the op topic + 1, highest half offset marked there or before)
        self._marks: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        """Add the mark at *op_offset* for these half messages."""
        highest = max(half_offsets, default=-1)
        if self._marks:
            highest = max(highest, self._marks[-1][1])
        self._marks.append((op_offset + 1, highest))
        if len(self._marks) > MAX_MARKS:
            # the later one of each pair
            self._marks = deque(
                mark for i, mark in enumerate(self._marks, len(self._marks) % 2) if i % 2
            )

    def first_needed(self, half_offset: int) -> int:
        """Return the first mark that a start needs if it reads half messages from *half_offset*
        on.
        """
        while self._marks and self._marks[0][1] < half_offset:
            self._first = self._marks.popleft()[0]
        return self._first


class ReadyMessages:
    """Messages that commits store, by the place of their half message; above MAX_READY_BYTES the
    oldest are dropped.
    """

    def __init__(self) -> None:
        self._ready: OrderedDict[int, NewMessage] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, place: int) -> bool:
        return place in self._ready

    def get(self, place: int) -> NewMessage | None:
        return self._ready.get(place)

    def keep(self, place: int, ready: NewMessage) -> None:
        self._ready[place] = ready
        self.size_bytes += _memory(ready)
        while self.size_bytes > MAX_READY_BYTES:
            self.size_bytes -= _memory(self._ready.popitem(last=False)[1])

    def drop(self, place: int) -> None:
        ready = self._ready.pop(place, None)
        if ready is not None:
            self.size_bytes -= _memory(ready)


def _memory(ready: NewMessage) -> int:
    return _OBJECT_BYTES + len(ready.body) + len(ready.properties)
