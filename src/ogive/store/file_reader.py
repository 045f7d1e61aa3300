"""Read files without waiting for the disk: data in the page cache is returned at once, anything
else raises Cold.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from ogive.store.bad_sectors import Unreadable, read_or_nothing
from ogive.store.fs import Fs


class Handles:
    """Open files of one thread; beyond *limit* the least recently used is closed."""

    def __init__(self, fs: Fs, limit: int) -> None:
        self._fs, self._limit = fs, limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def get(self, path: Path) -> int:
        """Return the handle of a file. Raises FileNotFoundError."""
        handle = self._open.get(path)
        if handle is None:
            handle = self._keep(path, self._fs.open(path))
        else:
            self._open.move_to_end(path)
        return handle

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Read a part of a derived file; nothing if it is missing, or the disk cannot read it."""
        try:
            handle = self.get(path)
        except FileNotFoundError:
            return b""
        return read_or_nothing(self._fs, handle, path, size, offset)

    def create(self, path: Path, size: int) -> int:
        """Create a file of *size* zeros, in place of an existing one."""
        self.forget(path)
        handle = self._keep(path, self._fs.open(path, create=True))
        self._fs.truncate(handle, 0)
        self._fs.truncate(handle, size)
        return handle

    def create_over(self, path: Path, size: int) -> int:
        """Create a file of *size* bytes, with the bytes of the existing file."""
        try:
            handle = self.get(path)
        except FileNotFoundError:
            return self.create(path, size)
        except OSError:
            # it may not be written to, or is a link
            self._fs.unlink(path)
            return self.create(path, size)
        if self._fs.size(handle) != size:
            self._fs.truncate(handle, size)
        return handle

    def forget(self, path: Path) -> None:
        handle = self._open.pop(path, None)
        if handle is not None:
            self._fs.close(handle)

    def forget_under(self, directories: Collection[Path]) -> None:
        every = set(directories)
        for path in [path for path in self._open if path.parent in every]:
            self.forget(path)

    def close(self) -> None:
        while self._open:
            self._fs.close(self._open.popitem()[1])

    def _keep(self, path: Path, handle: int) -> int:
        self._open[path] = handle
        if len(self._open) > self._limit:
            self._fs.close(self._open.popitem(last=False)[1])
        return handle


T = TypeVar("T")

MAX_KEPT_BYTES: Final = 64 * 1024 * 1024


class Place(NamedTuple):
    """Bytes of a file. *unreadable* records unreadable blocks, if they are not an error."""

    path: Path
    offset: int
    size: int
    unreadable: Unreadable | None = None


class Cold(Exception):
    """Exception for bytes that must be read from the disk.

    The caller runs bring_in() on another thread, and tries again.
    """

    def __init__(
        self, path: Path, offset: int, size: int, unreadable: Unreadable | None = None
    ) -> None:
        """See Place."""
        super().__init__(path, offset, size)
        self.place = Place(path, offset, size, unreadable)
        self.others: list[Place] = []
        """Further places that the caller needs, see each_or_cold(): there may be as many as queues.
        """

    def __str__(self) -> str:
        return (
            f"{self.place.path} at {self.place.offset}: {self.place.size} bytes are not in memory"
        )


class Disk:
    """Open files for reading.

    *waits*: read() may wait for the disk; otherwise it raises Cold, unless it *must_wait* in any
    case.
    """

    def __init__(self, fs: Fs, max_open: int) -> None:
        self._fs, self._handles = fs, Handles(fs, max_open)
        self.waits = True
        self.must_wait = False
        self.unreadable = Unreadable()
        self._kept: dict[tuple[Path, int], bytes] = {}
        self._kept_bytes = 0

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """Read at most *size* bytes of a derived file, fewer at its end.

        Raises FileNotFoundError, OSError, Cold.
        """
        handle = self._handles.get(path)
        try:
            if self.waits or self.must_wait:
                kept = self._kept_part(path, size, offset) if self._kept else None
                return self._fs.pread(handle, size, offset) if kept is None else kept
            data = self._fs.pread_now(handle, size, offset)
        except OSError as exc:
            if exc.errno == errno.EIO:
                raise _lost(path) from exc
            raise
        if data is None and (data := self._kept_part(path, size, offset)) is None:
            raise Cold(path, offset, size)
        return data

    def read_log(self, path: Path, size: int, offset: int) -> bytes:
        """Read the commit log as read() does, with zeros, which are never a record, for unreadable
        blocks.
        """
        handle = self._handles.get(path)
        if self.waits or self.must_wait:
            kept = self._kept_part(path, size, offset) if self._kept else None
            return (
                self.unreadable.read(self._fs, handle, path, size, offset) if kept is None else kept
            )
        data = self.unreadable.read_now(self._fs, handle, path, size, offset)
        if data is None and (data := self._kept_part(path, size, offset)) is None:
            raise Cold(path, offset, size, self.unreadable)
        return data

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Raise Cold in the block for a read that would have to wait for the disk, see
        bring_in().
        """
        before, self.waits = self.waits, False
        try:
            yield
        finally:
            self.waits = before

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let reads in the block wait for the disk, even within without_waiting(): for bytes that
        were evicted before they could be read.
        """
        self.must_wait = True
        try:
            yield
        finally:
            self.must_wait = False

    def keep(self, place: Place, data: bytes) -> None:
        """Keep the data that bring_in() read: reads find it until keep_nothing(), even if the
        system is short of memory. There is a limit.
        """
        if (
            self._kept_bytes + len(data) <= MAX_KEPT_BYTES
            and (place.path, place.offset) not in self._kept
        ):
            self._kept[place.path, place.offset] = data
            self._kept_bytes += len(data)

    def keep_nothing(self) -> None:
        self._kept, self._kept_bytes = {}, 0

    def _kept_part(self, path: Path, size: int, offset: int) -> bytes | None:
        data = self._kept.get((path, offset), b"")
        return data[:size] if len(data) >= size else None

    def forget(self, path: Path) -> None:
        """Close a file that is about to be removed: an open handle would keep its space."""
        self.keep_nothing()
        self._handles.forget(path)

    def forget_under(self, directories: Collection[Path]) -> None:
        """Close all files in *directories*, which are about to be removed.

        A file that is created there later is another one: an open handle would read the old one.
        """
        self.keep_nothing()
        self._handles.forget_under(directories)

    def close(self) -> None:
        self._handles.close()


def each_or_cold(reads: Iterable[Callable[[], T]]) -> list[T]:
    """Return the results of many reads.

    If some need the disk, raise one Cold for all of them, with the others in its *others*: with one
    Cold each, all reads would begin again as often as there are queues.
    """
    found: list[T] = []
    missing: list[Cold] = []
    for read in reads:
        try:
            found.append(read())
        except Cold as cold:
            # it would keep the frames of as many calls
            missing.append(cold.with_traceback(None))
    if (together := all_of(missing)) is not None:
        raise together
    return found


def in_memory(read: Callable[[], T]) -> Generator[Cold, None, T]:
    """Return the result of *read*, after everything that it needs was brought in."""
    while True:
        try:
            return read()
        except Cold as cold:
            yield cold.with_traceback(None)


def all_of(missing: Sequence[Cold]) -> Cold | None:
    """Return one Cold for all of *missing*, or None if nothing is missing."""
    if not missing:
        return None
    first, *more = missing
    for cold in more:
        first.others += [cold.place, *cold.others]
    return first


def bring_in(fs: Fs, place: Place) -> bytes:
    """Read it into the page cache, on any thread.

    Raises OSError, but not for a missing file: the next try will notice that.
    """
    try:
        handle = fs.open(place.path)
    except FileNotFoundError:
        return b""
    try:
        if place.unreadable is not None:
            return place.unreadable.read(fs, handle, place.path, place.size, place.offset)
        return fs.pread(handle, place.size, place.offset)
    except OSError as exc:
        if exc.errno == errno.EIO and place.unreadable is None:
            raise _lost(place.path) from exc
        raise
    finally:
        fs.close(handle)


def _lost(path: Path) -> OSError:
    """Return the error for bytes of a derived file that cannot be read.

    The log has their messages: skipping them would lose messages.
    """
    return OSError(errno.EIO, f"{os.strerror(errno.EIO)}, the next start makes it again", str(path))
