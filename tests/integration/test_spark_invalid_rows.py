"""Rows that no broker would take: the sink names them, drops them, or sends them to a dead-letter
topic. On Apache's broker as well.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from ogive.errors import InvalidOption, SendFailed
from ogive.spark import source
from ogive.spark.compat import arrow_schema
from ogive.testing import Broker
from tests.topics import Wire, eventually

pytestmark = [pytest.mark.timeout(240), pytest.mark.bridge]

TEXT = StringType()
COLUMNS = StructType(
    [
        StructField("topic", TEXT),
        StructField("body", BinaryType()),
        StructField("tags", TEXT),
        StructField("keys", ArrayType(TEXT)),
        StructField("properties", MapType(TEXT, TEXT)),
        StructField("delayTimeLevel", IntegerType()),
        StructField("deliverAt", LongType()),
    ]
)
PLAIN = StructType([StructField("body", BinaryType()), StructField("tags", TEXT)])

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "null body": ({"body": None}, "its body is null"),
    "long body": ({"body": b"x" * (4 * 1024 * 1024 + 1)}, "over the limit"),
    "empty tag": ({"tags": ""}, "tag is empty"),
    "control character in the tag": ({"tags": "a\x02b"}, "control character 2"),
    "empty key": ({"keys": [""]}, "key is empty"),
    "key with a space": ({"keys": ["a b"]}, "holds a space"),
    "empty property name": ({"properties": [("", "x")]}, "property is empty"),
    "empty property value": ({"properties": [("a", "")]}, "property 'a' is empty"),
    "long properties": (
        {"properties": [("a", "x" * 40_000)]},
        "bytes of properties are over the limit",
    ),
    "no topic": ({"topic": None}, "its topic is null"),
    "a word that is not a topic": ({"topic": "a b"}, "a b"),
    "delay level that no broker has": ({"delayTimeLevel": 99}, "delay level 99 is above 18"),
    "negative delay": ({"delayTimeLevel": -1}, "delay level -1"),
    "time of delivery that is too far away": (
        {"deliverAt": 4_000_000_000_000},
        "the longest wait that the brokers of",
    ),
    "time of delivery that nobody can show": (
        {"deliverAt": 2**63 - 1},
        "9999-12-31T23:59:59Z is more than",
    ),
    "topic of the brokers' own": ({"topic": "SCHEDULE_TOPIC_XXXX"}, "one of the brokers' own"),
}


def sink(wire: Wire, columns: StructType, **options: str) -> Any:
    return source.batch_sink({"nameServer": wire.name_server, **options}, columns, overwrite=False)


def rows(columns: StructType, values: list[Mapping[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(value) for value in values], schema=arrow_schema(columns)
    )


def bodies_in(wire: Wire, topic: str, count: int) -> list[bytes]:
    """Waits until there are so many."""
    options = {"nameServer": wire.name_server, "subscribe": topic}
    columns = source.schema(options)

    def read() -> list[bytes] | None:
        reader = source.batch_reader(options, columns)
        found = [
            row["body"]
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        ]
        return found if len(found) >= count else None

    return sorted(eventually(read) or [])


ONLY_AT_LEAST_ONCE = {"topic", "delayTimeLevel", "deliverAt"}
"""Columns that the other deliveries refuse."""


@pytest.mark.parametrize(
    ("delivery", "kind"),
    [("atLeastOnce", kind) for kind in INVALID]
    + [
        ("idempotent", kind)
        for kind, (bad, _) in INVALID.items()
        if not ONLY_AT_LEAST_ONCE & bad.keys()
    ],
)
def test_a_row_that_no_broker_takes_stops_nothing_where_the_user_says_so(
    wire: Wire, topic: str, kind: str, delivery: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, why = INVALID[kind]
    names = [
        name
        for name in COLUMNS.names
        if delivery == "atLeastOnce" or name not in ONLY_AT_LEAST_ONCE
    ]
    columns = StructType([column for column in COLUMNS if column.name in names])
    wire.create(topic)
    wire.create(f"{topic}_bad")
    usual = {
        "topic": topic,
        "keys": ["k"],
        "tags": "t",
        "properties": [("p", "v")],
        "delayTimeLevel": None,
        "deliverAt": None,
    }
    given = [{**usual, "body": b"1"}, {**usual, "body": b"bad", **bad}, {**usual, "body": b"2"}]
    batch = rows(
        columns, [{name: value for name, value in row.items() if name in names} for row in given]
    )
    own = {"delivery": delivery} | ({"topic": topic} if delivery == "idempotent" else {})
    with pytest.raises(
        SendFailed, match=r"row 1 of partition 0 cannot be sent: .*invalidRows=drop"
    ) as failure:
        sink(wire, columns, **own).write(iter([batch]))
    assert why in str(failure.value)

    dropping = sink(wire, columns, invalidRows="drop", **own)
    with caplog.at_level(logging.WARNING, "ogive"):
        dropping.commit([dropping.write(iter([batch]))])
    assert "row 1 of partition 0 is dropped" in caplog.text
    assert "the write: 1 row that cannot be sent was dropped" in caplog.text
    assert bodies_in(wire, topic, 2) == [b"1", b"2"]

    keeping = sink(wire, columns, invalidRows="dead-letter", deadLetterTopic=f"{topic}_bad", **own)
    keeping.commit([keeping.write(iter([batch]))])
    assert bodies_in(wire, topic, 4) == [b"1", b"1", b"2", b"2"]
    (letter,) = map(json.loads, bodies_in(wire, f"{topic}_bad", 1))
    assert why in letter["reason"]
    assert (letter["partition"], letter["row"]) == (0, 1)
    assert letter.get("cut", False) is (kind == "long body")
    for name, value in bad.items():
        held = letter["columns"].get(name)
        assert held == (
            "x" * 32 * 1024
            if kind == "long body"
            else json.loads(json.dumps(value, default=bytes.decode))
        )


LARGE = [b"x" * 900 + b"%d" % number for number in range(6)]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Wire]:
    """A broker whose limit for a body is below that of a batch of rows."""
    with Broker(data=tmp_path, options=("--max-message-size", "2000")) as broker:
        yield Wire(broker)


@pytest.mark.parametrize("columns", [PLAIN, COLUMNS])
@pytest.mark.parametrize("delivery", ["atLeastOnce", "idempotent", "transactional"])
def test_a_row_that_its_broker_refuses_is_as_invalid_as_others(
    narrow: Wire, delivery: str, columns: StructType, caplog: pytest.LogCaptureFixture
) -> None:
    """And a batch that it refuses is none."""
    if delivery != "atLeastOnce":
        columns = StructType([one for one in columns if one.name not in ONLY_AT_LEAST_ONCE])
    topic, bad_topic = f"T{len(columns)}{delivery}", f"Bad{len(columns)}{delivery}"
    narrow.create(topic)
    narrow.create(bad_topic)
    given = [*LARGE[:4], b"y" * 2001, *LARGE[4:]]
    batch = rows(columns, [{"body": body, "tags": "t"} for body in given])
    own = {"delivery": delivery, "topic": topic}
    with pytest.raises(
        SendFailed, match=rf"row 4 of partition 0 for topic {topic}: .*invalidRows=drop"
    ):
        sink(narrow, columns, **own).write(iter([batch]))
    narrow.delete(topic)
    narrow.create(topic)

    dropping = sink(narrow, columns, invalidRows="drop", **own)
    with caplog.at_level(logging.WARNING, "ogive"):
        dropping.commit([dropping.write(iter([batch]))])
    assert "row 4 of partition 0 is dropped: " in caplog.text
    assert "the write: 1 row that cannot be sent was dropped" in caplog.text
    assert bodies_in(narrow, topic, 6) == LARGE

    keeping = sink(narrow, columns, invalidRows="dead-letter", deadLetterTopic=bad_topic, **own)
    with pytest.raises(SendFailed, match=rf"row 4 of partition 0 for topic {bad_topic}: "):
        # it is no smaller
        keeping.write(iter([batch]))


def test_a_row_without_room_for_its_transaction_becomes_a_dead_letter(
    wire: Wire, topic: str
) -> None:
    columns = StructType([COLUMNS["body"], COLUMNS["tags"], COLUMNS["properties"]])
    wire.create(topic)
    wire.create(f"{topic}_bad")
    batch = rows(
        columns,
        [
            {"body": b"1", "tags": "t"},
            {"body": b"bad", "tags": "t", "properties": [("a", "x" * 32_650)]},
            {"body": b"2", "tags": "t"},
        ],
    )
    keeping = sink(
        wire,
        columns,
        delivery="transactional",
        topic=topic,
        invalidRows="dead-letter",
        deadLetterTopic=f"{topic}_bad",
    )
    keeping.commit([keeping.write(iter([batch]))])
    assert bodies_in(wire, topic, 2) == [b"1", b"2"]
    (letter,) = map(json.loads, bodies_in(wire, f"{topic}_bad", 1))
    assert letter["row"] == 1
    assert letter["columns"] == {
        "topic": topic,
        "body": "bad",
        "tags": "t",
        "properties": {"a": "x" * 32_650},
    }


def test_the_usual_columns_alone(wire: Wire, topic: str) -> None:
    """Those that the compiled part takes."""
    wire.create(topic)
    dropping = sink(wire, PLAIN, invalidRows="drop", topic=topic)
    sent = dropping.write(
        iter(
            [
                rows(
                    PLAIN,
                    [
                        {"body": b"1", "tags": ""},
                        {"body": b"2", "tags": "t"},
                        {"body": None, "tags": None},
                    ],
                )
            ]
        )
    )
    dropping.commit([sent])
    assert (sent.rows, sent.invalid) == (1, 2)
    assert bodies_in(wire, topic, 1) == [b"2"]


@pytest.mark.parametrize(
    "options", [{"invalidRows": "deadLetter"}, {"deadLetterTopic": "Bad"}, {"invalidRows": "skip"}]
)
def test_options_that_say_half_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="invalidRows"):
        source.batch_sink({"topic": "Orders", **options}, PLAIN, overwrite=False)
