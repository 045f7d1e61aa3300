"""native/reading.c beside ogive.store.queue_reader, commitlog, record and logscan."""

import itertools
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, cast
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.native import Native, Wanted
from ogive.store import commitlog, queue_reader, record
from ogive.store.consumequeue import ENTRY, FILLER, FILLER_SIZE
from ogive.store.record import (
    CRC_BYTES,
    Record,
    crc_property,
    not_standing,
    read_record,
    topic_field,
)
from ogive.wire.message import StoredMessage, encode_stored

T = TypeVar("T")
BASE = 1 << 20
V6 = bytes(range(20))
offsets = st.one_of(st.integers(0, 400), st.sampled_from([-1, 2**31, 2**62 - 1, 2**62, 2**63 - 1]))
sizes = st.one_of(
    st.integers(0, 120), st.sampled_from([-1, -(2**31), FILLER_SIZE - 1, FILLER_SIZE])
)
wanted_lists = st.lists(st.tuples(offsets, sizes, st.integers(0, 9)), min_size=1, max_size=8)


def in_python(module: Any, call: Callable[..., T], *args: Any) -> T:
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(module, "native", None)
        return call(*args)


# --- entries --------------------------------------------------------------------------------------


@given(
    entries=st.lists(
        st.tuples(offsets, sizes, st.sampled_from([0, 7, -1, 7 + 2**32, -(2**63)])), max_size=8
    ),
    tags=st.sampled_from([None, frozenset[int](), frozenset({7}), frozenset({-1, 0})]),
    before=st.lists(st.just((1, 2, 3)), max_size=2),
    numbers=st.tuples(
        offsets, offsets, st.integers(-1, 6), st.integers(-1, 300), st.integers(0, 200)
    ),
)
@example([(0, FILLER_SIZE, 0), (50, 10, 7)], None, [], (0, 0, 32, 300, 40))
def test_the_records_chosen_are_those_that_python_chooses(
    compiled: Native,
    entries: list[Wanted],
    tags: frozenset[int] | None,
    before: list[Wanted],
    numbers: tuple[int, int, int, int, int],
) -> None:
    raw = b"".join([ENTRY.pack(*entry) for entry in entries])
    offset, total, *limits = numbers
    mine, twins = list(before), list(before)
    twin = in_python(
        queue_reader,
        lambda: queue_reader._choose(
            raw, tags, twins, offset, total, limits[0], limits[1], limits[2]
        ),
    )
    assert (
        queue_reader._choose(raw, tags, mine, offset, total, limits[0], limits[1], limits[2])
        == twin
    )
    assert mine == twins
    found = compiled.chosen(raw, tags, list(before), offset, total, limits[0], limits[1], limits[2])
    assert found == (None if offset == -1 or total == -1 or max(offset, total) > 2**62 else twin)


def test_entries_that_are_cut_off_are_left_to_python(compiled: Native) -> None:
    raw = ENTRY.pack(0, 100, 0)[:-1]
    wanted: list[Wanted] = []
    assert compiled.chosen(raw, None, wanted, 0, 0, 32, 1000, 0) is None
    with pytest.raises(struct.error):
        queue_reader._choose(raw, None, wanted, 0, 0, 32, 1000, 0)
    assert wanted == []


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**200])
def test_numbers_of_more_than_64_bits_are_left_to_python(
    compiled: Native, place: int, number: int
) -> None:
    numbers = [0, 0, 32, 1000, 0]
    numbers[place] = number
    wanted: list[Wanted] = []
    assert (
        compiled.chosen(
            FILLER, None, wanted, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        )
        is None
    )
    assert wanted == []


def test_where_choosing_ends_is_where_it_ends_in_python(compiled: Native) -> None:
    """One byte or one record before and behind each limit."""
    raw = (
        ENTRY.pack(40, 10, 7)
        + ENTRY.pack(50, 10, 7)
        + ENTRY.pack(60, 5, 0)
        + ENTRY.pack(65, FILLER_SIZE, 7)
        + ENTRY.pack(65, 5, 7)
    )
    for before, total, most, most_bytes, start in itertools.product(
        (0, 1), (0, 10), range(5), range(9, 42), (40, 41, 50, 51)
    ):
        for tags in (None, frozenset({7})):
            numbers = 3, total, most, most_bytes, start
            mine, twins = [(1, 2, 3)] * before, [(1, 2, 3)] * before
            assert compiled.chosen(raw, tags, mine, *numbers) == in_python(
                queue_reader, queue_reader._choose, raw, tags, twins, *numbers
            )
            assert mine == twins


@pytest.mark.parametrize("place", range(2))
def test_offsets_that_cannot_be_added_up_are_left_to_python(compiled: Native, place: int) -> None:
    for number, usual in ((-1, False), (0, True), (2**62, True), (2**62 + 1, False)):
        numbers = (number, 7) if place == 0 else (7, number)
        assert compiled.chosen(ENTRY.pack(0, 5, 0), None, [], *numbers, 32, 2**63 - 1, 0) == (
            (numbers[0] + 1, numbers[1] + 5, False, False) if usual else None
        )


# --- wanted records -------------------------------------------------------------------------------


@given(
    wanted=wanted_lists, limit=st.one_of(st.integers(0, 1000), st.just(2**63 - 1)), data=st.data()
)
def test_near_records_are_those_that_python_finds(
    compiled: Native, wanted: list[Wanted], limit: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(wanted) - 1))
    twin = in_python(commitlog, lambda: commitlog._near(wanted, at, limit))
    assert commitlog._near(wanted, at, limit) == twin
    assert compiled.near(wanted, at, limit, commitlog._MAX_GAP) in (twin, None)


@given(wanted=wanted_lists, start=st.integers(0, 50), length=st.integers(0, 300), data=st.data())
def test_the_records_inside_are_those_that_python_finds(
    compiled: Native, wanted: list[Wanted], start: int, length: int, data: st.DataObject
) -> None:
    at, chunk = data.draw(st.integers(0, len(wanted) - 1)), (start, bytes(length))
    twin = in_python(commitlog, lambda: commitlog._end_inside(wanted, at, chunk))
    assert commitlog._end_inside(wanted, at, chunk) == twin
    assert compiled.inside(wanted, at, start, start + length) in (twin, None)


def test_near_and_inside_end_where_they_end_in_python(compiled: Native) -> None:
    """One byte before and behind each limit."""
    for offset, size, limit, gap in itertools.product(
        range(8, 15), (0, 1, 5), range(9, 21), range(3)
    ):
        wanted = [(0, 10, 0), (offset, size, 1), (19, 1, 2)]
        with patch.object(commitlog, "_MAX_GAP", gap):
            assert compiled.near(wanted, 0, limit, gap) == in_python(
                commitlog, commitlog._near, wanted, 0, limit
            )
        chunk = (offset + gap - 1, bytes(limit - 9))
        end = chunk[0] + len(chunk[1])
        assert compiled.inside(wanted, 0, chunk[0], end) == in_python(
            commitlog, commitlog._end_inside, wanted, 0, chunk
        )


@given(
    wanted=st.lists(st.tuples(st.integers(50, 200), st.integers(0, 90), st.just(0)), max_size=8),
    start=st.integers(45, 55),
)
@example([(50, 10, 0), (60, 5, 0), (70, 10, 0)], 50)
@example([(55, 10, 0), (65, 5, 0)], 50)
def test_views_of_records_are_those_that_python_gives(
    compiled: Native, wanted: list[Wanted], start: int
) -> None:
    chunk = (start, bytes(range(200)))
    views, size = in_python(commitlog, lambda: commitlog._pick(wanted, chunk))
    found = compiled.picked(wanted, *chunk)
    within = all(start <= offset and offset + size <= start + 200 for offset, size, _ in wanted)
    assert found == ((views, size) if within else None)
    assert commitlog._pick(wanted, chunk) == (views, size)


def test_neighbours_that_are_usual_are_taken_at_once(compiled: Native) -> None:
    wanted = [(0, 100, 0), (100, 100, 1), (300, 100, 2), (100_000, 100, 3)]
    assert compiled.near(wanted, 0, 2**63 - 1, commitlog._MAX_GAP) == (3, 400, 300)
    assert compiled.inside(wanted, 0, 0, 400) == 3
    assert compiled.picked(wanted[:3], 0, bytes(400)) == (
        [memoryview(bytes(200)), memoryview(bytes(100))],
        300,
    )


@pytest.mark.parametrize(
    "odd",
    [
        (0, 2**31, 0),
        (2**62, 1, 0),
        (2**64, 1, 0),
        (-1, 1, 0),
        (0, -1, 0),
        (0, 1),
        (0.0, 1, 0),
        [0, 1, 0],
        None,
    ],
)
def test_what_is_no_usual_record_is_left_to_python(compiled: Native, odd: Any) -> None:
    for wanted in ([odd], [(0, 1, 0), odd]):
        assert compiled.near(wanted, 0, 1000, 100) is None
        assert compiled.inside([(0, 1, 0), *wanted], 0, 0, 1000) is None
        assert compiled.picked(wanted, 0, bytes(100)) is None
        assert compiled.doubtful(bytes(100), 0, wanted, 0, b"\x01T", False) is None


@pytest.mark.parametrize("at", [-1, 1, 2**63, -(2**63)])
def test_a_place_outside_the_list_is_left_to_python(compiled: Native, at: int) -> None:
    assert compiled.near([(0, 1, 0)], at, 1000, 100) is None
    assert compiled.inside([(0, 1, 0)], at, 0, 1000) is None


def test_gaps_and_beginnings_that_are_none_are_left_to_python(compiled: Native) -> None:
    wanted = [(0, 1, 0), (1, 1, 1)]
    assert [compiled.near(wanted, 0, 9, gap) for gap in (-1, 0, 2**31 - 1, 2**31)] == [
        None,
        (2, 2, 2),
        (2, 2, 2),
        None,
    ]
    assert compiled.picked(wanted, -1, bytes(100)) is None
    assert compiled.picked([], -1, bytes(100)) is None


# --- whether records stand ------------------------------------------------------------------------


def stored(
    queue_offset: int,
    commitlog_offset: int,
    body: bytes,
    topic: str = "T",
    properties: bytes = b"TAGS\x01a\x02",
    **fields: Any,
) -> bytes:
    """A record with the checksum over the whole."""
    message = StoredMessage(
        topic,
        body,
        properties + bytes(CRC_BYTES),
        3,
        queue_offset=queue_offset,
        commitlog_offset=commitlog_offset,
        **fields,
    )
    whole = encode_stored(message)[:-CRC_BYTES]
    return whole + crc_property(zlib.crc32(whole) & 0x7FFFFFFF)


def three(topic: str = "T", **fields: Any) -> tuple[bytes, list[Wanted]]:
    """Three records of a queue, and where they stand."""
    data, wanted = b"", []
    for queue_offset, body in enumerate((b"", b"one", bytes(range(256)) * 4)):
        one = stored(queue_offset, BASE + len(data), body, topic, **fields)
        wanted.append((BASE + len(data), len(one), queue_offset))
        data += one
    return data, wanted


def standing(
    data: bytes, wanted: list[Wanted], field: bytes, *, sound: bool, queue_id: int = 3
) -> list[Wanted]:
    """What does not stand, by both; both say the same."""
    found = not_standing(data, BASE, wanted, queue_id, field, 0, sound=sound)
    assert found == in_python(
        record, lambda: not_standing(data, BASE, wanted, queue_id, field, 0, sound=sound)
    )
    return found


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize(
    ("topic", "fields", "usual"),
    [
        ("T", {}, True),
        ("t" * 127, {"sys_flag": 1}, True),
        ("t" * 128, {}, False),
        ("T", {"born_host": V6}, False),
        ("T", {"store_host": V6}, False),
    ],
)
def test_usual_records_are_not_doubtful(
    compiled: Native, topic: str, fields: dict[str, Any], usual: bool, sound: bool
) -> None:
    data, wanted = three(topic, **fields)
    field = topic_field(topic.encode())
    assert (compiled.doubtful(data, BASE, wanted, 3, field, sound) == []) is usual
    assert standing(data, wanted, field, sound=sound) == []
    assert standing(data, wanted, field, sound=sound, queue_id=4) == wanted
    assert standing(data, wanted, field, sound=sound, queue_id=2**31 + 3) == wanted
    assert standing(data, wanted, topic_field(b"U"), sound=sound) == wanted
    assert standing(data[:-1], wanted, field, sound=sound) == wanted[2:]
    assert standing(
        data, [(offset, size, 9) for offset, size, _ in wanted], field, sound=sound
    ) == [(at, size, 9) for at, size, _ in wanted]


def test_any_changed_bit_makes_a_record_doubtful(compiled: Native) -> None:
    data, wanted = three()
    data, wanted = data[: wanted[2][0] - BASE], wanted[:2]
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        of = wanted[bit // 8 >= wanted[0][1]]
        assert compiled.doubtful(bytes(changed), BASE, wanted, 3, topic_field(b"T"), False) == [
            of
        ], bit


@given(st.data())
def test_spoiled_records_do_not_stand_where_python_says_so(
    compiled: Native, data: st.DataObject
) -> None:
    """Lengths, places and flags that say anything, half of them under a checksum that was made for
    them.
    """
    whole, wanted = three()
    begin, size, _ = wanted[1]
    one = bytearray(whole[begin - BASE :][:size])
    at = data.draw(
        st.one_of(st.sampled_from([0, 4, 12, 20, 28, 36, 84]), st.integers(88, size - 1))
    )
    piece = data.draw(
        st.one_of(
            st.integers(-130, 130).map(lambda n: n.to_bytes(4, signed=True)),
            st.binary(min_size=1, max_size=4),
        )
    )
    one[at : at + len(piece)] = piece[: size - at]
    if data.draw(st.booleans()):
        one[-CRC_BYTES:] = crc_property(zlib.crc32(one[:-CRC_BYTES]) & 0x7FFFFFFF)
    changed = whole[: begin - BASE] + bytes(one) + whole[begin - BASE + size :]
    for sound in (False, True):
        standing(changed, wanted, topic_field(b"T"), sound=sound)
        doubtful = compiled.doubtful(changed, BASE, wanted, 3, topic_field(b"T"), sound)
        assert doubtful in ([], wanted[1:2])


@given(
    data=st.binary(max_size=200),
    wanted=st.lists(
        st.tuples(st.integers(0, 250), st.integers(0, 250), st.integers(0, 3)), max_size=4
    ),
    base=st.integers(0, 60),
    sound=st.booleans(),
)
def test_garbage_does_not_stand(
    compiled: Native, data: bytes, wanted: list[Wanted], base: int, sound: bool
) -> None:
    assert compiled.doubtful(data, base, wanted, 0, b"\x01T", sound) == wanted


def checked(one: bytes) -> bytes:
    """Under a checksum that was made for it."""
    return one[:-CRC_BYTES] + crc_property(zlib.crc32(one[:-CRC_BYTES]) & 0x7FFFFFFF)


def test_parts_that_do_not_add_up_stand_under_no_checksum(compiled: Native) -> None:
    """Any other byte of the lengths, flags, topic and properties."""
    one = stored(0, BASE, b"body")
    for at in [*range(8), *range(36, 40), *range(84, len(one) - CRC_BYTES)]:
        for byte in {
            0,
            1,
            0x10,
            0x20,
            0xFF,
            one[at] ^ 0x80,
            one[at] ^ 0x10,
            (one[at] + 1) & 0xFF,
            (one[at] - 1) & 0xFF,
        }:
            changed = checked(one[:at] + bytes([byte]) + one[at + 1 :]) + bytes(100)
            found, _ = compiled.whole_records(changed, 0, BASE, 2**40, 64, Record) or ([], 0)
            assert found == scanned(changed)[: len(found)], (at, byte)
            for sound in (False, True):
                standing(changed, [(BASE, len(one), 0)], topic_field(b"T"), sound=sound)


def test_bytes_that_are_known_to_be_sound_are_not_checked(compiled: Native) -> None:
    one = stored(0, BASE, b"body").replace(b"body", b"bodY")
    assert compiled.doubtful(one, BASE, [(BASE, len(one), 0)], 3, b"\1T", True) == []
    assert compiled.doubtful(one, BASE, [(BASE, len(one), 0)], 3, b"\1T", False) == [
        (BASE, len(one), 0)
    ]


def test_records_that_are_cut_off_or_too_short_are_neither_whole_nor_standing(
    compiled: Native,
) -> None:
    one = stored(0, BASE, b"body", properties=b"")
    for size in range(len(one)):
        assert compiled.whole_records(one[:size], 0, BASE, 2**40, 64, Record) == ([], BASE)
        assert compiled.doubtful(one[:size], BASE, [(BASE, len(one), 0)], 3, b"\1T", True) == [
            (BASE, len(one), 0)
        ]
        short = size.to_bytes(4)[-size:] if size < 4 else size.to_bytes(4) + one[4:size]
        assert compiled.doubtful(short, BASE, [(BASE, size, 0)], 3, b"\1T", True) == [
            (BASE, size, 0)
        ]


def test_a_record_that_begins_before_the_bytes_or_ends_behind_them_is_doubtful(
    compiled: Native,
) -> None:
    data, wanted = three()
    assert compiled.doubtful(data[1:], BASE + 1, wanted, 3, b"\x01T", False) == wanted[:1]
    assert compiled.doubtful(data[:-1], BASE, wanted, 3, b"\x01T", False) == wanted[2:]
    assert compiled.doubtful(data, 2**63 - 1, wanted, 3, b"\x01T", False) == wanted


def test_numbers_and_topics_that_are_not_usual_are_left_to_python(compiled: Native) -> None:
    data, wanted = three()
    assert compiled.doubtful(data, -1, wanted, 3, b"\x01T", False) is None
    assert compiled.doubtful(data, 2**63, wanted, 3, b"\x01T", False) is None
    assert compiled.doubtful(data, BASE, wanted, 2**63, b"\x01T", False) is None
    assert compiled.doubtful(data, BASE, wanted, 3, topic_field(b"t" * 128), False) is None


def test_only_the_types_that_are_said_are_taken(compiled: Native) -> None:
    wrong: list[tuple[Any, ...]] = [
        (bytearray(20), None, [], 0, 0, 1, 1, 0),
        (b"", None, [], 0, 0, 1, 1),
        (b"", [], [], 0, 0, 1, 1, 0),
        (b"", None, (), 0, 0, 1, 1, 0),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="entries: bytes"):
            cast(Any, compiled).chosen(*arguments)
    data, wanted = three()
    unfit: list[tuple[Any, ...]] = [
        (data, BASE, tuple(wanted), 3, b"\1T", False),
        (data, BASE, wanted, 3, "\1T", False),
        (data, BASE, wanted, 3, b"\1T", 0),
        (data, BASE, wanted, 3, b"\1T"),
    ]
    for arguments in unfit:
        with pytest.raises(TypeError, match="data: bytes"):
            cast(Any, compiled).doubtful(*arguments)
    for function in (compiled.near, compiled.inside, compiled.picked, compiled.whole_records):
        with pytest.raises(TypeError):
            cast(Any, function)(wanted, 0)
    buffer = bytearray(data)
    with pytest.raises(TypeError, match="block: bytes"):
        compiled.whole_records(buffer, 0, BASE, 2**40, 64, Record)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wanted: list"):
        compiled.near((), 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wanted: list"):
        compiled.inside((), 0, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data: bytes"):
        compiled.picked([], 0, memoryview(b""))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data: bytes"):
        compiled.doubtful(bytearray(), 0, [], 0, b"", False)  # type: ignore[arg-type]


# --- a scan ---------------------------------------------------------------------------------------


def scanned(data: bytes, position: int = BASE) -> list[tuple[int, Record, bytes, int]]:
    """The records that Python reads, one behind the other."""
    found, at = [], 0
    while (one := read_record(data, at, position, 0)) is not None:
        found.append((position, one, data, at))
        at += one.size
        position += one.size
    return found


@pytest.mark.parametrize("at", [0, 7])
def test_whole_records_are_those_that_python_reads(compiled: Native, at: int) -> None:
    data, wanted = three("主题", sys_flag=-(2**31), store_timestamp_ms=-5)
    data = b"before!"[:at] + data + b"behind"
    twins = [
        (position, read_record(data, at + position - BASE, position, 0), data, at + position - BASE)
        for position, _, _ in wanted
    ]
    found, position = compiled.whole_records(data, at, BASE, 2**40, 64, Record) or ([], 0)
    assert found == twins
    assert [tuple(map(type, one)) + tuple(map(type, one[1])) for one in found] == [
        (int, Record, bytes, int, int, bytes, int, int, int, int, int, bool)
    ] * 3
    assert position == BASE + len(data) - at - 6


def test_records_end_at_the_limit_and_after_the_most(compiled: Native) -> None:
    data, wanted = three()
    first, second = wanted[1][0], wanted[2][0]
    for limit, most, end in (
        (first, 64, first),
        (first + 1, 64, second),
        (2**40, 2, second),
        (BASE, 64, BASE),
        (2**40, 0, BASE),
    ):
        found, position = compiled.whole_records(data, 0, BASE, limit, most, Record) or ([], 0)
        assert (found, position) == ([one for one in scanned(data) if one[0] < end], end)


def test_each_record_has_its_own_topic(compiled: Native) -> None:
    data = b""
    for topic in ("T", "U", "UU", "UU", "U", "", "T"):
        data += stored(0, BASE + len(data), b"body", topic)
    assert len(scanned(data)) == 7
    assert compiled.whole_records(data, 0, BASE, 2**40, 64, Record) == (
        scanned(data),
        BASE + len(data),
    )


def test_the_shortest_record_is_compiled(compiled: Native) -> None:
    for body, topic, properties in (
        (b"", "", b""),
        (b"b", "", b""),
        (b"", "t", b""),
        (b"", "", b"\2"),
    ):
        data = stored(0, BASE, body, topic, properties)
        assert compiled.whole_records(data, 0, BASE, 2**40, 64, Record) == (
            scanned(data),
            BASE + len(data),
        )
        assert len(scanned(data)) == 1
        for sound in (False, True):
            assert (
                compiled.doubtful(
                    data, BASE, [(BASE, len(data), 0)], 3, topic_field(topic.encode()), sound
                )
                == []
            )


@pytest.mark.parametrize("fields", [{"born_host": V6}, {"store_host": V6}, {"topic": "t" * 128}])
def test_a_record_that_is_not_usual_ends_the_records(
    compiled: Native, fields: dict[str, Any]
) -> None:
    first = stored(0, BASE, b"first")
    data = first + stored(1, BASE + len(first), b"second", **fields) + bytes(100)
    assert len(scanned(data)) == 2
    assert compiled.whole_records(data, 0, BASE, 2**40, 64, Record) == (
        scanned(data)[:1],
        BASE + len(first),
    )


def test_any_changed_bit_ends_the_records(compiled: Native) -> None:
    data, wanted = three()
    data = data[: wanted[2][0] - BASE]
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        found, position = compiled.whole_records(bytes(changed), 0, BASE, 2**40, 64, Record) or (
            [],
            0,
        )
        assert position == wanted[bit // 8 >= wanted[0][1]][0]
        assert found == scanned(bytes(changed))


@given(st.data())
def test_spoiled_records_are_no_others_than_those_that_python_reads(
    compiled: Native, data: st.DataObject
) -> None:
    """Under a checksum that was made for them, too."""
    whole, wanted = three()
    size = wanted[0][1]
    one = bytearray(whole[:size])
    at = data.draw(
        st.one_of(st.sampled_from([0, 4, 12, 20, 28, 36, 84]), st.integers(88, size - 1))
    )
    piece = data.draw(
        st.one_of(
            st.integers(-130, 130).map(lambda n: n.to_bytes(4, signed=True)),
            st.binary(min_size=1, max_size=4),
        )
    )
    one[at : at + len(piece)] = piece[: size - at]
    if data.draw(st.booleans()):
        one[-CRC_BYTES:] = crc_property(zlib.crc32(one[:-CRC_BYTES]) & 0x7FFFFFFF)
    changed = bytes(one) + whole[size:]
    found, _ = compiled.whole_records(changed, 0, BASE, 2**40, 64, Record) or ([], 0)
    assert found == scanned(changed)[: len(found)]


@given(st.binary(max_size=250), st.integers(0, 260))
def test_garbage_holds_no_records(compiled: Native, data: bytes, at: int) -> None:
    assert compiled.whole_records(data, at, 0, 2**40, 64, Record) == (
        None if at > len(data) else ([], 0)
    )


@pytest.mark.parametrize(
    "numbers",
    [
        (-1, 0, 1, 1),
        (0, -1, 1, 1),
        (0, 2**63, 1, 1),
        (0, 0, 2**63, 1),
        (0, 0, 1, 2**63),
        (0, 2**63 - 1, 1, 1),
    ],
)
def test_places_that_are_none_are_left_to_python(
    compiled: Native, numbers: tuple[int, int, int, int]
) -> None:
    assert compiled.whole_records(bytes(200), *numbers, Record) is None


def test_only_named_tuples_are_made(compiled: Native) -> None:
    class Named(tuple[Any, ...]):
        more: int

    for wrong in (int, object, Named, time.struct_time, Record(0, b"", 0, 0, 0, 0, 0, False)):
        with pytest.raises(TypeError, match="type of NamedTuple"):
            compiled.whole_records(
                bytes(200),
                0,
                0,
                2**40,
                64,
                wrong,  # type: ignore[type-var, arg-type]
            )
