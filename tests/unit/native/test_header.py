"""native/header.c beside ogive.wire.command."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.wire.command import _binary_fields

lengths = st.one_of(st.integers(0, 12), st.sampled_from([0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFF0]))
texts = st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=12))


def by_python(frame: bytes, at: int, end: int) -> dict[str, str] | None:
    try:
        return _binary_fields(frame, at, end)
    except (ProtocolError, struct.error, IndexError, UnicodeDecodeError):
        return None


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """Fields one behind the other, most of them whole, some with a length that is not theirs."""
    parts = []
    for name, value in draw(st.lists(st.tuples(texts, texts), max_size=6)):
        name_size = draw(st.one_of(st.just(len(name)), st.integers(0, 0xFFFF)))
        value_size = draw(st.one_of(st.just(len(value)), lengths))
        parts.append(struct.pack(">H", name_size) + name + struct.pack(">I", value_size) + value)
    return b"".join(parts)


@given(before=st.binary(max_size=5), text=st.one_of(fields(), st.binary(max_size=40)), behind=st.binary(max_size=12))
@example(b"", b"\0\1a\0\0\0\1x\0\1a\0\0\0\1y", b"")  # the last of a repeated name counts
@example(b"", b"\0\0\0\0\0\1x\0\1b\0\0\0\0", b"")  # without a name, without a value
@example(b"", b"\0\1\xff\0\0\0\0", b"")
def test_the_fields_are_those_that_python_finds(compiled: Native, before: bytes, text: bytes, behind: bytes) -> None:
    frame, at = before + text + behind, len(before)
    found, twin = compiled.header_fields(frame, at, at + len(text)), by_python(frame, at, at + len(text))
    assert found == twin
    assert found is None or twin is None or list(found) == list(twin)


@pytest.mark.parametrize(("at", "end"), [(-1, 3), (2, 1), (0, 99), (99, 100)])
def test_a_place_outside_the_frame_is_left_to_python(compiled: Native, at: int, end: int) -> None:
    assert compiled.header_fields(b"\0\1a\0\0\0\1x", at, end) is None


def test_only_bytes_are_taken(compiled: Native) -> None:
    with pytest.raises(TypeError, match="frame: bytes"):
        compiled.header_fields(bytearray(8), 0, 8)  # type: ignore[arg-type]
