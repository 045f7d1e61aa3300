"""Rows of Arrow batches as messages, each with its unique key. Pure.

Names in `properties` that RocketMQ reserves are left out: a map that came out of a topic has them, they tell of the message's first life.
"""

import hashlib
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ogive.client.send_frame import message_property_text, with_unique_key
from ogive.errors import MessageIllegal, OgiveError, SendFailed
from ogive.model import MAX_BODY_BYTES, RESERVED_PROPERTIES, Message, MessageQueue

_MAX_LEVEL: Final = 0x7FFFFFFF  # Java's brokers read an int; above their last level they take that
_COLUMNS: Final = (
    "body", "tags", "keys", "properties", "shardingKey", "delayTimeLevel", "deliverAt", "brokerName", "queueId", "uniqueKey",
)  # fmt: skip
_PLAIN: Final = frozenset({"topic", "body", "tags", "keys"})
_SHORT: Final = 8000  # characters of properties that are within every limit, whatever they take as UTF-8
_SALT_DIGITS: Final = 20
_ROW_DIGITS: Final = 12

KeyOf = Callable[[int], str]
"""The unique key of a row, by its number in its partition."""


class Row(NamedTuple):
    """One message, and which row of its partition it was. *queue* is the one that the row names; *alone*: it cannot travel in a batch."""

    number: int
    topic: str
    body: bytes
    key: str
    properties: bytes  # as stored
    sharding_key: str | None = None
    queue: tuple[str, int] | None = None  # broker name ("" where the row leaves it out) and queue id
    alone: bool = False

    @property
    def size(self) -> int:
        """Bytes in a batch."""
        return 22 + len(self.body) + len(self.properties)


def numbered_keys(*origin: object) -> KeyOf:
    """Keys that are the same whenever *origin* and the row's number are: 32 digits, as those of clients."""
    salt = hashlib.sha256("\0".join(map(str, origin)).encode()).hexdigest()[:_SALT_DIGITS].upper()
    return lambda number: f"{salt}{number:0{_ROW_DIGITS}X}"


def key_of_text(text: str) -> str:
    """The unique key that stands for what a user calls unique."""
    return hashlib.sha256(text.encode()).hexdigest()[: _SALT_DIGITS + _ROW_DIGITS].upper()


def form(batch: pa.RecordBatch, topic: str | None, first: int, partition: int, key_of: KeyOf) -> Iterator[Row]:
    """The rows of *batch* as messages; *topic* overrides the column. Raises SendFailed that names the row which cannot be sent."""
    names = batch.schema.names
    nothing: list[Any] = [None] * batch.num_rows

    def column(name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist() if name in names else nothing
        return values

    topics = [topic] * batch.num_rows if topic is not None else column("topic")
    plain = _PLAIN.issuperset(names)
    for number, (name, *values) in enumerate(zip(topics, *map(column, _COLUMNS), strict=True), first):
        row = _plain_row(number, name, values[0], values[1], values[2], key_of) if plain else None
        if row is not None:
            yield row
            continue
        try:
            yield _row(number, name, values, key_of)
        except (OgiveError, TypeError, ValueError) as exc:
            why = exc.remark if isinstance(exc, MessageIllegal) else exc  # no broker was asked yet
            raise SendFailed(f"row {number} of partition {partition} cannot be sent: {why}") from exc


def _plain_row(number: int, topic: Any, body: Any, tag: Any, keys: Any, key_of: KeyOf) -> Row | None:
    """The row, made in a fraction of the time that `_row` takes; None where anything about it needs a closer look."""
    if type(body) is str:
        body = body.encode()
    if type(body) is not bytes or len(body) > MAX_BODY_BYTES or topic is None:
        return None
    key = key_of(number)
    text, count = f"UNIQ_KEY\x01{key}\x02", 1
    if tag is not None:
        text, count = f"{text}TAGS\x01{tag}\x02", count + 1
    if keys is not None:
        if type(keys) is not str or " " in keys or not keys:
            return None
        text, count = f"{text}KEYS\x01{keys}\x02", count + 1
    if tag == "" or text.count("\x01") != count or text.count("\x02") != count or len(text) > _SHORT:
        return None
    return Row(number, topic, body, key, text.encode())


def _row(number: int, topic: Any, values: list[Any], key_of: KeyOf) -> Row:
    body, tag, keys, properties, sharding_key, delay, deliver_at, broker_name, queue_id, unique = values
    message = Message(
        _present("topic", topic),
        _bytes(body),
        tag=tag,
        keys=_keys(keys),
        properties=_own(properties) if properties else {},
        sharding_key=sharding_key,
        delay_level=_level(delay),
    )
    text = message_property_text(message)
    if deliver_at is not None:
        if message.delay_level:
            raise ValueError("it has a delay level and a time of delivery: one of them")
        text += f"TIMER_DELIVER_MS\x01{_ms(deliver_at)}\x02"
    key = key_of(number) if unique is None else key_of_text(unique)
    alone = bool(message.delay_level) or deliver_at is not None
    queue = _queue(broker_name, queue_id, sharding_key)
    return Row(number, message.topic, message.body, key, with_unique_key(key, text), sharding_key, queue, alone)


def _present(name: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"its {name} is null")
    return value


def _bytes(body: str | bytes | None) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(_present("body", body))


def _keys(keys: str | list[str | None] | None) -> tuple[str, ...]:
    """As a column of text, where spaces separate keys as they do on the wire, or as one of arrays."""
    if keys is None:
        return ()
    if isinstance(keys, str):
        return tuple(keys.split())
    return tuple(_present("array of keys", key) for key in keys)


def _level(delay: int | None) -> int:
    if delay is not None and not 0 <= delay <= _MAX_LEVEL:
        raise ValueError(f"its delay level {delay} is outside 0 to {_MAX_LEVEL}")
    return delay or 0


def _ms(at: datetime | int) -> int:
    return at if isinstance(at, int) else int(at.timestamp() * 1000)


def _queue(broker_name: str | None, queue_id: int | None, sharding_key: str | None) -> tuple[str, int] | None:
    if queue_id is None:
        if broker_name is not None:
            raise ValueError("it names a broker, but no queue")
        return None
    if sharding_key is not None:
        raise ValueError("it has a sharding key and a queue: one of them")
    if queue_id < 0:
        raise ValueError(f"its queue id {queue_id} is below 0")
    return broker_name or "", queue_id


def _own(properties: list[tuple[str, str | None]]) -> dict[str, str]:
    return {name: value for name, value in properties if value is not None and name not in RESERVED_PROPERTIES}


def queue_of(row: Row, queues: tuple[MessageQueue, ...]) -> MessageQueue | None:
    """The queue that *row* must go to; None where any will do. Raises ValueError for one that the topic does not have."""
    if row.queue is None:
        return None
    broker_name, queue_id = row.queue
    named = [queue for queue in queues if queue.queue_id == queue_id and broker_name in ("", queue.broker_name)]
    if len(named) != 1:
        raise ValueError(f"{len(named)} queues of topic {row.topic} are called {broker_name or '*'}/{queue_id}")
    return named[0]
