"""Read a whole log: every valid record, the end of the log, and the damage in between.

A start reads it at once; in the background it is read slowly, to find damage before a record is
needed.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from ogive.native import native
from ogive.store import checkpoint as checkpoints
from ogive.store.bad_sectors import BLOCK, Unreadable
from ogive.store.checkpoint import Checkpoint
from ogive.store.file_reader import Handles
from ogive.store.fs import Fs
from ogive.store.record import (
    BLANK,
    BLANK_BYTES,
    Record,
    SizeClaim,
    claim_of,
    has_fitting_lengths,
    is_checked_whole,
    read_record,
)
from ogive.store.segments import Segments, segment_path
from ogive.wire.message import HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2

_BLOCK: Final = 4 * 1024 * 1024
# records that the compiled part finds before the first of them is looked at
_AT_ONCE: Final = 64
_MAGICS: Final = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))
MAX_PLACES: Final = 10_000

Scanned = tuple[int, Record, bytes, int]
"""commit-log offset, record, buffer with the record, its position in the buffer"""


def properties_of(scanned: Scanned) -> bytes:
    """Return the raw properties of a record."""
    _, record, buffer, at = scanned
    return buffer[record.properties_at : at + record.size]


@dataclass(slots=True)
class LogEnd:
    """End and damaged places of a log.

    Several scans of one log may share it: a damaged place counts once.
    """

    offset: int
    damaged: int = 0
    damaged_bytes: int = 0
    places: dict[int, int] = field(default_factory=dict)
    """The damaged places, up to MAX_PLACES of them: commit-log offset -> bytes."""

    def add(self, offset: int, size: int) -> None:
        """Add *size* damaged bytes at *offset*."""
        if offset in self.places:
            return
        self.damaged += 1
        self.damaged_bytes += size
        if len(self.places) < MAX_PLACES:
            self.places[offset] = size


def _nowhere(scanned: Scanned) -> None:
    """Ignore where damaged records had their place."""


class LogScan:
    """Reader of a log that no process writes.

    Unreadable blocks count as damage; *unreadable* are the blocks that others have found.
    """

    def __init__(
        self,
        fs: Fs,
        directory: Path,
        found: Segments,
        crc_from: int,
        unreadable: Unreadable | None = None,
    ) -> None:
        self._fs, self._directory, self._crc_from = fs, directory, crc_from
        self.segment_bytes = found.segment_bytes
        self.start = found.starts[0] if found.starts else 0
        self.limit = found.end
        self._handles = Handles(fs, 2)
        self._unreadable = unreadable or Unreadable()
        self._block = b""
        # commit-log offset of _block
        self._block_at = 0

    @classmethod
    def of_store(
        cls,
        fs: Fs,
        root: Path,
        found: Segments,
        checkpoint: Checkpoint | None,
        unreadable: Unreadable | None = None,
    ) -> Self:
        """Return a scan of the log in *root*, with the data of *checkpoint*. Raises OSError."""
        crc_from = checkpoints.crc_from(fs, root, checkpoint)
        return cls(fs, root / "commitlog", found, crc_from, unreadable)

    def records(
        self,
        position: int,
        result: LogEnd,
        *,
        torn_from: int | None = None,
        torn_window: int = 0,
        spoiled: Callable[[Scanned], None] = _nowhere,
    ) -> Iterator[Scanned]:
        """Yield every valid record from *position* on. *result* is complete when the iteration
        ends.

        *torn_from*: damage at or after it, with less than *torn_window* bytes of records behind it,
        ends the log. *spoiled* is called, in their order, for damaged records whose lengths fit:
        the place in a queue that they have is probably right.
        """
        while True:
            position = yield from self.whole(position)
            follower = self.next_valid(position)
            if follower is None:
                for one in self._spoiled(position, self.limit):
                    spoiled(one)
                break
            if (
                torn_from is not None
                and position >= torn_from
                and self._is_torn(position, follower, torn_window)
            ):
                break
            for one in self._spoiled(position, follower):
                spoiled(one)
            result.add(position, follower - position)
            position = follower
        result.offset = position

    def next_valid(self, position: int) -> int | None:
        """Return the offset of the first valid record after the damage at *position*.

        Skip the inside of a damaged record as far as its end is known: a body may contain whole
        records of a topic to which its sender has no right. If the end in the record is not
        confirmed, search everything behind its start, or behind its body: otherwise a damaged size
        would lose the records behind it.
        """
        while position < self.limit:
            claim = self._claim(position)
            ends = [
                position + size
                for size in claim.sizes
                if claim.is_proven or self._is_like_an_end(position + size)
            ]
            if ends:
                position = ends[0] if self._leads_to(ends[0], ends[-1]) else ends[-1]
                if _is_blank(
                    self._bytes(position, BLANK_BYTES), self._segment_end(position) - position
                ):
                    position = self._segment_end(position)
            elif (
                found := self._search(position + max(1, claim.inside), self._segment_end(position))
            ) is not None:
                return found
            else:
                position = self._segment_end(position)
            if self._record(position) is not None:
                return position
        return None

    def is_end(self, position: int) -> bool:
        """Return True if nothing was ever written at *position*."""
        return position >= self.limit or not (
            any(self._bytes(position, BLANK_BYTES)) or self._is_unreadable(position, BLANK_BYTES)
        )

    def writable_from(self, position: int) -> int:
        """Return *position*, or the end of the unreadable block that contains it. Nothing follows
        there.
        """
        inside = position % self.segment_bytes % BLOCK
        return (
            position + BLOCK - inside if inside and self._is_unreadable(position, 1) else position
        )

    def used_after(self, position: int) -> int:
        """Return the number of bytes from *position* to the last one in its segment that is not
        zero, or cannot be read.
        """
        start, end, used = position, self._segment_end(position), 0
        while position < end:
            block = self._bytes(position, _BLOCK)
            if self._is_unreadable(position, len(block)):
                used = position + len(block) - start
            elif block.count(0) != len(block):
                used = position + len(block.rstrip(b"\0")) - start
            position += len(block) or end
        return used

    def close(self) -> None:
        self._handles.close()

    def whole(self, position: int) -> Generator[Scanned, None, int]:
        """Yield the valid records up to the first place without one, and return its offset."""
        block, base, crc_from = self._block, self._block_at, self._crc_from
        while position < self.limit:
            at = position - base
            if (
                native is not None
                and (run := native.whole_records(block, at, position, self.limit, _AT_ONCE, Record))
                is not None
            ):
                found, position = run
                if found:
                    yield from found
                    continue
            record = read_record(block, at, position, crc_from) if at >= 0 else None
            if record is None:
                block, base, at = self._load(position), position, 0
                record = read_record(block, 0, position, crc_from)
            if record is None:
                if not _is_blank(block, self._segment_end(position) - position):
                    break
                position = self._segment_end(position)
                continue
            yield position, record, block, at
            position += record.size
        return position

    def _spoiled(self, position: int, end: int) -> Iterator[Scanned]:
        """Yield consecutive damaged records from *position* to *end*, as long as their lengths
        fit.
        """
        while position < end:
            block = self._load(position)
            record = read_record(block, 0, position, self._crc_from, spoiled=True)
            if record is None or position + record.size > end:
                return
            yield position, record, block, 0
            position += record.size

    def _is_torn(self, position: int, follower: int, window: int) -> bool:
        """Return True if the damage at *position* may be from a power cut: it can be read, and few
        bytes of records follow it.
        """
        return (
            not self._is_unreadable(position, follower - position)
            and self._end_after(follower) - position <= window
        )

    def _end_after(self, position: int) -> int:
        """Return the end of the last valid record, from a valid one at *position* on."""
        follower: int | None = position
        while follower is not None:
            run = self.whole(follower)
            while True:
                try:
                    next(run)
                except StopIteration as stop:
                    position = stop.value
                    break
            follower = self.next_valid(position)
        return position

    def _record(self, position: int) -> Record | None:
        return read_record(self._load(position), 0, position, self._crc_from)

    def _claim(self, position: int) -> SizeClaim:
        room = min(self._segment_end(position) - BLANK_BYTES, self.limit) - position
        return claim_of(
            lambda at, count: self._bytes(position + at, min(count, room - at)),
            room,
            position,
            self._crc_from,
        )

    def _is_like_an_end(self, position: int) -> bool:
        """Return True if a record, damaged or not, or a segment's blank begins here, or the log
        ends: zeros, and not before.
        """
        head = self._bytes(position, HEAD.size)
        if not any(head):
            # the end of a topic, and the length of no properties, at least
            return any(self._bytes(position - 3, 3))
        return (
            _is_blank(head, self._segment_end(position) - position)
            or head[4:8] in _MAGICS
            or _own_offset(head, 0) == position
        )

    def _leads_to(self, position: int, end: int) -> bool:
        """Return True if consecutive valid records go from *position* to *end*, or beyond it.

        A damaged record may have two different ends: records before the farther one are real if
        they continue to it; records inside a body stop before the properties behind them. A last
        record inside a body may take these properties for its own; then it must have a checksum,
        which does not match.
        """
        run = self.whole(position)
        while position < end:
            try:
                offset, record, _, _ = next(run)
            except StopIteration as stop:
                return bool(stop.value >= end)
            if offset >= self._crc_from and not is_checked_whole(record):
                return False
            position = offset + record.size
        return True

    def _search(self, position: int, end: int) -> int | None:
        """Return the first valid record from *position* to *end*, found by its magic and its own
        offset.
        """
        while position < end:
            block = self._bytes(position, min(_BLOCK, end - position))
            for candidate in _candidates(block, position):
                if (
                    self._may_be_a_record(position + candidate)
                    and self._record(position + candidate) is not None
                ):
                    return position + candidate
            if len(block) < _BLOCK:
                return None
            # a head may cross the border
            position += len(block) - HEAD.size
        return None

    def _may_be_a_record(self, position: int) -> bool:
        """Return True if a few bytes fit a record: bytes that only look like a head may have any
        size, and a body may hold a hundred thousand of them.
        """
        room = min(self._segment_end(position), self.limit) - position
        return has_fitting_lengths(
            lambda at, count: self._bytes(position + at, min(count, room - at)), room
        )

    def _load(self, position: int) -> bytes:
        """Read a block from *position* on with at least one whole record, if one starts there."""
        size = int.from_bytes(self._bytes(position, 4))
        self._block = (
            self._bytes(position, max(_BLOCK, size))
            if size <= self.segment_bytes
            else self._bytes(position, 4096)
        )
        self._block_at = position
        return self._block

    def _bytes(self, position: int, size: int) -> bytes:
        start = position - position % self.segment_bytes
        if position >= self.limit:
            return b""
        path = segment_path(self._directory, start)
        size = min(size, start + self.segment_bytes - position)
        return self._unreadable.read(
            self._fs, self._handles.get(path), path, size, position - start
        )

    def _is_unreadable(self, position: int, size: int) -> bool:
        """Return True if any of these bytes could not be read; they may reach into the next
        segment.
        """
        start = position - position % self.segment_bytes
        while start < position + size:
            begin, end = max(start, position), min(start + self.segment_bytes, position + size)
            if self._unreadable.is_in(
                segment_path(self._directory, start), end - begin, begin - start
            ):
                return True
            start += self.segment_bytes
        return False

    def _segment_end(self, position: int) -> int:
        return position - position % self.segment_bytes + self.segment_bytes


def _is_blank(block: bytes, room: int) -> bool:
    return len(block) >= BLANK_BYTES and BLANK.unpack_from(block) == (room, MAGIC_BLANK)


def _candidates(block: bytes, position: int) -> Iterator[int]:
    """Yield the places in *block*, which is at *position* of the log, where a record could start,
    by its magic and its own offset, in order.
    """
    at = {magic: block.find(magic) for magic in _MAGICS}
    while found := [(where, magic) for magic, where in at.items() if where >= 0]:
        where, magic = min(found)
        if where >= 4 and _own_offset(block, where - 4) == position + where - 4:
            yield where - 4
        at[magic] = block.find(magic, where + 1)


def _own_offset(block: bytes, at: int) -> int:
    """Return the commit-log offset in a record at byte *at*."""
    return int.from_bytes(block[at + 28 : at + 36])


# of one step
MAX_RECORDS: Final = 1000


class Scrubbed(NamedTuple):
    """End of a step, and the damaged places in it: (commit-log offset, bytes)."""

    position: int
    damaged: list[tuple[int, int]]


def scrub(
    fs: Fs,
    directory: Path,
    segment_bytes: int,
    crc_from: int,
    unreadable: Unreadable,
    position: int,
    end: int,
    most_bytes: int,
) -> Scrubbed:
    """Check the records from *position* on, about *most_bytes* of them, on any thread.

    Raises OSError; FileNotFoundError after retention.
    """
    found = Segments((position - position % segment_bytes,), segment_bytes)
    damaged: list[tuple[int, int]] = []
    stop, count = min(end, position + most_bytes), 0
    with closing(LogScan(fs, directory, found, crc_from, unreadable)) as scan:
        scan.limit = end
        while position < stop and count < MAX_RECORDS:
            run = scan.whole(position)
            try:
                while position < stop and count < MAX_RECORDS:
                    position, record, _, _ = next(run)
                    position += record.size
                    count += 1
            except StopIteration as finished:
                position = finished.value
                if position < end:
                    follower = scan.next_valid(position) or end
                    damaged.append((position, follower - position))
                    position = follower
                    # a search costs as much
                    count += MAX_RECORDS // 10
    return Scrubbed(position, damaged)
