"""What was pulled, on its way to the application."""

from ogive.client.consumer.process_queue import ProcessQueue, QueueState
from ogive.client.consumer.pull_member import Prefetch
from ogive.model import MessageExt, MessageQueue


def message(queue: MessageQueue, offset: int) -> MessageExt:
    return MessageExt(
        "Orders",
        b"body",
        {},
        queue,
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


def filled(prefetch: Prefetch, queue_id: int, offsets: range) -> ProcessQueue:
    """A queue of which *offsets* were pulled."""
    process_queue = ProcessQueue(MessageQueue("Orders", "broker-a", queue_id), offsets.start)
    prefetch.submit(
        process_queue,
        process_queue.put(
            [message(process_queue.queue, offset) for offset in offsets], offsets.stop
        ),
    )
    return process_queue


def taken(prefetch: Prefetch, count: int) -> list[tuple[int, int]]:
    return [(message.queue.queue_id, message.queue_offset) for message in prefetch.take(count)]


def test_queues_take_turns_and_each_keeps_its_order() -> None:
    prefetch = Prefetch()
    filled(prefetch, 0, range(5))
    filled(prefetch, 1, range(7, 9))
    assert taken(prefetch, 3) == [(0, 0), (0, 1), (0, 2)]
    assert taken(prefetch, 3) == [(1, 7), (1, 8), (0, 3)]
    assert taken(prefetch, 3) == [(0, 4)]
    assert taken(prefetch, 3) == []


def test_what_is_handed_out_is_settled_once() -> None:
    prefetch = Prefetch()
    first, second = filled(prefetch, 0, range(5)), filled(prefetch, 1, range(5))
    prefetch.take(7)
    assert list(prefetch.settle()) == [(first, range(5)), (second, range(2))]
    assert list(prefetch.settle()) == []


def test_what_is_taken_back_is_handed_out_again_and_not_settled() -> None:
    prefetch = Prefetch()
    first, second = filled(prefetch, 0, range(5)), filled(prefetch, 1, range(5))
    assert taken(prefetch, 7) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)]
    second.move_to(QueueState.DROPPED)
    prefetch.take_back()
    assert list(prefetch.settle()) == []
    assert prefetch.position(first) == 0
    assert taken(prefetch, 10) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


def test_what_is_dropped_in_hand_is_never_settled() -> None:
    prefetch = Prefetch()
    filled(prefetch, 0, range(5))
    prefetch.take(5)
    prefetch.drop_in_hand()
    assert list(prefetch.settle()) == []


def test_the_position_is_the_next_message_that_will_be_handed_out() -> None:
    """Behind the last one it is where the next pull begins, whatever was filtered out before."""
    prefetch = Prefetch()
    process_queue = filled(prefetch, 0, range(3, 5))
    assert prefetch.position(process_queue) == 3
    prefetch.take(1)
    assert prefetch.position(process_queue) == 4
    prefetch.take(1)
    process_queue.put([], 40)
    assert prefetch.position(process_queue) == 40


def test_a_paused_queue_hands_out_nothing_and_keeps_what_it_has() -> None:
    prefetch = Prefetch()
    process_queue = filled(prefetch, 0, range(2))
    process_queue.pause()
    assert taken(prefetch, 9) == []
    process_queue.resume()
    assert taken(prefetch, 9) == [(0, 0), (0, 1)]


def test_of_a_queue_that_is_given_up_nothing_is_handed_out() -> None:
    """What is in hand still counts until the queue is gone for good."""
    prefetch = Prefetch()
    process_queue = filled(prefetch, 0, range(4))
    prefetch.take(1)
    process_queue.move_to(QueueState.RELEASING)
    assert taken(prefetch, 9) == []
    assert list(prefetch.settle()) == [(process_queue, range(1))]


def test_what_is_in_hand_of_a_queue_that_is_gone_does_not_count() -> None:
    prefetch = Prefetch()
    process_queue = filled(prefetch, 0, range(4))
    prefetch.take(1)
    process_queue.move_to(QueueState.DROPPED)
    prefetch.left(process_queue)
    assert list(prefetch.settle()) == []
    # nothing of it waits any more
    assert prefetch.position(process_queue) == 4
