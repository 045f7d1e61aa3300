"""What one member holds of one queue."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.consumer.process_queue import ProcessQueue, QueueState, offsets_of
from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue

QUEUE = MessageQueue("Orders", "broker-a", 1)


def message(offset: int, body: bytes = b"body") -> MessageExt:
    return MessageExt(
        "Orders",
        body,
        {},
        QUEUE,
        offset,
        offset * 100,
        0,
        0,
        0,
        "127.0.0.1:1",
        "127.0.0.1:2",
        0,
        0,
        100,
    )


def filled(*offsets: int, next_offset: int | None = None) -> ProcessQueue:
    process_queue = ProcessQueue(QUEUE, offsets[0] if offsets else 0)
    process_queue.put(
        [message(offset) for offset in offsets],
        offsets[-1] + 1 if next_offset is None else next_offset,
    )
    return process_queue


@pytest.mark.feature(46, 61, 62)
@pytest.mark.kills("case 2: offset committed = highest done")
def test_the_lowest_unfinished_offset_is_what_may_be_committed() -> None:
    """Whatever order messages end in."""
    process_queue = filled(10, 11, 12, 13)
    assert process_queue.ack([12]) == 10
    assert process_queue.ack([10]) == 11
    assert process_queue.ack([13]) == 11
    assert process_queue.ack([11]) == 14


@pytest.mark.feature(65)
def test_with_nothing_unfinished_everything_before_the_next_pull_is_done() -> None:
    """Also what a filter left out behind the last message."""
    process_queue = filled(10, 11, next_offset=50)
    assert process_queue.ack([10, 11]) == 50
    process_queue.put([], 60)
    assert process_queue.safe_offset == 60


def test_a_message_is_counted_once() -> None:
    """A pull that brings a message again does not deliver it again."""
    process_queue = filled(10, 11)
    fresh = process_queue.put([message(11), message(12)], 13)
    assert [m.queue_offset for m in fresh] == [12]
    assert (process_queue.count, process_queue.bytes, process_queue.span) == (3, 12, 2)


@pytest.mark.feature(63)
def test_count_and_bytes_return_to_zero() -> None:
    process_queue = filled(10, 11)
    process_queue.ack([10, 11, 11, 99])
    assert (process_queue.count, process_queue.bytes, process_queue.span) == (0, 0, 0)


@pytest.mark.feature(85)
def test_head_gives_the_lowest_messages_and_leaves_them() -> None:
    process_queue = filled(3, 4, 5)
    assert [m.queue_offset for m in process_queue.head(2)] == [3, 4]
    assert process_queue.count == 3


def test_a_finished_message_cannot_be_replaced() -> None:
    process_queue = filled(3)
    process_queue.ack([3])
    assert not process_queue.replace(message(3))
    assert process_queue.count == 0


def test_a_dropped_queue_holds_nothing_and_stays_dropped() -> None:
    process_queue = filled(3)
    process_queue.move_to(QueueState.RELEASING)
    assert not process_queue.active
    process_queue.move_to(QueueState.DROPPED)
    assert (process_queue.dropped, process_queue.count, process_queue.bytes) == (True, 0, 0)
    with pytest.raises(IllegalStateError, match="DROPPED -> ACTIVE"):
        process_queue.move_to(QueueState.ACTIVE)


async def test_who_waits_for_room_is_woken_by_an_ack_and_by_the_end() -> None:
    process_queue = filled(3)
    async with asyncio.timeout(60):
        waiter = asyncio.create_task(process_queue.changed(60))
        await asyncio.sleep(0)
        process_queue.ack([3])
        await waiter
        waiter = asyncio.create_task(process_queue.changed(60))
        await asyncio.sleep(0)
        process_queue.move_to(QueueState.DROPPED)
        await waiter


offsets = st.integers(0, 30)
steps = st.one_of(
    # a pull: where it begins, and which of the next offsets it brings
    st.tuples(st.just("put"), offsets, st.lists(st.booleans(), max_size=12)),
    st.tuples(st.just("ack range"), offsets, offsets),
    st.tuples(st.just("ack"), st.lists(offsets, max_size=6), st.none()),
    st.tuples(st.just("ack some"), st.integers(0, 5), st.integers(0, 8)),
)


@given(steps=st.lists(steps, max_size=20))
def test_what_is_unfinished_is_known_whatever_comes_and_ends(
    steps: list[tuple[str, Any, Any]],
) -> None:
    """Beside a dict: with filters, pulls that go back, and calls that end in any order."""
    process_queue = ProcessQueue(QUEUE, 0)
    unfinished: dict[int, MessageExt] = {}
    for kind, first, second in steps:
        if kind == "put":
            came = [message(first + at, b"x" * at) for at, found in enumerate(second) if found]
            fresh = process_queue.put(came, first + len(second))
            assert fresh == [one for one in came if one.queue_offset not in unfinished]
            unfinished |= {one.queue_offset: one for one in fresh}
            continue
        done: Sequence[int] = range(first, second) if kind == "ack range" else first
        if kind == "ack some":
            done = sorted(unfinished)[first : first + second]
        process_queue.ack(done)
        for offset in done:
            unfinished.pop(offset, None)
        there = sorted(unfinished)
        assert process_queue.count == len(there)
        assert process_queue.bytes == sum(len(one.body) for one in unfinished.values())
        assert process_queue.safe_offset == (there[0] if there else process_queue.pull_offset)
        assert process_queue.span == (there[-1] - there[0] if there else 0)
        assert process_queue.head(99) == [unfinished[offset] for offset in there]
        assert process_queue.head(2, 1) == [unfinished[offset] for offset in there[1:3]]
        for offset in range(50):
            assert (offset in process_queue) == (offset in unfinished)
            assert process_queue.replace(message(offset)) == (offset in unfinished)
            if offset in unfinished:
                process_queue.replace(unfinished[offset])


def test_offsets_that_follow_each_other_are_a_range() -> None:
    assert offsets_of([message(3), message(4), message(5)]) == range(3, 6)
    assert offsets_of([message(3), message(5)]) == [3, 5]
    assert offsets_of([message(3), message(5), message(4), message(6)]) == [3, 5, 4, 6]
    assert offsets_of([]) == []


def test_finished_messages_are_freed() -> None:
    """Though others of their pull are not finished."""
    process_queue = ProcessQueue(QUEUE, 0)
    came = [message(offset) for offset in range(5)]
    held = sys.getrefcount(came[2])
    process_queue.put(came, 5)
    process_queue.ack(range(1, 4))
    held_now = sys.getrefcount(came[2])
    assert held_now == held
    assert process_queue.safe_offset == 0
