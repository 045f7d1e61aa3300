"""The commit log: consecutive records in segments, none across a border; the rest of a segment is a
blank record.

Its two halves share no state: LogWriter belongs to the writer (see writer.py), LogReader with its
recent part in memory to the owner thread. Source: CommitLog.java, MappedFileQueue.java, 5.3.

Blocks that this process wrote have a checksum, so that their records need not be checked one by one
when they are read back.

The check of a record is half the cost of a pull from disk, because each checksum is computed by
itself and formatted as a property. A checksum over 64 KiB takes 16 µs. It is computed while the
bytes are written to the log, and proves more: that they are the bytes that were written. Blocks
follow each other from the log's start on, regardless of where records begin, so that one number
names each.

Only whole blocks have a checksum: not a block that was begun before this start or that a segment's
end cuts off, and no block that recovery found. The function is crc32, the fastest of the standard
library; adler32 is slower and does not notice some sectors that changed places.
"""

import logging
import sys
from array import array
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ogive.errors import StoreError
from ogive.native import Wanted, native
from ogive.store.file_reader import Cold, Disk
from ogive.store.fs import Fs
from ogive.store.record import not_standing, read_record
from ogive.store.segments import segment_path
from ogive.wire.checksum import crc32

log = logging.getLogger(__name__)

MAX_BLOCKS: Final = 256 * 1024
"""The checksums of 16 GiB, in 2 MiB."""
_NONE: Final = -1


class BlockChecksums:
    """The checksums of the newest blocks. Owner thread only."""

    def __init__(self, block_bytes: int, segment_bytes: int, most: int = MAX_BLOCKS) -> None:
        self.bytes = block_bytes
        self._segment_bytes, self._most = segment_bytes, most
        # number of the first block in the table
        self._first = 0
        # a sum, or _NONE
        self._sums = array("q")
        # where the next chunk continues what was noted last
        self._end = -1
        # sum of the block at _end as far as it goes; _NONE where its beginning was not seen
        self._running = _NONE

    def note(self, offset: int, data: bytes) -> None:
        """Add *data*, which was written at *offset*: directly after the last addition, or after a
        gap.
        """
        size = self.bytes
        border = offset - offset % size + size
        if offset != self._end or offset % self._segment_bytes == 0:
            self._running = 0 if offset + size == border else _NONE
        self._end = end = offset + len(data)
        if end < border:
            if self._running != _NONE:
                self._running = crc32(data, self._running)
            return
        view, at = memoryview(data), 0
        while border <= end:
            if self._running != _NONE:
                self._keep(border // size - 1, crc32(view[at : border - offset], self._running))
            self._running, at = 0, border - offset
            border += size
        self._running = crc32(view[at:])

    def covering(self, start: int, end: int) -> tuple[int, int]:
        """Return the blocks from that of *start* to that of *end*, or to the last before one
        without a checksum.
        """
        number = start // self.bytes
        begin = at = number - self._first
        sums, stop = self._sums, min(len(self._sums), -(-end // self.bytes) - self._first)
        if at >= 0:
            while at < stop and sums[at] != _NONE:
                at += 1
        return number * self.bytes, (number + at - begin) * self.bytes

    def hold(self, start: int, data: bytes) -> bool:
        """Return True if *data* was written from *start* on, in blocks that have a checksum.

        Checksums that do not match are forgotten.
        """
        size, number, view = self.bytes, start // self.bytes - self._first, memoryview(data)
        wrong = [
            number + at // size
            for at in range(0, len(data), size)
            if crc32(view[at : at + size]) != self._sums[number + at // size]
        ]
        for each in wrong:
            self._sums[each] = _NONE
        return not wrong

    def forget_before(self, offset: int) -> None:
        """Drop the blocks before *offset*, where the log begins now."""
        self._drop(min(len(self._sums), offset // self.bytes - self._first))

    def _keep(self, number: int, crc: int) -> None:
        if not self._sums:
            self._first = number
        self._sums.extend([_NONE] * (number - self._first - len(self._sums)))
        self._sums.append(crc)
        # in bulk: deleting from the front moves the rest
        if len(self._sums) > self._most + self._most // 8:
            self._drop(len(self._sums) - self._most)

    def _drop(self, count: int) -> None:
        if count > 0:
            del self._sums[:count]
            self._first += count


Chunk = tuple[int, bytes]
"""commit-log offset, bytes from there on"""

_ZERO_STEP: Final = 1024 * 1024
_ZEROS: Final = bytes(_ZERO_STEP)
# cold records this near each other come with one pread
_MAX_GAP: Final = 16 * 1024
_MAX_SPAN: Final = 1024 * 1024
_MAX_BROUGHT_IN: Final = 4 * 1024 * 1024
# 1,024 messages of 1 KiB from each of eight queues, and some
_RUNS_BYTES: Final = 16 * 1024 * 1024
_MAX_RUNS: Final = 32
_NEAR_RUNS: Final = 4
_MAX_DAMAGED: Final = 10_000
# reading so much more, and its part in a sum, costs what the check of one record does
_CHECK_BYTES: Final = 2048


class LogWriter:
    """Writer of the segments, which also syncs them.

    Space is allocated ahead, so that a full disk is noticed before a byte of a record is written.

    *zeros*: allocate by writing zeros, so that a sync before an acknowledgement changes no size and
    no extent. If no answer waits for a sync, space is only reserved: the disk writes half as much,
    and a message of 1 KiB costs 0.4 µs of CPU less.
    """

    def __init__(
        self, fs: Fs, directory: Path, segment_bytes: int, end: int, *, zeros: bool = True
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._zeros = zeros
        # start of the segment that records go to
        self._current = -1
        # everything before is records, or room that reads as zeros, in files of full size
        self._prepared = end
        # segment start -> handle: the one being written, and those prepared after it
        self._handles: dict[int, int] = {}
        # starts of segments written since their last sync
        self._dirty: set[int] = set()

    @property
    def prepared(self) -> int:
        return self._prepared

    def is_ready(self, start: int, end: int) -> bool:
        """Return True if writing from *start* to *end* needs only one write: into the current
        segment, over zeros.
        """
        return end <= self._prepared and start - start % self._segment_bytes == self._current

    def prepare(self, until: int) -> None:
        """Allocate space up to *until*. Raises OSError; NO_SPACE leaves everything unchanged."""
        while self._prepared < until:
            start = self._prepared - self._prepared % self._segment_bytes
            size = min(_ZERO_STEP, start + self._segment_bytes - self._prepared)
            handle = self._handle(start)
            if self._zeros:
                self._fs.pwrite(
                    handle, _ZEROS if size == _ZERO_STEP else bytes(size), self._prepared - start
                )
            else:
                self._fs.reserve(handle, size, self._prepared - start)
            self._dirty.add(start)
            self._prepared += size

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Write chunks in order, each inside one segment.

        A segment is synced before the next one gets its first record.
        """
        for offset, data in chunks:
            start = offset - offset % self._segment_bytes
            if start != self._current:
                self._leave(start)
            self._fs.pwrite(self._handle(start), data, offset - start)
            self._dirty.add(start)

    def sync(self) -> None:
        for start in sorted(self._dirty):
            self._fs.fdatasync(self._handles[start])
        self._dirty.clear()

    def close(self) -> None:
        for handle in self._handles.values():
            self._fs.close(handle)
        self._handles.clear()

    def _leave(self, start: int) -> None:
        for before in sorted(s for s in self._dirty if s < start):
            self._fs.fdatasync(self._handles[before])
            self._dirty.discard(before)
        for before in [s for s in self._handles if s < start]:
            self._fs.close(self._handles.pop(before))
        self._current = start

    def _handle(self, start: int) -> int:
        handle = self._handles.get(start)
        if handle is None:
            handle = self._fs.open(segment_path(self._directory, start), create=True)
            try:
                if self._fs.size(handle) != self._segment_bytes:
                    # before the size is right: a next try would take the name for a lasting one
                    self._fs.fsync_dir(self._directory)
                    self._fs.truncate(handle, self._segment_bytes)
            except OSError:
                self._fs.close(handle)
                raise
            self._handles[start] = handle
        return handle


class HotLog:
    """The newest chunks of the log, in memory up to about *limit* bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._starts: list[int] = []
        self._chunks: list[bytes] = []
        self._size = 0

    def add(self, offset: int, data: bytes) -> None:
        self._starts.append(offset)
        self._chunks.append(data)
        self._size += len(data)
        # in bulk: deleting from the front of a list moves the rest
        if self._size > self._limit + self._limit // 8:
            drop = 0
            while self._size > self._limit and drop < len(self._chunks) - 1:
                self._size -= len(self._chunks[drop])
                drop += 1
            del self._starts[:drop], self._chunks[:drop]

    @property
    def start(self) -> int:
        """The lowest commit-log offset in memory."""
        return self._starts[0] if self._starts else sys.maxsize

    def find(self, offset: int) -> Chunk | None:
        """Return the chunk that holds the record at *offset*."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._starts[at] + len(self._chunks[at]):
            return None
        return self._starts[at], self._chunks[at]


class Run(NamedTuple):
    """Bytes of the log from *start* on.

    *sound*: they are known to be as they were written, so the records need not be checked.
    """

    start: int
    data: bytes
    sound: bool


class ReadRuns:
    """Cache of the last reads for one queue: for records of other queues in between, and for the
    next pull of the same queue.

    Queues that are read at the same time are mixed in the log, and each would read all of it: with
    eight of them and messages of 1 KiB that costs 3 µs a message. A last block goes beyond the
    requested bytes. Bytes between two visible records never change, so a run stays valid as long as
    it is kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._runs: OrderedDict[int, Run] = OrderedDict()
        # in order
        self._starts: list[int] = []

    def keep(self, run: Run) -> None:
        self.forget(run.start)
        self._runs[run.start] = run
        insort(self._starts, run.start)
        self._size += len(run.data)
        while self._size > self._limit or len(self._runs) > _MAX_RUNS:
            self.forget(next(iter(self._runs)))

    def forget(self, start: int) -> None:
        run = self._runs.pop(start, None)
        if run is not None:
            self._size -= len(run.data)
            self._starts.remove(start)

    def find(self, offset: int, size: int) -> Run | None:
        """Return a run that holds these bytes, if it is one of the few that begin next before
        them: a pull asks several times, and mostly there is none.
        """
        at = bisect_right(self._starts, offset)
        for start in reversed(self._starts[max(0, at - _NEAR_RUNS) : at]):
            run = self._runs[start]
            if offset + size <= start + len(run.data):
                return run
        return None


class LogReader:
    """Reader of records: the newest from memory, others by pread, several neighbours at once.

    Data from disk is checked: whole blocks by their checksums, if many of their records are
    requested, and each record if there is no checksum, or it does not match.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        segment_bytes: int,
        *,
        start: int,
        end: int,
        crc_from: int,
        hot_bytes: int,
        checksum_block_bytes: int,
        known_damage: Iterable[int] = (),
    ) -> None:
        self.directory, self.segment_bytes, self._disk = directory, segment_bytes, disk
        # of the oldest segment
        self.start = start
        # of the visible records
        self.end = end
        self.hot = HotLog(hot_bytes)
        self._checksums = BlockChecksums(checksum_block_bytes, segment_bytes)
        self._runs = ReadRuns(_RUNS_BYTES)
        self.damaged = 0
        self.crc_from = crc_from
        self._known: set[int] = set(known_damage)

    def add(self, offset: int, data: bytes) -> None:
        """Keep *data*, which was written at *offset*."""
        self.hot.add(offset, data)
        self._checksums.note(offset, data)

    def begin_at(self, start: int) -> None:
        """Begin the log at *start*, the first byte of a segment: nothing before it is read any
        more.
        """
        self.start = start
        self._checksums.forget_before(start)

    def collect(
        self, wanted: list[Wanted], queue_id: int, field: bytes
    ) -> tuple[list[bytes | memoryview], int, int]:
        """Return (parts, count, size) of the records in *wanted*, without damaged ones.

        A record from disk counts only if it is the one that the queue refers to: it must have
        *queue_id* and *field*, the topic_field.
        """
        parts: list[bytes | memoryview] = []
        count = size = i = 0
        while i < len(wanted):
            offset, record_size, _ = wanted[i]
            chunk = self.hot.find(offset)
            if chunk is not None:
                j = _end_inside(wanted, i, chunk)
                good = wanted[i:j]
            else:
                run = self._runs.find(offset, record_size)
                if run is not None:
                    j = _end_inside(wanted, i, run[:2])
                else:
                    j, run = self._read_run(wanted, i)
                good = self._undamaged(wanted[i:j], run, queue_id, field)
                chunk = run[:2]
            count += len(good)
            views, picked = _pick(good, chunk)
            parts += views
            size += picked
            i = j
        return parts, count, size

    @property
    def newest_segment(self) -> int:
        """The start of the segment that is being written."""
        return self.end - self.end % self.segment_bytes

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """Return the whole visible record at that offset, or None if none starts there."""
        hit = self.hot.find(commitlog_offset)
        if hit is not None:
            start, data = hit
        elif self.start <= commitlog_offset < self.end:
            start, data = commitlog_offset, self.read(commitlog_offset, 4096)
            size = int.from_bytes(data[:4])
            if len(data) < size <= self.segment_bytes:
                data = self.read(commitlog_offset, size)
        else:
            return None
        at = commitlog_offset - start
        record = read_record(data, at, commitlog_offset, self.crc_from)
        return data[at : at + record.size] if record is not None else None

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of one segment: fewer at its end, none if there is no segment.

        Raises StoreError if the disk cannot be read, and Cold.
        """
        start = offset - offset % self.segment_bytes
        try:
            return self._disk.read_log(
                segment_path(self.directory, start),
                min(size, start + self.segment_bytes - offset),
                offset - start,
            )
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise StoreError(f"the commit log cannot be read at {offset}: {exc}") from exc

    def _read_run(self, wanted: list[Wanted], i: int) -> tuple[int, Run]:
        """Read wanted[i] and the next records near it at once, by whole blocks if that is cheaper.
        Return (next i, the bytes).
        """
        base = wanted[i][0]
        segment_end = base - base % self.segment_bytes + self.segment_bytes
        j, stop, asked = _near(
            wanted,
            i,
            min(base - base % self._checksums.bytes + _MAX_SPAN, segment_end, self.hot.start),
        )
        begin, end = self._checksums.covering(base, stop)
        k, inside = j, asked
        while k > i and wanted[k - 1][0] + wanted[k - 1][1] > end:
            k -= 1
            inside -= wanted[k][1]
        whole = k > i and inside + (k - i) * _CHECK_BYTES >= end - begin
        if whole:
            j = k
            base = begin
            stop = end
            asked = inside
        try:
            data = self.read(base, stop - base)
        except Cold as cold:
            # all that this answer needs from here on comes with one wait
            last_wanted = max(
                [offset + size for offset, size, _ in wanted[i:] if offset < segment_end],
                default=stop,
            )
            if whole:
                last_wanted += -last_wanted % self._checksums.bytes
            cold.place = cold.place._replace(
                size=max(stop - base, min(last_wanted - base, _MAX_BROUGHT_IN))
            )
            raise
        run = Run(base, data, whole and self._checksums.hold(base, data))
        if 2 * asked <= len(data) == stop - base:
            self._runs.keep(run)
        elif run.sound:
            # the queue's next pull begins in the last block; all of it in memory for nobody would
            # cost 0.5 us a message
            last = stop - self._checksums.bytes
            self._runs.keep(Run(last, data[last - base :], True))
        return j, run

    def _undamaged(
        self, wanted: list[Wanted], run: Run, queue_id: int, field: bytes
    ) -> list[Wanted]:
        bad = set(
            not_standing(
                run.data, run.start, wanted, queue_id, field, self.crc_from, sound=run.sound
            )
        )
        if not bad:
            return wanted
        self._runs.forget(run.start)
        for offset, size, _ in sorted(bad):
            self.report(offset, size)
        return [entry for entry in wanted if entry not in bad]

    def report(self, offset: int, size: int) -> None:
        """Count a damaged record, and log it once; places known from the start are not logged
        again.
        """
        if offset not in self._known and self.damaged < _MAX_DAMAGED:
            self._known.add(offset)
            self.damaged += 1
            log.error(
                "commit log: skipped the damaged record of %d bytes at offset %d",
                size,
                offset,
            )


def _near(wanted: list[Wanted], i: int, limit: int) -> tuple[int, int, int]:
    """Find wanted[i] and the next records near it, up to *limit*. Return (one past the last, its
    end in the log, their bytes).
    """
    if native is not None and (near := native.near(wanted, i, limit, _MAX_GAP)) is not None:
        return near
    offset, asked, _ = wanted[i]
    stop = offset + asked
    j, count = i + 1, len(wanted)
    while j < count:
        offset, size, _ = wanted[j]
        following = offset + size
        if offset < stop or offset > stop + _MAX_GAP or following > limit:
            break
        stop = following
        asked += size
        j += 1
    return j, stop, asked


def _end_inside(wanted: list[Wanted], i: int, chunk: Chunk) -> int:
    """Return one past the last of wanted[i] and the next records that are in *chunk*. The first one
    is in it.
    """
    start, end = chunk[0], chunk[0] + len(chunk[1])
    if native is not None and (inside := native.inside(wanted, i, start, end)) is not None:
        return inside
    j = i + 1
    while j < len(wanted) and start <= wanted[j][0] and wanted[j][0] + wanted[j][1] <= end:
        j += 1
    return j


def _pick(wanted: list[Wanted], chunk: Chunk) -> tuple[list[memoryview], int]:
    """Return views of these records, one for each run of neighbours, and the sum of their sizes."""
    if native is not None and (picked := native.picked(wanted, *chunk)) is not None:
        return picked
    start, view = chunk[0], memoryview(chunk[1])
    views: list[memoryview] = []
    first = last = total = 0
    for offset, size, _ in wanted:
        at = offset - start
        if at != last:
            if last > first:
                views.append(view[first:last])
            first = at
        last = at + size
        total += size
    if last > first:
        views.append(view[first:last])
    return views, total
