"""native/batches.c beside ogive.wire.message and ogive.broker.sends.send_batch."""

import struct
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.broker.replies import Rejected, framed
from ogive.broker.sends import send_batch
from ogive.broker.sends.send_answer import answer_template, json_text
from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.store.types import PutResult
from ogive.wire import message
from ogive.wire.message import BatchItem, decode_batch, encode_batch, offset_message_ids

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
    plain = compiled.plain_batch(encode_batch(items), send_batch.BARRED_STARTS, 4)
    try:
        send_batch._check_items(items)
    except Rejected:
        assert plain is None
    named = [name for text in given_texts for name in text.split(b"\2")]
    assert plain == (
        None if any(name.startswith(send_batch.BARRED_STARTS) for name in named) else len(items)
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
    assert compiled.plain_batch(body, (b"no such name",), most) == (len(items) if items else None)
    assert compiled.plain_batch(body, (b"no such name",), 2**70) is None


def test_properties_that_no_record_has_room_for_are_not_plain(compiled: Native) -> None:
    for size, plain in ((32767, 2), (32768, None)):
        assert (
            compiled.plain_batch(encode_batch([(0, b"", b""), (0, b"b", b"v" * size)]), (b"A",), 9)
            == plain
        )


@given(
    st.sampled_from([b"", bytes(8), bytes(range(240, 248)), bytes(range(20)), bytes(21)]),
    st.lists(st.one_of(st.integers(0, 2**63 - 1), st.integers(2**63, 2**64 - 1)), max_size=4),
)
def test_ids_are_those_of_python(compiled: Native, store_host: bytes, offsets: list[int]) -> None:
    found = compiled.message_ids(store_host, offsets)
    with patch.object(message, "native", None):
        assert found in (offset_message_ids(store_host, offsets), None)
    assert (found is None) == (len(store_host) > 20 or not offsets or max(offsets) >= 2**63)


@pytest.mark.parametrize("offset", [-1, 2**64, "1", None, 1.0])
def test_a_place_that_is_no_offset_is_left_to_python(compiled: Native, offset: Any) -> None:
    assert compiled.message_ids(bytes(8), [1, offset]) is None


HOST = bytes([127, 0, 0, 1, 0, 0, 39, 16])
offsets = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5)


@given(
    st.sampled_from(["DefaultRegion", '"50 % %d\\ü']),
    st.one_of(st.none(), st.text(max_size=8), st.from_regex(r"[A-Za-z0-9]{1,70}\Z")),
    st.sampled_from([HOST, HOST[:4] * 5]),
    offsets,
    st.integers(-(2**63), 2**63 - 1),
)
def test_answers_to_batches_are_those_that_python_writes(
    compiled: Native, region: str, key: str | None, host: bytes, places: list[int], number: int
) -> None:
    template = answer_template(region, "%b", keyed=key is not None)
    found = compiled.batch_answer(
        template, number, key, host, [PutResult(number, place, 1, 2) for place in places], number
    )
    if found is None:
        assert key is not None
        assert not (key.isascii() and key.isalnum())
    else:
        with patch.object(message, "native", None):
            ids = offset_message_ids(host, places).encode()
        keys = () if key is None else (json_text(key),)
        assert found == framed(template % (number, *keys, ids, number, number))


def test_answers_of_other_forms_are_left_to_python(compiled: Native) -> None:
    answer: Any = compiled.batch_answer
    usual: list[Any] = [b"%d%s%b%d%d", 1, "A", HOST, [(7, 8)], 3]
    assert answer(*usual) == framed(b'1"A"7F000001000027100000000000000008' + b"73")
    changes: list[tuple[int, Any]] = [
        *[
            (0, template)
            for template in (
                b"",
                b"%d%s%b%d",
                b"%d%s%b%d%d%d",
                b"%d%b%s%d%d",
                b"%d%s%d%d%d",
                b"%d%s%",
                b"%d%d%b%d%d",
            )
        ],
        (0, usual[0] + b"x" * 65536),
        (1, 2**63),
        (1, "1"),
        (2, ""),
        (2, "ü"),
        (2, None),
        (3, bytes(21)),
        (4, []),
        (4, [None]),
        (4, [(1,)]),
        (4, [(7, -1)]),
        (4, [(7, 2**63)]),
        (4, [(7, "8")]),
        (4, [("7", 8)]),
        (4, [(2**63, 8)]),
        (4, [(7, 8), (7, None)]),
        (5, 2**63),
        (5, "3"),
    ]
    for at, value in changes:
        assert answer(*usual[:at], value, *usual[at + 1 :]) is None, (at, value)
    for at, value in ((0, "%d"), (2, b"A"), (3, "host"), (4, ())):
        with pytest.raises(TypeError, match="template: bytes"):
            answer(*usual[:at], value, *usual[at + 1 :])
    with pytest.raises(TypeError, match="template: bytes"):
        answer(*usual[:-1])


def test_only_lists_and_bytes_are_looked_at(compiled: Native) -> None:
    plain: list[Any] = [
        ([], (b"A",), 9),
        (b"", [b"A"], 9),
        (b"", ("A",), 9),
        (b"", (b"A",), "9"),
        (b"", (b"A",)),
        (b"", (b"A",), 9, 9),
    ]
    for arguments in plain:
        with pytest.raises(TypeError, match="body: bytes"):
            compiled.plain_batch(*arguments)
    items: list[Any] = [(b"", "1", BatchItem), (b"", 1), (b"", 1, BatchItem, 1)]
    for arguments in items:
        with pytest.raises(TypeError, match="body: bytes"):
            compiled.batch_items(*arguments)
    bodies: list[Any] = [(), ([], [])]
    for arguments in bodies:
        with pytest.raises(TypeError, match="items: list"):
            compiled.batch_body(*arguments)
    ids: list[Any] = [("host", [1]), (bytes(8), (1,)), (bytes(8),), (bytes(8), [1], [1])]
    for arguments in ids:
        with pytest.raises(TypeError, match="store_host: bytes"):
            compiled.message_ids(*arguments)
