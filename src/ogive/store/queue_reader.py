"""Read queues: from offsets to entries to slices of the commit log.

Source: DefaultMessageStore.getMessage, ConsumeQueue.java, 5.3.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from ogive.errors import StoreError
from ogive.native import Wanted, native
from ogive.store.commitlog import LogReader
from ogive.store.consumequeue import (
    ENTRY_HASH,
    FILLER,
    FILLER_SIZE,
    ConsumeQueue,
    ReadEntry,
    read_entries,
)
from ogive.store.file_reader import Cold, Disk, in_memory
from ogive.store.key_index import KeyIndex
from ogive.store.queue_types import BatchQueue, units
from ogive.store.record import has_key, store_timestamp
from ogive.store.types import Entry, GetResult, GetStatus, QueueKey

# entries looked at for one request, at least; source: maxFilterMessageSize 16000 / 20
_MIN_SCAN: Final = 800
# entries read at once
_MAX_READ: Final = 4096
# of one answer, whatever was asked for
_MAX_BYTES: Final = 128 * 1024 * 1024


class QueueReader:
    """Reader of queues.

    Owner thread only. Everything here raises Cold while *disk* does not wait.
    """

    def __init__(self, log: LogReader, disk: Disk, queues: dict[QueueKey, ConsumeQueue]) -> None:
        self._log, self._disk, self._queues = log, disk, queues

    @property
    def queues(self) -> list[ConsumeQueue]:
        return list(self._queues.values())

    def has(self, queue: ConsumeQueue) -> bool:
        """Return True unless the topic of *queue* was deleted."""
        return self._queues.get(queue.key) is queue

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        if isinstance(queue, BatchQueue):
            return self._get_batches(
                queue, offset, max_messages, min(max_bytes, _MAX_BYTES), tag_codes
            )
        wanted, next_offset, gone = self._select(
            queue, offset, max_messages, min(max_bytes, _MAX_BYTES), tag_codes
        )
        if next_offset == offset:
            after = min(high, offset - offset % queue.file_entries + queue.file_entries)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, after, low, high)
        parts, count, size = self._log.collect(wanted, queue.key[1], queue.topic_field)
        if count:
            return GetResult(GetStatus.FOUND, next_offset, low, high, parts, count, size)
        status = GetStatus.MESSAGE_WAS_REMOVING if gone or wanted else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high)

    def _get_batches(
        self,
        queue: BatchQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> GetResult:
        """Return the result of get() for an offset that the queue has.

        The record of that offset is returned whole, even if earlier messages are in it. More
        records follow while all messages together are at most *max_messages*.
        """
        wanted: list[Wanted] = []
        total = messages = 0
        gone = False
        full = False
        log_start = self._log.start
        next_offset = offset
        index = queue.index_of(offset, self.reading(queue))
        last = index + max(_MIN_SCAN, max_messages)
        while index < queue.end and not full and (index < last or next_offset == offset):
            raw = self.entries(
                queue, index, max(1, max_messages - messages) if tag_codes is None else _MAX_READ
            )
            if not raw:
                gone = True
                index += queue.file_entries - index % queue.file_entries
            for commitlog_offset, size, tag_hash, first, count in units(raw):
                if first + count <= next_offset or not queue.makes_sense(first, count):
                    gone = True
                    index += 1
                    continue
                if tag_codes is None or tag_hash in tag_codes:
                    if size == FILLER_SIZE or commitlog_offset < log_start:
                        gone = True
                    elif wanted and (total + size > max_bytes or messages + count > max_messages):
                        full = True
                        break
                    else:
                        wanted.append((commitlog_offset, size, first))
                        total += size
                        messages += count
                next_offset = first + count
                index += 1
        if index >= queue.end:
            gone |= next_offset < queue.max_offset
            next_offset = queue.max_offset
        parts, count, size = self._log.collect(wanted, queue.key[1], queue.topic_field)
        low, high = queue.min_offset, queue.max_offset
        if count:
            return GetResult(
                GetStatus.FOUND, next_offset, low, high, parts, count, size, messages - len(wanted)
            )
        status = GetStatus.MESSAGE_WAS_REMOVING if gone or wanted else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high)

    def entries(self, queue: ConsumeQueue, index: int, count: int) -> bytes:
        """Return visible entries from *index* on, as stored: at most *count*, fewer at the end of a
        file, and none if the file is missing.
        """
        count = min(count, queue.end - index)
        if count <= 0:
            return b""
        found = queue.in_memory(index, count)
        if found is not None:
            return found
        try:
            return read_entries(self._disk, queue, index, min(count, queue.written - index))
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise StoreError(
                f"the consume queue in {queue.directory} cannot be read: {exc}"
            ) from exc

    def visible_entries(self, queue: ConsumeQueue, offset: int, count: int) -> list[Entry]:
        """Return the entries of *count* offsets from *offset* on."""
        found: list[Entry] = []
        if offset >= queue.min_offset:
            read = self.reading(queue)
            index = queue.index_of(offset, read)
            end = queue.index_of(offset + count - 1, read) + 1
            while raw := self.entries(queue, index + len(found), end - index - len(found)):
                found += [Entry(*fields[:3]) for fields in queue.layout.iter_unpack(raw)]
        return found

    def find_key(
        self,
        index: KeyIndex,
        deleted_before: int,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
    ) -> Iterator[bytes | Cold | None]:
        """Yield the result of MessageStore.find_key(), without records before *deleted_before*."""
        given: set[int] = set()
        last = -1
        for found in index.find(self._disk, topic, key, begin_ms, end_ms):
            if not isinstance(found, int):
                yield found
            elif (
                found != last
                and found not in given
                and found >= max(deleted_before, self._log.start)
            ):
                # a key may stand in a message more than once
                last = found
                record = yield from in_memory(partial(self._log.record_at, found))
                if (
                    record is not None
                    and has_key(record, topic, key)
                    and begin_ms <= store_timestamp(record) <= end_ms
                ):
                    # others with the same hash may be millions
                    given.add(found)
                    yield record

    def reading(self, queue: ConsumeQueue) -> ReadEntry:
        """Return a function by which *queue* reads its own entries."""
        return partial(self.entries, queue, count=1)

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        return self._time_at(queue, queue.index_of(offset, self.reading(queue)))

    def _time_at(self, queue: ConsumeQueue, index: int) -> int:
        """Return the store time of the record of the entry at *index*; -1 if there is none."""
        raw = self.entries(queue, index, 1)
        wanted = queue.record_at(index, raw) if raw else None
        if wanted is None:
            return -1
        parts, count, _ = self._log.collect([wanted], queue.key[1], queue.topic_field)
        return store_timestamp(parts[0]) if count else -1

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, upper: bool) -> int:
        """Binary search. An offset without a message counts like the next one that has one."""
        low, high = queue.first_index, queue.end
        # invariant: everything before low is too early, everything from high on is not
        while low < high:
            middle = low + (high - low) // 2
            probe, stored_ms = middle, self._time_at(queue, middle)
            while stored_ms < 0 and probe + 1 < high:
                probe += 1
                stored_ms = self._time_at(queue, probe)
            early = stored_ms <= timestamp_ms if upper else stored_ms < timestamp_ms
            if stored_ms >= 0 and early:
                low = probe + 1
            else:
                high = middle
        offset = queue.offset_at(low, self.reading(queue))
        return max(queue.min_offset, offset - 1) if upper else offset

    def first_at(self, queue: ConsumeQueue, commitlog_start: int) -> tuple[int, int]:
        """Return index and offset of the lowest entry whose record is at *commitlog_start* or after
        it, or those of the end if there is none.
        """
        return first_at(queue, commitlog_start, self.reading(queue))

    def _select(
        self,
        queue: ConsumeQueue,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None,
    ) -> tuple[list[Wanted], int, bool]:
        """Return (records to read as (commit-log offset, size, queue offset), the offset to
        continue at, whether a record was removed).
        """
        wanted: list[Wanted] = []
        total, gone, log_start = 0, False, self._log.start
        end = min(queue.max_offset, offset + max(_MIN_SCAN, max_messages))
        while offset < end:
            # none once it has all: 5 us a pull
            most = _MAX_READ if tag_codes is not None else max(1, max_messages) - len(wanted)
            raw = self.entries(queue, offset, min(end - offset, most))
            if not raw:
                break
            offset, total, passed, full = _choose(
                raw, tag_codes, wanted, offset, total, max_messages, max_bytes, log_start
            )
            gone |= passed
            if full:
                break
        return wanted, offset, gone


def _choose(
    entries: bytes,
    tag_codes: frozenset[int] | None,
    wanted: list[Wanted],
    offset: int,
    total: int,
    most: int,
    most_bytes: int,
    start: int,
) -> tuple[int, int, bool, bool]:
    """Add the records of *entries*, the first of which has *offset*, to *wanted*, which already has
    *total* bytes.

    Return the offset to continue at, the bytes of all, whether a record was removed, and whether
    *wanted* is full.
    """
    if (
        native is not None
        and (
            chosen := native.chosen(
                entries, tag_codes, wanted, offset, total, most, most_bytes, start
            )
        )
        is not None
    ):
        return chosen
    gone = False
    for commitlog_offset, size, code in ENTRY_HASH.iter_unpack(entries):
        if tag_codes is None or code in tag_codes:
            if size == FILLER_SIZE or commitlog_offset < start:
                gone = True
            else:
                if wanted and (total + size > most_bytes or len(wanted) >= most):
                    return offset, total, gone, True
                wanted.append((commitlog_offset, size, offset))
                total += size
        offset += 1
    return offset, total, gone, False


def first_at(queue: ConsumeQueue, commitlog_start: int, read: ReadEntry) -> tuple[int, int]:
    """Return the result of QueueReader.first_at(). Entries without a record count like those that
    follow them.
    """
    low = queue.first_index
    top = high = queue.end
    while low < high:
        probe = middle = (low + high) // 2
        raw = read(probe)
        while probe + 1 < top and (not raw or raw == FILLER):
            probe += 1
            raw = read(probe)
        if raw and raw != FILLER and int.from_bytes(raw[:8]) >= commitlog_start:
            high = middle
        else:
            low = probe + 1
    index = min(low, top)
    return index, queue.offset_at(index, read)
