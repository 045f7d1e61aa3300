"""Bring pulled messages to the listeners of a member, each to the listener of its topic.

Behaviour
- A message that comes back through the retry topic goes to the listener of the topic that it was
  first sent to. If the member does not listen to that topic any more, its first listener gets it.
- A message that cannot be decompressed goes to the dead letters: it would fail at every member.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.send_back import returns
from ogive.client.consumer.subscription import MemberContext
from ogive.client.consumer.workers import Callers
from ogive.client.listener import AnyListener
from ogive.client.routes import MASTER_ID
from ogive.errors import CompressionUnavailable, ProtocolError
from ogive.model import TOOLS_GROUP, MessageExt, MessageQueue, retry_topic
from ogive.wire.compression import decompress
from ogive.wire.message import DamagedMessage, NoRecord, measure

log = logging.getLogger(__name__)

DEAD_LETTER_LEVEL: Final = -1


class Receiver(Protocol):
    """Receiver of the messages of process queues."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """Take *messages*, which were put into the process queue.

        An empty *messages* means that the queue's lock was renewed: go on with what is there.
        """
        ...

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while the queue cannot be given to another member without repeats."""
        ...


class ConsumeService(Receiver, Protocol):
    """Protocol of a service that brings the messages of process queues to one listener."""

    def start(self) -> None: ...

    async def stop(self, timeout_s: float, callers: Callers | None) -> None:
        """Begin no new call; wait for the running ones. *callers*: see Workers.stop."""
        ...


class TopicDelivery:
    """Services of one member by topic; itself a service of all its topics.

    Messages that are rejected go by the rules of *listener*.
    """

    def __init__(self, group: MemberContext, listener: AnyListener, config: ConsumerConfig) -> None:
        self.services: dict[str, ConsumeService] = {}
        self._group = group
        self._retry_topic = retry_topic(group.name)
        self._rejected = returns(group, listener, config, self._reject)

    def start(self) -> None:
        for service in self.services.values():
            service.start()

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        _, _, has_compressed = measure(messages)
        if has_compressed:
            self._reject(process_queue, [one for one in messages if one.is_compressed])
            messages = [message for message in messages if not message.is_compressed]
        topic = process_queue.queue.topic
        if len(self.services) == 1:
            next(iter(self.services.values())).submit(process_queue, messages)
        elif topic != self._retry_topic:
            self.services[topic].submit(process_queue, messages)
        else:
            self._submit_retries(process_queue, messages)

    def _submit_retries(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        if not messages:
            # the lock was renewed: each goes on with what it has
            for service in self.services.values():
                service.submit(process_queue, ())
            return
        by_topic: dict[str, list[MessageExt]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        fallback = next(iter(self.services))
        for topic, ours in by_topic.items():
            if topic not in self.services:
                log.warning(
                    "%d retries of topic %s, for which %s has no listener, go to its listener of "
                    "%s",
                    len(ours),
                    topic,
                    self._group.name,
                    fallback,
                )
            self.services.get(topic, self.services[fallback]).submit(process_queue, ours)

    def _reject(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            why = "it cannot be read"
            try:
                decompress(message.body, message.sys_flag)
            except (ProtocolError, CompressionUnavailable) as exc:
                why = f"{why}: {exc}"
                log.error(
                    "%s/%d cannot be decoded and goes to the dead letters of %s: %s",
                    message.queue,
                    message.queue_offset,
                    self._group.name,
                    exc,
                )
            self._rejected.give(process_queue, message, DEAD_LETTER_LEVEL, why)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return self._rejected.is_busy(process_queue) or any(
            service.is_busy(process_queue) for service in self.services.values()
        )

    async def stop(self, timeout_s: float, callers: Callers | None) -> None:
        ending = [service.stop(timeout_s, callers) for service in self.services.values()]
        await asyncio.gather(*ending, self._rejected.close(timeout_s))


# Handling of damage: messages whose body does not match its checksum, and bytes that are no
# message.
#
# Behaviour of a message with a wrong body
# - It is not delivered, and not copied to any other topic: the copy would get a valid checksum,
#   and look intact.
# - The messages before it are read once more, without it, and delivered. Then it is read alone,
#   several times: damage in transit does not repeat itself.
# - If READINGS readings are equal, the broker has stored it like that. Reading again would not
#   help, so the queue continues behind it, and an ERROR in the log names the message that was
#   skipped.
# - If readings differ, the damage is in transit or in memory: the queue waits for an intact one.
# - Only readings from the master count: what is damaged on a slave's disk may be intact on the
#   master, which may be unreachable for a while.
# - Where the queue continues is not taken from the damaged record, as no checksum covers its
#   offset. A reading that counts asked for one message and got this one alone, and the broker's
#   next offset comes from its consume queue.
#
# Behaviour of bytes from which no record can be cut, and of a record whose own offset does not fit
# its place in the answer
# - The messages before them are read once more, without them, and delivered.
# - They are never skipped: nobody can tell how many messages they are. The queue waits in front of
#   them and asks the master again, with pauses that double up to PAUSE_LIMIT_S. (Java's client
#   silently drops them and continues behind the whole answer.)
# - From the second time on an ERROR in the log says so, once a minute, and what to do; the
#   member's running info names the queue.

READINGS: Final = 5
PAUSE_LIMIT_S: Final = 30.0
REPORT_EVERY_S: Final = 60.0


class CorruptMessages:
    """Handling of damaged messages and unreadable bytes in one queue.

    *log* is the logger of the caller.
    """

    def __init__(
        self, group: MemberContext, queue: MessageQueue, retry_s: float, log: logging.Logger
    ) -> None:
        self._group = group
        self._queue = queue
        self._log = log
        self._retry_s = retry_s
        self.pause_s = retry_s
        """Pause before the next pull, which asks the master."""
        self.stuck_at: int | None = None
        """The offset of bytes that are no message, if the last pull brought such."""
        self._report_at = 0.0
        self._most: int | None = None
        # the damaged message, the last reading of it that counts, and how many were equal to that
        self._record = (-1, -1)
        self._last: tuple[int, ...] = ()
        self._count = 0

    def limit(self, max_messages: int) -> int:
        """Return the number of messages for the next pull."""
        return max_messages if self._most is None else min(self._most, max_messages)

    def was_right(self) -> None:
        """Record a pull that brought nothing damaged."""
        self._most = None
        self._count = 0
        self._last = ()
        self.stuck_at = None

    def after(self, asked: int, failure: DamagedMessage | NoRecord, now: float) -> int | None:
        """Record and log what a pull at *asked* brought.

        Return the offset at which the queue continues, or None: pull again after ``pause_s``.
        """
        asked_for_one = self._most == 1
        # the next pull asks for the messages in front, or else for the first one alone
        self._most = max(1, len(failure.intact))
        if isinstance(failure, NoRecord):
            self._wait(asked, failure, now)
            return None
        self.stuck_at = None
        record = (failure.queue_offset, failure.commitlog_offset)
        counts = asked_for_one and failure.alone and failure.broker_id == MASTER_ID
        if counts and failure.next_offset > asked:
            reading = (asked, failure.next_offset, *record, failure.read_crc)
            self._count = self._count + 1 if reading == self._last else 1
            self._last = reading
            if self._count >= READINGS:
                self._log.error("%s", skipped(self._queue, asked, failure, self._group.name))
                self.was_right()
                return failure.next_offset
        level = logging.DEBUG if record == self._record else logging.WARNING
        self._log.log(level, "%s: it is read again, from the master", failure)
        self._record, self.pause_s = record, self._retry_s
        return None

    def _wait(self, at: int, broken: NoRecord, now: float) -> None:
        level, text = logging.DEBUG, "it is read again"
        if at != self.stuck_at:
            level = logging.WARNING
            self.stuck_at, self.pause_s, self._report_at = at, self._retry_s, now
        else:
            self.pause_s = min(2 * self.pause_s, max(self._retry_s, PAUSE_LIMIT_S))
            if now >= self._report_at:
                self._report_at = now + REPORT_EVERY_S
                level, text = logging.ERROR, no_way_on(self._queue, at, self._group)
        self._log.log(level, "%s; %s", broken, text)

    def final(self, asked: int, failure: DamagedMessage | NoRecord) -> DamagedMessage | NoRecord:
        """Return *failure* for a caller that waits no longer, with the way out."""
        if isinstance(failure, DamagedMessage):
            return failure
        return NoRecord(f"{failure}; {no_way_on(self._queue, asked, self._group)}")


def no_way_on(queue: MessageQueue, at: int, group: MemberContext) -> str:
    """Return the log text for a queue that is stuck."""
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


def skipped(queue: MessageQueue, asked: int, damaged: DamagedMessage, group: str) -> str:
    """Return the log text for a damaged message that is skipped."""
    place = damaged.queue_offset if asked <= damaged.queue_offset < damaged.next_offset else asked
    return (
        f"{queue}/{place} is damaged in its broker's store, and {group} goes on without it: "
        f"{damaged}, {READINGS} times "
        "with the same bytes. No listener gets it. Look at the broker's disk and log (`ogive store "
        "verify` where its data is), and have "
        "the message sent again by whoever sent it"
    )
