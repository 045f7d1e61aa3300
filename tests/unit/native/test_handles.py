"""native/handles.c beside ogive.client.sending.handle."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.sending.handle import MAX_TEXT_BYTES, BatchOutcome, Handle
from ogive.native import Native
from ogive.wire.message import decode_batch

PREFIX = "0A0B0C0D" * 2 + "0123"


@pytest.fixture(scope="module")
def batch() -> Iterator[BatchOutcome]:
    loop = asyncio.new_event_loop()
    yield BatchOutcome(loop)
    loop.close()


def filled(
    kind: type[Any], messages: list[tuple[bytes, bytes]], batch: object, *how: Any
) -> tuple[tuple[bytes, int], list[Any]]:
    handles = [kind(None, body, text, 1.5, None) for body, text in messages]
    found = kind._fill(handles, batch, PREFIX, *how)
    assert all(handle._since == 1.5 for handle in handles)
    return found, [(one._batch, one._index, one._body, one._text) for one in handles]


@given(
    messages=st.lists(
        st.tuples(st.binary(max_size=40), st.binary(max_size=20)), min_size=1, max_size=6
    ),
    number=st.integers(0, 2**48 - 7),
    most_bytes=st.integers(0, 400),
    most=st.integers(1, 7),
)
def test_a_batch_is_the_one_that_python_makes(
    compiled: Native,
    batch: BatchOutcome,
    messages: list[tuple[bytes, bytes]],
    number: int,
    most_bytes: int,
    most: int,
) -> None:
    how = (number, most_bytes, most)
    found = filled(compiled.Handle, messages, batch, *how)
    assert found == filled(Handle, messages, batch, *how)
    body, count = found[0]
    assert [(item.body, item.properties) for item in decode_batch(body)] == [
        (one, b"UNIQ_KEY\x01%b%012X\x02%b" % (PREFIX.encode(), number + i, text))
        for i, (one, text) in enumerate(messages[:count])
    ]


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_what_cannot_stand_in_a_batch_is_refused(compiled: Native, kind: str) -> None:
    made: Any = compiled.Handle if kind == "compiled" else Handle
    long = made(None, b"", bytes(MAX_TEXT_BYTES + 1), 0.0, None)
    used = made(None, b"", bytes(MAX_TEXT_BYTES), 0.0, None)
    made._fill([used], None, PREFIX, 0, 0, 1)
    for handle in (long, used):
        with pytest.raises(ValueError, match="cannot stand in a batch"):
            made._fill([handle], None, PREFIX, 0, 0, 1)


def test_arguments_of_other_kinds_are_refused(compiled: Native) -> None:
    made = compiled.Handle
    for arguments in ((), (None, "", b"", 0.0, None), (None, b"", b"", 0, None)):
        with pytest.raises(TypeError, match="Handle"):
            made(*arguments)
    handle = made(None, b"", b"", 0.0, None)
    for wrong in (
        ((handle,), None, PREFIX, 0, 0, 1),
        ([handle], None, PREFIX[1:], 0, 0, 1),
        ([handle], None, PREFIX, -1, 0, 1),
        ([handle], None, PREFIX, 2**48, 0, 1),
        ([handle], None, PREFIX, 0, 0, 0),
        ([handle], None, PREFIX, 0, 0),
    ):
        with pytest.raises(TypeError, match="fill"):
            made._fill(*wrong)
    with pytest.raises(ValueError, match="cannot stand"):
        made._fill([handle, "another object"], None, PREFIX, 0, 1000, 2)


def test_a_handle_holds_its_parts_as_long_as_it_lives(compiled: Native) -> None:
    class Part:
        pass

    class Submitted(compiled.Handle):  # type: ignore[name-defined,misc]
        __slots__ = ()

    batch, waiter = Part(), Part()
    parts = [weakref.ref(part) for part in (batch, waiter)]
    handle: Any = Submitted(batch, b"body", b"text", 2.5, [waiter])
    assert not gc.is_tracked(handle)
    del batch, waiter
    assert (handle._body, handle._text, handle._index) == (b"body", b"text", 0)
    assert [part() is not None for part in parts] == [True, True]
    handle._waiters = None
    assert [part() is not None for part in parts] == [True, False]
    del handle
    assert [part() for part in parts] == [None, None]
