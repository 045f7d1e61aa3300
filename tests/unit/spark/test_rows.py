"""Rows as messages: every column lands where consumers look for it, and a row that cannot be sent
is named.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from ogive.errors import InvalidOption, SendFailed
from ogive.model import MAX_BODY_BYTES, Message, MessageQueue
from ogive.spark.rows import HEAD_DIGITS, Keys, Row, form, key_of_text, queue_of
from ogive.spark.schema import check_sink_schema
from ogive.spark.source import batch_sink, stream_sink
from ogive.wire.message import decode_properties

PLACES = Keys("query", 7, partition=3, of_content=False)
CONTENT = Keys("query", 7, partition=3, of_content=True)


def formed(
    rows: list[dict[str, Any]],
    topic: str | None = "Orders",
    types: dict[str, Any] | None = None,
    keys: Keys = PLACES,
) -> list[Row]:
    names = list(rows[0])
    columns = [pa.array([row[name] for row in rows], (types or {}).get(name)) for name in names]
    return form(pa.RecordBatch.from_arrays(columns, names), topic, 100, 3, keys)


def messages(
    rows: list[dict[str, Any]], topic: str | None = "Orders", types: dict[str, Any] | None = None
) -> list[Message]:
    return [as_message(row) for row in formed(rows, topic, types)]


def as_message(row: Row) -> Message:
    """What a consumer gets of it."""
    properties = decode_properties(row.properties)
    assert properties.pop("UNIQ_KEY") == row.key
    tag, keys = properties.pop("TAGS", None), tuple(properties.pop("KEYS", "").split())
    delay, sharding_key = int(properties.pop("DELAY", "0")), properties.pop("__SHARDINGKEY", None)
    assert sharding_key == row.sharding_key
    return Message(
        row.topic,
        row.body,
        tag=tag,
        keys=keys,
        properties=properties,
        sharding_key=sharding_key,
        delay_level=delay,
    )


def test_a_body_alone_is_a_message() -> None:
    assert messages([{"body": "grün"}, {"body": "b"}]) == [
        Message("Orders", "grün".encode()),
        Message("Orders", b"b"),
    ]
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
    (message,) = messages(
        [row], topic=None, types={"properties": pa.map_(pa.string(), pa.string())}
    )
    assert message == Message(
        "Elsewhere",
        b"b",
        tag="paid",
        keys=("k1", "k2"),
        properties={"shop": "a"},
        sharding_key="N14228",
        delay_level=3,
    )


def test_the_option_topic_overrides_the_column() -> None:
    assert messages([{"topic": "Elsewhere", "body": "b"}])[0].topic == "Orders"


def test_keys_as_text_are_separated_by_spaces() -> None:
    assert messages([{"body": "b", "keys": "k1 k2"}, {"body": "b", "keys": None}])[0].keys == (
        "k1",
        "k2",
    )


@given(
    st.lists(
        st.tuples(*[st.one_of(st.none(), st.text("aé \x01\x02\U0001f680", max_size=5))] * 3),
        min_size=1,
        max_size=5,
    )
)
def test_the_quick_way_gives_the_same_rows(
    values: list[tuple[str | None, str | None, str | None]],
) -> None:
    """With nothing but body, tag and keys a row is made by a shorter way; a column more, and it is
    not.
    """

    def outcome(rows: list[dict[str, Any]]) -> Any:
        try:
            types = {
                "body": pa.string(),
                "tags": pa.string(),
                "keys": pa.string(),
                "shardingKey": pa.string(),
            }
            return formed(rows, types=types, keys=CONTENT)
        except SendFailed as exc:
            return str(exc)

    rows = [{"body": body, "tags": tag, "keys": keys} for body, tag, keys in values]
    assert outcome(rows) == outcome([{**row, "shardingKey": None} for row in rows])


def test_null_means_absent() -> None:
    row = {
        "body": "b",
        "tags": None,
        "keys": None,
        "properties": None,
        "shardingKey": None,
        "delayTimeLevel": None,
    }
    assert messages([row]) == [Message("Orders", b"b")]


def test_reserved_properties_are_left_out() -> None:
    """A map that came out of a topic holds what the first broker and client wrote there."""
    row = {
        "body": "b",
        "properties": [("UNIQ_KEY", "7F"), ("CLUSTER", "c"), ("shop", "a"), ("none", None)],
    }
    (message,) = messages([row], types={"properties": pa.map_(pa.string(), pa.string())})
    assert message.properties == {"shop": "a"}


def test_a_value_may_hold_the_separator_behind_the_name() -> None:
    """As a message may that came out of a topic: who reads the stored form ends the name at the
    first one, Apache's clients too.
    """
    row = {
        "body": "b",
        "tags": "t\x01u",
        "keys": "k\x01l",
        "shardingKey": "s\x01",
        "properties": [("shop", "\x01a\x01b")],
    }
    (formed_row,) = formed([row], types={"properties": pa.map_(pa.string(), pa.string())})
    read = decode_properties(formed_row.properties)
    assert read == {
        "UNIQ_KEY": formed_row.key,
        "TAGS": "t\x01u",
        "KEYS": "k\x01l",
        "__SHARDINGKEY": "s\x01",
        "shop": "\x01a\x01b",
    }
    assert formed_row.sharding_key == "s\x01"


@pytest.mark.parametrize("more", [{}, {"shardingKey": None}])
@pytest.mark.parametrize("tag", [" a", "a ", "a|b", "a||b", "|"])
def test_a_tag_that_no_subscription_can_select_is_refused(tag: str, more: dict[str, None]) -> None:
    """Whichever way the row is made."""
    with pytest.raises(SendFailed, match="tag"):
        formed([{"body": "b", "tags": tag, **more}], types={"shardingKey": pa.string()})


@pytest.mark.parametrize("more", [{}, {"shardingKey": None}])
def test_nothing_but_spaces_separates_keys(more: dict[str, None]) -> None:
    """Whichever way the row is made."""
    (row,) = formed(
        [{"body": "b", "keys": " a\tb  c ", **more}], types={"shardingKey": pa.string()}
    )
    assert decode_properties(row.properties)["KEYS"] == "a\tb c"
    (row,) = formed([{"body": "b", "keys": "a\tb", **more}], types={"shardingKey": pa.string()})
    assert decode_properties(row.properties)["KEYS"] == "a\tb"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"body": None}, "its body is null"),
        ({"body": "b", "tags": "t\x02"}, "control character 2"),
        ({"body": "b", "properties": [("a\x01b", "c")]}, "control character 1"),
        ({"body": "b", "properties": [("", "c")]}, "is empty"),
        ({"body": "b", "properties": [("c", "x" * 32767)]}, "over the limit"),
        ({"body": b"b" * (MAX_BODY_BYTES + 1)}, "over the limit"),
        ({"body": "b", "tags": ""}, "tag is empty"),
        ({"body": "b", "keys": ["a b"]}, "holds a space"),
        ({"body": "b", "keys": ["a", None]}, "null"),
        ({"body": "b", "delayTimeLevel": -1}, "delay level"),
        ({"body": "b", "delayTimeLevel": 1 << 31}, "delay level"),
        (
            {"body": "b", "delayTimeLevel": 2, "deliverAt": 1767225600000},
            "a delay level and a time of delivery",
        ),
        ({"body": "b", "shardingKey": "k", "queueId": 1}, "a sharding key and a queue"),
        ({"body": "b", "brokerName": "broker-a"}, "names a broker, but no queue"),
        ({"body": "b", "queueId": -1}, "queue id -1"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(row: dict[str, Any], why: str) -> None:
    fine = dict.fromkeys(row) | {"body": b"fine" if isinstance(row["body"], bytes) else "fine"}
    with pytest.raises(SendFailed, match=f"row 101 of partition 3 cannot be sent: .*{why}"):
        formed([fine, row], types={"properties": pa.map_(pa.string(), pa.string())})


def test_a_missing_topic_is_named() -> None:
    with pytest.raises(
        SendFailed, match="row 100 of partition 3 cannot be sent: its topic is null"
    ):
        messages([{"topic": None, "body": "b"}], topic=None)


# --- unique keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize("of_content", [False, True])
def test_a_row_has_the_same_key_in_every_attempt(of_content: bool) -> None:
    rows: list[dict[str, Any]] = [{"body": "a"}, {"body": "b"}]

    def unique(*origin: object) -> list[str]:
        *whose, partition = origin
        return [
            row.key
            for row in formed(
                rows, keys=Keys(*whose, partition=int(str(partition)), of_content=of_content)
            )
        ]

    keys = unique("query", 7, 3)
    assert keys == unique("query", 7, 3)
    assert all(len(key) == 32 and key.isalnum() and key.upper() == key for key in keys)
    assert len({*keys, *unique("query", 7, 4), *unique("query", 8, 3), *unique("other", 7, 3)}) == 8
    (row, _) = formed(rows, keys=Keys("query", 7, partition=3, of_content=of_content))
    assert row.properties.startswith(b"UNIQ_KEY\x01" + keys[0].encode() + b"\x02")


def test_a_key_of_content_tells_all_of_it() -> None:
    """And where a row stands only in its last digits."""
    given: list[dict[str, Any]] = [
        {"body": "b"},
        {"body": "TAGS\x01t\x02b"},
        {"body": "b", "tags": "t"},
        {"body": "b", "keys": "t"},
        {"body": "b", "topic": "Elsewhere"},
        {"body": "b", "shardingKey": "t"},
        {"body": "b", "queueId": 0},
        {"body": "b", "queueId": 1},
        {"body": "b", "queueId": 1, "brokerName": "broker-a"},
        {"body": "b", "properties": [("n", "1")]},
    ]
    types = {"properties": pa.map_(pa.string(), pa.string())}
    rows = [
        formed([{"topic": "Orders", **row}], topic=None, types=types, keys=CONTENT)[0]
        for row in given
    ]
    assert len({row.key[:HEAD_DIGITS] for row in rows}) == len(given)
    assert {row.key[HEAD_DIGITS:] for row in rows} == {f"{100:012X}"}


def test_what_a_user_calls_unique_makes_the_key() -> None:
    rows: list[dict[str, Any]] = [
        {"body": "b", "uniqueKey": "order 1"},
        {"body": "c", "uniqueKey": "order 1"},
        {"body": "d", "uniqueKey": None},
    ]
    keys = [row.key for row in formed(rows)]
    assert keys == [
        key_of_text("order 1"),
        key_of_text("order 1"),
        formed([{"body": "d"}] * 3)[2].key,
    ]


def test_where_stored_keys_tell_what_is_stored_a_users_key_is_one_of_its_write_and_topic() -> None:
    """Else a message of another query, an older batch or another topic would be taken for the row,
    and the row never be sent. Its partition may be another one each time.
    """

    def key(*origin: object, partition: int = 3, topic: str = "Orders") -> str:
        (row,) = formed(
            [{"body": "b", "uniqueKey": "order 1"}],
            topic=topic,
            keys=Keys(*origin, partition=partition, of_content=True),
        )
        return row.key

    assert key("query", 7) == key("query", 7, partition=4)
    others = [
        key("query", 8),
        key("other", 7),
        key("query", 7, topic="Bills"),
        key_of_text("order 1"),
    ]
    assert len({key("query", 7), *others}) == 5
    assert len(key("query", 7)) == 32


# --- where and when -------------------------------------------------------------------------------

QUEUES = tuple(
    MessageQueue("Orders", broker, number)
    for broker in ("broker-a", "broker-b")
    for number in range(2)
)


def test_a_row_may_name_its_queue() -> None:
    (row,) = formed([{"body": "b", "brokerName": "broker-b", "queueId": 1}])
    assert queue_of(row, QUEUES) == QUEUES[3]
    (row,) = formed([{"body": "b"}])
    assert queue_of(row, QUEUES) is None


@pytest.mark.parametrize(
    ("names", "why"),
    [({"queueId": 1}, r"2 queues of topic Orders are called \*/1"), ({"queueId": 9}, "0 queues")],
)
def test_a_queue_that_is_not_one_queue_is_refused(names: dict[str, Any], why: str) -> None:
    (row,) = formed([{"body": "b", **names}])
    with pytest.raises(ValueError, match=why):
        queue_of(row, QUEUES)


def test_a_time_of_delivery_is_what_the_timer_reads() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    (row,) = formed(
        [{"body": "b", "deliverAt": at}], types={"deliverAt": pa.timestamp("us", "UTC")}
    )
    assert row.alone
    assert b"TIMER_DELIVER_MS\x011767225600000\x02" in row.properties


# --- columns --------------------------------------------------------------------------------------


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


def test_a_table_that_is_made_of_a_query_is_told_how_to_write() -> None:
    """Its OPTIONS do not come here."""
    with pytest.raises(InvalidOption, match=r"give the option topic.* AS SELECT .*df\.write"):
        batch_sink({}, StructType([BODY]), overwrite=False)


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(InvalidOption, match="give the option topic, or a column topic"):
        check_sink_schema(StructType([BODY]), topic_given=False)
    check_sink_schema(StructType([BODY, StructField("topic", StringType())]), topic_given=False)


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
@pytest.mark.parametrize("name", ["delayTimeLevel", "deliverAt"])
def test_what_is_delivered_later_is_written_at_least_once(name: str, delivery: str) -> None:
    """Where such a message waits nobody can read it, so that a repeated batch would not find it."""
    columns = StructType([BODY, StructField(name, LongType())])
    with pytest.raises(
        InvalidOption, match=f"column '{name}' and delivery={delivery}: .* use delivery=atLeastOnce"
    ):
        stream_sink({"topic": "Orders", "delivery": delivery}, columns)
    check_sink_schema(columns, topic_given=True)


def test_nullability_does_not_matter() -> None:
    keys = ArrayType(StringType(), containsNull=False)
    check_sink_schema(
        StructType([BODY, StructField("keys", keys, nullable=False)]), topic_given=True
    )
