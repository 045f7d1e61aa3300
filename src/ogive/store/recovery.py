"""Recovery at the start: check, scan, find the end of the log, repair what is derived.

Behaviour
- The log is the truth. Up to the checkpoint, queue files that match their checksums are trusted; a
  queue whose files do not is rebuilt from the whole log. From the checkpoint on every record is
  read and checked.
- Bytes that are not a record end the log if no valid record follows. They are zeroed before
  anything new is written.
- If one follows, in this segment or a later one, only the damaged bytes are lost. They are skipped
  by the length that they claim where that can be believed (claim_of), else by searching; counted,
  and logged once. A repair says it in its report alone.
- The offset of a damaged record whose lengths fit, and which was its queue's next, is not given out
  again; also at the end of the log.
- A stored time ahead of the machine's clock, in a record without a checksum over the whole, moves
  the store's clock only as far as the record before agrees; one before 1970 counts as 0.
- Which topics are topics of batches is read first, see queue_types.py. A record that holds a batch
  whole and is of none of them, because its topic was deleted, gets no entry.
- A delayed message whose queue entry is made again is due by the delay levels with which it was
  sent, see queue_rebuild.py.
- The files of a queue that is made again are written over, and what they hold beyond it is removed
  at the end.
- After an unclean stop one line at INFO says what was read again and made again, and how long that
  took; nothing is said after a clean one.
- Where a power cut may have come over a run with flush=async, damage behind the last checkpoint,
  with less than the unsynced window after it, is what that leaves. The log ends there, so that
  nothing survives behind a gap. A repair keeps what can be read.

Differs from Java
- Java stops at the first invalid record and drops everything after it, even whole segments. Source:
  CommitLog.recoverAbnormally, 5.3.
- Java trusts the consume queues after a clean stop without checking them.
"""

import functools
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.store import checkpoint as checkpoints
from ogive.store.bad_sectors import Unreadable
from ogive.store.checkpoint import Checkpoint, QueueState
from ogive.store.consumequeue import ConsumeQueue, QueueFiles, names_a_directory, read_entries
from ogive.store.directory import was_ours
from ogive.store.file_reader import Disk
from ogive.store.fs import Fs
from ogive.store.index_file import IndexFiles, Sizes, index_names
from ogive.store.index_file import found_sizes as found_index_sizes
from ogive.store.index_file import restored as restored_index
from ogive.store.key_index import KeyIndex
from ogive.store.log_scan import LogEnd, LogScan, Scanned
from ogive.store.queue_reader import first_at
from ogive.store.queue_rebuild import DueTimes, check_queue, end_of_files, restored
from ogive.store.queue_types import QueueKinds, messages_in
from ogive.store.record import MAX_CRC_PROPERTIES, NEVER, delay_level, tag_hash
from ogive.store.segments import Found, Handles, find_segments, segment_path
from ogive.store.types import QueueKey, StoreConfig
from ogive.text import pluralize
from ogive.wire.bodies.routes import MAX_QUEUES
from ogive.wire.codes import SysFlag


@dataclass(slots=True)
class StartReport:
    """What recovery did; offsets are those of the log."""

    read_from: int = 0
    end: int = 0
    # read again, between the two
    records: int = 0
    # queues that got entries by that
    grown: int = 0
    # queues that the checkpoint counted on
    made_again: int = 0
    # from where on keys that the checkpoint counted on were made again
    keys_from: int | None = None
    # bytes behind the end
    cleared: int = 0

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        read = self.end - self.read_from
        yield (
            f"{pluralize(self.records, 'record')}, {pluralize(read, 'byte')} of the log, from "
            f"{self.read_from} on, were read again"
        )
        if self.grown:
            yield f"{pluralize(self.grown, 'queue')} and the index of keys were completed"
        if self.made_again:
            yield (
                f"{pluralize(self.made_again, 'queue')} that had been lost "
                f"{'was' if self.made_again == 1 else 'were'} made again"
            )
        if self.keys_from is not None:
            yield f"the index of keys was made again, from {self.keys_from} on"
        if self.cleared:
            yield (
                f"{pluralize(self.cleared, 'byte')} behind the end of the log, at {self.end}, were "
                "no record and were cleared"
            )
        else:
            yield f"the log ends at {self.end}, and nothing had to be cut"


log = logging.getLogger(__name__)

FLUSH_ENTRIES: Final = 16 * 1024
_MAX_PLACES_LOGGED: Final = 20
# ahead of this machine's clock
_TOO_FAR_MS: Final = 100 * 86_400_000


@dataclass(slots=True)
class Recovered:
    """The state in which recovery leaves the store."""

    segment_bytes: int
    # of the oldest segment
    start: int
    # the next record goes here
    end: int
    # of the last record
    store_timestamp_ms: int
    queues: dict[QueueKey, ConsumeQueue]
    deleted: dict[str, int]
    crc_from: int
    kinds: QueueKinds
    index: KeyIndex
    damaged: int = 0
    # commit-log offsets, see LogEnd.places
    damaged_places: Collection[int] = ()
    # a power cut may have taken what was not synced
    torn: bool = False


def recover(fs: Fs, config: StoreConfig, now_ms: int, *, rebuild: bool = False) -> Recovered:
    """Recover the directory; *rebuild* everything derived, whatever its checksums say.

    *now_ms*: by the machine's clock.

    Raises StoreCorrupt where it would have to guess, and OSError.
    """
    recovered = _recover(fs, config, now_ms, rebuild)
    _remove_extension(fs, config.root / "consumequeue_ext", recovered.queues.keys())
    return recovered


def _recover(fs: Fs, config: StoreConfig, now_ms: int, rebuild: bool) -> Recovered:
    recovered = _Recovery(fs, config, now_ms, rebuild=rebuild).run()
    until = checkpoints.pending_removal(fs, config.root)
    if until is None:
        return recovered
    # of another log
    if until > recovered.end:
        checkpoints.end_removal(fs, config.root)
        return recovered
    checkpoints.finish_removal(fs, config.root, until)
    again = _Recovery(fs, config, now_ms, rebuild=rebuild, known=recovered.damaged_places).run()
    again.damaged += recovered.damaged
    return again


def _remove_extension(fs: Fs, root: Path, queues: Collection[QueueKey]) -> None:
    """Remove what Apache's broker with enableConsumeQueueExt kept for queues that are gone.

    That of the others stays, in case it gets the store back.
    """
    try:
        for topic in fs.list(root):
            gone = [
                name
                for name in fs.list(root / topic)
                if not name.isdecimal() or (topic, int(name)) not in queues
            ]
            for queue_id in gone:
                for name in fs.list(root / topic / queue_id):
                    fs.unlink(root / topic / queue_id / name)
                fs.remove_dir(root / topic / queue_id)
            if not fs.list(root / topic):
                fs.remove_dir(root / topic)
    except OSError as exc:
        log.warning("files of an extension whose queues are gone stay in %s: %s", root, exc)


class _Recovery:
    """*known*: the damaged places that an earlier run of this start has told."""

    def __init__(
        self,
        fs: Fs,
        config: StoreConfig,
        now_ms: int,
        *,
        rebuild: bool,
        known: Collection[int] | None = None,
    ) -> None:
        self._fs, self._config, self._now_ms, self._rebuild_all = fs, config, now_ms, rebuild
        self._known = known
        self._told = StartReport()
        self._commitlog = config.root / "commitlog"
        self._may_be_torn = not rebuild and checkpoints.may_be_torn(fs, config.root, config.flush)
        self._kinds = QueueKinds.found(fs, config)
        self._batched = {topic.encode() for topic in self._kinds.batched}
        self._files = QueueFiles(fs, config.max_open_files, keep=True)
        # the names of the files that it had
        self._written_over: dict[ConsumeQueue, list[str]] = {}
        self._found = Found((), config.segment_bytes)  # until run()
        self._due_times = DueTimes(fs, config.root, config.delay_levels)
        self._queues: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._index_directory = config.root / "index"
        self._index = KeyIndex(self._index_directory, config.index_sizes)
        self._index_files = IndexFiles(fs)
        # commit-log offset from which on keys are missing
        self._index_from = 0
        # entries dispatched since the last flush
        self._unwritten = 0
        self._deleted: dict[str, int] = {}
        self._store_timestamp_ms = 0
        self._unsure_ms = 0
        # while only these are rebuilt
        self._rebuilding: set[tuple[bytes, int]] | None = None
        # by damaged records: end of their queue, commit-log offset
        self._claimed: dict[tuple[bytes, int], tuple[int, int]] = {}
        # where it is of a log that was longer
        self._beyond: Checkpoint | None = None
        self._skipped = 0
        self._unreadable = Unreadable()
        # after the last record seen without a checksum of its own
        self._plain_end = 0

    def run(self) -> Recovered:
        fs, root, began_s = self._fs, self._config.root, time.monotonic()
        names = fs.list(root)
        clean = "abort" not in names
        saved = checkpoints.load(fs, root)
        if saved is None and checkpoints.NAME in names:
            log.warning(
                "queues.json, the list of queues, is damaged: the whole log is read, and queues "
                "and index are made again"
            )
        until = checkpoints.pending_removal(fs, root)
        if until is not None and saved is not None and saved.position >= until:
            # else after this run, which ends with a checkpoint
            checkpoints.finish_removal(fs, root, until)
        self._found = find_segments(fs, self._commitlog, self._config.segment_bytes)
        start = self._found.starts[0] if self._found.starts else 0
        checkpoint = usable(saved, start, self._found.end)
        if saved is not None and saved.position > self._found.end and was_ours(fs, root):
            log.error("%s", end_is_lost(self._found.end, saved.position))
            self._beyond = saved
        self._deleted = checkpoints.load_deletions(fs, root, checkpoint, self._found.end)
        for directory in list(self._kinds.strays(fs)):
            log.warning(
                "the queue in %s is removed: its topic keeps its queues elsewhere", directory
            )
            self._files.remove(directory)
        scan = LogScan(
            fs,
            self._commitlog,
            self._found,
            checkpoints.crc_from(fs, root, checkpoint),
            self._unreadable,
        )
        result = LogEnd(start, places=dict.fromkeys(self._known or (), 0))
        try:
            crc_from = self._bring_up_to_date(scan, checkpoint, clean, result)
        finally:
            scan.close()
            self._files.close()
            self._index_files.close()
            self._due_times.close()
        if not self._rebuild_all:
            self._tell_damage(result)
            if not clean and self._known is None:
                log.info(
                    "the last run on %s did not stop cleanly: %s; this took %.1f s",
                    root,
                    self._told,
                    time.monotonic() - began_s,
                )
        return Recovered(
            segment_bytes=scan.segment_bytes,
            start=start,
            end=result.offset,
            store_timestamp_ms=self._store_timestamp_ms,
            queues={queue.key: queue for queue in self._queues.values()},
            deleted=self._deleted,
            crc_from=crc_from,
            kinds=self._kinds,
            index=self._index,
            damaged=result.damaged + self._skipped,
            damaged_places=result.places.keys(),
            torn=self._may_be_torn,
        )

    def _tell_damage(self, result: LogEnd) -> None:
        told = list(result.places.items())[len(self._known or ()) :][:_MAX_PLACES_LOGGED]
        for offset, size in told:
            log.error("commit log: %d damaged bytes at offset %d are skipped", size, offset)
        if result.damaged > 1 or self._skipped:
            log.error(
                "commit log: %d damaged places, %d bytes; %d records make no sense",
                result.damaged,
                result.damaged_bytes,
                self._skipped,
            )

    def _bring_up_to_date(
        self, scan: LogScan, checkpoint: Checkpoint | None, clean: bool, result: LogEnd
    ) -> int:
        """Queues, index, the log's end and the checkpoint; returns from where on records carry
        checksums. *result* is filled in.
        """
        position = checkpoint.position if checkpoint is not None else scan.start
        lost = self._restore(checkpoint) if checkpoint is not None else []
        self._restore_index(checkpoint)
        keys_lost = checkpoint is not None and self._index_from < checkpoint.position
        if checkpoint is not None and (lost or keys_lost or self._rebuild_all):
            self._rebuild(scan, checkpoint, lost, result)
        if clean and checkpoint is not None and scan.is_end(position):
            result.offset = position
        else:
            self._read_on(scan, position, checkpoint, result)
            result.offset = scan.writable_from(result.offset)
        self._told.read_from, self._told.end, self._told.made_again = (
            position,
            result.offset,
            len(lost),
        )
        self._told.keys_from = self._index_from if keys_lost else None
        if checkpoint is None:
            self._keep_offsets()
        if self._beyond is not None:
            self._keep_given_out(self._beyond.queues, self._beyond.position - scan.start)
        self._flush()
        for queue, names in self._written_over.items():
            self._files.leave_only(queue, names)
        moved = (
            checkpoint is not None
            and checkpoint.log_start < scan.start
            and self._correct_min_offsets(scan.start)
        )
        for queue in self._queues.values():
            queue.next_offset = queue.max_offset
        crc_from = self._crc_from(checkpoint, result.offset)
        # a start that is killed behind the next step would not find them again
        if self._claimed:
            self._sync_log(position, result.offset)
            self._save_checkpoint(result.offset, crc_from, scan.start)
        if lost or result.offset != position or not clean or not scan.is_end(position):
            self._told.cleared = self._clear(result.offset, clean)
        unchanged = (
            checkpoint is not None and checkpoint.crc_from == crc_from and result.offset == position
        )
        if not (clean and unchanged) or lost or keys_lost or moved:
            self._sync_log(position, result.offset)
            self._save_checkpoint(result.offset, crc_from, scan.start)
        return crc_from

    def _sync_log(self, position: int, end: int) -> None:
        """What the checkpoint is going to say is durable may stand in the system's memory alone:
        that of a run with flush=async that was killed, or another broker's.
        """
        size = self._found.segment_bytes
        for start in self._found.starts:
            if start < end and start + size > position:
                handle = self._fs.open(segment_path(self._commitlog, start))
                try:
                    self._fs.fdatasync(handle)
                finally:
                    self._fs.close(handle)
        self._fs.fsync_dir(self._commitlog)

    def _save_checkpoint(self, end: int, crc_from: int, start: int) -> None:
        writes = self._index.collect(checkpoint=True)
        self._index_files.write(writes)
        self._index.written(writes)
        state = checkpoints.take(
            end,
            self._store_timestamp_ms,
            self._queues.values(),
            self._deleted,
            crc_from,
            self._index.states(),
            start,
        )
        checkpoints.save(self._fs, self._config.root, state)

    def _crc_from(self, checkpoint: Checkpoint | None, end: int) -> int:
        """From where on every record, also those still to come, carries its own checksum."""
        if not self._config.record_crc:
            return NEVER
        before = checkpoint.crc_from if checkpoint is not None else 0
        return max(min(before, end), self._plain_end)

    def _restore(self, checkpoint: Checkpoint) -> list[QueueState]:
        """Take over the queues whose files are as they should be; returns the others."""
        self._store_timestamp_ms = checkpoint.store_timestamp_ms
        if self._rebuild_all:
            return list(checkpoint.queues)
        handles = Handles(self._fs, 1)
        lost: list[QueueState] = []
        for state in checkpoint.queues:
            kind = self._kinds.of(state.key[0])
            # else the table of topics says something else now
            of_its_kind = (state.indexes is not None) == (kind is self._kinds.batches)
            if of_its_kind and check_queue(self._fs, handles, kind, state):
                queue = restored(state, kind)
                self._queues[queue.topic_bytes, state.key[1]] = queue
            else:
                lost.append(state)
        handles.close()
        return lost

    def _restore_index(self, checkpoint: Checkpoint | None) -> None:
        """Take over the index files that are as they should be, and remove the others."""
        fs, directory = self._fs, self._index_directory
        states = checkpoint.index if checkpoint is not None and not self._rebuild_all else None
        files = restored_index(fs, directory, states or ())
        sizes = (
            Sizes(states[-1].slots, states[-1].items)
            if states
            else found_index_sizes(fs, directory) or self._config.index_sizes
        )
        self._index = KeyIndex(directory, sizes, files)
        if states is None:
            self._index_from = self._found.starts[0] if self._found.starts else 0
        else:
            assert checkpoint is not None
            self._index_from = (
                states[len(files)].begin_offset if len(files) < len(states) else checkpoint.position
            )
        kept = {file.name for file in files}
        for name in index_names(fs, directory):
            if name not in kept:
                self._index_files.remove(directory / name)

    def _rebuild(
        self, scan: LogScan, checkpoint: Checkpoint, lost: list[QueueState], result: LogEnd
    ) -> None:
        """Make the queues in *lost*, and missing keys, again from the log before the checkpoint."""
        if lost and not self._rebuild_all:
            topic, queue_id = lost[0].key
            log.warning(
                "%d consume queues are missing or damaged, for example %d of %s: made again from "
                "the commit log",
                len(lost),
                queue_id,
                topic,
            )
        if self._index_from < checkpoint.position and not self._rebuild_all:
            log.warning(
                "the index of keys is made again from the commit log, from offset %d on",
                self._index_from,
            )
        # else those that the list does not know, too
        if not self._rebuild_all:
            self._rebuilding = {(state.key[0].encode(), state.key[1]) for state in lost}
        for scanned in scan.records(
            scan.start if lost or self._rebuild_all else max(scan.start, self._index_from), result
        ):
            if scanned[0] >= checkpoint.position:
                break
            self._dispatch(scanned)
        self._rebuilding = None
        self._keep_given_out(lost, checkpoint.position - scan.start)

    def _keep_given_out(self, states: Iterable[QueueState], log_bytes: int) -> None:
        """Offsets that were given out are never given out again, even if their records are gone."""
        for state in states:
            queue = self._queues.get((state.key[0].encode(), state.key[1]))
            if queue is None or too_far(
                state.max_offset - queue.max_offset, log_bytes, queue.log_bytes
            ):
                # too far where it was one of batches, and is an ordinary one now
                queue = self._new_queue(state.key, state.max_offset)
            self._unwritten += queue.pad(state.max_offset)

    def _read_on(
        self, scan: LogScan, position: int, checkpoint: Checkpoint | None, result: LogEnd
    ) -> None:
        torn_from = position if self._may_be_torn else None
        before = {queue: queue.max_offset for queue in self._queues.values()}
        count = 0
        for scanned in scan.records(
            position,
            result,
            torn_from=torn_from,
            torn_window=self._config.unsynced_limit,
            spoiled=self._keep_place,
        ):
            self._dispatch(scanned)
            count += 1
        self._keep_places()
        self._told.records = count
        self._told.grown = sum(
            [queue.max_offset != before.get(queue) for queue in self._queues.values()]
        )
        if checkpoint is not None and result.offset < checkpoint.position:
            raise AssertionError("a scan ends at or after its start")

    def _believed(self, stored_ms: int) -> int:
        """When a record was stored that says, without a checksum over the whole, that it is from
        the future or from before 1970.

        The future counts as far as the one before says so, too: a single damaged bit makes it the
        year 5000, which would become the store's own time.
        """
        before, self._unsure_ms = self._unsure_ms, stored_ms
        return min(max(0, stored_ms), max(before, self._store_timestamp_ms))

    def _dispatch(self, scanned: Scanned) -> None:
        (
            offset,
            (size, topic, queue_id, queue_offset, sys_flag, stored_ms, properties_at, plain),
            buffer,
            at,
        ) = scanned
        if plain:
            self._plain_end = offset + size
        own_ms = stored_ms
        if not 0 <= stored_ms <= self._now_ms and (
            plain or at + size - properties_at > MAX_CRC_PROPERTIES
        ):
            stored_ms = self._believed(stored_ms)
        if stored_ms > self._store_timestamp_ms:
            self._store_timestamp_ms = stored_ms
        kind = sys_flag & SysFlag.TRANSACTION_MASK
        if offset >= self._index_from and kind != SysFlag.TRANSACTION_ROLLBACK:
            self._index.add(((topic, buffer[properties_at : at + size], offset, stored_ms),))
            self._unwritten += 1
        if (kind != 0 and kind != SysFlag.TRANSACTION_COMMIT) or (
            sys_flag & SysFlag.INNER_BATCH and topic not in self._batched
        ):
            return
        key = (topic, queue_id)
        if self._rebuilding is not None and key not in self._rebuilding:
            return
        properties = buffer[properties_at : at + size]
        count = messages_in(sys_flag, properties) if sys_flag & SysFlag.INNER_BATCH else 1
        if count == 0:
            self._skipped += 1
            return
        if self._claimed:
            # where this one stands counts for more
            self._claimed.pop(key, None)
        queue = self._queues.get(key)
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

    def _due_ms(
        self, queue: ConsumeQueue, offset: int, size: int, level: int, own_ms: int, believed_ms: int
    ) -> int:
        """Rather late than early: by the record's own time, unless that is further ahead than any
        clock would be.
        """
        return self._due_times.of(
            queue,
            offset,
            size,
            level,
            own_ms if 0 <= own_ms < self._now_ms + _TOO_FAR_MS else believed_ms,
        )

    def _keep_place(self, scanned: Scanned) -> None:
        """A damaged record may have been acknowledged and seen: where it says that it was its
        queue's next, its offset is taken.

        Groups are past that offset. A message that were given it again would be one that they never
        get.
        """
        offset, record, buffer, at = scanned
        key = (record.topic, record.queue_id)
        if record.sys_flag & SysFlag.INNER_BATCH:
            count = (
                messages_in(record.sys_flag, buffer[record.properties_at : at + record.size])
                if record.topic in self._batched
                else 0
            )
        else:
            count = int(
                record.sys_flag & SysFlag.TRANSACTION_MASK in (0, SysFlag.TRANSACTION_COMMIT)
            )
        queue = self._queues.get(key)
        following = max(
            queue.max_offset if queue is not None else 0, self._claimed.get(key, (0, 0))[0]
        )
        if (
            count
            and record.queue_offset == following
            and (queue is not None or self._may_be_a_queue(*key))
        ):
            self._claimed[key] = following + count, offset

    def _may_be_a_queue(self, topic: bytes, queue_id: int) -> bool:
        name = topic.decode("utf-8", "replace")
        return (
            0 <= queue_id < MAX_QUEUES
            and name.encode() == topic
            and self._kinds.is_known(self._fs, name)
        )

    def _keep_places(self) -> None:
        """At the end of the log: damaged records keep their places where no sound record of their
        queue followed.
        """
        skipped = self._skipped
        for key, (until, offset) in self._claimed.items():
            known = self._queues.get(key)
            if known is None or known.max_offset < until:
                queue = self._place(
                    known, *key, known.max_offset if known is not None else 0, offset
                )
                if queue is not None:
                    self._unwritten += queue.pad(until)
        # they are counted as damage already
        self._skipped = skipped

    def _place(
        self,
        queue: ConsumeQueue | None,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        offset: int,
    ) -> ConsumeQueue | None:
        """The queue, ready to take *queue_offset* next; None for a record that belongs to
        nothing.
        """
        name = topic.decode("utf-8", "replace")
        if name.encode() != topic or not names_a_directory(name):
            self._skipped += 1
            return None
        if offset < self._deleted.get(name, 0):
            return None
        if queue is None:
            return self._new_queue((name, queue_id), queue_offset)
        # the topic was deleted and made again
        if queue_offset < queue.max_offset:
            return self._new_queue(queue.key, queue_offset)
        if too_far(
            queue_offset - queue.max_offset, offset - self._found.starts[0], queue.log_bytes
        ):
            self._skipped += 1
            return None
        self._unwritten += queue.pad(queue_offset)
        return queue

    def _new_queue(self, key: QueueKey, first: int) -> ConsumeQueue:
        before = self._queues.get((key[0].encode(), key[1]))
        if before is not None:
            self._written_over.pop(before, None)
        queue = self._queues[key[0].encode(), key[1]] = self._kinds.of(key[0]).new(key, first)
        names = self._fs.list(queue.directory)
        if names:
            self._written_over[queue] = names
        return queue

    def _flush(self) -> None:
        """Write what is not in files yet, and forget all but the newest entries."""
        if not self._unwritten:
            return
        for queue in self._queues.values():
            write = queue.take_write()
            if write is not None:
                self._files.write([write])
                queue.written = queue.handed
                queue.drop_written(FLUSH_ENTRIES)
        keys = self._index.collect(checkpoint=False)
        self._index_files.write(keys)
        self._index.written(keys)
        self._unwritten = 0

    def _keep_offsets(self) -> None:
        """Queues without messages in the log continue where their files end: an offset that was
        given out is never given out again.
        """
        for kind in self._kinds:
            for key in list(kind.found(self._fs)):
                if (key[0].encode(), key[1]) not in self._queues and (
                    end := end_of_files(self._fs, kind, key)
                ):
                    self._unwritten += self._new_queue(key, end).pad(end)

    def _correct_min_offsets(self, start: int) -> bool:
        """A crash came between the removal of segments and the checkpoint that says so."""
        disk = Disk(self._fs, self._config.max_open_files)
        moved = False
        for queue in self._queues.values():
            index, first = first_at(queue, start, functools.partial(_entry, disk, queue))
            moved |= first != queue.min_offset
            queue.begin_at(index, first)
        disk.close()
        return moved

    def _clear(self, end: int, clean: bool) -> int:
        """Leave nothing behind the ends of the log and the queues; returns how many bytes of the
        log that was, see zero_tail().
        """
        scan = LogScan(self._fs, self._commitlog, self._found, NEVER, self._unreadable)
        try:
            cleared = zero_tail(self._fs, self._commitlog, scan, self._found, end)
        finally:
            scan.close()
        for queue in self._queues.values():
            if not clean and queue not in self._written_over:
                self._files.cut(queue)
        return cleared


def _entry(disk: Disk, queue: ConsumeQueue, index: int) -> bytes:
    try:
        return queue.in_memory(index, 1) or read_entries(disk, queue, index, 1)
    except FileNotFoundError:
        return b""


def usable(checkpoint: Checkpoint | None, start: int, limit: int) -> Checkpoint | None:
    """The checkpoint if it can belong to a log from *start* to *limit*."""
    if checkpoint is not None and not start <= checkpoint.position <= limit:
        log.warning(
            "the checkpoint speaks of offset %d, the log has %d to %d: reading the whole log",
            checkpoint.position,
            start,
            limit,
        )
        return None
    return checkpoint


def end_is_lost(end: int, reached: int) -> str:
    return (
        f"the log ends at {end}, and had reached {reached}: the messages in between are lost; "
        "is a file of it missing?"
    )


def too_far(gap: int, log_bytes: int, each_bytes: int) -> bool:
    """Whether no log held so many messages before this one: its queue offset is no true one, and
    fillers for the gap would fill memory.

    *each_bytes*: what each takes of the log, at least.
    """
    return gap * each_bytes > log_bytes


def zero_tail(fs: Fs, directory: Path, scan: LogScan, found: Found, end: int) -> int:
    """Leave nothing behind *end*: zeros in its segment, no later segments; durable before anything
    new is written.

    Returns how many bytes of its segment were cleared, up to the last one that said anything.
    """
    cleared = 0
    # the last one first: a crash in between leaves no gap
    for start in reversed(found.starts):
        if start >= end:
            fs.unlink(segment_path(directory, start))
    if end % found.segment_bytes and (cleared := scan.used_after(end)):
        start = end - end % found.segment_bytes
        handle = fs.open(segment_path(directory, start))
        try:
            fs.clear(handle, end - start)
            fs.fdatasync(handle)
        finally:
            fs.close(handle)
        log.warning(
            "commit log: %d bytes behind offset %d, which an unclean stop left there, were no "
            "record and were cleared",
            cleared,
            end,
        )
    fs.fsync_dir(directory)
    return cleared
