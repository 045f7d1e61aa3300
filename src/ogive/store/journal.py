"""An append-only file beside the log, for changes that must be durable before they apply.

Behaviour
- A line is a checksum and text. When the file is read, an empty line stands for damaged ones.
- Lines are handed to the writer thread in groups, one group at a time, in the order of the calls.
- flush=sync: *done* is called after the sync. flush=async: after the write; the sync follows that
  of the log.
- A group that meets a full disk is refused together with all later lines, so that the caller can
  undo them. Any other error fails the store, and so does any error of a sync.
- The journal is a sequence of files. ``roll`` begins the next one; ``drop_old`` removes those
  before it, after the caller has appended again the lines that it still needs.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ogive.errors import StoreBusy, StoreError, StoreFull
from ogive.store.fs import NO_SPACE, Fs, reason
from ogive.store.tables import make_lasting_dirs, read_file
from ogive.store.writer import CommitWriter, WriterLink
from ogive.wire.checksum import crc32

log = logging.getLogger(__name__)

Done = Callable[[StoreError | None], None]
"""Called once on the owner thread: with None, or with the reason why nothing was written."""

MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
# of one write
_GROUP_BYTES: Final = 1024 * 1024
_DIGITS: Final = 20


def read_journal(fs: Fs, folder: Path) -> list[bytes]:
    """Return the lines of all files in *folder*, in order, and an empty one for each that is
    damaged. Raises OSError.
    """
    lines: list[bytes] = []
    for path in _files(fs, folder):
        *whole, rest = (read_file(fs, path) or b"").split(b"\n")
        found = [line[9:] if _is_intact(line) else b"" for line in whole]
        damaged = found.count(b"")
        if damaged:
            log.error("%s: %d damaged lines are left out", path, damaged)
        if rest:
            log.info("%s ends inside a line, which nobody was told of", path)
        lines += found
    return lines


def _files(fs: Fs, folder: Path) -> list[Path]:
    return [folder / name for name in fs.list(folder) if name.isdecimal() and len(name) == _DIGITS]


def _is_intact(line: bytes) -> bool:
    return line[:9] == b"%08x " % crc32(line[9:])


def _framed(text: bytes) -> bytes:
    return b"%08x %b\n" % (crc32(text), text)


class Journal:
    """The journal in one folder. Owner thread only, except for methods that say otherwise."""

    def __init__(self, fs: Fs, folder: Path, work: CommitWriter, link: WriterLink) -> None:
        self._fs = fs
        self._folder = folder
        self._work = work
        self._link = link
        self._handle = -1
        self._path = folder
        # of the current file; the writer's
        self._end = 0
        self._is_dirty = False
        self._waiting: list[tuple[bytes, Done]] = []
        self._waiting_bytes = 0
        self._in_flight = 0
        self._soon: Callable[[Callable[[], None]], object] | None = None
        self._is_due = False
        # written to the current file, as far as the owner knows
        self.size = 0

    def begin(self, lines: Iterable[bytes]) -> None:
        """Replace everything in the folder by *lines*, durably. Blocking. Raises OSError."""
        make_lasting_dirs(self._fs, self._folder)
        old = _files(self._fs, self._folder)
        data = b"".join(map(_framed, lines))
        self._open(int(old[-1].name) + 1 if old else 1, data)
        self._fs.fdatasync(self._handle)
        self._fs.fsync_dir(self._folder)
        for path in old:
            self._fs.unlink(path)
        self._fs.fsync_dir(self._folder)
        self.size = len(data)
        self._work.beside.append(self._sync)

    def start(self, soon: Callable[[Callable[[], None]], object]) -> None:
        """Accept lines. *soon* has a job called at the end of the owner's turn."""
        self._soon = soon

    def append(self, lines: Iterable[bytes], done: Done) -> None:
        """Write *lines*, all or none, and then call *done*.

        Raises StoreBusy, and the error that ended all writing.
        """
        self._link.check_running()
        if self._waiting_bytes > MAX_WAITING_BYTES:
            raise StoreBusy(f"{self._waiting_bytes} bytes wait for the journal of leases")
        data = b"".join(map(_framed, lines))
        self._waiting.append((data, done))
        self._waiting_bytes += len(data)
        if not self._in_flight and not self._is_due and self._soon is not None:
            self._is_due = True
            self._soon(self.submit)

    def submit(self) -> None:
        """Hand the waiting lines to the writer, unless a group is in progress: then they follow
        it.
        """
        self._is_due = False
        if self._in_flight or not self._waiting:
            return
        size = count = 0
        while count < len(self._waiting) and size < _GROUP_BYTES:
            size += len(self._waiting[count][0])
            count += 1
        self._in_flight = count
        data = b"".join([one for one, _ in self._waiting[:count]])
        self._link.post(lambda: self._write(data))

    def roll(self) -> None:
        """Begin a new file after the lines that were handed over. Waiting lines go to the new
        one.
        """
        self.size = 0
        self._link.post(self._roll)

    def drop_old(self) -> None:
        """Remove the files before the current one. All appended lines must be written."""
        self._link.post(self._drop_old)

    def close(self) -> None:
        """Close the file. The writer has ended."""
        if self._handle >= 0:
            self._fs.close(self._handle)
            self._handle = -1

    # --- on the writer thread ---------------------------------------------------------------------

    def _open(self, number: int, data: bytes) -> None:
        path = self._folder / f"{number:0{_DIGITS}}"
        handle = self._fs.open(path, create=True)
        try:
            self._fs.truncate(handle, 0)
            self._fs.pwrite(handle, data, 0)
        except BaseException:
            self._fs.close(handle)
            raise
        if self._handle >= 0:
            self._fs.close(self._handle)
        self._handle, self._path, self._end = handle, path, len(data)

    def _write(self, data: bytes) -> None:
        error: StoreError | None = None
        if not self._work.has_failed:
            try:
                self._fs.pwrite(self._handle, data, self._end)
            except OSError as exc:
                error = self._refused(exc)
            else:
                self._end += len(data)
                self._is_dirty = True
                self._sync_as_the_log()
        self._link.call_owner(lambda: self._written(error))

    def _sync_as_the_log(self) -> None:
        try:
            self._work.wrote_beside()
        except OSError as exc:
            # also of a full disk: the lines are in the file, and may reach the disk or not
            self._work.fail_by("syncing the journal of leases", exc)

    def _refused(self, exc: OSError) -> StoreError | None:
        """Undo half a write that met a full disk; any other error is final."""
        if exc.errno in NO_SPACE:
            try:
                self._fs.truncate(self._handle, self._end)
            except OSError as second:
                exc = second
            else:
                return StoreFull(f"no room for the journal of leases: {reason(exc)}")
        self._work.fail_by("writing the journal of leases", exc)
        return None

    def _roll(self) -> None:
        try:
            # else lines of the new file could outlive some of the old one
            self._sync()
            self._open(int(self._path.name) + 1, b"")
            self._fs.fsync_dir(self._folder)
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                self._work.fail_by("beginning a file of the journal of leases", exc)

    def _drop_old(self) -> None:
        try:
            self._sync()
            for path in _files(self._fs, self._folder):
                if path < self._path:
                    self._fs.unlink(path)
            self._fs.fsync_dir(self._folder)
        except OSError as exc:
            self._work.fail_by("removing a file of the journal of leases", exc)

    def _sync(self) -> None:
        if self._is_dirty:
            self._fs.fdatasync(self._handle)
            self._is_dirty = False

    # --- back on the owner thread -----------------------------------------------------------------

    def _written(self, error: StoreError | None) -> None:
        error = error or self._link.failed
        count = len(self._waiting) if error is not None else self._in_flight
        told, self._waiting = self._waiting[:count], self._waiting[count:]
        size = sum([len(data) for data, _ in told])
        self._waiting_bytes -= size
        self._in_flight = 0
        if error is None:
            self.size += size
        bug: Exception | None = None
        # the newest first, so that each is taken back from where it left things
        for _, done in reversed(told) if error is not None else told:
            try:
                done(error)
            except Exception as exc:  # noqa: BLE001  whatever it is, others wait behind it
                bug = bug or exc
        self.submit()
        if bug is not None:
            raise bug
