"""The columns of a message as Spark shows them."""

from typing import Any, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, MapType, StringType, StructField, StructType, TimestampType

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
"""All columns of the source. `keys` are separated by spaces, as the protocol carries them."""


def source_schema(*, include_properties: bool) -> StructType:
    return StructType([column for column in MESSAGE_COLUMNS if include_properties or column.name != "properties"])


def check_source_schema(schema: StructType) -> None:
    """Raises InvalidOption unless *schema*, which the user gave, is made of columns that the source has."""
    columns = {column.name: column.dataType for column in MESSAGE_COLUMNS}
    for column in schema:
        if column.name not in columns:
            raise InvalidOption(f"the source has no column {column.name!r}; it has {', '.join(columns)}")
        if column.dataType != columns[column.name]:
            wanted, given = columns[column.name].simpleString(), column.dataType.simpleString()
            raise InvalidOption(f"column {column.name!r} is {wanted}, not {given}; read it so and cast it in the query")


def arrow_schema(schema: StructType) -> Any:
    """The exact Arrow schema that Spark demands of the batches of a reader of *schema*."""
    return to_arrow_schema(schema, timezone="UTC")
