"""Segments: files of equal size with consecutive bytes, each named by the offset of its first byte
in 20 digits.
"""

import functools
import itertools
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import StoreCorrupt
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.fs import Fs

_DIGITS: Final = 20


@functools.lru_cache(1024)
def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{start:0{_DIGITS}d}"


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a directory: contiguous, all of *segment_bytes* (the last ones may be shorter
    on disk after a crash).
    """

    starts: tuple[int, ...]
    segment_bytes: int

    @property
    def end(self) -> int:
        return self.starts[-1] + self.segment_bytes if self.starts else 0


def find_segments(fs: Fs, directory: Path, default_bytes: int) -> Segments:
    """Find the segments of a directory.

    Their size is read from the files; *default_bytes* is used if there are none.

    Raises StoreCorrupt on a gap.
    """
    sizes = sizes_of(fs, directory)
    starts = list(sizes)
    if not starts:
        return Segments((), default_bytes)
    distances = [after - before for before, after in itertools.pairwise(starts)]
    segment_bytes = min(distances) if distances else sizes[starts[0]] or default_bytes
    if (usual := usual_size(sizes)) is not None and usual[0] < segment_bytes and usual[1] > 1:
        # there are files missing between all that are left
        segment_bytes = usual[0]
    for before, after in itertools.pairwise(starts):
        if after - before != segment_bytes:
            raise StoreCorrupt(
                f"{directory}: a file is missing between {before:0{_DIGITS}d} and "
                f"{after:0{_DIGITS}d}. "
                f"Put it back, or let `ogive store repair {directory.parent}` go on without its "
                "messages"
            )
    if starts[0] % segment_bytes:
        raise StoreCorrupt(
            f"{segment_path(directory, starts[0])}: the name is not a multiple of the file size "
            f"{segment_bytes}"
        )
    for start, size in sizes.items():
        if size > segment_bytes:
            raise StoreCorrupt(
                f"{segment_path(directory, start)} has {size} bytes, its neighbours "
                f"{segment_bytes}. "
                f"`ogive store repair {directory.parent}` cuts what is too long by a little"
            )
    return Segments(tuple(starts), segment_bytes)


def sizes_of(fs: Fs, directory: Path) -> dict[int, int]:
    """Start -> size of the file, in order."""
    return {int(name): size_of(fs, directory / name) for name in segment_names(fs, directory)}


def usual_size(sizes: Mapping[int, int]) -> tuple[int, int] | None:
    """Return the size of most segments, among sizes that divide all starts, and how many have it,
    or None if there is none.
    """
    counts = Counter(
        size for size in sizes.values() if size and not any(start % size for start in sizes)
    )
    return counts.most_common(1)[0] if counts else None


def segment_names(fs: Fs, directory: Path) -> list[str]:
    """Return the names of segments in order."""
    return sorted(name for name in fs.list(directory) if len(name) == _DIGITS and name.isdigit())


def found_sizes(fs: Fs, directory: Path) -> list[int]:
    """Return the sizes of the segments in *directory*, whatever they are."""
    return [size_of(fs, directory / name) for name in segment_names(fs, directory)]


def size_of(fs: Fs, path: Path) -> int:
    handle = fs.open(path)
    try:
        return fs.size(handle)
    finally:
        fs.close(handle)


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
