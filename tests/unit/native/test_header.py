"""native/header.c beside ogive.wire.command and ogive.wire.command."""

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.wire.codes import SerializeType
from ogive.wire.command import (
    MAX_EXT_FIELDS,
    MAX_HEADER_BYTES,
    FrameDecoder,
    RemotingCommand,
    decode_command,
    encode_command,
)

lengths = st.one_of(
    st.integers(0, 12), st.sampled_from([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0])
)
texts = st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=12))
int16s, int32s = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """Fields one behind the other, most of them whole, some with a length that is not theirs."""
    parts = []
    for name, value in draw(st.lists(st.tuples(texts, texts), max_size=6)):
        name_size = draw(st.one_of(st.just(len(name)), st.integers(0, 0xFFFF)))
        value_size = draw(st.one_of(st.just(len(value)), lengths))
        parts.append(struct.pack(">H", name_size) + name + struct.pack(">I", value_size) + value)
    return b"".join(parts)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Frames with a binary header, the most of which hold what they say."""
    text = draw(st.one_of(fields(), st.binary(max_size=40)))
    remark = draw(st.one_of(st.just(b""), st.just(b""), texts))
    fixed = struct.pack(
        ">hBhii", draw(int16s), draw(st.integers(0, 20)), draw(int16s), draw(int32s), draw(int32s)
    )
    remark_size, size = (
        draw(st.one_of(st.just(len(part)), st.just(len(part)), lengths)) for part in (remark, text)
    )
    header = fixed + struct.pack(">I", remark_size) + remark + struct.pack(">I", size) + text
    word = draw(
        st.one_of(st.just(len(header)), st.just(len(header)), st.integers(0, len(header) + 9))
    )
    return (
        struct.pack(">I", draw(st.sampled_from([1, 1, 1, 0, 2])) << 24 | word)
        + header
        + draw(st.binary(max_size=9))
    )


def by_twin(frame: bytes) -> RemotingCommand | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.wire.command.native", None)
        try:
            return decode_command(frame)
        except ProtocolError:
            return None


def one(text: bytes, size: int = -1) -> bytes:
    header = struct.pack(">hBhiiii", 310, 0, 453, 7, 0, 0, len(text) if size < 0 else size) + text
    return struct.pack(">I", 1 << 24 | len(header)) + header


@given(st.one_of(frames(), st.binary(max_size=40)))
# the last of a repeated name counts
@example(one(b"\0\1a\0\0\0\1x\0\1a\0\0\0\1y"))
# without a name, without a value
@example(one(b"\0\0\0\0\0\1x\0\1b\0\0\0\0"))
# the twin finds this one too short
@example(one(b"\0\0\0\0\0\0"))
@example(one(b"\0\1\xff\0\0\0\0"))
@example(one(b"\0\1a\0\0\0\1x", 9))
@example(one(b"\0\1a\0\0\0\1x", 0xFFFFFFFF & 2**31 - 1))
@example(b"")
def test_commands_are_those_that_python_finds(compiled: Native, frame: bytes) -> None:
    found = compiled.binary_command(frame)
    if found is None:
        assert frame[:1] != b"\1" or decode_or_error(frame) == decode_or_error(frame, twin=True)
        return
    twin = by_twin(frame)
    assert twin is not None
    assert RemotingCommand(*found) == twin
    assert list(found[1]) == list(twin.ext_fields)
    assert [type(value) for value in found] == [
        int,
        dict,
        bytes,
        int,
        int,
        type(None),
        int,
        int,
        int,
    ]


def decode_or_error(frame: bytes, *, twin: bool = False) -> object:
    with pytest.MonkeyPatch.context() as patch:
        if twin:
            patch.setattr("ogive.wire.command.native", None)
        try:
            return decode_command(frame)
        except ProtocolError as exc:
            return str(exc)


def test_any_other_byte_and_end_tells_the_same_as_in_python(compiled: Native) -> None:
    whole = one(b"\0\1a\0\0\0\1x\0\2bb\0\0\0\2yy") + b"body"
    assert compiled.binary_command(whole) is not None
    for at, right in enumerate(whole):
        for byte in {0, 1, 0xFF, right ^ 0x80, (right + 1) & 0xFF, (right - 1) & 0xFF}:
            frame = whole[:at] + bytes([byte]) + whole[at + 1 :]
            assert decode_or_error(frame) == decode_or_error(frame, twin=True), (at, byte)
        assert decode_or_error(whole[:at]) == decode_or_error(whole[:at], twin=True), at


def test_a_field_that_ends_with_its_header_is_compiled(compiled: Native) -> None:
    for text, fields in (
        (b"\0\1a\0\0\0\0", {}),
        (b"\0\1a\0\0\0\1x\0\1b\0\0\0\0", {"a": "x"}),
        (b"\0\2ab\0\0\0\1x", {"ab": "x"}),
    ):
        found = compiled.binary_command(one(text))
        assert found is not None
        assert found[1] == fields


@given(
    st.builds(
        RemotingCommand,
        code=int16s,
        ext_fields=st.dictionaries(
            st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=20), max_size=20
        ),
        body=st.binary(max_size=50),
        opaque=int32s,
        flag=int32s,
        language=st.integers(0, 13),
        version=int16s,
        serialize_type=st.just(int(SerializeType.ROCKETMQ)),
    )
)
def test_what_peers_send_is_compiled(compiled: Native, command: RemotingCommand) -> None:
    found = compiled.binary_command(encode_command(command)[4:])
    assert found is not None
    assert RemotingCommand(*found) == command


@pytest.mark.parametrize("language", range(256))
def test_a_language_that_nobody_knows_is_left_to_python(compiled: Native, language: int) -> None:
    frame = bytearray(one(b""))
    frame[6] = language
    found, twin = compiled.binary_command(bytes(frame)), by_twin(bytes(frame))
    assert twin is not None
    assert found is None or RemotingCommand(*found) == twin
    assert (found is None) == (twin.language != language)


def test_what_is_over_a_limit_is_left_to_python(compiled: Native) -> None:
    def many(count: int) -> bytes:
        return one(b"".join([struct.pack(">HHI", 2, n, 1) + b"x" for n in range(count)]))

    # 0x80 and more begin no letter
    assert compiled.binary_command(many(MAX_EXT_FIELDS)) is None
    assert compiled.binary_command(many(100)) is not None
    field = b"\0\1a" + struct.pack(">I", MAX_HEADER_BYTES - 21 - 7)
    assert compiled.binary_command(one(field + b"x" * (MAX_HEADER_BYTES - 21 - 7))) is not None
    assert (
        compiled.binary_command(one(field + b"x" * (MAX_HEADER_BYTES - 21 - 7) + b"\0\1b\0\0\0\0"))
        is None
    )
    named = [f"{n:03}".encode() for n in range(MAX_EXT_FIELDS + 1)]
    texts = [b"\0\3" + name + b"\0\0\0\1x" for name in named]
    assert compiled.binary_command(one(b"".join(texts[:-1]))) is not None
    assert compiled.binary_command(one(b"".join(texts))) is None


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Frames, at times with something else behind them, cut anywhere."""
    bodies = draw(st.lists(st.binary(min_size=4, max_size=30), max_size=6))
    data = b"".join([struct.pack(">I", len(body)) + body for body in bodies]) + draw(
        st.one_of(st.just(b""), st.binary(max_size=12))
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(streams(), st.sampled_from([20, 1000, 2**70]))
@example([b"\0\0\0\4abcd\0\0\0\3abc"], 1000)
@example([b"\0\0\0\4abcd\xff\xff\xff\xff"], 1000)
@example([b"\0\0\0\x15" + b"x" * 21], 20)
@example([b"\0\0\0\x14" + b"x" * 20], 20)
@example([b"GET / HTTP/1.1"], 1000)
def test_frames_are_those_that_python_finds(
    compiled: Native, stream: list[bytes], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.wire.command.native", None)
        twin = fed(stream, limit)
    patched = fed(stream, limit)
    assert patched == twin
    frames, end = compiled.frames(b"".join(stream), limit)
    assert end == sum([4 + len(frame) for frame in frames])
    assert frames == (FrameDecoder(limit).feed(b"".join(stream))[0] if limit < 2**63 else [])


def fed(stream: list[bytes], limit: int) -> list[object]:
    decoder = FrameDecoder(limit)
    seen: list[object] = []
    for data in stream:
        found, fault = decoder.feed(data)
        seen.append((found, str(fault), decoder.buffered))
        if fault is not None:
            break
    return seen


def test_only_bytes_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="frame: bytes"):
        compiled.binary_command(bytearray(30))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="data: bytes"):
        compiled.frames(bytearray(30), 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        compiled.frames(b"", "9")  # type: ignore[arg-type]
    wrong: list[tuple[Any, ...]] = [
        (compiled.binary_command,),
        (compiled.binary_command, b"", 1),
        (compiled.frames, b""),
        (compiled.frames, b"", 9, 9),
    ]
    for function, *arguments in wrong:
        with pytest.raises(TypeError):
            function(*arguments)
