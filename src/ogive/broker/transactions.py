"""Which transactions are open: half messages in RMQ_SYS_TRANS_HALF_TOPIC without an entry in RMQ_SYS_TRANS_OP_HALF_TOPIC.

Source: TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java, 5.3.

Behaviour
- The two topics and the progress of CID_RMQ_SYS_TRANS in them are all there is: a start reads them from there on. A directory can change
  hands with Apache's broker.
- A commit stores the message under its real topic, and in the same write the entry that marks the half message as done. One that is asked
  about goes to the end of the half topic with its count of checks, and the mark of its old place with it.
- A power cut may keep a mark and lose what was written with it. So such a mark says how far before it that record starts, and a start
  that does not find the record there does not believe the mark.
- A start that finds a committed message without its mark, as a crash of Apache's broker leaves it, adds the mark: a transaction is
  committed once however often it is ended, and whenever the broker dies.

Differs from Java
- A transaction is recognised by its unique key, producer group, topic, time of birth and body, so that a copy of its half message, or
  one that a client sent twice, does not make it two. Java commits each copy that is ended, also twice.
- Java marks after what it marks is stored and answered: 4.9 at once, one transaction a mark; 5.x within 3 s, many in one mark, which 4.9
  cannot read. Ours are single ones, and safe when the end is answered.
"""

import hashlib
import logging
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from ogive.broker.offsets import OffsetTable
from ogive.broker.replies import Rejected
from ogive.errors import ProtocolError, ResponseCode, StoreError
from ogive.model import HALF_TOPIC, MAX_TOPIC_LENGTH, OP_HALF_TOPIC, TRANSACTION_GROUP, PropertyName
from ogive.store.model import NewMessage, PutDone, PutResult
from ogive.store.store import MessageStore
from ogive.wire.codes import Decision, SysFlag
from ogive.wire.message import StoredMessage, decode_properties, decode_stored, encode_properties

log = logging.getLogger(__name__)

_MARK_PROPERTIES: Final = b"TAGS\x01d\x02"
MAX_MARKS_AT_ONCE: Final = 4  # of one transaction, in one write; nearly all have one
_BESIDE_BYTES: Final = 1024  # what is written with a half message's copy or commit is less: its marks, and the count of checks
_LARGE_BYTES: Final = 2048  # a smaller message has room for that in any segment
MAX_SETTLED: Final = 10_000  # outcomes remembered, for whoever asks again
MAX_MARKS: Final = 10_000  # marks whose places are remembered one by one; with more, progress in their topic is coarser
UNMARKED_MS: Final = 10_000  # a commit without its mark is no older, compared with the newest message of its queue: Apache marks every 3 s
MAX_READY_BYTES: Final = 16 * 1024 * 1024  # of half messages in memory; those of other transactions are read from the log
_READ: Final = 256
_QUEUE_DIGITS: Final = 9  # more fit no record
_MAX_IMMUNITY_S: Final = 7 * 24 * 3600
_OBJECT_BYTES: Final = 512  # of a half message in memory beside its bytes, about
_new_message: Final = tuple.__new__  # a third of what the call of a named tuple costs
_NO_TRANSACTION: Final = ~SysFlag.TRANSACTION_MASK
_REAL_PLACE: Final = f"{PropertyName.REAL_TOPIC}\x01%b\x02{PropertyName.REAL_QUEUE_ID}\x01%b\x02".encode()
_BESIDE: Final = (PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE_ID, PropertyName.RECORD_CRC)  # not in what consumers get

Put = Callable[[Sequence[NewMessage], PutDone], None]
Ended = Callable[[StoreError | None], None]
"""Called once the end of a transaction is safe, or could not be stored."""
_Stored = list[PutResult] | StoreError


@dataclass(slots=True, eq=False)
class Transaction:
    """One that is open. *commitlog_offset* and *stored_ms* are those of its newest half message."""

    identity: bytes
    group: str  # of its producers
    commitlog_offset: int
    stored_ms: int
    immunity_ms: int | None  # the age before which it is not asked about, where the producer chose one
    places: list[int]  # offsets in the half topic that carry no mark yet; the newest is the last
    moving: bool = False  # a new half message of it is on its way to the store
    decision: Decision | None = None  # its end is on its way, waits for the move, or only lacks marks
    waiting: list[Ended] = field(default_factory=list)

    @property
    def queue_offset(self) -> int:
        return self.places[-1]


class Transactions:
    """Owned by the event loop. First ``recover``, then ``start``."""

    def __init__(self, store: MessageStore, now_ms: Callable[[], int], max_open: int) -> None:
        self._store, self._now_ms, self._max_open = store, now_ms, max_open
        self._put: Put = store.put
        self._store_host = bytes(8)
        self._open: dict[bytes, Transaction] = {}
        self._places: OrderedDict[int, Transaction] = OrderedDict()  # by offset in the half topic, in its order
        self._half_end = store.max_offset(HALF_TOPIC, 0)
        self._marks: deque[tuple[int, int]] = deque()  # (offset in the op topic + 1, highest half offset marked there or before)
        self._op_progress = store.min_offset(OP_HALF_TOPIC, 0)
        self._settled: OrderedDict[bytes, Decision] = OrderedDict()
        self._unmarked: list[Transaction] = []  # ended, with places that are not marked, and no mark on its way
        self._doubted: set[int] = set()  # places whose mark a start did not believe
        self._stray: list[int] = []  # older places of ended transactions, without their mark
        self._ready: OrderedDict[int, NewMessage] = OrderedDict()  # what commits store, by the place of their half message
        self._ready_bytes = 0

    # --- reading -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._open)

    def get(self, identity: bytes) -> Transaction | None:
        return self._open.get(identity)

    def at(self, place: int, commitlog_offset: int) -> Transaction | None:
        """The one whose newest half message stands at both these offsets, if what a commit stores is in memory and it has no decision."""
        found = self._places.get(place)
        if found is None or found.commitlog_offset != commitlog_offset or found.decision is not None or place not in self._ready:
            return None
        return found if found.queue_offset == place else None

    def outcome(self, identity: bytes) -> Decision | None:
        """How a transaction ended, as far as that is remembered."""
        return self._settled.get(identity)

    def idle(self) -> list[Transaction]:
        """Those that nothing happens to at the moment, the oldest place first."""
        return [found for found in dict.fromkeys(self._places.values()) if not found.moving and found.decision is None]

    def half_message(self, transaction: Transaction) -> StoredMessage:
        """Raises StoreError where the log does not have it any more."""
        half = self.find_half_message(transaction)
        if half is None:
            raise StoreError(f"the log has no half message at {transaction.commitlog_offset} any more")
        return half

    def find_half_message(self, transaction: Transaction) -> StoredMessage | None:
        """None where the log does not have it any more. Raises StoreError where it cannot be read."""
        record = self._store.record_at(transaction.commitlog_offset)
        return decode_stored(record) if record is not None else None

    def needed_from(self) -> int:
        """The commit-log offset of the oldest open transaction: the log must be kept from there on."""
        return min([found.commitlog_offset for found in self._open.values()], default=self._store.stats().commitlog_end)

    # --- progress ----------------------------------------------------------------------------------------------------

    def note_progress(self, offsets: OffsetTable) -> None:
        """Write down from where the next start has to read."""
        half = next(iter(self._places), self._half_end)
        while self._marks and self._marks[0][1] < half:
            self._op_progress = self._marks.popleft()[0]
        if half:
            offsets.note(TRANSACTION_GROUP, HALF_TOPIC, 0, half)
            offsets.note(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, self._op_progress)

    def _note_mark(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        highest = max(half_offsets, default=-1)
        if self._marks:
            highest = max(highest, self._marks[-1][1])
        self._marks.append((op_offset + 1, highest))
        if len(self._marks) > MAX_MARKS:
            self._marks = deque(mark for i, mark in enumerate(self._marks, len(self._marks) % 2) if i % 2)  # the later one of each pair

    # --- opening -----------------------------------------------------------------------------------------------------

    def accept(self, message: NewMessage, properties: Mapping[str, str], done: PutDone) -> PutDone:
        """What to call instead of *done* with the outcome of storing a half message, whose *properties* these are: from then on the
        transaction is open.

        Raises Rejected when too many are, InvalidOption for one whose end would fit no segment.
        """
        if len(self._places) >= self._max_open:
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"{self._max_open} half messages wait for their end already (max_open_transactions)")
        if len(message.body) + len(message.properties) > _LARGE_BYTES:
            self._store.check_fits(message, _BESIDE_BYTES)
        identity = identity_of(message.topic, properties, message.born_timestamp_ms, zlib.crc32(message.body) & 0x7FFFFFFF)
        opened = Transaction(identity, properties.get(PropertyName.PRODUCER_GROUP, ""), -1, -1, _immunity_ms(properties), [])
        return partial(self._accepted, opened, _for_consumers(message, properties), done)

    def _accepted(self, opened: Transaction, ready: NewMessage, done: PutDone, result: list[PutResult] | StoreError) -> None:
        if not isinstance(result, StoreError):
            stored = result[0]
            self._half_end = stored.queue_offset + 1
            known = self._open.get(opened.identity)
            if known is not None:
                self._add_place(known, stored)  # a second try of the same message: still one transaction
            else:
                self._add_place(opened, stored)
                self._open[opened.identity] = opened
                opened.decision = self._settled.get(opened.identity)
                if opened.decision is not None:
                    self._mark_later(opened)
            self._keep(stored.queue_offset, _new_message(NewMessage, (*ready[:-1], stored.commitlog_offset)))  # prepared_transaction_offset
        done(result)

    def _add_place(self, transaction: Transaction, stored: PutResult) -> None:
        transaction.places.append(stored.queue_offset)
        transaction.commitlog_offset, transaction.stored_ms = stored.commitlog_offset, stored.store_timestamp_ms
        self._places[stored.queue_offset] = transaction

    def _keep(self, place: int, ready: NewMessage) -> None:
        self._ready[place] = ready
        self._ready_bytes += _memory(ready)
        while self._ready_bytes > MAX_READY_BYTES:
            self._ready_bytes -= _memory(self._ready.popitem(last=False)[1])

    def _unplace(self, transaction: Transaction, places: Sequence[int], stored: Sequence[PutResult]) -> None:
        """They are marked; the marks are the last of *stored*."""
        self._note_mark(stored[-1].queue_offset, places)
        for place in places:
            del self._places[place]
            transaction.places.remove(place)
            ready = self._ready.pop(place, None)
            if ready is not None:
                self._ready_bytes -= _memory(ready)

    # --- ending ------------------------------------------------------------------------------------------------------

    def end(self, transaction: Transaction, decision: Decision, ended: Ended | None) -> None:
        """Commit or roll back. Raises Rejected if it is being ended the other way at this moment, StoreError."""
        if transaction.decision not in (None, decision):
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, "the transaction is being ended the other way already")
        if transaction.decision is None and not transaction.moving:
            self._end(transaction, decision)
        transaction.decision = decision
        if ended is not None:
            transaction.waiting.append(ended)

    def drop(self, transaction: Transaction, message: NewMessage | None) -> None:
        """Give up; *message* is a copy for whoever looks into the matter. Raises StoreError."""
        self._put_marked(transaction, message, self._ended)
        transaction.decision = Decision.ROLLBACK

    def _end(self, transaction: Transaction, decision: Decision) -> None:
        """Raises StoreError; then the transaction stays as it is."""
        message = None
        if decision is Decision.COMMIT:
            message = self._ready.get(transaction.queue_offset)
            if message is None:
                message = committed(self.half_message(transaction), self._store_host)
        self._put_marked(transaction, message, self._ended)
        transaction.decision = decision

    def _put_marked(
        self, transaction: Transaction, message: NewMessage | None, done: Callable[[Transaction, Sequence[int], _Stored], None]
    ) -> None:
        """Store *message* and the marks of the newest places: in one write, all or none. Raises StoreError."""
        places = transaction.places[: -MAX_MARKS_AT_ONCE - 1 : -1]  # the newest first: it alone decides
        newest, *older = places
        marks = [self._mark(place) for place in older]
        if message is None:
            self._put((self._mark(newest), *marks), partial(done, transaction, places))
        else:
            self._put((message, self._mark(newest, self._store.size_of(message)), *marks), partial(done, transaction, places))

    def _mark(self, place: int, behind_bytes: int = 0) -> NewMessage:
        """*behind_bytes* is the size of the record right before it, without which it does not count."""
        host = self._store_host
        return NewMessage(OP_HALF_TOPIC, 0, b"%d" % place, _MARK_PROPERTIES, 0, behind_bytes, self._now_ms(), host, host)

    def _ended(self, transaction: Transaction, places: Sequence[int], result: _Stored) -> None:
        if isinstance(result, StoreError):
            self._failed(transaction, result)
        else:
            self._leave_places(transaction, places, result)

    def _leave_places(self, transaction: Transaction, places: Sequence[int], result: Sequence[PutResult]) -> None:
        """They are marked, and the transaction has ended."""
        self._unplace(transaction, places, result)
        self._answer(transaction, None)
        if transaction.places:  # of copies of its half message that came meanwhile, or of very many
            self._mark_later(transaction)
        else:
            del self._open[transaction.identity]

    def _mark_later(self, transaction: Transaction) -> None:
        self._unmarked.append(transaction)
        try:
            self.write_marks()
        except StoreError as exc:
            log.warning("%d ended transactions are marked later: %s", len(self._unmarked), exc)

    def write_marks(self) -> None:
        """Mark the places of transactions that have ended before. Raises StoreError; the next call goes on."""
        while self._unmarked:
            self._put_marked(self._unmarked[-1], None, self._marked)
            self._unmarked.pop()

    def _marked(self, transaction: Transaction, places: Sequence[int], result: _Stored) -> None:
        if isinstance(result, StoreError):
            log.warning("an ended transaction is marked later: %s", result)
            self._unmarked.append(transaction)
        else:
            self._leave_places(transaction, places, result)

    def _failed(self, transaction: Transaction, error: StoreError) -> None:
        transaction.decision = None
        log.warning("a transaction could not be ended, its producer will be asked again: %s", error)
        self._answer(transaction, error)

    def _answer(self, transaction: Transaction, error: StoreError | None) -> None:
        if error is None and transaction.decision is not None:
            self._settled.setdefault(transaction.identity, transaction.decision)
            if len(self._settled) > MAX_SETTLED:
                self._settled.popitem(last=False)
        waiting, transaction.waiting = transaction.waiting, []
        for ended in waiting:
            ended(error)

    # --- asking ------------------------------------------------------------------------------------------------------

    def move(self, transaction: Transaction, message: NewMessage, moved: Ended) -> None:
        """Store *message*, its new half message, and mark the old place. Raises StoreError."""
        self._put_marked(transaction, message, partial(self._moved, moved))
        transaction.moving = True

    def _moved(self, moved: Ended, transaction: Transaction, places: Sequence[int], result: _Stored) -> None:
        transaction.moving = False
        if not isinstance(result, StoreError):
            self._half_end = result[0].queue_offset + 1
            self._add_place(transaction, result[0])
            self._unplace(transaction, places, result)
        if transaction.decision is not None:  # came meanwhile
            try:
                self._end(transaction, transaction.decision)
            except StoreError as exc:
                self._failed(transaction, exc)
        moved(result if isinstance(result, StoreError) else None)

    # --- starting ----------------------------------------------------------------------------------------------------

    def recover(self, offsets: OffsetTable) -> None:
        """Read the two topics from the group's progress on. Blocking. Raises StoreError."""
        marked = self._read_marks(offsets)
        newest: dict[bytes, Transaction] = {}
        first = max(offsets.get(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0, self._store.min_offset(HALF_TOPIC, 0))
        for place, stored in self._records(HALF_TOPIC, 0, first):
            found = _transaction(place, stored)
            if found is None:
                log.warning("the half message at %d does not say where it belongs: it is passed over", stored.commitlog_offset)
                continue
            older = newest.pop(found.identity, None)
            if older is not None:
                found.places = older.places + found.places
            newest[found.identity] = found
        for found in newest.values():
            unmarked = [place for place in found.places if place not in marked]
            if found.queue_offset in marked:  # the newest place decides
                self._stray += unmarked
            else:
                found.places = unmarked
                self._open[found.identity] = found
        self._places.update(sorted((place, found) for found in self._open.values() for place in found.places))
        self._find_unmarked()
        self.note_progress(offsets)
        if self._open:
            log.info("%d transactions are open", len(self._open))

    def start(self, put: Put, store_host: bytes) -> None:
        """Put right what a crash left behind: commits without their mark, and marks without their commit.

        *put* stores messages, all or none, and calls back in the order of their offsets.
        """
        self._put, self._store_host = put, store_host
        for transaction in list(self._open.values()):
            if transaction.decision is Decision.COMMIT:
                self._answer(transaction, None)
                self._mark_later(transaction)
            elif transaction.queue_offset in self._doubted:
                self._move_away(transaction)
        try:
            for place in self._stray:
                self._put((self._mark(place),), _marked_at_last)
        except StoreError as exc:
            log.warning("copies of half messages stay without their marks: %s", exc)
        self._doubted.clear()
        self._stray.clear()

    def _move_away(self, transaction: Transaction) -> None:
        """From a place whose mark does not count: Apache's broker would believe it."""
        try:
            self.move(transaction, _message_of(self.half_message(transaction), self._store_host), lambda _: None)
        except StoreError as exc:
            log.warning("a transaction stays where a mark without its commit speaks of it: %s", exc)

    def _read_marks(self, offsets: OffsetTable) -> set[int]:
        marked: set[int] = set()
        self._op_progress = max(offsets.get(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) or 0, self._store.min_offset(OP_HALF_TOPIC, 0))
        for at, stored in self._records(OP_HALF_TOPIC, 0, self._op_progress):
            places = {int(word) for word in stored.body.split(b",") if word.isdigit()}  # many in one: Apache's since 5.0
            if self._counts(stored):
                marked |= places
            else:
                log.warning("the mark at %d does not count: what was written with it is gone", stored.commitlog_offset)
                self._doubted |= places
            self._note_mark(at, places)
        return marked

    def _counts(self, mark: StoredMessage) -> bool:
        """Whether the record that *mark* was written with is there."""
        if mark.flag <= 0:
            return True
        return self._store.record_at(mark.commitlog_offset - mark.flag) is not None

    def _records(self, topic: str, queue_id: int, offset: int) -> Iterator[tuple[int, StoredMessage]]:
        """(queue offset, record) from *offset* to the queue's end; offsets without a record are passed over."""
        end = self._store.max_offset(topic, queue_id)
        while offset < end:
            entries = self._store.entries(topic, queue_id, offset, _READ)
            if not entries:
                return
            for at, entry in enumerate(entries, offset):
                record = self._store.record_at(entry.commitlog_offset)
                stored = decode_stored(record) if record is not None else None
                if stored is not None and (stored.topic, stored.queue_offset) == (topic, at):
                    yield at, stored
            offset += len(entries)

    def _find_unmarked(self) -> None:
        """Note the decision where a crash came between a commit and its mark."""
        queues: dict[tuple[str, int], None] = {}
        for transaction in self._open.values():
            queues[_real_place(self.half_message(transaction))] = None
        for topic, queue_id in queues:  # the commit is under its real topic, near the end of what the broker wrote
            end = self._store.max_offset(topic, queue_id)
            newest_ms = self._store.store_time(topic, queue_id, end - 1)
            first = self._store.offset_by_time(topic, queue_id, newest_ms - UNMARKED_MS)
            for _, stored in self._records(topic, queue_id, first):
                if stored.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
                    found = self._open.get(identity_of_record(stored))
                    if found is not None:
                        log.warning("the transaction of the message at %d was committed: its mark is added", stored.commitlog_offset)
                        found.decision = Decision.COMMIT


def _marked_at_last(result: _Stored) -> None:
    if isinstance(result, StoreError):
        log.warning("a copy of a half message stays without its mark: %s", result)


# --- the messages ----------------------------------------------------------------------------------------------------


def redirect_half(properties: dict[str, str], topic: str, queue_id: int) -> tuple[str, int]:
    """Where a message with TRAN_MSG=true is stored; adds what leads back. Raises Rejected for one that no commit could deliver."""
    if not properties.get(PropertyName.PRODUCER_GROUP):
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "a transactional message needs the property PGROUP: nobody could end it")
    if PropertyName.DELAY in properties or "TIMER_" in "".join(properties):
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "a message is either transactional or delayed, not both")
    for name in (PropertyName.TRANSACTION_CHECKS, PropertyName.TRANSACTION_FIRST_OFFSET):
        properties.pop(name, None)
    properties |= {
        PropertyName.TRANSACTION_ID: properties[PropertyName.UNIQ_KEY],
        PropertyName.REAL_TOPIC: topic,
        PropertyName.REAL_QUEUE_ID: str(queue_id),
    }
    return HALF_TOPIC, 0


def identity_of(topic: str, properties: Mapping[str, str], born_ms: int, body_crc: int) -> bytes:
    """16 bytes that copies of one half message, and the message that it becomes, have in common."""
    real_topic = properties.get(PropertyName.REAL_TOPIC, topic)  # a committed message has only its own
    key, group = properties.get(PropertyName.UNIQ_KEY, ""), properties.get(PropertyName.PRODUCER_GROUP, "")
    return hashlib.blake2b(f"{real_topic}\x02{key}\x02{group}\x02{born_ms}\x02{body_crc}".encode(), digest_size=16).digest()


def identity_of_record(stored: StoredMessage) -> bytes:
    return identity_of(stored.topic, decode_properties(stored.properties), stored.born_timestamp_ms, stored.body_crc)


def committed(half: StoredMessage, store_host: bytes) -> NewMessage:
    """The message that consumers get. It keeps TRAN_MSG and __transactionId__, as in Java, whose clients look at them."""
    message = _message_of(half, store_host)._replace(prepared_transaction_offset=half.commitlog_offset)
    return _for_consumers(message, decode_properties(half.properties))


def _message_of(half: StoredMessage, store_host: bytes) -> NewMessage:
    """To store it again as it is."""
    return NewMessage(
        half.topic, half.queue_id, half.body, half.properties, half.sys_flag, half.flag, half.born_timestamp_ms, half.born_host, store_host,
        half.reconsume_times,
    )  # fmt: skip


def _for_consumers(half: NewMessage, properties: Mapping[str, str]) -> NewMessage:
    """*half* as it is committed; *properties* are those that its client sent, and what redirect_half() added."""
    topic, queue = properties[PropertyName.REAL_TOPIC], properties[PropertyName.REAL_QUEUE_ID]
    before, found, behind = half.properties.partition(_REAL_PLACE % (topic.encode(), queue.encode()))
    if found and before.endswith(b"\x02") and PropertyName.RECORD_CRC not in properties:  # as redirect_half() leaves them
        text = before + behind
    else:
        own = decode_properties(half.properties)
        text = encode_properties({name: value for name, value in own.items() if name not in _BESIDE})
    sys_flag = half.sys_flag & _NO_TRANSACTION | SysFlag.TRANSACTION_COMMIT
    return NewMessage(topic, int(queue), half.body, text, sys_flag, *half[5:])


def _memory(ready: NewMessage) -> int:
    return _OBJECT_BYTES + len(ready.body) + len(ready.properties)


def _real_place(half: StoredMessage) -> tuple[str, int]:
    properties = decode_properties(half.properties)
    return properties[PropertyName.REAL_TOPIC], int(properties[PropertyName.REAL_QUEUE_ID])


def _transaction(place: int, stored: StoredMessage) -> Transaction | None:
    """The transaction of a half message; None if the message could never be delivered, or nobody could end it."""
    try:
        properties = decode_properties(stored.properties)
    except ProtocolError:
        return None
    topic, queue = properties.get(PropertyName.REAL_TOPIC, ""), properties.get(PropertyName.REAL_QUEUE_ID, "")
    if not 0 < len(topic) <= MAX_TOPIC_LENGTH or not queue.isdecimal() or len(queue) > _QUEUE_DIGITS:
        return None
    if PropertyName.PRODUCER_GROUP not in properties:
        return None
    identity = identity_of(stored.topic, properties, stored.born_timestamp_ms, stored.body_crc)
    group = properties[PropertyName.PRODUCER_GROUP]
    return Transaction(identity, group, stored.commitlog_offset, stored.store_timestamp_ms, _immunity_ms(properties), [place])


def _immunity_ms(properties: Mapping[str, str]) -> int | None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS, which counts until the first check; None where there is none that makes sense."""
    text = properties.get(PropertyName.TRANSACTION_IMMUNITY, "")
    if PropertyName.TRANSACTION_CHECKS in properties or not text.isdecimal() or len(text) > _QUEUE_DIGITS:
        return None
    return min(int(text), _MAX_IMMUNITY_S) * 1000
