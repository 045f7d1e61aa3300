"""What one member holds of one queue."""

import asyncio

import pytest

from ogive.client.consumer.process_queue import ProcessQueue, QueueState
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
    async with asyncio.timeout(5):
        waiter = asyncio.create_task(process_queue.changed(60))
        await asyncio.sleep(0)
        process_queue.ack([3])
        await waiter
        waiter = asyncio.create_task(process_queue.changed(60))
        await asyncio.sleep(0)
        process_queue.move_to(QueueState.DROPPED)
        await waiter
