"""One file of the index of keys. How files grow and are made again stands in test_key_index.py."""

from ogive.store.index_file import Sizes, sizes_of


def test_sizes_are_told_from_the_length_of_a_file() -> None:
    assert sizes_of(420_000_040) == (5_000_000, 20_000_000)
    assert sizes_of(Sizes(16, 64).file_bytes) == (16, 64)
    assert sizes_of(420_000_041) is None
    assert sizes_of(0) is None
