"""The few file calls that the store uses.

Everything on disk goes through here, so that a test can record, lose, tear or refuse writes.

Plain pwrite and pread, never a writable mapping: an I/O error is an exception here and would be a
deadly signal there.
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

Data = bytes | bytearray | memoryview

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE})
"""Errors that are temporary and lose nothing; any other error of a write or sync is final.

They include errors of files that may not grow (RLIMIT_FSIZE), like those of a full disk, and of
files that cannot be opened because too many are: clients use most descriptors, and must not be able
to stop the store by connecting.
"""

_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OWN_FILE: Final = 0o600
_OWN_DIRECTORY: Final = 0o700
_ROOM_BYTES: Final = 1024 * 1024
_CLEARED_AT_ONCE: Final = 64 * 1024
_NO_ANSWER: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})

_REASONS: Final = {
    errno.ENOENT: "it is not there and cannot be made",
    errno.EEXIST: "{path} is a file where a directory is needed",
    errno.ENOTDIR: "a part of the path {path} is a file",
    errno.EISDIR: "{path} is a directory where a file is needed",
    errno.EROFS: "its file system is read-only",
    errno.EACCES: "this user has no permission for {path}",
    errno.EPERM: "this user has no permission for {path}",
    errno.ENOSPC: "its disk is full",
    errno.EDQUOT: "this user's quota of disk space is used up",
    errno.EFBIG: "a file of it would be larger than this process may write (ulimit -f)",
}


def reason(failure: OSError) -> str:
    """Describe why a file call on a directory failed."""
    words = _REASONS.get(failure.errno or 0)
    if failure.errno == errno.EEXIST and failure.filename and Path(failure.filename).is_symlink():
        words = "{path} is a link that leads to no directory"
    if words:
        return words.format(path=failure.filename or "it")
    told = failure.strerror or str(failure)
    return f"{failure.filename}: {told}" if failure.filename else told


class Fs(Protocol):
    """File calls. Handles are small integers. Every failure is an OSError."""

    def open(self, path: Path, *, create: bool = False) -> int:
        """Open for reading and writing; *create* creates a missing file (empty), whose name is
        durable only after fsync_dir.
        """

    def close(self, handle: int) -> None: ...

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Read at most *size* bytes, fewer at the end."""

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        """Read data in the operating system's memory, or return None if this would have to wait for
        the disk. For one thread only.

        It is pread() if the system cannot tell, as on some file systems and outside Linux.
        """

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        """Write all of *data*. Raises OSError with an unknown part of it written."""

    def reserve(self, handle: int, size: int, offset: int) -> None:
        """Allocate space on the disk for bytes that were never written: they read as zeros, and no
        write to them meets a full disk.
        """

    def fdatasync(self, handle: int) -> None:
        """Put the file's bytes and size on stable storage."""

    def truncate(self, handle: int, size: int) -> None:
        """Truncate the file, or extend it by a hole that reads as zeros."""

    def clear(self, handle: int, offset: int) -> None:
        """Fill the file with zeros from *offset* on.

        The size stays the same, even if the process ends meanwhile.
        """

    def size(self, handle: int) -> int: ...

    def list(self, directory: Path) -> list[str]:
        """Return sorted names; none for a directory that does not exist."""

    def make_dirs(self, directory: Path) -> Sequence[Path]:
        """Create *directory*, with its parents, if they are missing. Return the created ones.

        The names are durable only after fsync_dir of their parents. Raises OSError, also if nothing
        can be created in *directory*.
        """

    def rename(self, source: Path, target: Path) -> None:
        """Replace *target* in one step."""

    def unlink(self, path: Path) -> None: ...

    def remove_dir(self, directory: Path) -> None:
        """Remove an empty directory. Raises OSError for one that is not."""

    def fsync_dir(self, directory: Path) -> None:
        """Make names durable that were created, renamed and removed in *directory*."""

    def lock(self, path: Path) -> int:
        """Return a handle that holds the file exclusively until it is closed or the process ends.

        Raises BlockingIOError if another handle holds it.
        """

    def boot_id(self) -> str:
        """Return an id of this run of the machine, or an empty text if it is unknown.

        While it is the same, no data was lost that was written and not synced.
        """


class OsFs:
    """The operating system's files.

    New files are for the broker's user only, because they have the bodies of messages.
    """

    _knows_what_waits = hasattr(os, "RWF_NOWAIT")
    _reserves = hasattr(os, "posix_fallocate")
    # of pread_now, kept: a new one costs 650 us a MiB, to be taken from the system and filled with
    # zeros
    _room = memoryview(b"")

    def open(self, path: Path, *, create: bool = False) -> int:
        return os.open(
            path,
            os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0),
            _OWN_FILE,
        )

    def close(self, handle: int) -> None:
        os.close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = os.pread(handle, size, offset)
        while len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
            data += more
        return data

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        if not self._knows_what_waits:
            return self.pread(handle, size, offset)
        if not self._room:
            self._room = memoryview(bytearray(_ROOM_BYTES))
        room = self._room if size <= _ROOM_BYTES else memoryview(bytearray(size))
        done = 0
        while done < size:
            try:
                count = os.preadv(handle, [room[done:size]], offset + done, _NOWAIT)
            except OSError as exc:
                if exc.errno == errno.EAGAIN:
                    return None
                if exc.errno in _NO_ANSWER:
                    self._knows_what_waits = False
                    return self.pread(handle, size, offset)
                raise
            if count == 0:
                break
            done += count
        return bytes(room[:done])

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        written = os.pwrite(handle, data, offset)
        if written < len(data):
            rest = memoryview(data)
            while written < len(rest):
                written += os.pwrite(handle, rest[written:], offset + written)

    def reserve(self, handle: int, size: int, offset: int) -> None:
        if self._reserves:
            try:
                os.posix_fallocate(handle, offset, size)
                return
            except OSError as exc:
                if exc.errno not in _NO_ANSWER:
                    raise
                self._reserves = False
        self.pwrite(handle, bytes(size), offset)

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def clear(self, handle: int, offset: int) -> None:
        size, pieces = self.size(handle), []
        while (offset := _data_from(handle, offset, size)) < size:
            pieces.append(
                (offset, min(size, offset - offset % _CLEARED_AT_ONCE + _CLEARED_AT_ONCE))
            )
            offset = pieces[-1][1]
        # the first one last: until then it is found as it was left
        for begin, end in reversed(pieces):
            if not self._is_zero(handle, begin, end):
                self.pwrite(handle, bytes(end - begin), begin)

    def _is_zero(self, handle: int, begin: int, end: int) -> bool:
        try:
            return self.pread(handle, end - begin, begin).count(0) == end - begin
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            # blocks that cannot be read are written anew
            return False

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(path.name for path in directory.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_dirs(self, directory: Path) -> Sequence[Path]:
        made = []
        path = directory
        while not path.exists():
            made.append(path)
            path = path.parent
        for path in reversed(made):
            path.mkdir(mode=_OWN_DIRECTORY, exist_ok=True)
        # raises if something else is there
        directory.mkdir(exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code), str(directory))
        return made

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_dir(self, directory: Path) -> None:
        directory.rmdir()

    def fsync_dir(self, directory: Path) -> None:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: Path) -> int:
        handle = self.open(path, create=True)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _lock_first_byte(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except OSError:
            return ""


class ReadOnlyFs(OsFs):
    """Read-only files: every change is refused with the error of a read-only file system."""

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        # which can be opened, but not read: as for who would write, and named
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            os.close(handle)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return handle

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        raise _read_only()

    def reserve(self, handle: int, size: int, offset: int) -> None:
        raise _read_only()

    def truncate(self, handle: int, size: int) -> None:
        raise _read_only()

    def clear(self, handle: int, offset: int) -> None:
        raise _read_only()

    def make_dirs(self, directory: Path) -> Sequence[Path]:
        raise _read_only()

    def rename(self, source: Path, target: Path) -> None:
        raise _read_only()

    def unlink(self, path: Path) -> None:
        raise _read_only()

    def remove_dir(self, directory: Path) -> None:
        raise _read_only()

    def lock(self, path: Path) -> int:
        """Return -1 if there is no such file, and so no holder of it."""
        try:
            handle = self.open(path)
        except FileNotFoundError:
            return -1
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _first_byte_is_locked(handle):
                raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        except BaseException:
            os.close(handle)
            raise
        return handle


def _read_only() -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS))


_LOCK: Final = struct.Struct("hhqqi4x")
"""struct flock: type, whence, start, length, process"""


def _first_byte_is_locked(handle: int) -> bool:
    """Return True if a Java process holds the lock.

    This only reads the lock: to take it, the file would have to be open for writing.
    """
    get_lock = getattr(fcntl, "F_OFD_GETLK", None)
    if get_lock is None:
        return False
    answer = fcntl.fcntl(handle, get_lock, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    return bool(_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _data_from(handle: int, offset: int, size: int) -> int:
    """Return the first offset at or after *offset* that may not be in a hole, in a file of *size*
    bytes; *size* if there is none.
    """
    try:
        return os.lseek(handle, offset, os.SEEK_DATA)
    except AttributeError:
        return offset
    except OSError as exc:
        if exc.errno == errno.ENXIO:
            return size
        if exc.errno in _NO_ANSWER:
            return offset
        raise


def _lock_first_byte(handle: int) -> None:
    """Take the lock that a Java process takes and checks; flock() is invisible to it.

    It is an open-file-description lock: an ordinary record lock would vanish as soon as this
    process closes any other handle of the file.
    """
    set_lock = getattr(fcntl, "F_OFD_SETLK", None)
    if set_lock is not None:
        fcntl.fcntl(handle, set_lock, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
