"""Segments: files of equal size with consecutive bytes, each named by the offset of its first byte
in 20 digits.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ogive.errors import StoreCorrupt
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
