"""A pulled message whose body does not match its checksum.

Behaviour
- It is given to nobody, and put into no other topic either: a copy there would get a checksum of its own, and look whole.
- What stands before it is delivered. It is read again, each time from the master: damage on the way does not come twice alike.
- Bytes that are the same in READINGS readings are what the broker has stored. No further reading mends them, so the queue goes on behind
  them; the log says at the level ERROR which message was passed over.
- Readings that differ are damage on the way, or in a memory: the queue waits until one is right.
"""

from typing import Final

from ogive.model import MessageQueue
from ogive.wire.message import DamagedMessage

READINGS: Final = 5


class Readings:
    """What the last readings of one queue's damaged message had in common."""

    def __init__(self) -> None:
        self.is_news = False  # the last reading was the first of its message
        self._count = 0
        self._offset = self._crc = -1

    def show_what_is_stored(self, offset: int, read_crc: int) -> bool:
        """Note one more reading; True if there have been enough that were the same."""
        self.is_news = offset != self._offset
        self._count = self._count + 1 if (offset, read_crc) == (self._offset, self._crc) else 1
        self._offset, self._crc = offset, read_crc
        return self._count >= READINGS


def passed_over(queue: MessageQueue, damaged: DamagedMessage, group: str) -> str:
    """What an operator is told."""
    return (
        f"{queue}/{damaged.queue_offset} is damaged in its broker's store, and {group} goes on without it: {damaged}, {READINGS} times "
        "with the same bytes. No listener gets it. Look at the broker's disk and log (`ogive store verify` where its data is), and have "
        "the message sent again by whoever sent it"
    )
