"""Consume queues: for each (topic, queue id) the entries with the places of its messages in the
commit log.

They are derived: written late and in batches, never synced, checked by checksums at the start, and
rebuilt from the log if those do not match. The newest entries stay in memory. Source:
ConsumeQueue.java, 5.3.
"""

import errno
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from ogive.model import SCHEDULE_TOPIC
from ogive.native import Wanted
from ogive.store.file_reader import Disk, Handles
from ogive.store.fs import Fs
from ogive.store.record import ENTRY as ENTRY
from ogive.store.record import topic_field
from ogive.store.segments import segment_path
from ogive.store.types import QueueKey
from ogive.wire.checksum import crc32

ENTRY_HASH: Final = struct.Struct(">qi4xi")
"""the same with the low 32 bits of the tags code, which filters compare"""
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 2147483647
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
"""the entry for an offset that has no record"""
ReadEntry = Callable[[int], bytes]
"""Function that returns the entry at an index; nothing if its file is missing. It may raise
StoreError, Cold.
"""
_MAX_NAME_BYTES: Final = 255


def names_a_directory(topic: str) -> bool:
    """Return True if *topic* can be the name of a directory.

    A record may have any topic: a client may write one into a body, and a search behind damage may
    find it.
    """
    try:
        raw = topic.encode()
    except UnicodeEncodeError:
        # a directory whose name is no UTF-8
        return False
    return (
        topic not in ("", ".", "..")
        and "/" not in topic
        and "\0" not in topic
        and len(raw) <= _MAX_NAME_BYTES
    )


@dataclass(frozen=True, slots=True)
class QueueWrite:
    """Entries from *index* on, to be written into the files of *directory*."""

    directory: Path
    file_entries: int
    index: int
    entries: bytes
    entry_bytes: int = ENTRY_BYTES

    @property
    def end(self) -> int:
        """One past the last index."""
        return self.index + len(self.entries) // self.entry_bytes


class ConsumeQueue:
    """Offsets and newest entries of one queue.

    Owner thread only; files are written through QueueWrite.

    Entries have indexes. In this class each entry is for one offset, and its index is that offset;
    in a BatchQueue it is not. So callers with an offset must use index_of() and offset_at(), unless
    they know that the queue is an ordinary one.
    """

    __slots__ = (
        "crcs",
        "directory",
        "file_entries",
        "first_file",
        "handed",
        "key",
        "max_offset",
        "min_offset",
        "next_offset",
        "place",
        "scheduled",
        "tail",
        "tail_start",
        "topic_bytes",
        "topic_field",
        "usual",
        "written",
    )

    layout: ClassVar[struct.Struct] = ENTRY
    """format of an entry; it begins with commit-log offset, record size and tags code"""
    entry_bytes: ClassVar[int] = ENTRY_BYTES
    log_bytes: ClassVar[int] = 91
    """the least number of bytes in the log for each offset"""

    def __init__(self, key: QueueKey, directory: Path, file_entries: int, first: int = 0) -> None:
        self.key, self.directory, self.file_entries = key, directory, file_entries
        self.topic_bytes = key[0].encode()
        self.topic_field = topic_field(self.topic_bytes)
        # what records for it are built with
        self.place = (*key, self.topic_field, self.topic_bytes)
        # tags codes are delivery times
        self.scheduled = key[0] == SCHEDULE_TOPIC
        # its entries are those of build_records()
        self.usual = self.layout is ENTRY and not self.scheduled
        self.min_offset = first
        # visible: durable and dispatched
        self.max_offset = first
        # the next put takes it
        self.next_offset = first
        # entries tail_start .. end
        self.tail = bytearray()
        self._begin(first)

    def _begin(self, index: int) -> None:
        """Give *index* to the first entry. The part of its file before it says that these offsets
        have no record.
        """
        missing = index % self.file_entries
        self.tail += FILLER * missing
        self.tail_start = index - missing
        # entries before it are in the files
        self.written = index - missing
        # entries before it were handed to the writer
        self.handed = index - missing
        self.first_file = index // self.file_entries
        # of the entries in each file, from first_file on, up to `handed`
        self.crcs: list[int] = []

    # --- offsets and indexes ----------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The index of min_offset."""
        return self.min_offset

    @property
    def end(self) -> int:
        """One past the index of the last visible entry."""
        return self.max_offset

    @property
    def own_indexes(self) -> tuple[int, int] | None:
        """first_index and end, if they differ from the offsets"""
        return None

    def index_of(self, offset: int, read: ReadEntry) -> int:
        """Return the index of the entry that has *offset*, or of the next one."""
        return offset

    def offset_at(self, index: int, read: ReadEntry) -> int:
        """Return the first offset of the entry at *index*, or max_offset at the end."""
        return index

    def begin_at(self, index: int, offset: int) -> None:
        """Make the entry at *index*, with *offset*, the lowest."""
        self.min_offset = offset

    def record_at(self, index: int, raw: bytes) -> Wanted | None:
        """Return the record of the entry *raw*, or None."""
        commitlog_offset, size, _ = ENTRY.unpack(raw)
        return None if size == FILLER_SIZE else (commitlog_offset, size, index)

    # --- entries ----------------------------------------------------------------------------------

    def entry(
        self,
        commitlog_offset: int,
        size: int,
        tags_code: int,
        stored_ms: int,
        offset: int,
        count: int,
    ) -> bytes:
        """Return the entry of a record with the messages from *offset* up to *offset* + *count*.
        Raises struct.error for a number that does not fit.
        """
        return ENTRY.pack(commitlog_offset, size, tags_code)

    @staticmethod
    def end_in_file(first: int, raw: bytes) -> int:
        """Return one past the last offset of a file *raw* whose first entry has the index
        *first*.
        """
        used = 0
        for commitlog_offset, size, _ in ENTRY.iter_unpack(
            raw[: len(raw) - len(raw) % ENTRY_BYTES]
        ):
            if size <= 0 or commitlog_offset < 0:
                break
            used += 1
        return first + used

    def append(self, entry: bytes, count: int = 1) -> None:
        """Add *entry*, which is for the next *count* offsets."""
        self.tail += entry
        self.max_offset += count

    def pad(self, until: int) -> int:
        """Give up the offsets before *until* that have no record; return the number of entries for
        them.
        """
        missing = max(0, until - self.max_offset)
        self.tail += FILLER * missing
        self.max_offset += missing
        return missing

    def take_write(self) -> QueueWrite | None:
        """Return entries that are in no file yet, and count them as handed to the writer."""
        end = self.end
        if self.handed == end:
            return None
        entries = bytes(self.tail[(self.handed - self.tail_start) * self.entry_bytes :])
        write = QueueWrite(
            self.directory, self.file_entries, self.handed, entries, self.entry_bytes
        )
        for index, piece in split_at_files(write):
            number = index // self.file_entries - self.first_file
            if number == len(self.crcs):
                self.crcs.append(0)
            self.crcs[number] = crc32(piece, self.crcs[number])
        self.handed = end
        return write

    def drop_files(self) -> list[Path]:
        """Forget the files without an entry from min_offset on; return the files to remove.

        The newest file stays, because it says where the queue continues.
        """
        gone = []
        newest = max(0, self.end - 1) // self.file_entries
        while self.first_file < min(
            self.first_index // self.file_entries, newest, self.written // self.file_entries
        ):
            gone.append(
                segment_path(self.directory, self.first_file * self.file_entries * self.entry_bytes)
            )
            self.first_file += 1
            del self.crcs[:1]
        return gone

    def drop_written(self, most: int) -> int:
        """Forget up to *most* of the oldest entries in memory that are in the files; return their
        number.
        """
        drop = min(most, self.written - self.tail_start)
        del self.tail[: drop * self.entry_bytes]
        self.tail_start += drop
        return drop

    def in_memory(self, index: int, count: int) -> bytes | None:
        """Return entries index .. index + count, fewer at the end, or None if the files must be
        read.
        """
        if index < self.tail_start:
            return None
        size = self.entry_bytes
        at = (index - self.tail_start) * size
        return bytes(self.tail[at : at + count * size])


def read_entries(disk: Disk, queue: ConsumeQueue, index: int, count: int) -> bytes:
    """Read entries of one file from *index* on, at most *count*.

    Raises FileNotFoundError, OSError and Cold. A file that ends before the entries was truncated
    since the start: skipping them would lose messages that the log has.
    """
    at, size = index % queue.file_entries, queue.entry_bytes
    path = segment_path(queue.directory, (index - at) * size)
    wanted = min(count, queue.file_entries - at) * size
    raw = disk.read(path, wanted, at * size)
    if len(raw) < wanted:
        raise OSError(f"{path} was cut, the next start makes it again")
    return raw


class QueueFiles:
    """Files of all consume queues, changed through a bounded number of handles.

    *keep*: a new file keeps the entries that an older file of that name has behind the written
    ones, until leave_only().
    """

    def __init__(self, fs: Fs, max_open: int, *, keep: bool = False) -> None:
        self._fs, self._keep = fs, keep
        self._handles = Handles(fs, max_open)

    def write(self, writes: Iterable[QueueWrite]) -> None:
        for write in writes:
            size = write.entry_bytes
            for index, piece in split_at_files(write):
                at = index % write.file_entries
                path = segment_path(write.directory, (index - at) * size)
                if at == 0:
                    self._fs.make_dirs(write.directory)
                    begin = self._handles.create_over if self._keep else self._handles.create
                    handle = begin(path, write.file_entries * size)
                else:
                    handle = self._handles.get(path)
                try:
                    self._fs.pwrite(handle, piece, at * size)
                except OSError as exc:
                    if not self._keep or exc.errno != errno.EIO:
                        raise
                    self._begin_anew(handle, at * size, write.file_entries * size)
                    self._fs.pwrite(handle, piece, at * size)

    def _begin_anew(self, handle: int, written: int, size: int) -> None:
        """Replace a block of the older file that cannot be read, and so cannot be written in part,
        by the bytes that were written now.
        """
        data = self._fs.pread(handle, written, 0)
        self._fs.truncate(handle, 0)
        self._fs.truncate(handle, size)
        self._fs.pwrite(handle, data, 0)

    def cut(self, queue: ConsumeQueue) -> None:
        """Write zeros behind the entries of the last file, if necessary."""
        at, size = queue.written % queue.file_entries, queue.entry_bytes
        if at == 0:
            return
        handle = self._handles.get(segment_path(queue.directory, (queue.written - at) * size))
        self._fs.clear(handle, at * size)
        if self._fs.size(handle) != queue.file_entries * size:
            self._fs.truncate(handle, queue.file_entries * size)

    def leave_only(self, queue: ConsumeQueue, names: Iterable[str]) -> None:
        """Remove the files *names*, except those with entries of *queue*; write zeros behind
        them.
        """
        size = queue.file_entries * queue.entry_bytes
        kept = {
            segment_path(queue.directory, (queue.first_file + number) * size).name
            for number in range(len(queue.crcs))
        }
        for name in names:
            if name not in kept:
                self.unlink(queue.directory / name)
        self.cut(queue)

    def unlink(self, path: Path) -> None:
        self._handles.forget(path)
        self._fs.unlink(path)

    def remove(self, directory: Path) -> None:
        """Remove a queue's directory with everything in it."""
        for name in self._fs.list(directory):
            self._handles.forget(directory / name)
            self._fs.unlink(directory / name)
        self._fs.remove_dir(directory)

    def close(self) -> None:
        self._handles.close()


def split_at_files(write: QueueWrite) -> list[tuple[int, bytes]]:
    """Return (index of the first entry, entries) for each file that a write touches."""
    pieces: list[tuple[int, bytes]] = []
    index, at = write.index, 0
    while at < len(write.entries):
        room = (write.file_entries - index % write.file_entries) * write.entry_bytes
        pieces.append((index, write.entries[at : at + room]))
        index += len(pieces[-1][1]) // write.entry_bytes
        at += room
    return pieces
