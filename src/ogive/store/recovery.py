"""Recovery at the start: check, scan, find the end of the log, repair the derived files.

Behaviour
- The log is authoritative. Up to the checkpoint, queue files that match their checksums are
  trusted; other queues are rebuilt from the whole log. From the checkpoint on every record is read
  and checked.
- Bytes that are not a record end the log if no valid record follows. They are zeroed before
  anything new is written.
- If a valid record follows, in this segment or a later one, only the damaged bytes are lost. They
  are skipped by the length in them if it is credible (claim_of), else by searching; they are
  counted, and logged once. A repair only puts them into its report.
- After an unclean stop one line at INFO says what was read again and rebuilt, and how long that
  took; after a clean one there is no line.
- If there may have been a power cut during a run with flush=async, damage behind the last
  checkpoint, with less than the unsynced window after it, counts as its result. The log ends there,
  so that nothing survives behind a gap. A repair keeps all readable records.

Differs from Java
- Java stops at the first invalid record and drops everything after it, even whole segments. Source:
  CommitLog.recoverAbnormally, 5.3.
- Java trusts the consume queues after a clean stop without checking them.
"""

import functools
import logging
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import StoreCorrupt
from ogive.store import checkpoint as checkpoints
from ogive.store.bad_sectors import Unreadable
from ogive.store.checkpoint import Checkpoint, QueueCheckpoint
from ogive.store.consumequeue import ConsumeQueue, read_entries
from ogive.store.directory import was_ours
from ogive.store.file_reader import Disk
from ogive.store.fs import Fs
from ogive.store.key_index import KeyIndex
from ogive.store.log_scan import LogEnd, LogScan
from ogive.store.queue_reader import first_at
from ogive.store.queue_types import QueueKinds
from ogive.store.record import NEVER
from ogive.store.replay import Replay, end_of_files
from ogive.store.segments import Segments, find_segments, segment_names, segment_path
from ogive.store.types import QueueKey, StoreConfig
from ogive.text import pluralize

log = logging.getLogger(__name__)

_MAX_PLACES_LOGGED: Final = 20


@dataclass(slots=True)
class StartReport:
    """Summary of a start. Offsets are those of the commit log."""

    read_from: int = 0
    end: int = 0
    # read again between the two
    records: int = 0
    # queues that got entries by that
    grown: int = 0
    # lost queues that the checkpoint relies on
    rebuilt: int = 0
    # offset from which lost keys that the checkpoint relies on were rebuilt
    keys_from: int | None = None
    # bytes after the end
    cleared: int = 0

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        read = self.end - self.read_from
        yield (
            f"{pluralize(self.records, 'record')}, {pluralize(read, 'byte')} of the log, were read "
            f"again from offset {self.read_from}"
        )
        if self.grown:
            yield f"{pluralize(self.grown, 'queue')} and the key index were completed"
        if self.rebuilt:
            yield f"{pluralize(self.rebuilt, 'lost queue')} rebuilt"
        if self.keys_from is not None:
            yield f"the key index was rebuilt from offset {self.keys_from}"
        if self.cleared:
            yield (
                f"{pluralize(self.cleared, 'byte')} of an incomplete record cleared after the end "
                f"of the log at {self.end}"
            )
        else:
            yield f"the log ends at {self.end}, nothing was cut"


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
    """Recover the directory; with *rebuild* rebuild everything derived, even if its checksums
    match.

    *now_ms*: by the machine's clock.

    Raises StoreCorrupt if it would have to guess, and OSError.
    """
    recovered = _recover_once(fs, config, now_ms, rebuild=rebuild)
    until = checkpoints.pending_removal(fs, config.root)
    # of another log
    if until is not None and until > recovered.end:
        checkpoints.end_removal(fs, config.root)
    elif until is not None:
        checkpoints.finish_removal(fs, config.root, until)
        damaged, known = recovered.damaged, recovered.damaged_places
        recovered = _recover_once(fs, config, now_ms, rebuild=rebuild, known=known)
        recovered.damaged += damaged
    _remove_extension(fs, config.root / "consumequeue_ext", recovered.queues.keys())
    return recovered


def _remove_extension(fs: Fs, root: Path, queues: Collection[QueueKey]) -> None:
    """Remove files of Apache's broker with enableConsumeQueueExt for queues that do not exist any
    more.

    Those of other queues stay, in case Apache's broker gets the store back.
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
        log.warning("could not remove queue extension files without a queue in %s: %s", root, exc)


def _recover_once(
    fs: Fs,
    config: StoreConfig,
    now_ms: int,
    *,
    rebuild: bool,
    known: Collection[int] | None = None,
) -> Recovered:
    """Recover the log as it is. *known*: damaged places that an earlier run of this start logged.

    The phases: inspect the directory, use what its checkpoint confirms, rebuild the rest, read to
    the end of the log, write the files, clear the bytes behind the end.
    """
    began_s = time.monotonic()
    found = _inspect(fs, config, rebuild=rebuild)
    kinds = QueueKinds.found(fs, config)
    checkpoint, position = found.checkpoint, found.position
    unreadable = Unreadable()
    scan = LogScan.of_store(fs, config.root, found.segments, checkpoint, unreadable)
    end = LogEnd(scan.start, places=dict.fromkeys(known or (), 0))
    replay = Replay(fs, config, now_ms, kinds, found.deleted, found.log_start)
    with closing(scan), closing(replay):
        replay.remove_strays()
        lost = replay.restore_queues(checkpoint, rebuild=rebuild)
        keys_lost = replay.restore_index(checkpoint, rebuild=rebuild)
        if checkpoint is not None and (lost or keys_lost or rebuild):
            _rebuild(replay, scan, checkpoint, lost, end, rebuild=rebuild)
        records = grown = 0
        if found.is_clean and checkpoint is not None and scan.is_end(position):
            end.offset = position
        else:
            records, grown = _read_on(replay, scan, found, end, config.unsynced_limit)
            end.offset = scan.writable_from(end.offset)
        if checkpoint is None:
            replay.keep_offsets_in_files()
        if found.beyond is not None:
            replay.keep_given_out(found.beyond.queues, found.beyond.position - scan.start)
        replay.finish_files()
        moved = (
            checkpoint is not None
            and checkpoint.log_start < scan.start
            and _correct_min_offsets(fs, config, replay.queues.values(), scan.start)
        )
        for queue in replay.queues.values():
            queue.next_offset = queue.max_offset
        crc_from = _crc_from(config, checkpoint, end.offset, replay.plain_end)
        # a start that is killed behind the next step would not find them again
        if replay.claimed:
            _sync_log(fs, config.root, found, end.offset)
            replay.save_checkpoint(end.offset, crc_from)
        cleared = 0
        if lost or end.offset != position or not found.is_clean or not scan.is_end(position):
            cleared = _clear(fs, config, found, end.offset, unreadable)
            if not found.is_clean:
                replay.cut_files()
        unchanged = (
            checkpoint is not None
            and checkpoint.crc_from == crc_from
            and end.offset == position
            and found.is_clean
        )
        if not unchanged or lost or keys_lost or moved:
            _sync_log(fs, config.root, found, end.offset)
            replay.save_checkpoint(end.offset, crc_from)
    if not rebuild:
        _log_damage(end, replay.skipped, len(known or ()))
        if not found.is_clean and known is None:
            report = StartReport(
                read_from=position,
                end=end.offset,
                records=records,
                grown=grown,
                rebuilt=len(lost),
                keys_from=replay.index_from if keys_lost else None,
                cleared=cleared,
            )
            log.info(
                "the last run on %s did not stop cleanly: %s; this took %.1f s",
                config.root,
                report,
                time.monotonic() - began_s,
            )
    return Recovered(
        segment_bytes=scan.segment_bytes,
        start=scan.start,
        end=end.offset,
        store_timestamp_ms=replay.store_timestamp_ms,
        queues={queue.key: queue for queue in replay.queues.values()},
        deleted=found.deleted,
        crc_from=crc_from,
        kinds=kinds,
        index=replay.index,
        damaged=end.damaged + replay.skipped,
        damaged_places=end.places.keys(),
        torn=found.may_be_torn,
    )


@dataclass(frozen=True, slots=True)
class _Directory:
    """State of a directory before its log is read."""

    segments: Segments
    is_clean: bool
    checkpoint: Checkpoint | None
    # of a log that was longer
    beyond: Checkpoint | None
    deleted: dict[str, int]
    may_be_torn: bool

    @property
    def log_start(self) -> int:
        return self.segments.starts[0] if self.segments.starts else 0

    @property
    def position(self) -> int:
        """The commit-log offset from which everything must be read."""
        return self.checkpoint.position if self.checkpoint is not None else self.log_start


def _inspect(fs: Fs, config: StoreConfig, *, rebuild: bool) -> _Directory:
    """Read the files beside the log; finish a removal that the checkpoint covers."""
    root = config.root
    names = fs.list(root)
    saved = checkpoints.load(fs, root)
    if saved is None and checkpoints.NAME in names:
        log.warning(
            "queues.json, the list of queues, is damaged: reading the whole log and rebuilding "
            "queues and index"
        )
    until = checkpoints.pending_removal(fs, root)
    if until is not None and saved is not None and saved.position >= until:
        # else after this run, which ends with a checkpoint
        checkpoints.finish_removal(fs, root, until)
    segments = find_segments(fs, root / "commitlog", config.segment_bytes)
    checkpoint = usable(saved, segments.starts[0] if segments.starts else 0, segments.end)
    beyond = None
    if saved is not None and saved.position > segments.end and was_ours(fs, root):
        log.error("%s", end_is_lost(segments.end, saved.position))
        beyond = saved
    return _Directory(
        segments,
        "abort" not in names,
        checkpoint,
        beyond,
        checkpoints.load_deletions(fs, root, checkpoint, segments.end),
        not rebuild and checkpoints.may_be_torn(fs, root, config.flush),
    )


def _rebuild(
    replay: Replay,
    scan: LogScan,
    checkpoint: Checkpoint,
    lost: list[QueueCheckpoint],
    end: LogEnd,
    *,
    rebuild: bool,
) -> None:
    """Rebuild the queues in *lost*, and missing keys, from the log before the checkpoint."""
    if lost and not rebuild:
        topic, queue_id = lost[0].key
        log.warning(
            "%d consume queues are missing or damaged, for example queue %d of %s: rebuilding "
            "them from the commit log",
            len(lost),
            queue_id,
            topic,
        )
    if replay.index_from < checkpoint.position and not rebuild:
        log.warning(
            "rebuilding the key index from the commit log, from offset %d",
            replay.index_from,
        )
    # None: also those that the list does not know
    only = None if rebuild else {(state.key[0].encode(), state.key[1]) for state in lost}
    for scanned in scan.records(
        scan.start if lost or rebuild else max(scan.start, replay.index_from), end
    ):
        if scanned[0] >= checkpoint.position:
            break
        replay.add(scanned, only)
    replay.keep_given_out(lost, checkpoint.position - scan.start)


def _read_on(
    replay: Replay, scan: LogScan, found: _Directory, end: LogEnd, unsynced_limit: int
) -> tuple[int, int]:
    """Read the log from the checkpoint to its end.

    Return the number of records, and of queues that got entries.
    """
    before = {queue: queue.max_offset for queue in replay.queues.values()}
    count = 0
    for scanned in scan.records(
        found.position,
        end,
        torn_from=found.position if found.may_be_torn else None,
        torn_window=unsynced_limit,
        spoiled=replay.claim,
    ):
        replay.add(scanned)
        count += 1
    replay.keep_claims()
    if end.offset < found.position and found.checkpoint is not None:
        raise AssertionError("a scan ends at or after its start")
    grown = [queue.max_offset != before.get(queue) for queue in replay.queues.values()]
    return count, sum(grown)


def _crc_from(config: StoreConfig, checkpoint: Checkpoint | None, end: int, plain_end: int) -> int:
    """Return the offset from which on every record, also future ones, has its own checksum."""
    if not config.record_crc:
        return NEVER
    before = checkpoint.crc_from if checkpoint is not None else 0
    return max(min(before, end), plain_end)


def _sync_log(fs: Fs, root: Path, found: _Directory, end: int) -> None:
    """Sync the log from the checkpoint to *end*.

    The next checkpoint will say that this part is durable, but it may be in the system's memory
    only: if a run with flush=async was killed, or another broker ran.
    """
    commitlog, size = root / "commitlog", found.segments.segment_bytes
    for start in found.segments.starts:
        if start < end and start + size > found.position:
            handle = fs.open(segment_path(commitlog, start))
            try:
                fs.fdatasync(handle)
            finally:
                fs.close(handle)
    fs.fsync_dir(commitlog)


def _clear(fs: Fs, config: StoreConfig, found: _Directory, end: int, unreadable: Unreadable) -> int:
    """Clear everything behind the end of the log; return the number of bytes, see zero_tail()."""
    commitlog = config.root / "commitlog"
    with closing(LogScan(fs, commitlog, found.segments, NEVER, unreadable)) as scan:
        return zero_tail(fs, commitlog, scan, found.segments, end)


def _correct_min_offsets(
    fs: Fs, config: StoreConfig, queues: Iterable[ConsumeQueue], start: int
) -> bool:
    """Move lowest offsets up to a log that begins at *start*; return True if any moved.

    This is needed after a crash between the removal of segments and the checkpoint that records it.
    """
    disk = Disk(fs, config.max_open_files)
    moved = False
    for queue in queues:
        index, first = first_at(queue, start, functools.partial(_entry, disk, queue))
        moved |= first != queue.min_offset
        queue.begin_at(index, first)
    disk.close()
    return moved


def _log_damage(end: LogEnd, skipped: int, known: int) -> None:
    """Log the damage beyond the first *known* places."""
    for offset, size in list(end.places.items())[known:][:_MAX_PLACES_LOGGED]:
        log.error("commit log: skipped %d damaged bytes at offset %d", size, offset)
    if end.damaged > 1 or skipped:
        log.error(
            "commit log: %d damaged places, %d bytes; %d invalid records",
            end.damaged,
            end.damaged_bytes,
            skipped,
        )


def _entry(disk: Disk, queue: ConsumeQueue, index: int) -> bytes:
    try:
        return queue.in_memory(index, 1) or read_entries(disk, queue, index, 1)
    except FileNotFoundError:
        return b""


def usable(checkpoint: Checkpoint | None, start: int, limit: int) -> Checkpoint | None:
    """Return the checkpoint if it can belong to a log from *start* to *limit*, or else None."""
    if checkpoint is not None and not start <= checkpoint.position <= limit:
        log.warning(
            "the checkpoint is at offset %d, but the log has %d to %d: reading the whole log",
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


def zero_tail(fs: Fs, directory: Path, scan: LogScan, found: Segments, end: int) -> int:
    """Clear everything behind *end*: zeros in its segment, no later segments; durable before
    anything new is written.

    Return how many bytes of its segment were cleared, up to the last one that was not zero.
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
            "commit log: cleared %d bytes after offset %d, an incomplete record of an unclean stop",
            cleared,
            end,
        )
    fs.fsync_dir(directory)
    return cleared


def refuse_emptied(fs: Fs, config: StoreConfig) -> None:
    """Raise StoreCorrupt if the log has no file, and other files show that it had messages.

    Its disk may not be mounted. A start would assign offsets a second time, and the messages that
    it stores would be hidden when the log is back. Removal by age keeps the newest file.
    """
    if (told := traces(fs, config)) is not None:
        raise StoreCorrupt(
            f"{config.root / 'commitlog'} holds no messages, but {told}: is its disk mounted? "
            "Where the messages are meant to be gone, `ogive up --empty-log` begins a new log"
        )


def traces(fs: Fs, config: StoreConfig) -> str | None:
    """Describe a sign of messages that the log does not have.

    Return None if there is none, or the log has files. Raises OSError.
    """
    root = config.root
    if segment_names(fs, root / "commitlog"):
        return None
    checkpoint = checkpoints.load(fs, root)
    if checkpoint is not None and checkpoint.position > 0:
        return f"the last checkpoint had seen a log of {checkpoint.position} bytes"
    for kind in QueueKinds.found(fs, config):
        for topic, queue_id in kind.found(fs):
            if end := end_of_files(fs, kind, (topic, queue_id)):
                return f"queue {queue_id} of {topic} has offsets up to {end - 1}"
    return None
