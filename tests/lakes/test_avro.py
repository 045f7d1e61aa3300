"""Avro bodies with Spark's own functions, with and without a schema registry's header."""

from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from ogive.errors import InvalidOption
from ogive.spark.parse import parse_avro

pytestmark = [
    pytest.mark.lakes,
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.apart(30),
    pytest.mark.timeout(900),
]

V1 = '{"type": "record", "name": "O", "fields": [{"name": "number", "type": "long"}]}'
V2 = (
    '{"type": "record", "name": "O", "fields": [{"name": "number", "type": "long"}, '
    '{"name": "note", "type": ["null", "string"], "default": null}]}'
)


def avro_rows(spark: SparkSession, *bodies: bytes) -> DataFrame:
    return spark.createDataFrame(list(enumerate(bodies)), "queueOffset bigint, body binary")


def parsed(good: DataFrame) -> list[tuple[Mapping[str, Any] | None, str | None]]:
    return [
        (row.value and row.value.asDict(), row["_error"])
        for row in good.orderBy("queueOffset").collect()
    ]


def test_avro_bodies_are_parsed(spark: SparkSession) -> None:
    """14 is the long 7; a body that ends too early is bad."""
    good, _ = parse_avro(avro_rows(spark, b"\x0e", b"", b"\xff"), V1, on_error="null")
    wrong = (None, "the body is not Avro of the schema")
    assert parsed(good) == [({"number": 7}, None), wrong, wrong]


def test_avro_bodies_of_a_registry_are_read_by_the_schema_of_their_id(
    spark: SparkSession,
) -> None:
    rows = avro_rows(
        spark,
        b"\x00\x00\x00\x00\x01\x0e",
        b"\x00\x00\x00\x00\x02\x0e\x02\x02a",
        b"\x00\x00\x00\x00\x03\x0e",
        b"\x01\x00\x00\x00\x01\x0e",
        b"\x00\x00\x00\x00\x02\x0e",
    )
    good, _ = parse_avro(rows, V2, writers={1: V1, 2: V2}, on_error="null")
    assert parsed(good) == [
        ({"number": 7, "note": None}, None),
        ({"number": 7, "note": "a"}, None),
        (None, "no schema is given for the registry's id 3"),
        (None, "the body does not begin with a schema registry's header"),
        (None, "the body is not Avro of the schema"),
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [("{", "must be JSON"), ('{"type": "recrd"}', "the Avro schema is invalid: .*recrd")],
)
def test_a_schema_that_is_not_avro_is_refused(
    spark: SparkSession, schema: str, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse_avro(avro_rows(spark), schema)
