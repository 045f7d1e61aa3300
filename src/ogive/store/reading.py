"""Reading queues: from offsets to entries to slices of the commit log. Source: DefaultMessageStore.getMessage, ConsumeQueue.java, 5.3."""

from collections.abc import Callable
from typing import Final

from ogive.errors import StoreError
from ogive.native import Wanted, native
from ogive.store.commitlog import LogReader
from ogive.store.consumequeue import ENTRY, ENTRY_HASH, FILLER, FILLER_SIZE, ConsumeQueue, read_entries
from ogive.store.disk import Disk
from ogive.store.model import GetResult, GetStatus, QueueKey
from ogive.store.record import store_timestamp

_MIN_SCAN: Final = 800  # entries looked at for one request, at least; source: maxFilterMessageSize 16000 / 20
_MAX_READ: Final = 4096  # entries read at once
_MAX_BYTES: Final = 128 * 1024 * 1024  # of one answer, whatever was asked for


class QueueReader:
    """Answers about queues. Owner thread only. Everything here raises Cold while *disk* does not wait."""

    def __init__(self, log: LogReader, disk: Disk, queues: dict[QueueKey, ConsumeQueue]) -> None:
        self._log, self._disk, self._queues = log, disk, queues

    def get(self, topic: str, queue_id: int, offset: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None) -> GetResult:
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
        wanted, next_offset, gone = self._select(queue, offset, max_messages, min(max_bytes, _MAX_BYTES), tag_codes)
        if next_offset == offset:
            after = min(high, offset - offset % queue.file_entries + queue.file_entries)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, after, low, high)
        parts, count, size = self._log.collect(wanted, queue.key[1], queue.topic_field)
        if count:
            return GetResult(GetStatus.FOUND, next_offset, low, high, parts, count, size)
        status = GetStatus.MESSAGE_WAS_REMOVING if gone or wanted else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, next_offset, low, high)

    def entries(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Visible entries from *offset* on, as stored; at most *count*, fewer where a file ends. None of a file that is missing."""
        count = min(count, queue.max_offset - offset)
        if count <= 0:
            return b""
        found = queue.in_memory(offset, count)
        if found is not None:
            return found
        try:
            return read_entries(self._disk, queue, offset, min(count, queue.written - offset))
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise StoreError(f"the consume queue in {queue.directory} cannot be read: {exc}") from exc

    def store_time(self, queue: ConsumeQueue, offset: int) -> int:
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        raw = self.entries(queue, offset, 1)
        if not raw:
            return -1
        commitlog_offset, size, _ = ENTRY.unpack(raw)
        if size == FILLER_SIZE:
            return -1
        parts, count, _ = self._log.collect([(commitlog_offset, size, offset)], queue.key[1], queue.topic_field)
        return store_timestamp(parts[0]) if count else -1

    def offset_by_time(self, queue: ConsumeQueue, timestamp_ms: int, upper: bool) -> int:
        """Binary search; an offset without a message counts like the next one that has one."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:  # invariant: everything before low is too early, everything from high on is not
            middle = low + (high - low) // 2
            probe, stored_ms = middle, self.store_time(queue, middle)
            while stored_ms < 0 and probe + 1 < high:
                probe += 1
                stored_ms = self.store_time(queue, probe)
            early = stored_ms <= timestamp_ms if upper else stored_ms < timestamp_ms
            if stored_ms >= 0 and early:
                low = probe + 1
            else:
                high = middle
        return max(queue.min_offset, low - 1) if upper else low

    def first_at(self, queue: ConsumeQueue, commitlog_start: int) -> int:
        """The lowest offset whose record stands at *commitlog_start* or behind it; max_offset if none does."""
        return first_at(queue.min_offset, queue.max_offset, commitlog_start, lambda offset: self.entries(queue, offset, 1))

    def _select(
        self, queue: ConsumeQueue, offset: int, max_messages: int, max_bytes: int, tag_codes: frozenset[int] | None
    ) -> tuple[list[Wanted], int, bool]:
        """(records to read as (commit-log offset, size, queue offset), the offset to go on with, whether a record is gone)."""
        wanted: list[Wanted] = []
        total, gone, log_start = 0, False, self._log.start
        end = min(queue.max_offset, offset + max(_MIN_SCAN, max_messages))
        while offset < end:
            most = _MAX_READ if tag_codes is not None else max(1, max_messages) - len(wanted)  # none once it has all: 5 us a pull
            raw = self.entries(queue, offset, min(end - offset, most))
            if not raw:
                break
            offset, total, passed, full = _choose(raw, tag_codes, wanted, offset, total, max_messages, max_bytes, log_start)
            gone |= passed
            if full:
                break
        return wanted, offset, gone


def _choose(
    entries: bytes, tag_codes: frozenset[int] | None, wanted: list[Wanted], offset: int, total: int, most: int, most_bytes: int, start: int
) -> tuple[int, int, bool, bool]:
    """Add the records of *entries*, the first of which has *offset*, to *wanted*, which has *total* bytes already.

    Returns the offset to go on with, the bytes of all, whether a record is gone, and whether *wanted* is full.
    """
    if native is not None and (chosen := native.chosen(entries, tag_codes, wanted, offset, total, most, most_bytes, start)) is not None:
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


def first_at(low: int, high: int, commitlog_start: int, entry: Callable[[int], bytes]) -> int:
    """The first of the offsets low .. high whose entry points at *commitlog_start* or behind it. Offsets without a record count like those
    that follow them."""
    top = high
    while low < high:
        probe = middle = (low + high) // 2
        raw = entry(probe)
        while probe + 1 < top and (not raw or raw == FILLER):
            probe += 1
            raw = entry(probe)
        if raw and raw != FILLER and ENTRY.unpack(raw)[0] >= commitlog_start:
            high = middle
        else:
            low = probe + 1
    return min(low, top)
