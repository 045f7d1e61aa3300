"""Hashes of batches against the hash of one text."""

from hypothesis import given
from hypothesis import strategies as st

from ogive.store.keyhash import BATCH, java_hashes, java_prefix
from ogive.wire.message import java_hash

keys = st.one_of(st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=90), st.text(max_size=20))


@given(st.lists(keys, max_size=20))
def test_each_key_has_javas_hash(texts: list[str]) -> None:
    prefix = java_prefix(b"Topic#")
    found = java_hashes([prefix] * len(texts), [text.encode() for text in texts])
    assert found == [java_hash("Topic#" + text) & 0xFFFFFFFF for text in texts]


def test_keys_of_an_id_with_an_ipv6_address_take_the_quick_way() -> None:
    texts = ["%056X" % (n * 7919) for n in range(BATCH + 3)] + ["x" * n for n in range(65)]
    assert java_hashes([5] * len(texts), [text.encode() for text in texts]) == [
        (5 * pow(31, len(text), 1 << 32) + java_hash(text)) & 0xFFFFFFFF for text in texts
    ]


def test_more_keys_than_a_batch_and_of_every_length() -> None:
    texts = [chr(33 + n % 90) * n for n in range(2 * BATCH + 3)]
    assert java_hashes([0] * len(texts), [text.encode() for text in texts]) == [java_hash(text) & 0xFFFFFFFF for text in texts]
