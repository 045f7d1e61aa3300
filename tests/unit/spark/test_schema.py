"""The columns that a user asks the source for: what would end in wrong rows or in a failure deep
inside Spark is refused by name.
"""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ogive.errors import InvalidOption
from ogive.spark.schema import MESSAGE_COLUMNS, check_sink_schema, check_source_schema

BODY = StructField("body", BinaryType())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([StructField("text", StringType())], "has no column 'text'; it has topic"),
        ([StructField("body", StringType())], "column 'body' is binary, not string"),
        ([BODY, BODY], "column 'body' stands twice"),
        (
            [StructField("keys", StringType(), nullable=False)],
            "column 'keys' is null where a message has none",
        ),
        (
            [StructField("tags", StringType(), nullable=False)],
            "column 'tags' is null where a message has none",
        ),
        (
            [StructField("bornTimestamp", TimestampType(), nullable=False)],
            "column 'bornTimestamp' is null where a message has none",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_named(columns: list[StructField], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_source_schema(StructType(columns))


def test_some_columns_in_any_order_are_read_and_those_that_are_never_null_may_say_so() -> None:
    check_source_schema(MESSAGE_COLUMNS)
    check_source_schema(
        StructType(
            [
                StructField("queueOffset", LongType(), nullable=False),
                StructField("body", BinaryType(), nullable=False),
            ]
        )
    )


def test_a_column_to_write_stands_once() -> None:
    with pytest.raises(InvalidOption, match="column 'body' stands twice"):
        check_sink_schema(StructType([BODY, BODY]), topic_given=True)
