"""The producer, blocking."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Final, Generic, Never, Self

from ogive.client import producer as aio_producer
from ogive.client import transaction as aio_transaction
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.client.portal import Facade, OneShot, OnlyWith, Portal, blocking
from ogive.client.producer import B, in_order
from ogive.client.sending.handle import SendHandle
from ogive.client.sending.inboxes import NoRoom
from ogive.client.sending.pending import UNKNOWN, PendingSend, unknown_outcome
from ogive.client.transaction import Check
from ogive.errors import OgiveError, SendTimeout
from ogive.keywords import explains, explains_itself, refuse
from ogive.model import Message, MessageExt, MessageQueue, SendResult

# messages being passed to the loop, beside those in flight
MAX_POSTED: Final = 256
# a larger message waits for its room on the loop: what is posted is bounded in bytes, too
POSTED_BYTES: Final = 64 * 1024
# The loop ends a message at its deadline. So much later the loop itself must be blocked.
_LATE_S: Final = 1.0


@explains
class Producer(Facade, Generic[B]):
    """Producer of messages: ``with Producer() as producer``. Many threads may share it.

    Leaving the block waits for the messages in flight. *check* is asked about transactions of
    *group* that were never ended: True commits, False rolls back, None means "not known yet". With
    a *serializer*, such as ``to_json``, bodies are objects that it accepts (``Producer[Order]``); a
    ``Message`` still holds bytes. *client* takes either settings, instead of *name_server*, or a
    running client to share, which stays open.
    """

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        group: str | None = None,
        check: Check | None = None,
        serializer: Callable[[B], bytes] | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._asyncio: aio_producer.Producer[B] = aio_producer.Producer(
            name_server,
            group=group,
            check=check,
            serializer=serializer,
            config=config,
            client=client,
        )

    def start(self) -> None:
        """Start without connecting: the first message does.

        With a *check* it connects to every broker, in the background.
        """
        self._begin(self._asyncio.start, self._asyncio.close)

    def close(self) -> None:
        """Wait for the messages in flight, none longer than its time budget, then disconnect.

        Requests that wait for a reply fail.

        Closing again waits for the first close, and does nothing more.
        """
        self._end(self._asyncio.close)

    @property
    def in_flight(self) -> int:
        """Number of accepted messages without an outcome."""
        return self._asyncio.in_flight

    def send(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has stored it.

        A ``Message`` replaces topic, body and the options that describe it.

        Messages with equal *sharding_key* go to the same queue, in order; *queue* chooses one.
        *deliver_at* and *delay_s* need a broker from 5.0 on, older ones deliver at once. Members
        that pop a topic of type PRIORITY get messages with a higher *priority* first.
        *timeout_s* covers the whole call: route, connection and every attempt.

        Raises SendFailed (certainly not stored), SendTimeout (perhaps stored), NoRoute,
        NoNameServer, and BrokerErrors such as MessageIllegal. A cancelled send may still arrive.
        """
        pending = self._prepare(
            topic,
            body,
            tag,
            keys,
            properties,
            sharding_key,
            queue,
            delay_level,
            deliver_at,
            delay_s,
            priority,
        )
        # OneShot[SendResult]() would take 2 us
        sent: OneShot[SendResult] = OneShot()
        pending.future = sent
        budget_s = self._asyncio.budget_s(timeout_s)
        try:
            self._submit(pending, budget_s)
            _wait(sent, pending, budget_s)
            return sent.result()
        except OgiveError:
            raise
        except BaseException as exc:
            # Ctrl-C, or what the handler of another signal raises
            exc.add_note(unknown_outcome(pending))
            raise

    @explains_itself
    def submit(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        on_done: Callable[[SendHandle], object] | None = None,
        **unknown: Never,
    ) -> SendHandle:
        """Send as ``send`` does, but only wait for room among the messages in flight; the handle
        gets the result.

        Messages of one queue are stored in the order in which they were submitted. A failure that
        is never looked at is logged. *on_done* is called with the handle when the outcome is known.
        Callbacks run on ogive's event loop and must not block: all other sends wait for them.
        """
        if unknown:
            refuse(Producer.submit, unknown)
        portal, publisher = self._portal, self._asyncio.running
        own_s = None if timeout_s is None else self._asyncio.budget_s(timeout_s)
        if (
            publisher is None
            or portal is None
            or not portal.alive
            # a message in front of this one may be on its way to the loop
            or portal.inbox
        ):
            offered: SendHandle | PendingSend = self._prepare(
                topic,
                body,
                tag,
                keys,
                properties,
                sharding_key,
                queue,
                delay_level,
                deliver_at,
                delay_s,
                priority,
            )
        else:
            try:
                offered = publisher.inboxes.offer(
                    topic,
                    body,
                    tag,
                    keys,
                    properties,
                    sharding_key,
                    queue,
                    delay_level,
                    deliver_at,
                    delay_s,
                    priority,
                    own_s,
                    monotonic(),
                    on_done,
                )
            except NoRoom as full:
                try:
                    return portal.call(full.wait(), timeout_s=full.budget_s + _LATE_S)
                except TimeoutError:
                    raise _blocked(full.budget_s, UNKNOWN) from None
        if not isinstance(offered, PendingSend):
            return offered
        handle = self._asyncio.publisher.handle_of(offered, on_done)
        self._submit(offered, self._asyncio.budget_s(timeout_s))
        return handle

    def send_oneway(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send without waiting for an answer: nothing reports if the message is lost.

        Raises only what goes wrong before it is sent.
        """
        self._live().call(
            self._asyncio.send_oneway(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                queue=queue,
                timeout_s=timeout_s,
            )
        )

    def transaction(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> "Transaction":
        """Open a transaction: its message is delivered if the block completes, and discarded if it
        raises.

        Entering the block stores the message invisibly, and raises what ``send`` raises. Leaving it
        tells the broker the decision, and raises nothing: if the broker cannot be reached or this
        process dies, the broker asks the *check* of a producer of the group. So it does for a block
        that is cancelled or interrupted. *timeout_s* covers entering, and leaving once more. Raises
        InvalidOption for a producer without a *check*.
        """
        portal = self._live()
        portal.check()
        transaction = self._asyncio.transaction(
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            sharding_key=sharding_key,
            queue=queue,
            timeout_s=timeout_s,
        )
        return Transaction(transaction, portal)

    def send_batch(
        self,
        topic: str,
        messages: Iterable[B | Message],
        *,
        tag: str | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send many messages in few requests. Returns one result per message, in order.

        *messages* may be any iterable, and is read as far as there is room in flight. Each request
        goes to one queue and is stored whole or not at all; the size limit and the sharding keys
        decide how many there are. If some fail, the first error is raised once all have their
        outcome; nothing is read behind a message that is refused. *tag* and *sharding_key* are for
        messages given as bodies.
        """
        self._live().check()
        _ = self._asyncio.publisher
        budget_s = self._asyncio.budget_s(timeout_s)
        batches = self._asyncio.builder.batches(topic, messages, tag, sharding_key, queue)
        waiting: list[tuple[Sequence[int], PendingSend, OneShot[SendResult]]] = []
        try:
            # here, because a generator of the caller must not run on the loop
            for indexes, pending in batches:
                sent: OneShot[SendResult] = OneShot()
                pending.future = sent
                self._submit(pending, budget_s)
                waiting.append((indexes, pending, sent))
        except Exception:
            for _, pending, sent in waiting:
                _wait(sent, pending, budget_s)
            raise
        for _, pending, sent in waiting:
            _wait(sent, pending, budget_s)
        return in_order([(indexes, sent.result()) for indexes, _, sent in waiting])

    def request(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of its consumer, a listener that returns
        ``ogive.Reply``.

        *timeout_s* covers the whole call, from the route to the reply. Raises ReplyTimeout (perhaps
        carried out), what ``send`` raises if the message was not stored, TooManyRequests, and
        IllegalStateError if the producer is closed meanwhile. A late reply is dropped. A cancelled
        request may still be carried out.
        """
        return self._live().call(
            self._asyncio.request(
                topic,
                body,
                tag=tag,
                keys=keys,
                properties=properties,
                sharding_key=sharding_key,
                queue=queue,
                timeout_s=timeout_s,
            )
        )

    recall = blocking(aio_producer.Producer.recall)
    flush = blocking(aio_producer.Producer.flush)

    def _prepare(
        self,
        topic: str | Message,
        body: B | None,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
        deliver_at: datetime | None,
        delay_s: float | None,
        priority: int | None,
    ) -> PendingSend:
        self._live().check()
        # raises where nothing can be sent
        _ = self._asyncio.publisher
        builder = self._asyncio.builder
        return builder.message(
            topic,
            builder.raw(body),
            tag,
            keys,
            properties,
            sharding_key,
            queue,
            delay_level,
            deliver_at,
            delay_s,
            priority,
        )

    def _submit(self, pending: PendingSend, budget: float) -> None:
        portal, publisher = self._live(), self._asyncio.publisher
        if (
            not pending.unusual_level
            and (posted := len(portal.inbox)) < MAX_POSTED
            and pending.size < POSTED_BYTES
            and publisher.has_room(pending.size, posted)
        ):
            portal.post(publisher.take, pending, budget, waiter=pending.future)
            return
        try:
            portal.call(publisher.accept(pending, budget), timeout_s=budget + _LATE_S)
        except TimeoutError:
            raise _blocked(budget, unknown_outcome(pending)) from None


def _wait(sent: OneShot[SendResult], pending: PendingSend, budget_s: float) -> None:
    """Wait for an outcome. Raises SendTimeout if the loop does not bring it in time."""
    if not sent.wait(budget_s + _LATE_S):
        raise _blocked(budget_s, unknown_outcome(pending))


def _blocked(budget_s: float, outcome: str) -> SendTimeout:
    """Return the error of a send that the loop did not end in its time."""
    return SendTimeout(
        f"no outcome within {budget_s:g} s: ogive's event loop is blocked, perhaps by a hook or a "
        f"callback. {outcome}"
    )


@explains
class Transaction(OnlyWith):
    """Transaction for one block: ``with producer.transaction(topic, body) as transaction``."""

    def __init__(self, transaction: aio_transaction.Transaction, portal: Portal) -> None:
        self._transaction, self._portal = transaction, portal

    def __enter__(self) -> Self:
        self._portal.call(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._transaction.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """Unique key of the message. Raises IllegalStateError before the block is entered."""
        return self._transaction.id

    @property
    def confirmed(self) -> bool:
        """Return True if the broker confirmed the decision. Otherwise it will ask the check."""
        return self._transaction.confirmed

    def rollback(self) -> None:
        """Roll back at the end of the block, without raising."""
        self._transaction.rollback()

    def leave_open(self) -> None:
        """Decide nothing at the end of the block and leave it to the check: for a local transaction
        whose outcome is unknown.
        """
        self._transaction.leave_open()
