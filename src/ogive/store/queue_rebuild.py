"""Check the files of consume queues at the start, before the log is read, and find due times for
rebuilt entries.

A delayed message whose queue entry is rebuilt from the log needs its due time. The log has its
store time and its level, but not the delay that the level had then. apache-broker.conf has it: the
delay levels of the last start, and earlier ones with the commit-log offset up to which they
applied. If an entry of the old files still refers to the message, its time counts if it is later:
the levels may have been others before anything recorded them. So a message may be late if all of
that is lost, but is never early.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.checkpoint import QueueCheckpoint
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES, ConsumeQueue
from ogive.store.fs import Fs
from ogive.store.queue_types import QueueKind
from ogive.store.segments import Handles, segment_names, segment_path
from ogive.store.tables import read_file
from ogive.store.types import APACHE_CONF, QueueKey
from ogive.wire.checksum import crc32
from ogive.wire.numbers import DelayLevels

log = logging.getLogger(__name__)


def end_of_files(fs: Fs, kind: QueueKind, key: QueueKey) -> int:
    """Return one past the last offset in the files of a queue."""
    directory = kind.directory(key)
    for name in reversed(segment_names(fs, directory)):
        handle = fs.open(directory / name)
        try:
            raw = read_or_nothing(fs, handle, directory / name, kind.file_bytes, 0)
            end = kind.queue.end_in_file(int(name) // kind.queue.entry_bytes, raw)
        finally:
            fs.close(handle)
        if end:
            return end
    return 0


def check_queue(fs: Fs, handles: Handles, kind: QueueKind, state: QueueCheckpoint) -> bool:
    """Return True if the files have exactly the entries that the checkpoint counted."""
    file_entries = kind.file_entries
    entry_bytes = kind.queue.entry_bytes
    directory = kind.directory(state.key)
    index = state.first_file * file_entries
    for crc in state.crcs:
        count = min(file_entries, state.end - index)
        path = segment_path(directory, index * entry_bytes)
        try:
            handle = handles.get(path)
        except FileNotFoundError:
            return False
        if fs.size(handle) != file_entries * entry_bytes:
            return False
        if crc32(read_or_nothing(fs, handle, path, count * entry_bytes, 0)) != crc:
            return False
        index += count
    return index == state.end


def restored(state: QueueCheckpoint, kind: QueueKind) -> ConsumeQueue:
    """Return the queue in the state of the checkpoint, with all entries in its files."""
    queue = kind.new(state.key)
    queue.begin_at(state.first_index, state.min_offset)
    queue.max_offset = queue.next_offset = state.max_offset
    queue.written = queue.handed = queue.tail_start = state.end
    queue.first_file = state.first_file
    queue.crcs = list(state.crcs)
    return queue


_LEVELS: Final = "messageDelayLevel"
_BEFORE: Final = "# before commit-log offset "
# tables: who changes the levels every day has three months of them
_MAX_EARLIER: Final = 100
_MAX_OFFSET_DIGITS: Final = 19
# what an entry says beyond that, and no table does, is damage
_LONGEST_MS: Final = 366 * 24 * 3600 * 1000
# files; there are 18 levels
_MAX_OPEN: Final = 32
_BLOCK_ENTRIES: Final = 1024


@dataclass(frozen=True, slots=True)
class LevelTables:
    """*earlier*: tables of delay levels, each with the commit-log offset up to which it applied, in
    order; *last* has applied since then.
    """

    # None: no broker of ours has said
    last: DelayLevels | None = None
    earlier: tuple[tuple[int, DelayLevels], ...] = ()

    @classmethod
    def read(cls, fs: Fs, root: Path) -> "LevelTables":
        """Read the tables of a directory. Raises OSError."""
        last, earlier = None, []
        for line in (
            (read_file(fs, root / APACHE_CONF) or b"").decode("utf-8", "replace").splitlines()
        ):
            name, _, value = line.partition("=")
            until, _, setting = name.removeprefix(_BEFORE).partition(": ")
            try:
                if name == _LEVELS:
                    last = DelayLevels.parse(value)
                elif (
                    name.startswith(_BEFORE)
                    and setting == _LEVELS
                    and until.isdecimal()
                    and len(until) <= _MAX_OFFSET_DIGITS
                ):
                    earlier.append((int(until), DelayLevels.parse(value)))
            except InvalidOption as exc:
                log.warning("ignored %s: %s", root / APACHE_CONF, exc)
        return cls(last, tuple(sorted(earlier, key=lambda one: one[0])))

    def at(self, commitlog_offset: int) -> DelayLevels | None:
        """Return the levels that applied to a message there."""
        return next(
            (levels for until, levels in self.earlier if commitlog_offset < until), self.last
        )

    def followed_by(self, levels: DelayLevels, start: int, end: int) -> "LevelTables":
        """Return these tables with *levels* from now on, for a log from *start* to *end*."""
        # end: a power cut took what was behind it
        earlier = [(min(until, end), table) for until, table in self.earlier if until > start]
        if self.last is not None and self.last != levels and end > start:
            earlier.append((end, self.last))
        return LevelTables(levels, tuple(earlier[-_MAX_EARLIER:]))

    def lines(self) -> str:
        """Return *earlier* as comments, which read() finds and Apache's broker ignores."""
        return "".join(
            f"{_BEFORE}{until}: {_LEVELS}={_text(levels)}\n" for until, levels in self.earlier
        )


def _text(levels: DelayLevels) -> str:
    """Return a text that DelayLevels.parse() reads as *levels*."""
    return " ".join([f"{delay_ms // 1000}s" for delay_ms in levels.delays_ms])


class DueTimes:
    """Due times for one message after the other; call it before the new entry is written over the
    old one.
    """

    def __init__(self, fs: Fs, root: Path, default: DelayLevels) -> None:
        self._default = default
        self._tables = LevelTables.read(fs, root)
        self._handles = Handles(fs, _MAX_OPEN)
        # first index, entries of the old file
        self._blocks: dict[ConsumeQueue, tuple[int, bytes]] = {}

    def of(
        self, queue: ConsumeQueue, commitlog_offset: int, size: int, level: int, stored_ms: int
    ) -> int:
        """Return the due time of the message that gets the next index of *queue*. Raises
        OSError.
        """
        due_ms = stored_ms + (self._tables.at(commitlog_offset) or self._default).delay_ms(level)
        raw = self._old_entry(queue, queue.end)
        if len(raw) == ENTRY_BYTES:
            old_offset, old_size, old_ms = ENTRY.unpack(raw)
            if (old_offset, old_size) == (
                commitlog_offset,
                size,
            ) and due_ms < old_ms <= stored_ms + _LONGEST_MS:
                return int(old_ms)
        return due_ms

    def close(self) -> None:
        self._handles.close()

    def _old_entry(self, queue: ConsumeQueue, index: int) -> bytes:
        first, block = self._blocks.get(queue, (0, b""))
        at = (index - first) * ENTRY_BYTES
        if not 0 <= at < len(block):
            within = index % queue.file_entries
            path = segment_path(queue.directory, (index - within) * ENTRY_BYTES)
            count = min(_BLOCK_ENTRIES, queue.file_entries - within)
            block, at = self._handles.read(path, count * ENTRY_BYTES, within * ENTRY_BYTES), 0
            # or it would be read for each entry
            block = block or bytes(count * ENTRY_BYTES)
            self._blocks[queue] = index, block
        return block[at : at + ENTRY_BYTES]
