"""native/messages.c beside ogive.wire.message."""

import dataclasses
import gc
import sys
import zlib
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.client.consumer.message_iterator import IncomingMessage
from ogive.errors import ProtocolError
from ogive.model import MessageExt, MessageQueue
from ogive.native import Native
from ogive.wire import message as wire
from ogive.wire.message import (
    DamagedMessage,
    NoRecord,
    Properties,
    StoredMessage,
    decode_some,
    encode_stored,
)

V4, V4_TOO, V6 = b"\x7f\0\0\1\0\0\x2a\x9f", b"\x0a\0\0\1\0\0\0\1", bytes(range(20))
BATCH = wire.encode_batch([(7, b"a", b"TAGS\x01a\x02"), (8, b"", b"")])
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)
stored = st.builds(
    StoredMessage,
    topic=st.sampled_from(["T", "T", "U", "主题", "t" * 127, "t" * 128, ""]),
    body=st.one_of(
        st.binary(max_size=20),
        st.just(b"x" * 300),
        st.just(zlib.compress(b"y" * 50)),
        st.just(BATCH),
    ),
    properties=st.sampled_from([b"", b"TAGS\x01a\x02", b"\xff\x01\x02\x02", b"K\x01" + b"v" * 300]),
    queue_id=st.one_of(st.integers(0, 1), ints),
    flag=ints,
    queue_offset=longs,
    commitlog_offset=longs,
    sys_flag=st.sampled_from([0, 0, 0, 1, 0x301, 4, 8, 0x30, 0x40, 0x80, 0xC0, -0x80000000]),
    born_timestamp_ms=longs,
    born_host=st.sampled_from([V4, V4, V4_TOO, V6]),
    store_timestamp_ms=longs,
    store_host=st.sampled_from([V4, V4, V4_TOO, V6]),
    reconsume_times=ints,
    prepared_transaction_offset=longs,
)
usual = StoredMessage(
    "T",
    b"body",
    b"TAGS\x01a\x02",
    3,
    queue_offset=7,
    commitlog_offset=9,
    born_host=V4,
    store_host=V4,
)


def seen(message: MessageExt) -> list[Any]:
    """All there is of it, with types."""
    fields = [getattr(message, field.name) for field in dataclasses.fields(message)]
    assert type(message) is MessageExt
    assert isinstance(message.properties, Properties)
    return [
        *((type(value), value) for value in fields),
        message.properties.raw,
        dict(message.properties),
    ]


def decoded(answer: bytes | memoryview, *, compiled: bool, **options: Any) -> Any:
    """What comes out, be it an error."""
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(wire, "native", None)
        try:
            messages, end = decode_some(answer, "broker-a", **options)
        except (DamagedMessage, NoRecord) as exc:
            return (
                type(exc),
                str(exc),
                [seen(message) for message in exc.intact],
                getattr(exc, "alone", None),
                getattr(exc, "read_crc", 0),
            )
    return [seen(message) for message in messages], end


@given(
    records=st.lists(stored, max_size=5),
    spoil=st.none() | st.tuples(st.integers(0, 600), st.binary(min_size=1, max_size=4)),
    cut=st.integers(0, 100),
    check_crc=st.booleans(),
    most=st.sampled_from([10**9, 60]),
)
@example([usual, dataclasses.replace(usual, body=BATCH, sys_flag=0xC0)], None, 0, True, 10**9)
@example([usual, usual], (0, b"\xff\xff\xff\xff"), 0, True, 10**9)
@example([usual, usual], (84, b"\xff\xff\xff\xff"), 0, True, 10**9)
@example([usual, usual], (84, b"\x7f\xff\xff\xff"), 0, True, 10**9)
@example([usual, usual], (92, b"\xff"), 0, True, 10**9)
# a topic that is no UTF-8
@example([usual, dataclasses.replace(usual, topic="U")], (84 + 8, b"\1\xff"), 0, True, 10**9)
@example([dataclasses.replace(usual, topic="t" * 127), usual], None, 30, True, 10**9)
def test_messages_are_those_that_python_decodes(
    compiled: Native,
    records: list[StoredMessage],
    spoil: tuple[int, bytes] | None,
    cut: int,
    check_crc: bool,
    most: int,
) -> None:
    answer = bytearray().join(map(encode_stored, records))
    if spoil is not None and spoil[0] < len(answer):
        answer[spoil[0] : spoil[0] + len(spoil[1])] = spoil[1]
    for piece in (bytes(answer), bytes(answer[: max(0, len(answer) - cut)])):
        options = {"check_crc": check_crc, "max_inflated_bytes": most}
        found = decoded(piece, compiled=True, **options)
        assert found == decoded(piece, compiled=False, **options)
        view = memoryview(bytearray(piece)).toreadonly()
        assert found == decoded(view, compiled=True, **options)
        assert found == decoded(view, compiled=False, **options)


def usual_and(**fields: Any) -> bytes:
    return encode_stored(dataclasses.replace(usual, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"queue_id": 4},
        {"topic": "U"},
        {"topic": "TT"},
        {"topic": "t" * 127},
        {"topic": ""},
        {"topic": "主题"},
        {"born_host": V4_TOO},
        {"store_host": V4_TOO},
        {"store_host": V4[:-1] + b"\1"},
        {"body": b""},
        {"properties": b""},
        {"topic": "", "body": b"", "properties": b""},
    ],
)
def test_each_message_has_what_is_its_own(compiled: Native, fields: dict[str, Any]) -> None:
    """Behind one with something else, and before it."""
    answer = usual_and() + usual_and(**fields) + usual_and()
    into: list[MessageExt] = []
    assert compiled.messages(answer, 0, True, into, "broker-a", wire._FORMS) == len(answer)
    assert [seen(message) for message in into] == decoded(answer, compiled=False)[0]
    assert compiled.messages(usual_and(**fields), 0, True, [], "broker-a", wire._FORMS) == len(
        usual_and(**fields)
    )


def test_any_other_byte_tells_the_same_as_in_python(compiled: Native) -> None:
    """And lengths that only nearly add up: with a topic and properties that have one byte more or
    less.
    """
    answer = usual_and() + usual_and(topic="Topic", body=b"other") + usual_and()
    begin, end = len(usual_and()), len(answer) - len(usual_and())
    for at in range(begin, end):
        for byte in {0, 0xFF, answer[at] ^ 1, answer[at] ^ 0x80, (answer[at] + 1) & 0xFF}:
            spoiled = answer[:at] + bytes([byte]) + answer[at + 1 :]
            for check_crc in (True, False):
                assert decoded(spoiled, compiled=True, check_crc=check_crc) == decoded(
                    spoiled, compiled=False, check_crc=check_crc
                ), at
                try:
                    twin = wire._decode_common(spoiled, begin, end, "broker-a", check_crc)
                except ProtocolError:
                    # its topic is no UTF-8
                    continue
                place = compiled.messages(spoiled[:end], 0, check_crc, [], "broker-a", wire._FORMS)
                assert (place == end) is (twin is not None and twin.stored_bytes == end - begin), at


def test_usual_messages_are_decoded_by_one_call(compiled: Native) -> None:
    answer = b"".join(
        [encode_stored(dataclasses.replace(usual, queue_offset=number)) for number in range(3)]
    )
    into: list[MessageExt] = []
    assert compiled.messages(answer, 0, True, into, "b", wire._FORMS) == len(answer)
    assert [message.queue_offset for message in into] == [0, 1, 2]
    assert into[0].queue is into[2].queue
    assert into[0].store_host == "127.0.0.1:10911"
    assert isinstance(into[0].properties, Properties)
    assert into[0].properties._parsed is None
    assert into[0].tag == "a"
    with pytest.raises(dataclasses.FrozenInstanceError):
        into[0].body = b""  # type: ignore[misc]


@pytest.mark.parametrize(
    "odd",
    [
        encode_stored(dataclasses.replace(usual, sys_flag=1)),
        encode_stored(dataclasses.replace(usual, born_host=V6)),
        encode_stored(dataclasses.replace(usual, topic="t" * 128)),
        encode_stored(usual)[:-1],
        encode_stored(usual).replace(b"body", b"bodY"),
        b"",
        bytes(200),
    ],
)
def test_the_first_unusual_message_is_left_to_python(compiled: Native, odd: bytes) -> None:
    one = encode_stored(usual)
    into: list[MessageExt] = []
    assert (
        compiled.messages(one + odd, 0, True, into, "b", wire._FORMS)
        == len(one)
        == compiled.messages(odd, 0, True, into, "b", wire._FORMS) + len(one)
    )
    assert len(into) == 1


@pytest.mark.parametrize("at", [-1, 200, 2**70])
def test_a_place_outside_the_buffer_is_left_to_python(compiled: Native, at: int) -> None:
    into: list[MessageExt] = []
    assert compiled.messages(encode_stored(usual), at, True, into, "b", wire._FORMS) == at
    assert into == []


def test_what_the_search_for_a_queue_raises_comes_out(compiled: Native) -> None:
    into: list[MessageExt] = []
    answer = encode_stored(usual) + encode_stored(dataclasses.replace(usual, topic="U")).replace(
        b"U", b"\xff"
    )
    with pytest.raises(ProtocolError, match="topic is not UTF-8"):
        compiled.messages(answer, 0, True, into, "b", wire._FORMS)
    assert len(into) == 1


def test_only_the_types_that_are_said_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="buffer: bytes"):
        compiled.messages(bytearray(), 0, True, [], "b", wire._FORMS)  # type: ignore[arg-type]
    wrong: list[tuple[int, Any]] = [
        (0, int),
        (0, "MessageExt"),
        (0, object),
        # another slot
        (0, IncomingMessage),
        (1, None),
        (2, "queue"),
        (3, ()),
    ]
    for place, other in wrong:
        with pytest.raises(TypeError, match="forms: "):
            compiled.messages(
                b"", 0, True, [], "b", (*wire._FORMS[:place], other, *wire._FORMS[place + 1 :])
            )
    unfit: list[tuple[Any, ...]] = [
        (b"", 0, True, [], "b"),
        (b"", "0", True, [], "b", wire._FORMS),
        (b"", 0, 1, [], "b", wire._FORMS),
        (b"", 0, True, (), "b", wire._FORMS),
        (b"", 0, True, [], "b", [*wire._FORMS]),
        (b"", 0, True, [], "b", wire._FORMS[:3]),
        (b"", 0, True, [], "b", (*wire._FORMS, None)),
    ]
    for arguments in unfit:
        with pytest.raises(TypeError, match="buffer: bytes"):
            cast(Any, compiled).messages(*arguments)


def test_an_error_in_a_function_of_the_forms_comes_out(compiled: Native) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("not today")

    message_class, properties, queue_of, host_of = wire._FORMS
    into: list[MessageExt] = []
    with pytest.raises(RuntimeError, match="not today"):
        compiled.messages(
            usual_and(), 0, True, into, "b", (message_class, properties, refuse, host_of)
        )
    assert into == []
    compiled.messages(usual_and(), 0, True, into, "b", (message_class, refuse, queue_of, refuse))
    for name in ("properties", "born_host", "store_host"):
        with pytest.raises(RuntimeError, match="not today"):
            getattr(into[0], name)


def test_a_message_does_not_keep_its_answer(compiled: Native) -> None:
    """And is no work for the collection."""
    answer = usual_and() * 2
    references = sys.getrefcount(answer)
    into: list[MessageExt] = []
    compiled.messages(answer, 0, True, into, "b", wire._FORMS)
    assert sys.getrefcount(answer) == references
    assert not gc.is_tracked(into[0])


def test_objects_are_made_once(compiled: Native) -> None:
    into: list[MessageExt] = []
    compiled.messages(usual_and(), 0, True, into, "b", wire._FORMS)
    for name in ("body", "properties", "queue", "born_host", "store_host"):
        assert getattr(into[0], name) is getattr(into[0], name)


def made(offset: int, body: bytes, sys_flag: int) -> MessageExt:
    queue = MessageQueue("T", "b", 0)
    return MessageExt("T", body, {}, queue, offset, 0, 0, 0, 0, "", "", 0, sys_flag, 9)


@given(
    messages=st.lists(
        st.builds(
            made,
            st.integers(-3, 3) | longs,
            st.binary(max_size=5),
            st.sampled_from([0, 0, 0, 1, 4]),
        ),
        max_size=4,
    ),
    decoded_ones=st.integers(0, 3),
)
def test_messages_are_measured_as_in_python(
    compiled: Native, messages: list[MessageExt], decoded_ones: int
) -> None:
    for offset in range(decoded_ones):
        compiled.messages(usual_and(queue_offset=offset), 0, True, messages, "b", wire._FORMS)
    expected = wire.measure(messages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "native", None)
        assert wire.measure(messages) == wire.measure(tuple(messages)) == expected
    assert compiled.measure(messages) == compiled.measure(tuple(messages)) == expected


def test_odd_messages_are_measured_by_python(compiled: Native) -> None:
    odd: list[Any] = [
        None,
        made(2**63, b"", 0),
        made(cast(Any, "1"), b"", 0),
        made(0, cast(Any, bytearray()), 0),
        made(0, b"", 2**63),
        MessageExt.__new__(MessageExt),
    ]
    for one in odd:
        assert compiled.measure([made(0, b"", 0), one]) is None
    wrong: tuple[Any, ...] = (None, {}, iter(()))
    for other in wrong:
        with pytest.raises(TypeError, match="list or tuple"):
            compiled.measure(other)
    with pytest.raises(TypeError, match="list or tuple"):
        cast(Any, compiled).measure([], [])
