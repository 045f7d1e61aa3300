"""Files that a start reads first: Apache's checkpoint page and abort marker, our own list of
consume queues, the table of deleted topics, and the record of an unfinished removal.

The list (``queues.json`` in the root, ignored by Apache's broker) has the commit-log offset up to
which the consume queues were complete, and checksums of their entries. So no derived file is
trusted: the files are checked, and the log is read from that offset on. Without a usable list, as
in a directory of Apache's broker, the whole log is read.
"""

import dataclasses
import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ogive.errors import StoreCorrupt
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.directory import was_ours
from ogive.store.fs import Fs
from ogive.store.index_file import IndexState
from ogive.store.record import NEVER
from ogive.store.segments import segment_names
from ogive.store.tables import JsonTable, peek, read_file, replace_file, write_synced
from ogive.store.types import QueueKey
from ogive.wire.checksum import crc32

FORMAT: Final = 1
_PAGE: Final = struct.Struct(">qqqqq8sqq")
"""physicMsgTimestamp, logicsMsgTimestamp, indexMsgTimestamp, masterFlushedOffset, confirmPhyOffset
(source: StoreCheckpoint.java, 5.3); then, where Apache has zeros: our mark, the first timestamp
again, and Checkpoint.crc_from; and a checksum of all these fields
"""
_SUM: Final = struct.Struct(">I")
_MARK: Final = b"ogive\0\0\1"
_PAGE_BYTES: Final = 4096
NAME: Final = "queues.json"


@dataclass(frozen=True, slots=True)
class QueueCheckpoint:
    """One consume queue at a checkpoint: offsets, and the checksums of its files from *first_file*
    on.
    """

    key: QueueKey
    min_offset: int
    max_offset: int
    first_file: int
    crcs: tuple[int, ...]
    # of a queue of batches: of its first entry, and one past its last; else they are the offsets
    indexes: tuple[int, int] | None = None

    @property
    def first_index(self) -> int:
        return self.min_offset if self.indexes is None else self.indexes[0]

    @property
    def end(self) -> int:
        return self.max_offset if self.indexes is None else self.indexes[1]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """*position*: before it the log was durable, and every record was dispatched and written to the
    queue files.
    """

    position: int
    store_timestamp_ms: int
    queues: tuple[QueueCheckpoint, ...] = ()
    # topic -> commit-log offset: its records before that are gone
    deleted: dict[str, int] = field(default_factory=dict)
    # commit-log offset from which every record carries its own checksum
    crc_from: int = NEVER
    # of the oldest segment; queues were not looked at for a later one
    log_start: int = 0
    # None: of a release that had no index
    index: tuple[IndexState, ...] | None = None


def take(
    position: int,
    store_timestamp_ms: int,
    queues: Iterable[ConsumeQueue],
    deleted: dict[str, int],
    crc_from: int,
    index: tuple[IndexState, ...],
    log_start: int,
) -> Checkpoint:
    """Return the state of *queues* and *index*, after all their entries were handed to the
    writer.
    """
    states = tuple(
        [
            QueueCheckpoint(
                q.key, q.min_offset, q.max_offset, q.first_file, tuple(q.crcs), q.own_indexes
            )
            for q in sorted(queues, key=lambda q: q.key)
        ]
    )
    return Checkpoint(
        position, store_timestamp_ms, states, dict(deleted), crc_from, log_start, index
    )


def save(fs: Fs, root: Path, checkpoint: Checkpoint) -> None:
    """Write both files. The log must be synced up to the position. Raises OSError."""
    rows = [
        [*s.key, s.min_offset, s.max_offset, s.first_file, *s.crcs]
        for s in checkpoint.queues
        if s.indexes is None
    ]
    batches = [
        [*s.key, *s.indexes, s.min_offset, s.max_offset, s.first_file, *s.crcs]
        for s in checkpoint.queues
        if s.indexes is not None
    ]
    body = json.dumps(
        {
            "position": checkpoint.position,
            "storeTimestamp": checkpoint.store_timestamp_ms,
            "crcFrom": checkpoint.crc_from,
            "logStart": checkpoint.log_start,
            "deleted": checkpoint.deleted,
            "index": [dataclasses.astuple(state) for state in checkpoint.index or ()],
            "queues": rows,
            "batchQueues": batches,
        },
        separators=(",", ":"),
    )
    replace_file(fs, root / NAME, as_file(body.encode()))
    stored_ms, position = checkpoint.store_timestamp_ms, checkpoint.position
    page = _PAGE.pack(
        stored_ms, stored_ms, stored_ms, position, position, _MARK, stored_ms, checkpoint.crc_from
    )
    page += _SUM.pack(crc32(page))
    write_synced(fs, root / "checkpoint", page.ljust(_PAGE_BYTES, b"\0"), size=_PAGE_BYTES)


def as_file(body: bytes, number: int = FORMAT) -> bytes:
    """Return queues.json in format *number*."""
    return b'{"format":%d,"crc":%d,"body":%s}\n' % (number, _checksum(body, number), body)


def _checksum(body: bytes, number: int) -> int:
    """Return the checksum of *body*.

    The checksum of every later format covers its number, so that a damaged number does not look
    like a later release.
    """
    return crc32(body) if number == 1 else crc32(b"%d:%s" % (number, body))


def crc_from(fs: Fs, root: Path, checkpoint: Checkpoint | None) -> int:
    """Return the commit-log offset from which on all records of a log to be read have their own
    checksum.

    Return NEVER if another broker ran here since our last checkpoint. Apache's broker writes to
    the lock at once, and changes its timestamp in the page, but not our copy of it: 5.5 after a
    moment, 4.9 only after a minute. Also return it if the page does not match the checkpoint or,
    without one, its checksum: otherwise valid records would count as damaged.
    """
    if not was_ours(fs, root):
        return NEVER
    raw = read_file(fs, root / "checkpoint") or b""
    if len(raw) < _PAGE.size:
        return checkpoint.crc_from if checkpoint is not None else NEVER
    physic, _, _, _, _, mark, ours, promised = _PAGE.unpack_from(raw)
    if checkpoint is not None:
        agrees = promised == checkpoint.crc_from
    else:
        agrees = raw[_PAGE.size : _PAGE.size + _SUM.size] == _SUM.pack(crc32(raw[: _PAGE.size]))
    return int(promised) if mark == _MARK and physic == ours and agrees else NEVER


def load(fs: Fs, root: Path) -> Checkpoint | None:
    """Return the checkpoint, or None if there is none or it is damaged.

    Raises StoreCorrupt for a format of a later release.
    """
    raw = read_file(fs, root / NAME)
    if raw is None:
        return None
    head, _, body = raw.rstrip().partition(b',"body":')
    try:
        header = json.loads(head + b"}")
        number = header["format"]
        if _checksum(body[:-1], number) != header["crc"]:
            return None
        if number > FORMAT:
            raise StoreCorrupt(
                f"{root}: written by a later release (format {number}, this one reads up to "
                f"{FORMAT})"
            )
        fields = json.loads(body[:-1])
        queues = tuple(
            [
                QueueCheckpoint((topic, queue_id), low, high, first, tuple(crcs))
                for topic, queue_id, low, high, first, *crcs in fields["queues"]
            ]
        )
        queues += tuple([_batch_state(*row) for row in fields.get("batchQueues", ())])
        index = tuple([IndexState(*row) for row in fields["index"]]) if "index" in fields else None
        log_start = fields.get("logStart", 0)
        return Checkpoint(
            fields["position"],
            fields["storeTimestamp"],
            queues,
            fields["deleted"],
            fields["crcFrom"],
            log_start,
            index,
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _batch_state(
    topic: str,
    queue_id: int,
    first_index: int,
    end: int,
    min_offset: int,
    max_offset: int,
    first_file: int,
    *crcs: int,
) -> QueueCheckpoint:
    return QueueCheckpoint(
        (topic, queue_id), min_offset, max_offset, first_file, crcs, (first_index, end)
    )


def mark_running(fs: Fs, root: Path, flush: str) -> None:
    """Write the abort marker: a start that finds it knows that the last run did not stop cleanly.

    It has the process id, as in the marker of Apache's broker, which reads nothing of it; then how
    this run syncs, and an id of the machine's run.
    """
    write_synced(fs, root / "abort", f"{os.getpid()} {flush} {fs.boot_id()}".encode())
    fs.fsync_dir(root)


def may_be_torn(fs: Fs, root: Path, flush: str) -> bool:
    """Return True if damage at the end of the log may be the result of a power cut.

    *flush* says how the last run synced, if the marker does not say.

    Return False after a clean stop, for data that was synced before it was acknowledged, and if the
    machine has not been restarted since: a killed process leaves everything that it wrote. Raises
    OSError.
    """
    raw = read_file(fs, root / "abort")
    if raw is None:
        return False
    _, said, boot, *_ = [*raw.decode("utf-8", "replace").split(" "), "", "", ""]
    if not said or not was_ours(fs, root):
        said = flush
    return said != "sync" and (not boot or boot != fs.boot_id())


def mark_stopped(fs: Fs, root: Path) -> None:
    fs.unlink(root / "abort")
    fs.fsync_dir(root)


_REMOVING: Final = "removing"
_DIGITS: Final = 20


def note_removal(fs: Fs, root: Path, until: int) -> None:
    """Record that the segments before commit-log offset *until* will be removed.

    The record exists from shortly before the lowest offsets move up until the segments are removed,
    so that messages that readers were told are gone stay gone after a crash. Recovery that finds it
    finishes the removal, but only after a checkpoint of all queues: the offset of a queue that
    loses all its records is known from nowhere else. Raises OSError.
    """
    replace_file(fs, root / _REMOVING, _removal(until))


def end_removal(fs: Fs, root: Path) -> None:
    """Remove the record of a removal. Raises OSError; a record that stays does no harm."""
    if read_file(fs, root / _REMOVING) is not None:
        fs.unlink(root / _REMOVING)


def pending_removal(fs: Fs, root: Path) -> int | None:
    """Return the *until* of a removal that a crash interrupted, None if there is none.

    An invalid record is removed. Raises OSError.
    """
    raw = read_file(fs, root / _REMOVING)
    if raw is None:
        return None
    until = raw.partition(b" ")[0]
    names = segment_names(fs, root / "commitlog")
    if (
        until.isdigit()
        and len(until) <= _DIGITS
        and raw == _removal(int(until))
        and names
        and int(until) <= int(names[-1])
    ):
        return int(until)
    end_removal(fs, root)
    return None


def finish_removal(fs: Fs, root: Path, until: int) -> None:
    """Remove the segments before *until*, and the record of the removal.

    Call it only after a checkpoint that covers every record before *until*. Raises OSError.
    """
    directory = root / "commitlog"
    for name in segment_names(fs, directory):
        if int(name) < until:
            fs.unlink(directory / name)
    fs.fsync_dir(directory)
    end_removal(fs, root)


def _removal(until: int) -> bytes:
    return b"%d %d\n" % (until, crc32(b"%d" % until))


_DELETED_TOPICS: Final = "deletedTopics.json"
_DELETED: Final = "deleted"


def load_deletions(
    fs: Fs, root: Path, checkpoint: Checkpoint | None, log_end: int
) -> dict[str, int]:
    """Return the deletions that apply to a log up to *log_end*, as in Checkpoint.deleted.

    Changes nothing. Raises OSError.
    """
    if checkpoint is not None:
        return dict(checkpoint.deleted)
    path = root / "config" / _DELETED_TOPICS
    table = _read_deletions(fs, path)
    if table is None:
        table = _read_deletions(fs, path.with_name(f"{_DELETED_TOPICS}.bak"))
    # others are of another log
    return {topic: offset for topic, offset in (table or {}).items() if offset <= log_end}


class DeletionTable:
    """``config/deletedTopics.json``: for each deleted topic, the commit-log offset before which its
    records are removed.

    queues.json has the same data, and precedence if it is usable. It can be rebuilt from the log,
    but no record says what was deleted: so this table, which has a backup, is kept in addition.
    Apache's broker ignores the file. One writer.
    """

    def __init__(self, fs: Fs, root: Path) -> None:
        """Read the file. Raises OSError."""
        path = root / "config" / _DELETED_TOPICS
        self._table = JsonTable(fs, path, valid=lambda value: isinstance(value.get(_DELETED), dict))
        self._saved: Mapping[str, int] = _read_deletions(fs, path) or {}

    def save(self, deleted: Mapping[str, int]) -> None:
        """Write the file if it differs. Raises OSError."""
        if deleted != self._saved:
            self._table.save({_DELETED: dict(deleted)})
            self._saved = dict(deleted)


def _read_deletions(fs: Fs, path: Path) -> dict[str, int] | None:
    """Return None if there is no such table."""
    table = (peek(fs, path) or {}).get(_DELETED)
    if not isinstance(table, dict):
        return None
    return {
        str(topic): offset
        for topic, offset in table.items()
        if isinstance(offset, int) and offset >= 0
    }
