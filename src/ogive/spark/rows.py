"""Rows of Arrow batches as messages, each with its unique key. Pure.

Names in `properties` that RocketMQ reserves are left out: a map that was read from a topic has
them, and they belong to the message's first life.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ogive.client.sending.message_builder import USUAL_LEVELS, with_unique_key
from ogive.errors import InvalidOption, MessageIllegal, OgiveError, SendFailed
from ogive.model import (
    MAX_BODY_BYTES,
    RESERVED_PROPERTIES,
    Message,
    MessageQueue,
    PropertyName,
    check_tag,
    instant,
    is_written_by_brokers_alone,
    validate_topic,
)
from ogive.native import Texts, native
from ogive.spark.cluster import DelayLimits
from ogive.spark.option_names import SINK_COLUMNS
from ogive.wire.message import MAX_BATCH_MESSAGES, decode_properties

# Java's brokers read an int
_MAX_LEVEL: Final = 0x7FFFFFFF
_PLAIN: Final = frozenset({"topic", "body", "tags", "keys"})
_UNUSUAL_IN_TAG: Final = "|*" + "".join(map(chr, range(0x21)))
"""Characters of a tag for which check_tag() decides: perhaps no consumer can select such a tag."""
_WITH_UNUSUAL: Final = f"[{re.escape(_UNUSUAL_IN_TAG)}]"
_ENCODED: Final = {
    "body": (pa.string(), pa.binary()),
    "tags": (pa.string(),),
    "keys": (pa.string(),),
}
"""The columns that the compiled part reads, and their types there."""
# number of characters with which two properties are within every limit, however long they are in
# UTF-8
_SHORT: Final = 4000
_KEPT: Final = 32 * 1024
"""Characters of each column in the dead letter of a row that is too long for a message."""
OTHER_WAYS: Final = (
    ". With the option invalidRows=drop such rows are left out, with deadLetter "
    "they go to deadLetterTopic"
)
_ROW_DIGITS: Final = 12
HEAD_DIGITS: Final = 20
KEY_DIGITS: Final = HEAD_DIGITS + _ROW_DIGITS


class Row(NamedTuple):
    """One message, and the number of its row in the partition.

    *queue* is the one in the row; *alone*: it cannot be sent in a batch.
    """

    number: int
    topic: str
    body: bytes
    key: str
    properties: bytes  # as stored
    sharding_key: str | None = None
    # broker name ("" if the row does not have it) and queue id
    queue: tuple[str, int] | None = None
    alone: bool = False
    # its key is one of the user's
    named: bool = False

    @property
    def size(self) -> int:
        """Bytes in a batch."""
        return 22 + len(self.body) + len(self.properties)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows of one topic that may go to any queue, as the body of a batch."""

    first: int  # row number
    count: int
    body: bytes


class Keys:
    """The unique keys of a partition's rows: HEAD_DIGITS that identify the origin, and the row's
    number; 32 digits, as those of clients.

    They are equal whenever *origin* (which write it is), the partition and the number are. With
    *of_content* the head identifies the row's content, too, for twice the time: then stored keys
    identify the stored rows even if Spark has changed the order of the rows since.
    """

    def __init__(self, *origin: object, partition: int, of_content: bool) -> None:
        self._origin = hashlib.sha256("\0".join(map(str, origin)).encode()).digest()
        self._salt = hashlib.sha256("\0".join(map(str, (*origin, partition))).encode()).digest()
        # the head of every row's key
        self.head = None if of_content else self._salt.hex()[:HEAD_DIGITS].upper()
        self._of_content, self._form = of_content, f"{self.head or '%s'}%0{_ROW_DIGITS}X"

    def of(
        self,
        numbers: Sequence[int],
        topics: Sequence[str],
        texts: Sequence[str],
        bodies: Sequence[bytes],
    ) -> list[str]:
        """Return the keys of rows. *texts* has everything else about them."""
        if not self._of_content:
            return list(map(self._form.__mod__, numbers))
        form = self._form
        salt = self._salt
        digest = hashlib.blake2b
        size = HEAD_DIGITS // 2
        return [
            form
            % (
                digest(f"{topic}\0{len(body)}\0{text}".encode() + body, digest_size=size, key=salt)
                .hexdigest()
                .upper(),
                number,
            )
            for number, topic, text, body in zip(numbers, topics, texts, bodies, strict=True)
        ]

    def named(self, topic: str, text: str) -> str:
        """Return the key for the user's own key *text*.

        With *of_content* it belongs to this write and topic only, in any partition: a message of
        another writer, or of another batch, is not a row of this one.
        """
        if not self._of_content:
            return key_of_text(text)
        return (
            hashlib.blake2b(
                f"{topic}\0{text}".encode(), digest_size=KEY_DIGITS // 2, key=self._origin
            )
            .hexdigest()
            .upper()
        )


def key_of_text(text: str) -> str:
    """Return the unique key for the user's own key, which is the same for all writers."""
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS].upper()


LimitsOf = Callable[[str], DelayLimits]
"""Return the limits of a topic."""


def _no_limits(_: str) -> DelayLimits:
    return DelayLimits()


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """A row that no broker would accept, and the reason."""

    number: int
    why: str
    columns: Mapping[str, Any]


def form(
    batch: pa.RecordBatch,
    topic: str | None,
    first: int,
    partition: int,
    keys: Keys,
    invalid: list[InvalidRow] | None = None,
    limits: LimitsOf = _no_limits,
) -> list[Row]:
    """Return the rows of *batch* as messages; *topic* overrides the column.

    A row that cannot be sent is added to *invalid*; without *invalid*, raises SendFailed that names
    it. *limits* is called for high delay levels, and for future times of delivery.
    """
    values = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    if topic is not None:
        values["topic"] = [topic] * batch.num_rows
    rows = _plain_rows(values, first, keys) if _PLAIN.issuperset(values) else None
    if rows is not None:
        return rows
    nothing: list[Any] = [None] * batch.num_rows
    columns = [values.get(name, nothing) for name in ("topic", *SINK_COLUMNS)]
    rows = []
    for number, (name, *fields) in enumerate(zip(*columns, strict=True), first):
        try:
            rows.append(_row(number, name, fields, keys, limits))
        except (OgiveError, TypeError, ValueError) as exc:
            # raised before any request
            why = exc.remark if isinstance(exc, MessageIllegal) else exc
            if invalid is None:
                raise SendFailed(
                    f"row {number} of partition {partition} cannot be sent: {why}{OTHER_WAYS}"
                ) from exc
            given = dict(zip(("topic", *SINK_COLUMNS), (name, *fields), strict=True))
            invalid.append(
                InvalidRow(
                    number,
                    str(why),
                    {name: value for name, value in given.items() if value is not None},
                )
            )
    return rows


def refused_row(row: Row, topic: str, why: str) -> InvalidRow:
    """Return a row that its broker refused; *topic* is without the namespace."""
    properties = decode_properties(row.properties)
    del properties[PropertyName.UNIQ_KEY]
    columns: dict[str, Any] = {
        "topic": topic,
        "body": row.body,
        "tags": properties.pop(PropertyName.TAGS, None),
        "keys": properties.pop(PropertyName.KEYS, None),
        "properties": properties or None,
        "shardingKey": row.sharding_key,
        "queueId": None if row.queue is None else row.queue[1],
    }
    return InvalidRow(
        row.number, why, {name: value for name, value in columns.items() if value is not None}
    )


def dead_letters(
    invalid: Sequence[InvalidRow], topic: str, partition: int, keys: Keys
) -> list[Row]:
    """Return *invalid* as messages of *topic*: JSON with all columns and the reason."""
    numbers = [row.number for row in invalid]
    bodies = [_letter(row, partition) for row in invalid]
    texts = [""] * len(bodies)
    unique = keys.of(numbers, [topic] * len(bodies), texts, bodies)
    return [
        Row(number, topic, body, key, with_unique_key(key, text))
        for number, body, key, text in zip(numbers, bodies, unique, texts, strict=True)
    ]


def _letter(row: InvalidRow, partition: int) -> bytes:
    """Return ``{"reason": .., "partition": .., "row": .., "columns": {..}}``.

    If that is too long for a message, the start of each column.
    """

    def text_of(value: Any) -> Any:
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return {"base64": base64.b64encode(value).decode()}
        return str(value)

    said = {"reason": row.why, "partition": partition, "row": row.number}
    letter = json.dumps({**said, "columns": row.columns}, default=text_of).encode()
    if len(letter) <= MAX_BODY_BYTES:
        return letter
    cut = {
        name: value[:_KEPT] if isinstance(value, str | bytes) else str(value)[:_KEPT]
        for name, value in row.columns.items()
    }
    return json.dumps({**said, "cut": True, "columns": cut}, default=text_of).encode()


def encode(
    batch: pa.RecordBatch, topic: str | None, first: int, keys: Keys, most_bytes: int
) -> tuple[str, list[Encoded]] | None:
    """Return the topic of the rows of *batch*, and the rows in batches: the result of form() and
    encode_batch(), in a tenth of the time.

    Return None if they are for several topics, if there is only one row, if form() has to check one
    of them, and without the compiled part.
    """
    if (
        native is None
        or keys.head is None
        or batch.num_rows < 2
        or not _PLAIN.issuperset(batch.schema.names)
    ):
        return None
    if topic is None:
        topics = batch.column("topic").unique().to_pylist()
        if len(topics) != 1 or not _is_topic(topics[0]):
            return None
        topic = topics[0]
    columns = {name: batch.column(name) for name in _ENCODED if name in batch.schema.names}
    if any(column.type not in _ENCODED[name] for name, column in columns.items()):
        return None
    if (
        "tags" in columns
        and pc.any(pc.match_substring_regex(columns["tags"], _WITH_UNUSUAL)).as_py()
    ):
        return None
    texts = {name: _texts(column) for name, column in columns.items()}
    found = native.encode_rows(
        batch.num_rows,
        texts["body"],
        texts.get("tags"),
        texts.get("keys"),
        keys.head.encode(),
        first,
        most_bytes,
        MAX_BATCH_MESSAGES,
    )
    if found is None:
        return None
    encoded = []
    for count, body in found:
        encoded.append(Encoded(first, count, body))
        first += count
    return topic, encoded


def _topic(name: str) -> str:
    """Return *name* if messages may be sent to this topic. Raises InvalidOption."""
    if is_written_by_brokers_alone(name):
        raise InvalidOption(f"topic {name} is one of the brokers' own, to which nobody may send")
    return validate_topic(name)


def _is_topic(name: str | None) -> bool:
    try:
        return name is not None and bool(_topic(name))
    except InvalidOption:
        return False


def _texts(column: Any) -> Texts:
    return (column.type == pa.string(), column.offset, *column.buffers())


def _plain_rows(values: dict[str, list[Any]], first: int, keys: Keys) -> list[Row] | None:
    """Return the rows, built in a fifth of the time of `_row`, or None if one of them needs a full
    check.
    """
    topics, bodies = values["topic"], values["body"]
    count = len(bodies)
    if not all(map(_is_topic, set(topics))):
        return None
    tags = _as_property("TAGS", values.get("tags"), count, _UNUSUAL_IN_TAG)
    names = _as_property("KEYS", values.get("keys"), count, " ")
    if tags is None or names is None or None in bodies:
        return None
    if count and isinstance(bodies[0], str):
        bodies = [body.encode() for body in bodies]
    if max(map(len, bodies), default=0) > MAX_BODY_BYTES:
        return None
    numbers = range(first, first + count)
    texts = list(map(str.__add__, tags, names))
    unique = keys.of(numbers, topics, texts, bodies)
    properties = [
        f"UNIQ_KEY\x01{key}\x02{text}".encode() for key, text in zip(unique, texts, strict=True)
    ]
    # a third of what the call of a named tuple costs
    row, nothing, no = tuple.__new__, repeat(None), repeat(False)
    return [
        row(Row, fields)
        for fields in zip(
            numbers, topics, bodies, unique, properties, nothing, nothing, no, no, strict=False
        )
    ]


def _as_property(
    name: str, values: list[Any] | None, count: int, forbidden: str = ""
) -> list[str] | None:
    """Return the property as it is stored, with "" for a null value, or None if a value is empty,
    long, an array or has a separator.
    """
    given = [] if values is None else [value for value in values if value is not None]
    if values is None or not given:
        return [""] * count
    if not isinstance(given[0], str) or "" in given or len(max(given, key=len)) > _SHORT:
        return None
    joined = "".join(given)
    if any(separator in joined for separator in f"\x01\x02{forbidden}"):
        return None
    return ["" if value is None else f"{name}\x01{value}\x02" for value in values]


def _row(number: int, topic: Any, values: list[Any], keys_of: Keys, limits: LimitsOf) -> Row:
    body, tag, keys, properties, sharding_key, delay, deliver_at, broker_name, queue_id, unique = (
        values
    )
    # raises if these are invalid
    message = Message(_topic(_present("topic", topic)), _bytes(body))
    stored = _own(properties) if properties else {}
    if tag is not None:
        stored[PropertyName.TAGS] = _stored("tag", tag)
        check_tag(tag)
    if keys := _keys(keys):
        stored[PropertyName.KEYS] = keys
    if sharding_key is not None:
        stored[PropertyName.SHARDING_KEY] = _stored("sharding key", sharding_key)
    if level := _level(delay, message.topic, limits):
        stored[PropertyName.DELAY] = str(level)
    if deliver_at is not None:
        if level:
            raise ValueError("it has a delay level and a time of delivery: one of them")
        stored[PropertyName.TIMER_DELIVER_MS] = str(_time(_ms(deliver_at), message.topic, limits))
    alone = bool(level) or deliver_at is not None
    queue = _queue(broker_name, queue_id, sharding_key)
    text = "".join([f"{name}\x01{value}\x02" for name, value in stored.items()])
    if unique is None:
        (key,) = keys_of.of(
            (number,),
            (message.topic,),
            (text if queue is None else f"{queue}\0{text}",),
            (message.body,),
        )
    else:
        key = keys_of.named(message.topic, unique)
    return Row(
        number,
        message.topic,
        message.body,
        key,
        with_unique_key(key, text),
        sharding_key,
        queue,
        alone,
        unique is not None,
    )


def _stored(what: str, value: str) -> str:
    """Return *value* if it is read back unchanged.

    It may have the separator 1, as a message from a topic may: every client ends the name at the
    first one.
    """
    if not value:
        raise ValueError(f"{what} is empty: it would be lost on the way")
    if "\x02" in value:
        raise ValueError(f"{what} holds the control character 2, which separates properties")
    return value


def _present(name: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"its {name} is null")
    return value


def _bytes(body: str | bytes | None) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(_present("body", body))


def _keys(keys: str | list[str | None] | None) -> str:
    """Return keys as they are stored: separated by spaces, as in a column of text."""
    if isinstance(keys, str):
        keys = [key for key in keys.split(" ") if key]
    named: list[str] = [_stored("key", _present("array of keys", key)) for key in keys or ()]
    if spaced := next((key for key in named if " " in key), None):
        raise ValueError(f"its key {spaced!r} holds a space: keys are stored separated by spaces")
    return " ".join(named)


def _level(delay: int | None, topic: str, limits: LimitsOf) -> int:
    if not delay:
        return 0
    if not 0 < delay <= _MAX_LEVEL:
        raise ValueError(f"its delay level {delay} is outside 0 to {_MAX_LEVEL}")
    if delay > USUAL_LEVELS and (last := limits(topic).last_level) is not None and delay > last:
        raise ValueError(
            f"its delay level {delay} is above {last}, the last one that the brokers of {topic} "
            "have; the column deliverAt takes any time"
        )
    return delay


def _time(deliver_ms: int, topic: str, limits: LimitsOf) -> int:
    wait_s = deliver_ms / 1000 - time.time()
    if wait_s > 0 and (longest := limits(topic).longest_s) is not None and wait_s > longest:
        raise ValueError(
            f"its time of delivery {instant(deliver_ms):%Y-%m-%dT%H:%M:%SZ} is more than {longest} "
            "s ahead, "
            f"the longest wait that the brokers of {topic} allow"
        )
    return deliver_ms


def _ms(at: datetime | int) -> int:
    return at if isinstance(at, int) else int(at.timestamp() * 1000)


def _queue(
    broker_name: str | None, queue_id: int | None, sharding_key: str | None
) -> tuple[str, int] | None:
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
    own = {
        name: value
        for name, value in properties
        if value is not None
        # a copy keeps its priority; its queue is the one that the row names
        and (name not in RESERVED_PROPERTIES or name == PropertyName.PRIORITY)
    }
    for name, value in own.items():
        if "\x01" in _stored("property", name):
            raise ValueError(
                f"the name of its property {name!r} holds the control character 1, which ends names"
            )
        _stored(f"property {name!r}", value)
    return own


def queue_of(row: Row, queues: tuple[MessageQueue, ...]) -> MessageQueue | None:
    """Return the queue that *row* must go to, or None for any queue.

    Raises ValueError for one that the topic does not have.
    """
    if row.queue is None:
        return None
    broker_name, queue_id = row.queue
    named = [
        queue
        for queue in queues
        if queue.queue_id == queue_id and broker_name in ("", queue.broker_name)
    ]
    if len(named) != 1:
        raise ValueError(
            f"{len(named)} queues of topic {row.topic} are called {broker_name or '*'}/{queue_id}"
        )
    return named[0]
