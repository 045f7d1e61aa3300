"""A file system whose power can be cut: what a process did not sync may be gone, as in
tests/chaos/recorder.py, whatever way it wrote.

The kernel's own FUSE protocol, spoken on /dev/fuse by a thread of the test: no library, no helper
program. Needs root (mount). Source of the layouts: include/uapi/linux/fuse.h, 7.31.
"""

import ctypes
import errno
import itertools
import os
import random
import stat
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.chaos.recorder import (
    Disk,
    Inode,
    MemoryFs,
    Name,
    Operation,
    Sync,
    SyncDir,
    Truncate,
    Write,
    resize,
    write_into,
)

# length, opcode, unique, node, uid, gid, pid, ...
_IN: Final = struct.Struct("<IIQQIIIHH")
# length, error, unique
_OUT: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<QQQQII")
_ATTR_HEAD: Final = struct.Struct("<QII")
_OPEN: Final = struct.Struct("<QII")
_SETATTR: Final = struct.Struct("<II6Q8I")
# file handle, offset, size, ...: of a read and of a write
_RANGE: Final = struct.Struct("<QQIIQII")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHI28x")
_STATFS: Final = struct.Struct("<5Q4I24x")
_MAX_WRITE: Final = 1024 * 1024
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
# of the fields of a setattr
_SIZE: Final = 1 << 3
_ROOT: Final = 1
_TOP: Final = Path("/")
# FORGET, INTERRUPT, BATCH_FORGET
_UNANSWERED: Final = (2, 36, 42)
_MS_NOSUID, _MS_NODEV = 2, 4
_FORCE, _DETACH = 1, 2


class _Kept(MemoryFs):
    """Files with the disk beneath them."""

    def __init__(self, base: MemoryFs) -> None:
        super().__init__(
            {path: inode.data for path, inode in base.names.items()}, base.directories | {_TOP}
        )
        self.disk = Disk(
            {inode: bytearray(inode.data) for inode in self.names.values()},
            {**self.names, **dict.fromkeys(self.directories)},
        )

    def record(self, operation: Operation) -> None:
        self.disk.apply(operation)


class LossyMount:
    """*image* at *directory*, from start() to cut() or stop()."""

    def __init__(self, directory: Path, image: MemoryFs | None = None) -> None:
        self.directory = directory
        self._fs = _Kept(image or MemoryFs())
        self._nodes: dict[int, Path | Inode] = {_ROOT: _TOP}
        self._numbers: dict[Path | Inode, int] = {_TOP: _ROOT}
        self._next = itertools.count(_ROOT + 1)
        # a request is carried out and answered, or the power is off before
        self._lock = threading.Lock()
        self._off = False
        self._device = -1
        self._thread = threading.Thread(target=self._serve, name="lossy-disk", daemon=True)
        self.fault: BaseException | None = None

    def start(self) -> None:
        """Raises OSError where nothing can be mounted."""
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(
            b"lossy", bytes(self.directory), b"fuse", _MS_NOSUID | _MS_NODEV, options.encode()
        ):
            code = ctypes.get_errno()
            os.close(self._device)
            raise OSError(code, os.strerror(code), str(self.directory))
        self._thread.start()

    def cut(self, dice: random.Random) -> MemoryFs:
        """The power goes: nothing is answered any more. One of the disks that this may leave."""
        with self._lock:
            self._off = True
            image = self._fs.disk.after_power_cut(dice)
        self.stop()
        return image

    def stop(self) -> None:
        """Take the file system away from whoever uses it: what they wait for fails.

        A second call does nothing.
        """
        with self._lock:
            self._off = True
        if self._device < 0:
            return
        ctypes.CDLL(None).umount2(bytes(self.directory), _FORCE | _DETACH)
        self._thread.join(10.0)
        os.close(self._device)
        self._device = -1

    # --- the conversation -------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._off:
                try:
                    request = os.read(self._device, _MAX_WRITE + 64 * 1024)
                except OSError as exc:
                    if exc.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue
                    return  # ENODEV: unmounted
                self._answer(request)
        except BaseException as exc:
            self.fault = exc
            raise

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        if opcode in _UNANSWERED:
            return
        with self._lock:
            if self._off:
                return
            code, body = errno.ENOSYS, b""
            handle = _HANDLERS.get(opcode)
            if handle is not None:
                try:
                    code, body = 0, handle(self, node, request[_IN.size :])
                except OSError as exc:
                    code = exc.errno or errno.EIO
            # who asked is gone
            with suppress(FileNotFoundError):
                os.write(self._device, _OUT.pack(_OUT.size + len(body), -code, unique) + body)

    # --- requests: (node, what follows the header) -> what follows the answer's header ------------

    def _init(self, _node: int, _data: bytes) -> bytes:
        return _INIT_OUT.pack(
            7,
            31,
            128 * 1024,
            _BIG_WRITES | _MAX_PAGES,
            16,
            12,
            _MAX_WRITE,
            1,
            _MAX_WRITE // 4096,
            0,
            0,
        )

    def _look_up(self, node: int, data: bytes) -> bytes:
        return self._entry(self._path(node, data))

    def _get_attributes(self, node: int, _data: bytes) -> bytes:
        return _ATTR_HEAD.pack(0, 0, 0) + self._attributes(self._nodes[node])

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        """Only a size is kept."""
        valid, _, _, size, *_ = _SETATTR.unpack_from(data)
        target = self._nodes[node]
        if valid & _SIZE and isinstance(target, Inode) and size != len(target.data):
            resize(target.data, size)
            self._fs.record(Truncate(target, size))
        return self._get_attributes(node, data)

    def _make_directory(self, node: int, data: bytes) -> bytes:
        path = self._path(node, data[8:])
        if path in self._fs.directories or path in self._fs.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        self._fs.directories.add(path)
        self._fs.record(Name(path, None, directory=True))
        return self._entry(path)

    def _unlink(self, node: int, data: bytes) -> bytes:
        self._fs.unlink(self._path(node, data))
        return b""

    def _remove_directory(self, node: int, data: bytes) -> bytes:
        path = self._path(node, data)
        self._fs.remove_dir(path)
        self._nodes.pop(self._numbers.pop(path, 0), None)
        return b""

    def _rename(self, node: int, data: bytes, at: int = 8) -> bytes:
        """Of files."""
        source, target = data[at:].split(b"\0")[:2]
        folder = self._nodes[int.from_bytes(data[:8], "little")]
        old = self._path(node, source)
        if not isinstance(folder, Path) or old in self._fs.directories:
            raise OSError(errno.ENOTSUP, "only files are renamed")
        if old not in self._fs.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
        self._fs.rename(old, folder / target.decode())
        return b""

    def _rename_2(self, node: int, data: bytes) -> bytes:
        if any(data[8:12]):
            raise OSError(errno.EINVAL, "no flags")
        return self._rename(node, data, 16)

    def _open(self, _node: int, _data: bytes) -> bytes:
        return _OPEN.pack(0, 0, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        path = self._path(node, data[16:])
        if path not in self._fs.names:
            self._fs.close(self._fs.open(path, create=True))
        return self._entry(path) + _OPEN.pack(0, 0, 0)

    def _read(self, node: int, data: bytes) -> bytes:
        _, offset, size, *_ = _RANGE.unpack_from(data)
        return bytes(self._inode(node).data[offset : offset + size])

    def _write(self, node: int, data: bytes) -> bytes:
        _, offset, size, *_ = _RANGE.unpack_from(data)
        inode, new = self._inode(node), data[_RANGE.size : _RANGE.size + size]
        write_into(inode.data, offset, new)
        self._fs.record(Write(inode, offset, new))
        return struct.pack("<II", size, 0)

    def _sync(self, node: int, _data: bytes) -> bytes:
        self._fs.record(Sync(self._inode(node)))
        return b""

    def _sync_directory(self, node: int, _data: bytes) -> bytes:
        directory = self._nodes[node]
        assert isinstance(directory, Path)
        self._fs.record(SyncDir(directory))
        return b""

    def _list(self, node: int, data: bytes) -> bytes:
        _, offset, size, *_ = _RANGE.unpack_from(data)
        directory = self._nodes[node]
        assert isinstance(directory, Path)
        out = b""
        for at, name in enumerate(self._fs.list(directory)[offset:], offset + 1):
            if not name:
                # the top is its own parent
                continue
            kind = stat.S_IFDIR if directory / name in self._fs.directories else stat.S_IFREG
            raw = name.encode()
            entry = struct.pack("<QQII", 1 << 32, at, len(raw), kind >> 12) + raw
            entry += bytes(-len(entry) % 8)
            if len(out) + len(entry) > size:
                break
            out += entry
        return out

    def _room(self, _node: int, _data: bytes) -> bytes:
        return _STATFS.pack(1 << 24, 1 << 23, 1 << 23, 1 << 20, 1 << 19, 4096, 255, 4096, 0)

    def _nothing(self, _node: int, _data: bytes) -> bytes:
        return b""

    # --- what requests speak of -------------------------------------------------------------------

    def _path(self, node: int, name: bytes) -> Path:
        directory = self._nodes[node]
        assert isinstance(directory, Path)
        return directory / name.split(b"\0")[0].decode()

    def _inode(self, node: int) -> Inode:
        inode = self._nodes[node]
        if not isinstance(inode, Inode):
            raise IsADirectoryError(errno.EISDIR, "a directory", str(inode))
        return inode

    def _entry(self, path: Path) -> bytes:
        target: Path | Inode
        if path in self._fs.directories:
            target = path
        elif path in self._fs.names:
            target = self._fs.names[path]
        else:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        number = self._numbers.get(target)
        if number is None:
            number = self._numbers[target] = next(self._next)
            self._nodes[number] = target
        return _ENTRY.pack(number, 0, 0, 0, 0, 0) + self._attributes(target)

    def _attributes(self, target: Path | Inode) -> bytes:
        size = len(target.data) if isinstance(target, Inode) else 0
        mode = stat.S_IFREG | 0o644 if isinstance(target, Inode) else stat.S_IFDIR | 0o755
        number = self._numbers[target]
        return _ATTR.pack(
            number,
            size,
            (size + 511) // 512,
            0,
            0,
            0,
            0,
            0,
            0,
            mode,
            1,
            os.getuid(),
            os.getgid(),
            0,
            4096,
            0,
        )


_HANDLERS: Final[dict[int, Callable[[LossyMount, int, bytes], bytes]]] = {
    1: LossyMount._look_up,
    3: LossyMount._get_attributes,
    4: LossyMount._set_attributes,
    9: LossyMount._make_directory,
    10: LossyMount._unlink,
    11: LossyMount._remove_directory,
    12: LossyMount._rename,
    14: LossyMount._open,
    15: LossyMount._read,
    16: LossyMount._write,
    17: LossyMount._room,
    18: LossyMount._nothing,  # RELEASE
    20: LossyMount._sync,
    25: LossyMount._nothing,  # FLUSH
    26: LossyMount._init,
    27: LossyMount._open,
    28: LossyMount._list,
    29: LossyMount._nothing,  # RELEASEDIR
    30: LossyMount._sync_directory,
    34: LossyMount._nothing,  # ACCESS
    35: LossyMount._create,
    45: LossyMount._rename_2,
}
