"""Checksums over blocks of the commit log that this process wrote, so that its records need not be
checked one by one when they are read back.

The check of a record is half the cost of a pull from disk, because each checksum is computed by
itself and formatted as a property. A checksum over 64 KiB takes 16 µs. It is computed while the
bytes are written to the log, and proves more: that they are the bytes that were written. Blocks
follow each other from the log's start on, regardless of where records begin, so that one number
names each.

Only whole blocks have a checksum: not a block that was begun before this start or that a segment's
end cuts off, and no block that recovery found. The function is crc32, the fastest of the standard
library; adler32 is slower and does not notice some sectors that changed places.
"""

from array import array
from typing import Final

from ogive.wire.checksum import crc32

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
        self._sums = array("q")  # or _NONE
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
