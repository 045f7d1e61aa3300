"""native/records.c beside ogive.store.appender."""

import itertools
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
from ogive.store.queue_types import QueueKinds
from ogive.store.record import MAX_CRC_PROPERTIES, crc_property, topic_field
from ogive.store.types import (
    MAX_RECORD_BYTES,
    SIZE_BEFORE,
    EncodedBatch,
    NewBatch,
    NewMessage,
    PutResult,
    StoreConfig,
)
from ogive.wire.message import BatchItem, decode_stored, encode_batch
from tests.chaos.recorder import MemoryFs

V4, V6 = bytes([127, 0, 0, 1, 0, 0, 42, 159]), bytes(range(20))
PARTS = [
    b"",
    b"K\1v\2",
    b"K\1v",
    b"TAGS\1a\2",
    b"TAGS\1Tag",
    b"TAGS\1",
    b"TAGS\1\2",
    b"XTAGS\1b\2",
    b"\2TAGS\1c\2",
    "TAGS\1ключ\2".encode(),
    b"TAGS\1\xff\2",
    b"\2",
    b"\2\2",
    crc_property(77),
    crc_property(78)[1:],
    crc_property(79) + b"\2",
]
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
items = st.lists(
    st.builds(BatchItem, ints, st.binary(max_size=70), properties), min_size=1, max_size=4
)


def stored(
    put: NewMessage | NewBatch | EncodedBatch | list[NewMessage],
    with_crc: bool = True,
    end: int = 4096,
    segment_bytes: int = 32768,
    known: bool = False,
) -> Any:
    """All that becomes of *put* behind other messages: what is written, kept and answered; or the
    error that refuses it. *known*: there are queues for several already.
    """
    now_ms = 1_700_000_000_123
    config = StoreConfig(root=Path("/store"), record_crc=with_crc, segment_bytes=segment_bytes)
    kinds = QueueKinds.found(MemoryFs(), config)
    made = Appender(
        config,
        {},
        segment_bytes=segment_bytes,
        kinds=kinds,
        end=end,
        store_timestamp_ms=0,
        clock_ms=lambda: now_ms,
    )
    first = NewMessage("T", 0, b"before")
    for message in put if known and isinstance(put, list) else ():
        if message[:2] not in made.queues:
            made._new_queue(message[:2]).next_offset = 7
    error = None
    for each in (
        (first,),
        (first._replace(topic="OP"),),
        (put,) if isinstance(put, NewMessage) else put,
        (first,),
    ):
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
        [
            (type(results), [(type(result), *result) for result in results])
            for _, results in group.waiters
        ],
        {key: queue.next_offset for key, queue in made.queues.items()},
        (group.start, group.end, made.end, made.waiting_bytes),
    )


def check(
    put: NewMessage | NewBatch | list[NewMessage],
    with_crc: bool = True,
    end: int = 4096,
    **options: Any,
) -> None:
    found = stored(encoded(put) if isinstance(put, NewBatch) else put, with_crc, end, **options)
    with patch.object(appender, "native", None):
        assert found == stored(put, with_crc, end, **options)


def encoded(batch: NewBatch) -> EncodedBatch:
    """As it comes, behind a header."""
    return EncodedBatch(batch.shared, b"header" + encode_batch(batch.items), 6, len(batch.items))


def call(
    compiled: Native,
    message: NewMessage,
    batch: bytes | None = None,
    start: int = 0,
    **changes: Any,
) -> Any:
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
    return compiled.records(message, batch, start, *more)


MESSAGE: Any = NewMessage("T", 3, b"body", b"TAGS\1a\2", 0, 1, 2, V4, V4, 3, 4)


@given(messages, st.booleans(), st.sampled_from([0, 4096, 32400, 32500]))
def test_one_message_is_stored_as_by_python(
    compiled: Native, message: NewMessage, with_crc: bool, end: int
) -> None:
    check(message, with_crc, end)


@given(messages, items, st.booleans(), st.sampled_from([0, 4096, 32000]))
@example(MESSAGE, [BatchItem(0, b"x" * 15000, b""), BatchItem(0, b"y" * 15000, b"")], True, 4096)
def test_a_batch_is_stored_as_by_python(
    compiled: Native, shared: NewMessage, items: list[BatchItem], with_crc: bool, end: int
) -> None:
    check(NewBatch(shared, items), with_crc, end)


@given(
    st.lists(messages, min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from([0, 4096, 32000, 32400]),
)
@example([MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE)], True, 4096)
@example(
    [MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE), MESSAGE._replace(flag=SIZE_BEFORE)],
    False,
    4096,
)
@example([MESSAGE._replace(flag=SIZE_BEFORE), MESSAGE._replace(topic="OP")], True, 4096)
@example([MESSAGE, MESSAGE._replace(topic="OP", sys_flag=8, queue_id=0)], True, 4096)
@example([MESSAGE, MESSAGE._replace(topic="OP", sys_flag=4)], True, 4096)
@example(
    [MESSAGE._replace(body=bytes(15000)), MESSAGE._replace(topic="OP", body=bytes(15000))],
    True,
    4096,
)
def test_messages_that_are_stored_together_are_stored_as_by_python(
    compiled: Native, several: list[NewMessage], with_crc: bool, end: int
) -> None:
    check(several, with_crc, end)
    check(several, with_crc, end, known=True)


def test_a_message_tells_the_size_of_the_record_before_it(compiled: Native) -> None:
    several = [MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE)]
    for known in (False, True):
        error, [(start, log)], _, _, waiters, *_ = stored(several, known=known)
        (_, _, _, before, _), (_, _, at, size, _) = waiters[2][1]
        assert (error, decode_stored(log[at - start :][:size]).flag) == (None, before)


@given(
    st.sampled_from(NewMessage._fields),
    st.sampled_from(
        [2**31, -(2**31) - 1, 2**63, -(2**63) - 1, 2**70, b"", b"1234", bytes(40), b"v" * 32767]
    ),
)
def test_a_field_that_does_not_fit_is_refused_as_by_python(
    compiled: Native, name: str, value: Any
) -> None:
    if isinstance(value, type(getattr(MESSAGE, name))):
        message = MESSAGE._replace(**{name: value})
        check(message)
        check(NewBatch(message, [BatchItem(0, b"a", b"")]))
        check([message, MESSAGE._replace(topic="OP")])
        check([MESSAGE._replace(topic="OP"), message])


@pytest.mark.parametrize("with_crc", [True, False])
def test_properties_of_each_form_are_stored_as_by_python(compiled: Native, with_crc: bool) -> None:
    texts = [first + second for first in PARTS for second in PARTS]
    for text in texts:
        check(MESSAGE._replace(properties=text), with_crc)
    for first, second in zip(texts, reversed(texts), strict=True):
        check(NewBatch(MESSAGE, [BatchItem(1, b"a", first), BatchItem(-1, b"", second)]), with_crc)


@pytest.mark.parametrize("with_crc", [True, False])
def test_hosts_topics_and_flags_of_each_kind_are_stored_as_by_python(
    compiled: Native, with_crc: bool
) -> None:
    for born_host, store_host, topic in itertools.product(
        (V4, V6), (V4, V6), ("T", "t" * 127, "t" * 128)
    ):
        for sys_flag in (0, 4, 8, 12, 0x30, 0x38, -1):
            message = MESSAGE._replace(
                topic=topic, born_host=born_host, store_host=store_host, sys_flag=sys_flag
            )
            field = topic_field(topic.encode())
            assert call(compiled, message, field=field, crc=with_crc) is not None
            check(message, with_crc)
            check(
                NewBatch(message, [BatchItem(1, b"a", b"TAGS\1a\2"), BatchItem(-1, b"", b"")]),
                with_crc,
            )


@pytest.mark.parametrize("with_crc", [True, False])
@pytest.mark.parametrize(
    "size",
    [MAX_CRC_PROPERTIES - 1, MAX_CRC_PROPERTIES, MAX_CRC_PROPERTIES + 1, 32766, 32767, 32768],
)
@pytest.mark.parametrize("last", [b"v", b"\2"])
def test_properties_about_as_long_as_they_may_be(
    compiled: Native, size: int, last: bytes, with_crc: bool
) -> None:
    text = b"K\1".ljust(size, b"v")[:-1] + last
    check(MESSAGE._replace(properties=text), with_crc, segment_bytes=1 << 20)
    check(
        NewBatch(MESSAGE, [BatchItem(0, b"a", b""), BatchItem(0, b"b", text)]),
        with_crc,
        segment_bytes=1 << 20,
    )
    several = [MESSAGE, MESSAGE._replace(topic="OP", properties=text)]
    check(several, with_crc, segment_bytes=1 << 20, known=True)
    usual = size + (with_crc and last == b"v") <= MAX_CRC_PROPERTIES
    assert (call(compiled, several[1], crc=with_crc) is not None) is usual
    assert (join(compiled, tuple(several), QUEUES, room=1 << 20, crc=with_crc) is not None) is usual


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE,
        MESSAGE._replace(sys_flag=4),
        MESSAGE._replace(sys_flag=12, properties=b""),
        MESSAGE._replace(born_host=V6),
    ],
)
def test_the_usual_message_is_compiled(compiled: Native, message: NewMessage) -> None:
    assert call(compiled, message) is not None


def test_the_usual_batch_is_compiled(compiled: Native) -> None:
    assert (
        len(
            call(
                compiled,
                MESSAGE,
                encode_batch([(0, b"a", b""), (0, b"b", b"K\1v" + crc_property(5))]),
            )[3]
        )
        == 2
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -1},
        {"offset": 2**63},
        {"position": -1},
        {"position": 2**63 - 1},
        {"room": -1},
        {"room": 50},
        {"room": 2**80},
        {"ms": -1},
        {"ms": 2**63},
        {"ms": None},
        {"field": bytes(70_000)},
    ],
)
def test_what_is_not_usual_is_left_to_python(compiled: Native, changes: dict[str, Any]) -> None:
    assert call(compiled, MESSAGE, None, **changes) is None


@pytest.mark.parametrize(
    "message",
    [
        MESSAGE._replace(body=bytes(MAX_RECORD_BYTES)),
        MESSAGE._replace(body=bytearray(3)),
        MESSAGE._replace(properties=None),
        MESSAGE._replace(queue_id=2**31),
        MESSAGE._replace(flag="1"),
        MESSAGE._replace(born_host=bytes(9)),
        *[
            MESSAGE._replace(**{name: bytes(size)})
            for name in ("born_host", "store_host")
            for size in (0, 7, 9, 19, 21, 40)
        ],
        MESSAGE._replace(born_host="12345678"),
        MESSAGE._replace(body=None),
        MESSAGE._replace(flag=2**31),
        MESSAGE._replace(store_host="12345678"),
        MESSAGE._replace(properties=b"TAGS\1\xff"),
    ],
)
def test_a_message_that_is_not_usual_is_left_to_python(
    compiled: Native, message: NewMessage
) -> None:
    assert call(compiled, message) is None


@pytest.mark.parametrize("start", [-1, 1, 24, 25, 10**6, 2**70])
def test_a_batch_whose_lengths_do_not_add_up_is_left_to_python(
    compiled: Native, start: int
) -> None:
    batch = encode_batch([(0, b"a", b""), (0, b"", b"")])[:25]
    assert call(compiled, MESSAGE, batch, start) is None
    assert call(compiled, MESSAGE, batch[:23], 0) is not None
    assert call(compiled, MESSAGE, batch[:23], 23) is None


def test_a_batch_in_a_transaction_is_left_to_python(compiled: Native) -> None:
    assert call(compiled, MESSAGE._replace(sys_flag=4), encode_batch([(0, b"", b"")])) is None


def join(compiled: Native, messages: Any, queues: Any, **changes: Any) -> Any:
    arguments: Any = (
        {"position": 4096, "room": 10_000, "ms": 5, "crc": True, "result": PutResult} | changes
    ).values()
    return compiled.joined_records(messages, queues, *arguments)


QUEUES = ((b"\1T", b"T", 7), (b"\2OP", b"OP", 0))
JOINED = (MESSAGE, MESSAGE._replace(topic="OP", flag=SIZE_BEFORE))


def test_the_usual_messages_that_are_stored_together_are_compiled(compiled: Native) -> None:
    records, entries, keyed, results = join(compiled, JOINED, QUEUES)
    assert [len(part) for part in (entries, keyed, results)] == [2, 2, 2]
    assert len(records) == sum(result.size for result in results)
    assert join(compiled, JOINED, QUEUES, room=len(records)) is not None
    assert join(compiled, JOINED, QUEUES, room=len(records) - 1) is None
    assert join(compiled, (MESSAGE, MESSAGE._replace(topic="OP", sys_flag=8)), QUEUES) is not None


@pytest.mark.parametrize(
    ("messages", "queues"),
    [
        ((), ()),
        (JOINED[::-1], QUEUES),
        ((MESSAGE, (1, 2)), QUEUES),
        ((MESSAGE, [*MESSAGE]), QUEUES),
        (JOINED, (QUEUES[0], None)),
        (JOINED, (QUEUES[0], (b"\2OP", b"OP"))),
        (JOINED, (QUEUES[0], ("OP", b"OP", 0))),
        (JOINED, (QUEUES[0], (b"\2OP", "OP", 0))),
        (JOINED, (QUEUES[0], (b"\2OP", b"OP", -1))),
        (JOINED, (QUEUES[0], (bytes(70_000), b"OP", 0))),
        ((MESSAGE, MESSAGE._replace(flag=SIZE_BEFORE + 1)), QUEUES),
        ((MESSAGE, MESSAGE._replace(sys_flag=12)), QUEUES),
    ],
)
def test_messages_together_that_are_not_usual_are_left_to_python(
    compiled: Native, messages: Any, queues: Any
) -> None:
    assert join(compiled, messages, queues) is None


@pytest.mark.parametrize(
    "changes",
    [{"position": -1}, {"room": 2**80}, {"room": 122}, {"room": 246}, {"ms": -1}, {"ms": None}],
)
def test_places_of_messages_together_that_are_not_usual_are_left_to_python(
    compiled: Native, changes: dict[str, Any]
) -> None:
    assert join(compiled, JOINED, QUEUES, **changes) is None


@pytest.mark.parametrize(
    ("messages", "queues", "result"),
    [
        ([*JOINED], QUEUES, PutResult),
        (JOINED, [*QUEUES], PutResult),
        (JOINED, QUEUES[:1], PutResult),
        (JOINED, QUEUES, list),
    ],
)
def test_wrong_types_of_messages_together_are_refused(
    compiled: Native, messages: Any, queues: Any, result: Any
) -> None:
    with pytest.raises(TypeError, match="tuple of NewMessage"):
        join(compiled, messages, queues, result=result)


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
