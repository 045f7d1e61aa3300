"""Copy the directory of a running broker, to start another broker on it.

Behaviour
- The copy is what a power cut at one moment would leave: the list of queues first, then queues and
  index, the tables, and the log up to its end at that moment. A start recovers from it.
- Progress in the copy is never ahead of its log.
- Everything goes to a directory *name*.part, which gets its name when it is complete. An
  interrupted backup goes on with the segments of the log that it has.
- Segments that retention deletes meanwhile are left out.
- Directories may be links, as they may for the broker; what cannot be listed ends the backup.
- The directory is only read, and its lock is not taken.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption, StoreUnusable
from ogive.store import checkpoint as checkpoints
from ogive.store.directory import was_ours
from ogive.store.fs import Fs, OsFs, ReadOnlyFs, reason
from ogive.store.log_scan import LogEnd, LogScan
from ogive.store.recovery import usable
from ogive.store.segments import Segments, find_segments, segment_path
from ogive.store.tables import make_lasting_dirs, write_synced

_LOG: Final = "commitlog"
_DERIVED: Final = ("consumequeue", "consumequeue_ext", "index")
_FIRST: Final = ("abort", checkpoints.NAME, "checkpoint")
_LOCK: Final = "lock"
# of the file system, where the directory is one of its own
_NOT_OURS: Final = "lost+found"
_BLOCK: Final = 1 << 20
# compared at both ends of a segment, to go on with the copy of the same log only
_COMPARED: Final = 64 * 1024
# the tables change while they are copied
_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Backup:
    """Result of a backup. Offsets are those of the commit log; *reused* segments were there."""

    directory: str
    log_start: int
    log_end: int
    segments: int
    reused: int


def back_up(source: Path, target: Path) -> Backup:
    """Copy the store in *source*, which a broker may use meanwhile, to *target*, which must not
    exist. Raises InvalidOption, StoreUnusable, StoreCorrupt.
    """
    part = target.with_name(f"{target.name}.part")
    if target.exists():
        raise InvalidOption(f"{target} exists: a backup is a new directory")
    if source.resolve() in part.resolve().parents:
        raise InvalidOption(f"{target} lies in {source}: choose a place outside")
    if part.exists() and not (part / _LOG).is_dir():
        raise InvalidOption(f"{part} exists, and no backup made it: remove it, or choose another")
    fs = ReadOnlyFs()
    try:
        if not (source / _LOG).is_dir():
            raise StoreUnusable(f"{source} holds no store: there is no directory commitlog in it")
        if not was_ours(fs, source):
            raise StoreUnusable(
                f"{source}: Apache's broker ran here last: stop it and copy the directory"
            )
        make_lasting_dirs(OsFs(), part / _LOG)
        lock = OsFs().lock(part / _LOCK)
        try:
            return _Copying(fs, source, part).run(target)
        finally:
            os.close(lock)
    except BlockingIOError:
        raise StoreUnusable(f"another backup is writing {part}") from None
    except OSError as exc:
        raise StoreUnusable(
            f"the backup is not complete: {reason(exc)}; the same command goes on with {part}"
        ) from exc


class _Copying:
    def __init__(self, fs: Fs, source: Path, part: Path) -> None:
        self._fs, self._to = fs, OsFs()
        self._source, self._part = source, part
        self._reused = 0

    def run(self, target: Path) -> Backup:
        self._clear()
        for name in _FIRST:
            self._copy_if_there(self._source / name)
        for name in _DERIVED:
            for path in _files(self._source / name):
                self._copy_if_there(path)
        self._copy_tables()
        segments, end = self._log_end()
        start = self._copy_log(segments, end)
        if segments.starts and start > segments.starts[0] and start >= end:
            raise StoreUnusable(
                f"{self._source}: all of its log was deleted by age during the backup; try again"
            )
        write_synced(self._to, self._part / _LOCK, b"ogive")
        for folder, _, _ in os.walk(self._part):
            self._to.fsync_dir(Path(folder))
        self._to.rename(self._part, target)
        self._to.fsync_dir(target.parent)
        count = -(-(end - start) // segments.segment_bytes) if segments.starts else 0
        return Backup(str(target), start, end, count, self._reused)

    def _clear(self) -> None:
        """Remove what an interrupted backup left, except for full segments of the log."""
        for path in self._part.iterdir():
            if path.is_dir() and path.name != _LOG:
                shutil.rmtree(path)
            elif path.is_file() and path.name != _LOCK:
                path.unlink()
        # the last one may have ended with the log of that time
        for path in sorted((self._part / _LOG).iterdir())[-1:]:
            path.unlink()

    def _copy_tables(self) -> None:
        """Copy all other files: the tables, and then the journal, as a start reads them."""
        for _ in range(_TRIES):
            if all(self._copy_if_there(path) for path in _tables(self._source)):
                return
            # files of the next try must not stand beside older ones
            for path in _tables(self._part):
                path.unlink()
        raise StoreUnusable(f"{self._source}: its tables change too fast to be copied; try again")

    def _copy_if_there(self, path: Path) -> bool:
        """Copy a file that is replaced at once or only appended to. Return False if it is gone."""
        to = self._part / path.relative_to(self._source)
        try:
            handle = self._fs.open(path)
        except FileNotFoundError:
            to.unlink(missing_ok=True)
            return False
        try:
            make_lasting_dirs(self._to, to.parent)
            size = self._fs.size(handle)
            self._copy(handle, to, size, size)
        finally:
            self._fs.close(handle)
        return True

    def _copy(self, handle: int, to: Path, used: int, size: int) -> None:
        """Write a file of *size* bytes: the first *used* of *handle*, and zeros."""
        out = self._to.open(to, create=True)
        try:
            self._to.truncate(out, 0)
            for at in range(0, used, _BLOCK):
                block = self._fs.pread(handle, min(_BLOCK, used - at), at)
                # the disk keeps no space for zeros that were never written
                if any(block):
                    self._to.pwrite(out, block, at)
            self._to.truncate(out, size)
            self._to.fdatasync(out)
        finally:
            self._to.close(out)

    # --- the log ----------------------------------------------------------------------------------

    def _log_end(self) -> tuple[Segments, int]:
        """Return the segments, and the end of the last whole record now."""
        found = find_segments(self._fs, self._source / _LOG, 1)
        start = found.starts[0] if found.starts else 0
        # from the copy: the running broker may have written a later one, whose queues we lack
        checkpoint = usable(checkpoints.load(self._fs, self._part), start, found.end)
        end = LogEnd(start)
        crc_from = checkpoints.crc_from(self._fs, self._part, checkpoint)
        with closing(LogScan(self._fs, self._source / _LOG, found, crc_from)) as scan:
            for _ in scan.records(max(start, checkpoint.position if checkpoint else 0), end):
                pass
        return found, end.offset

    def _copy_log(self, found: Segments, end: int) -> int:
        """Copy the log up to *end*. Return where it begins."""
        begin = found.starts[0] if found.starts else 0
        size, log = found.segment_bytes, self._part / _LOG
        wanted = {segment_path(log, start) for start in found.starts if start < end}
        for path in set(log.iterdir()) - wanted:
            path.unlink()
        for start in found.starts:
            if start >= end:
                break
            try:
                self._copy_segment(start, min(size, end - start), size)
            except FileNotFoundError:
                # deleted by age, as are all before it
                begin = start + size
                for path in log.iterdir():
                    if path.name <= segment_path(log, start).name:
                        path.unlink()
        return begin

    def _copy_segment(self, start: int, used: int, size: int) -> None:
        source = segment_path(self._source / _LOG, start)
        to = segment_path(self._part / _LOG, start)
        handle = self._fs.open(source)
        try:
            if used == size and self._is_same(handle, to, size):
                self._reused += 1
                return
            part = to.with_suffix(".part")
            self._copy(handle, part, used, size)
            self._to.rename(part, to)
        finally:
            self._fs.close(handle)

    def _is_same(self, handle: int, copy: Path, size: int) -> bool:
        """Return True if *copy* is of the same full segment."""
        try:
            other = self._fs.open(copy)
        except FileNotFoundError:
            return False
        try:
            return self._fs.size(other) == size and all(
                self._fs.pread(handle, _COMPARED, at) == self._fs.pread(other, _COMPARED, at)
                for at in (0, max(0, size - _COMPARED))
            )
        finally:
            self._fs.close(other)


def _tables(root: Path) -> Iterator[Path]:
    """Yield the files in *root* that are neither the log nor derived from it."""
    for path in sorted(root.iterdir()):
        if path.name in {_LOG, _LOCK, _NOT_OURS, *_FIRST, *_DERIVED}:
            continue
        if path.is_dir():
            yield from (file for file in _files(path) if file.suffix != ".tmp")
        elif path.is_file() and path.suffix != ".tmp":
            yield path


def _files(directory: Path) -> Iterator[Path]:
    """Yield the files in *directory* and below, also those that vanish.

    Each directory is listed when its turn comes: files of a journal are replaced by newer ones.
    """
    for folder, folders, names in os.walk(directory, onerror=_not_listed, followlinks=True):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file() or not path.exists():
                yield path


def _not_listed(error: OSError) -> None:
    """Raise *error*, unless the directory is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error
