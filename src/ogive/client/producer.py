"""Producer: the public object over the engine in ``sending/publisher.py``, which describes
behaviour and differences from Java.

Source: DefaultMQProducer.java, DefaultMQProducerImpl.java, 5.3.
"""

import asyncio
import base64
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Never

from ogive.client import rpc
from ogive.client.config import (
    DEFAULT_GROUP,
    DEFAULT_NAME_SERVER,
    ClientConfig,
    ProducerConfig,
    check_time,
    own_config,
)
from ogive.client.instance import ClientInstance, ClientOwner, StartedByWith
from ogive.client.instrumentation import Instrumentation, SendEnd, instrumentation, run_after
from ogive.client.request import Requester
from ogive.client.sending.handle import SendHandle
from ogive.client.sending.inboxes import NoRoom
from ogive.client.sending.message_builder import MessageBuilder
from ogive.client.sending.pending import PendingSend
from ogive.client.sending.publisher import Publisher
from ogive.client.trace import Tracer, record_sent
from ogive.client.transaction import Check, CheckService, Transaction
from ogive.errors import IllegalStateError, InvalidOption
from ogive.keywords import explains, explains_itself, refuse
from ogive.model import Message, MessageExt, MessageQueue, RecallResult, SendResult
from ogive.transport.event_loop import every
from ogive.wire.codes import SysFlag
from ogive.wire.headers.send import RecallMessageRequest
from ogive.wire.sends import split_result

# type checkers know typing_extensions; at run time it is not needed, and may not be there
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    B = TypeVar("B", default=bytes)
else:
    from typing import TypeVar

    B = TypeVar("B")

# version, topic, broker, time, unique key
HANDLE_WORDS: Final = 5


@explains
class Producer(StartedByWith, Generic[B]):
    """Producer of messages: ``async with Producer() as producer``.

    Bound to one event loop; many tasks may share it.

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
        self.config = own_config(config, ProducerConfig)
        if group is not None:
            self.config = replace(self.config, group=group)
        self._owner = ClientOwner("producer", name_server, client)
        self._namespace = self._owner.namespace
        self._wire_config = (
            replace(self.config, group=self._namespace.wrap(self.config.group))
            if self._namespace
            else self.config
        )
        if check is not None and self.config.group == DEFAULT_GROUP:
            raise InvalidOption(
                "a check needs a producer group of its own: Producer(group=..., check=...)"
            )
        self._instrumentation = observer = instrumentation()
        ended = self._ended if self.config.hooks or self.config.trace or observer else None
        self.builder = MessageBuilder(self.config, self._namespace, serializer, ended, observer)
        self._check = check
        self._checks: CheckService | None = None
        self._meeting: asyncio.Task[object] | None = None
        # from the start to the end
        self.running: Publisher | None = None
        self._closing: asyncio.Task[None] | None = None
        self._requester: Requester | None = None
        self._tracer: Tracer | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start without connecting: the first message does.

        With a *check* it connects to every broker, in the background.
        """
        client = await self._owner.start()
        client.register_producer(self._wire_config.group)
        self.running = Publisher(client, self._wire_config, self.builder)
        self._requester = Requester(client, self.running)
        self._tracer = Tracer(client, self.config.group, "PRODUCE") if self.config.trace else None
        if self._check is not None:
            self._checks = CheckService(client, self._check, self._wire_config)
            self._meeting = client.spawn(
                every(client.config.route_period_s, client.meet_all_brokers, name="brokers"),
                "brokers",
            )

    async def close(self) -> None:
        """Wait for the messages in flight, none longer than its time budget, then disconnect.

        Requests that wait for a reply fail.

        Closing again waits for the first close, and does nothing more.
        """
        publisher, self.running = self.running, None
        if publisher is not None:
            self._closing = asyncio.create_task(self._close(publisher), name="close producer")
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self, publisher: Publisher) -> None:
        if self._meeting is not None:
            self._meeting.cancel()
        if self._requester is not None:
            self._requester.close()
        try:
            await publisher.flush()
        finally:
            publisher.close()
            try:
                if self._tracer is not None:
                    await self._tracer.close()
                await self.client.unregister_producer(self._wire_config.group)
                if self._checks is not None:
                    await self._checks.close()
            finally:
                await self._owner.close()

    @property
    def client(self) -> ClientInstance:
        """Connections and routes of the producer. Raises IllegalStateError before the start."""
        return self._owner.client

    @property
    def in_flight(self) -> int:
        """Number of accepted messages without an outcome."""
        return self.running.in_flight if self.running is not None else 0

    @property
    def publisher(self) -> Publisher:
        """Engine, for the blocking facade.

        Raises IllegalStateError unless the producer runs.
        """
        publisher = self.running
        if publisher is None:
            _ = self.client
            raise IllegalStateError("the producer is closed: make a new one")
        if not publisher.client.running:
            publisher.client.check_running()
        return publisher

    def _on_its_loop(self) -> Publisher:
        """Return the engine. Raises IllegalStateError unless the producer runs on this loop."""
        publisher = self.publisher
        publisher.client.check_loop()
        return publisher

    # --- sending ----------------------------------------------------------------------------------

    async def send(
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
        publisher = self._on_its_loop()
        pending = self.builder.message(
            topic,
            self.builder.raw(body),
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
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        pending.future = future
        await publisher.accept(pending, self.budget_s(timeout_s))
        return await future

    @explains_itself
    async def submit(
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
        """
        if unknown:
            refuse(Producer.submit, unknown)
        publisher = self.running or self.publisher
        publisher.client.check_loop()
        own_s = None if timeout_s is None else self.budget_s(timeout_s)
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
                publisher.clock(),
                on_done,
            )
        except NoRoom as full:
            return await full.wait()
        if not isinstance(offered, PendingSend):
            return offered
        # raises where nothing can be sent
        _ = self.publisher
        handle = publisher.handle_of(offered, on_done)
        await publisher.accept(offered, self.budget_s(timeout_s))
        return handle

    async def send_oneway(
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
        publisher = self._on_its_loop()
        pending = self.builder.message(
            topic, self.builder.raw(body), tag, keys, properties, sharding_key, queue
        )
        error: BaseException | None = None
        try:
            await publisher.send_oneway(pending, self.budget_s(timeout_s))
        except BaseException as exc:
            error = exc
            raise
        finally:
            if pending.on_end is not None:
                pending.on_end(pending, None, error)

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
    ) -> Transaction:
        """Open a transaction: its message is delivered if the block completes, and discarded if it
        raises.

        Entering the block stores the message invisibly, and raises what ``send`` raises. Leaving it
        tells the broker the decision, and raises nothing: if the broker cannot be reached or this
        process dies, the broker asks the *check* of a producer of the group. So it does for a block
        that is cancelled or interrupted. *timeout_s* covers entering, and leaving once more. Raises
        InvalidOption for a producer without a *check*.
        """
        publisher = self.publisher
        if isinstance(topic, Message) and topic.is_delayed:
            raise InvalidOption("a message is either transactional or delayed, not both")
        if isinstance(topic, Message) and topic.priority is not None:
            raise InvalidOption("a message with a priority cannot be transactional")
        if self._check is None:
            raise InvalidOption(
                "a transaction needs Producer(group=..., check=...): the check answers for it when "
                "this process dies"
            )
        pending = self.builder.message(
            topic, self.builder.raw(body), tag, keys, properties, sharding_key, queue
        )
        return Transaction(self.client, publisher, pending, self.budget_s(timeout_s))

    async def send_batch(
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
        publisher, budget = self._on_its_loop(), self.budget_s(timeout_s)
        waiting: list[tuple[Sequence[int], asyncio.Future[SendResult]]] = []
        try:
            for indexes, pending in self.builder.batches(topic, messages, tag, sharding_key, queue):
                future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
                pending.future = future
                await publisher.accept(pending, budget)
                waiting.append((indexes, future))
        except Exception:
            await asyncio.gather(*[future for _, future in waiting], return_exceptions=True)
            raise
        await asyncio.gather(*[future for _, future in waiting], return_exceptions=True)
        return in_order([(indexes, future.result()) for indexes, future in waiting])

    async def request(
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
        self._on_its_loop()
        assert self._requester is not None
        pending = self.builder.message(
            topic, self.builder.raw(body), tag, keys, properties, sharding_key, queue
        )
        return await self._requester.request(pending, self.budget_s(timeout_s))

    async def recall(
        self, topic: str, handle: str, *, timeout_s: float | None = None
    ) -> RecallResult:
        """Cancel a message that is to be delivered later; *handle* is the ``recall_handle`` of its
        SendResult.

        The result says whether the message was still waiting, if the broker reports it: see
        RecallResult. Raises InvalidOption for an invalid handle, NoRoute, NotSupported from a
        broker before 5.3.2, and a BrokerError with the code ILLEGAL_OPERATION if the time of the
        message has come, or NO_PERMISSION if recallMessageEnable is off at Apache's broker (the
        default there).
        """
        self._on_its_loop()
        client, budget = self.client, self.budget_s(timeout_s)
        broker_name = broker_of_handle(handle)
        topic, _ = self.builder.on_wire(topic, None)
        await client.routes.find(topic, timeout_s=budget)
        header = RecallMessageRequest(
            topic=topic,
            recall_handle=handle,
            producer_group=self._wire_config.group,
            broker_name=broker_name,
        )
        return await rpc.recall_message(
            client.pool, client.routes.broker_address(broker_name), header, timeout_s=budget
        )

    async def flush(self) -> None:
        """Wait until every message submitted so far has its outcome, which its handle holds."""
        await self._on_its_loop().flush()

    def budget_s(self, timeout_s: float | None) -> float:
        """Return the time that a send may take. Raises InvalidOption."""
        return (
            self.config.send_timeout_s if timeout_s is None else check_time("timeout_s", timeout_s)
        )

    def _ended(
        self, pending: PendingSend, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Report the outcome of messages that were sent together."""
        results = None if result is None else split_result(result, pending.keys)
        if self._tracer is not None and results is not None:
            record_sent(self._tracer, pending, results, self.config.group)
        if self._instrumentation is not None and pending.batch:
            self._send_ended(self._instrumentation, pending, pending.begun, results, error)
        elif self._instrumentation is not None:
            # submitted messages are sends of their own, though they travel together
            for index, one in enumerate(pending.begun):
                own = None if results is None else results[index : index + 1]
                self._send_ended(self._instrumentation, pending, (one,), own, error)
        for message, one in zip(pending.messages, results or itertools.repeat(None), strict=False):
            run_after(self.config.hooks, message, one, error)

    def _send_ended(
        self,
        instrumentation: Instrumentation,
        pending: PendingSend,
        begun: Sequence[Any],
        results: Sequence[SendResult] | None,
        error: BaseException | None,
    ) -> None:
        end = SendEnd(
            results=results,
            error=error,
            address="" if pending.target is None else pending.target.lane.address,
            client_id=self.client.client_id,
            namespace=self._namespace.name,
            is_batch=bool(pending.batch),
            is_transaction=bool(pending.sys_flag & SysFlag.TRANSACTION_PREPARED),
        )
        instrumentation.send_ended(begun, end)


def broker_of_handle(handle: str) -> str:
    """Return the name of the broker that issued a recall handle.

    Raises InvalidOption. Source: RecallMessageHandle.java, 5.5.
    """
    if not isinstance(handle, str):
        sends = "only a message sent with delay_s= or deliver_at= has one"
        raise TypeError(
            f"handle must be the recall_handle of a SendResult, not {type(handle).__name__}: "
            f"{sends}"
        )
    try:
        words = (
            base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True)
            .decode()
            .split(" ")
        )
    except (UnicodeError, ValueError):
        words = []
    if len(words) < HANDLE_WORDS or words[0] != "v1":
        raise InvalidOption(
            f"{handle[:80]!r} is not a recall handle: use SendResult.recall_handle of a message "
            "that waits for its time"
        )
    return words[2]


def in_order(stored: Iterable[tuple[Sequence[int], SendResult]]) -> list[SendResult]:
    """Return the results of messages that were sent in several requests, by their indexes."""
    results = {
        i: result
        for indexes, whole in stored
        for i, result in zip(indexes, split_result(whole, whole.id.split(",")), strict=True)
    }
    return [results[i] for i in range(len(results))]
