"""A file interface that tells what a power cut could take."""

from collections.abc import Sequence
from pathlib import Path

from ogive.store.fs import Data, OsFs


class UnsyncedFs(OsFs):
    """Real files. *unsynced* has the files that were written, and the directories in which names
    were created or removed, after their last sync.
    """

    def __init__(self) -> None:
        self.unsynced: set[Path] = set()
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and not path.exists():
            self.unsynced.add(path.parent)
        handle = super().open(path, create=create)
        self._paths[handle] = path
        return handle

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        if data:
            self.unsynced.add(self._paths[handle])
        super().pwrite(handle, data, offset)

    def reserve(self, handle: int, size: int, offset: int) -> None:
        self.unsynced.add(self._paths[handle])
        super().reserve(handle, size, offset)

    def truncate(self, handle: int, size: int) -> None:
        if size != self.size(handle):
            self.unsynced.add(self._paths[handle])
        super().truncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        super().fdatasync(handle)
        self.unsynced.discard(self._paths[handle])

    def make_dirs(self, directory: Path) -> Sequence[Path]:
        made = super().make_dirs(directory)
        self.unsynced |= {path.parent for path in made}
        return made

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.unsynced |= {source.parent, target.parent}
        self.unsynced.discard(target)
        if source in self.unsynced:
            self.unsynced.remove(source)
            self.unsynced.add(target)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self.unsynced.discard(path)
        self.unsynced.add(path.parent)

    def remove_dir(self, directory: Path) -> None:
        super().remove_dir(directory)
        self.unsynced.discard(directory)
        self.unsynced.add(directory.parent)

    def fsync_dir(self, directory: Path) -> None:
        super().fsync_dir(directory)
        self.unsynced.discard(directory)
