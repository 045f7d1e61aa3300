"""native/crc.c beside zlib."""

import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from ogive.native import Native


@given(data=st.binary(max_size=300), before=st.integers(0, 2**32 - 1))
def test_it_is_zlibs(compiled: Native, data: bytes, before: int) -> None:
    assert compiled.crc32(data, before) == zlib.crc32(data, before)


def test_every_length_and_alignment_gives_zlibs(compiled: Native) -> None:
    data = random.Random(1).randbytes(70_000)
    for size in [*range(300), 1023, 1024, 1025, 65_535, 65_536]:
        for start in range(17):
            part = memoryview(data)[start : start + size]
            assert compiled.crc32(part) == zlib.crc32(part)
