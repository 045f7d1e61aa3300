"""CRC-32, with and without what is faster at it."""

import runpy
import sys
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.native import native
from ogive.wire import checksum


def crc32_of_a_new_process() -> Callable[..., int]:
    found: Callable[..., int] = runpy.run_path(checksum.__file__)["crc32"]
    return found


@given(st.binary(max_size=5000), st.binary(max_size=100))
def test_it_is_javas_crc_of_pieces_too(first: bytes, second: bytes) -> None:
    whole = zlib.crc32(first + second)
    assert checksum.crc32(first + second) == whole
    assert checksum.crc32(memoryview(second), checksum.crc32(memoryview(first))) == whole


def test_the_compiled_part_computes_it_where_it_was_built() -> None:
    if native is None:
        pytest.skip("the compiled part was not built, or is left out by OGIVE_NATIVE=0")
    assert checksum.crc32 is native.crc32


def test_isal_computes_it_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogive.native.native", None)
    assert pytest.importorskip("isal.isal_zlib").crc32 is crc32_of_a_new_process()
    assert crc32_of_a_new_process()(b"123456789") == 0xCBF43926


def test_without_isal_it_is_that_of_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ogive.native.native", None)
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert crc32_of_a_new_process() is zlib.crc32
