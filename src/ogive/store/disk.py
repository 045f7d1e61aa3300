"""Reads files without waiting for the disk: what is in the page cache is returned at once, anything else raises Cold."""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from ogive.store.fs import Fs
from ogive.store.segments import Handles
from ogive.store.unreadable import Unreadable

T = TypeVar("T")


class Cold(Exception):
    """Bytes that only the disk has. The caller has bring_in() run on another thread, and tries again."""

    def __init__(self, path: Path, offset: int, size: int, unreadable: Unreadable | None = None) -> None:
        """*unreadable* takes note of what cannot be read, where that is no error."""
        super().__init__(f"{path} at {offset}: {size} bytes are not in memory")
        self.path, self.offset, self.size, self.unreadable = path, offset, size, unreadable
        self.others: list[Cold] = []
        """What the caller needs besides, see each_or_cold()."""


class Disk:
    """Open files for reading. *waits*: whether read() may wait for the disk; else it raises Cold, unless it *must_wait* in any case."""

    def __init__(self, fs: Fs, max_open: int) -> None:
        self._fs, self._handles = fs, Handles(fs, max_open)
        self.waits = True
        self.must_wait = False
        self.unreadable = Unreadable()

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """At most *size* bytes of a derived file, fewer where it ends. Raises FileNotFoundError, OSError, Cold."""
        handle = self._handles.get(path)
        try:
            if self.waits or self.must_wait:
                return self._fs.pread(handle, size, offset)
            data = self._fs.pread_now(handle, size, offset)
        except OSError as exc:
            if exc.errno == errno.EIO:
                raise _lost(path) from exc
            raise
        if data is None:
            raise Cold(path, offset, size)
        return data

    def read_log(self, path: Path, size: int, offset: int) -> bytes:
        """read() of the commit log: what the disk cannot read is zeros, and no record stands in them."""
        handle = self._handles.get(path)
        if self.waits or self.must_wait:
            return self.unreadable.read(self._fs, handle, path, size, offset)
        data = self.unreadable.read_now(self._fs, handle, path, size, offset)
        if data is None:
            raise Cold(path, offset, size, self.unreadable)
        return data

    def forget(self, path: Path) -> None:
        """The file is about to be removed: an open handle would keep its space."""
        self._handles.forget(path)

    def forget_under(self, directory: Path) -> None:
        """So are all files of *directory*. One that is made there later is another file: an open handle would show the old one."""
        self._handles.forget_under(directory)

    def close(self) -> None:
        self._handles.close()


def each_or_cold(reads: Iterable[Callable[[], T]]) -> list[T]:
    """What each of many reads gives.

    Where some need the disk, raises one Cold for all of them, with the rest in its *others*: one Cold each would begin all reads again as
    often as there are queues.
    """
    found: list[T] = []
    cold: Cold | None = None
    for read in reads:
        try:
            found.append(read())
        except Cold as missing:
            missing.with_traceback(None)  # it would keep the frames of as many calls
            if cold is None:
                cold = missing
            else:
                cold.others += [missing, *missing.others]
    if cold is not None:
        raise cold
    return found


def bring_in(fs: Fs, cold: Cold) -> None:
    """Read it into the page cache, on any thread. Raises OSError, but not for a missing file: the next try will find that out."""
    try:
        handle = fs.open(cold.path)
    except FileNotFoundError:
        return
    try:
        if cold.unreadable is not None:
            cold.unreadable.read(fs, handle, cold.path, cold.size, cold.offset)
        else:
            fs.pread(handle, cold.size, cold.offset)
    except OSError as exc:
        if exc.errno == errno.EIO and cold.unreadable is None:
            raise _lost(cold.path) from exc
        raise
    finally:
        fs.close(handle)


def _lost(path: Path) -> OSError:
    """What was to be read of a derived file is in the log, too: to pass over it would lose messages."""
    return OSError(errno.EIO, f"{os.strerror(errno.EIO)}, the next start makes it again", str(path))
