"""Rebuild queues and index from the records of a log.

Behaviour
- The offset of a damaged record whose lengths fit, and which was its queue's next, is not assigned
  again; also at the end of the log.
- A stored time ahead of the machine's clock, in a record without a checksum over the whole, moves
  the store's clock only as far as the record before agrees; one before 1970 counts as 0.
- Which topics are topics of batches is read first, see queue_types.py. A record that holds a whole
  batch and belongs to none of them, because its topic was deleted, gets no entry.
- A delayed message whose queue entry is rebuilt is due by the delay levels with which it was sent,
  see LevelTables.
- The files of a queue that is rebuilt are written over, and the rest of their old contents is
  removed at the end.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption
from ogive.store import checkpoint as checkpoints
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.checkpoint import Checkpoint, QueueCheckpoint
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES, ConsumeQueue, QueueFiles, names_a_directory
from ogive.store.file_reader import Handles
from ogive.store.fs import Fs
from ogive.store.index_file import IndexFiles, Sizes, index_names
from ogive.store.index_file import found_sizes as found_index_sizes
from ogive.store.index_file import restored as restored_index
from ogive.store.key_index import KeyIndex
from ogive.store.log_scan import Scanned, properties_of
from ogive.store.queue_types import QueueKind, QueueKinds, messages_in
from ogive.store.record import MAX_CRC_PROPERTIES, delay_level, tag_hash
from ogive.store.segments import segment_names, segment_path
from ogive.store.tables import read_file
from ogive.store.types import APACHE_CONF, QueueKey, StoreConfig
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.bodies.routes import MAX_QUEUES
from ogive.wire.checksum import crc32
from ogive.wire.codes import SysFlag

# Check the files of consume queues at the start, before the log is read, and find due times for
# rebuilt entries.
#
# A delayed message whose queue entry is rebuilt from the log needs its due time. The log has its
# store time and its level, but not the delay that the level had then. apache-broker.conf has it:
# the delay levels of the last start, and earlier ones with the commit-log offset up to which they
# applied. If an entry of the old files still refers to the message, its time counts if it is
# later: the levels may have been others before anything recorded them. So a message may be late if
# all of that is lost, but is never early.


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


log = logging.getLogger(__name__)

FLUSH_ENTRIES: Final = 16 * 1024
# ahead of this machine's clock
_TOO_FAR_MS: Final = 100 * 86_400_000


class Replay:
    """Queues and index from the records of a log, and their files."""

    def __init__(
        self,
        fs: Fs,
        config: StoreConfig,
        now_ms: int,
        kinds: QueueKinds,
        deleted: dict[str, int],
        log_start: int,
    ) -> None:
        self._fs = fs
        self._config = config
        self._now_ms = now_ms
        self._kinds = kinds
        self._deleted, self._log_start = deleted, log_start
        self._batched = {topic.encode() for topic in kinds.batched}
        self._files = QueueFiles(fs, config.max_open_files, keep=True)
        # the names of the files that it had
        self._written_over: dict[ConsumeQueue, list[str]] = {}
        self._due_times = DueTimes(fs, config.root, config.delay_levels)
        self.queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._index_directory = config.root / "index"
        self.index = KeyIndex(self._index_directory, config.index_sizes)
        self._index_files = IndexFiles(fs)
        # commit-log offset from which on keys are missing
        self.index_from = 0
        # entries added since the last flush
        self._unwritten = 0
        self.store_timestamp_ms = 0
        self._unsure_ms = 0
        # by damaged records: end of their queue, commit-log offset
        self.claimed: dict[tuple[bytes, int], tuple[int, int]] = {}
        # records that belong to nothing
        self.skipped = 0
        # after the last record seen without a checksum of its own
        self.plain_end = 0

    def close(self) -> None:
        self._files.close()
        self._index_files.close()
        self._due_times.close()

    def remove_strays(self) -> None:
        """Remove queues in the place of the other kind."""
        for directory in list(self._kinds.strays(self._fs)):
            log.warning(
                "removed the queue in %s: the queues of its topic are stored elsewhere", directory
            )
            self._files.remove(directory)

    def restore_queues(
        self, checkpoint: Checkpoint | None, *, rebuild: bool
    ) -> list[QueueCheckpoint]:
        """Keep the queues whose files match; return the others."""
        if checkpoint is None:
            return []
        self.store_timestamp_ms = checkpoint.store_timestamp_ms
        if rebuild:
            return list(checkpoint.queues)
        handles = Handles(self._fs, 1)
        lost: list[QueueCheckpoint] = []
        for state in checkpoint.queues:
            kind = self._kinds.of(state.key[0])
            # else the table of topics says something else now
            of_its_kind = (state.indexes is not None) == (kind is self._kinds.batches)
            if of_its_kind and check_queue(self._fs, handles, kind, state):
                queue = restored(state, kind)
                self.queues[queue.topic_bytes, state.key[1]] = queue
            else:
                lost.append(state)
        handles.close()
        return lost

    def restore_index(self, checkpoint: Checkpoint | None, *, rebuild: bool) -> bool:
        """Keep the index files that match, and remove the others.

        Return True if keys that the checkpoint counted are missing.
        """
        fs, directory = self._fs, self._index_directory
        states = checkpoint.index if checkpoint is not None and not rebuild else None
        files = restored_index(fs, directory, states or ())
        sizes = (
            Sizes(states[-1].slots, states[-1].items)
            if states
            else found_index_sizes(fs, directory) or self._config.index_sizes
        )
        self.index = KeyIndex(directory, sizes, files)
        if states is None:
            self.index_from = self._log_start
        else:
            assert checkpoint is not None
            self.index_from = (
                states[len(files)].begin_offset if len(files) < len(states) else checkpoint.position
            )
        kept = {file.name for file in files}
        for name in index_names(fs, directory):
            if name not in kept:
                self._index_files.remove(directory / name)
        return checkpoint is not None and self.index_from < checkpoint.position

    def add(self, scanned: Scanned, only: Collection[tuple[bytes, int]] | None = None) -> None:
        """Add a record to the index and to its queue; if *only* is given, only to these queues."""
        (
            offset,
            (size, topic, queue_id, queue_offset, sys_flag, stored_ms, properties_at, plain),
            buffer,
            at,
        ) = scanned
        if plain:
            self.plain_end = offset + size
        own_ms = stored_ms
        if not 0 <= stored_ms <= self._now_ms and (
            plain or at + size - properties_at > MAX_CRC_PROPERTIES
        ):
            stored_ms = self._believed(stored_ms)
        if stored_ms > self.store_timestamp_ms:
            self.store_timestamp_ms = stored_ms
        kind = sys_flag & SysFlag.TRANSACTION_MASK
        if offset >= self.index_from and kind != SysFlag.TRANSACTION_ROLLBACK:
            self.index.add(((topic, buffer[properties_at : at + size], offset, stored_ms),))
            self._unwritten += 1
        if (kind != 0 and kind != SysFlag.TRANSACTION_COMMIT) or (
            sys_flag & SysFlag.INNER_BATCH and topic not in self._batched
        ):
            return
        key = (topic, queue_id)
        if only is not None and key not in only:
            return
        properties = buffer[properties_at : at + size]
        count = messages_in(sys_flag, properties) if sys_flag & SysFlag.INNER_BATCH else 1
        if count == 0:
            self.skipped += 1
            return
        if self.claimed:
            # where this one stands counts for more
            self.claimed.pop(key, None)
        queue = self.queues.get(key)
        if queue is None or queue.max_offset != queue_offset:
            queue = self._place(queue, topic, queue_id, queue_offset, offset)
            if queue is None:
                return
        level = delay_level(properties) if queue.scheduled else 0
        code = (
            self._due_ms(queue, offset, size, level, own_ms, stored_ms)
            if level > 0
            else tag_hash(properties)
        )
        queue.append(queue.entry(offset, size, code, stored_ms, queue_offset, count), count)
        self._unwritten += 1
        if self._unwritten >= 2 * FLUSH_ENTRIES:
            self._flush()

    def _believed(self, stored_ms: int) -> int:
        """Return the store time of a record that claims, without a checksum over the whole, to be
        from the future or from before 1970.

        The future counts only if the record before agrees: a single damaged bit makes it the year
        5000, which would become the store's own time.
        """
        before, self._unsure_ms = self._unsure_ms, stored_ms
        return min(max(0, stored_ms), max(before, self.store_timestamp_ms))

    def _due_ms(
        self, queue: ConsumeQueue, offset: int, size: int, level: int, own_ms: int, believed_ms: int
    ) -> int:
        """Return a due time that is late rather than early: by the record's own time, unless that
        is further ahead than any clock would be.
        """
        return self._due_times.of(
            queue,
            offset,
            size,
            level,
            own_ms if 0 <= own_ms < self._now_ms + _TOO_FAR_MS else believed_ms,
        )

    def claim(self, scanned: Scanned) -> None:
        """Reserve the offset of a damaged record that claims to be its queue's next: it may have
        been acknowledged and read.

        Groups are past that offset, and would never get a message that is assigned it again.
        """
        offset, record, _, _ = scanned
        key = (record.topic, record.queue_id)
        if record.sys_flag & SysFlag.INNER_BATCH:
            count = (
                messages_in(record.sys_flag, properties_of(scanned))
                if record.topic in self._batched
                else 0
            )
        else:
            count = int(
                record.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT)
            )
        queue = self.queues.get(key)
        following = max(
            queue.max_offset if queue is not None else 0, self.claimed.get(key, (0, 0))[0]
        )
        if (
            count
            and record.queue_offset == following
            and (queue is not None or self._may_be_a_queue(*key))
        ):
            self.claimed[key] = following + count, offset

    def keep_claims(self) -> None:
        """Reserve the offsets of damaged records at the end of the log, if no valid record of their
        queue followed.
        """
        skipped = self.skipped
        for key, (until, offset) in self.claimed.items():
            known = self.queues.get(key)
            if known is None or known.max_offset < until:
                queue = self._place(
                    known, *key, known.max_offset if known is not None else 0, offset
                )
                if queue is not None:
                    self._unwritten += queue.pad(until)
        # they are counted as damage already
        self.skipped = skipped

    def _may_be_a_queue(self, topic: bytes, queue_id: int) -> bool:
        name = topic.decode("utf-8", "replace")
        return (
            0 <= queue_id < MAX_QUEUES
            and name.encode() == topic
            and self._kinds.is_known(self._fs, name)
        )

    def _place(
        self,
        queue: ConsumeQueue | None,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        offset: int,
    ) -> ConsumeQueue | None:
        """Return the queue, ready to take *queue_offset* next, or None for a record that belongs to
        no queue.
        """
        name = topic.decode("utf-8", "replace")
        if name.encode() != topic or not names_a_directory(name):
            self.skipped += 1
            return None
        if offset < self._deleted.get(name, 0):
            return None
        if queue is None:
            return self._new_queue((name, queue_id), queue_offset)
        # the topic was deleted and made again
        if queue_offset < queue.max_offset:
            return self._new_queue(queue.key, queue_offset)
        if too_far(queue_offset - queue.max_offset, offset - self._log_start, queue.log_bytes):
            self.skipped += 1
            return None
        self._unwritten += queue.pad(queue_offset)
        return queue

    def _new_queue(self, key: QueueKey, first: int) -> ConsumeQueue:
        before = self.queues.get((key[0].encode(), key[1]))
        if before is not None:
            self._written_over.pop(before, None)
        queue = self.queues[key[0].encode(), key[1]] = self._kinds.of(key[0]).new(key, first)
        names = self._fs.list(queue.directory)
        if names:
            self._written_over[queue] = names
        return queue

    def keep_given_out(self, states: Iterable[QueueCheckpoint], log_bytes: int) -> None:
        """Reserve offsets that were assigned, even if their records are lost: they are never
        assigned again.
        """
        for state in states:
            queue = self.queues.get((state.key[0].encode(), state.key[1]))
            if queue is None or too_far(
                state.max_offset - queue.max_offset, log_bytes, queue.log_bytes
            ):
                # too far where it was one of batches, and is an ordinary one now
                queue = self._new_queue(state.key, state.max_offset)
            self._unwritten += queue.pad(state.max_offset)

    def keep_offsets_in_files(self) -> None:
        """Continue queues without messages in the log where their files end: an offset is never
        assigned again.
        """
        for kind in self._kinds:
            for key in list(kind.found(self._fs)):
                if (key[0].encode(), key[1]) not in self.queues and (
                    end := end_of_files(self._fs, kind, key)
                ):
                    self._unwritten += self._new_queue(key, end).pad(end)

    def _flush(self) -> None:
        """Write entries that are in no file yet, and forget all but the newest."""
        if not self._unwritten:
            return
        for queue in self.queues.values():
            write = queue.take_write()
            if write is not None:
                self._files.write([write])
                queue.written = queue.handed
                queue.drop_written(FLUSH_ENTRIES)
        keys = self.index.collect(checkpoint=False)
        self._index_files.write(keys)
        self.index.written(keys)
        self._unwritten = 0

    def finish_files(self) -> None:
        """Write the rest, and remove old contents of the files beyond it."""
        self._flush()
        for queue, names in self._written_over.items():
            self._files.leave_only(queue, names)

    def cut_files(self) -> None:
        """Clear the queues that were not written over behind their ends."""
        for queue in self.queues.values():
            if queue not in self._written_over:
                self._files.cut(queue)

    def save_checkpoint(self, end: int, crc_from: int) -> None:
        writes = self.index.collect(checkpoint=True)
        self._index_files.write(writes)
        self.index.written(writes)
        state = checkpoints.take(
            end,
            self.store_timestamp_ms,
            self.queues.values(),
            self._deleted,
            crc_from,
            self.index.states(),
            self._log_start,
        )
        checkpoints.save(self._fs, self._config.root, state)


def too_far(gap: int, log_bytes: int, each_bytes: int) -> bool:
    """Return True if no log held so many messages before this one: then its queue offset is wrong,
    and fillers for the gap would fill memory.

    *each_bytes*: the least number of bytes of each in the log.
    """
    return gap * each_bytes > log_bytes
