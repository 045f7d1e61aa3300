"""The state of open transactions, with a limit for each part.

See transaction_table.py for its use.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ogive.broker.deferred.waiting import Served
from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.transactions.half_messages import (
    find_half_message,
    identity_of,
    identity_of_record,
    immunity_ms,
)
from ogive.errors import StoreError
from ogive.model import HALF_TOPIC, OP_HALF_TOPIC, TRANSACTION_GROUP, PropertyName
from ogive.store.message_store import MessageStore
from ogive.store.types import NewMessage
from ogive.wire.codes import Decision, SysFlag
from ogive.wire.message import StoredMessage, decode_properties, decode_stored, real_place

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


# --- recovery -------------------------------------------------------------------------------------
# Finds the open transactions at the start: half messages without a mark, from the saved position
# on.
#
# A power cut may keep a mark and lose the record that was written with it. So a mark says how far
# before it that record starts, and does not count if the record is missing. A crash of Apache's
# broker may leave a committed message without its mark: then the transaction counts as committed,
# and the mark is added.

log = logging.getLogger(__name__)

# a commit without its mark is no older, compared with the newest message of its queue: Apache marks
# every 3 s
UNMARKED_MS: Final = 10_000
_READ: Final = 256


@dataclass(frozen=True, slots=True)
class Found:
    """*open*: those with a decision only lack their marks."""

    open: dict[bytes, OpenTransaction]
    # older places of ended transactions, without their mark
    stray: list[int]
    # places whose mark does not count
    doubted: set[int]
    marks: MarkProgress


def find_transactions(store: MessageStore, offsets: OffsetTable, served: Served) -> Found:
    """Find the open transactions. Blocking. Raises StoreError."""
    first = max(
        offsets.get(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) or 0, store.min_offset(OP_HALF_TOPIC, 0)
    )
    found = Found({}, [], set(), MarkProgress(first))
    marked = _read_marks(store, first, found)
    newest: dict[bytes, OpenTransaction] = {}
    first = max(offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0, store.min_offset(HALF_TOPIC, 0))
    for place, stored in _records(store, HALF_TOPIC, 0, first):
        transaction = _transaction(place, stored)
        if transaction is None:
            log.warning(
                "skipped the half message at offset %d, which names no topic and queue",
                stored.commitlog_offset,
            )
            continue
        older = newest.pop(transaction.identity, None)
        if older is not None:
            transaction.places = older.places + transaction.places
        newest[transaction.identity] = transaction
    for transaction in newest.values():
        unmarked = [place for place in transaction.places if place not in marked]
        # the newest place decides
        if transaction.queue_offset in marked:
            found.stray.extend(unmarked)
        else:
            transaction.places = unmarked
            found.open[transaction.identity] = transaction
    _note_committed(store, found.open, served)
    return found


def _read_marks(store: MessageStore, first: int, found: Found) -> set[int]:
    """Return the marked places; other data of the marks is added to *found*."""
    marked: set[int] = set()
    for at, mark in _records(store, OP_HALF_TOPIC, 0, first):
        # many in one: Apache's since 5.0
        places = {int(word) for word in mark.body.split(b",") if word.isdigit()}
        if _counts(store, mark):
            marked |= places
        else:
            log.warning(
                "ignored the end of a transaction at offset %d: the message that was written with "
                "it is gone",
                mark.commitlog_offset,
            )
            found.doubted.update(places)
        found.marks.add(at, places)
    return marked


def _counts(store: MessageStore, mark: StoredMessage) -> bool:
    """Return True if the record that was written with *mark* exists."""
    if mark.flag <= 0:
        return True
    return store.record_at(mark.commitlog_offset - mark.flag) is not None


def _note_committed(
    store: MessageStore, opened: dict[bytes, OpenTransaction], served: Served
) -> None:
    """Set the decision if a crash came between a commit and its mark."""
    sent_to = _real_places(store, opened.values())
    now = [(topic, served(topic, queue_id)) for topic, queue_id in sent_to]
    # the topic was gone when they were committed, and may be there again
    while_away = [(topic, 0) for topic, _ in sent_to]
    # commits are under their real topic, near the end of the log
    for topic, queue_id in dict.fromkeys([*sent_to, *now, *while_away]):
        end = store.max_offset(topic, queue_id)
        newest_ms = store.store_time(topic, queue_id, end - 1)
        first = store.offset_by_time(topic, queue_id, newest_ms - UNMARKED_MS)
        for _, stored in _records(store, topic, queue_id, first):
            if stored.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
                transaction = opened.get(identity_of_record(stored))
                if transaction is not None:
                    log.warning(
                        "the transaction of the message at offset %d was committed before the "
                        "crash: its end is recorded now",
                        stored.commitlog_offset,
                    )
                    transaction.decision = Decision.COMMIT


def _real_places(
    store: MessageStore, transactions: Iterable[OpenTransaction]
) -> dict[tuple[str, int], None]:
    halves = [
        find_half_message(store, transaction.commitlog_offset) for transaction in transactions
    ]
    # None: unreadable since
    places = [real_place(decode_properties(half.properties)) for half in halves if half is not None]
    return dict.fromkeys(place for place in places if place is not None)


def _records(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> Iterator[tuple[int, StoredMessage]]:
    """Yield (queue offset, record) from *offset* to the queue's end; offsets without a record are
    skipped.
    """
    end = store.max_offset(topic, queue_id)
    while offset < end:
        entries = store.entries(topic, queue_id, offset, _READ)
        if not entries:
            return
        for at, entry in enumerate(entries, offset):
            record = store.record_at(entry.commitlog_offset)
            stored = decode_stored(record) if record is not None else None
            if stored is not None and (stored.topic, stored.queue_offset) == (topic, at):
                yield at, stored
        offset += len(entries)


def _transaction(place: int, stored: StoredMessage) -> OpenTransaction | None:
    """Return the transaction of a half message; None if it could never be delivered or ended."""
    properties = decode_properties(stored.properties)
    place_of = real_place(properties)
    if place_of is None or PropertyName.PRODUCER_GROUP not in properties:
        return None
    identity = identity_of(stored.topic, properties, stored.born_timestamp_ms, stored.body_crc)
    group = properties[PropertyName.PRODUCER_GROUP]
    immunity, log_offset = immunity_ms(properties), stored.commitlog_offset
    found = OpenTransaction(
        identity, place_of[0], group, log_offset, stored.store_timestamp_ms, immunity, [place]
    )
    found.checked = PropertyName.TRANSACTION_CHECKS in properties
    return found
