"""The columns of a message in Spark."""

import zlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ogive.errors import InvalidOption
from ogive.model import MessageQueue

MESSAGE_COLUMNS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("brokerName", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("keys", StringType()),
        StructField("tags", StringType()),
        StructField("body", BinaryType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("bornTimestamp", TimestampType()),
        StructField("storeTimestamp", TimestampType()),
    ]
)
"""The usual columns of the source. `keys` are separated by spaces, as in the protocol."""

METADATA_COLUMNS: Final = StructType(
    [
        StructField("msgId", StringType()),
        StructField("offsetMsgId", StringType()),
        StructField("commitLogOffset", LongType()),
        StructField("reconsumeTimes", IntegerType()),
        StructField("bornHost", StringType()),
        StructField("storeHost", StringType()),
        StructField("flag", IntegerType()),
        StructField("sysFlag", IntegerType()),
        StructField("bodyCRC", IntegerType()),
    ]
)
"""Further columns of a stored message: with includeMetadata, or if a schema names them. `msgId` is
the client's key, else `offsetMsgId`.
"""


def source_schema(*, include_properties: bool, include_metadata: bool = False) -> StructType:
    columns = [
        column for column in MESSAGE_COLUMNS if include_properties or column.name != "properties"
    ]
    return StructType([*columns, *METADATA_COLUMNS] if include_metadata else columns)


def only(schema: StructType, *names: str) -> StructType:
    """Return the named columns of *schema*."""
    return StructType([column for column in schema if column.name in names])


_ELSEWHERE: Final = {
    "key": "keys",
    "value": "body",
    "partition": "queueId, with brokerName",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "timestamptype": "storeTimestamp and bornTimestamp",
    "headers": "properties",
    "tag": "tags",
    "messageid": "msgId",
    "messagebody": "body",
    "bodytext": "body",
    "queue": "queueId",
    "broker": "brokerName",
    "brokername": "brokerName",
    "queueid": "queueId",
    "queueoffset": "queueOffset",
    "borntime": "bornTimestamp",
    "storetime": "storeTimestamp",
    "__key": "keys",
    "__topic": "topic",
    "__messageid": "msgId",
    "__publishtime": "storeTimestamp",
    "__eventtime": "bornTimestamp",
    "__messageproperties": "properties",
    "userproperties": "properties",
}
"""Columns of the sources for Kafka and Pulsar, of rocketmq-spark and of Flink's connector, in lower
case, with their counterparts.
"""


def check_source_schema(schema: StructType, has: StructType | None = None) -> None:
    """Raise InvalidOption unless the user's *schema* consists of columns that the source has."""
    known = has or StructType([*MESSAGE_COLUMNS, *METADATA_COLUMNS])
    columns = {column.name: column.dataType for column in known}
    _check_once(schema)
    for column in schema:
        if column.name not in columns:
            near = None if has else _ELSEWHERE.get(column.name.lower())
            hint = (
                f"; here it is {near} (the option columns=kafka gives Kafka's columns)"
                if near
                else f"; it has {', '.join(columns)}"
            )
            raise InvalidOption(f"the source has no column {column.name!r}{hint}")
        if column.dataType != columns[column.name]:
            wanted, given = columns[column.name].simpleString(), column.dataType.simpleString()
            raise InvalidOption(
                f"column {column.name!r} is {wanted}, not {given}; read it so and cast it in the "
                "query"
            )
        # Spark would believe it, and lose rows or fail
        if not column.nullable and column.name in _OFTEN_NULL:
            raise InvalidOption(
                f"column {column.name!r} is null where a message has none that can be shown; "
                "declare it nullable"
            )


_OFTEN_NULL: Final = frozenset(
    {"keys", "tags", "bornTimestamp", "storeTimestamp", "key", "timestamp"}
)


def _check_once(schema: StructType) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidOption(f"column {name!r} stands twice")


_TEXT: Final = (StringType(),)
_SINK_COLUMNS: Final = {
    "topic": _TEXT,
    "body": (BinaryType(), StringType()),
    "keys": (StringType(), ArrayType(StringType())),
    "tags": _TEXT,
    "properties": (MapType(StringType(), StringType()),),
    "shardingKey": _TEXT,
    "delayTimeLevel": (IntegerType(), LongType(), ShortType()),
    "deliverAt": (TimestampType(), LongType()),
    "brokerName": _TEXT,
    "queueId": (IntegerType(), LongType(), ShortType()),
    "uniqueKey": _TEXT,
}


_SENT_ELSEWHERE: Final = {
    "value": "body",
    "key": "keys, or shardingKey for the order of equal keys,",
    "headers": "properties, a map,",
    "partition": "queueId, with brokerName,",
    "__key": "keys",
    "__topic": "topic",
    "__messageproperties": "properties, a map,",
    "__eventtime": "properties, a map,",
}
"""Columns of the sinks for Kafka and Pulsar, in lower case, with their counterparts."""


def check_sink_schema(
    schema: StructType, *, topic_given: bool, delivery: str = "atLeastOnce"
) -> None:
    """Raise InvalidOption unless the rows to write have a body, a topic from a column or option,
    and no column that is unknown or that *delivery* does not support.
    """
    _check_once(schema)
    for column in schema:
        kinds = _SINK_COLUMNS.get(column.name)
        if kinds is None:
            other = _SENT_ELSEWHERE.get(column.name.lower())
            near = [other] if other else get_close_matches(column.name, _SINK_COLUMNS, 1, 0.5)
            hint = (
                f"did you mean {near[0]}?" if near else f"select some of {', '.join(_SINK_COLUMNS)}"
            )
            raise InvalidOption(f"column {column.name!r} cannot be sent: {hint}")
        if not any(_same(column.dataType, kind) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise InvalidOption(
                f"column {column.name!r} is {column.dataType.simpleString()}; it must be {wanted}"
            )
    if "body" not in schema.names:
        raise InvalidOption("the rows to write have no column body")
    if not topic_given and "topic" not in schema.names:
        raise InvalidOption("where to write: give the option topic, or a column topic")
    if delivery != "atLeastOnce" and (
        delayed := next(
            (name for name in ("delayTimeLevel", "deliverAt") if name in schema.names), None
        )
    ):
        raise InvalidOption(
            f"column {delayed!r} and delivery={delivery}: nobody can look up a message before its "
            "time, so a repeated batch would send it "
            "again; leave the column out, or use delivery=atLeastOnce"
        )


def _same(one: DataType, other: DataType) -> bool:
    """Return True if the types are equal except for nullability."""
    return one.simpleString() == other.simpleString()


# The columns of Spark's Kafka source, for jobs that come from there: option columns=kafka.
#
# Behaviour
# - `key` are the message's keys, `value` its body, `headers` its properties (with
#   includeHeaders=true).
# - `timestamp` is the time at which the broker stored the message, as startingTimestamp takes it,
#   and `timestampType` 1, as for Kafka's log-append time.
# - A topic has queues 0, 1, 2, ... on each of its brokers. `partition` is one number for broker
#   and queue, so that topic, partition and offset are unique, and stays the same when brokers are
#   added: the lower 16 bits are the queue id, the others a hash of the broker's name.

KAFKA_COLUMNS: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)

_QUEUE_BITS: Final = 16
_LOG_APPEND_TIME: Final = 1
_SOURCES: Final = {
    "key": "keys",
    "value": "body",
    "topic": "topic",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
    "headers": "properties",
}


def kafka_schema(*, include_headers: bool) -> StructType:
    return StructType([*KAFKA_COLUMNS, HEADERS] if include_headers else [*KAFKA_COLUMNS])


def decoded_columns(schema: StructType) -> StructType:
    """Return the columns of a message from which those of *schema* are made."""
    wanted = [_SOURCES[name] for name in schema.names if name in _SOURCES]
    # a batch without columns has no rows
    return StructType([MESSAGE_COLUMNS[name] for name in wanted or ["queueOffset"]])


def partition_of(queue: MessageQueue) -> int:
    return (zlib.crc32(queue.broker_name.encode()) & 0x7FFF) << _QUEUE_BITS | queue.queue_id


def check_partitions(queues: Iterable[MessageQueue]) -> None:
    """Raise InvalidOption for queues of one topic that would be the same partition."""
    known: dict[tuple[str, int], MessageQueue] = {}
    for queue in sorted(queues):
        other = known.setdefault((queue.topic, partition_of(queue)), queue)
        if other != queue or queue.queue_id >> _QUEUE_BITS:
            raise InvalidOption(
                f"columns=kafka gives {queue} and {other} the same partition: leave the option out "
                "and use brokerName, queueId and queueOffset"
            )


def as_kafka(batch: pa.RecordBatch, queue: MessageQueue, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of *batch*, which are of *queue*, with the columns of *schema*."""

    def column(field: pa.Field) -> pa.Array:
        if field.name == "partition":
            return pa.repeat(pa.scalar(partition_of(queue), field.type), batch.num_rows)
        if field.name == "timestampType":
            return pa.repeat(pa.scalar(_LOG_APPEND_TIME, field.type), batch.num_rows)
        values = batch.column(_SOURCES[field.name])
        if field.name != "headers":
            return values.cast(field.type)
        entries = pa.StructArray.from_arrays(
            [values.keys, values.items.cast(pa.binary())], fields=list(field.type.value_type)
        )
        return pa.ListArray.from_arrays(values.offsets, entries, field.type)

    return pa.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)
