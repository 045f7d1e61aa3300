"""The owner's half of writing: gives out offsets and builds records into the group that is being formed."""

import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ogive.errors import InvalidOption
from ogive.model import SCHEDULE_TOPIC
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES, ConsumeQueue
from ogive.store.model import MAX_RECORD_BYTES, NewMessage, PutDone, PutResult, QueueKey, StoreConfig
from ogive.store.record import BLANK, BLANK_BYTES, CRC_BYTES, build_parts, close_properties, delay_level, overhead, strip_crc, tag_hash
from ogive.store.writer import Group
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAGIC_BLANK, MAX_PROPERTIES_BYTES


def now_ms() -> int:
    return int(time.time() * 1000)


class Appender:
    """Next offsets of the log and its queues, and the groups on their way. Owner thread only."""

    def __init__(
        self,
        config: StoreConfig,
        queues: dict[QueueKey, ConsumeQueue],
        *,
        segment_bytes: int,
        end: int,
        store_timestamp_ms: int,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self._config, self.queues, self._segment_bytes, self._clock_ms = config, queues, segment_bytes, clock_ms
        self._queue_root: Path = config.root / "consumequeue"
        self.end = end
        self.store_timestamp_ms = store_timestamp_ms
        self.waiting_bytes = 0  # formed or with the writer
        self.waiting: deque[Group] = deque()  # with the writer, in order
        self.forming: Group | None = None

    def append(self, messages: Sequence[NewMessage], done: PutDone) -> int:
        """Place *messages*, all or none; bytes of the forming group now. Raises InvalidOption for a message that no record can hold."""
        queues = [self._queue(message.topic, message.queue_id) for message in messages]
        stored_ms = self.store_timestamp_ms = max(self._clock_ms(), self.store_timestamp_ms)
        sized = [self._sized(message, queue) for message, queue in zip(messages, queues, strict=True)]
        total = sum([size for _, size, _ in sized])
        if total + BLANK_BYTES > self._segment_bytes:
            raise InvalidOption(f"{total} bytes do not fit a commit-log segment of {self._segment_bytes} bytes")
        position, blank = self._room(total)
        pieces: list[bytes] = []
        entries: list[tuple[ConsumeQueue, bytes]] = []
        results: list[PutResult] = []
        before = [queue.next_offset for queue in queues]
        try:
            for message, queue, (properties, size, with_crc) in zip(messages, queues, sized, strict=True):
                kind = message.sys_flag & SysFlag.TRANSACTION_MASK
                visible = kind == 0 or kind == SysFlag.TRANSACTION_COMMIT
                queue_offset = queue.next_offset if visible else 0
                pieces += build_parts(message, queue.topic_bytes, properties, size, queue_offset, position, stored_ms, with_crc)
                if visible:
                    entries.append((queue, ENTRY.pack(position, size, self._tags_code(message.topic, properties, stored_ms))))
                    queue.next_offset += 1
                results.append(PutResult(queue_offset, position, size, stored_ms))
                position += size
        except (struct.error, OverflowError) as exc:
            for queue, offset in zip(reversed(queues), reversed(before), strict=True):
                queue.next_offset = offset
            raise InvalidOption(f"message does not fit the stored form: {exc}") from None
        return self._add(pieces, entries, results, done, blank, position)

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
        """Every group that is not done, undone: their offsets are given out again. Nobody has seen them."""
        groups = list(self.waiting)
        if self.forming is not None:
            groups.append(self.forming)
        if groups:
            self.end = groups[0].start
        for group in groups:
            for queue, _ in group.entries:
                queue.next_offset = queue.max_offset
        self.waiting.clear()
        self.forming, self.waiting_bytes = None, 0
        return groups

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        key = (topic, queue_id)
        queue = self.queues.get(key)
        if queue is None:
            directory = self._queue_root / topic / str(queue_id)
            queue = self.queues[key] = ConsumeQueue(key, directory, self._config.consume_queue_file_bytes // ENTRY_BYTES)
        return queue

    def _sized(self, message: NewMessage, queue: ConsumeQueue) -> tuple[bytes, int, bool]:
        """(properties to store, record size, whether a checksum follows them)"""
        properties = strip_crc(message.properties)
        with_crc = self._config.record_crc and len(properties) + CRC_BYTES < MAX_PROPERTIES_BYTES
        if with_crc:
            properties = close_properties(properties)
        size = overhead(queue.topic_bytes, message) + len(message.body) + len(properties) + (CRC_BYTES if with_crc else 0)
        if size > MAX_RECORD_BYTES or len(properties) > MAX_PROPERTIES_BYTES:
            raise InvalidOption(
                f"record of {size} bytes, properties of {len(properties)}: the limits are {MAX_RECORD_BYTES} and {MAX_PROPERTIES_BYTES}"
            )
        return properties, size, with_crc

    def _room(self, total: int) -> tuple[int, bytes]:
        """Where *total* bytes go, and the blank record that ends the segment before, if one does."""
        room = self._segment_bytes - self.end % self._segment_bytes
        if total + BLANK_BYTES <= room:
            return self.end, b""
        return self.end + room, BLANK.pack(room, MAGIC_BLANK)

    def _add(
        self,
        pieces: list[bytes],
        entries: list[tuple[ConsumeQueue, bytes]],
        results: list[PutResult],
        done: PutDone,
        blank: bytes,
        position: int,
    ) -> int:
        group = self.forming
        if group is None:
            group = self.forming = Group(self.end, self.end, [(self.end, [])])
        if blank:
            group.extents[-1][1].append(blank)
            group.extents.append((results[0].commitlog_offset, []))
        group.extents[-1][1].extend(pieces)
        group.entries += entries
        group.waiters.append((done, results))
        self.waiting_bytes += position - self.end
        self.end = group.end = position
        return position - group.start

    def _tags_code(self, topic: str, properties: bytes, stored_ms: int) -> int:
        if topic == SCHEDULE_TOPIC and (level := delay_level(properties)) > 0:
            return stored_ms + self._config.delay_levels.delay_ms(level)
        return tag_hash(properties)
