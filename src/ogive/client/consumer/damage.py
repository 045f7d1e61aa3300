"""A pulled message whose body does not match its checksum.

Behaviour
- It is given to nobody, and put into no other topic either: a copy there would get a checksum of its own, and look whole.
- What stands before it is read once more, without it, and delivered. Then it is read by itself, again and again: damage on the way does not
  come twice alike.
- Bytes that are the same in READINGS readings are what the broker has stored. No further reading mends them, so the queue goes on behind
  them; the log says at the level ERROR which message was passed over.
- Readings that differ are damage on the way, or in a memory: the queue waits until one is right.
- Only the master's readings count: what a slave has on a bad disk may be whole on the master, whose route may be gone for a while.
- No field of a damaged record says where the queue goes on: no checksum covers its offset. A reading that counts asked for one message and
  brought this one alone, and what the broker says about where to go on comes from its consume queue.
"""

from typing import Final

from ogive.client.routes import MASTER_ID
from ogive.model import MessageQueue
from ogive.wire.message import DamagedMessage

READINGS: Final = 5


class Readings:
    """What the last readings of one queue's damaged message had in common, and how much the next pull may ask for."""

    def __init__(self) -> None:
        self.is_news = False  # the last reading was the first of its message
        self._most: int | None = None
        self._count = 0
        self._record = (-1, -1)
        self._last: tuple[int, ...] = ()

    def limit(self, max_messages: int) -> int:
        """Of how many messages the next pull is."""
        return max_messages if self._most is None else min(self._most, max_messages)

    def was_right(self) -> None:
        """A pull brought nothing damaged."""
        self._most, self._count, self._last = None, 0, ()

    def go_on_at(self, asked: int, damaged: DamagedMessage) -> int | None:
        """Note what a pull at *asked* brought; where the queue goes on, once enough readings were the same."""
        record = (damaged.queue_offset, damaged.commitlog_offset)
        self.is_news = record != self._record
        self._record = record
        asked_for_one, self._most = self._most == 1, max(1, len(damaged.intact))
        if not (asked_for_one and damaged.alone) or damaged.broker_id != MASTER_ID or damaged.next_offset <= asked:
            return None
        reading = (asked, damaged.next_offset, *record, damaged.read_crc)
        self._count = self._count + 1 if reading == self._last else 1
        self._last = reading
        if self._count < READINGS:
            return None
        self.was_right()
        return damaged.next_offset


def passed_over(queue: MessageQueue, asked: int, damaged: DamagedMessage, group: str) -> str:
    """What an operator is told."""
    place = damaged.queue_offset if asked <= damaged.queue_offset < damaged.next_offset else asked
    return (
        f"{queue}/{place} is damaged in its broker's store, and {group} goes on without it: {damaged}, {READINGS} times "
        "with the same bytes. No listener gets it. Look at the broker's disk and log (`ogive store verify` where its data is), and have "
        "the message sent again by whoever sent it"
    )
