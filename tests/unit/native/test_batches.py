"""native/batches.c beside ogive.wire.message."""

import struct
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

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
    for flag, body, properties in draw(st.lists(st.tuples(numbers, st.binary(max_size=8), st.binary(max_size=8)), max_size=5)):
        size = draw(st.one_of(st.just(22 + len(body) + len(properties)), numbers))
        body_size = draw(st.one_of(st.just(len(body)), numbers))
        properties_size = draw(st.one_of(st.just(len(properties)), st.integers(0, 0xFFFF)))
        parts.append(struct.pack(">iIIii", size, 7, 9, flag, body_size) + body + struct.pack(">H", properties_size) + properties)
    return b"".join(parts)


@given(body=st.one_of(batches(), st.binary(max_size=80)), cut=st.integers(0, 3), most=st.integers(0, 4))
@example(encode_batch([(1, b"a", b"K\1v"), (-1, b"", b"")]), 0, 4096)
@example(struct.pack(">iIIiiH", 22, 0, 0, 0, 0, 0), 0, 0)
@example(struct.pack(">iIIiiH", 22, 0, 0, 0, -1, 0), 0, 9)
@example(struct.pack(">iIIiiH", -1, 0, 0, 0, 0, 0), 0, 9)
def test_the_items_are_those_that_python_cuts(compiled: Native, body: bytes, cut: int, most: int) -> None:
    body = body[: len(body) - cut]
    found = compiled.batch_items(body, most, BatchItem)
    assert found == decoded_by_python(body, most)
    assert found is None or all(type(item) is BatchItem and [*map(type, item)] == [int, bytes, bytes] for item in found)


@given(st.lists(st.tuples(numbers, st.binary(max_size=8), st.binary(max_size=8)), max_size=5))
def test_the_body_is_that_of_python(compiled: Native, items: list[tuple[int, bytes, bytes]]) -> None:
    with patch.object(message, "native", None):
        assert compiled.batch_body(items) == encode_batch(iter(items))
    assert compiled.batch_items(encode_batch(iter(items)), 9, BatchItem) == items


@pytest.mark.parametrize(
    "item", [(2**31, b"", b""), (-(2**31) - 1, b"", b""), (2**70, b"", b""), (0, b"", bytes(65536)), (0, bytearray(1), b""), (0, b""), [0]]
)
def test_an_item_that_does_not_fit_is_left_to_python(compiled: Native, item: Any) -> None:
    assert compiled.batch_body([(0, b"", b""), item]) is None


def test_bodies_like_bytes_are_taken_all_the_same() -> None:
    assert encode_batch([(0, bytearray(b"ab"), b""), (1, memoryview(b"c"), b"")]) == encode_batch([(0, b"ab", b""), (1, b"c", b"")])  # type: ignore[list-item]


def test_a_negative_number_of_items_is_left_to_python(compiled: Native) -> None:
    assert compiled.batch_items(bytes(22), -1, BatchItem) is None


def test_only_lists_bytes_and_tuple_types_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="items: list"):
        compiled.batch_body(((0, b"", b""),))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body: bytes"):
        compiled.batch_items(bytearray(22), 1, BatchItem)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body: bytes"):
        compiled.batch_items(bytes(22), 1, list)  # type: ignore[type-var]
