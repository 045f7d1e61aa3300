"""native/properties.c beside ogive.wire.message."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.wire.message import MAX_PROPERTIES_BYTES, decode_properties, encode_properties

pieces = st.one_of(
    st.sampled_from([b"\x01", b"\x02", b"\x01\x02", b"A", b"\xc3", "ü".encode(), b"\xed\xa0\x80"]),
    st.binary(max_size=4),
)
words = st.one_of(
    st.text(max_size=6), st.sampled_from(["", "\x01", "\x02", "ü", "\ud800", "A\0B", "UNIQ_KEY"])
)


def by_twin(raw: bytes) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.wire.message.native", None)
        return decode_properties(raw)


def text_by_twin(properties: Mapping[str, str]) -> bytes | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.wire.message.native", None)
        try:
            return encode_properties(properties)
        except ProtocolError:
            return None


@given(st.lists(pieces, max_size=20).map(b"".join))
# the last of a repeated name counts
@example(b"A\x01B\x02A\x01C")
# without a name, without a value, without a separator
@example(b"\x01B\x02A\x01\x02A\x02")
@example(b"A\x01B\x01C\x02\x02\x02")
# what is left out may be anything
@example(b"\xff\x01\x02A\x01B\x02")
def test_properties_are_those_that_python_finds(compiled: Native, raw: bytes) -> None:
    found, twin = compiled.properties(raw), by_twin(raw)
    if found is None:
        assert "\N{REPLACEMENT CHARACTER}" in "".join([*twin, *twin.values()])
    else:
        assert list(found.items()) == list(twin.items())
    assert decode_properties(raw) == twin


@given(st.dictionaries(words, words, max_size=6))
@example({})
@example({"A": "\x02", "\x02": ""})
def test_texts_are_those_that_python_writes(compiled: Native, properties: dict[str, str]) -> None:
    assert compiled.properties_text(properties) == text_by_twin(properties)


@pytest.mark.parametrize("size", range(MAX_PROPERTIES_BYTES - 4, MAX_PROPERTIES_BYTES + 2))
def test_the_longest_text_is_pythons(compiled: Native, size: int) -> None:
    for properties in ({"A": "x" * size}, {"x" * size: ""}, {"A": "B", "C": "x" * (size - 4)}):
        assert compiled.properties_text(properties) == text_by_twin(properties)


def test_what_is_no_dict_of_plain_strings_is_left_to_python(compiled: Native) -> None:
    class Own(str):
        def __format__(self, spec: str) -> str:
            return "own"

    others: list[Any] = [
        [],
        None,
        {1: "A"},
        {"A": 1},
        {"A": b"B"},
        {Own("A"): "B"},
        {"A": Own("B")},
    ]
    for other in others:
        assert compiled.properties_text(other) is None
    assert encode_properties({"A": Own("B")}) == b"A\x01own\x02"


def test_any_buffer_is_taken_and_nothing_else(compiled: Native) -> None:
    assert (
        compiled.properties(bytearray(b"A\x01B\x02"))
        == compiled.properties(memoryview(b"A\x01B\x02"))
        == {"A": "B"}
    )
    with pytest.raises(TypeError):
        compiled.properties("A\x01B\x02")  # type: ignore[arg-type]
