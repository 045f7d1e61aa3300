"""The lock of a store's directory: one process at a time, ours or Apache's."""

from pathlib import Path
from typing import Final

from ogive.errors import StoreLocked, StoreUnusable
from ogive.store.fs import Fs, reason
from ogive.store.tables import make_lasting_dirs

_TEXT: Final = b"lock"


def lock_directory(fs: Fs, root: Path) -> int:
    """Make *root* where it is missing, and lock it; returns the handle to close. Raises StoreLocked, StoreUnusable."""
    try:
        make_lasting_dirs(fs, root)
        handle = fs.lock(root / "lock")
    except BlockingIOError:
        raise StoreLocked(f"the store in {root} is in use by another process") from None
    except OSError as exc:
        raise unusable(root, exc) from exc
    try:
        fs.truncate(handle, len(_TEXT))
        fs.pwrite(handle, _TEXT, 0)
    except OSError as exc:
        fs.close(handle)
        raise unusable(root, exc) from exc
    return handle


def unusable(root: Path, failure: OSError) -> StoreUnusable:
    return StoreUnusable(f"the store cannot be kept in {root}: {reason(failure)}")
