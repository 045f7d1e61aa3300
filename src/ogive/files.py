"""Files that survive a power cut."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the file *path* as a whole, and sync it to disk.

    After a crash at any point it holds its old bytes or *data*. *mode* is what the umask leaves of
    the permission bits of a new file. Raises OSError, with the old file in place or the new one.
    """
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")

    def create(name: str, flags: int) -> int:
        return os.open(name, flags, mode)

    try:
        with open(temporary, "xb", opener=create) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # Windows opens no directories
    if os.name != "nt":
        sync(path.parent)


def sync(path: Path) -> None:
    """Sync the contents of a file, or the names in a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
