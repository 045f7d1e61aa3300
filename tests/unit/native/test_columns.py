"""native/columns.c beside ogive.spark.decode."""

import itertools
import json
import struct
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.native import Native
from ogive.spark import decode
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder
from ogive.spark.schema import MESSAGE_COLUMNS, METADATA_COLUMNS
from ogive.sql92 import Expression, compile_expression
from ogive.wire.compression import compress
from ogive.wire.message import StoredMessage, encode_stored

QUEUE = MessageQueue("Orders", "broker-a", 3)
ALL = StructType([*MESSAGE_COLUMNS, *METADATA_COLUMNS])
STORED = tuple(name for name in ALL.names if name not in ("topic", "brokerName", "queueId"))
AMOUNT = compile_expression("amount > 10 or TAGS = 'Aa'")
VECTORS = Path(__file__).parents[2] / "vectors" / "messages.jsonl"

Outcome = list[Any] | str


def outcome(
    records: bytes,
    columns: StructType,
    tags: frozenset[str] | None = None,
    sql: Expression | None = None,
) -> Outcome:
    """The batches, or what is wrong."""
    try:
        return list(RecordDecoder(arrow_schema(columns), tags, sql).batches(records, QUEUE))
    except ProtocolError as exc:
        return str(exc)


def check(compiled: Native, records: bytes, columns: StructType, **filters: Any) -> None:
    """Both ways come to the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "native", compiled)
        ours = outcome(records, columns, **filters)
        patch.setattr(decode, "native", None)
        twin = outcome(records, columns, **filters)
    if isinstance(ours, str) or isinstance(twin, str):
        assert ours == twin
        return
    assert len(ours) == len(twin)
    for one, other in zip(ours, twin, strict=True):
        one.validate(full=True)
        assert one.schema == other.schema
        assert one.equals(other)


def stored(body: bytes = b"body", properties: bytes = b"", **fields: Any) -> bytes:
    return encode_stored(StoredMessage("Orders", body, properties, 3, **fields))


numbers_32 = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, -(2**31), 2**31 - 1]))
numbers_64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, -(2**63), 2**63 - 1]))
times = st.one_of(
    st.integers(0, 4_102_444_800_000),
    numbers_64,
    st.sampled_from(
        [
            -62135510400001,
            -62135510400000,
            253402214399999,
            253402214400000,
            1_700_000_000_000_000,
            1_700_000_000_000_000_000,
        ]
    ),
)
hosts_v4 = st.sampled_from([bytes(8), b"\x7f\0\0\1\0\0\x2a\x9f", b"\xff" * 8])
names = st.one_of(
    st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "amount", "KEY", "TAGS2"]),
    st.text("aé中\U0001f680", min_size=1, max_size=4),
)
values = st.one_of(
    st.sampled_from(["Aa", "BB", "5", "50"]), st.text("a Zé中\U0001f680=", min_size=1, max_size=20)
)
entries = st.tuples(names, values).map("\x01".join)
regular = st.tuples(st.lists(entries, max_size=5), st.booleans()).map(
    lambda drawn: ("\x02".join(drawn[0]) + "\x02" * (drawn[1] and bool(drawn[0]))).encode()
)
odd_bytes = st.lists(
    st.sampled_from(
        [
            b"a",
            b"b",
            b"\x00",
            b"\x01",
            b"\x02",
            b"\x01",
            b"\x02",
            b"KEYS",
            b"TAGS",
            b"\xff",
            "é".encode(),
            b"\xed\xa0\x80",
        ]
    ),
    max_size=12,
).map(b"".join)


@st.composite
def messages(draw: st.DrawFn, *, plain: bool) -> StoredMessage:
    body, flag = draw(st.binary(max_size=40)), draw(st.sampled_from([0, 2, 4, 8, 0x700]))
    if not plain and draw(st.integers(0, 9)) == 0:
        body, flag = compress(body)
    v6 = not plain and draw(st.integers(0, 9)) == 0
    return StoredMessage(
        draw(st.sampled_from(["T", "Orders", "%RETRY%" + "g" * (100 if plain else 125)])),
        body,
        draw(regular if plain else st.one_of(regular, odd_bytes)),
        3,
        flag=draw(numbers_32),
        queue_offset=draw(numbers_64),
        commitlog_offset=draw(st.integers(0, 2**63 - 1)),
        sys_flag=flag,
        born_timestamp_ms=draw(times),
        born_host=bytes(20) if v6 else draw(hosts_v4),
        store_timestamp_ms=draw(times),
        store_host=draw(hosts_v4),
        reconsume_times=draw(numbers_32),
    )


some_columns = st.lists(st.sampled_from(ALL.names), min_size=1, unique=True).map(
    lambda names: StructType([ALL[name] for name in names])
)
filters = st.sampled_from([{}, {}, {"tags": frozenset({"Aa", "é"})}, {"sql": AMOUNT}])


@given(sent=st.lists(messages(plain=True), max_size=20), columns=some_columns, filters=filters)
def test_the_columns_are_those_that_python_finds(
    compiled: Native, sent: list[StoredMessage], columns: StructType, filters: dict[str, Any]
) -> None:
    """Any of them, in any order; a repeated property included."""
    records = b"".join(map(encode_stored, sent))
    found = compiled.columns(records, STORED)
    assert found is not None
    assert found[0] == len(sent)
    check(compiled, records, columns, **filters)


@given(sent=st.lists(messages(plain=False), max_size=8), columns=some_columns, filters=filters)
def test_unusual_records_are_left_to_python(
    compiled: Native, sent: list[StoredMessage], columns: StructType, filters: dict[str, Any]
) -> None:
    check(compiled, b"".join(map(encode_stored, sent)), columns, **filters)


@settings(max_examples=3 * settings().max_examples)
@given(
    sent=st.lists(messages(plain=True), min_size=1, max_size=4),
    columns=some_columns,
    data=st.data(),
)
def test_damage_is_left_to_python(
    compiled: Native, sent: list[StoredMessage], columns: StructType, data: st.DataObject
) -> None:
    """Cut anywhere, any byte another; lengths above all."""
    records = bytearray(b"".join(map(encode_stored, sent)))
    at = data.draw(st.one_of(st.integers(0, len(records) - 1), st.sampled_from([0, 4, 36, 84])))
    records[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
    check(
        compiled,
        bytes(records[: data.draw(st.one_of(st.just(len(records)), st.integers(0, len(records))))]),
        columns,
    )


@pytest.mark.parametrize(
    "raw",
    [
        *[
            name + b"\x01v"
            for name in (
                b"KEYS",
                b"KEY",
                b"KEYS2",
                b"TAGS",
                b"TAG",
                b"TAGS2",
                b"UNIQ_KEY",
                b"UNIQ_KE",
                b"UNIQ_KEY2",
            )
        ],
        b"KEYS\x01first\x02KEYS\x01second\x02TAGS\x01Aa\x02UNIQ_KEY\x01u",
    ],
)
def test_each_property_is_known_by_its_whole_name(compiled: Native, raw: bytes) -> None:
    for records in (
        stored(properties=raw),
        stored() + stored(properties=raw),
        stored(properties=raw) + stored(),
    ):
        assert compiled.columns(records, STORED) is not None
        check(compiled, records, ALL)


@pytest.mark.parametrize(
    "raw",
    [
        b"K",
        b"\x01",
        b"\x02",
        b"K\x01",
        b"K\x02",
        b"\x01v",
        b"\x01v\x02",
        b"K\x01\x02",
        b"K\x02v",
        b"K\x01v\x01w",
        b"K\x01v\x02\x02",
        b"K\x00\x01v",
        b"K\x01v\x00",
        b"K\x01v\x02L",
        b"K\x01v\x02L\x01",
        b"K\x01\xff",
        b"\xff\x01v",
        b"K\x01\xe4\xb8",
        b"K\x01\xc3",
    ],
)
def test_properties_that_are_not_regular_are_left_to_python(compiled: Native, raw: bytes) -> None:
    for records in (
        stored(properties=raw),
        stored(b"", b"A\x01b") + stored(properties=raw),
        stored(properties=raw) + stored(),
    ):
        assert compiled.columns(records, ("keys",)) is None
        assert compiled.columns(records, ("body",)) is not None
        check(compiled, records, ALL)


def test_any_other_length_flag_and_byte_of_a_text_is_left_to_python(compiled: Native) -> None:
    first, second = (
        stored(b"b", b"TAGS\x01Aa\x02UNIQ_KEY\x01k"),
        stored(b"", b"K\x01v\x02", queue_offset=1),
    )
    whole = first + second
    assert compiled.columns(whole, STORED) is not None
    for at in [
        *range(8),
        *range(36, 40),
        *range(84, len(first)),
        *range(len(first), len(first) + 4),
        len(whole) - 6,
        len(whole) - 1,
    ]:
        for byte in {
            0,
            1,
            2,
            3,
            0xFF,
            whole[at] ^ 0x80,
            (whole[at] + 1) & 0xFF,
            (whole[at] - 1) & 0xFF,
        }:
            check(compiled, whole[:at] + bytes([byte]) + whole[at + 1 :], ALL)
    for end in (1, len(first) - 1, len(first) + 1, len(whole) - 1):
        check(compiled, whole[:end], ALL)


@given(garbage=st.binary(max_size=300))
def test_garbage_is_left_to_python(compiled: Native, garbage: bytes) -> None:
    check(compiled, garbage, ALL)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line["name"])
        for line in map(json.loads, VECTORS.read_text().splitlines())
        if "stored" in line
    ],
)
def test_what_apache_wrote(compiled: Native, line: dict[str, Any]) -> None:
    check(compiled, bytes.fromhex(line["stored"]) * 2, ALL)


@pytest.mark.parametrize("size", [0, 90, 91, 92, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("at", [0, 84])
def test_extreme_lengths(compiled: Native, at: int, size: int) -> None:
    record = bytearray(stored(b"", b""))
    struct.pack_into(">I", record, at, size)
    for records in (bytes(record), stored() + bytes(record), bytes(record) + stored()):
        check(compiled, records, ALL)


@pytest.mark.parametrize("raw", [b"", b"KEYS\x01k\x02", b"x\x01y"])
def test_every_size_of_answer(compiled: Native, raw: bytes) -> None:
    """Around the bytes of the bitmap that says which rows have a value."""
    for count in range(20):
        records = b"".join(
            stored(b"", raw if n % 3 else b"TAGS\x01t\x02", queue_offset=n) for n in range(count)
        )
        check(compiled, records, ALL)


def test_text_is_utf8_by_the_same_rule(compiled: Native) -> None:
    """Each first byte with the edges of what may follow."""
    edges = (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0)
    head, tail = stored(properties=b"a\x01????")[:-4], b""
    for lead in range(0x7F, 0x100):
        for rest in itertools.product(
            edges, (0x41, 0x7F, 0x80, 0xBF, 0xC0), (0x41, 0x80, 0xBF, 0xC0)
        ):
            tail = bytes((lead, *rest))
            found = compiled.columns(head + tail, ("keys",))
            assert (found is not None) == is_text(tail), tail


def is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_every_column_is_known(compiled: Native) -> None:
    assert compiled.columns(stored(), STORED) is not None
    assert [compiled.columns(stored(), (name,)) is None for name in STORED] == [False] * len(STORED)


def test_an_unknown_column_is_left_to_python(compiled: Native) -> None:
    for names in (("topic",), ("queueOffset", "é"), (1,), STORED * 2):
        assert compiled.columns(stored(), names) is None  # type: ignore[arg-type]


def test_only_bytes_and_a_tuple_are_taken(compiled: Native) -> None:
    unfit: list[tuple[Any, ...]] = [(bytearray(8), ()), (b"", []), (b"",)]
    for arguments in unfit:
        with pytest.raises(TypeError, match="records: bytes"):
            cast(Any, compiled).columns(*arguments)
