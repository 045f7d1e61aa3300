"""native/batches.c beside ogive.wire.message and ogive.broker.sends.plan."""

import struct
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.broker.replies import Rejected
from ogive.broker.sends import plan
from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.wire import message
from ogive.wire.message import BatchItem, decode_batch, encode_batch

numbers = st.one_of(st.integers(-30, 60), st.sampled_from([2**31 - 1, -(2**31), 2**31 - 22, -22]))


def decoded_by_python(body: bytes, most: int) -> list[BatchItem] | None:
    with patch.object(message, "native", None):
        try:
            return decode_batch(body, most)
        except ProtocolError:
            return None


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Items one behind the other, most of them whole, some with a length that is not theirs."""
    parts = []
    for flag, body, properties in draw(
        st.lists(st.tuples(numbers, st.binary(max_size=8), st.binary(max_size=8)), max_size=5)
    ):
        size = draw(st.one_of(st.just(22 + len(body) + len(properties)), numbers))
        body_size = draw(st.one_of(st.just(len(body)), numbers))
        properties_size = draw(st.one_of(st.just(len(properties)), st.integers(0, 0xFFFF)))
        parts.append(
            struct.pack(">iIIii", size, 7, 9, flag, body_size)
            + body
            + struct.pack(">H", properties_size)
            + properties
        )
    return b"".join(parts)


@given(
    body=st.one_of(batches(), st.binary(max_size=80)), cut=st.integers(0, 3), most=st.integers(0, 4)
)
@example(encode_batch([(1, b"a", b"K\1v"), (-1, b"", b"")]), 0, 4096)
@example(struct.pack(">iIIiiH", 22, 0, 0, 0, 0, 0), 0, 0)
@example(struct.pack(">iIIiiH", 22, 0, 0, 0, -1, 0), 0, 9)
@example(struct.pack(">iIIiiH", -1, 0, 0, 0, 0, 0), 0, 9)
def test_the_items_are_those_that_python_cuts(
    compiled: Native, body: bytes, cut: int, most: int
) -> None:
    body = body[: len(body) - cut]
    found = compiled.batch_items(body, most, BatchItem)
    assert found == decoded_by_python(body, most)
    assert found is None or all(
        type(item) is BatchItem and [*map(type, item)] == [int, bytes, bytes] for item in found
    )


def test_any_other_byte_and_end_tells_the_same_as_in_python(compiled: Native) -> None:
    whole = encode_batch([(1, b"a", b"K\1v"), (-1, b"", b""), (2, b"body", b"")])
    assert compiled.batch_items(whole, 3, BatchItem) is not None
    for at, right in enumerate(whole):
        for byte in {0, 1, 0xFF, right ^ 0x80, (right + 1) & 0xFF, (right - 1) & 0xFF}:
            body = whole[:at] + bytes([byte]) + whole[at + 1 :]
            assert compiled.batch_items(body, 3, BatchItem) == decoded_by_python(body, 3), (
                at,
                byte,
            )
        assert compiled.batch_items(whole[:at], 3, BatchItem) == decoded_by_python(whole[:at], 3), (
            at
        )


@given(st.lists(st.tuples(numbers, st.binary(max_size=8), st.binary(max_size=8)), max_size=5))
def test_the_body_is_that_of_python(
    compiled: Native, items: list[tuple[int, bytes, bytes]]
) -> None:
    with patch.object(message, "native", None):
        assert compiled.batch_body(items) == encode_batch(iter(items))
    assert compiled.batch_items(encode_batch(iter(items)), 9, BatchItem) == items


@pytest.mark.parametrize(
    "item",
    [
        (2**31, b"", b""),
        (-(2**31) - 1, b"", b""),
        (2**70, b"", b""),
        (0, b"", bytes(65536)),
        (0, bytearray(1), b""),
        (0, b"", bytearray(1)),
        (0, b""),
        [0],
    ],
)
def test_an_item_that_does_not_fit_is_left_to_python(compiled: Native, item: Any) -> None:
    assert compiled.batch_body([(0, b"", b""), item]) is None


def test_the_longest_properties_are_compiled(compiled: Native) -> None:
    items = [BatchItem(2**31 - 1, b"", b"v" * 65535), BatchItem(-(2**31), b"b", b"")]
    body = compiled.batch_body([*items])
    assert body is not None
    assert compiled.batch_items(body, 2, BatchItem) == items


def test_bodies_like_bytes_are_taken_all_the_same() -> None:
    alike: list[Any] = [(0, bytearray(b"ab"), b""), (1, memoryview(b"c"), b"")]
    assert encode_batch(alike) == encode_batch([(0, b"ab", b""), (1, b"c", b"")])


@pytest.mark.parametrize("most", [-1, 2**70, -(2**70)])
def test_a_number_of_items_that_is_none_is_left_to_python(compiled: Native, most: int) -> None:
    assert compiled.batch_items(bytes(22), most, BatchItem) is None


def test_only_lists_bytes_and_tuple_types_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="items: list"):
        compiled.batch_body(((0, b"", b""),))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body: bytes"):
        compiled.batch_items(bytearray(22), 1, BatchItem)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body: bytes"):
        compiled.batch_items(bytes(22), 1, list)  # type: ignore[type-var]


PROPERTIES = [
    b"K\1v\2",
    b"K\1v",
    b"\2",
    b"DELAY\x013\2",
    b"XDELAY\x013\2",
    b"DELAY\1\2",
    b"DELAY\2",
    b"TIMER_DELAY_MS\x015\2",
    b"TIMER_X\1y\2",
    b"K\1TIMER_\2",
    b"TRAN_MSG\1true",
    b"TIMER",
    b"v" * 30,
]
texts = st.lists(st.sampled_from(PROPERTIES), max_size=3).map(b"".join)


@given(st.lists(texts, min_size=1, max_size=4))
def test_no_batch_that_python_refuses_is_plain(compiled: Native, given_texts: list[bytes]) -> None:
    items = [BatchItem(0, b"", text) for text in given_texts]
    plain = compiled.plain_batch(b".." + encode_batch(items), 2, plan.BARRED_STARTS, 4)
    try:
        plan.check_items(items)
    except Rejected:
        assert plain is None
    named = [name for text in given_texts for name in text.split(b"\2")]
    assert plain == (
        None if any(name.startswith(plan.BARRED_STARTS) for name in named) else len(items)
    )


@given(
    body=st.one_of(batches(), st.binary(max_size=80)),
    cut=st.integers(0, 3),
    most=st.integers(-1, 4),
)
@example(b"", 0, 4)
def test_only_what_python_cuts_is_plain(compiled: Native, body: bytes, cut: int, most: int) -> None:
    body = body[: len(body) - cut]
    items = decoded_by_python(body, most) if most > 0 else None
    assert compiled.plain_batch(body, 0, (b"no such name",), most) == (
        len(items) if items else None
    )
    assert compiled.plain_batch(body, 0, (b"no such name",), 2**70) is None


def test_properties_that_no_record_has_room_for_are_not_plain(compiled: Native) -> None:
    for size, plain in ((32767, 2), (32768, None)):
        assert (
            compiled.plain_batch(
                encode_batch([(0, b"", b""), (0, b"b", b"v" * size)]), 0, (b"A",), 9
            )
            == plain
        )


def test_only_lists_and_bytes_are_looked_at(compiled: Native) -> None:
    plain: list[Any] = [
        ([], 0, (b"A",), 9),
        (b"", "0", (b"A",), 9),
        (b"", 1, (b"A",), 9),
        (b"", -1, (b"A",), 9),
        (b"", 0, [b"A"], 9),
        (b"", 0, ("A",), 9),
        (b"", 0, (b"A",), "9"),
        (b"", 0, (b"A",)),
        (b"", 0, (b"A",), 9, 9),
    ]
    for arguments in plain:
        with pytest.raises(TypeError, match="data: bytes"):
            compiled.plain_batch(*arguments)
    items: list[Any] = [(b"", "1", BatchItem), (b"", 1), (b"", 1, BatchItem, 1)]
    for arguments in items:
        with pytest.raises(TypeError, match="body: bytes"):
            compiled.batch_items(*arguments)
    bodies: list[Any] = [(), ([], [])]
    for arguments in bodies:
        with pytest.raises(TypeError, match="items: list"):
            compiled.batch_body(*arguments)
