"""Consume queues: for each (topic, queue id) the entries that say where its messages are in the commit log.

They are derived: written late and in batches, never synced, checked by checksums at the start, and rebuilt from the log where those do not
match. The newest entries stay in memory. Source: ConsumeQueue.java, 5.3.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.model import SCHEDULE_TOPIC
from ogive.store.disk import Disk
from ogive.store.fs import Fs
from ogive.store.model import QueueKey
from ogive.store.record import fixed_bytes, topic_field
from ogive.store.segments import Handles, segment_path
from ogive.wire.checksum import crc32

ENTRY: Final = struct.Struct(">qiq")
"""commit-log offset, record size, tags code"""
ENTRY_HASH: Final = struct.Struct(">qi4xi")
"""the same with the low 32 bits of the tags code, which is what filters compare"""
ENTRY_BYTES: Final = ENTRY.size
FILLER_SIZE: Final = 2147483647
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
"""stands for an offset that has no record"""
_MAX_NAME_BYTES: Final = 255


def names_a_directory(topic: str) -> bool:
    """Whether the files of *topic* would be in a directory of its own. A record may say anything: who sends may put one into a body, and
    a search behind damage may come upon it."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic and len(topic.encode()) <= _MAX_NAME_BYTES


@dataclass(frozen=True, slots=True)
class QueueWrite:
    """Entries from *index* on, to be written into the files of *directory*."""

    directory: Path
    file_entries: int
    index: int
    entries: bytes

    @property
    def end(self) -> int:
        """One past the last index."""
        return self.index + len(self.entries) // ENTRY_BYTES


class ConsumeQueue:
    """Offsets and newest entries of one queue. Owner thread only; files are written through QueueWrite."""

    __slots__ = (
        "crcs", "directory", "file_entries", "first_file", "fixed_bytes", "handed", "key", "max_offset", "min_offset", "next_offset",
        "scheduled", "tail", "tail_start", "topic_bytes", "topic_field", "written",
    )  # fmt: skip

    def __init__(self, key: QueueKey, directory: Path, file_entries: int, first: int = 0) -> None:
        self.key, self.directory, self.file_entries = key, directory, file_entries
        self.topic_bytes = key[0].encode()
        self.topic_field = topic_field(self.topic_bytes)
        self.fixed_bytes = fixed_bytes(self.topic_field)  # of a record, beside body and properties
        self.scheduled = key[0] == SCHEDULE_TOPIC  # tags codes are delivery times
        self.min_offset = first
        self.max_offset = first  # visible: durable and dispatched
        self.next_offset = first  # the next put takes it
        self.tail = bytearray()  # entries tail_start .. max_offset
        self.tail_start = first
        self.written = first  # entries before it are in the files
        self.handed = first  # entries before it were handed to the writer
        self.first_file = first // file_entries
        self.crcs: list[int] = []  # of the entries in each file, from first_file on, up to `handed`
        if first % file_entries:  # the rest of the first file says that these offsets have no record
            self.tail += FILLER * (first % file_entries)
            self.tail_start = self.written = self.handed = first - first % file_entries

    def append(self, entry: bytes) -> None:
        self.tail += entry
        self.max_offset += 1

    def pad(self, until: int) -> int:
        """Fill the offsets before *until* that have no record; how many."""
        missing = max(0, until - self.max_offset)
        self.tail += FILLER * missing
        self.max_offset += missing
        return missing

    def take_write(self) -> QueueWrite | None:
        """Entries that no file holds yet; counts them as handed to the writer."""
        if self.handed == self.max_offset:
            return None
        entries = bytes(self.tail[(self.handed - self.tail_start) * ENTRY_BYTES :])
        write = QueueWrite(self.directory, self.file_entries, self.handed, entries)
        for index, piece in split_at_files(write):
            number = index // self.file_entries - self.first_file
            if number == len(self.crcs):
                self.crcs.append(0)
            self.crcs[number] = crc32(piece, self.crcs[number])
        self.handed = self.max_offset
        return write

    def drop_files(self) -> list[Path]:
        """Forget the files that hold nothing from min_offset on; what to remove. Never the newest, which tells where the queue goes on."""
        gone = []
        newest = max(0, self.max_offset - 1) // self.file_entries
        while self.first_file < min(self.min_offset // self.file_entries, newest, self.written // self.file_entries):
            gone.append(segment_path(self.directory, self.first_file * self.file_entries * ENTRY_BYTES))
            self.first_file += 1
            del self.crcs[:1]
        return gone

    def drop_written(self, most: int) -> int:
        """Forget up to *most* of the oldest entries in memory that the files hold; how many."""
        drop = min(most, self.written - self.tail_start)
        del self.tail[: drop * ENTRY_BYTES]
        self.tail_start += drop
        return drop

    def in_memory(self, index: int, count: int) -> bytes | None:
        """Entries index .. index + count, fewer at the end; None if the files must be asked."""
        if index < self.tail_start:
            return None
        at = (index - self.tail_start) * ENTRY_BYTES
        return bytes(self.tail[at : at + count * ENTRY_BYTES])


def read_entries(disk: Disk, queue: ConsumeQueue, index: int, count: int) -> bytes:
    """Entries of one file from *index* on, at most *count*. Raises FileNotFoundError, OSError, Cold."""
    at = index % queue.file_entries
    path = segment_path(queue.directory, (index - at) * ENTRY_BYTES)
    return disk.read(path, min(count, queue.file_entries - at) * ENTRY_BYTES, at * ENTRY_BYTES)


class QueueFiles:
    """Changes the files of all consume queues, through a bounded number of handles."""

    def __init__(self, fs: Fs, max_open: int) -> None:
        self._fs = fs
        self._handles = Handles(fs, max_open)

    def write(self, writes: Iterable[QueueWrite]) -> None:
        for write in writes:
            for index, piece in split_at_files(write):
                at = index % write.file_entries
                path = segment_path(write.directory, (index - at) * ENTRY_BYTES)
                if at == 0:
                    self._fs.make_dirs(write.directory)
                    handle = self._handles.create(path, write.file_entries * ENTRY_BYTES)
                else:
                    handle = self._handles.get(path)
                self._fs.pwrite(handle, piece, at * ENTRY_BYTES)

    def cut(self, queue: ConsumeQueue) -> None:
        """Make sure that the last file holds zeros behind the written entries."""
        at = queue.written % queue.file_entries
        if at == 0:
            return
        handle = self._handles.get(segment_path(queue.directory, (queue.written - at) * ENTRY_BYTES))
        self._fs.truncate(handle, at * ENTRY_BYTES)
        self._fs.truncate(handle, queue.file_entries * ENTRY_BYTES)

    def unlink(self, path: Path) -> None:
        self._handles.forget(path)
        self._fs.unlink(path)

    def remove(self, directory: Path) -> None:
        """A queue's directory with everything in it."""
        for name in self._fs.list(directory):
            self._handles.forget(directory / name)
            self._fs.unlink(directory / name)
        self._fs.remove_dir(directory)

    def close(self) -> None:
        self._handles.close()


def split_at_files(write: QueueWrite) -> list[tuple[int, bytes]]:
    """(index of the first entry, entries) for each file that a write touches."""
    pieces: list[tuple[int, bytes]] = []
    index, at = write.index, 0
    while at < len(write.entries):
        room = (write.file_entries - index % write.file_entries) * ENTRY_BYTES
        pieces.append((index, write.entries[at : at + room]))
        index += len(pieces[-1][1]) // ENTRY_BYTES
        at += room
    return pieces
