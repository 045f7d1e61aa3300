"""Check what a caller gives a producer, and build messages for the publisher."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ogive.client.config import ProducerConfig
from ogive.client.instrumentation import Instrumentation, run_before
from ogive.client.namespace import Namespace
from ogive.client.sending.handle import KEY_BYTES
from ogive.client.sending.pending import OnEnd, PendingSend
from ogive.errors import InvalidOption, MessageIllegal, ResponseCode
from ogive.model import (
    MAX_BODY_BYTES,
    Message,
    MessageQueue,
    PropertyName,
    as_keys,
    can_be_selected,
    check_queue,
    validate_topic,
)
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.compression import compress
from ogive.wire.message import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES, java_hash


def property_text(
    topic: str,
    body: bytes,
    tag: str | None,
    keys: tuple[str, ...],
    sharding_key: str | None,
    delay_level: int,
) -> str:
    """Return the stored properties of a message that has none of its own.

    Raises what ``Message`` raises for the same arguments.

    The same checks without making the object, because this runs for every message; anything but
    plain text is left to ``Message``.
    """
    text, entries = "", 0
    if tag is not None:
        text, entries = f"TAGS\x01{tag}\x02", 1 if type(tag) is str and can_be_selected(tag) else -1
    if keys:
        try:
            joined = " ".join(keys)
        except TypeError:
            # the message says which key is no text
            joined = ""
        text += f"KEYS\x01{joined}\x02"
        entries += 1
        if joined.count(" ") != len(keys) - 1 or not all(keys):
            entries = -1
    if sharding_key is not None:
        text += f"__SHARDINGKEY\x01{sharding_key}\x02"
        entries += 1 if type(sharding_key) is str else -1
    if delay_level:
        text += f"DELAY\x01{delay_level}\x02"
        entries += 1
    if (
        text.count("\x02") != entries
        or text.count("\x01") != entries
        or tag == ""
        or sharding_key == ""
    ):
        return message_property_text(
            Message(
                topic, body, tag=tag, keys=keys, sharding_key=sharding_key, delay_level=delay_level
            )
        )
    return text


def message_property_text(message: Message) -> str:
    """Return the stored properties of *message*, without its unique key."""
    properties = dict(message.properties)
    if message.tag is not None:
        properties[PropertyName.TAGS] = message.tag
    if message.keys:
        properties[PropertyName.KEYS] = " ".join(message.keys)
    if message.sharding_key is not None:
        properties[PropertyName.SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        properties[PropertyName.DELAY] = str(message.delay_level)
    if message.deliver_at is not None:
        properties[PropertyName.TIMER_DELIVER_MS] = str(
            round(message.deliver_at.timestamp() * 1000)
        )
    if message.delay_s is not None:
        properties[PropertyName.TIMER_DELAY_MS] = str(round(message.delay_s * 1000))
    if message.priority is not None:
        properties[PropertyName.PRIORITY] = str(message.priority)
    if not message.wait_store_ok:
        properties[PropertyName.WAIT] = "false"
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def with_unique_key(key: str, text: str) -> bytes:
    """Return all stored properties of a message.

    Raises MessageIllegal where a broker would refuse them.
    """
    try:
        raw = f"UNIQ_KEY\x01{key}\x02{text}".encode()
    except UnicodeEncodeError as exc:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL, f"a property cannot be written as UTF-8: {exc.reason}"
        ) from None
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(raw)} bytes of properties are over the limit of {MAX_PROPERTIES_BYTES}",
        )
    return raw


# as long as each of them
_SOME_KEY: Final = "0" * 32


def stored_text(text: str) -> bytes:
    """Return a message's properties as they are stored, without the unique key.

    Raises MessageIllegal where a broker would refuse them.
    """
    return with_unique_key(_SOME_KEY, text)[KEY_BYTES:]


def may_stand_in_batch(message: Message) -> bool:
    """Return True if brokers take the message in a batch."""
    return not (message.is_delayed or message.priority is not None or not message.wait_store_ok)


USUAL_LEVELS: Final = len(DelayLevels.parse().delays_ms)
"""Delay levels that brokers have unless they are set up otherwise."""
# fixed part and unique key
_BATCH_ITEM_BYTES: Final = 22 + 42
# of send_batch, at a time
BEGUN_BATCHES: Final = 4
# property texts of messages with a tag alone
MAX_TEXTS: Final = 256


class MessageBuilder:
    """Builder of one producer's messages. May be used on any thread.

    *ended* gets every outcome, unless it is None. With *is_observed* each message is an object that
    hooks or the instrumentation see.
    """

    def __init__(
        self,
        config: ProducerConfig,
        namespace: Namespace,
        serializer: Callable[[Any], bytes] | None,
        ended: OnEnd | None,
        instrumentation: Instrumentation | None = None,
    ) -> None:
        self._config = config
        self._namespace = namespace
        self.serializer = serializer
        self.ended = ended
        self._instrumentation = instrumentation
        self.is_observed = bool(config.hooks) or instrumentation is not None
        self._texts: dict[str, bytes] = {}

    def message(
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
        priority: int | None = None,
    ) -> PendingSend:
        """Build one message. Raises InvalidOption, MessageIllegal, TypeError.

        *body* is bytes: ``raw`` makes them.
        """
        check_arguments(sharding_key, queue)
        if (
            isinstance(topic, str)
            and type(body) is bytes
            and len(body) <= MAX_BODY_BYTES
            and not (properties or self.is_observed)
            and type(delay_level) is int
            and 0 <= delay_level <= USUAL_LEVELS
            and deliver_at is None
            and delay_s is None
            and priority is None
        ):
            text = property_text(
                topic, body, tag, as_keys(keys) if keys != () else (), sharding_key, delay_level
            )
            return self._pending(topic, body, text, sharding_key, queue)
        message = as_message(
            topic,
            body,
            tag,
            keys,
            properties,
            sharding_key,
            delay_level,
            deliver_at,
            delay_s,
            priority,
        )
        return self.pending_of(*self.begin(message), queue)

    def begin(self, message: Message) -> tuple[Message, tuple[Any, ...]]:
        """Show a message to the hooks and the instrumentation. Return the one to send, and what the
        instrumentation made of it.
        """
        message = run_before(self._config.hooks, message)
        if self._instrumentation is None:
            return message, ()
        message, begun = self._instrumentation.send_begins(message, in_batch=False)
        return message, (begun,)

    def pending_of(
        self, message: Message, begun: tuple[Any, ...], queue: MessageQueue | None
    ) -> PendingSend:
        """Build what is sent for *message*. Raises InvalidOption, MessageIllegal, TypeError."""
        text = message_property_text(message)
        pending = self._pending(
            message.topic, message.body, text, message.sharding_key, queue, message.flag
        )
        level = message.delay_level
        pending.unusual_level = level if level > USUAL_LEVELS else 0
        pending.messages, pending.begun = (message,), begun
        return pending

    def _pending(
        self,
        topic: str,
        body: bytes,
        text: str,
        sharding_key: str | None,
        queue: MessageQueue | None,
        flag: int = 0,
    ) -> PendingSend:
        topic, queue = self.on_wire(topic, queue)
        sys_flag = 0
        threshold = self._config.compress_over_bytes
        if threshold is not None and len(body) >= threshold:
            packed, bits = compress(body, self._config.compression, self._config.compress_level)
            if len(packed) < len(body):
                body, sys_flag = packed, bits
        pending = PendingSend(topic, body, text, sharding_key, queue, sys_flag, flag)
        pending.on_end = self.ended
        return pending

    def stored_text(
        self,
        name: str,
        body: bytes,
        tag: str | None,
        keys: str | Iterable[str],
        sharding_key: str | None,
    ) -> bytes:
        """Return the properties as they are stored, without the unique key. Raises what ``Message``
        raises, and MessageIllegal where a broker would refuse them.
        """
        alone = tag if keys == () and sharding_key is None and isinstance(tag, str) else None
        found = None if alone is None else self._texts.get(alone)
        if found is None:
            found = stored_text(property_text(name, body, tag, as_keys(keys), sharding_key, 0))
            if alone is not None:
                if len(self._texts) >= MAX_TEXTS:
                    self._texts.clear()
                self._texts[alone] = found
        return found

    def batches(
        self,
        topic: str,
        messages: Iterable[Any],
        tag: str | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
    ) -> Iterator[tuple[Sequence[int], PendingSend]]:
        """Build as few requests as possible; yield each with the indexes of its messages. No more
        of *messages* is taken than these, and what a few requests can carry.

        Raises InvalidOption, MessageIllegal, TypeError.

        *tag* and *sharding_key* go to the messages that are given as bodies.
        """
        check_arguments(sharding_key, queue)
        if isinstance(messages, (bytes, bytearray, memoryview, str)):  # iterable, too
            raise TypeError(
                f"a batch is a list of bodies or Messages, not {type(messages).__name__}: "
                "send_batch(topic, [body])"
            )
        wire_topic, wire_queue = self.on_wire(topic, queue)
        config = self._config
        # requests that have room for more, by the hash of their sharding key
        begun: dict[int | None, _Batch] = {}
        begun_bytes = 0
        for index, given in enumerate(messages):
            message = run_before(
                config.hooks,
                given
                if isinstance(given, Message)
                else Message(topic, self._serialized(given), tag=tag, sharding_key=sharding_key),
            )
            _check_in_batch(topic, message)
            begun_one = None
            if self._instrumentation is not None:
                message, begun_one = self._instrumentation.send_begins(message, in_batch=True)
            text = message_property_text(message)
            size = _BATCH_ITEM_BYTES + len(message.body) + len(text)
            own = message.sharding_key if queue is None else None
            key = None if own is None else java_hash(own)
            batch = begun.get(key)
            if batch is not None and not batch.has_room(size, config.max_batch_bytes):
                begun_bytes -= batch.bytes
                yield self._batch(begun.pop(key), wire_topic, wire_queue)
            batch = begun.setdefault(key, _Batch(message.sharding_key))
            batch.add(index, message, begun_one, text, size)
            begun_bytes += size
            if begun_bytes > BEGUN_BATCHES * config.max_batch_bytes:
                oldest = begun.pop(next(iter(begun)))
                begun_bytes -= oldest.bytes
                yield self._batch(oldest, wire_topic, wire_queue)
        for batch in begun.values():
            yield self._batch(batch, wire_topic, wire_queue)

    def _batch(
        self, batch: "_Batch", topic: str, queue: MessageQueue | None
    ) -> tuple[Sequence[int], PendingSend]:
        pending = PendingSend(topic, b"", "", batch.sharding_key, queue, batch=batch.rows)
        pending.size += batch.bytes
        pending.on_end, pending.messages, pending.begun = self.ended, batch.messages, batch.begun
        return batch.indexes, pending

    def on_wire(self, topic: str, queue: MessageQueue | None) -> tuple[str, MessageQueue | None]:
        """Return the names that brokers know. Raises InvalidOption, TypeError."""
        if queue is not None:
            check_queue(queue)
        if not self._namespace.name:
            return validate_topic(topic), queue
        return validate_topic(
            self._namespace.wrap(topic)
        ), None if queue is None else self._namespace.wrap_queue(queue)

    def raw(self, body: Any) -> Any:
        """Return *body* as the serializer makes it; unchanged without one, and if it is None, as
        beside a Message. Raises what the serializer raises, and TypeError if it returns no bytes.
        """
        return body if self.serializer is None or body is None else self._serialized(body)

    def _serialized(self, body: Any) -> bytes:
        if self.serializer is None:
            raw: bytes = body
            return raw
        raw = self.serializer(body)
        if not isinstance(raw, bytes):
            raise TypeError(
                f"the serializer gave a {type(raw).__name__} for a {type(body).__name__}: bytes "
                "are expected"
            )
        return raw


def check_arguments(sharding_key: str | None, queue: MessageQueue | None) -> None:
    """Raise InvalidOption for arguments that contradict each other."""
    if sharding_key is not None and queue is not None:
        raise InvalidOption("sharding_key and queue: only one of them can choose the queue")


class _Batch:
    """Messages of one request: they have the same queue, or the same hash of a sharding key."""

    def __init__(self, sharding_key: str | None) -> None:
        self.sharding_key = sharding_key
        self.indexes: list[int] = []
        self.messages: list[Message] = []
        # what the instrumentation made of each
        self.begun: list[Any] = []
        # flag, body and property text of each
        self.rows: list[tuple[int, bytes, str]] = []
        self.bytes = 0

    def has_room(self, size: int, max_bytes: int) -> bool:
        return self.bytes + size <= max_bytes and len(self.rows) < MAX_BATCH_MESSAGES

    def add(self, index: int, message: Message, begun: Any, text: str, size: int) -> None:
        self.indexes.append(index)
        self.messages.append(message)
        self.begun.append(begun)
        self.rows.append((message.flag, message.body, text))
        self.bytes += size


def _check_in_batch(topic: str, message: Message) -> None:
    """Raise InvalidOption for a message that cannot be sent in a batch for *topic*."""
    if message.topic != topic:
        raise InvalidOption(f"a message for {message.topic} is in a batch for {topic}")
    if message.is_delayed:
        raise InvalidOption("delayed messages cannot be sent in a batch")
    if message.priority is not None:
        raise InvalidOption("messages with a priority cannot be sent in a batch")


def as_message(
    topic: str | Message,
    body: bytes | None,
    tag: str | None,
    keys: str | Iterable[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
    deliver_at: datetime | None,
    delay_s: float | None,
    priority: int | None,
) -> Message:
    """Return the message that the arguments of a send describe.

    Raises InvalidOption, MessageIllegal, TypeError.
    """
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
            priority=priority,
        )
    if not isinstance(topic, Message):
        raise TypeError(f"topic must be str, or a Message in its place, not {type(topic).__name__}")
    given = (
        body,
        tag,
        keys or None,
        properties or None,
        sharding_key,
        delay_level or None,
        deliver_at,
        delay_s,
        priority,
    )
    if any(value is not None for value in given):
        raise InvalidOption(
            "a Message carries its own body, tag, keys, properties, sharding key, delay and "
            "priority: give nothing beside it"
        )
    return topic
