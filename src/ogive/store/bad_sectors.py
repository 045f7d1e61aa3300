"""Blocks that the disk can no longer read: it answers EIO, as for a damaged sector.

A file that can be rebuilt, or has a backup, is replaced as a whole. The log is read around the
block: it reads as zeros, so the records in it are damaged like any others. Only if nothing nearby
can be read either, the disk itself fails or is gone: that stays an error, because otherwise readers
would skip everything and a start would clear it.
"""

import errno
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ogive.store.fs import Fs

log = logging.getLogger(__name__)

# what the operating system reads at least, and before it writes to a part of one
BLOCK: Final = 4096
# from a block to those that must not all be unreadable: up to 1 MiB
_DISTANCES: Final = tuple([BLOCK << n for n in range(9)])
# 16 MiB of one store: beyond it the disk fails
MAX_BLOCKS: Final = 4096
_MAX_LOGGED: Final = 20


def read_or_nothing(fs: Fs, handle: int, path: Path, size: int, offset: int) -> bytes:
    """Read a file that has a checksum or a form of its own. Return nothing if the disk fails twice.

    Raises OSError.
    """
    for _ in range(2):
        data = _pread(fs, handle, size, offset)
        if data is not None:
            return data
    log.error("could not read %s, which counts as damaged: %s", path, os.strerror(errno.EIO))
    return b""


class Unreadable:
    """The blocks of a log that could not be read so far.

    They are not read again, because each try may take a disk seconds. Any thread.
    """

    def __init__(self) -> None:
        # of each file, in order
        self._blocks: dict[Path, tuple[int, ...]] = {}
        self._count = 0
        # protects both
        self._changing = threading.Lock()

    def read(self, fs: Fs, handle: int, path: Path, size: int, offset: int) -> bytes:
        """Read as pread() does, with zeros for unreadable blocks.

        Raises OSError if more than single blocks are unreadable.
        """
        if path not in self._blocks:
            return self._read(fs, handle, path, size, offset)
        return b"".join(
            [
                bytes(part) if lost else self._read(fs, handle, path, part, at)
                for at, part, lost in self._parts(path, min(size, fs.size(handle) - offset), offset)
            ]
        )

    def read_now(self, fs: Fs, handle: int, path: Path, size: int, offset: int) -> bytes | None:
        """Read as pread_now() does, with zeros for blocks that are known to be unreadable. Return
        None if read() must be called first. Raises OSError.
        """
        try:
            if path not in self._blocks:
                return fs.pread_now(handle, size, offset)
            pieces = []
            for at, part, lost in self._parts(path, min(size, fs.size(handle) - offset), offset):
                piece = bytes(part) if lost else fs.pread_now(handle, part, at)
                if piece is None:
                    return None
                pieces.append(piece)
            return b"".join(pieces)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            return None

    def is_in(self, path: Path, size: int, offset: int) -> bool:
        """Return True if any of these bytes could not be read."""
        return any(lost for _, _, lost in self._parts(path, size, offset))

    def _parts(self, path: Path, size: int, offset: int) -> Iterator[tuple[int, int, bool]]:
        """Return these bytes by ranges that can be read at once: (offset, size, whether it is
        unreadable).
        """
        at, end = offset, offset + size
        for block in self._blocks.get(path, ()):
            begin, border = max(block, offset), min(block + BLOCK, end)
            if begin < border:
                if at < begin:
                    yield at, begin - at, False
                yield begin, border - begin, True
                at = border
        if at < end:
            yield at, end - at, False

    def _read(self, fs: Fs, handle: int, path: Path, size: int, offset: int) -> bytes:
        data = _pread(fs, handle, size, offset)
        if data is not None:
            return data
        at, end = offset, min(offset + size, fs.size(handle))
        pieces = []
        while at < end:
            border = min(at - at % BLOCK + BLOCK, end)
            piece = _pread(fs, handle, border - at, at)
            if piece is None:
                self._note(fs, handle, path, at - at % BLOCK)
            pieces.append(bytes(border - at) if piece is None else piece)
            at = border
        return b"".join(pieces)

    def _note(self, fs: Fs, handle: int, path: Path, block: int) -> None:
        with self._changing:
            before = self._blocks.get(path, ())
            if block in before:
                return
            if self._count == MAX_BLOCKS:
                raise _failing(
                    path,
                    f"{self._count} blocks of the log cannot be read, and that at byte {block} is "
                    "one more",
                )
            if not _reads_near(fs, handle, block):
                raise _failing(path, f"nothing near byte {block} can be read")
            self._blocks[path] = tuple(sorted((*before, block)))
            self._count += 1
        if self._count <= _MAX_LOGGED:
            log.error(
                "%s: could not read %d bytes at offset %d, which count as damaged",
                path,
                BLOCK,
                block,
            )


def _reads_near(fs: Fs, handle: int, block: int) -> bool:
    """Return True if the disk reads any of the blocks behind this one.

    Blocks before it may be in memory; they are tried only at the end of the file.
    """
    size = fs.size(handle)
    near = [block + far for far in _DISTANCES if block + far < size] or [
        block - far for far in _DISTANCES if far <= block
    ]
    return not near or any(_pread(fs, handle, BLOCK, each) is not None for each in near)


def _pread(fs: Fs, handle: int, size: int, offset: int) -> bytes | None:
    """Return None if the disk says EIO. Raises any other error."""
    try:
        return fs.pread(handle, size, offset)
    except OSError as exc:
        if exc.errno != errno.EIO:
            raise
        return None


def _failing(path: Path, what: str) -> OSError:
    way_out = "its disk fails, copy the store to a sound one with a tool that goes on after errors"
    return OSError(errno.EIO, f"{os.strerror(errno.EIO)}, {what}: {way_out}", str(path))
