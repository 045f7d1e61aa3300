"""Transactions that a producer ends, END_TRANSACTION (37), and those about which it is asked,
CHECK_TRANSACTION_STATE (39).

Checks of transactions that were never ended. Source: TransactionalMessageServiceImpl.java,
AbstractTransactionalMessageCheckListener.java, ProducerManager.java, 5.3.

Behaviour
- Each round checks every transaction that is old enough with one live producer of its group, the
  oldest first; producers take turns.
- A transaction is old enough after transaction_timeout, or after its own
  CHECK_IMMUNITY_TIME_IN_SECONDS, and in each round after its first check.
- A check is counted before it is sent: the half message is stored again at the end of its topic,
  with TRANSACTION_CHECK_TIMES one higher, and the producer answers with the offsets of that copy.
- After transaction_check_max checks the message goes to TRANS_CHECK_MAX_TIME_TOPIC, for an
  operator.

Differs from Java
- Without a live producer of the group nothing counts: a producer may be away for up to
  transaction_keep_s and still be asked. That time is counted from the first round of this start
  without one, by a clock that nobody can set and that stops while the machine sleeps: neither
  downtime nor a step of the wall clock ends a transaction that could still be checked. Java uses
  the wall clock.
- Frequent restarts would keep such a transaction, and the log from there on, for ever. So RETURN_S
  after a start it is given up, too, if its segment of the log has been full for KEEPS times
  transaction_keep_s.
- The age before the first check counts from the store time, on the broker's own clock; Java uses
  the producer's.
- At most max_unanswered_checks wait for their answers, so that no producer has to drop any; a round
  continues as answers arrive, or after an interval without them. Java sends checks for as long as a
  minute, whether they are answered or not.
- With access control only producers whose user may send to the topic are asked: the check has the
  message, and any client may claim in a heartbeat that it produces for a group.

The end: a producer commits a half message or rolls it back, by itself or because it was asked.
Source: EndTransactionProcessor.java, 5.3.

Behaviour
- The request names the half message by both its offsets, and its producer group must be the
  sender's.
- A commit is answered when the message is safe and visible. A transaction that has ended already is
  not ended again: the same decision is a success once more, any other ILLEGAL_OPERATION.
- The decision "unknown" changes nothing: the producer will be asked, or asked again.

Differs from Java
- Java stores the message again for each commit of a copy of its half message.
- Java does not answer "unknown", and refuses a commit that comes after the time that
  CHECK_IMMUNITY_TIME_IN_SECONDS grants.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from ogive.broker.config import BrokerConfig
from ogive.broker.deferred.waiting import stored_again
from ogive.broker.replies import ONEWAY, Rejected, refuse, reply_success
from ogive.broker.services import Context
from ogive.broker.state.client_table import Client, ClientTable
from ogive.broker.transactions.half_messages import identity_of_record
from ogive.broker.transactions.state import OpenTransaction
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import ConnectError, InvalidOption, ProtocolError, ResponseCode, StoreError
from ogive.model import CHECKED_TOO_OFTEN_TOPIC, HALF_TOPIC, PropertyName
from ogive.store.types import NewMessage
from ogive.transport.connection import Connection
from ogive.wire.codes import Decision
from ogive.wire.command import RemotingCommand, whole_number
from ogive.wire.fitting import fit_properties
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.send import CheckTransactionStateRequest, EndTransactionRequest
from ogive.wire.message import (
    MAX_PROPERTIES_BYTES,
    StoredMessage,
    decode_properties,
    decode_stored,
    encode_properties,
    encode_stored,
    join_properties,
    offset_message_id,
    raw_property,
)

log = logging.getLogger(__name__)

AT_A_TIME: Final = 64
# these two: see above
KEEPS: Final = 10
RETURN_S: Final = 3600.0
# how often a round that waits for answers looks for them
LOOK_S: Final = 0.05

MaySend = Callable[[Client, str], bool]
"""Function that returns True if the client's user may send to the topic."""
Read = Callable[[Callable[[], StoredMessage | None]], Awaitable[StoredMessage | None]]


class TransactionChecks:
    """Runs rounds of checks: ``run`` is one round. Event-loop only."""

    def __init__(
        self,
        transactions: Transactions,
        clients: ClientTable,
        config: BrokerConfig,
        store_host: bytes,
        now_ms: Callable[[], int],
        now_s: Callable[[], float],
        full_for_s: Callable[[int], float],
        read: Read,
        may_send: MaySend,
    ) -> None:
        """*now_s* is the loop's clock; *full_for_s*: see Retention.

        *read* reads the store, and waits for the disk off the loop if necessary.
        """
        self._transactions = transactions
        self._clients = clients
        self._config = config
        self._read = read
        self._store_host, self._now_ms, self._may_send = store_host, now_ms, may_send
        self._now_s, self._full_for_s = now_s, full_for_s
        self._turn = itertools.count()

    async def run(self) -> None:
        """Run one round. Raises StoreError."""
        self._transactions.write_marks()
        due = [
            transaction for transaction in self._transactions.idle() if self._is_due(transaction)
        ]
        limit = self._config.max_unanswered_checks
        at_a_time = min(AT_A_TIME, limit)
        waiting: list[OpenTransaction] = []
        for start in range(0, len(due), at_a_time):
            some = due[start : start + at_a_time]
            asked = await asyncio.gather(*map(self._look_at, some))
            waiting += itertools.compress(some, asked)
            if len(waiting) > limit - at_a_time:
                waiting = await self._unanswered(waiting, (limit - at_a_time) // 2)

    async def _unanswered(self, asked: list[OpenTransaction], few: int) -> list[OpenTransaction]:
        """Return those of *asked* without an answer, once they are as few as *few*.

        After an interval they count as lost, and the list is empty.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self._config.transaction_check_interval_s
        while len(asked := [one for one in asked if one.asked and one.decision is None]) > few:
            if loop.time() >= give_up:
                return []
            await asyncio.sleep(LOOK_S)
        return asked

    def _is_due(self, transaction: OpenTransaction) -> bool:
        """Return True if the transaction was checked before, or if its immunity is over.

        A copy of the half message does not start the immunity again.
        """
        if transaction.checked:
            return True
        immunity_ms = transaction.immunity_ms
        if immunity_ms is None:
            immunity_ms = round(self._config.transaction_timeout_s * 1000)
        return self._now_ms() - transaction.stored_ms >= immunity_ms

    async def _look_at(self, transaction: OpenTransaction) -> bool:
        """Send a check, or give up; return True if a check was sent."""
        if _in_use(transaction):
            return False
        name = f"the half message at {transaction.commitlog_offset}"
        try:
            half = await self._read(partial(self._transactions.find_half_message, transaction))
            # since the disk was read
            if _in_use(transaction):
                return False
            if half is None:
                log.error(
                    "dropped a transaction: the log no longer has its half message at offset %d",
                    transaction.commitlog_offset,
                )
                self._transactions.drop(transaction, None)
                return False
            name = _name(half)
            return await self._ask_or_give_up(transaction, half)
        except (StoreError, InvalidOption, ProtocolError) as exc:
            log.warning("could not check the transaction of %s, next try later: %s", name, exc)
            return False

    async def _ask_or_give_up(self, transaction: OpenTransaction, half: StoredMessage) -> bool:
        properties = decode_properties(half.properties)
        properties.pop(PropertyName.RECORD_CRC, None)
        checks = _count(properties)
        group, topic = properties[PropertyName.PRODUCER_GROUP], properties[PropertyName.REAL_TOPIC]
        live = bool(self._live(group, topic))
        if checks >= self._config.transaction_check_max or self._is_alone_too_long(
            transaction, live
        ):
            log.warning(
                "the transaction of %s was checked too often without a decision: its message is "
                "moved to %s",
                _name(half),
                CHECKED_TOO_OFTEN_TOPIC,
            )
            self._transactions.drop(
                transaction, self._copy(half, CHECKED_TOO_OFTEN_TOPIC, properties)
            )
            return False
        if not live:
            log.debug("no producer of group %s is there to be asked about %s", group, _name(half))
            return False
        properties = _counted(properties, checks + 1)
        copy = self._copy(half, HALF_TOPIC, properties)
        await self._move(transaction, copy)
        transaction.checked = True
        producers = self._live(group, topic)
        transaction.asked = transaction.decision is None and bool(producers)
        if transaction.asked:
            self._ask(producers[next(self._turn) % len(producers)], transaction, half, copy)
        return transaction.asked

    def _is_alone_too_long(self, transaction: OpenTransaction, live: bool) -> bool:
        """Return True if the transaction has been without a producer for too long. *live*: a
        producer is online now.
        """
        if live:
            transaction.alone_since_s = None
            return False
        if transaction.alone_since_s is None:
            transaction.alone_since_s = self._now_s()
        alone_s, keep_s = self._now_s() - transaction.alone_since_s, self._config.transaction_keep_s
        return alone_s > keep_s or (
            alone_s > RETURN_S and self._full_for_s(transaction.commitlog_offset) > KEEPS * keep_s
        )

    async def _move(self, transaction: OpenTransaction, copy: NewMessage) -> None:
        """Return when the half message has its new place. Raises StoreError."""
        moved: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._transactions.move(
            transaction, copy, lambda error: None if moved.done() else moved.set_result(error)
        )
        error = await moved
        if error is not None:
            raise error

    def _ask(
        self,
        producer: Connection,
        transaction: OpenTransaction,
        half: StoredMessage,
        copy: NewMessage,
    ) -> None:
        properties = decode_properties(copy.properties)
        key = properties.get(PropertyName.UNIQ_KEY)
        header = CheckTransactionStateRequest(
            tran_state_table_offset=transaction.queue_offset,
            commit_log_offset=transaction.commitlog_offset,
            msg_id=key,
            transaction_id=key,
            offset_msg_id=offset_message_id(self._store_host, transaction.commitlog_offset),
            topic=HALF_TOPIC,
            broker_name=self._config.name,
        )
        record = replace(
            half,
            topic=properties[PropertyName.REAL_TOPIC],
            queue_id=int(properties[PropertyName.REAL_QUEUE_ID]),
            properties=copy.properties,
            queue_offset=transaction.queue_offset,
            commitlog_offset=transaction.commitlog_offset,
            store_timestamp_ms=transaction.stored_ms,
            store_host=self._store_host,
        )
        try:
            producer.send_nowait(
                RemotingCommand(header.code, encode_header(header), encode_stored(record))
            )
        except ConnectError as exc:
            log.debug("the transaction of %s is asked about again later: %s", _name(half), exc)

    def _live(self, group: str, topic: str) -> list[Connection]:
        """Return connected producers that read their data, and may see messages to *topic*."""
        limit = self._config.server.max_write_buffer_bytes
        return [
            member
            for member, client in self._clients.producers.get(group, {}).items()
            if not member.closed and member.unsent_bytes < limit and self._may_send(client, topic)
        ]

    def _copy(self, half: StoredMessage, topic: str, properties: dict[str, str]) -> NewMessage:
        return stored_again(
            half, (topic, 0), encode_properties(fit_properties(properties)), self._store_host
        )


def _counted(properties: dict[str, str], checks: int) -> dict[str, str]:
    """Return *properties* with this count.

    If there is no room for it, properties that a broker added are left out. All of the sender's are
    committed.
    """
    counted = properties | {PropertyName.TRANSACTION_CHECKS: str(checks)}
    for name in (PropertyName.TRACE_ON, PropertyName.MSG_REGION, PropertyName.CLUSTER):
        if len(join_properties(counted)) <= MAX_PROPERTIES_BYTES:
            break
        counted.pop(name, None)
    return counted


def _count(properties: dict[str, str]) -> int:
    return whole_number(properties.get(PropertyName.TRANSACTION_CHECKS, "")) or 0


def _in_use(transaction: OpenTransaction) -> bool:
    return transaction.decision is not None or transaction.moving


def _name(half: StoredMessage) -> str:
    properties = decode_properties(half.properties)
    return f"{properties.get(PropertyName.UNIQ_KEY)} for {properties.get(PropertyName.REAL_TOPIC)}"


DECISIONS: Final = frozenset(Decision)


def end(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """End a transaction that is looked up in the log.

    Nearly every end finds its transaction in memory, see plan.py: reading and decoding the half
    message costs as much as the rest of an end.
    """
    header = decode_header(EndTransactionRequest, command.ext_fields)
    if header.commit_or_rollback not in DECISIONS:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    if header.commit_or_rollback == Decision.UNKNOWN:
        ctx.transactions.undecided(
            header.tran_state_table_offset, header.commit_log_offset, header.producer_group
        )
        reply_success(connection, command)
        return
    decision = Decision(header.commit_or_rollback)
    identity = identity_of_record(_half_message(ctx, header))
    transaction, outcome = ctx.transactions.get(identity), ctx.transactions.outcome(identity)
    if transaction is None or outcome is not None:
        if outcome is not decision:
            how = "nobody knows how any more" if outcome is None else outcome.name.lower()
            raise Rejected(
                ResponseCode.ILLEGAL_OPERATION, f"the transaction has ended before: {how}"
            )
        reply_success(connection, command)
        return
    ended = None if command.flag & ONEWAY else partial(_ended, connection, command)
    ctx.transactions.end(transaction, decision, ended)


def _half_message(ctx: Context, header: EndTransactionRequest) -> StoredMessage:
    with ctx.store.without_waiting():
        record = ctx.store.record_at(header.commit_log_offset)
    stored = decode_stored(record) if record is not None else None
    if stored is None or stored.topic != HALF_TOPIC:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    if (
        raw_property(stored.properties, PropertyName.PRODUCER_GROUP.encode())
        != header.producer_group.encode()
    ):
        raise Rejected(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if stored.queue_offset != header.tran_state_table_offset:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    return stored


def _ended(connection: Connection, command: RemotingCommand, error: StoreError | None) -> None:
    if error is None:
        reply_success(connection, command)
    else:
        refuse(connection, command, error)
