"""native/records.c beside ogive.store.appender."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.errors import InvalidOption
from ogive.native import Native
from ogive.store import appender
from ogive.store.appender import Appender
from ogive.store.model import MAX_RECORD_BYTES, NewBatch, NewMessage, PutResult, StoreConfig
from ogive.store.record import MAX_CRC_PROPERTIES, crc_property
from ogive.wire.message import BatchItem

V4, V6 = bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(range(20))
PARTS = [
    b"", b"K\1v\2", b"K\1v", b"TAGS\1a\2", b"TAGS\1Tag", b"TAGS\1", b"TAGS\1\2", b"XTAGS\1b\2", b"\2TAGS\1c\2",
    "TAGS\1ключ\2".encode(), b"TAGS\1\xff\2", b"\2", b"\2\2", crc_property(77), crc_property(78)[1:], crc_property(79) + b"\2",
]  # fmt: skip
properties = st.lists(st.sampled_from(PARTS), max_size=4).map(b"".join)
ints = st.one_of(st.integers(-3, 3), st.sampled_from([2**31 - 1, -(2**31)]))
longs = st.one_of(ints, st.sampled_from([2**63 - 1, -(2**63)]))
hosts = st.sampled_from([V4, V4, V6])
messages = st.builds(
    NewMessage,
    topic=st.sampled_from(["T", "тема", "t" * 127, "t" * 128, "t" * 255, "SCHEDULE_TOPIC_XXXX"]),
    queue_id=ints,
    body=st.binary(max_size=70),
    properties=properties,
    sys_flag=st.one_of(st.sampled_from([0, 4, 8, 12, 0x30, 1]), ints),
    flag=ints,
    born_timestamp_ms=longs,
    born_host=hosts,
    store_host=hosts,
    reconsume_times=ints,
    prepared_transaction_offset=longs,
)
items = st.lists(st.builds(BatchItem, ints, st.binary(max_size=70), properties), min_size=1, max_size=4)


def stored(put: NewMessage | NewBatch, with_crc: bool = True, end: int = 4096, now_ms: int = 1_700_000_000_123) -> Any:
    """All that becomes of *put* behind another message: what is written, kept and answered; or the error that refuses it."""
    config = StoreConfig(root=Path("/store"), record_crc=with_crc, segment_bytes=32768)
    made = Appender(config, {}, segment_bytes=32768, file_entries=8, end=end, store_timestamp_ms=0, clock_ms=lambda: now_ms)
    first = NewMessage("T", 0, b"before")
    error = None
    for each in ((first,), put if isinstance(put, NewBatch) else (put,), (first,)):
        try:
            made.append(each, print)
        except InvalidOption as exc:
            error = str(exc)
    group = made.forming
    assert group is not None
    return (
        error,
        [(at, b"".join(pieces)) for at, pieces in group.extents],
        [(queue.key, entries, number) for queue, entries, number in group.entries],
        [(type(key), *key) for key in group.keyed],
        [(type(results), [(type(result), *result) for result in results]) for _, results in group.waiters],
        {key: queue.next_offset for key, queue in made.queues.items()},
        (group.start, group.end, made.end, made.waiting_bytes),
    )


def check(put: NewMessage | NewBatch, with_crc: bool = True, end: int = 4096) -> None:
    found = stored(put, with_crc, end)
    with patch.object(appender, "native", None):
        assert found == stored(put, with_crc, end)


def call(compiled: Native, message: NewMessage, items: list[BatchItem] | None = None, **changes: Any) -> Any:
    arguments = {
        "field": b"\1T",
        "topic": b"T",
        "offset": 7,
        "position": 4096,
        "room": 10_000_000,
        "ms": 5,
        "crc": True,
        "result": PutResult,
    }
    more: Any = (arguments | changes).values()
    return compiled.records(message, items, *more)


MESSAGE: Any = NewMessage("T", 3, b"body", b"TAGS\1a\2", 0, 1, 2, V4, V4, 3, 4)


@given(messages, st.booleans(), st.sampled_from([0, 4096, 32400, 32500]))
def test_one_message_is_stored_as_by_python(compiled: Native, message: NewMessage, with_crc: bool, end: int) -> None:
    check(message, with_crc, end)


@given(messages, items, st.booleans(), st.sampled_from([0, 4096, 32000]))
@example(MESSAGE, [BatchItem(0, b"x" * 15000, b""), BatchItem(0, b"y" * 15000, b"")], True, 4096)
def test_a_batch_is_stored_as_by_python(compiled: Native, shared: NewMessage, items: list[BatchItem], with_crc: bool, end: int) -> None:
    check(NewBatch(shared, items), with_crc, end)


@given(
    st.sampled_from(NewMessage._fields),
    st.sampled_from([2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 2**70, b"", b"1234", bytes(40), b"v" * 32767]),
)
def test_a_field_that_does_not_fit_is_refused_as_by_python(compiled: Native, name: str, value: Any) -> None:
    if isinstance(value, type(getattr(MESSAGE, name))):
        message = MESSAGE._replace(**{name: value})
        check(message)
        check(NewBatch(message, [BatchItem(0, b"a", b"")]))


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize("size", [MAX_CRC_PROPERTIES - 1, MAX_CRC_PROPERTIES, MAX_CRC_PROPERTIES + 1, 32766, 32767, 32768])
@pytest.mark.parametrize("last", [b"v", b"\2"])
def test_properties_about_as_long_as_they_may_be(compiled: Native, size: int, last: bytes, with_crc: bool) -> None:
    text = b"K\1".ljust(size, b"v")[:-1] + last
    check(MESSAGE._replace(properties=text), with_crc)
    check(NewBatch(MESSAGE, [BatchItem(0, b"a", b""), BatchItem(0, b"b", text)]), with_crc)


@pytest.mark.parametrize(
    "message", [MESSAGE, MESSAGE._replace(sys_flag=4), MESSAGE._replace(sys_flag=12, properties=b""), MESSAGE._replace(born_host=V6)]
)
def test_the_usual_message_is_compiled(compiled: Native, message: NewMessage) -> None:
    assert call(compiled, message) is not None


def test_the_usual_batch_is_compiled(compiled: Native) -> None:
    assert len(call(compiled, MESSAGE, [BatchItem(0, b"a", b""), BatchItem(0, b"b", b"K\1v" + crc_property(5))])[3]) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1}, {"offset": 2**63}, {"position": -1}, {"position": 2**63 - 1}, {"room": -1}, {"room": 50}, {"room": 2**80},
        {"ms": -1}, {"ms": 2**63}, {"ms": None}, {"field": bytes(70_000)},
    ],
)  # fmt: skip
def test_what_is_not_usual_is_left_to_python(compiled: Native, changes: dict[str, Any]) -> None:
    assert call(compiled, MESSAGE, None, **changes) is None


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE._replace(body=bytes(MAX_RECORD_BYTES)), MESSAGE._replace(body=bytearray(3)), MESSAGE._replace(properties=None),
        MESSAGE._replace(queue_id=2**31), MESSAGE._replace(flag="1"), MESSAGE._replace(born_host=bytes(9)),
        MESSAGE._replace(store_host="12345678"), MESSAGE._replace(properties="TAGS\1я".encode()),
    ],
)  # fmt: skip
def test_a_message_that_is_not_usual_is_left_to_python(compiled: Native, message: NewMessage) -> None:
    assert call(compiled, message) is None


@pytest.mark.parametrize("items", [[], [BatchItem(2**31, b"", b"")], [(0, b"")], [[0, b"", b""]], [(0, "", b"")], ((0, b"", b""),)])
def test_items_that_are_not_usual_are_left_to_python(compiled: Native, items: Any) -> None:
    assert call(compiled, MESSAGE, items) is None


def test_a_batch_in_a_transaction_is_left_to_python(compiled: Native) -> None:
    assert call(compiled, MESSAGE._replace(sys_flag=4), [BatchItem(0, b"", b"")]) is None


def test_wrong_types_are_refused(compiled: Native) -> None:
    for message, changes in (
        ([*MESSAGE], {}),
        (MESSAGE[:10], {}),
        (MESSAGE, {"field": "T"}),
        (MESSAGE, {"topic": 1}),
        (MESSAGE, {"result": list}),
    ):
        with pytest.raises(TypeError, match="message: NewMessage"):
            call(compiled, message, None, **changes)  # type: ignore[arg-type]
