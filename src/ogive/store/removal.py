"""A note of which segments are about to be removed, so that what readers were told is gone stays
gone after a crash.

The note exists from shortly before the lowest offsets move up until the segments are removed.
Recovery that finds it finishes the removal, but only once there is a checkpoint of all queues: the
offset of a queue that loses all its records is known from nowhere else.
"""

from pathlib import Path
from typing import Final

from ogive.store.fs import Fs
from ogive.store.segments import segment_names
from ogive.store.tables import read_file, replace_file
from ogive.wire.checksum import crc32

_NAME: Final = "removing"
_DIGITS: Final = 20


def note(fs: Fs, root: Path, until: int) -> None:
    """Segments before commit-log offset *until* go. Raises OSError."""
    replace_file(fs, root / _NAME, _text(until))


def done(fs: Fs, root: Path) -> None:
    """They are gone. Raises OSError; a note that stays does no harm."""
    if read_file(fs, root / _NAME) is not None:
        fs.unlink(root / _NAME)


def pending(fs: Fs, root: Path, directory: Path) -> int | None:
    """What a removal that a crash ended was to reach, if there was one.

    A note that makes no sense is forgotten. Raises OSError.
    """
    raw = read_file(fs, root / _NAME)
    if raw is None:
        return None
    until = raw.partition(b" ")[0]
    names = segment_names(fs, directory)
    if (
        until.isdigit()
        and len(until) <= _DIGITS
        and raw == _text(int(until))
        and names
        and int(until) <= int(names[-1])
    ):
        return int(until)
    done(fs, root)
    return None


def finish(fs: Fs, root: Path, directory: Path, until: int) -> None:
    """Go on with it.

    Only where a checkpoint has seen every record before *until*. Raises OSError.
    """
    for name in segment_names(fs, directory):
        if int(name) < until:
            fs.unlink(directory / name)
    fs.fsync_dir(directory)
    done(fs, root)


def _text(until: int) -> bytes:
    return b"%d %d\n" % (until, crc32(b"%d" % until))
