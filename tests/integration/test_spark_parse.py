"""Bodies as columns: what is named in one that does not match, and what becomes of it."""

from dataclasses import dataclass

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession

import ogive
import ogive.spark
from ogive.errors import InvalidOption
from ogive.spark.parse import merge_changes, parse_avro, parse_debezium, parse_json
from tests.peers import RunningBroker
from tests.topics import wait_until_shown

pytestmark = [
    pytest.mark.spark,
    pytest.mark.bridge,
    pytest.mark.releases,
    pytest.mark.timeout(300),
]


@dataclass
class Order:
    number: int
    note: str | None


@dataclass
class Line:
    item: str
    note: str | None


@dataclass
class Parcel:
    lines: list[Line]
    to: Line | None
    by_shop: dict[str, Line] | None


def bodies(spark: SparkSession, *texts: str | None) -> DataFrame:
    """One queue of messages."""
    rows = [(i, None if text is None else text.encode()) for i, text in enumerate(texts)]
    return spark.createDataFrame(rows, "queueOffset bigint, body binary")


def reasons(good: DataFrame) -> list[str | None]:
    return [row["_error"] for row in good.orderBy("queueOffset").collect()]


def test_bodies_that_do_not_fit_go_to_a_dead_letter_topic(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    bodies = [
        b'{"number": 1, "note": "x"}',
        b'{"number": 2}',
        b'{"note": "no number"}',
        b"not json",
        b'{"number": "many"}',
    ]
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=1)
        for body in bodies:
            producer.send(topic, body, keys="k", properties={"shop": "a"})
    wait_until_shown(broker.name_server, topic, len(bodies))
    messages = ogive.spark.read(topic, name_server=broker.name_server, spark=spark)
    good, bad = parse_json(messages, Order)
    assert sorted((row.number, row.note) for row in good.select("value.*").collect()) == [
        (1, "x"),
        (2, None),
    ]
    bad.write.format("rocketmq").options(nameServer=broker.name_server, topic=topic + "_BAD").mode(
        "append"
    ).save()
    letters = ogive.spark.read(
        topic + "_BAD", name_server=broker.name_server, spark=spark
    ).collect()
    reasons = {
        bytes(row.body): (
            row.properties["reason"],
            row.properties["from_queueOffset"],
            row.properties["shop"],
        )
        for row in letters
    }
    assert reasons == {
        b'{"note": "no number"}': ("number is missing", "2", "a"),
        b"not json": ("the body is not a JSON object", "3", "a"),
        b'{"number": "many"}': ("number is not bigint", "4", "a"),
    }


def test_what_is_missing_inside_a_body_is_named(spark: SparkSession) -> None:
    good_ones = [
        '{"lines": []}',
        '{"lines": [{"item": "a", "note": null}], "to": null, "by_shop": {"x": {"item": "b"}}}',
    ]
    bad_ones = {
        '{"to": {"item": "a"}}': "lines is missing",
        '{"lines": [{"item": "a"}, {"note": "b"}]}': "lines[].item is missing",
        '{"lines": [null]}': "lines[] is missing",
        '{"lines": [], "to": {"note": "a"}}': "to.item is missing",
        '{"lines": [], "by_shop": {"x": {"item": null}}}': "by_shop[].item is missing",
    }
    rows = spark.createDataFrame(
        [(body.encode(),) for body in [*good_ones, *bad_ones]], "body binary"
    )
    good, bad = parse_json(rows, Parcel)
    assert [bytes(row.body).decode() for row in good.collect()] == good_ones
    assert {bytes(row.body).decode(): row.properties["reason"] for row in bad.collect()} == bad_ones


def test_the_wrong_field_is_named_at_any_depth(spark: SparkSession) -> None:
    whole = '{"lines": [{"item": "a", "note": null}]}'
    wrong = {
        '{"lines": "a"}': "lines is not an array",
        '{"lines": [1]}': "lines[] is not an object",
        '{"lines": [], "to": []}': "to is not an object",
        '{"lines": [], "by_shop": {"x": 3}}': "by_shop[] is not an object",
        '{"lines": [], "by_shop": 3}': "by_shop is not an object",
        "[]": "the body is not a JSON object",
        "3": "the body is not a JSON object",
        '{"lines": [': "the body is not a JSON object",
        "": "the body is not a JSON object",
    }
    good, _ = parse_json(bodies(spark, whole, *wrong, None), Parcel, on_error="null")
    assert reasons(good) == [None, *wrong.values(), "the body is null"]
    assert good.where("(value is null) = (_error is null)").count() == 0


@dataclass
class Kinds:
    number: int
    share: float
    sure: bool


def test_the_type_that_a_field_should_have_is_named(spark: SparkSession) -> None:
    wrong = {
        '{"number": 1.5, "share": 1, "sure": true}': "number is not bigint",
        '{"number": 1, "share": "half", "sure": true}': "share is not double",
        '{"number": 1, "share": 1, "sure": 1}': "sure is not boolean",
    }
    good, _ = parse_json(bodies(spark, *wrong), Kinds, on_error="null")
    assert reasons(good) == list(wrong.values())


def test_dropped_bodies_are_counted(spark: SparkSession) -> None:
    counts = Observation("of the test")
    rows = bodies(spark, '{"number": 1}', "x", '{"number": 2}', "{}")
    good, bad = parse_json(rows, Order, on_error="drop", counts=counts)
    assert "_error" not in good.columns
    assert [row.value.number for row in good.collect()] == [1, 2]
    assert counts.get == {"read": 4, "dropped": 2}
    assert bad.count() == 2


def test_a_bad_body_ends_a_query_that_shall_fail(spark: SparkSession) -> None:
    rows = bodies(spark, '{"number": 1}', '{"number": "many"}')
    good, _ = parse_json(rows, Order, on_error="fail")
    with pytest.raises(PySparkException, match="bad body/1: number is not bigint"):
        good.collect()


def test_a_json_schema_does_as_well(spark: SparkSession) -> None:
    schema = {
        "type": "object",
        "required": ["number"],
        "properties": {"number": {"type": "integer"}, "note": {"type": "string"}},
    }
    good, _ = parse_json(bodies(spark, '{"number": 1}', "{}"), schema, on_error="null")
    assert reasons(good) == [None, "number is missing"]


# --- Debezium -------------------------------------------------------------------------------------


@dataclass
class Customer:
    id: int
    name: str | None


def test_changes_of_a_database_are_parsed_with_and_without_their_schema(
    spark: SparkSession,
) -> None:
    texts = {
        '{"op": "c", "before": null, "after": {"id": 1, "name": "a"}, "ts_ms": 5}': None,
        '{"schema": {}, "payload": {"op": "d", "before": {"id": 1}, "after": null}}': None,
        '{"op": "u", "after": {"id": "one"}}': "after.id is not bigint",
        '{"op": "u", "after": {"name": "a"}}': "after.id is missing",
        '{"op": "u", "before": {"id": 1}}': "after is null",
        '{"op": "d", "after": {"id": 1}}': "before is null",
        '{"op": "t"}': "op is t, not one of c, r, u, d",
        '{"before": {"id": 1}}': "op is missing",
    }
    good, _ = parse_debezium(bodies(spark, *texts), Customer, on_error="null")
    assert reasons(good) == list(texts.values())
    first, second = good.where("_error is null").orderBy("queueOffset").collect()
    assert first.value.asDict(recursive=True) == {
        "op": "c",
        "before": None,
        "after": {"id": 1, "name": "a"},
        "ts_ms": 5,
    }
    assert (second.value.op, second.value.before.id) == ("d", 1)


@pytest.mark.parametrize("keys", [[], ["id", "age"]])
def test_keys_of_a_merge_must_be_columns(spark: SparkSession, keys: list[str]) -> None:
    good, _ = parse_debezium(bodies(spark), Customer)
    with pytest.raises(InvalidOption, match=r"keys must be columns of the table \(id, name\)"):
        merge_changes(good, "customers", keys)


# --- packages -------------------------------------------------------------------------------------


def test_a_missing_package_is_named(spark: SparkSession) -> None:
    with pytest.raises(InvalidOption, match=r"packages=org\.apache\.spark:spark-avro_2\.13:4\."):
        parse_avro(bodies(spark), '"string"')
