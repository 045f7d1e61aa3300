"""The owner's half of writing: gives out offsets and builds records into the group that is being
formed.
"""

import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import accumulate, count, repeat
from typing import Final

from ogive.errors import InvalidOption
from ogive.native import native
from ogive.store.clock import now_ms
from ogive.store.consumequeue import ENTRY, ConsumeQueue, names_a_directory
from ogive.store.key_index import Keyed
from ogive.store.queue_types import BatchQueue, QueueKinds, messages_in, with_first_offset
from ogive.store.record import (
    BLANK,
    BLANK_BYTES,
    CRC_BYTES,
    MAX_CRC_PROPERTIES,
    build_batch,
    build_record,
    delay_level,
    fixed_bytes,
    stored_properties,
    strip_crc,
    tag_hash,
    topic_field,
)
from ogive.store.types import (
    MAX_RECORD_BYTES,
    SIZE_BEFORE,
    EncodedBatch,
    Messages,
    NewBatch,
    NewMessage,
    PutDone,
    PutResult,
    QueueKey,
    StoreConfig,
)
from ogive.store.writer import Group
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAGIC_BLANK, MAX_PROPERTIES_BYTES

# a third of what the call of a named tuple costs
_put_result: Final = tuple.__new__
_TRANSACTION: Final = SysFlag.TRANSACTION_MASK
_COMMIT: Final = SysFlag.TRANSACTION_COMMIT
_ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK


class Appender:
    """Next offsets of the log and its queues, and the groups on their way. Owner thread only."""

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
        self._config, self.queues, self._segment_bytes, self._clock_ms = (
            config,
            queues,
            segment_bytes,
            clock_ms,
        )
        self._topics = Counter(topic for topic, _ in queues)
        self._kinds = kinds
        self._with_crc = config.record_crc
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        # formed or with the writer
        self.waiting_bytes = 0
        # with the writer, in order
        self.waiting: deque[Group] = deque()
        self.forming: Group | None = None

    def append(self, messages: Messages, done: PutDone) -> int:
        """Place *messages*, all or none; bytes of the forming group now.

        Raises InvalidOption for a message that no record can hold.
        """
        self._look_at_clock()
        if isinstance(messages, EncodedBatch):
            return self._append_usual(
                messages.shared, done, messages.data, messages.start
            ) or self._append_batch(messages.decoded(), done)
        if isinstance(messages, NewBatch):
            return self._append_batch(messages, done)
        if len(messages) == 1:
            return self._append_usual(messages[0], done) or self._append_one(messages[0], done)
        return self._append_joined(messages, done) or self._append_each(messages, done)

    def append_run(
        self, messages: list[NewMessage], places: Sequence[QueueKey], done: PutDone
    ) -> int:
        """append() of the first of *messages*, each by itself, as many as the compiled part takes
        at once; how many they are.

        The topic and queue id of each are the very objects of one of *places*.
        """
        if native is None:
            return 0
        self._look_at_clock()
        queues = [self.queues.get(key) or self._new_queue(key) for key in places]
        if not all(queue.usual for queue in queues):
            return 0
        starts = tuple(
            [
                (*key, queue.topic_field, queue.topic_bytes, queue.next_offset)
                for key, queue in zip(places, queues, strict=True)
            ]
        )
        room = min(self._segment_room, self._config.max_group_bytes - self.forming_bytes)
        built = native.run_records(
            messages, starts, self.end, room, self.store_timestamp_ms, self._with_crc, PutResult
        )
        if built is None:
            return 0
        records, entries, keyed, results = built
        group = self._joined_by(records, keyed, done, results)
        for queue, of_queue in zip(queues, entries, strict=True):
            count = len(of_queue) // ENTRY.size
            if count:
                group.entries.append((queue, of_queue, count))
                queue.next_offset += count
        self._grow(group, len(records))
        return len(results)

    def _look_at_clock(self) -> None:
        now = self._clock_ms()
        # never back, whatever the clock does
        if now > self.store_timestamp_ms:
            self.store_timestamp_ms = now

    @property
    def forming_bytes(self) -> int:
        """Of the group that is being formed."""
        return 0 if self.forming is None else self.forming.end - self.forming.start

    def _append_usual(
        self, message: NewMessage, done: PutDone, batch: bytes | None = None, start: int = 0
    ) -> int:
        """append() of *message*, or of those in batch[start:] that share it, by the compiled part;
        0, and nothing appended, where it is Python's.
        """
        if native is None:
            return 0
        queue = self.queues.get(message[:2]) or self._new_queue(message[:2])
        if not queue.usual:
            return 0
        built = native.records(
            message,
            batch,
            start,
            queue.topic_field,
            queue.topic_bytes,
            queue.next_offset,
            self.end,
            self._segment_room,
            self.store_timestamp_ms,
            self._with_crc,
            PutResult,
        )
        if built is None:
            return 0
        records, entries, keyed, results = built
        group = self._joined_by(records, keyed, done, results)
        if entries:
            group.entries.append((queue, entries, len(results)))
            queue.next_offset += len(results)
        return self._grow(group, len(records))

    def _append_joined(self, messages: Sequence[NewMessage], done: PutDone) -> int:
        """append() of several messages of queues that are there already, by the compiled part; 0,
        and nothing appended, where it is Python's.
        """
        if native is None:
            return 0
        ends: dict[ConsumeQueue, int] = {}
        places: list[tuple[bytes, bytes, int]] = []
        queues: list[ConsumeQueue] = []
        for message in messages:
            queue = self.queues.get(message[:2])
            if queue is None or not queue.usual:
                return 0
            offset = ends.get(queue) or queue.next_offset
            ends[queue] = offset + 1
            queues.append(queue)
            places.append((queue.topic_field, queue.topic_bytes, offset))
        built = native.joined_records(
            tuple(messages),
            tuple(places),
            self.end,
            self._segment_room,
            self.store_timestamp_ms,
            self._with_crc,
            PutResult,
        )
        if built is None:
            return 0
        records, entries, keyed, results = built
        group = self._joined_by(records, keyed, done, results)
        group.entries += zip(queues, entries, repeat(1))
        for queue, end in ends.items():
            queue.next_offset = end
        return self._grow(group, len(records))

    def _joined_by(
        self, records: bytes, keyed: Sequence[Keyed], done: PutDone, results: list[PutResult]
    ) -> Group:
        """The forming group with what the compiled part has built; its entries and its end are the
        caller's.
        """
        group = self._room(len(records))
        group.pieces.append(records)
        group.keyed += keyed
        group.waiters.append((done, results))
        return group

    @property
    def _segment_room(self) -> int:
        return self._segment_bytes - self.end % self._segment_bytes - BLANK_BYTES

    def _append_one(self, message: NewMessage, done: PutDone) -> int:
        """append() of a single message, or of a batch that stays whole: it is one record, with as
        many offsets as it has messages.
        """
        queue = self.queues.get(message[:2]) or self._new_queue(message[:2])
        count = 1
        if message.sys_flag & SysFlag.INNER_BATCH and isinstance(queue, BatchQueue):
            message = message._replace(
                properties=with_first_offset(message.properties, queue.next_offset)
            )
            count = messages_in(message.sys_flag, message.properties)
            if not count:
                raise InvalidOption(
                    "a batch that stays whole needs the property INNER_NUM, from 1 to 32767"
                )
        properties, size = self._sized(message, queue.fixed_bytes)
        group = self._room(size)
        position, stored_ms = self.end, self.store_timestamp_ms
        entry, record = self._build(
            message, queue, properties, size, queue.next_offset, position, count
        )
        if message[4] & _TRANSACTION != _ROLLBACK:
            group.keyed.append((queue.topic_bytes, properties, position, stored_ms))
        offset = 0
        if entry:
            offset = queue.next_offset
            queue.next_offset = offset + count
            group.entries.append((queue, entry, count))
        group.pieces.append(record)
        group.waiters.append((done, [_put_result(PutResult, (offset, position, size, stored_ms))]))
        return self._grow(group, size)

    def _append_batch(self, batch: NewBatch, done: PutDone) -> int:
        """append() of messages of one queue: sizes, places, entries and what the index needs are
        made for all of them at once.
        """
        shared, items = batch.shared, batch.items
        queue = self.queues.get(shared[:2]) or self._new_queue(shared[:2])
        properties = stored_properties([text for _, _, text in items], self._with_crc)
        fixed = (
            queue.fixed_bytes
            + len(shared.born_host)
            + len(shared.store_host)
            - 16
            + (CRC_BYTES if self._with_crc else 0)
        )
        sizes = [
            fixed + len(body) + len(text)
            for (_, body, _), text in zip(items, properties, strict=True)
        ]
        longest = max(map(len, properties))
        if (
            longest > MAX_CRC_PROPERTIES
            or max(sizes) > MAX_RECORD_BYTES
            or not queue.usual
            or shared.sys_flag & _TRANSACTION
        ):
            return self._append_each(batch.each(), done)
        total, first, stored_ms = sum(sizes), queue.next_offset, self.store_timestamp_ms
        group = self._room(total)
        start = self.end
        try:
            pieces = build_batch(
                batch, queue.topic_field, properties, sizes, first, start, stored_ms, self._with_crc
            )
        except (struct.error, OverflowError) as exc:
            raise InvalidOption(f"message does not fit the stored form: {exc}") from None
        places = list(accumulate(sizes[:-1], initial=start))
        tags = map(tag_hash, properties) if b"TAGS\x01" in b"\x02".join(properties) else repeat(0)
        group.pieces += pieces
        group.entries.append((queue, b"".join(map(ENTRY.pack, places, sizes, tags)), len(sizes)))
        group.keyed += zip(repeat(queue.topic_bytes), properties, places, repeat(stored_ms))
        group.waiters.append(
            (
                done,
                list(
                    map(
                        _put_result,
                        repeat(PutResult),
                        zip(count(first), places, sizes, repeat(stored_ms)),
                    )
                ),
            )
        )
        queue.next_offset = first + len(sizes)
        return self._grow(group, total)

    def _append_each(self, messages: Sequence[NewMessage], done: PutDone) -> int:
        """append() of several.

        Everything is built before anything changes: one that fits no record refuses the whole
        batch.
        """
        queue = None
        sized: list[tuple[ConsumeQueue, bytes, int]] = []
        total = 0
        for message in messages:
            # nearly always that of the message before
            if queue is None or queue.key != message[:2]:
                queue = self.queues.get(message[:2]) or self._new_queue(message[:2])
            properties, size = self._sized(message, queue.fixed_bytes)
            sized.append((queue, properties, size))
            total += size
        group = self._room(total)
        position, stored_ms = self.end, self.store_timestamp_ms
        offsets = {queue: queue.next_offset for queue, _, _ in sized}
        pieces: list[bytes] = []
        entries: list[tuple[ConsumeQueue, bytes, int]] = []
        keyed: list[Keyed] = []
        results: list[PutResult] = []
        # of the first there is none, and the number fits no record
        before = SIZE_BEFORE
        for message, (queue, properties, size) in zip(messages, sized, strict=True):
            if message.flag == SIZE_BEFORE:
                message = message._replace(flag=before)
            offset = offsets[queue]
            entry, record = self._build(message, queue, properties, size, offset, position)
            pieces.append(record)
            if entry:
                entries.append((queue, entry, 1))
                offsets[queue] = offset + 1
            results.append(
                _put_result(PutResult, (offset if entry else 0, position, size, stored_ms))
            )
            if message[4] & _TRANSACTION != _ROLLBACK:
                keyed.append((queue.topic_bytes, properties, position, stored_ms))
            position += size
            before = size
        for queue, offset in offsets.items():
            queue.next_offset = offset
        group.pieces += pieces
        group.entries += entries
        group.keyed += keyed
        group.waiters.append((done, results))
        return self._grow(group, total)

    def _grow(self, group: Group, size: int) -> int:
        """So many bytes more stand at the end of the log; bytes of the forming group now."""
        self.waiting_bytes += size
        self.end = group.end = self.end + size
        return group.end - group.start

    def check_fits(self, message: NewMessage, spare_bytes: int) -> None:
        """See MessageStore."""
        queue = self.queues.get(message[:2])
        fixed = (
            queue.fixed_bytes
            if queue is not None
            else fixed_bytes(topic_field(message.topic.encode()))
        )
        size = self._sized(message, fixed)[1]
        if size + spare_bytes + BLANK_BYTES > self._segment_bytes:
            raise self._too_large(size + spare_bytes)

    def take(self) -> Group | None:
        """The forming group, which now counts as handed over."""
        group, self.forming = self.forming, None
        if group is not None:
            self.waiting.append(group)
        return group

    def finish(self, groups: Sequence[Group]) -> None:
        """*groups* are done with; they were the oldest."""
        for group in groups:
            if self.waiting.popleft() is not group:
                raise AssertionError("groups end in the order in which they were handed over")
            self.waiting_bytes -= group.end - group.start

    def take_back(self) -> list[Group]:
        """Undo every unfinished group: their offsets, which nobody has seen, are given out
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
        """Whether *topic* has queues."""
        return topic in self._topics

    def forget_topic(self, topic: str) -> list[ConsumeQueue]:
        """The queues that it had."""
        if not self._topics.pop(topic, 0):
            return []
        return [self.queues.pop(key) for key in [key for key in self.queues if key[0] == topic]]

    def _sized(self, message: NewMessage, fixed: int) -> tuple[bytes, int]:
        """(properties to store, without the checksum; record size with it).

        *fixed*: see ConsumeQueue.fixed_bytes.
        """
        properties = strip_crc(message.properties)
        if (
            self._with_crc
            and properties
            and properties[-1] != 2
            and len(properties) < MAX_PROPERTIES_BYTES
        ):
            # 4.9 leaves the last separator off; another property follows
            properties += b"\x02"
        size = (
            fixed
            + len(message.body)
            + len(properties)
            + len(message.born_host)
            + len(message.store_host)
            - 16
        )
        if self._with_crc and len(properties) <= MAX_CRC_PROPERTIES:
            size += CRC_BYTES
        if size > MAX_RECORD_BYTES or len(properties) > MAX_PROPERTIES_BYTES:
            raise InvalidOption(
                f"record of {size} bytes, properties of {len(properties)}: the limits are "
                f"{MAX_RECORD_BYTES} and {MAX_PROPERTIES_BYTES}"
            )
        return properties, size

    def _build(
        self,
        message: NewMessage,
        queue: ConsumeQueue,
        properties: bytes,
        size: int,
        queue_offset: int,
        position: int,
        count: int = 1,
    ) -> tuple[bytes, bytes]:
        """(consume-queue entry, empty for a record that no queue holds; record)"""
        kind = message.sys_flag & _TRANSACTION
        visible = kind == 0 or kind == _COMMIT
        with_crc = self._with_crc and len(properties) <= MAX_CRC_PROPERTIES
        stored_ms = self.store_timestamp_ms
        try:
            record = build_record(
                message,
                queue.topic_field,
                properties,
                size,
                queue_offset if visible else 0,
                position,
                stored_ms,
                with_crc,
            )
        except (struct.error, OverflowError) as exc:
            raise InvalidOption(f"message does not fit the stored form: {exc}") from None
        if not visible:
            return b"", record
        if queue.scheduled and (level := delay_level(properties)) > 0:
            return ENTRY.pack(
                position, size, stored_ms + self._config.delay_levels.delay_ms(level)
            ), record
        return queue.entry(
            position, size, tag_hash(properties), stored_ms, queue_offset, count
        ), record

    def _room(self, total: int) -> Group:
        """The forming group, after ending the segment if *total* bytes do not fit it any more."""
        group = self.forming
        if group is None:
            pieces: list[bytes] = []
            group = self.forming = Group(self.end, self.end, [(self.end, pieces)], pieces)
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
