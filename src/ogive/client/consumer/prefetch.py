"""Messages that are pulled ahead of the application's polls."""

from collections import deque
from collections.abc import Iterator, Sequence

from ogive.client.consumer.process_queue import ProcessQueue
from ogive.model import MessageExt


class Prefetch:
    """Pulled messages that were not returned yet, by queue, and those that the last ``take``
    returned.

    Nothing is returned of a queue that is given up or paused. The process queues bound the size:
    both kinds of messages count there as unfinished.
    """

    def __init__(self) -> None:
        # the queue that has waited longest comes first
        self._ready: dict[ProcessQueue, deque[MessageExt]] = {}
        self._in_hand: dict[ProcessQueue, list[MessageExt]] = {}

    def put(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._ready.setdefault(process_queue, deque()).extend(messages)

    def take(self, max_messages: int) -> list[MessageExt]:
        """Hand out: from each queue in order, and from all queues in turn."""
        taken: list[MessageExt] = []
        for process_queue in [one for one in self._ready if one.active and not one.paused]:
            if len(taken) == max_messages:
                break
            ready = self._ready.pop(process_queue)
            batch = [ready.popleft() for _ in range(min(len(ready), max_messages - len(taken)))]
            if ready:
                # behind the others now
                self._ready[process_queue] = ready
            self._in_hand[process_queue] = batch
            taken += batch
        return taken

    def settle(self) -> Iterator[tuple[ProcessQueue, list[int]]]:
        """The offsets of what was handed out, of queues that still count; from now on it is not in
        hand any more.
        """
        in_hand, self._in_hand = self._in_hand, {}
        return (
            (one, [message.queue_offset for message in batch])
            for one, batch in in_hand.items()
            if not one.dropped
        )

    def take_back(self) -> None:
        """What was handed out last did not arrive: it is handed out again."""
        in_hand, self._in_hand = self._in_hand, {}
        for process_queue, batch in in_hand.items():
            if not process_queue.dropped:
                self._ready.setdefault(process_queue, deque()).extendleft(reversed(batch))

    def has_in_hand(self, process_queue: ProcessQueue) -> bool:
        """Return True if the last ``take`` returned messages of the queue, which are not settled
        yet.
        """
        return process_queue in self._in_hand

    def drop_in_hand(self) -> None:
        """What was handed out last will never be finished."""
        self._in_hand.clear()

    def discard_dropped(self) -> None:
        """Free what was pulled from queues that are not held any more."""
        self._ready = {
            process_queue: ready
            for process_queue, ready in self._ready.items()
            if not process_queue.dropped
        }

    def position(self, process_queue: ProcessQueue) -> int:
        """The offset that is handed out next."""
        ready = self._ready.get(process_queue)
        return ready[0].queue_offset if ready else process_queue.pull_offset
