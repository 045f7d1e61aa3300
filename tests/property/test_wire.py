"""Whatever bytes come: frames do not depend on how the stream is cut, and decoders raise
ProtocolError or nothing.
"""

import contextlib
import json
import re
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import CompressionUnavailable, ProtocolError
from ogive.wire import command as wire_command
from ogive.wire import java_json
from ogive.wire.bodies.clients import (
    ConsumerConnection,
    HeartbeatData,
    LockBatchBody,
    consumer_ids_loads,
)
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.routes import (
    ClusterInfo,
    RegisterBrokerBody,
    TopicRouteData,
    topic_list_loads,
)
from ogive.wire.bodies.stats import consume_stats_loads, kv_table_loads, topic_stats_loads
from ogive.wire.codes import LanguageCode, SerializeType
from ogive.wire.command import (
    MAX_EXT_FIELDS,
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    FrameDecoder,
    RemotingCommand,
    SplitFrame,
    decode_command,
    encode_command,
)
from ogive.wire.compression import CompressionType, compress, decompress
from ogive.wire.headers.codec import decode_header, encode_header
from ogive.wire.headers.name_server import RegisterBrokerRequest
from ogive.wire.headers.pull import PullMessageRequest
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import (
    BatchItem,
    StoredMessage,
    decode_batch,
    decode_messages,
    decode_properties,
    decode_stored,
    encode_batch,
    encode_properties,
    encode_stored,
    raw_property,
)

text = st.text(st.characters(codec="utf-8"), max_size=40)
names = st.text(
    st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=20
)
int32 = st.integers(-(2**31), 2**31 - 1)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    ext_fields=st.dictionaries(
        names, st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), max_size=20
    ),
    body=st.binary(max_size=200),
    opaque=int32,
    flag=int32,
    remark=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    language=st.sampled_from([int(code) for code in LanguageCode]),
    version=st.integers(0, 600),
    serialize_type=st.sampled_from([int(kind) for kind in SerializeType]),
)


@pytest.mark.feature(118)
@given(commands)
def test_command_round_trip_in_both_codecs(command: RemotingCommand) -> None:
    assert decode_command(encode_command(command)[4:]) == command


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from([2**63 - 1, 2**63, 2**64, -(2**63), 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
header_fields = st.sampled_from(
    ["code", "flag", "language", "opaque", "remark", "version", "extFields", "other"]
)


@st.composite
def json_headers(draw: st.DrawFn) -> bytes:
    """As clients write them and almost; a byte or two may be others."""
    header = draw(st.dictionaries(header_fields, json_values, max_size=8))
    if draw(st.booleans()):
        header["extFields"] = draw(st.dictionaries(st.text(max_size=4), json_values, max_size=6))
    raw = bytearray(
        json.dumps(header, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    )
    for _ in range(draw(st.integers(0, 2))):
        raw[draw(st.integers(0, len(raw) - 1))] = draw(st.integers(0, 255))
    return bytes(raw)


@given(json_headers())
@example(b'{"code":1,"extFields":{"a":"\\ud800"}}')
@example(b'{"code":1,"remark":"\\ud83d\\ude00"}')
@example(b'{"code":1,"code":2,"extFields":{"a":1,"a":1e400}}')
@example(b'\xef\xbb\xbf{"code":1}')
def test_a_faster_reader_of_json_headers_reads_and_refuses_the_same(raw: bytes) -> None:
    """Words included, by which a peer learns why it is refused."""
    pytest.importorskip("orjson", reason="the extra fast is not installed")
    frame = (int(SerializeType.JSON) << 24 | len(raw)).to_bytes(4) + raw
    found = []
    for loads in (wire_command._loads, wire_command._standard_loads):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire_command, "_loads", loads)
            try:
                found.append(repr(decode_command(frame)))
            except ProtocolError as exc:
                found.append(str(exc))
    assert found[0] == found[1]


def entry(name: bytes, value: bytes) -> bytes:
    return len(name).to_bytes(2) + name + len(value).to_bytes(4) + value


def fields_one_by_one(raw: bytes) -> dict[str, str]:
    """What stands in a binary header, without a short cut."""
    fields = {}
    while raw:
        name_end = 2 + int.from_bytes(raw[:2])
        value_end = name_end + 4 + int.from_bytes(raw[name_end : name_end + 4])
        if len(raw) < name_end + 4 or len(raw) < value_end:
            raise ProtocolError("cut")
        name, value = raw[2:name_end].decode(), raw[name_end + 4 : value_end].decode()
        if name and value:
            fields[name] = value
        raw = raw[value_end:]
    return fields


letters = st.sampled_from([letter.encode() for letter in "abcdefghijklmn"])
entries = st.lists(
    st.builds(entry, letters | names.map(str.encode), st.binary(max_size=9)), max_size=5
).map(b"".join)
born_times = st.sampled_from(
    [entry(b"g", b"1795351903927"), entry(b"g", b"179535190392\xff"), entry(b"g", b"0")]
)
flags = st.sampled_from([entry(b"h", b"0"), entry(b"h", b"7"), b""])
property_texts = st.sampled_from([b"UNIQ_KEY\x01A\x02", entry(b"i", b"x")]) | text.map(str.encode)
LIKE_A_SEND = b"\0\1g\0\0\0\r1795351903927\0\1h\0\0\0\x010\0\1i\0\0\0\x01x"


@given(
    entries,
    born_times,
    flags,
    property_texts,
    entries,
    st.none() | st.tuples(st.integers(0, 500), st.integers(0, 255)),
)
@example(
    entry(b"a", b"1"),
    entry(b"g", b"1795351903927"),
    entry(b"h", b"0"),
    b"y",
    entry(b"h", b"1"),
    None,
)
@example(b"", entry(b"a", LIKE_A_SEND), b"", b"y", b"", None)
@example(b"", entry(b"g", b"1795351903927"), entry(b"h", b"0"), b"y", b"\0\1", None)
@example(b"", entry(b"g", b"1795351903927"), entry(b"h", b"0"), b"y", b"", (34, 3))
def test_a_send_in_binary_says_what_its_fields_say_one_by_one(
    before: bytes,
    born: bytes,
    flag: bytes,
    said: bytes,
    behind: bytes,
    spoiled: tuple[int, int] | None,
) -> None:
    """Such headers have a short cut, also where they only look like one."""
    raw = bytearray(before + born + flag + entry(b"i", said) + behind)
    if spoiled is not None and raw:
        raw[spoiled[0] % len(raw)] = spoiled[1]
    # the second time parts of it are known
    for _ in range(2):
        check_fields(bytes(raw))


def check_fields(raw: bytes) -> None:
    """They are decoded as one by one."""
    header = (
        (310).to_bytes(2) + bytes([0]) + (500).to_bytes(2) + bytes(12) + len(raw).to_bytes(4) + raw
    )
    frame = (1 << 24 | len(header)).to_bytes(4) + header + b"body"
    try:
        expected = fields_one_by_one(raw)
    except (ProtocolError, UnicodeDecodeError):
        with pytest.raises(ProtocolError):
            decode_command(frame)
    else:
        command = decode_command(frame)
        assert (command.ext_fields, command.body) == (expected, b"body")


@given(
    st.lists(
        st.tuples(names.map(str.encode), st.sampled_from([b"1", b"value", b"\xc3\xa9"])),
        min_size=1,
        max_size=5,
    ),
    st.lists(
        st.tuples(
            st.integers(0, 500), st.sampled_from([0, 1, 2, 0x41, 0x80, 0xC3]) | st.integers(0, 255)
        ),
        max_size=4,
    ),
)
@example([(b"topic", b"1"), (b"name", b"1")], [(3, ord("x")), (11, ord("2"))])
@example([(b"topic", b"1"), (b"name", b"1")], [(11, 0xE9)])
@example([(b"topic", b"1"), (b"topis", b"1")], [(17, ord("c"))])
@example([(b"topic", b"value"), (b"name", b"1")], [(10, 4), (15, 0)])
def test_a_binary_header_like_one_before_it_says_what_its_own_fields_say(
    fields: list[tuple[bytes, bytes]], spoiled: list[tuple[int, int]]
) -> None:
    """One with the same names and lengths has a short cut; each of these has the length of the one
    before.
    """
    raw = bytearray(b"".join(entry(name, value) for name, value in fields))
    check_fields(bytes(raw))
    for at, byte in spoiled:
        raw[at % len(raw)] = byte
        check_fields(bytes(raw))


@given(st.lists(commands, max_size=5), st.data())
def test_any_chunking_gives_the_same_frames(
    sent: list[RemotingCommand], data: st.DataObject
) -> None:
    stream = b"".join(encode_command(command) for command in sent)
    decoder, received = FrameDecoder(splits=data.draw(st.booleans())), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        frames, fault = decoder.feed(stream[:size])
        assert fault is None
        received += frames
        stream = stream[size:]
    assert [decode_command(frame) for frame in received] == sent
    assert decoder.buffered == 0


@given(st.lists(st.integers(1, 9_000), min_size=1, max_size=40))
@example([1] * 200)
@example([4095, 1, 4097, 1, 1, 4096])
def test_a_frame_in_many_parts_is_whole_and_small_parts_are_put_together(
    sizes: list[int],
) -> None:
    frame = encode_command(RemotingCommand(1, body=bytes(range(256)) * 80))
    stream, decoder, received = frame + frame, FrameDecoder(), list[bytes]()
    at = 0
    for size in [*sizes, len(stream)]:
        frames, fault = decoder.feed(stream[at : at + size])
        assert fault is None
        received += frames
        at = min(len(stream), at + size)
        assert decoder.buffered == at - sum([4 + len(one) for one in received])
        assert len(decoder._pending) <= decoder.buffered // 4096 + 1
    assert received == [frame[4:]] * 2


@given(
    command=commands,
    size=st.integers(0, 600),
    word=st.none() | st.integers(0, 2**32 - 1),
    cut=st.integers(5, 400),
)
@example(RemotingCommand(1), 400, None, 100)
@example(RemotingCommand(1), 400, 2**24 - 1, 100)
def test_a_frame_whose_body_comes_in_parts_means_the_same(
    command: RemotingCommand, size: int, word: int | None, cut: int
) -> None:
    """Also one whose header has an impossible length or form."""
    command.body = bytes(range(200)) * size
    stream = encode_command(command)
    if word is not None:
        stream = stream[:4] + word.to_bytes(4) + stream[8:]
    decoder = FrameDecoder(splits=True)
    (first, _), (second, _) = decoder.feed(stream[:cut]), decoder.feed(stream[cut:])
    (frame,) = first + second
    assert frame + (frame.body if isinstance(frame, SplitFrame) else b"") == stream[4:]
    try:
        expected = decode_command(stream[4:])
    except ProtocolError as exc:
        with pytest.raises(ProtocolError, match=re.escape(str(exc))):
            decode_command(frame)
    else:
        found = decode_command(frame)
        found.keep_body()
        assert found == expected


@given(
    st.lists(st.tuples(st.integers(60_000, 200_000), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 150_000),
)
@example([(100_000, False)] * 6, 30_000)
@example([(100_000, True)] * 6, 30_000)
def test_a_body_that_somebody_holds_does_not_change(
    frames: list[tuple[int, bool]], step: int
) -> None:
    """Bodies are filled with the number of their frame."""
    decoder = FrameDecoder(splits=True)
    stream = b"".join(
        encode_command(RemotingCommand(1, body=bytes([number]) * size))
        for number, (size, _) in enumerate(frames)
    )
    held: dict[int, bytes | memoryview] = {}
    number = 0
    for at in range(0, len(stream), step):
        received, fault = decoder.feed(stream[at : at + step])
        assert fault is None
        for frame in received:
            command = decode_command(frame)
            size, is_held = frames[number]
            body = command.body if command.view is None else command.view
            assert body == bytes([number]) * size
            if is_held:
                held[number] = body
            number += 1
    assert number == len(frames)
    for number, body in held.items():
        assert body == bytes([number]) * frames[number][0]


def test_a_buffer_that_nobody_holds_is_used_again() -> None:
    stream = encode_command(RemotingCommand(1, body=bytes(200_000)))
    decoder, buffers = FrameDecoder(splits=True), set[int]()
    for _ in range(5):
        decoder.feed(stream[:100_000])
        (frame,), _ = decoder.feed(stream[100_000:])
        assert isinstance(frame, SplitFrame)
        buffers.add(id(frame.body.obj))
    assert len(buffers) == 2


@pytest.mark.kills("declared length is believed", param="16777213")
@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 3, MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_impossible_length_is_a_fault_behind_the_good_frames(length: int) -> None:
    good = encode_command(RemotingCommand(1))
    frames, fault = FrameDecoder().feed(good + length.to_bytes(4, signed=True) + b"rest")
    assert frames == [good[4:]]
    assert isinstance(fault, ProtocolError)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "it speaks HTTP"),
        (b"GET / HTTP/1.1\r\n", "it speaks HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "it speaks TLS"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "it speaks TLS"),
        (b"SSH-2.0-OpenSSH", "frame length 1397966893 is outside 4.."),
    ],
)
def test_a_peer_that_speaks_something_else_is_named(start: bytes, said: str) -> None:
    """The usual cause of an impossible length is the wrong port."""
    frames, fault = FrameDecoder().feed(start)
    assert frames == []
    assert said in str(fault)


def test_largest_frame_passes_and_one_byte_more_does_not() -> None:
    """16 MiB with the length word itself, exactly as Apache's decoder."""
    header = encode_command(RemotingCommand(1))
    room = MAX_FRAME_BYTES - (len(header) - 4)
    frame = encode_command(RemotingCommand(1, body=bytes(room)))
    assert len(frame) == 16 * 1024 * 1024
    (whole,), fault = FrameDecoder().feed(frame)
    assert fault is None
    assert len(decode_command(whole).body) == room
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_command(RemotingCommand(1, body=bytes(room + 1)))


def test_largest_legal_properties_fit_a_json_header() -> None:
    """32,767 bytes of properties, every character escaped: six times as long in the header."""
    command = RemotingCommand(310, {"i": "\x01" * 32767})
    assert decode_command(encode_command(command)[4:]) == command


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b'{"code":1e999}',
        b'{"code":NaN}',
        b'{"code":' + b"9" * 5000 + b"}",
        b'{"code":2147483648}',
        b'{"code":true}',
        b'{"code":"1"}',
        b'{"extFields":[]}',
        b'{"extFields":{"a":{}}}',
        b'{"extFields":{"a":Infinity}}',
        b'{"remark":5}',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"extFields":{' + b",".join(b'"%d":""' % i for i in range(MAX_EXT_FIELDS + 1)) + b"}}",
        b" " * (MAX_HEADER_BYTES + 1),
        b"\xff\xfe",
    ],
    ids=range(17),
)
def test_hostile_json_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_command(len(header).to_bytes(4) + header)


def test_json_header_with_trailing_newline_and_bare_numbers_is_accepted() -> None:
    """The C++ client writes both."""
    header = (
        b'{"code":10,"extFields":{"n":4,"b":true,"x":null},"language":"CPP","opaque":2,'
        b'"remark":"","version":63}\n'
    )
    command = decode_command(len(header).to_bytes(4) + header)
    assert command.ext_fields == {"n": "4", "b": "true"}
    assert command.language == LanguageCode.CPP


@given(st.binary(max_size=300))
@example(b"\x00\x00\x00\x02{}")
@example(b"\x01\x00\x00\x15" + bytes(21))
def test_garbage_frame_raises_protocol_error_only(garbage: bytes) -> None:
    _only_protocol_error(decode_command, garbage)


@given(commands.map(encode_command), st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_frame_raises_protocol_error_only(frame: bytes, where: int, byte: int) -> None:
    damaged = bytearray(frame[4:])
    damaged[where % len(damaged)] = byte
    _only_protocol_error(decode_command, bytes(damaged))


properties = st.dictionaries(names, names, max_size=8)
stored = st.builds(
    StoredMessage,
    topic=st.text("abcABC%_-|", min_size=1, max_size=200),
    body=st.binary(max_size=100),
    properties=properties.map(encode_properties),
    queue_id=int32,
    flag=int32,
    queue_offset=st.integers(0, 2**62),
    commitlog_offset=st.integers(0, 2**62),
    sys_flag=st.sampled_from([0, 2, 4, 8, 12]),
    born_timestamp_ms=st.integers(0, 2**50),
    born_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    store_timestamp_ms=st.integers(0, 2**50),
    store_host=st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20),
    reconsume_times=int32,
    prepared_transaction_offset=st.integers(0, 2**62),
)


@given(stored)
def test_record_round_trip(message: StoredMessage) -> None:
    raw = encode_stored(message)
    read = decode_stored(raw)
    assert read.size == len(raw)
    message.sys_flag, message.size, message.body_crc = read.sys_flag, read.size, read.body_crc
    assert read == message


@given(st.lists(stored, min_size=1, max_size=4), st.integers(0, 2**32), st.integers(0, 255))
def test_damaged_records_raise_protocol_error_only(
    messages: list[StoredMessage], where: int, byte: int
) -> None:
    damaged = bytearray(b"".join(encode_stored(message) for message in messages))
    damaged[where % len(damaged)] = byte
    _only_protocol_error(decode_messages, bytes(damaged))


@given(st.binary(max_size=200))
def test_garbage_records_batches_and_properties_raise_protocol_error_only(garbage: bytes) -> None:
    _only_protocol_error(decode_messages, garbage)
    _only_protocol_error(decode_batch, garbage)
    decode_properties(garbage)  # reads everything


@given(properties)
def test_properties_round_trip_and_single_look_up(given_properties: dict[str, str]) -> None:
    raw = encode_properties(given_properties)
    assert decode_properties(raw) == given_properties
    for name, value in given_properties.items():
        assert raw_property(raw, name.encode()) == value.encode()
    assert raw_property(raw, b"absent\x03") is None


@given(
    st.lists(
        st.builds(
            BatchItem,
            flag=int32,
            body=st.binary(max_size=50),
            properties=properties.map(encode_properties),
        ),
        max_size=6,
    )
)
def test_batch_round_trip(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


def test_batch_count_is_limited() -> None:
    raw = encode_batch([BatchItem(0, b"x", b"")] * 5)
    with pytest.raises(ProtocolError, match="more than 4 messages"):
        decode_batch(raw, max_messages=4)


def test_a_bomb_stays_as_it_is() -> None:
    """64 MiB of zeros are 64 KiB compressed. The messages around it are read."""
    bomb = zlib.compress(bytes(64 * 1024 * 1024))
    plain = encode_stored(StoredMessage("T", b"plain"))
    messages = decode_messages(
        plain + encode_stored(StoredMessage("T", bomb, sys_flag=0x301)) + plain
    )
    assert [message.is_compressed for message in messages] == [False, True, False]
    assert messages[1].body == bomb


kinds: st.SearchStrategy[CompressionType] = st.sampled_from(get_args(CompressionType))


@given(body=st.binary(max_size=5000), kind=kinds, level=st.integers(0, 9))
def test_what_is_compressed_is_inflated(body: bytes, kind: CompressionType, level: int) -> None:
    packed, flags = compress(body, kind, level)
    assert decompress(packed, flags, len(body)) == body


@given(body=st.binary(min_size=1, max_size=5000), kind=kinds, data=st.data())
def test_what_is_cut_or_too_long_is_an_error(
    body: bytes, kind: CompressionType, data: st.DataObject
) -> None:
    packed, flags = compress(body, kind)
    with pytest.raises(ProtocolError):
        decompress(packed[: data.draw(st.integers(0, len(packed) - 1))], flags)
    with pytest.raises(ProtocolError, match="inflates to more than"):
        decompress(packed, flags, len(body) - 1)


@given(garbage=st.binary(max_size=200), flags=st.integers(0, 7).map(lambda kind: kind << 8 | 1))
def test_garbage_is_inflated_to_nothing_but_an_error(garbage: bytes, flags: int) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(decompress(garbage, flags, 1000)) <= 1000


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_bombs_of_every_kind_end_at_the_limit(kind: CompressionType) -> None:
    bomb, flags = compress(bytes(64 * 1024 * 1024), kind)
    with pytest.raises(ProtocolError, match="inflates to more than 1000 bytes"):
        decompress(bomb, flags, 1000)


@pytest.mark.kills("inflate without cap, at the client")
def test_a_zlib_bomb_takes_no_more_memory_than_the_limit() -> None:
    bomb, flags = compress(bytes(64 * 1024 * 1024), "zlib")
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="inflates to more than"):
            decompress(bomb, flags, 1024 * 1024)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("kind", "module"), [("lz4", "lz4.frame"), ("zstd", "zstandard")])
def test_a_missing_library_is_named(
    kind: CompressionType, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, flags = compress(b"x", kind)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CompressionUnavailable, match=r"pip install 'ogive\[compression\]'"):
        decompress(packed, flags)
    (message,) = decode_messages(encode_stored(StoredMessage("T", packed, sys_flag=flags)))
    assert message.is_compressed


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
DECODERS: list[Callable[[bytes], Any]] = [
    HeartbeatData.decode,
    LockBatchBody.decode,
    ClusterInfo.decode,
    ConsumerConnection.decode,
    topic_list_loads,
    topic_stats_loads,
    consume_stats_loads,
    consumer_ids_loads,
    kv_table_loads,
    lambda raw: TopicRouteData.from_json(java_json.loads(raw)),
    lambda raw: RegisterBrokerBody.decode(raw, compressed=False),
    lambda raw: RegisterBrokerBody.decode(raw, compressed=True),
]
MEMBERS = (
    "clientID consumerDataSet producerDataSet groupName subscriptionDataSet topic codeSet tagsSet "
    "mqSet queueDatas brokerDatas "
    "brokerAddrs topicConfigSerializeWrapper topicConfigTable dataVersion filterServerList "
    "offsetTable table consumerIdList "
    "connectionSet topicList brokerAddrTable clusterAddrTable subscriptionTable"
)
members = st.sampled_from(MEMBERS.split())
bodies_json = st.dictionaries(
    members, json_values | st.dictionaries(members, json_values, max_size=3), max_size=4
)


@given(st.sampled_from(DECODERS), st.binary(max_size=120) | bodies_json.map(dumps))
def test_hostile_bodies_raise_protocol_error_only(
    decode: Callable[[bytes], Any], raw: bytes
) -> None:
    _only_protocol_error(decode, raw)


@given(st.text('{}[]:,"$ref.01tfn ', max_size=60))
def test_java_json_raises_protocol_error_only(raw: str) -> None:
    _only_protocol_error(java_json.loads, raw)


@given(st.dictionaries(names, text, max_size=6))
def test_hostile_header_fields_raise_protocol_error_only(ext: dict[str, str]) -> None:
    for cls in (
        PullMessageRequest,
        SendMessageRequestV2,
        RegisterBrokerRequest,
    ):
        known = encode_header(PULL) if cls is PullMessageRequest else {}
        _only_protocol_error(partial(decode_header, cls), known | ext)


PULL = PullMessageRequest(
    consumer_group="g",
    topic="t",
    queue_id=1,
    queue_offset=2,
    max_msg_nums=3,
    sys_flag=4,
    commit_offset=5,
    subscription="a || b",
)


def test_header_round_trip_and_named_field_in_the_error() -> None:
    ext = encode_header(PULL)
    assert ext["suspendTimeoutMillis"] == "0"
    assert decode_header(PullMessageRequest, ext | {"unknown": "ignored"}) == PULL
    with pytest.raises(ProtocolError, match="queueId: not a number"):
        decode_header(PullMessageRequest, ext | {"queueId": "one"})
    del ext["queueOffset"]
    with pytest.raises(ProtocolError, match="queueOffset is missing"):
        decode_header(PullMessageRequest, ext)


def _only_protocol_error(decode: Callable[[Any], object], raw: Any) -> None:
    with contextlib.suppress(ProtocolError):
        decode(raw)


def test_a_binary_header_that_ends_in_a_name_of_one_letter_is_refused() -> None:
    """Its body goes on as if the name had a value there."""
    whole = encode_command(RemotingCommand(34, serialize_type=SerializeType.ROCKETMQ))[4:]
    # two bytes of fields: the length of a name
    header = whole[4:-4] + (2).to_bytes(4) + b"\x00\x01"
    with pytest.raises(ProtocolError, match="in the middle of a field"):
        decode_command((1 << 24 | len(header)).to_bytes(4) + header + b"a\x00\x00\x00\x01b")
