"""The queues that a producer knows, and choosing one for a message."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ogive.client.sending.outgoing import Lane, Outgoing, Target, Topic
from ogive.model import MessageQueue
from ogive.wire.message import java_hash

MAX_TOPICS: Final = 10_000


class Destinations:
    """Topics by name, with their targets, and lanes by the name of their broker.

    Each is made when it is first asked for.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_lane: Callable[[str], Lane],
        make_target: Callable[[MessageQueue, Lane, int], Target],
    ) -> None:
        self._loop = loop
        self._make_lane = make_lane
        self._make_target = make_target
        self.topics: dict[str, Topic] = {}
        self.lanes: dict[str, Lane] = {}

    # --- what there is ----------------------------------------------------------------------------

    def add_topic(self, name: str) -> Topic:
        """Room for it is made by forgetting topics with which nothing is going on."""
        if len(self.topics) >= MAX_TOPICS:
            for old in [topic.name for topic in self.topics.values() if topic.idle][
                : MAX_TOPICS // 10
            ]:
                del self.topics[old]
        topic = self.topics[name] = Topic(name)
        return topic

    def set_queues(self, topic: Topic, queues: Iterable[MessageQueue]) -> None:
        """*queues* are those that the topic's route shows now."""
        known = topic.left | topic.by_queue
        # a new queue gets its share, and not all until it has caught up
        most = max((target.sent for target in known.values()), default=0)
        topic.by_queue = {
            queue: known.get(queue) or self._make_target(queue, self._lane(queue.broker_name), most)
            for queue in queues
        }
        topic.left = {
            queue: target
            for queue, target in known.items()
            if queue not in topic.by_queue and not target.idle
        }
        topic.targets = list(topic.by_queue.values()) or None

    def _lane(self, broker_name: str) -> Lane:
        lane = self.lanes.get(broker_name)
        if lane is None:
            lane = self.lanes[broker_name] = self._make_lane(broker_name)
        return lane

    def topics_on(self, lane: Lane) -> list[str]:
        """The topics that have, or had, queues there."""
        return [
            topic.name
            for topic in self.topics.values()
            if any(target.lane is lane for target in topic.all_targets)
        ]

    def drop_finished(self) -> None:
        """Forget the messages whose time was up, wherever they wait."""
        holders: list[Topic | Lane] = [*self.topics.values(), *self.lanes.values()]
        for holder in holders:
            if any(outgoing.finished for outgoing in holder.backlog):
                holder.backlog = deque(
                    outgoing for outgoing in holder.backlog if not outgoing.finished
                )
        for lane in self.lanes.values():
            lane.merger.drop_finished()
        for topic in self.topics.values():
            for target in topic.all_targets:
                if target.ordered is not None:
                    target.ordered.drop_finished()

    # --- choosing ---------------------------------------------------------------------------------

    def next_target(self, topic: Topic, avoid: Lane | None = None) -> Target:
        """Round robin over the queues of brokers that can be reached and are not slow, other
        brokers than *avoid* first.
        """
        targets = topic.targets
        assert targets is not None
        count, start = len(targets), topic.take_turn()
        target = targets[start % count]
        if target.lane.down is None and not target.lane.avoid_until and target.lane is not avoid:
            return target
        now = self._loop.time()
        ahead = [targets[(start + i) % count] for i in range(count)]
        ahead = [target for target in ahead if target.lane.down is None] or ahead
        ahead = [target for target in ahead if target.lane is not avoid] or ahead
        return next((target for target in ahead if target.lane.avoid_until <= now), ahead[0])

    def free_target(self, name: str, now: float) -> Target | None:
        """The next queue of topic *name*, if its broker can be sent to at once. From any thread.

        *now* is a time of ``time.monotonic``: the loop's clock, which itself shows when the loop
        was last awake.
        """
        topic = self.topics.get(name)
        targets = None if topic is None or topic.backlog else topic.targets
        if topic is None or not targets:
            return None
        target = targets[topic.take_turn() % len(targets)]
        lane = target.lane
        return (
            target
            if lane.down is None and lane.avoid_until <= now and lane.ready() is not None
            else None
        )

    def can_be_reached(self, name: str) -> bool:
        """Whether topic *name* has queues of a broker that is not known to be away."""
        topic = self.topics.get(name)
        return topic is not None and any(target.lane.down is None for target in topic.targets or ())


def pinned_target(topic: Topic, outgoing: Outgoing) -> Target | None:
    """The one queue that *outgoing* must go to; None if the topic has no such queue."""
    if outgoing.queue is not None:
        return topic.by_queue.get(outgoing.queue)
    assert outgoing.sharding_key is not None
    assert topic.targets is not None
    # SelectMessageQueueByHash.java
    return topic.targets[abs(java_hash(outgoing.sharding_key)) % len(topic.targets)]


def targets_on(topic: Topic, lane: Lane) -> list[Target]:
    """The topic's queues on that broker; none if it has left."""
    return [target for target in topic.targets or () if target.lane is lane]
