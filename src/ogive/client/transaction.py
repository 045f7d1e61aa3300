"""Transactional messages: a message is stored hidden, and delivered once the sender's own
transaction has committed.

Source: DefaultMQProducerImpl.java (sendMessageInTransaction, checkTransactionState),
ClientRemotingProcessor.java, 5.3.

Behaviour
- ``Transaction`` sends the half message on entry. Leaving the block commits, an exception rolls
  back. A block that is cancelled or interrupted decides nothing: how far it came is for the check
  to find out.
- The broker is told the decision and answers. If that goes wrong, nothing is raised: the broker
  asks the check later.
- ``CheckService`` answers such questions: True commits, False rolls back, None and everything else
  means "not known". So is a transaction whose block still runs in this process; its check is not
  called: it would find nothing, and the message of a block that commits later would be lost.

Differs from Java
- A half message whose answer is lost is not sent again: the broker would hold two, and the check
  would commit both.
- The decision is a call, not one-way, so that a commit is known to be visible when the block is
  left.
- The check runs in several threads (or tasks), and the broker is found by a producer that has sent
  nothing yet.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from ogive.client import rpc
from ogive.client.config import ProducerConfig
from ogive.client.consumer.workers import Workers, make_workers
from ogive.client.instance import ClientInstance, OnlyAsyncWith
from ogive.client.instrumentation import (
    await_in_fresh_context,
    call_in_fresh_context,
    must_pass,
    running_task,
)
from ogive.client.listener import is_async
from ogive.client.sending.pending import PendingSend
from ogive.client.sending.publisher import Publisher
from ogive.errors import ConnectError, IllegalStateError, OgiveError, SendFailed, SendTimeout
from ogive.keywords import explains
from ogive.model import MessageExt, PropertyName, SendResult, SendStatus
from ogive.transport.connection import Connection
from ogive.wire.codes import Decision, SysFlag
from ogive.wire.headers.send import CheckTransactionStateRequest, EndTransactionRequest
from ogive.wire.message import parse_offset_message_id

log = logging.getLogger(__name__)

# of bodies that wait for their check
MAX_CHECKED_BYTES: Final = 64 * 1024 * 1024

Check = Callable[[MessageExt], bool | None] | Callable[[MessageExt], Awaitable[bool | None]]
"""Function that decides the local transaction behind a message: True if it committed, False if it
never will, None while that is unknown.
"""

_NOBODY_GETS_IT: Final = (
    "It is a half message: nobody gets it unless the check of the producer group commits it."
)


@explains
class Transaction(OnlyAsyncWith):
    """Transaction for one block: ``async with producer.transaction(topic, body) as
    transaction``.
    """

    def __init__(
        self, client: ClientInstance, publisher: Publisher, pending: PendingSend, timeout_s: float
    ) -> None:
        self._client = client
        self._publisher = publisher
        self._pending = pending
        self._timeout_s = timeout_s
        group = publisher.config.group
        pending.text += (
            f"{PropertyName.TRANSACTION_PREPARED}\x01true\x02"
            f"{PropertyName.PRODUCER_GROUP}\x01{group}\x02"
        )
        pending.sys_flag |= SysFlag.TRANSACTION_PREPARED
        pending.once = True
        self._entered = False
        self._half: SendResult | None = None
        self._decision: Decision | None = None
        self._confirmed = False

    @property
    def id(self) -> str:
        """Unique key of the message. Raises IllegalStateError before the block is entered."""
        return self._stored.id

    @property
    def confirmed(self) -> bool:
        """Return True if the broker confirmed the decision. Otherwise it will ask the check."""
        return self._confirmed

    def rollback(self) -> None:
        """Roll back at the end of the block, without raising."""
        self._decide(Decision.ROLLBACK)

    def leave_open(self) -> None:
        """Decide nothing at the end of the block and leave it to the check: for a local transaction
        whose outcome is unknown.
        """
        self._decide(Decision.UNKNOWN)

    def _decide(self, decision: Decision) -> None:
        _ = self._stored
        self._decision = decision

    @property
    def _stored(self) -> SendResult:
        if self._half is None:
            raise IllegalStateError("the half message is not stored yet: enter the block first")
        return self._half

    async def __aenter__(self) -> Self:
        """Store the half message.

        Raises what ``send`` raises; SendTimeout leaves a half message behind, perhaps.
        """
        if self._entered:
            raise IllegalStateError("this transaction was entered before; make a new one")
        self._entered = True
        try:
            await self._store()
        except BaseException:
            self._ended()
            raise
        return self

    async def _store(self) -> None:
        """Store the half message, and roll it back if it is not held safely."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._pending.future = future
        try:
            await self._publisher.accept(self._pending, self._timeout_s)
            self._client.requests.running_transactions[self._pending.key] = self
            half = await future
        except SendTimeout as exc:
            raise SendTimeout(f"{exc} {_NOBODY_GETS_IT}") from None
        self._half = half
        if half.status is not SendStatus.SEND_OK:
            await self._end(Decision.ROLLBACK)
            raise SendFailed(
                f"half message {half.id} for {half.queue} is rolled back: the broker does not hold "
                f"it safely ({half.status.name})"
            )

    def _ended(self) -> None:
        """Leave questions about this transaction to the check from now on."""
        self._client.requests.running_transactions.pop(self._pending.key, None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        decision = self._decision
        if decision is None:
            decision = (
                Decision.COMMIT
                if kind is None
                else Decision.ROLLBACK
                if issubclass(kind, Exception)
                else Decision.UNKNOWN
            )
        try:
            await self._end(decision)
        finally:
            self._ended()

    async def _end(self, decision: Decision) -> None:
        half = self._stored
        if decision is Decision.UNKNOWN:
            log.info(
                "transaction %s is left open: the broker will ask group %s for the result",
                half.id,
                self._publisher.config.group,
            )
            return
        try:
            header = _end_header(
                self._publisher.config.group,
                self._client.namespace.wrap(half.queue.topic),
                half,
                decision,
            )
            await rpc.end_transaction(
                self._client.pool,
                self._client.routes.broker_address(half.queue.broker_name),
                header,
                timeout_s=self._timeout_s,
            )
            self._confirmed = True
        except OgiveError as exc:
            log.warning(
                "%s of transaction %s is not confirmed, the broker will ask group %s for the "
                "result: %s",
                decision.name.lower(),
                half.id,
                self._publisher.config.group,
                exc,
            )


def _end_header(
    group: str, topic: str, half: SendResult, decision: Decision
) -> EndTransactionRequest:
    return EndTransactionRequest(
        producer_group=group,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=parse_offset_message_id(half.offset_id)[1],
        commit_or_rollback=decision,
        msg_id=half.id,
        transaction_id=half.id,
        topic=topic,
        broker_name=half.queue.broker_name,
    )


# --- questions of brokers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Question:
    connection: Connection
    header: CheckTransactionStateRequest
    message: MessageExt


class CheckService:
    """Service that calls *check* for each question about the producer's group: a plain function in
    threads, an ``async def`` on the loop.
    """

    def __init__(self, client: ClientInstance, check: Check, config: ProducerConfig) -> None:
        self._client, self._check, self._config = client, check, config
        self._waiting = self._waiting_bytes = 0
        self._workers: Workers[_Question] | None = None
        client.requests.add_check(config.group, self.asked)

    def asked(
        self, connection: Connection, header: CheckTransactionStateRequest, message: MessageExt
    ) -> None:
        """Queue a question, and return at once; the answer goes to the broker later."""
        question = _Question(connection, header, message)
        if message.id in self._client.requests.running_transactions:
            self._tell(question, Decision.UNKNOWN)
            return
        if (
            self._waiting >= self._config.max_checks_waiting
            or self._waiting_bytes > MAX_CHECKED_BYTES
        ):
            log.warning(
                "transaction %s: %d checks are already waiting, the broker will ask again",
                message.id,
                self._waiting,
            )
            return
        self._waiting += 1
        self._waiting_bytes += len(message.body)
        if self._workers is None:
            self._workers = make_workers(
                self._decide,
                self._decide_async,
                self._answer,
                is_async=is_async(self._check),
                failed=Decision.UNKNOWN,
                count=self._config.check_threads,
                name=f"check {self._config.group}",
            )
            self._workers.start()
        self._workers.submit([question])

    def _decide(self, question: _Question) -> Decision:
        try:
            return self._judge(
                question,
                call_in_fresh_context(
                    self._check, self._client.namespace.strip_message(question.message)
                ),
            )
        except BaseException as exc:  # noqa: BLE001
            # user code in our thread: even SystemExit must not end the thread
            return self._failed(question, exc)

    async def _decide_async(self, question: _Question) -> Decision:
        task = running_task()
        try:
            check: Any = self._check
            answer = await await_in_fresh_context(
                check, self._client.namespace.strip_message(question.message)
            )
            return self._judge(question, answer)
        except BaseException as exc:
            # user code: whatever goes wrong there, the outcome is not known
            if must_pass(exc, task):
                raise
            return self._failed(question, exc)

    def _failed(self, question: _Question, error: BaseException) -> Decision:
        log.error(
            "the check of group %s failed for transaction %s: the result counts as unknown",
            self._config.group,
            question.message.id,
            exc_info=error,
        )
        return Decision.UNKNOWN

    def _judge(self, question: _Question, answer: object) -> Decision:
        if answer is True:
            return Decision.COMMIT
        if answer is False:
            return Decision.ROLLBACK
        if answer is not None:
            log.error(
                "the check of group %s returned %.80r for transaction %s: expected True, False or "
                "None; the result counts as unknown",
                self._config.group,
                answer,
                question.message.id,
            )
        return Decision.UNKNOWN

    def _answer(self, decided: Sequence[tuple[_Question, Decision, float]]) -> None:
        for question, decision, _ in decided:
            self._waiting -= 1
            self._waiting_bytes -= len(question.message.body)
            self._tell(question, decision)

    def _tell(self, question: _Question, decision: Decision) -> None:
        asked = question.header
        header = EndTransactionRequest(
            producer_group=self._config.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=decision,
            msg_id=question.message.id,
            transaction_id=asked.transaction_id,
            from_transaction_check=True,
            topic=question.message.topic,
            broker_name=asked.broker_name,
        )
        try:
            question.connection.send_nowait(rpc.request(header))
        except ConnectError as exc:
            log.debug("transaction %s: the broker will ask again: %s", question.message.id, exc)

    async def close(self) -> None:
        """Answer what is being checked, forget what waits."""
        self._client.requests.remove_check(self._config.group, self.asked)
        if self._workers is not None:
            await self._workers.stop(self._config.send_timeout_s)
