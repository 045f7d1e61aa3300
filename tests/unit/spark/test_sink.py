"""Rows as messages: every column lands where consumers look for it, and a row that cannot be sent is named."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

from ogive.client.config import ProducerConfig
from ogive.client.producer import Producer
from ogive.errors import InvalidOption, SendFailed
from ogive.model import Message, MessageQueue
from ogive.spark import sink
from ogive.spark.options import SinkOptions
from ogive.spark.schema import check_sink_schema
from ogive.spark.sink import BatchSink, Row, form


def messages(rows: list[dict[str, Any]], topic: str | None = "Orders", types: dict[str, Any] | None = None) -> list[Message]:
    names = list(rows[0])
    columns = [pa.array([row[name] for row in rows], (types or {}).get(name)) for name in names]
    return [row.message for row in form(pa.RecordBatch.from_arrays(columns, names), topic, 100, 3)]


def test_a_body_alone_is_a_message() -> None:
    assert messages([{"body": "grün"}, {"body": "b"}]) == [Message("Orders", "grün".encode()), Message("Orders", b"b")]
    assert messages([{"body": b"\x00\xff"}]) == [Message("Orders", b"\x00\xff")]


def test_every_column_is_used() -> None:
    row = {
        "topic": "Elsewhere",
        "body": "b",
        "tags": "paid",
        "keys": ["k1", "k2"],
        "properties": [("shop", "a")],
        "shardingKey": "N14228",
        "delayTimeLevel": 3,
    }
    (message,) = messages([row], topic=None, types={"properties": pa.map_(pa.string(), pa.string())})
    assert message == Message(
        "Elsewhere", b"b", tag="paid", keys=("k1", "k2"), properties={"shop": "a"}, sharding_key="N14228", delay_level=3
    )


def test_the_option_topic_overrides_the_column() -> None:
    assert messages([{"topic": "Elsewhere", "body": "b"}])[0].topic == "Orders"


def test_keys_as_text_are_separated_by_spaces() -> None:
    assert messages([{"body": "b", "keys": "k1 k2"}, {"body": "b", "keys": None}])[0].keys == ("k1", "k2")


def test_null_means_absent() -> None:
    row = {"body": "b", "tags": None, "keys": None, "properties": None, "shardingKey": None, "delayTimeLevel": None}
    assert messages([row]) == [Message("Orders", b"b")]


def test_reserved_properties_are_left_out() -> None:
    """A map that came out of a topic holds what the first broker and client wrote there."""
    row = {"body": "b", "properties": [("UNIQ_KEY", "7F"), ("CLUSTER", "c"), ("shop", "a"), ("none", None)]}
    (message,) = messages([row], types={"properties": pa.map_(pa.string(), pa.string())})
    assert message.properties == {"shop": "a"}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"body": None}, "its body is null"),
        ({"body": "b", "tags": ""}, "tag is empty"),
        ({"body": "b", "keys": ["a b"]}, "holds a space"),
        ({"body": "b", "keys": ["a", None]}, "null"),
        ({"body": "b", "delayTimeLevel": -1}, "delay level"),
        ({"body": "b", "delayTimeLevel": 1 << 31}, "delay level"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(row: dict[str, Any], why: str) -> None:
    fine = dict.fromkeys(row) | {"body": "fine"}
    with pytest.raises(SendFailed, match=f"row 101 of partition 3 cannot be sent: .*{why}"):
        messages([fine, row])


def test_a_missing_topic_is_named() -> None:
    with pytest.raises(SendFailed, match="row 100 of partition 3 cannot be sent: its topic is null"):
        messages([{"topic": None, "body": "b"}], topic=None)


def test_a_task_that_fails_leaves_nothing_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what it still sends comes between the rows of the attempt that Spark starts next."""
    stored: list[int] = []

    async def send(_: Any, rows: Sequence[Row], __: int) -> None:
        for _turn in range(50_000):
            await asyncio.sleep(0)
        stored.extend(row.number for row in rows)

    monkeypatch.setattr(sink, "_producer", lambda _: None)
    monkeypatch.setattr(sink, "_send", send)
    batches = (pa.RecordBatch.from_arrays([pa.array([body], pa.string())], ["body"]) for body in ("a", "b", None))
    with pytest.raises(SendFailed, match="row 2 of partition 0 cannot be sent: its body is null"):
        BatchSink(SinkOptions.parse({"topic": "Orders"})).write(batches)
    assert stored == [0, 1]


class CountingProducer:
    """Knows every topic without queues; counts the sends that are on their way at once."""

    def __init__(self, max_in_flight: int) -> None:
        self.config = ProducerConfig(max_in_flight=max_in_flight)
        self.client = self
        self.sent = self.sending = self.most = 0

    async def publish_queues(self, _: str) -> tuple[MessageQueue, ...]:
        return ()

    async def send(self, _: Message) -> None:
        self.sending += 1
        self.most = max(self.most, self.sending)
        await asyncio.sleep(0)
        self.sending -= 1
        self.sent += 1


async def test_delayed_rows_do_not_spend_their_time_waiting_for_each_other() -> None:
    """A send's timeout runs while it waits for room: of 10,000 sends at once the last would time out on a slow way, in every attempt."""
    producer = CountingProducer(max_in_flight=3)
    rows = [Row(number, Message("Orders", b"x", delay_level=1)) for number in range(50)]
    await sink._send(cast(Producer, producer), rows, 0)
    assert (producer.sent, producer.most) == (50, 3)


# --- columns ---------------------------------------------------------------------------------------------------------


BODY = StructField("body", StringType())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([StructField("text", StringType())], "column 'text' cannot be sent"),
        ([BODY, StructField("tag", StringType())], "did you mean tags"),
        ([StructField("body", IntegerType())], "column 'body' is int; it must be binary or string"),
        ([StructField("tags", StringType())], "no column body"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(columns: list[StructField], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        check_sink_schema(StructType(columns), topic_given=True)


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(InvalidOption, match="give the option topic, or a column topic"):
        check_sink_schema(StructType([BODY]), topic_given=False)
    check_sink_schema(StructType([BODY, StructField("topic", StringType())]), topic_given=False)


def test_nullability_does_not_matter() -> None:
    keys = ArrayType(StringType(), containsNull=False)
    check_sink_schema(StructType([BODY, StructField("keys", keys, nullable=False)]), topic_given=True)
