"""A pulled message whose body does not match its checksum, and bytes that are no message at all.

Behaviour of a message with a wrong body
- It is not delivered, and not copied to any other topic: the copy would get a valid checksum, and
  look intact.
- The messages before it are read once more, without it, and delivered. Then it is read alone,
  several times: damage in transit does not repeat itself.
- If READINGS readings are equal, the broker has stored it like that. Reading again would not help,
  so the queue continues behind it, and an ERROR in the log names the message that was skipped.
- If readings differ, the damage is in transit or in memory: the queue waits for an intact one.
- Only readings from the master count: what is damaged on a slave's disk may be intact on the
  master, which may be unreachable for a while.
- Where the queue continues is not taken from the damaged record, as no checksum covers its offset.
  A reading that counts asked for one message and got this one alone, and the broker's next offset
  comes from its consume queue.

Behaviour of bytes from which no record can be cut, and of a record whose own offset does not fit
its place in the answer
- The messages before them are read once more, without them, and delivered.
- They are never skipped: nobody can tell how many messages they are. The queue waits in front of
  them and asks the master again, with pauses that double up to PAUSE_LIMIT_S. (Java's client
  silently drops them and continues behind the whole answer.)
- From the second time on an ERROR in the log says so, once a minute, and what to do; the member's
  running info names the queue.
"""

import logging
from typing import Final

from ogive.client.consumer.subscription import MemberContext
from ogive.client.routes import MASTER_ID
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.wire.message import DamagedMessage

READINGS: Final = 5
PAUSE_LIMIT_S: Final = 30.0
REPORT_EVERY_S: Final = 60.0


class Readings:
    """Common result of the last reads of one queue's damaged message, and the size of the next
    pull.
    """

    def __init__(self) -> None:
        # the last reading was the first of its message
        self.is_news = False
        self._most: int | None = None
        self._count = 0
        self._record = (-1, -1)
        self._last: tuple[int, ...] = ()

    def limit(self, max_messages: int) -> int:
        """Return the number of messages for the next pull."""
        return max_messages if self._most is None else min(self._most, max_messages)

    def only(self, intact: int) -> None:
        """The next pull asks for the *intact* messages in front, or else for the first one
        alone.
        """
        self._most = max(1, intact)

    def was_right(self) -> None:
        """A pull brought nothing damaged."""
        self._most, self._count, self._last = None, 0, ()

    def go_on_at(self, asked: int, damaged: DamagedMessage) -> int | None:
        """Note what a pull at *asked* returned.

        Once enough readings were equal: the offset at which the queue continues.
        """
        record = (damaged.queue_offset, damaged.commitlog_offset)
        self.is_news = record != self._record
        self._record = record
        asked_for_one = self._most == 1
        self.only(len(damaged.intact))
        if (
            not (asked_for_one and damaged.alone)
            or damaged.broker_id != MASTER_ID
            or damaged.next_offset <= asked
        ):
            return None
        reading = (asked, damaged.next_offset, *record, damaged.read_crc)
        self._count = self._count + 1 if reading == self._last else 1
        self._last = reading
        if self._count < READINGS:
            return None
        self.was_right()
        return damaged.next_offset


class Stuck:
    """State of one queue that waits at bytes that are no message: the place, the pause, the next
    log line.
    """

    def __init__(self, retry_s: float) -> None:
        self.at: int | None = None
        self.pause_s = retry_s
        self._retry_s = retry_s
        self._say_at = 0.0

    def again(self, at: int, now: float) -> int:
        """Note that a pull at *at* brought such bytes; the level for the log."""
        if at != self.at:
            self.at, self.pause_s, self._say_at = at, self._retry_s, now
            return logging.WARNING
        self.pause_s = min(2 * self.pause_s, max(self._retry_s, PAUSE_LIMIT_S))
        if now < self._say_at:
            return logging.DEBUG
        self._say_at = now + REPORT_EVERY_S
        return logging.ERROR

    def was_right(self) -> None:
        """A pull brought messages only, or none."""
        self.at = None


def no_way_on(queue: MessageQueue, at: int, group: MemberContext) -> str:
    """Return the text for operators."""
    if group.name == TOOLS_GROUP:
        way = f"seek to {at + 1}, or further on"
    elif group.broadcast:
        way = "stop the member, and put a higher offset into its file of offsets"
    else:
        place = f"--broker {queue.broker_name} --queue {queue.queue_id} --to {at + 1}"
        way = (
            f"`ogive group reset {group.name} {queue.topic} {place}`, or further on (mqadmin: "
            "resetOffsetByTime with -q and -o)"
        )
    return (
        f"{queue} stands still for {group.name} in front of offset {at}, and is read again until "
        "its broker answers with messages. Look at "
        "that broker's disk and log (`ogive store verify` where its data is). To give up what "
        f"cannot be read: {way}"
    )


def passed_over(queue: MessageQueue, asked: int, damaged: DamagedMessage, group: str) -> str:
    """Return the text for operators."""
    place = damaged.queue_offset if asked <= damaged.queue_offset < damaged.next_offset else asked
    return (
        f"{queue}/{place} is damaged in its broker's store, and {group} goes on without it: "
        f"{damaged}, {READINGS} times "
        "with the same bytes. No listener gets it. Look at the broker's disk and log (`ogive store "
        "verify` where its data is), and have "
        "the message sent again by whoever sent it"
    )
