"""The lock of a store's directory: one process at a time, ours or Apache's."""

from pathlib import Path
from typing import Final

from ogive.errors import StoreLocked, StoreUnusable
from ogive.store.fs import Fs, reason
from ogive.store.tables import make_lasting_dirs, read_file

_NAME: Final = "lock"
_OURS: Final = b"ogive"
"""Contents of the file while no other broker has run here since. Apache's writes "lock" at each
start (DefaultMessageStore.start, 5.5).
"""


def lock_directory(fs: Fs, root: Path) -> int:
    """Create *root* if it does not exist, and lock it; return the handle to close.

    Raises StoreLocked, StoreUnusable.
    """
    try:
        make_lasting_dirs(fs, root)
        return fs.lock(root / _NAME)
    except BlockingIOError:
        raise StoreLocked(f"the store in {root} is in use by another process") from None
    except OSError as exc:
        raise unusable(root, exc) from exc


def mark_ours(fs: Fs, handle: int) -> None:
    """Record in the lock that we own the directory, after recovery has read what other brokers may
    have written. Raises OSError.
    """
    # what cannot be read cannot be written in part
    fs.truncate(handle, 0)
    fs.pwrite(handle, _OURS, 0)
    fs.fdatasync(handle)


def was_ours(fs: Fs, root: Path) -> bool:
    """Return True if no other broker has written to the directory since we owned it. Raises
    OSError.
    """
    return read_file(fs, root / _NAME) == _OURS


def unusable(root: Path, failure: OSError) -> StoreUnusable:
    return StoreUnusable(f"the store cannot be kept in {root}: {reason(failure)}")
