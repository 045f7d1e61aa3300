"""Queues of topics of batches (queue.type=BatchCQ): a batch is one record of the log, and one entry
with its first offset and its count.

So an entry's index is not its offset: the entry of an offset is searched for, by the offsets that
stand in the entries. Offsets without a record have no entry. The files are Apache's, in
batchconsumequeue/. Source: BatchConsumeQueue.java, 5.5.
"""

import struct
from collections.abc import Iterator
from typing import ClassVar, Final, NamedTuple

from ogive.native import Wanted
from ogive.store.consumequeue import FILLER_SIZE, ConsumeQueue, ReadEntry
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAX_INNER_MESSAGES, raw_property

UNIT: Final = struct.Struct(">qiqqqhii")
"""commit-log offset, record size, tags code, store timestamp, first offset, messages; then what
compaction uses, and 4 bytes of reserve
"""
UNIT_BYTES: Final = UNIT.size
_UNIT_READ: Final = struct.Struct(">qi4xi8xqh8x")
"""the same with the low 32 bits of the tags code, which is what filters compare, and without the
store timestamp
"""
_OFFSETS: Final = struct.Struct(">28xqh8x")
_NOT_COMPACTED: Final = -1


class BatchUnit(NamedTuple):
    """One entry, as far as a pull needs it."""

    commitlog_offset: int
    size: int
    tag_hash: int
    offset: int
    messages: int


def units(raw: bytes) -> Iterator[BatchUnit]:
    return map(BatchUnit._make, _UNIT_READ.iter_unpack(raw))


class BatchQueue(ConsumeQueue):
    """See ConsumeQueue, and the module."""

    __slots__ = ("_first_index",)

    layout: ClassVar[struct.Struct] = UNIT
    entry_bytes: ClassVar[int] = UNIT_BYTES
    # a message without body and properties, within a batch
    log_bytes: ClassVar[int] = 22

    def _begin(self, index: int) -> None:
        super()._begin(0)
        self._first_index = 0

    @property
    def first_index(self) -> int:
        return self._first_index

    @property
    def end(self) -> int:
        return self.tail_start + len(self.tail) // UNIT_BYTES

    @property
    def own_indexes(self) -> tuple[int, int]:
        return self.first_index, self.end

    def index_of(self, offset: int, read: ReadEntry) -> int:
        low, high = self.first_index, self.end
        # invariant: all before low end at or before the offset, that at high does not
        while low < high:
            middle = (low + high) // 2
            probe, raw = self._readable(middle, high, read)
            if raw and _end_of(raw) <= offset:
                low = probe + 1
            else:
                high = middle
        return low

    def offset_at(self, index: int, read: ReadEntry) -> int:
        _, raw = self._readable(index, self.end, read)
        return _OFFSETS.unpack(raw)[0] if raw else self.max_offset

    def _readable(self, index: int, end: int, read: ReadEntry) -> tuple[int, bytes]:
        """The first entry from *index* on that can be read, and its index; nothing where there is
        none before *end*.
        """
        while index < end:
            raw = read(index)
            if raw and self.makes_sense(*_OFFSETS.unpack(raw)):
                return index, raw
            index += 1 if raw else self.file_entries - index % self.file_entries
        return end, b""

    def makes_sense(self, offset: int, count: int) -> bool:
        """Whether an entry may say so; one whose file was damaged since the start may say
        anything.
        """
        return 0 <= offset < offset + count <= self.max_offset

    def begin_at(self, index: int, offset: int) -> None:
        self._first_index, self.min_offset = index, offset

    def record_at(self, index: int, raw: bytes) -> Wanted | None:
        commitlog_offset, size, _, offset, _ = _UNIT_READ.unpack(raw)
        return None if size == FILLER_SIZE else (commitlog_offset, size, offset)

    def entry(
        self,
        commitlog_offset: int,
        size: int,
        tags_code: int,
        stored_ms: int,
        offset: int,
        count: int,
    ) -> bytes:
        return UNIT.pack(
            commitlog_offset, size, tags_code, stored_ms, offset, count, _NOT_COMPACTED, 0
        )

    @staticmethod
    def end_in_file(first: int, raw: bytes) -> int:
        end = 0
        for commitlog_offset, size, _, offset, count in _UNIT_READ.iter_unpack(
            raw[: len(raw) - len(raw) % UNIT_BYTES]
        ):
            if commitlog_offset < 0 or size <= 0 or offset < 0 or count <= 0:
                break
            end = offset + count
        return end

    def pad(self, until: int) -> int:
        """A queue without any entry gets one that has no record: where the queue goes on is known
        from its last entry alone.
        """
        self.max_offset = max(self.max_offset, until)
        if self.end or not self.max_offset:
            return 0
        self.tail += UNIT.pack(0, FILLER_SIZE, 0, 0, self.max_offset - 1, 1, _NOT_COMPACTED, 0)
        self.begin_at(1, self.max_offset)
        return 1


def _end_of(raw: bytes) -> int:
    offset, count = _OFFSETS.unpack(raw)
    return int(offset) + int(count)


# --- records that hold a batch whole --------------------------------------------------------------


def messages_in(sys_flag: int, properties: bytes) -> int:
    """How many messages a record with these properties counts as; 0 where it says what cannot be.

    Source: CommitLog.setBatchSizeIfNeeded, 5.5.
    """
    if not sys_flag & SysFlag.INNER_BATCH:
        return 1
    said = raw_property(properties, b"INNER_NUM")
    if said is None or raw_property(properties, b"INNER_BASE") is None:
        return 1
    count = int(said) if said.isdigit() and len(said) < 6 else 0
    return count if count <= MAX_INNER_MESSAGES else 0


def with_first_offset(properties: bytes, offset: int) -> bytes:
    """The properties of a batch that gets *offset*.

    Source: BatchConsumeQueue.assignQueueOffset, 5.5.
    """
    return (
        properties
        + (b"" if not properties or properties[-1] == 2 else b"\x02")
        + b"INNER_BASE\x01%d\x02" % offset
    )
