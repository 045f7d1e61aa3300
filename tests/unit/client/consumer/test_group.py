"""What the parts of one group's member share."""

from typing import Any, cast

from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.consumer.process_queue import ProcessQueue, QueueState
from ogive.client.consumer.running_info import Statistics
from ogive.client.consumer.subscription import MemberContext
from ogive.model import MessageQueue
from ogive.testing import message

QUEUE = MessageQueue("Orders", "broker-a", 0)


def test_what_ends_after_its_queue_was_dropped_moves_no_progress() -> None:
    """A message is on its way to the dead letters when the group's offset is put back: the queue is
    held anew, from there on.
    """
    nobody = cast(Any, None)
    store = RemoteOffsetStore(nobody)
    group = MemberContext("billing", nobody, nobody, store, Statistics(0.0))
    before = ProcessQueue(QUEUE, 7)
    late, done = message("Orders", b"", queue_offset=7), message("Orders", b"", queue_offset=8)
    before.put([late, done], 9)
    before.move_to(QueueState.DROPPED)
    store.update(QUEUE, 2)
    group.finish(before, [done.queue_offset])
    group.finish_message(before, late)
    assert store.read(QUEUE) == 2
    again = ProcessQueue(QUEUE, 2)
    again.put([message("Orders", b"", queue_offset=2)], 3)
    group.finish(again, [2])
    assert store.read(QUEUE) == 3
