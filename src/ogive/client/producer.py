"""Sending messages. Source: DefaultMQProducer.java, DefaultMQProducerImpl.java, 5.3.

``publish.py`` says how it behaves, and where it differs from Java.
"""

import asyncio
import base64
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from ogive.client import api
from ogive.client.config import DEFAULT_GROUP, DEFAULT_NAME_SERVER, ClientConfig, ProducerConfig, check_time, own_config
from ogive.client.hooks import run_after, run_before
from ogive.client.instance import ClientInstance
from ogive.client.outgoing import Outgoing
from ogive.client.owner import ClientOwner
from ogive.client.publish import Publisher
from ogive.client.request import Requester
from ogive.client.routes import split_by_size
from ogive.client.send_frame import message_property_text, property_text
from ogive.client.trace import Tracer, record_sent
from ogive.client.transaction import Check, CheckService, Transaction
from ogive.errors import IllegalStateError, InvalidOption
from ogive.model import MAX_BODY_BYTES, Message, MessageExt, MessageQueue, SendResult, as_keys, validate_topic
from ogive.transport.tasks import every
from ogive.wire.compression import compress
from ogive.wire.headers import RecallMessageRequest
from ogive.wire.message import MAX_BATCH_MESSAGES, java_hash

if TYPE_CHECKING:  # type checkers know typing_extensions; at run time it is not needed, and may not be there
    from typing_extensions import TypeVar

    B = TypeVar("B", default=bytes)
else:
    from typing import TypeVar

    B = TypeVar("B")

HANDLE_WORDS: Final = 5  # version, topic, broker, time, unique key
_BATCH_ITEM_BYTES: Final = 22 + 42  # fixed part and unique key


class Producer(Generic[B]):
    """``async with Producer() as producer``. Used on one event loop; many tasks may share it.

    *client* is either the settings of its own client (instead of *name_server*), or a running client to share, which it leaves open.
    Leaving the block waits for the messages in flight. *check* answers the broker's questions about transactions of *group* that nobody
    ended: True commits, False rolls back, None means "not known yet". With a *serializer*, ``to_json`` for one, bodies are what it takes
    (``Producer[Order]``); a ``Message`` holds its bytes still.
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
        self._wire_config = replace(self.config, group=self._namespace.wrap(self.config.group)) if self._namespace else self.config
        if check is not None and self.config.group == DEFAULT_GROUP:
            raise InvalidOption("a check needs a producer group of its own: Producer(group=..., check=...)")
        self._serializer = serializer
        self._check = check
        self._checks: CheckService | None = None
        self._meeting: asyncio.Task[object] | None = None
        self._publisher: Publisher | None = None
        self._requester: Requester | None = None
        self._tracer: Tracer | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Asks nobody anything yet: the first message finds its broker. With a check every broker of the cluster is told, by and by."""
        client = await self._owner.start()
        client.register_producer(self._wire_config.group)
        self._publisher = Publisher(client, self._wire_config)
        self._requester = Requester(client, self._publisher)
        self._tracer = Tracer(client, self.config.group, "PRODUCE") if self.config.trace else None
        if self._check is not None:
            self._checks = CheckService(client, self._check, self._wire_config)
            self._meeting = client.spawn(every(client.config.route_period_s, client.meet_all_brokers, name="brokers"), "brokers")

    async def close(self) -> None:
        """Wait for the messages in flight, none longer than its time budget, then leave. Requests without a reply end with an error.

        Harmless when repeated.
        """
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
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

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def client(self) -> ClientInstance:
        """The connections and routes that this producer uses. Raises IllegalStateError before it is started."""
        return self._owner.client

    @property
    def in_flight(self) -> int:
        """Messages that were accepted and have no outcome yet."""
        return self._publisher.in_flight if self._publisher is not None else 0

    @property
    def publisher(self) -> Publisher:
        """The engine, for the blocking facade. Raises IllegalStateError unless the producer runs."""
        publisher = self._publisher
        if publisher is None:
            _ = self.client
            raise IllegalStateError("the producer is closed: make a new one")
        if not publisher.client.running:
            publisher.client.check_running()
        return publisher

    # --- sending -----------------------------------------------------------------------------------------------------

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
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until the broker has it. A ``Message`` stands for topic, body and all that describes the message.

        *timeout_s* is the whole budget: route, connection and every try. Messages with equal *sharding_key* go to one queue; *queue* names
        one. *deliver_at* and *delay_s* are for brokers from 5.0 on, older ones deliver at once. Raises NoRoute, NoNameServer,
        MessageIllegal and other BrokerErrors, SendFailed (certainly not stored), SendTimeout (nobody knows). A cancelled send may still
        arrive.
        """
        future = await self.submit(
            topic,
            body,
            tag=tag,
            keys=keys,
            properties=properties,
            sharding_key=sharding_key,
            queue=queue,
            delay_level=delay_level,
            deliver_at=deliver_at,
            delay_s=delay_s,
            timeout_s=timeout_s,
        )
        return await future

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
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Like ``send``, but waits only until there is room among the messages in flight; the future gets the result.

        Messages of one queue are stored in the order in which they were submitted.
        """
        publisher = self.publisher
        outgoing = self.prepare(topic, body, tag, keys, properties, sharding_key, queue, delay_level, deliver_at, delay_s)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        outgoing.future = future
        await publisher.accept(outgoing, self.budget_s(timeout_s))
        return future

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
        """Send without an answer: nothing tells whether the message arrived. Raises only what goes wrong before it leaves."""
        publisher = self.publisher
        outgoing = self.prepare(topic, body, tag, keys, properties, sharding_key, queue)
        error: BaseException | None = None
        try:
            await publisher.send_oneway(outgoing, self.budget_s(timeout_s))
        except BaseException as exc:
            error = exc
            raise
        finally:
            if outgoing.on_end is not None:
                outgoing.on_end(outgoing, None, error)

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
        """A message that is delivered if the block is left, and never if it raises.

        Entering stores it where nobody sees it, and raises what ``send`` raises. Leaving tells the broker, and raises nothing: if the
        broker cannot be reached, or this process dies, it asks the check of a producer of the group. A block that is cancelled or
        interrupted leaves the decision to the check, too. *timeout_s* is the budget of entering, and again of leaving.
        """
        publisher = self.publisher
        if isinstance(topic, Message) and topic.is_delayed:
            raise InvalidOption("a message is either transactional or delayed, not both")
        outgoing = self.prepare(topic, body, tag, keys, properties, sharding_key, queue)
        return Transaction(self.client, publisher, outgoing, self.budget_s(timeout_s))

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
        """Send many messages in few requests; one result per message, in their order.

        Each request is stored whole or not at all, on one queue; there are as many as the size limit needs, and one per queue where
        messages have sharding keys. When some fail, the first error is raised after all have their outcome. *tag* and *sharding_key* go to
        the messages that are given as bytes.
        """
        publisher = self.publisher
        hooks = self.config.hooks
        items = [
            run_before(hooks, m if isinstance(m, Message) else Message(topic, self._raw(m), tag=tag, sharding_key=sharding_key))
            for m in messages
        ]
        budget = self.budget_s(timeout_s)
        waiting: list[tuple[Sequence[int], asyncio.Future[SendResult]]] = []
        wire_topic, queue = self._on_wire(topic, queue)
        try:
            for indexes in self._batches(topic, items, queue):
                rows = [items[i] for i in indexes]
                batch = [(m.flag, m.body, message_property_text(m)) for m in rows]
                outgoing = Outgoing(wire_topic, b"", "", rows[0].sharding_key, queue, batch=batch)
                outgoing.size += sum(_batch_item_bytes(m) for m in rows)
                if self._is_observed:
                    outgoing.on_end = partial(self._ended, rows)
                future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
                outgoing.future = future
                await publisher.accept(outgoing, budget)
                waiting.append((indexes, future))
        finally:
            if waiting:
                await asyncio.wait([future for _, future in waiting])
        results: list[SendResult | None] = [None] * len(items)
        for indexes, future in waiting:
            for i, result in zip(indexes, _split_result(future.result()), strict=True):
                results[i] = result
        return [result for result in results if result is not None]

    def _batches(self, topic: str, items: Sequence[Message], queue: MessageQueue | None) -> Iterable[Sequence[int]]:
        """Indexes of the messages of each request: same queue or same sharding key's hash, at most the size limit, in order."""
        groups: dict[int | None, list[int]] = {}
        for i, message in enumerate(items):
            if message.topic != topic:
                raise InvalidOption(f"a message for {message.topic} stands in a batch for {topic}")
            if message.is_delayed:
                raise InvalidOption("delayed messages cannot be sent in a batch")
            key = None if message.sharding_key is None or queue is not None else java_hash(message.sharding_key)
            groups.setdefault(key, []).append(i)
        for group in groups.values():
            sizes = [_batch_item_bytes(items[i]) for i in group]
            for part in split_by_size(sizes, self.config.max_batch_bytes, MAX_BATCH_MESSAGES):
                yield group[part]

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
        """Send a message, and wait for the reply of whoever consumes it: a listener that returns ``ogive.Reply``.

        *timeout_s* is the whole budget, from the route to the reply. Raises ReplyTimeout (nobody knows whether it was carried out), what
        ``send`` raises for a message that was not stored, TooManyRequests, and IllegalStateError when the producer is closed meanwhile.
        A reply that comes later is dropped. A cancelled request may still be carried out.
        """
        _ = self.publisher
        assert self._requester is not None
        outgoing = self.prepare(topic, body, tag, keys, properties, sharding_key, queue)
        return await self._requester.request(outgoing, self.budget_s(timeout_s))

    async def recall(self, topic: str, handle: str, *, timeout_s: float | None = None) -> str:
        """Take back a message to *topic* that waits for its time; *handle* is the ``recall_handle`` of its SendResult. Returns its id.

        Raises InvalidOption for a handle that no broker gave, NoRoute, NotSupported from a broker before 5.3.2, and other BrokerErrors:
        ILLEGAL_OPERATION where its time has come. Apache's brokers answer so, too, unless recallMessageEnable is true there.
        """
        _ = self.publisher
        client, budget = self.client, self.budget_s(timeout_s)
        broker_name = broker_of_handle(handle)
        topic, _ = self._on_wire(topic, None)
        await client.route(topic, timeout_s=budget)
        header = RecallMessageRequest(topic=topic, recall_handle=handle, producer_group=self._wire_config.group, broker_name=broker_name)
        return await api.recall_message(client.pool, client.broker_address(broker_name), header, timeout_s=budget)

    async def flush(self) -> None:
        """Wait until every message submitted so far has its outcome; the futures hold it."""
        await self.publisher.flush()

    # --- forming -----------------------------------------------------------------------------------------------------

    def budget_s(self, timeout_s: float | None) -> float:
        """The time that a send may take. Raises InvalidOption."""
        return self.config.send_timeout_s if timeout_s is None else check_time("timeout_s", timeout_s)

    def prepare(
        self,
        topic: str | Message,
        body: Any,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
    ) -> Outgoing:
        """Check and form one message; on any thread. Raises InvalidOption, MessageIllegal, TypeError."""
        hooks = self.config.hooks
        message, flag = None, 0
        if self._serializer is not None and body is not None:
            body = self._raw(body)
        if (
            isinstance(topic, str)
            and type(body) is bytes
            and len(body) <= MAX_BODY_BYTES
            and not (properties or hooks)
            and delay_level >= 0
            and deliver_at is None
            and delay_s is None
        ):
            text = property_text(topic, body, tag, as_keys(keys) if keys else (), sharding_key, delay_level)
        else:
            message = run_before(hooks, _as_message(topic, body, tag, keys, properties, sharding_key, delay_level, deliver_at, delay_s))
            topic, body, sharding_key, flag = message.topic, message.body, message.sharding_key, message.flag
            text = message_property_text(message)
        topic, queue = self._on_wire(topic, queue)
        sys_flag = 0
        threshold = self.config.compress_over_bytes
        if threshold is not None and len(body) >= threshold:
            packed, bits = compress(body, self.config.compression, self.config.compress_level)
            if len(packed) < len(body):
                body, sys_flag = packed, bits
        outgoing = Outgoing(topic, body, text, sharding_key, queue, sys_flag, flag)
        if self._is_observed:
            outgoing.on_end = partial(self._ended, () if message is None else (message,))
        return outgoing

    def _raw(self, body: Any) -> bytes:
        """What stands for *body*. Raises what the serializer raises, TypeError where it gives no bytes."""
        raw = body if self._serializer is None else self._serializer(body)
        if self._serializer is not None and not isinstance(raw, bytes):
            raise TypeError(f"the serializer gave a {type(raw).__name__} for a {type(body).__name__}: bytes are expected")
        return raw

    def _on_wire(self, topic: str, queue: MessageQueue | None) -> tuple[str, MessageQueue | None]:
        """The names that brokers know. Raises InvalidOption."""
        if not self._namespace:
            return validate_topic(topic), queue
        return validate_topic(self._namespace.wrap(topic)), None if queue is None else self._namespace.wrap_queue(queue)

    @property
    def _is_observed(self) -> bool:
        return bool(self.config.hooks) or self.config.trace

    def _ended(self, messages: Sequence[Message], outgoing: Outgoing, result: SendResult | None, error: BaseException | None) -> None:
        """What became of *messages*, which went together; the hooks' view of them, empty where there is no hook."""
        results = None if result is None else _split_result(result)
        if self._tracer is not None and results is not None:
            record_sent(self._tracer, outgoing, results, self.config.group)
        for message, one in zip(messages, results or itertools.repeat(None), strict=False):
            run_after(self.config.hooks, message, one, error)


def _as_message(
    topic: str | Message,
    body: bytes | None,
    tag: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
    deliver_at: datetime | None,
    delay_s: float | None,
) -> Message:
    """The message that the arguments of a send describe. Raises InvalidOption, MessageIllegal, TypeError."""
    if isinstance(topic, str):
        if body is None:
            raise TypeError("a body is missing: send(topic, body), or send(Message(...))")
        return Message(
            topic,
            body,
            tag=tag,
            keys=as_keys(keys),
            properties=properties or {},
            sharding_key=sharding_key,
            delay_level=delay_level,
            deliver_at=deliver_at,
            delay_s=delay_s,
        )
    if not isinstance(topic, Message):
        raise TypeError(f"topic must be str, or a Message in its place, not {type(topic).__name__}")
    given = (body, tag, keys or None, properties or None, sharding_key, delay_level or None, deliver_at, delay_s)
    if any(value is not None for value in given):
        raise InvalidOption("a Message carries its own body, tag, keys, properties, sharding key and delay: give nothing beside it")
    return topic


def broker_of_handle(handle: str) -> str:
    """Which broker gave a recall handle. Raises InvalidOption. Source: RecallMessageHandle.java, 5.5."""
    try:
        words = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode().split(" ")
    except (UnicodeError, ValueError):
        words = []
    if len(words) < HANDLE_WORDS or words[0] != "v1":
        raise InvalidOption(f"{handle[:80]!r} is no recall handle: it stands in the SendResult of a message that waits for its time")
    return words[2]


def _batch_item_bytes(message: Message) -> int:
    text = len(message_property_text(message)) if message.properties or message.tag or message.keys or message.sharding_key else 0
    return _BATCH_ITEM_BYTES + len(message.body) + text


def _split_result(result: SendResult) -> list[SendResult]:
    """A batch's result as one per message: consecutive offsets of one queue."""
    keys, ids = result.id.split(","), result.offset_id.split(",")
    if len(ids) != len(keys):
        ids = [result.offset_id] * len(keys)  # a topic that keeps batches whole has one id for all
    rows = zip(keys, ids, strict=True)
    return [SendResult(result.status, key, offset_id, result.queue, result.queue_offset + i) for i, (key, offset_id) in enumerate(rows)]
