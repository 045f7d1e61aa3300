"""native/rows.c beside ogive.spark.rows, split_by_size() and encode_batch()."""

import sys
import threading
import time
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from ogive.client.routes import split_by_size
from ogive.errors import SendFailed
from ogive.native import Native
from ogive.spark import rows
from ogive.spark.rows import Encoded, Keys, encode, form
from ogive.wire.message import MAX_BATCH_MESSAGES, encode_batch

PLACES = Keys("query", 7, partition=3, of_content=False)
CONTENT = Keys("query", 7, partition=3, of_content=True)
FIRST = 100

Values = list[tuple[str | bytes | None, str | None, str | None]]


def batch_of(
    values: Values, columns: tuple[str, ...] = ("body", "tags", "keys"), body: Any = None
) -> pa.RecordBatch:
    types = {"body": body or pa.binary()}
    arrays = [
        pa.array([row[i] for row in values], types.get(name, pa.string()))
        for i, name in enumerate(columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def by_compiled(
    compiled: Native, batch: pa.RecordBatch, topic: str | None = "Orders", **options: Any
) -> tuple[str, list[Encoded]] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "native", compiled)
        return encode(
            batch,
            topic,
            options.get("first", FIRST),
            options.get("keys", PLACES),
            options.get("most_bytes", 1 << 20),
        )


def by_python(
    batch: pa.RecordBatch, topic: str | None = "Orders", most_bytes: int = 1 << 20
) -> tuple[str, list[Encoded]]:
    made = form(batch, topic, FIRST, 3, PLACES)
    parts = [
        made[part]
        for part in split_by_size((row.size for row in made), most_bytes, MAX_BATCH_MESSAGES)
    ]
    items = [[(0, row.body, row.properties) for row in part] for part in parts]
    assert len({row.topic for row in made}) == 1
    return made[0].topic, [
        Encoded(part[0].number, len(part), encode_batch(item))
        for part, item in zip(parts, items, strict=True)
    ]


usual = st.one_of(st.none(), st.text("aé\0\U0001f680", min_size=1, max_size=8))
usual_tags = st.one_of(st.none(), st.text("aé\U0001f680", min_size=1, max_size=8))
unusual = st.one_of(usual, st.text("a \x01\x02", max_size=4))
bodies = st.one_of(st.text("xé\x01\0", max_size=60).map(str.encode), st.binary(max_size=60))


@given(
    values=st.lists(st.tuples(bodies, usual_tags, usual), min_size=2, max_size=30),
    columns=st.sampled_from([("body",), ("body", "tags"), ("body", "tags", "keys")]),
    start=st.integers(0, 9),
    most_bytes=st.sampled_from([200, 500, 1 << 20]),
)
def test_the_batches_are_those_of_python(
    compiled: Native, values: Values, columns: tuple[str, ...], start: int, most_bytes: int
) -> None:
    """Also of a slice, whose buffers begin before it."""
    batch = batch_of(values, columns).slice(min(start, len(values) - 2))
    assert by_compiled(compiled, batch, most_bytes=most_bytes) == by_python(
        batch, most_bytes=most_bytes
    )


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=8), st.just(b"x" * 900)), unusual, unusual
        ),
        min_size=1,
        max_size=4,
    )
)
@example([(b"b", "\x01", None)] * 2)
@example([(b"b", "\x02", None)] * 2)
@example([(b"b", None, "k l")] * 2)
@example([(b"b", "", None)] * 2)
@example([(None, "t", None)] * 2)
def test_unusual_rows_are_left_to_python(compiled: Native, values: Values) -> None:
    batch = batch_of(values)
    found = by_compiled(compiled, batch, most_bytes=800)
    try:
        twin = by_python(batch, most_bytes=800)
    except SendFailed:
        assert found is None
    else:
        assert found is None or found == twin
        plain = all(
            body is not None
            and len(body) < 700
            and is_plain(tag, UNUSUAL_IN_TAG)
            and is_plain(key, " ")
            for body, tag, key in values
        )
        assert (found is not None) == (plain and len(values) > 1)


UNUSUAL_IN_TAG = "|*" + "".join(map(chr, range(0x21)))


def is_plain(text: str | None, forbidden: str = "\x01") -> bool:
    return text is None or (
        text != "" and not any(letter in text for letter in f"\x01\x02{forbidden}")
    )


def test_a_batch_of_most_rows_is_full(compiled: Native) -> None:
    batch = batch_of([(b"%d" % n, "t", str(n)) for n in range(2 * MAX_BATCH_MESSAGES + 1)])
    found = by_compiled(compiled, batch)
    assert found is not None
    assert [part.count for part in found[1]] == [MAX_BATCH_MESSAGES, MAX_BATCH_MESSAGES, 1]
    assert found == by_python(batch)


@pytest.mark.parametrize("size", [3999, 4000, 4001])
def test_long_tags_are_left_to_python(compiled: Native, size: int) -> None:
    batch = batch_of([(b"b", "t" * size, None), (b"b", None, "k" * size)])
    found = by_compiled(compiled, batch)
    assert (found is None) == (size > 4000)
    assert found is None or found == by_python(batch)


def test_bodies_of_text_are_utf8(compiled: Native) -> None:
    batch = batch_of([("grün", None, None), ("\U0001f680", None, None)], body=pa.string())
    assert by_compiled(compiled, batch) == by_python(batch)
    spoiled = pa.RecordBatch.from_arrays(
        [batch_of([(b"\xff", None, None)] * 2).column(0).cast(pa.binary()).view(pa.string())],
        ["body"],
    )
    assert by_compiled(compiled, spoiled) is None


def test_rows_of_one_topic_are_taken(compiled: Native) -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["A", "A"], "body": ["1", "2"]})
    assert by_compiled(compiled, batch, None) == by_python(batch, None)
    assert by_compiled(compiled, batch, "B") == by_python(batch, "B")
    for topics in (["A", "B"], ["A", None], [None, None]):
        several = pa.RecordBatch.from_arrays(
            [pa.array(topics, pa.string()), pa.array(["1", "2"])], ["topic", "body"]
        )
        assert by_compiled(compiled, several, None) is None
        assert by_compiled(compiled, several, "B") == by_python(several, "B")


def test_what_else_form_looks_at(compiled: Native) -> None:
    two: Values = [(b"1", "t", "k"), (b"2", "t", "k")]
    assert by_compiled(compiled, batch_of(two)) is not None
    assert by_compiled(compiled, batch_of(two), keys=CONTENT) is None
    assert by_compiled(compiled, batch_of(two), first=16**12) is None
    assert by_compiled(compiled, batch_of(two), first=2**63) is None
    assert by_compiled(compiled, batch_of(two)[:1]) is None
    assert by_compiled(compiled, batch_of(two)[:0]) is None
    arrays = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2"]), pa.array([["k"], ["k"]])], ["body", "keys"]
    )
    assert by_compiled(compiled, arrays) is None
    sharded = pa.RecordBatch.from_arrays(
        [pa.array([b"1", b"2"]), pa.array(["k", "k"])], ["body", "shardingKey"]
    )
    assert by_compiled(compiled, sharded) is None
    assert by_compiled(cast(Native, None), batch_of(two)) is None


@given(
    ends=st.lists(
        st.one_of(st.integers(-3, 12), st.sampled_from([-(2**31), 2**31 - 1])), max_size=6
    ),
    validity=st.one_of(st.none(), st.binary(max_size=2)),
    data=st.one_of(st.none(), st.binary(max_size=10)),
    offset=st.one_of(st.integers(-1, 4), st.sampled_from([2**31, 2**63 - 1, 2**70])),
    count=st.integers(-1, 6),
)
def test_buffers_that_do_not_fit_are_refused(
    compiled: Native,
    ends: list[int],
    validity: bytes | None,
    data: bytes | None,
    offset: int,
    count: int,
) -> None:
    """Whatever they say, nothing outside them is read, and what is encoded is in them."""
    raw = b"".join(end.to_bytes(4, "little", signed=True) for end in ends)
    found = compiled.encode_rows(
        count, (False, offset, validity, raw, data), None, None, b"H" * 20, 0, 1000, 4096
    )
    if found is None:
        return
    cuts = ends[offset : offset + count + 1]
    assert len(cuts) == count + 1
    bodies = [(data or b"")[a:b] for a, b in pairwise(cuts)]
    items = [
        (0, body, b"UNIQ_KEY\x01HHHHHHHHHHHHHHHHHHHH%012X\x02" % n) for n, body in enumerate(bodies)
    ]
    assert found == [(count, encode_batch(items))]


def test_ends_that_change_meanwhile_harm_nothing(compiled: Native) -> None:
    """The rows are measured and copied while other threads run."""
    count = 2000
    short, long = (
        b"".join([(n * size).to_bytes(4, "little") for n in range(count + 1)])
        for size in (10, 20_000)
    )
    ends, data, until = bytearray(short), bytes(count * 20_000), time.monotonic() + 0.5

    def change() -> None:
        while time.monotonic() < until:
            ends[:] = long
            ends[:] = short

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    other = threading.Thread(target=change)
    other.start()
    try:
        while time.monotonic() < until:
            found = compiled.encode_rows(
                count, (False, 0, None, ends, data), None, None, b"H" * 20, 0, 200_000, count
            )
            assert found is None or sum([rows for rows, _ in found]) == count
    finally:
        other.join()
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("offset", [-1, 2**31, 2**63 - 1, 2**63, 2**70, -(2**70)])
def test_an_offset_that_is_none_is_left_to_python(compiled: Native, offset: int) -> None:
    column, right = (False, offset, None, bytes(12), None), (False, 0, None, bytes(12), None)
    for body, tags, keys in ((column, None, None), (right, column, None), (right, None, column)):
        assert compiled.encode_rows(2, body, tags, keys, b"H" * 20, 0, 1000, 9) is None


@pytest.mark.parametrize(
    ("ends", "validity"),
    [
        ((0, 5, 4), None),
        ((5, 4, 6), None),
        ((0, 2**31 - 1, 3), None),
        ((0, -1, 3), None),
        ((-1, 0, 3), None),
        ((0, 3, 11), None),
        ((0, 3, 6), b"\1"),
        ((0, 3, 6), b"\2"),
    ],
)
def test_a_row_without_bytes_of_its_own_is_left_to_python(
    compiled: Native, ends: tuple[int, ...], validity: bytes | None
) -> None:
    """Ends that go back, or reach outside the data; a body that is null."""
    column = (
        False,
        0,
        validity,
        b"".join([end.to_bytes(4, "little", signed=True) for end in ends]),
        b"0123456789",
    )
    assert compiled.encode_rows(2, column, None, None, b"H" * 20, 0, 1000, 9) is None
    right = (False, 0, None, bytes(12), None)
    if validity is None:
        assert compiled.encode_rows(2, right, column, None, b"H" * 20, 0, 1000, 9) is None
        assert compiled.encode_rows(2, right, None, column, b"H" * 20, 0, 1000, 9) is None


def test_the_last_numbers_and_the_least_room_are_compiled(compiled: Native) -> None:
    column = (False, 0, None, bytes(12), None)
    size = len(encode_batch([(0, b"", b"UNIQ_KEY\x01" + b"H" * 32 + b"\x02")]))
    for count, first, most_bytes in ((1, 0, size), (2, 0, size), (2, 16**12 - 2, 2**31 - 1)):
        found = compiled.encode_rows(count, column, None, None, b"H" * 20, first, most_bytes, 9)
        assert found is not None
        assert sum([part for part, _ in found]) == count
    for count, first, most_bytes in (
        (2, 0, size - 1),
        (2, 16**12 - 1, 1000),
        (2, 0, 2**31),
        (2, 0, -1),
    ):
        assert (
            compiled.encode_rows(count, column, None, None, b"H" * 20, first, most_bytes, 9) is None
        )


def test_no_code_of_an_argument_is_run(compiled: Native) -> None:
    class Number:
        def __index__(self) -> int:
            raise LookupError

    column = (False, 0, None, bytes(12), None)
    for arguments in (
        ("", column, None, None, b"H" * 20, Number(), 9, 9),
        (2, (False, Number(), *column[2:]), None, None, b"H" * 20, 0, 9, 9),
    ):
        with pytest.raises(TypeError):
            cast(Any, compiled).encode_rows(*arguments)


def test_only_what_it_takes_is_taken(compiled: Native) -> None:
    column = (False, 0, None, bytes(12), None)
    unfit: list[tuple[Any, ...]] = [
        (2, column, None, None, "head", 0, 9, 9),
        (2, [], None, None, b"H" * 20, 0, 9, 9),
        (2, column),
    ]
    right = (2, column, None, None, b"H" * 20, 0, 9, 9)
    unfit += [
        (*right[:place], wrong, *right[place + 1 :])
        for place in (0, 4, 5, 6, 7)
        for wrong in ("", None, 2.0)
    ]
    unfit += [
        (2, wrong, None, None, *right[4:])
        for wrong in (column[:4], [*column], (False, "0", *column[2:]), (False, 0, None, "", None))
    ]
    for arguments in unfit:
        with pytest.raises(TypeError):
            cast(Any, compiled).encode_rows(*arguments)
    assert compiled.encode_rows(2, column, None, None, b"H" * 19, 0, 1000, 9) is None
    assert compiled.encode_rows(2, column, None, None, b"H" * 20, 0, 1000, 0) is None
    assert compiled.encode_rows(2, column, None, None, b"H" * 20, -1, 1000, 9) is None
    assert compiled.encode_rows(2**40, column, None, None, b"H" * 20, 0, 1000, 9) is None
