"""Repair everything that prevents reading a log: files that are missing, too long, or in the wrong
place.

Nothing is deleted: a file in the wrong place is moved to ``set-aside/`` in the store's directory,
under its path.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ogive.errors import StoreCorrupt
from ogive.store.bad_sectors import Unreadable
from ogive.store.fs import Fs
from ogive.store.segments import segment_path, sizes_of, usual_size
from ogive.store.tables import make_lasting_dirs

SET_ASIDE: Final = "set-aside"
# files of the log; beyond that it is another directory's file that is in the way
_MAX_MISSING: Final = 1_000
# a segment that is longer still is one of another size
_MAX_EXCESS_BYTES: Final = 1024 * 1024
_DERIVED_QUEUES: Final = ("consumequeue", "batchconsumequeue")


def repair_files(fs: Fs, root: Path) -> list[str]:
    """Repair the files of the log; return sentences about the changes.

    Raises StoreCorrupt if it would have to guess, and OSError.
    """
    return [*_set_strays_aside(fs, root), *_repair_segments(fs, root)]


def _repair_segments(fs: Fs, root: Path) -> Iterator[str]:
    directory = root / "commitlog"
    sizes = sizes_of(fs, directory)
    usual = usual_size(sizes)
    if usual is None:
        return
    segment_bytes, starts = usual[0], list(sizes)
    for start, size in sizes.items():
        if 0 < size - segment_bytes <= _MAX_EXCESS_BYTES:
            _cut(fs, root, segment_path(directory, start), segment_bytes)
            yield (
                f"{segment_path(directory, start).name} of the log was {size - segment_bytes} "
                f"bytes too long: they are in {SET_ASIDE}/"
            )
    missing = (starts[-1] - starts[0]) // segment_bytes + 1 - len(starts)
    if missing > _MAX_MISSING:
        raise StoreCorrupt(
            f"{directory}: {missing} files are missing between {min(starts):020d} and "
            f"{max(starts):020d}: is one another store's?"
        )
    for start in sorted({*range(starts[0], starts[-1], segment_bytes)} - sizes.keys()):
        _make_empty(fs, segment_path(directory, start), segment_bytes)
        yield (
            f"{segment_path(directory, start).name} of the log was missing: the messages in it "
            "are lost, an empty one is in its place"
        )
    fs.fsync_dir(directory)


def _cut(fs: Fs, root: Path, path: Path, size: int) -> None:
    handle = fs.open(path)
    try:
        excess = Unreadable().read(fs, handle, path, _MAX_EXCESS_BYTES, size)
        kept = _place_aside(fs, root, path)
        copy = fs.open(kept, create=True)
        try:
            fs.pwrite(copy, excess, 0)
            fs.fdatasync(copy)
        finally:
            fs.close(copy)
        fs.fsync_dir(kept.parent)
        fs.truncate(handle, size)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def _make_empty(fs: Fs, path: Path, size: int) -> None:
    handle = fs.open(path, create=True)
    try:
        fs.truncate(handle, size)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def _set_strays_aside(fs: Fs, root: Path) -> Iterator[str]:
    for path in list(_strays(fs, root)):
        kept = _place_aside(fs, root, path)
        fs.rename(path, kept)
        for directory in (kept.parent, path.parent):
            fs.fsync_dir(directory)
        yield (
            f"{path.relative_to(root)} stood where the broker keeps files of its own: it is in "
            f"{SET_ASIDE}/"
        )


def _strays(fs: Fs, root: Path) -> Iterator[Path]:
    """Yield directories where derived files should be, and files where directories should."""
    for name in (*_DERIVED_QUEUES, "index"):
        if (root / name).exists() and not (root / name).is_dir():
            yield root / name
    for topic in (
        root / queues / name for queues in _DERIVED_QUEUES for name in fs.list(root / queues)
    ):
        if not topic.is_dir():
            yield topic
            continue
        for queue in (topic / name for name in fs.list(topic)):
            if not queue.is_dir():
                yield queue
                continue
            yield from (path for name in fs.list(queue) if (path := queue / name).is_dir())
    yield from (
        path for name in fs.list(root / "index") if (path := root / "index" / name).is_dir()
    )


def _place_aside(fs: Fs, root: Path, path: Path) -> Path:
    """Return a free path for *path* in SET_ASIDE, and create its directory."""
    kept = root / SET_ASIDE / path.relative_to(root)
    make_lasting_dirs(fs, kept.parent)
    number = 1
    while kept.exists():
        number += 1
        kept = kept.with_name(f"{path.name}.{number}")
    return kept
