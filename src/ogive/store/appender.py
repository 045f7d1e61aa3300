"""The owner's half of writing: assign offsets, and build records into the group that is being
filled.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import repeat

from ogive.errors import InvalidOption
from ogive.store.clock import now_ms
from ogive.store.consumequeue import ConsumeQueue, names_a_directory
from ogive.store.queue_types import BatchQueue, QueueKinds, messages_in, with_first_offset
from ogive.store.record import (
    BLANK,
    BLANK_BYTES,
    ENTRY,
    build_records,
    delay_level,
    record_size,
    topic_field,
)
from ogive.store.types import (
    Messages,
    NewBatch,
    NewMessage,
    PutDone,
    PutResult,
    QueueKey,
    StoreConfig,
)
from ogive.store.writer import CommitGroup
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAGIC_BLANK


class Appender:
    """Next offsets of the log and its queues, and the unfinished groups. Owner thread only."""

    def __init__(
        self,
        config: StoreConfig,
        queues: dict[QueueKey, ConsumeQueue],
        *,
        segment_bytes: int,
        kinds: QueueKinds,
        end: int,
        store_timestamp_ms: int,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._config = config
        self.queues = queues
        self._segment_bytes = segment_bytes
        self._clock_ms = clock_ms
        self._topics = Counter(topic for topic, _ in queues)
        self._kinds = kinds
        self._with_crc = config.record_crc
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        # formed or with the writer
        self.waiting_bytes = 0
        # with the writer, in order
        self.waiting: deque[CommitGroup] = deque()
        self.forming: CommitGroup | None = None

    def append(self, messages: Messages, done: PutDone) -> int:
        """Place *messages*, all or none, in one segment, as bytes of the current group.

        Raises InvalidOption for messages that no record, or no segment, can hold.
        """
        now = self._clock_ms()
        # never back, whatever the clock does
        if now > self.store_timestamp_ms:
            self.store_timestamp_ms = now
        whole = 0
        if len(messages) == 1:
            one = messages[0]
            queues = [self._queue(_key_of(one))]
            if not queues[0].usual:
                messages, whole = _whole_batch(one, queues[0])
        else:
            # without a call for each
            keys = [one[:2] if isinstance(one, NewMessage) else one.shared[:2] for one in messages]
            queues = [self._queue(key) for key in dict.fromkeys(keys)]
        room = self._segment_bytes - self.end % self._segment_bytes
        try:
            records, entries, keyed, results = build_records(
                tuple(messages),
                tuple([(queue.place, queue.next_offset) for queue in queues]),
                self.end,
                room - BLANK_BYTES,
                self.end + room,
                self.store_timestamp_ms,
                self._with_crc,
                PutResult,
            )
        except ValueError as exc:
            raise InvalidOption(str(exc)) from None
        group = self._group_with_room(len(records))
        for queue, of_queue in zip(queues, entries):  # noqa: B905  as many
            count = whole or len(of_queue) // ENTRY.size
            if of_queue:
                if not queue.usual:
                    of_queue = self._own_entries(queue, of_queue, messages, whole)
                group.entries.append((queue, of_queue, count))
                queue.next_offset += count
        group.pieces.append(records)
        group.keyed += keyed
        group.waiters.append((done, results))
        self.waiting_bytes += len(records)
        self.end = group.end = self.end + len(records)
        return group.end - group.start

    def _queue(self, key: QueueKey) -> ConsumeQueue:
        return self.queues.get(key) or self._new_queue(key)

    def _own_entries(
        self, queue: ConsumeQueue, entries: bytes, messages: Messages, whole: int
    ) -> bytes:
        """Return the entries of a queue for which build_records() makes none, for those of
        *messages* that are for this queue.

        *whole* is the number of messages if they were sent as one record.
        """
        own: list[bytes] = []
        levels = _delay_levels(messages, queue.key) if queue.scheduled else repeat(0)
        places = enumerate(ENTRY.iter_unpack(entries), queue.next_offset)
        for (offset, (position, size, tags_code)), level in zip(places, levels, strict=False):
            if level > 0:
                tags_code = self.store_timestamp_ms + self._config.delay_levels.delay_ms(level)
            own.append(
                queue.entry(position, size, tags_code, self.store_timestamp_ms, offset, whole or 1)
            )
        return b"".join(own)

    def check_fits(self, message: NewMessage, spare_bytes: int, topic: str) -> None:
        """See MessageStore."""
        field = topic_field(topic.encode())
        try:
            size = record_size(message, field, self._with_crc)
        except ValueError as exc:
            raise InvalidOption(str(exc)) from None
        if size + spare_bytes + BLANK_BYTES > self._segment_bytes:
            raise self._too_large(size + spare_bytes)

    def take(self) -> CommitGroup | None:
        """Return the current group, which counts as handed over from now on."""
        group, self.forming = self.forming, None
        if group is not None:
            self.waiting.append(group)
        return group

    def finish(self, groups: Sequence[CommitGroup]) -> None:
        """Drop *groups*, the oldest ones, which are written."""
        for group in groups:
            if self.waiting.popleft() is not group:
                raise AssertionError("groups end in the order in which they were handed over")
            self.waiting_bytes -= group.end - group.start

    def take_back(self) -> list[CommitGroup]:
        """Undo every unfinished group: their offsets, which no reader has seen, are assigned
        again.
        """
        groups = list(self.waiting)
        if self.forming is not None:
            groups.append(self.forming)
        if groups:
            self.end = groups[0].start
        for group in groups:
            for queue, _, _ in group.entries:
                queue.next_offset = queue.max_offset
        self.waiting.clear()
        self.forming, self.waiting_bytes = None, 0
        return groups

    def _new_queue(self, key: QueueKey) -> ConsumeQueue:
        if not names_a_directory(key[0]):
            raise InvalidOption(f"topic {key[0][:64]!r} cannot name a directory")
        queue = self.queues[key] = self._kinds.of(key[0]).new(key)
        self._topics[key[0]] += 1
        return queue

    def has_topic(self, topic: str) -> bool:
        """Return True if *topic* has queues."""
        return topic in self._topics

    def forget_topic(self, topic: str) -> list[ConsumeQueue]:
        """Drop the queues of a topic."""
        if not self._topics.pop(topic, 0):
            return []
        return [self.queues.pop(key) for key in [key for key in self.queues if key[0] == topic]]

    def _group_with_room(self, total: int) -> CommitGroup:
        """Return the current group. End the segment first if *total* bytes do not fit into it any
        more.
        """
        group = self.forming
        if group is None:
            pieces: list[bytes] = []
            group = self.forming = CommitGroup(self.end, self.end, [(self.end, pieces)], pieces)
        room = self._segment_bytes - self.end % self._segment_bytes
        if total + BLANK_BYTES > room:
            if total + BLANK_BYTES > self._segment_bytes:
                raise self._too_large(total)
            group.pieces.append(BLANK.pack(room, MAGIC_BLANK))
            self.end = group.end = self.end + room
            self.waiting_bytes += room
            group.pieces = []
            group.extents.append((self.end, group.pieces))
        return group

    def _too_large(self, total: int) -> InvalidOption:
        return InvalidOption(
            f"{total} bytes do not fit a commit-log segment of {self._segment_bytes} bytes"
        )


def _key_of(one: NewMessage | NewBatch) -> QueueKey:
    return one[:2] if isinstance(one, NewMessage) else one.shared[:2]


def _delay_levels(messages: Messages, key: QueueKey) -> list[int]:
    """Return the delay levels of those of *messages* that are for the queue *key*."""
    return [
        delay_level(message.properties)
        for one in messages
        if _key_of(one) == key
        for message in ((one,) if isinstance(one, NewMessage) else one.each())
    ]


def _whole_batch(one: NewMessage | NewBatch, queue: ConsumeQueue) -> tuple[Messages, int]:
    """Return a batch that stays whole, with its first offset, and the number of its messages, or 0
    if it is not a batch.

    Raises InvalidOption for a batch without that number.
    """
    if (
        isinstance(one, NewBatch)
        or not one.sys_flag & SysFlag.INNER_BATCH
        or not isinstance(queue, BatchQueue)
    ):
        return (one,), 0
    one = one._replace(properties=with_first_offset(one.properties, queue.next_offset))
    count = messages_in(one.sys_flag, one.properties)
    if not count:
        raise InvalidOption(
            "a batch that stays whole needs the property INNER_NUM, from 1 to 32767"
        )
    return (one,), count
