"""A file interface that fails or waits where a test says so."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ogive.store import OsFs
from ogive.store.fs import Data


class FaultyFs(OsFs):
    """Real files; *fault* (call, path) is asked before each change and raises or returns.

    "zero" is a call that makes room.
    """

    def __init__(self, fault: Callable[[str, Path], None]) -> None:
        self.fault = fault
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self.fault("create", path)
        handle = super().open(path, create=create)
        self._paths[handle] = path
        return handle

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        self.fault("pwrite" if any(bytes(data[:64])) else "zero", self._paths[handle])
        super().pwrite(handle, data, offset)

    def reserve(self, handle: int, size: int, offset: int) -> None:
        self.fault("zero", self._paths[handle])
        super().reserve(handle, size, offset)

    def fdatasync(self, handle: int) -> None:
        self.fault("fdatasync", self._paths[handle])
        super().fdatasync(handle)

    def rename(self, source: Path, target: Path) -> None:
        self.fault("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.fault("unlink", path)
        super().unlink(path)

    def fsync_dir(self, directory: Path) -> None:
        self.fault("fsync_dir", directory)
        super().fsync_dir(directory)


class BadSectors(OsFs):
    """Real files, some blocks of which the disk cannot read: whatever needs their bytes is answered
    EIO, so is a write to a part of one.
    """

    BLOCK = 4096

    def __init__(self) -> None:
        # file and number of a block
        self.bad: set[tuple[Path, int]] = set()
        # parts of the paths of files of which nothing can be read
        self.gone: tuple[str, ...] = ()
        # after so many failures everything can be read
        self.times: int | None = None
        self.failures = 0
        self.code = errno.EIO
        self._paths: dict[int, Path] = {}

    def spoil(self, path: Path, at: int) -> None:
        """The block that byte *at* is in."""
        self.bad.add((path, at // self.BLOCK))

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self._paths[handle] = path
        return handle

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if self._hits(handle, size, offset):
            self._fail()
        return super().pread(handle, size, offset)

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        return None if self._hits(handle, size, offset) else super().pread(handle, size, offset)

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        path, end = self._paths[handle], offset + len(data)
        for block in self._blocks(len(data), offset):
            if (path, block) in self.bad and (
                offset > block * self.BLOCK or end < (block + 1) * self.BLOCK
            ):
                self._fail()
        super().pwrite(handle, data, offset)
        self.bad.difference_update((path, block) for block in self._blocks(len(data), offset))

    def truncate(self, handle: int, size: int) -> None:
        path = self._paths[handle]
        if (
            size < self.size(handle)
            and size % self.BLOCK
            and (path, size // self.BLOCK) in self.bad
        ):
            # the rest of the block is filled with zeros
            self._fail()
        super().truncate(handle, size)
        self.bad = {
            (other, block)
            for other, block in self.bad
            if other != path or block * self.BLOCK < size
        }

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.bad = {(other, block) for other, block in self.bad if other != path}

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.bad = {
            (target if other == source else other, block)
            for other, block in self.bad
            if other != target
        }

    def _hits(self, handle: int, size: int, offset: int) -> bool:
        if self.times is not None and self.failures >= self.times:
            return False
        path, size = self._paths[handle], min(size, max(0, self.size(handle) - offset))
        return any(part in str(path) for part in self.gone) or any(
            (path, block) in self.bad for block in self._blocks(size, offset)
        )

    def _blocks(self, size: int, offset: int) -> range:
        return range(offset // self.BLOCK, -(-(offset + size) // self.BLOCK))

    def _fail(self) -> None:
        self.failures += 1
        raise OSError(self.code, os.strerror(self.code))


class FailFrom:
    """The n-th matching call after arm() fails, and *times* - 1 more."""

    def __init__(self, call: str, part: str, nth: int, times: int, code: int = errno.EIO) -> None:
        self._call, self._part, self._left, self._times, self._code = call, part, nth, times, code
        self.armed = False
        self.failures = 0

    def __call__(self, call: str, path: Path) -> None:
        if not self.armed or call != self._call or self._part not in str(path):
            return
        self._left -= 1
        if self._left < 0 and self.failures < self._times:
            self.failures += 1
            raise OSError(self._code, os.strerror(self._code))


class Gate:
    """Holds the syncs of the commit log until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def __call__(self, call: str, path: Path) -> None:
        if call == "fdatasync" and "commitlog" in str(path) and not self.open.is_set():
            self.reached.set()
            if not self.open.wait(timeout=60):
                raise TimeoutError("nobody opened the gate")
