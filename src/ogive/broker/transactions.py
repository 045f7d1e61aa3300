"""Which transactions are open: half messages in RMQ_SYS_TRANS_HALF_TOPIC without an entry in RMQ_SYS_TRANS_OP_HALF_TOPIC.

Source: TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java, 5.3.

Behaviour
- The two topics and the progress of CID_RMQ_SYS_TRANS in them are all there is: a start reads them from there on. A directory can change
  hands with Apache's broker.
- A commit stores the message under its real topic; when that is safe, an entry marks the half message as done. A start that finds the
  message without its mark adds the mark: a transaction is committed once however often it is ended, and whenever the broker dies.
- A transaction that is asked about goes to the end of the half topic with its count of checks; when that is safe, the old place is marked.

Differs from Java
- A transaction is recognised by its unique key, producer group, topic, time of birth and body, so that a copy of its half message, or
  one that a client sent twice, does not make it two. Java commits each copy that is ended, also twice.
- Commits are marked together after MARK_AFTER_S, Java's after 3 s; a rollback is answered when its mark is safe, in Java before.

What it costs
- One mark for many: a record less for each transaction, and every second write and sync with few producers.
- What a commit stores is made from the half message when that comes, and kept in memory up to MAX_READY_BYTES. Each end read the half
  message twice from the log, checked it and took it apart. Both together: 219 us of CPU before, 114 after.
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
MAX_SETTLED: Final = 10_000  # outcomes remembered, for whoever asks again
MAX_MARKS: Final = 10_000  # marks whose places are remembered one by one; with more, progress in their topic is coarser
UNMARKED_MS: Final = 10_000  # a commit without its mark is no older, compared with the newest message of its queue: Apache marks every 3 s
MARK_AFTER_S: Final = 0.1  # commits that are marked together
MARK_AGAIN_S: Final = 5.0  # after marks could not be stored
MAX_MARK_BYTES: Final = 4096  # transactionOpMsgMaxSize: offsets of one mark, and what is collected before MARK_AFTER_S has passed
MAX_READY_BYTES: Final = 16 * 1024 * 1024  # of half messages in memory; those of other transactions are read from the log
_READ: Final = 256
_QUEUE_DIGITS: Final = 9  # more fit no record
_MAX_IMMUNITY_S: Final = 7 * 24 * 3600
_OBJECT_BYTES: Final = 512  # of a half message in memory beside its bytes, about
_NO_TRANSACTION: Final = ~SysFlag.TRANSACTION_MASK
_REAL_PLACE: Final = f"{PropertyName.REAL_TOPIC}\x01%b\x02{PropertyName.REAL_QUEUE_ID}\x01%b\x02".encode()
_BESIDE: Final = (PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE_ID, PropertyName.RECORD_CRC)  # not in what consumers get

Put = Callable[[Sequence[NewMessage], PutDone], None]
Ended = Callable[[StoreError | None], None]
"""Called once the end of a transaction is safe, or could not be stored."""
Later = Callable[[float, Callable[[], None]], object]
"""Calls something after so many seconds."""


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
    decision: Decision | None = None  # its end is on its way, or waits for the move
    settled: bool = False  # it has ended, only marks are missing
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
        self._unmarked: list[Transaction] = []  # settled, and no mark of theirs is on its way
        self._unmarked_bytes = 0
        self._mark_due = False  # `later` is going to call
        self._later: Later = lambda _seconds, _call: None
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

    def _note_marks(self, marks: Iterable[PutResult], places: Sequence[int]) -> None:
        for mark in marks:
            self._note_mark(mark.queue_offset, places)

    def _note_mark(self, op_offset: int, half_offsets: Iterable[int]) -> None:
        highest = max(half_offsets, default=-1)
        if self._marks:
            highest = max(highest, self._marks[-1][1])
        self._marks.append((op_offset + 1, highest))
        if len(self._marks) > MAX_MARKS:
            self._marks = deque(mark for i, mark in enumerate(self._marks, len(self._marks) % 2) if i % 2)  # the later one of each pair

    # --- opening -----------------------------------------------------------------------------------------------------

    def accept(self, message: NewMessage, done: PutDone) -> PutDone:
        """What to call instead of *done* with the outcome of storing a half message: from then on the transaction is open.

        Raises Rejected when too many are.
        """
        if len(self._places) >= self._max_open:
            raise Rejected(ResponseCode.SYSTEM_BUSY, f"{self._max_open} half messages wait for their end already (max_open_transactions)")
        properties = decode_properties(message.properties)
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
                    self._settle(opened)
            self._keep(stored.queue_offset, NewMessage(*ready[:-1], prepared_transaction_offset=stored.commitlog_offset))
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

    def _leave_places(self, transaction: Transaction, places: Iterable[int]) -> None:
        """They are marked."""
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
        if message is None:
            self.write_marks(transaction)
        else:
            self._put([message], partial(self._delivered, transaction))
        transaction.decision = Decision.ROLLBACK

    def write_marks(self, also: Transaction | None = None) -> None:
        """Mark what has ended since the last time, and *also* what ends with its mark. Raises StoreError; then nothing has changed."""
        ended = self._unmarked if also is None else [*self._unmarked, also]
        if ended:
            marked = [(transaction, list(transaction.places)) for transaction in ended]
            self._put(self._mark_messages([place for _, places in marked for place in places]), partial(self._marked, marked))
            self._unmarked, self._unmarked_bytes = [], 0

    def _end(self, transaction: Transaction, decision: Decision) -> None:
        """Raises StoreError; then the transaction stays as it is."""
        if decision is Decision.COMMIT:
            ready = self._ready.get(transaction.queue_offset)
            if ready is None:
                ready = committed(self.half_message(transaction), self._store_host)
            self._put([ready], partial(self._delivered, transaction))
        else:
            self.write_marks(transaction)
        transaction.decision = decision

    def _delivered(self, transaction: Transaction, result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError):
            self._failed(transaction, result)
        else:
            self._settle(transaction)

    def _settle(self, transaction: Transaction) -> None:
        """Only the marks are missing."""
        transaction.settled = True
        self._answer(transaction, None)
        self._mark_soon(transaction)

    def _mark_soon(self, transaction: Transaction) -> None:
        self._unmarked.append(transaction)
        self._unmarked_bytes += len(str(transaction.queue_offset)) + 1
        if self._unmarked_bytes > MAX_MARK_BYTES:
            self._mark_now()
        elif not self._mark_due:
            self._mark_due = True
            self._later(MARK_AFTER_S, self._mark_in_time)

    def _mark_in_time(self) -> None:
        self._mark_due = False
        self._mark_now()

    def _mark_now(self) -> None:
        try:
            self.write_marks()
        except StoreError as exc:
            self._mark_again(exc)

    def _mark_again(self, error: StoreError) -> None:
        log.warning("%d ended transactions are marked later: %s", len(self._unmarked), error)
        self._unmarked_bytes = 0
        if not self._mark_due:
            self._mark_due = True
            self._later(MARK_AGAIN_S, self._mark_in_time)

    def _marked(self, marked: Sequence[tuple[Transaction, list[int]]], result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError):
            self._unmarked += [transaction for transaction, _ in marked if transaction.settled]
            for transaction, _ in marked:
                if not transaction.settled:
                    self._failed(transaction, result)
            if self._unmarked:
                self._mark_again(result)
            return
        self._note_marks(result, [place for _, places in marked for place in places])
        for transaction, places in marked:
            self._leave_places(transaction, places)
            transaction.settled = True
            if transaction.places:  # sent once more meanwhile
                self._mark_soon(transaction)
            else:
                del self._open[transaction.identity]
                self._answer(transaction, None)

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

    def _mark_messages(self, places: Sequence[int]) -> list[NewMessage]:
        """Many places in one body, as Apache's brokers write them since 5.0; they read one without a comma as 4.9 wrote it."""
        bodies, size = list[list[bytes]]([[]]), 0
        for place in places:
            text = b"%d" % place
            size += len(text) + 1
            if size > MAX_MARK_BYTES:
                bodies.append([])
                size = len(text) + 1
            bodies[-1].append(text)
        now, host = self._now_ms(), self._store_host
        return [NewMessage(OP_HALF_TOPIC, 0, b",".join(body), _MARK_PROPERTIES, 0, 0, now, host, host) for body in bodies]

    # --- asking ------------------------------------------------------------------------------------------------------

    def move(self, transaction: Transaction, message: NewMessage, moved: Ended) -> None:
        """Store *message*, its new half message, then mark the old places. Raises StoreError."""
        self._put([message], partial(self._copied, transaction, list(transaction.places), moved))
        transaction.moving = True

    def _copied(self, transaction: Transaction, old: list[int], moved: Ended, result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError):
            self._moved(transaction, result, moved)
            return
        self._half_end = result[0].queue_offset + 1
        self._add_place(transaction, result[0])
        try:
            self._put(self._mark_messages(old), partial(self._left, transaction, old, moved))
        except StoreError as exc:
            self._left(transaction, old, moved, exc)

    def _left(self, transaction: Transaction, old: list[int], moved: Ended, result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError):
            log.warning("an old half message is marked together with its copy: %s", result)
        else:
            self._note_marks(result, old)
            self._leave_places(transaction, old)
        self._moved(transaction, None, moved)

    def _moved(self, transaction: Transaction, error: StoreError | None, moved: Ended) -> None:
        transaction.moving = False
        if transaction.decision is not None:  # came meanwhile
            try:
                self._end(transaction, transaction.decision)
            except StoreError as exc:
                self._failed(transaction, exc)
        moved(error)

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
            if found.queue_offset not in marked:  # the newest place decides: older ones are marked when a new one is made
                found.places = [place for place in found.places if place not in marked]
                self._open[found.identity] = found
        self._places.update(sorted((place, found) for found in self._open.values() for place in found.places))
        self._find_unmarked()
        self.note_progress(offsets)
        if self._open:
            log.info("%d transactions are open", len(self._open))

    def start(self, put: Put, store_host: bytes, later: Later) -> None:
        """Mark those whose commit a crash left without its mark.

        *put* stores messages, all or none, and calls back in the order of their offsets; *later* calls on the same thread.
        """
        self._put, self._store_host, self._later = put, store_host, later
        for transaction in list(self._open.values()):
            if transaction.decision is Decision.COMMIT:
                self._settle(transaction)

    def _read_marks(self, offsets: OffsetTable) -> set[int]:
        marked: set[int] = set()
        self._op_progress = max(offsets.get(TRANSACTION_GROUP, OP_HALF_TOPIC, 0) or 0, self._store.min_offset(OP_HALF_TOPIC, 0))
        for at, stored in self._records(OP_HALF_TOPIC, 0, self._op_progress):
            places = {int(word) for word in stored.body.split(b",") if word.isdigit()}
            marked |= places
            self._note_mark(at, places)
        return marked

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


# --- the messages ----------------------------------------------------------------------------------------------------


def redirect_half(properties: dict[str, str], topic: str, queue_id: int) -> tuple[str, int]:
    """Where a message with TRAN_MSG=true is stored; adds what leads back. Raises Rejected for one that no commit could deliver."""
    if not properties.get(PropertyName.PRODUCER_GROUP):
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "a transactional message needs the property PGROUP: nobody could end it")
    if PropertyName.DELAY in properties or any(name.startswith("TIMER_") for name in properties):
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
    message = NewMessage(
        half.topic, half.queue_id, half.body, half.properties, half.sys_flag, half.flag, half.born_timestamp_ms, half.born_host, store_host,
        half.reconsume_times, half.commitlog_offset,
    )  # fmt: skip
    return _for_consumers(message, decode_properties(half.properties))


def _for_consumers(half: NewMessage, properties: Mapping[str, str]) -> NewMessage:
    """*half* as it is committed; *properties* are its own."""
    topic, queue = properties[PropertyName.REAL_TOPIC], properties[PropertyName.REAL_QUEUE_ID]
    before, found, behind = half.properties.partition(_REAL_PLACE % (topic.encode(), queue.encode()))
    if found and before.endswith(b"\x02") and PropertyName.RECORD_CRC not in properties:  # as redirect_half() leaves them
        text = before + behind
    else:
        text = encode_properties({name: value for name, value in properties.items() if name not in _BESIDE})
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
