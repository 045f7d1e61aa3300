"""Open transactions: half messages in RMQ_SYS_TRANS_HALF_TOPIC without an entry in
RMQ_SYS_TRANS_OP_HALF_TOPIC.

Source: TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java, 5.3.

Behaviour
- The two topics, and the progress of CID_RMQ_SYS_TRANS in them, are the whole state on disk; the
  start reads them from there on. So Apache's broker can take over the directory, and the other way
  round.
- A commit stores the message under its real topic and, in the same write, the entry that marks the
  half message as done. When a producer is asked, the half message moves to the end of the half
  topic with its count of checks, in one write with the mark of its old place.
- A transaction is committed once, however often it is ended and whenever the broker dies: see
  state.py.

Differs from Java
- A transaction is identified by its unique key, producer group, topic, birth time and body, so that
  copies of its half message, or one that a client sent twice, are still one transaction. Java
  commits every copy that is ended.
- Java writes marks after the commit is stored and answered: 4.9 at once, one transaction per mark;
  5.x within 3 s, many in one mark, which 4.9 cannot read. Ours are single ones, and safe before the
  end is answered.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from ogive.broker.deferred.waiting import Served
from ogive.broker.replies import Rejected
from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.traffic import ByTopic, Traffic
from ogive.broker.transactions.half_messages import (
    as_it_is,
    committed,
    find_half_message,
    for_consumers,
    half_message,
    identity,
    immunity_ms,
)
from ogive.broker.transactions.state import (
    Ended,
    MarkProgress,
    OpenTransaction,
    ReadyMessages,
    Step,
    find_transactions,
)
from ogive.errors import InvalidOption, OgiveError, ResponseCode, StoreError
from ogive.model import (
    HALF_TOPIC,
    MAX_RESOURCE_LENGTH,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    PropertyName,
)
from ogive.store.message_store import MessageStore
from ogive.store.types import SIZE_BEFORE, NewMessage, PutDone, PutResult
from ogive.transport.monitoring import Values
from ogive.wire.checksum import crc32
from ogive.wire.codes import Decision
from ogive.wire.message import StoredMessage
from ogive.wire.sends import Ending

log = logging.getLogger(__name__)

_MARK_PROPERTIES: Final = b"TAGS\x01d\x02"
# of one transaction, in one write; nearly all have one
MAX_MARKS_AT_ONCE: Final = 4
# what is written with a half message's copy or commit is less: its marks, and the count of checks
_BESIDE_BYTES: Final = 1024
# a smaller message has room for that in any segment
_LARGE_BYTES: Final = 2048
# bounds of finish_message_latency, BrokerMetricsManager.java
AGES_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)
# outcomes remembered, for repeated requests
MAX_SETTLED: Final = 10_000
# a third of what the call of a named tuple costs
_new_message: Final = tuple.__new__

Put = Callable[[Sequence[NewMessage], PutDone], None]
_Stored = list[PutResult] | StoreError


def _as_sent(_topic: str, queue_id: int) -> int:
    return queue_id


class EndedOfTopic:
    """Ends of a topic's transactions: the number by outcome, and the sum of the seconds that
    committed ones were open.
    """

    def __init__(self) -> None:
        self.times = dict.fromkeys(Decision, 0)
        self.ages = Values(AGES_S)


class Transactions:
    """Owned by the event loop. First ``recover``, then ``start``."""

    def __init__(
        self,
        store: MessageStore,
        now_ms: Callable[[], int],
        max_open: int,
        served: Served = _as_sent,
    ) -> None:
        """*served*: see TopicTable.served()."""
        self._store = store
        self._now_ms = now_ms
        self._max_open = max_open
        self._served = served
        self._put: Put = store.put
        self._store_host = bytes(8)
        self._open: dict[bytes, OpenTransaction] = {}
        # by offset in the half topic, in its order
        self._places: OrderedDict[int, OpenTransaction] = OrderedDict()
        self._half_end = store.max_offset(HALF_TOPIC, 0)
        self._marks = MarkProgress(store.min_offset(OP_HALF_TOPIC, 0))
        self._settled: OrderedDict[bytes, Decision] = OrderedDict()
        # ended, with unmarked places, and no mark being stored
        self._unmarked: list[OpenTransaction] = []
        # places whose mark a start did not believe
        self._doubted: set[int] = set()
        # older places of ended transactions, without their mark
        self._stray: list[int] = []
        self._ready = ReadyMessages()
        self.ended: ByTopic[EndedOfTopic] = ByTopic(EndedOfTopic)
        """By topic, since the start; transactions that are given up count as rolled back."""

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._open)

    def open_by_topic(self) -> Counter[str]:
        return Counter(found.topic for found in self._open.values())

    def get(self, identity: bytes) -> OpenTransaction | None:
        return self._open.get(identity)

    def at(self, place: int, commitlog_offset: int) -> OpenTransaction | None:
        """Return the undecided transaction whose newest half message is at *place* and
        *commitlog_offset*; None unless the message for consumers is in memory.
        """
        found = self._places.get(place)
        if (
            found is None
            or found.commitlog_offset != commitlog_offset
            or found.decision is not None
            or place not in self._ready
        ):
            return None
        return found if found.queue_offset == place else None

    def undecided(self, place: int, commitlog_offset: int, group: str) -> None:
        """Record that its producer has answered that it does not know yet."""
        found = self._places.get(place)
        if (
            found is not None
            and found.commitlog_offset == commitlog_offset
            and found.group == group
        ):
            found.asked = False

    @property
    def ending(self) -> int:
        """Return the number of ends that are not safe yet."""
        return sum(
            found.decision is not None and found.identity not in self._settled
            for found in self._open.values()
        )

    def outcome(self, identity: bytes) -> Decision | None:
        """Return how a transaction ended, if it is still known."""
        return self._settled.get(identity)

    def idle(self) -> list[OpenTransaction]:
        """Return the transactions that are not being changed at the moment, oldest place first."""
        return [
            found
            for found in dict.fromkeys(self._places.values())
            if not found.moving and found.decision is None
        ]

    def half_message(self, transaction: OpenTransaction) -> StoredMessage:
        """Return the half message. Raises StoreError if the log no longer has it."""
        return half_message(self._store, transaction.commitlog_offset)

    def find_half_message(self, transaction: OpenTransaction) -> StoredMessage | None:
        """Return the half message, None if the log no longer has it.

        Raises StoreError if it cannot be read.
        """
        return find_half_message(self._store, transaction.commitlog_offset)

    def needed_from(self) -> int:
        """Return the commit-log offset of the oldest open transaction, from which on the log must
        be kept.
        """
        return min(
            [found.commitlog_offset for found in self._open.values()],
            default=self._store.stats().commitlog_end,
        )

    # --- progress ---------------------------------------------------------------------------------

    def note_progress(self, offsets: OffsetTable) -> None:
        """Set the offsets in *offsets* from which the next start has to read the two topics."""
        half = next(iter(self._places), self._half_end)
        marks = self._marks.first_needed(half)
        if half:
            offsets.note(TRANSACTION_GROUP, HALF_TOPIC, 0, half)
            offsets.note(TRANSACTION_GROUP, OP_HALF_TOPIC, 0, marks)

    # --- opening ----------------------------------------------------------------------------------

    def accept(self, message: NewMessage, properties: Mapping[str, str], done: PutDone) -> PutDone:
        """Return the callback for a stored half message: it opens the transaction, then calls
        *done*.

        *properties* are those of the message. Raises the errors of opening().
        """
        key = properties.get(PropertyName.UNIQ_KEY, "")
        group = properties.get(PropertyName.PRODUCER_GROUP, "")
        return self.accept_usual(
            message, for_consumers(message, properties), key, group, done, immunity_ms(properties)
        )

    def accept_usual(
        self,
        message: NewMessage,
        ready: NewMessage,
        key: str,
        group: str,
        done: PutDone,
        immunity_ms: int | None = None,
    ) -> PutDone:
        """Like accept(), for a caller that already has the message for consumers, the key and the
        group.
        """
        return partial(
            self._accepted, self.opening(message, ready, key, group, immunity_ms), ready, done
        )

    def opening(
        self,
        message: NewMessage,
        ready: NewMessage,
        key: str,
        group: str,
        immunity_ms: int | None = None,
    ) -> OpenTransaction:
        """Return a transaction for a half message that will be stored; *ready* is its message for
        consumers.

        Raises Rejected if too many are open, and for one that could not be checked with any
        producer; InvalidOption for one whose end would fit into no segment.
        """
        if len(group) > MAX_RESOURCE_LENGTH:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the producer group (PGROUP) has {len(group)} characters, must have at most "
                f"{MAX_RESOURCE_LENGTH}: no producer could be asked about the transaction",
            )
        if len(self._places) >= self._max_open:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"{self._max_open} half messages wait for their end already "
                "(--max-open-transactions)",
            )
        body = message.body
        if len(body) + len(message.properties) > _LARGE_BYTES:
            self._store.check_fits(message, _BESIDE_BYTES)
        found = identity(ready.topic, key, group, ready.born_timestamp_ms, crc32(body) & 0x7FFFFFFF)
        return OpenTransaction(found, ready.topic, group, -1, -1, immunity_ms, [])

    def _accepted(
        self,
        opened: OpenTransaction,
        ready: NewMessage,
        done: PutDone,
        result: list[PutResult] | StoreError,
    ) -> None:
        if not isinstance(result, StoreError):
            self.opened(opened, ready, result[0])
        done(result)

    def opened(self, opened: OpenTransaction, ready: NewMessage, stored: PutResult) -> None:
        """Add the transaction of a stored half message, see opening()."""
        opened.opened_ms = stored.store_timestamp_ms
        self._half_end = stored.queue_offset + 1
        known = self._open.get(opened.identity)
        if known is not None:
            # a second try of the same message: still one transaction
            self._add_place(known, stored)
        else:
            self._add_place(opened, stored)
            self._open[opened.identity] = opened
            opened.decision = self._settled.get(opened.identity)
            if opened.decision is not None:
                self._mark_later(opened)
        # the last is prepared_transaction_offset
        message = _new_message(NewMessage, (*ready[:-1], stored.commitlog_offset))
        self._ready.keep(stored.queue_offset, message)

    def _add_place(self, transaction: OpenTransaction, stored: PutResult) -> None:
        transaction.places.append(stored.queue_offset)
        transaction.commitlog_offset = stored.commitlog_offset
        transaction.stored_ms = stored.store_timestamp_ms
        self._places[stored.queue_offset] = transaction

    def _unplace(
        self, transaction: OpenTransaction, places: Sequence[int], stored: Sequence[PutResult]
    ) -> None:
        """Record the marks, which are the last of *stored*."""
        self._marks.add(stored[-1].queue_offset, places)
        for place in places:
            del self._places[place]
            transaction.places.remove(place)
            self._ready.drop(place)

    # --- ending -----------------------------------------------------------------------------------

    def end(self, transaction: OpenTransaction, decision: Decision, ended: Ended | None) -> None:
        """Commit or roll back.

        Raises Rejected if it is being ended with the other decision at this moment, StoreError.
        """
        if transaction.decision not in (None, decision):
            raise Rejected(
                ResponseCode.ILLEGAL_OPERATION,
                "the transaction is being ended the other way already",
            )
        if transaction.decision is None and not transaction.moving:
            self._end(transaction, decision)
        transaction.decision = decision
        if ended is not None:
            transaction.waiting.append(ended)

    def in_memory(self, ending: Ending) -> OpenTransaction | None:
        """Return the transaction of *ending* if begin_end() can end it."""
        found = self.at(ending.queue_offset, ending.commitlog_offset)
        if found is None or found.group != ending.group or found.moving or len(found.places) > 1:
            return None
        return found

    def begin_end(self, transaction: OpenTransaction, decision: Decision) -> list[NewMessage]:
        """Return the messages that end a transaction found by in_memory().

        The caller stores them, then calls carried_out() or, if the store refused them at once,
        take_back().
        """
        place = transaction.queue_offset
        ready = self._ready.get(place) if decision is Decision.COMMIT else None
        transaction.decision = decision
        if ready is None:
            return [self._mark(place)]
        queue_id = self._served(ready.topic, ready.queue_id)
        if queue_id != ready.queue_id:
            ready = ready._replace(queue_id=queue_id)
        return [ready, self._mark(place, SIZE_BEFORE)]

    def take_back(self, steps: Iterable[Step]) -> None:
        """Undo begin_end(): the messages of *steps* were refused at once."""
        for step in steps:
            if step.ready is None:
                step.transaction.decision = None

    def carried_out(
        self,
        steps: Sequence[Step],
        traffic: Traffic,
        done: PutDone,
        result: list[PutResult] | OgiveError,
    ) -> None:
        """Finish *steps*, whose messages were stored together, or were not.

        *done* gets the places of the half messages; other messages are counted in *traffic*.
        """
        if isinstance(result, OgiveError):
            failed = result if isinstance(result, StoreError) else StoreError(str(result))
            for step in steps:
                if step.ready is None:
                    self.end_failed(step.transaction, failed)
            done(failed)
            return
        halves: list[PutResult] = []
        at = 0
        for transaction, ready, place, messages in steps:
            if ready is not None:
                self.opened(transaction, ready, result[at])
                halves.append(result[at])
                at += 1
                continue
            stored = result[at : at + len(messages)]
            at += len(messages)
            for message, put in zip(messages, stored, strict=True):
                traffic.count_put(message.topic, 1, put.size)
            self._leave_places(transaction, [place], stored)
        done(halves)

    def end_failed(self, transaction: OpenTransaction, error: StoreError) -> None:
        """Undo an end that was not stored."""
        transaction.decision = None
        log.warning("could not end a transaction, its producer will be asked again: %s", error)
        self._answer(transaction, error)

    def drop(self, transaction: OpenTransaction, message: NewMessage | None) -> None:
        """Give up a transaction; *message* is a copy for operators. Raises StoreError."""
        self._put_marked(transaction, message, self._ended)
        transaction.decision = Decision.ROLLBACK

    def _end(self, transaction: OpenTransaction, decision: Decision) -> None:
        """End the transaction. Raises StoreError, and then the transaction stays open."""
        message = None
        if decision is Decision.COMMIT:
            message = self._ready.get(transaction.queue_offset)
            if message is None:
                message = committed(self.half_message(transaction), self._store_host)
        self._put_marked(transaction, message, self._ended)
        transaction.decision = decision

    def _put_marked(
        self,
        transaction: OpenTransaction,
        message: NewMessage | None,
        done: Callable[[OpenTransaction, Sequence[int], _Stored], None],
    ) -> None:
        """Store *message* and the marks of the newest places: in one write, all or none.

        Raises StoreError.
        """
        # the newest first: it alone decides
        places = transaction.places[: -MAX_MARKS_AT_ONCE - 1 : -1]
        newest, *older = places
        marks = [self._mark(place) for place in older]
        if message is None:
            self._put((self._mark(newest), *marks), partial(done, transaction, places))
        else:
            self._put(
                (message, self._mark(newest, SIZE_BEFORE), *marks),
                partial(done, transaction, places),
            )

    def _mark(self, place: int, before: int = 0) -> NewMessage:
        """Return the mark. *before*: the size of the record right before it; the mark counts only
        if that exists.
        """
        host = self._store_host
        return _new_message(
            NewMessage,
            (
                OP_HALF_TOPIC,
                0,
                b"%d" % place,
                _MARK_PROPERTIES,
                0,
                before,
                self._now_ms(),
                host,
                host,
                0,
                0,
            ),
        )

    def _ended(self, transaction: OpenTransaction, places: Sequence[int], result: _Stored) -> None:
        if isinstance(result, StoreError):
            self.end_failed(transaction, result)
        else:
            self._leave_places(transaction, places, result)

    def _leave_places(
        self, transaction: OpenTransaction, places: Sequence[int], result: Sequence[PutResult]
    ) -> None:
        """Finish an end that was marked."""
        self._unplace(transaction, places, result)
        self._answer(transaction, None)
        # of copies of its half message that arrived in between, or of a great many
        if transaction.places:
            self._mark_later(transaction)
        else:
            del self._open[transaction.identity]

    def _mark_later(self, transaction: OpenTransaction) -> None:
        self._unmarked.append(transaction)
        try:
            self.write_marks()
        except StoreError as exc:
            log.warning(
                "could not record the end of %d transactions, next try later: %s",
                len(self._unmarked),
                exc,
            )

    def write_marks(self) -> None:
        """Mark the places of transactions that have ended before.

        Raises StoreError; the next call continues.
        """
        while self._unmarked:
            self._put_marked(self._unmarked[-1], None, self._marked)
            self._unmarked.pop()

    def _marked(self, transaction: OpenTransaction, places: Sequence[int], result: _Stored) -> None:
        if isinstance(result, StoreError):
            log.warning("could not record the end of a transaction, next try later: %s", result)
            self._unmarked.append(transaction)
        else:
            self._leave_places(transaction, places, result)

    def _answer(self, transaction: OpenTransaction, error: StoreError | None) -> None:
        if (
            error is None
            and transaction.decision is not None
            and transaction.identity not in self._settled
        ):
            self._count(transaction, transaction.decision)
            self._settled[transaction.identity] = transaction.decision
            if len(self._settled) > MAX_SETTLED:
                self._settled.popitem(last=False)
        waiting, transaction.waiting = transaction.waiting, []
        for ended in waiting:
            ended(error)

    def _count(self, transaction: OpenTransaction, decision: Decision) -> None:
        ended = self.ended.of(transaction.topic)
        ended.times[decision] += 1
        if decision is Decision.COMMIT:
            ended.ages.add(
                max(0, self._now_ms() - (transaction.opened_ms or transaction.stored_ms)) / 1000
            )

    # --- asking -----------------------------------------------------------------------------------

    def move(self, transaction: OpenTransaction, message: NewMessage, moved: Ended) -> None:
        """Store *message*, its new half message, and mark the old place. Raises StoreError."""
        self._put_marked(transaction, message, partial(self._moved, moved))
        transaction.moving = True

    def _moved(
        self, moved: Ended, transaction: OpenTransaction, places: Sequence[int], result: _Stored
    ) -> None:
        transaction.moving = False
        if not isinstance(result, StoreError):
            self._half_end = result[0].queue_offset + 1
            self._add_place(transaction, result[0])
            self._unplace(transaction, places, result)
        # arrived in between
        if transaction.decision is not None:
            try:
                self._end(transaction, transaction.decision)
            except (StoreError, InvalidOption) as exc:
                # whoever waits for the move hears of it in any case
                self.end_failed(
                    transaction, exc if isinstance(exc, StoreError) else StoreError(str(exc))
                )
        moved(result if isinstance(result, StoreError) else None)

    # --- starting ---------------------------------------------------------------------------------

    def recover(self, offsets: OffsetTable) -> None:
        """Read the two topics from the group's progress on. Blocking. Raises StoreError."""
        found = find_transactions(self._store, offsets, self._served)
        self._open = found.open
        self._marks = found.marks
        self._stray = found.stray
        self._doubted = found.doubted
        self._places.update(
            sorted(
                (place, transaction)
                for transaction in self._open.values()
                for place in transaction.places
            )
        )
        self.note_progress(offsets)
        if self._open:
            log.info("%d transactions are open", len(self._open))

    def start(self, put: Put, store_host: bytes) -> None:
        """Repair the results of a crash: commits without their mark, and marks without their
        commit.

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
            log.warning("could not record the ends of copied half messages: %s", exc)
        self._doubted.clear()
        self._stray.clear()

    def _move_away(self, transaction: OpenTransaction) -> None:
        """Move a half message from a place whose mark does not count, because Apache's broker would
        believe the mark.
        """
        try:
            self.move(
                transaction,
                as_it_is(self.half_message(transaction), self._store_host),
                lambda _: None,
            )
        except StoreError as exc:
            log.warning(
                "could not move a transaction away from an end record that was ignored: %s", exc
            )


def _marked_at_last(result: list[PutResult] | OgiveError) -> None:
    if isinstance(result, OgiveError):
        log.warning("could not record the end of a copied half message: %s", result)
