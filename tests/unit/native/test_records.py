"""native/records.c beside ogive.store.record."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.native import Native, native
from ogive.store.record import (
    MAX_CRC_PROPERTIES,
    build_records_in_python,
    crc_property,
    topic_field,
)
from ogive.store.types import MAX_RECORD_BYTES, SIZE_BEFORE, NewBatch, NewMessage, PutResult
from ogive.wire.message import BatchItem, decode_stored, encode_batch
from tests.stores import batch

V4, V6 = bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(range(20))
PARTS = [
    b"",
    b"K\1v\2",
    b"K\1v",
    b"TAGS\1a\2",
    b"TAGS\1Tag",
    b"TAGS\1",
    b"TAGS\1\2",
    b"XTAGS\1b\2",
    b"\2TAGS\1c\2",
    "TAGS\1ключ\2".encode(),
    b"TAGS\1\xff\2",
    b"UNIQ_KEY\1u\2",
    b"KEYS\1k  l \2",
    "KEYS\1ключ\2".encode(),
    b"UNIQ_KEY\1\xff\xc3(\2",
    b"\2",
    b"\2\2",
    crc_property(77),
    crc_property(78)[1:],
    crc_property(79) + b"\2",
]
properties = st.lists(st.sampled_from(PARTS), max_size=4).map(b"".join)
ints = st.one_of(st.integers(-3, 3), st.sampled_from([2**31 - 1, -(2**31)]))
longs = st.one_of(ints, st.sampled_from([2**63 - 1, -(2**63)]))
hosts = st.sampled_from([V4, V4, V6])
messages = st.builds(
    NewMessage,
    topic=st.sampled_from(["T", "тема", "t" * 127, "t" * 128, "t" * 255, "SCHEDULE_TOPIC_XXXX"]),
    queue_id=ints,
    body=st.binary(max_size=70),
    properties=properties,
    sys_flag=st.one_of(st.sampled_from([0, 4, 8, 12, 0x30, 1]), ints),
    flag=ints,
    born_timestamp_ms=longs,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=ints,
    prepared_transaction_offset=longs,
)
items = st.lists(
    st.builds(BatchItem, ints, st.binary(max_size=70), properties), min_size=1, max_size=4
)
puts = st.one_of(messages, st.builds(batch, messages, items))
MESSAGE: Any = NewMessage("T", 3, b"body", b"TAGS\1a\2", 0, 1, 2, V4, V4, 3, 4)
QUEUES = ((("T", 3, b"\1T", b"T"), 7),)


def check(
    put: list[NewMessage | NewBatch],
    with_crc: bool = True,
    position: int = 4096,
    room: int = 32768,
    **changes: Any,
) -> Any:
    """What becomes of *put*, the same by both; None where both refuse it."""
    keys = [(one if isinstance(one, NewMessage) else one.shared)[:2] for one in put]
    arguments: dict[str, Any] = {
        "messages": tuple(put),
        "queues": tuple(
            [
                ((*key, topic_field(key[0].encode()), key[0].encode()), 7)
                for key in dict.fromkeys(keys)
            ]
        ),
        "position": position,
        "room": room,
        "otherwise": 1 << 30,
        "stored_ms": 1_700_000_000_123,
        "with_crc": with_crc,
        "result": PutResult,
    } | changes
    assert native is not None
    found = [outcome(build, arguments) for build in (native.build_records, build_records_in_python)]
    assert found[0] == found[1]
    return found[0]


def outcome(build: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        records, entries, keyed, results = build(*arguments.values())
    except ValueError:
        return None
    return records, entries, [(type(key), *key) for key in keyed], [(type(r), *r) for r in results]


@given(
    st.lists(puts, max_size=4),
    st.booleans(),
    st.sampled_from([0, 4096]),
    st.sampled_from([100, 500, 32768]),
)
@example([MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE)], True, 0, 32768)
@example([MESSAGE._replace(flag=SIZE_BEFORE), MESSAGE], True, 0, 32768)
@example(
    [batch(MESSAGE, [BatchItem(0, b"x", b"")] * 2), MESSAGE._replace(flag=SIZE_BEFORE)],
    False,
    0,
    32768,
)
def test_records_are_built_as_by_python(
    compiled: Native, put: list[NewMessage | NewBatch], with_crc: bool, position: int, room: int
) -> None:
    check(put, with_crc, position, room)


def test_a_message_tells_the_size_of_the_record_before_it(compiled: Native) -> None:
    records, _, _, results = check([MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE)])
    assert decode_stored(records[results[0][3] :]).flag == results[0][3]


@pytest.mark.parametrize("room", [-1, 0, 245, 246, 247])
def test_what_does_not_fit_begins_elsewhere(compiled: Native, room: int) -> None:
    records, _, _, results = check([MESSAGE, MESSAGE], room=room)
    assert results[0][2] == (4096 if len(records) <= room else 1 << 30)


@given(
    st.sampled_from(NewMessage._fields[1:]),
    st.sampled_from(
        [2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 2**70, b"", b"1234", bytes(40), b"v" * 32768]
    ),
)
def test_a_field_that_does_not_fit_is_refused_as_by_python(
    compiled: Native, name: str, value: Any
) -> None:
    if isinstance(value, type(getattr(MESSAGE, name))):
        message = MESSAGE._replace(**{name: value})
        check([message])
        check([batch(message, [BatchItem(0, b"a", b"")])])
        check([MESSAGE, message])


@pytest.mark.parametrize("with_crc", [True, False])
def test_properties_of_each_form_are_stored_as_by_python(compiled: Native, with_crc: bool) -> None:
    texts = [first + second for first in PARTS for second in PARTS]
    for first, second in zip(texts, reversed(texts), strict=True):
        assert check([MESSAGE._replace(properties=first)], with_crc) is not None
        check([batch(MESSAGE, [BatchItem(1, b"a", first), BatchItem(-1, b"", second)])], with_crc)


@pytest.mark.parametrize("with_crc", [True, False])
def test_hosts_topics_and_flags_of_each_kind_are_stored_as_by_python(
    compiled: Native, with_crc: bool
) -> None:
    for born_host, store_host, topic, sys_flag in itertools.product(
        (V4, V6), (V4, V6), ("T", "t" * 127, "t" * 128), (0, 4, 8, 12, 0x30, 0x38, -1)
    ):
        message = MESSAGE._replace(
            topic=topic, born_host=born_host, store_host=store_host, sys_flag=sys_flag
        )
        several = batch(message, [BatchItem(1, b"a", b"TAGS\1a\2"), BatchItem(-1, b"", b"")])
        assert check([message, several, message], with_crc) is not None


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize(
    "size",
    [MAX_CRC_PROPERTIES - 1, MAX_CRC_PROPERTIES, MAX_CRC_PROPERTIES + 1, 32766, 32767, 32768],
)
@pytest.mark.parametrize("last", [b"v", b"\2"])
def test_properties_about_as_long_as_they_may_be(
    compiled: Native, size: int, last: bytes, with_crc: bool
) -> None:
    text = b"K\1".ljust(size, b"v")[:-1] + last
    message = MESSAGE._replace(properties=text)
    several = batch(MESSAGE, [BatchItem(0, b"a", b""), BatchItem(0, b"b", text)])
    assert (check([message], with_crc) is None) is (size > 32767)
    assert (check([several], with_crc) is None) is (size > 32767)


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE._replace(body=bytes(MAX_RECORD_BYTES)),
        *[
            MESSAGE._replace(**{name: bytes(size)})
            for name in ("born_host", "store_host")
            for size in (0, 7, 9, 19, 21, 40)
        ],
    ],
)
def test_a_message_that_fits_no_record_is_refused(compiled: Native, message: NewMessage) -> None:
    assert check([message]) is None
    assert check([MESSAGE, message]) is None


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE._replace(body=bytearray(3)),
        MESSAGE._replace(properties=None),
        MESSAGE._replace(flag="1"),
        MESSAGE._replace(born_host="12345678"),
        MESSAGE[:10],
        (1, 2),
        [*MESSAGE],
        (MESSAGE, b"", "0", 1),
        ((1, 2), bytes(22), 0, 1),
    ],
)
def test_what_is_no_message_is_refused(compiled: Native, message: Any) -> None:
    for put in ((message,), (MESSAGE, message)):
        with pytest.raises(ValueError, match="does not fit the stored form"):
            compiled.build_records(put, QUEUES, 0, 999, 0, 0, True, PutResult)


@pytest.mark.parametrize("cut", range(47))
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_a_batch_whose_lengths_do_not_add_up_is_refused(
    compiled: Native, cut: int, number: int
) -> None:
    data = encode_batch([(0, b"a", b""), (0, b"", b"k")])[:cut]
    found = check([NewBatch(MESSAGE, data, 0, number)])
    assert (found is not None) is ((cut, number) in ((23, 1), (46, 2)))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": -1},
        {"position": 2**63},
        {"otherwise": -1},
        {"stored_ms": -1},
        {"stored_ms": 2**63},
        {"queues": ()},
        {"queues": ((("T", 2, b"\1T", b"T"), 7),)},
        {"queues": ((("T", 3, b"\1T", b"T"), -1),)},
        {"queues": ((("T", 3, bytes(70_000), b"T"), 0),)},
        {"queues": (("T", 3, b"\1T", b"T", 7),)},
    ],
)
def test_places_out_of_range_are_refused(compiled: Native, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "messages": (MESSAGE,),
        "queues": QUEUES,
        "position": 0,
        "room": 999,
        "otherwise": 0,
        "stored_ms": 0,
        "with_crc": True,
        "result": PutResult,
    } | changes
    with pytest.raises(ValueError, match="does not fit the stored form"):
        compiled.build_records(*arguments.values())


@pytest.mark.parametrize(
    "changes",
    [{"messages": [MESSAGE]}, {"queues": []}, {"result": list}],
)
def test_wrong_types_are_refused(compiled: Native, changes: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "messages": (MESSAGE,),
        "queues": QUEUES,
        "result": PutResult,
    }
    messages, queues, result = (right | changes).values()
    with pytest.raises(TypeError, match="messages: tuple"):
        compiled.build_records(messages, queues, 0, 999, 0, 0, True, result)
