"""Files in memory that remember every call, and the disks that a power cut could have left
behind.

A power cut keeps what was synced. Of the rest, each 512-byte sector of a write may have landed or
not, the last one may hold garbage or zeros, size changes land in order up to some point, and of the
changes to a directory's names some first part survives.
"""

import errno
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ogive.store.fs import Data

SECTOR = 512


@dataclass(slots=True, eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Write:
    inode: Inode
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    inode: Inode
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    inode: Inode


@dataclass(frozen=True, slots=True)
class Name:
    """*path* now means *inode* (None: nothing), and *gone* nothing."""

    path: Path
    inode: Inode | None
    gone: Path | None = None
    directory: bool = False


@dataclass(frozen=True, slots=True)
class SyncDir:
    directory: Path


@dataclass(frozen=True, slots=True)
class Ack:
    """Not a file call: from here on somebody relies on *what*."""

    what: Any


Operation = Write | Truncate | Sync | Name | SyncDir | Ack


class MemoryFs:
    """The store's file interface over a dictionary."""

    def __init__(
        self, files: dict[Path, bytearray] | None = None, directories: set[Path] | None = None
    ) -> None:
        self.names = {path: Inode(data) for path, data in (files or {}).items()}
        self.directories = set(directories or ())
        self._handles: dict[int, Inode] = {}
        self._locks: dict[int, Inode] = {}
        self._next = 1000

    def record(self, operation: Operation) -> None:
        """Called after each change."""

    def open(self, path: Path, *, create: bool = False) -> int:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            if path.parent not in self.directories:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
            inode = self.names[path] = Inode()
            self.record(Name(path, inode))
        self._next += 1
        self._handles[self._next] = inode
        return self._next

    def close(self, handle: int) -> None:
        del self._handles[handle]
        self._locks.pop(handle, None)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return bytes(self._handles[handle].data[offset : offset + size])

    def boot_id(self) -> str:
        """Nobody knows whether the power was cut."""
        return ""

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        return self.pread(handle, size, offset)

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        inode = self._handles[handle]
        write_into(inode.data, offset, bytes(data))
        self.record(Write(inode, offset, bytes(data)))

    def reserve(self, handle: int, size: int, offset: int) -> None:
        self.pwrite(handle, bytes(size), offset)

    def fdatasync(self, handle: int) -> None:
        self.record(Sync(self._handles[handle]))

    def truncate(self, handle: int, size: int) -> None:
        inode = self._handles[handle]
        if size != len(inode.data):
            resize(inode.data, size)
            self.record(Truncate(inode, size))

    def clear(self, handle: int, offset: int) -> None:
        left = self.pread(handle, self.size(handle), offset)
        if any(left):
            self.pwrite(handle, bytes(len(left)), offset)

    def size(self, handle: int) -> int:
        return len(self._handles[handle].data)

    def list(self, directory: Path) -> list[str]:
        # texts, which paths keep: a parent is made anew each time
        begins = f"{str(directory).rstrip('/')}/"
        below = {
            str(path).removeprefix(begins)
            for path in (*self.names, *self.directories)
            if str(path).startswith(begins)
        }
        return sorted(name for name in below if name and "/" not in name)

    def make_dirs(self, directory: Path) -> Sequence[Path]:
        made = []
        for path in [*reversed(directory.parents), directory]:
            if path not in self.directories:
                self.directories.add(path)
                self.record(Name(path, None, directory=True))
                made.append(path)
        return made

    def rename(self, source: Path, target: Path) -> None:
        inode = self.names[target] = self.names.pop(source)
        self.record(Name(target, inode, gone=source))

    def unlink(self, path: Path) -> None:
        if self.names.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self.record(Name(path, None))

    def remove_dir(self, directory: Path) -> None:
        if self.list(directory):
            raise OSError(errno.ENOTEMPTY, "directory not empty", str(directory))
        self.directories.discard(directory)
        self.record(Name(directory, None))

    def fsync_dir(self, directory: Path) -> None:
        self.record(SyncDir(directory))

    def lock(self, path: Path) -> int:
        handle = self.open(path, create=True)
        inode = self._handles[handle]
        if inode in self._locks.values():
            self.close(handle)
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", str(path))
        self._locks[handle] = inode
        return handle

    def copy(self) -> "MemoryFs":
        """The same files, unlocked and not open."""
        return MemoryFs(
            {path: bytearray(inode.data) for path, inode in self.names.items()}, self.directories
        )


class RecorderFs(MemoryFs):
    """A MemoryFs with its history, from an empty disk or from *base*, all of which counts as
    synced.
    """

    def __init__(self, base: MemoryFs | None = None) -> None:
        super().__init__(
            {path: inode.data for path, inode in base.names.items()} if base else None,
            base.directories if base else None,
        )
        self.operations: list[Operation] = []
        self._base = {inode: bytes(inode.data) for inode in self.names.values()}
        self._base_names: dict[Path, Inode | None] = {
            **self.names,
            **dict.fromkeys(self.directories),
        }

    def disk(self) -> "Disk":
        """As it was before the first operation."""
        return Disk(
            {inode: bytearray(data) for inode, data in self._base.items()}, dict(self._base_names)
        )

    def record(self, operation: Operation) -> None:
        self.operations.append(operation)

    def ack(self, what: Any) -> None:
        self.operations.append(Ack(what))


class Disk:
    """What is certainly on the disk after some operations, and what may be."""

    def __init__(self, stable: dict[Inode, bytearray], names: dict[Path, Inode | None]) -> None:
        self._stable = stable
        # None: a directory
        self._names = names
        self._unsynced: dict[Inode, list[Write | Truncate]] = {}
        self._unsynced_names: dict[Path, list[Name]] = {}
        self.acked: list[Any] = []

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write(inode=inode) | Truncate(inode=inode):
                self._unsynced.setdefault(inode, []).append(operation)
            case Sync(inode=inode):
                stable = self._stable.setdefault(inode, bytearray())
                for change in self._unsynced.pop(inode, ()):
                    _land(stable, change)
            case Name(path=path):
                self._unsynced_names.setdefault(path.parent, []).append(operation)
            case SyncDir(directory=directory):
                for name in self._unsynced_names.pop(directory, ()):
                    _rename(self._names, name)
            case Ack(what=what):
                self.acked.append(what)

    def after_power_cut(self, rng: random.Random) -> MemoryFs:
        """One of the states that the disk may be in."""
        odds = rng.choice((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))
        names = dict(self._names)
        for changes in self._unsynced_names.values():
            for name in changes[
                : rng.randint(0, len(changes))
                if odds not in (0.0, 1.0)
                else len(changes) * int(odds)
            ]:
                _rename(names, name)
        directories = {path for path, inode in names.items() if inode is None}
        reachable = {
            path
            for path in directories
            if all(parent in directories for parent in path.parents if parent != parent.parent)
        }
        reachable.add(Path("/"))
        images: dict[Inode, bytearray] = {}
        files: dict[Path, bytearray] = {}
        for path, inode in names.items():
            if inode is not None and path.parent in reachable:
                if inode not in images:
                    images[inode] = self._image(inode, odds, rng)
                files[path] = images[inode]
        return MemoryFs(files, reachable)

    def _image(self, inode: Inode, odds: float, rng: random.Random) -> bytearray:
        data = bytearray(self._stable.get(inode, b""))
        changes = self._unsynced.get(inode, [])
        for change in changes:
            if isinstance(change, Truncate):
                if rng.random() < odds:
                    _land(data, change)
                continue
            for piece in _sectors(change):
                if rng.random() < odds:
                    _land(data, piece)
        writes = [change for change in changes if isinstance(change, Write)]
        if writes and 0.0 < odds < 1.0 and rng.random() < 0.3:
            last = list(_sectors(writes[-1]))[-1]
            torn = rng.choice((bytes(len(last.data)), rng.randbytes(len(last.data))))
            _land(data, Write(inode, last.offset, torn))
        return data


def images(fs: RecorderFs, count: int, rng: random.Random) -> Iterator[tuple[MemoryFs, list[Any]]]:
    """*count* disks after power cuts at random points of the history, each with what had been
    acknowledged by then.
    """
    cuts = sorted(rng.randint(0, len(fs.operations)) for _ in range(count))
    disk = fs.disk()
    done = 0
    for cut in cuts:
        for operation in fs.operations[done:cut]:
            disk.apply(operation)
        done = cut
        yield disk.after_power_cut(rng), list(disk.acked)


def write_into(data: bytearray, offset: int, new: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(new)] = new


def resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _land(data: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        resize(data, change.size)
    else:
        write_into(data, change.offset, change.data)


def _sectors(write: Write) -> Iterator[Write]:
    at = 0
    while at < len(write.data):
        room = SECTOR - (write.offset + at) % SECTOR
        yield Write(write.inode, write.offset + at, write.data[at : at + room])
        at += room


def _rename(names: dict[Path, Inode | None], change: Name) -> None:
    if change.gone is not None:
        names.pop(change.gone, None)
    if change.directory or change.inode is not None:
        names[change.path] = change.inode
    else:
        names.pop(change.path, None)
