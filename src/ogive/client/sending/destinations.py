"""Queues and brokers that a producer knows, and the choice of a queue for a message."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ogive.client.routes import choose_queue
from ogive.client.sending.pending import Lane, PendingSend, PendingTopic, Target
from ogive.errors import (
    NoRoute,
)
from ogive.model import MessageQueue

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
        self.topics: dict[str, PendingTopic] = {}
        self.lanes: dict[str, Lane] = {}

    # --- what there is ----------------------------------------------------------------------------

    def add_topic(self, name: str) -> PendingTopic:
        """Add a topic. Forget a tenth of the idle ones if there are too many."""
        if len(self.topics) >= MAX_TOPICS:
            for old in [topic.name for topic in self.topics.values() if topic.idle][
                : MAX_TOPICS // 10
            ]:
                del self.topics[old]
        topic = self.topics[name] = PendingTopic(name)
        return topic

    def set_queues(self, topic: PendingTopic, queues: Iterable[MessageQueue]) -> None:
        """Take over *queues*, which the topic's route has now."""
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
        """Return the topics that have, or had, queues on that broker."""
        return [
            topic.name
            for topic in self.topics.values()
            if any(target.lane is lane for target in topic.all_targets)
        ]

    def drop_finished(self) -> None:
        """Forget the messages whose time was up, in all backlogs, queues and lanes."""
        holders: list[PendingTopic | Lane] = [*self.topics.values(), *self.lanes.values()]
        for holder in holders:
            if any(pending.finished for pending in holder.backlog):
                holder.backlog = deque(
                    pending for pending in holder.backlog if not pending.finished
                )
        for lane in self.lanes.values():
            lane.accumulator.drop_finished()
        for topic in self.topics.values():
            for target in topic.all_targets:
                if target.ordered is not None:
                    target.ordered.drop_finished()

    # --- choosing ---------------------------------------------------------------------------------

    def next_target(self, topic: PendingTopic, avoid: Lane | None = None) -> Target:
        """Return the next queue, round robin, of a broker that can be reached and is not slow.
        Brokers other than *avoid* come first.
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

    def can_be_reached(self, name: str) -> bool:
        """Return True if topic *name* has queues of a broker that is not known to be away."""
        topic = self.topics.get(name)
        return topic is not None and any(target.lane.down is None for target in topic.targets or ())


def pinned_target(topic: PendingTopic, pending: PendingSend) -> Target | None:
    """Return the one queue that *pending* must go to; None if the topic has no such queue."""
    if pending.queue is not None:
        return topic.by_queue.get(pending.queue)
    assert pending.sharding_key is not None
    assert topic.targets is not None
    return choose_queue(pending.sharding_key, topic.targets)


def no_such_queue(topic: PendingTopic, pending: PendingSend) -> NoRoute:
    """Return the error for a message whose queue the topic does not have."""
    last: dict[str, int] = {}
    for queue in sorted(topic.by_queue):
        last[queue.broker_name] = queue.queue_id
    there = ", ".join(
        f"{'0' if end == 0 else f'0 to {end}'} on {broker}" for broker, end in last.items()
    )
    return NoRoute(f"{pending.queue} is not a writable queue of {topic.name}, which has {there}")


def targets_on(topic: PendingTopic, lane: Lane) -> list[Target]:
    """Return the topic's queues on that broker; none if it has left."""
    return [target for target in topic.targets or () if target.lane is lane]
