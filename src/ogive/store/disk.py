"""Reads files without waiting for the disk: what is in the page cache is returned at once, anything else raises Cold."""

from pathlib import Path

from ogive.store.fs import Fs
from ogive.store.segments import Handles


class Cold(Exception):
    """Bytes that only the disk has. The caller has bring_in() run on another thread, and tries again."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        super().__init__(f"{path} at {offset}: {size} bytes are not in memory")
        self.path, self.offset, self.size = path, offset, size


class Disk:
    """Open files for reading. *waits*: whether read() may wait for the disk; else it raises Cold, unless it *must_wait* in any case."""

    def __init__(self, fs: Fs, max_open: int) -> None:
        self._fs, self._handles = fs, Handles(fs, max_open)
        self.waits = True
        self.must_wait = False

    def read(self, path: Path, size: int, offset: int) -> bytes:
        """At most *size* bytes, fewer where the file ends. Raises FileNotFoundError, OSError, Cold."""
        handle = self._handles.get(path)
        if self.waits or self.must_wait:
            return self._fs.pread(handle, size, offset)
        data = self._fs.pread_now(handle, size, offset)
        if data is None:
            raise Cold(path, offset, size)
        return data

    def forget(self, path: Path) -> None:
        """The file is about to be removed: an open handle would keep its space."""
        self._handles.forget(path)

    def forget_under(self, directory: Path) -> None:
        """So are all files of *directory*. One that is made there later is another file: an open handle would show the old one."""
        self._handles.forget_under(directory)

    def close(self) -> None:
        self._handles.close()


def bring_in(fs: Fs, cold: Cold) -> None:
    """Read it into the page cache, on any thread. Raises OSError, but not for a missing file: the next try will find that out."""
    try:
        handle = fs.open(cold.path)
    except FileNotFoundError:
        return
    try:
        fs.pread(handle, cold.size, cold.offset)
    finally:
        fs.close(handle)
