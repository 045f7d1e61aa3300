"""The columns of a message in Spark."""

from difflib import get_close_matches
from typing import Final

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
