"""Pull answers as Arrow columns: the same messages that wire.message reads, exactly the columns and
rows asked for.
"""

import contextlib
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.native import native
from ogive.spark import decode as spark_decode
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder, queue_offsets
from ogive.spark.schema import MESSAGE_COLUMNS, METADATA_COLUMNS
from ogive.sql92 import compile_expression
from ogive.wire.compression import compress
from ogive.wire.message import (
    StoredMessage,
    decode_host,
    decode_messages,
    decode_properties,
    decode_stored,
    encode_batch,
    encode_stored,
    offset_message_id,
)

QUEUE = MessageQueue("Orders", "broker-a", 3)
ALL = arrow_schema(MESSAGE_COLUMNS)
METADATA = arrow_schema(METADATA_COLUMNS)
VECTORS = Path(__file__).parents[2] / "vectors" / "messages.jsonl"


def decode(records: bytes, *, tags: frozenset[str] | None = None) -> list[dict[str, Any]]:
    batch = whole(RecordDecoder(ALL, tags), records, QUEUE)
    batch.validate(full=True)
    assert batch.schema == ALL
    return rows_of(batch)


def whole(decoder: RecordDecoder, records: bytes, queue: MessageQueue) -> Any:
    (batch,) = decoder.batches(records, queue)
    return batch


def rows_of(batch: Any) -> list[dict[str, Any]]:
    return [{**row, "properties": dict(row["properties"])} for row in batch.to_pylist()]


def expected(records: bytes) -> list[dict[str, Any]]:
    return [
        {
            "topic": QUEUE.topic,
            "brokerName": QUEUE.broker_name,
            "queueId": QUEUE.queue_id,
            "queueOffset": message.queue_offset,
            "keys": message.properties.get("KEYS"),
            "tags": message.tag,
            "body": message.body,
            "properties": dict(message.properties),
            "bornTimestamp": message.born_at,
            "storeTimestamp": message.stored_at,
        }
        for message in decode_messages(records)
    ]


def stored(offset: int = 0, body: bytes = b"body", properties: bytes = b"", **fields: Any) -> bytes:
    return encode_stored(
        StoredMessage(
            "Orders",
            body,
            properties,
            3,
            queue_offset=offset,
            born_timestamp_ms=1_700_000_000_000,
            **fields,
        ),
    )


def test_compressed_bodies_that_are_too_long_for_one_batch_come_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few MiB of them may be thousands, and a batch has its place in memory at once."""
    monkeypatch.setattr(spark_decode, "MAX_BATCH_BYTES", 1500)
    bodies = [b"%d" % n * 1000 for n in range(5)]
    records = b"".join(
        stored(n, packed, sys_flag=flag) for n, (packed, flag) in enumerate(map(compress, bodies))
    )
    batches = list(RecordDecoder(ALL).batches(records, QUEUE))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    rows = [row for batch in batches for row in rows_of(batch)]
    assert [(row["queueOffset"], row["body"]) for row in rows] == list(enumerate(bodies))
    assert list(queue_offsets(records)) == [0, 1, 2, 3, 4]


# --- against Apache's own encoder -----------------------------------------------------------------


def vectors(field: str) -> list[Any]:
    lines = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [pytest.param(line, id=line["name"]) for line in lines if field in line]


@pytest.mark.parametrize("line", vectors("stored"))
def test_reads_what_apache_wrote(line: dict[str, Any]) -> None:
    """Every golden record, also with IPv6 hosts, without a body, with the longest topic."""
    record = bytes.fromhex(line["stored"])
    (row, again) = decode(record + record)
    assert row == again == expected(record)[0]
    assert row["queueOffset"] == line["queue_offset"]
    assert row["body"] == bytes.fromhex(line["body"])
    assert row["properties"] == line["properties"]


@pytest.mark.parametrize("line", vectors("compressed"))
def test_compressed_bodies_are_inflated(line: dict[str, Any]) -> None:
    record = stored(0, bytes.fromhex(line["compressed"]), sys_flag=line["sys_flag"])
    assert decode(stored(0) + record)[1]["body"] == bytes.fromhex(line["body"])


def test_a_body_that_its_sender_made_unreadable_is_null_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nor is it shown as if it were plain."""
    assert [
        row["body"]
        for row in decode(stored(0) + stored(1, b"no zlib", sys_flag=0x301) + stored(2, b""))
    ] == [b"body", None, b""]
    assert (
        "Orders/3/1 cannot be decoded, its body is null: body is not a zlib stream" in caplog.text
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("sent_ms", "shown"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-86_400_000, datetime(1969, 12, 31, tzinfo=UTC)),
        (1_700_000_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (253_402_214_399_999, datetime(9999, 12, 30, 23, 59, 59, 999_000, tzinfo=UTC)),
        (253_402_300_800_000, None),
        (-62_135_596_800_001, None),
        (1_700_000_000_000_000, None),
        (1_700_000_000_000_000_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_time_that_nobody_can_show_is_null(
    sent_ms: int, shown: datetime | None, packed: bool
) -> None:
    """Senders that count in micro- or nanoseconds; the messages beside theirs keep their times."""
    body, flag = compress(b"body") if packed else (b"body", 0)
    odd = encode_stored(
        StoredMessage(
            "Orders", body, b"", 3, queue_offset=1, sys_flag=flag, born_timestamp_ms=sent_ms
        )
    )
    rows = decode(stored(0) + odd + stored(2))
    usual = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert [row["bornTimestamp"] for row in rows] == [usual, shown, usual]
    assert [row["body"] for row in rows] == [b"body"] * 3


def test_a_damaged_compressed_body_is_an_error() -> None:
    record = stored(1, b"no zlib", sys_flag=0x301)
    with pytest.raises(ProtocolError, match="not a zlib stream"):
        decode(stored(0) + record.replace(b"no zlib", b"on zlib"))


# --- against wire.message -------------------------------------------------------------------------

texts = st.text("aZ é中\U0001f680=\x00", max_size=6)
properties = st.dictionaries(
    st.one_of(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"]), texts), texts, max_size=5
)
hosts = st.sampled_from([bytes(8), bytes(20)])


@st.composite
def messages(draw: st.DrawFn) -> list[StoredMessage]:
    bodies = draw(st.lists(st.binary(max_size=40), max_size=20))
    odd = draw(st.booleans())
    result = []
    for offset, body in enumerate(bodies):
        text = "".join(f"{name}\x01{value}\x02" for name, value in draw(properties).items())
        raw = text.encode()[: -1 if draw(st.booleans()) and text else None]
        flag = 0
        if odd and draw(st.booleans()):
            body, flag = compress(body)
        result.append(
            StoredMessage(
                draw(st.sampled_from(["T", "%RETRY%" + "g" * 125])) if odd else "Orders",
                body,
                raw,
                3,
                queue_offset=offset,
                commitlog_offset=draw(st.integers(0, 2**62)),
                sys_flag=flag,
                born_timestamp_ms=draw(st.integers(0, 4_102_444_800_000)),
                born_host=draw(hosts) if odd else bytes(8),
                store_timestamp_ms=draw(st.integers(0, 4_102_444_800_000)),
                store_host=draw(hosts) if odd else bytes(8),
            )
        )
    return result


@given(messages())
def test_agrees_with_the_record_decoder(sent: list[StoredMessage]) -> None:
    """Whatever was stored, Arrow shows what the plain decoder shows."""
    records = b"".join(encode_stored(message) for message in sent)
    assert decode(records) == expected(records)


@given(messages(), st.data())
def test_any_subset_of_columns_is_the_same_data(
    sent: list[StoredMessage], data: st.DataObject
) -> None:
    """Pruning changes the cost, never the values."""
    records = b"".join(encode_stored(message) for message in sent)
    names = data.draw(st.lists(st.sampled_from(ALL.names), min_size=1, unique=True))
    pruned = whole(RecordDecoder(ALL.empty_table().select(names).schema), records, QUEUE)
    full = whole(RecordDecoder(ALL), records, QUEUE)
    assert pruned.equals(full.select(names))


@settings(max_examples=300)
@given(messages().filter(bool), st.data())
def test_damage_raises_protocol_error_only(sent: list[StoredMessage], data: st.DataObject) -> None:
    """Cut anywhere and flip any byte: rows or ProtocolError, nothing else."""
    records = bytearray(b"".join(encode_stored(message) for message in sent))
    at = data.draw(st.integers(0, len(records) - 1))
    records[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(records)))
    with contextlib.suppress(ProtocolError):
        whole(RecordDecoder(ALL), bytes(records[:cut]), QUEUE)


@given(st.binary(min_size=1, max_size=300))
def test_garbage_raises_protocol_error(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(garbage)


@given(messages())
def test_metadata_agree_with_the_record_decoder(sent: list[StoredMessage]) -> None:
    """Also of messages that are not in the plain form, whose hosts and flags the plain form does
    not keep.
    """
    records = b"".join(encode_stored(message) for message in sent)
    shown = whole(RecordDecoder(METADATA), records, QUEUE).to_pylist()
    stored_as, at = [], 0
    while at < len(records):
        stored_as.append(decode_stored(records, at))
        at += stored_as[-1].size
    assert shown == [
        {
            "msgId": decode_properties(raw.properties).get(
                "UNIQ_KEY", offset_message_id(raw.store_host, raw.commitlog_offset)
            ),
            "offsetMsgId": offset_message_id(raw.store_host, raw.commitlog_offset),
            "commitLogOffset": raw.commitlog_offset,
            "reconsumeTimes": raw.reconsume_times,
            "bornHost": decode_host(raw.born_host),
            "storeHost": decode_host(raw.store_host),
            "flag": raw.flag,
            "sysFlag": raw.sys_flag,
            "bodyCRC": raw.body_crc,
        }
        for raw in stored_as
    ]
    assert list(queue_offsets(records)) == [raw.queue_offset for raw in stored_as]


# --- rows -----------------------------------------------------------------------------------------


def test_an_empty_answer_has_no_rows() -> None:
    assert decode(b"") == []


def test_tags_are_compared_exactly() -> None:
    """`Aa` and `BB` have one Java hash code, so the broker sends both."""
    records = (
        stored(0, properties=b"TAGS\x01Aa\x02")
        + stored(1, properties=b"TAGS\x01BB\x02")
        + stored(2)
    )
    assert [row["queueOffset"] for row in decode(records, tags=frozenset({"BB"}))] == [1]


def test_tag_filter_works_without_the_column() -> None:
    schema = ALL.empty_table().select(["body"]).schema
    records = stored(0, b"a", b"TAGS\x01Aa\x02") + stored(1, b"b", b"TAGS\x01BB\x02")
    assert whole(RecordDecoder(schema, frozenset({"BB"})), records, QUEUE).to_pylist() == [
        {"body": b"b"}
    ]


def test_sql_is_put_to_the_properties_of_each_row() -> None:
    """Also where no column shows them."""
    schema = ALL.empty_table().select(["queueOffset"]).schema
    amounts = [b"amount\x015\x02", b"", b"amount\x0150\x02TAGS\x01t\x02", b"amount\x01much\x02"]
    records = b"".join(stored(offset, properties=raw) for offset, raw in enumerate(amounts))
    kept = whole(RecordDecoder(schema, sql=compile_expression("amount > 10")), records, QUEUE)
    assert kept.to_pylist() == [{"queueOffset": 2}]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        pytest.param(
            b"a\x011\x02b\x012", {"a": "1", "b": "2"}, id="4.9 leaves the last separator off"
        ),
        pytest.param(b"a\x01\x02b\x012\x02", {"b": "2"}, id="empty values vanish"),
        pytest.param(b"\x011\x02b\x012\x02", {"b": "2"}, id="nameless values vanish"),
        pytest.param(
            b"a\x011\x012\x02", {"a": "1\x012"}, id="a value may hold the inner separator"
        ),
        pytest.param(b"a\x011\x02\x02b\x012\x02", {"a": "1", "b": "2"}, id="a repeated separator"),
        pytest.param(b"a\x01\x00\x02", {"a": "\x00"}, id="a zero byte is a value"),
        pytest.param(b"a\x01\xff\x02", {"a": "\ufffd"}, id="bad UTF-8 is replaced, as in Java"),
        pytest.param(b"junk", {}, id="no separator at all"),
    ],
)
def test_irregular_properties(raw: bytes, shown: dict[str, str]) -> None:
    """One irregular row changes neither itself nor its neighbours."""
    neighbour = stored(0, properties=b"KEYS\x01k\x02TAGS\x01t\x02")
    rows = decode(neighbour + stored(1, properties=raw) + neighbour)
    assert [row["properties"] for row in rows] == [
        {"KEYS": "k", "TAGS": "t"},
        shown,
        {"KEYS": "k", "TAGS": "t"},
    ]


def test_missing_keys_and_tags_are_null() -> None:
    rows = decode(
        stored(0)
        + stored(1, properties=b"TAGS\x01t\x02")
        + stored(2, properties=b"KEYS\x01k\x02x\x01y\x02")
        + stored(3)
    )
    assert [(row["keys"], row["tags"]) for row in rows] == [
        (None, None),
        (None, "t"),
        ("k", None),
        (None, None),
    ]


def batch(offset: int, count: int, **fields: Any) -> bytes:
    """As Apache's brokers keep it in a topic with queue.type=BatchCQ."""
    items = [
        (n, b"%d" % (offset + n), b"KEYS\x01k%d\x02TAGS\x01t%d\x02" % (offset + n, n % 2))
        for n in range(count)
    ]
    return stored(
        offset,
        encode_batch(items),
        b"UNIQ_KEY\x01OUTER\x02INNER_NUM\x01%d\x02" % count,
        **({"sys_flag": 0xC0} | fields),
    )


def taken(records: bytes, start: int, end: int, **filtered: Any) -> list[tuple[int, bytes]]:
    (found,) = RecordDecoder(ALL, **filtered).batches(records, QUEUE, range(start, end))
    return [(row["queueOffset"], row["body"]) for row in rows_of(found)]


def test_records_that_hold_batches_become_their_messages() -> None:
    records = batch(0, 3) + stored(3, properties=b"KEYS\x01k3\x02") + batch(4, 2)
    rows = decode(records)
    assert [(row["queueOffset"], row["keys"], row["tags"]) for row in rows] == [
        (0, "k0", "t0"),
        (1, "k1", "t1"),
        (2, "k2", "t0"),
        (3, "k3", None),
        (4, "k4", "t0"),
        (5, "k5", "t1"),
    ]
    assert [row["body"] for row in rows] == [b"0", b"1", b"2", b"body", b"4", b"5"]
    (shown,) = RecordDecoder(METADATA).batches(records, QUEUE)
    assert [(row["sysFlag"], row["flag"]) for row in shown.to_pylist()] == [
        (0x80, 0),
        (0x80, 1),
        (0x80, 2),
        (0, 0),
        (0x80, 0),
        (0x80, 1),
    ]


def test_of_a_batch_only_what_was_asked_for_is_taken_and_that_once() -> None:
    """Each answer that has a part of it brings the whole record; answers are joined before they are
    decoded.
    """
    records = batch(0, 4) + batch(4, 4) + batch(4, 4) + batch(4, 4) + batch(8, 4)
    assert taken(records, 2, 10) == [(n, b"%d" % n) for n in range(2, 10)]
    assert list(queue_offsets(records, range(2, 10))) == list(range(2, 10))
    assert taken(records, 2, 10, tags=frozenset({"t1"})) == [(n, b"%d" % n) for n in (3, 5, 7, 9)]
    assert taken(records, 2, 10, sql=compile_expression("KEYS = 'k6'")) == [(6, b"6")]


def test_a_compressed_batch_is_inflated_and_one_that_cannot_be_taken_apart_is_an_error() -> None:
    packed, flags = compress(encode_batch([(0, b"a", b""), (0, b"b", b"")]), "zlib")
    assert taken(stored(5, packed, sys_flag=0xC0 | flags), 0, 100) == [(5, b"a"), (6, b"b")]
    for broken in (
        stored(5, b"no batch", sys_flag=0xC0),
        stored(5, packed[:-3], sys_flag=0xC0 | flags),
    ):
        with pytest.raises(ProtocolError, match="the batch at Orders/3/5 cannot be read"):
            taken(broken, 0, 100)


PAGES = """
import resource

import pyarrow as pa

from ogive.model import MessageQueue
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder
from ogive.spark.schema import MESSAGE_COLUMNS, only
from ogive.wire.message import StoredMessage, encode_stored

record = encode_stored(StoredMessage("Orders", bytes(1024), queue_offset=0))
decoder = RecordDecoder(arrow_schema(only(MESSAGE_COLUMNS, "body", "queueOffset", "keys")))


def faults(batches):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(batches):
        for _ in decoder.batches(record * 1700, MessageQueue("Orders", "broker-a", 0)):
            pass
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // batches


faults(5)
print(faults(20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such option")
def test_the_memory_of_a_batch_is_used_again() -> None:
    """The bodies alone are 435 pages, and each new page costs as much as decoding four rows.

    The decoder in Python makes objects of each row, in about 300 new pages a batch.
    """
    done = subprocess.run(
        [sys.executable, "-c", PAGES], capture_output=True, text=True, timeout=120, check=True
    )
    assert int(done.stdout) < (400 if native is None else 200)
