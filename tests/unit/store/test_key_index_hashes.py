"""Hashes of batches against the hash of one text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.store.key_index import BATCH, java_hashes, java_prefix
from ogive.wire.message import java_hash

keys = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=90), st.text(max_size=20)
)


@given(st.lists(keys, max_size=20))
def test_each_key_has_javas_hash(texts: list[str]) -> None:
    prefix = java_prefix(b"Topic#")
    found = java_hashes([prefix] * len(texts), [text.encode() for text in texts])
    assert found == [java_hash("Topic#" + text) & 0xFFFFFFFF for text in texts]


def test_more_keys_than_a_batch_and_of_every_length() -> None:
    texts = [chr(33 + n % 90) * n for n in range(2 * BATCH + 3)]
    assert java_hashes([0] * len(texts), [text.encode() for text in texts]) == [
        java_hash(text) & 0xFFFFFFFF for text in texts
    ]


@pytest.mark.parametrize("longest", [32, 33, 56, 64, 65])
def test_keys_about_as_long_as_those_that_are_folded_together(longest: int) -> None:
    """32 bytes and 64 are the widths of a lane: what fits neither, and what is no ASCII, is hashed
    on its own beside the others.
    """
    texts = ["k" * longest, *(f"{n:X}" * (longest // 2) for n in range(16)), "", "é" * 9]
    for some in (texts, texts[:-1]):
        assert java_hashes([7] * len(some), [text.encode() for text in some]) == [
            (7 * 31 ** len(text) + java_hash(text)) & 0xFFFFFFFF for text in some
        ]
