"""The columns of Spark's Kafka source, for jobs that come from there: option columns=kafka.

Behaviour
- `key` are the message's keys, `value` its body, `headers` its properties (with
  includeHeaders=true).
- `timestamp` is the time at which the broker stored the message, as startingTimestamp takes it, and
  `timestampType` 1, as for Kafka's log-append time.
- A topic has queues 0, 1, 2, ... on each of its brokers. `partition` is one number for broker and
  queue, so that topic, partition and offset are unique, and stays the same when brokers are added:
  the lower 16 bits are the queue id, the others a hash of the broker's name.
"""

import zlib
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ogive.errors import InvalidOption
from ogive.model import MessageQueue
from ogive.spark.schema import MESSAGE_COLUMNS

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
