"""Files of the index of keys: their layout, and how they grow and are read, written and checked.

A file is a header, a table of hash slots, each the newest item of a chain, and items in the order
of their messages. Source: IndexFile.java, 5.3.

Differs from Java: a file is named by the store time of its first message in UTC, not by the wall
clock, so that it can be rebuilt byte for byte.
"""

import struct
import sys
from array import array
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from ogive.errors import StoreError
from ogive.native import native
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.file_reader import Cold, Disk, Handles
from ogive.store.fs import Fs
from ogive.wire.checksum import crc32

HEADER: Final = struct.Struct(">qqqqii")
"""begin and end timestamp, begin and end commit-log offset, used slots, next free item"""
ITEM: Final = struct.Struct(">iqii")
"""hash, commit-log offset, seconds since the begin timestamp, item before in the chain"""
_SLOT: Final = struct.Struct(">i")
# items that IndexFile.add takes at once, at most
ADD_AT: Final = 64
# items per slot, to derive a file's sizes from its length; as in Apache's defaults
_SLOTS_PER_FILE_RATIO: Final = 4
# of year 9999
_LAST_MS: Final = 253_402_300_799_999
_MAX_SECONDS: Final = 2**31 - 1
_ITEM_FORMATS: Final = tuple([">" + "iqii" * n for n in range(ADD_AT + 1)])
_TRIES: Final = 3
_CHECK_BLOCK: Final = 1024 * 1024
# read at once when the disk must be waited for
_WINDOW: Final = 1024 * 1024


class Sizes(NamedTuple):
    """Numbers of slots and items of an index file. Source: maxHashSlotNum, maxIndexNum."""

    slots: int
    items: int

    @property
    def file_bytes(self) -> int:
        return HEADER.size + 4 * self.slots + ITEM.size * self.items

    @property
    def items_at(self) -> int:
        return HEADER.size + 4 * self.slots


def sizes_of(file_bytes: int) -> Sizes | None:
    """Return the sizes of a file that Apache's broker or ours created with four items to a slot.

    Return None if its length does not fit.
    """
    slots, rest = divmod(file_bytes - HEADER.size, 4 + ITEM.size * _SLOTS_PER_FILE_RATIO)
    return Sizes(slots, slots * _SLOTS_PER_FILE_RATIO) if slots > 0 and rest == 0 else None


@dataclass(frozen=True, slots=True)
class IndexState:
    """One file at a checkpoint; checksums of header with slots, and of items."""

    name: str
    slots: int
    items: int
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_item: int
    head_crc: int
    items_crc: int

    def header(self) -> bytes:
        """Return the header of the file, in front of the slots."""
        return HEADER.pack(
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_item,
        )


@dataclass(frozen=True, slots=True)
class IndexWrite:
    """*data* at byte *at* of a file of *size* bytes."""

    path: Path
    size: int
    at: int
    data: bytes


class IndexFile:
    """File of the key index.

    *slots* are in memory while the file grows, and until they have been written; then only the disk
    has them.
    """

    __slots__ = (
        "begin_ms",
        "begin_offset",
        "end_ms",
        "end_offset",
        "handed",
        "head_crc",
        "items_crc",
        "name",
        "next_item",
        "path",
        "sealed",
        "sizes",
        "slots",
        "tail",
        "tail_start",
        "used_slots",
        "written",
    )

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self.path, self.name, self.sizes = path, path.name, sizes
        self.slots: array[int] | None = array("i", bytes(4 * sizes.slots))
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        # item 0 is unused
        self.next_item = 1
        # items tail_start .. next_item
        self.tail = bytearray()
        self.tail_start = self.handed = self.written = 1
        self.head_crc = self.items_crc = 0
        # full, and its head was handed to the writer
        self.sealed = False

    @property
    def room(self) -> int:
        """Number of items that can be added."""
        return self.sizes.items - self.next_item

    @property
    def is_full(self) -> bool:
        return self.room <= 0

    def add(self, hashes: Sequence[int], places: Sequence[tuple[int, int]]) -> None:
        """Add at most ADD_AT items, and no more than fit. *places* are (commit-log offset, store
        timestamp).
        """
        slots, count = self.slots, self.sizes.slots
        assert slots is not None
        if self.next_item == 1:
            self.begin_offset, self.begin_ms = places[0]
        begin_ms, item, used = self.begin_ms, self.next_item, 0
        fields: list[int] = []
        seconds, at_ms = 0, begin_ms
        for key_hash, (offset, stored_ms) in zip(hashes, places, strict=True):
            slot = key_hash % count
            before = slots[slot]
            if not before:
                used += 1
            slots[slot] = item
            item += 1
            if stored_ms != at_ms:
                at_ms = stored_ms
                seconds = min(max(0, (stored_ms - begin_ms) // 1000), _MAX_SECONDS)
            fields += (key_hash, offset, seconds, before)
        self.tail += struct.pack(_ITEM_FORMATS[len(hashes)], *fields)
        self.used_slots += used
        self.next_item = item
        self.end_offset, self.end_ms = places[-1]

    def add_records(self, keyed: list[tuple[bytes, bytes, int, int] | tuple[bytes, int]]) -> bool:
        """Add all keys of records, by the compiled part: see Keyed and PackedKeys in
        ogive.store.key_index.

        Return False, with nothing changed, if KeyIndex._add() has to do it.
        """
        if native is None or self.slots is None or self.next_item == 1:
            return False
        added = native.index_items(
            keyed, self.slots, self.begin_ms, self.next_item, self.sizes.items
        )
        if added is None:
            return False
        items, used, self.end_offset, self.end_ms = added
        self.tail += items
        self.used_slots += used
        self.next_item += len(items) // ITEM.size
        return True

    def take_items(self) -> IndexWrite | None:
        """Return items that are in no file yet, and count them as handed to the writer."""
        if self.handed == self.next_item:
            return None
        data = bytes(self.tail[(self.handed - self.tail_start) * ITEM.size :])
        self.items_crc = crc32(data, self.items_crc)
        at = self.sizes.items_at + self.handed * ITEM.size
        self.handed = self.next_item
        return IndexWrite(self.path, self.sizes.file_bytes, at, data)

    def take_head(self) -> IndexWrite:
        """Return header and slots as they are now."""
        assert self.slots is not None
        slots = array("i", self.slots)
        if sys.byteorder == "little":
            slots.byteswap()
        data = self.state().header() + slots.tobytes()
        self.head_crc = crc32(data)
        return IndexWrite(self.path, self.sizes.file_bytes, 0, data)

    def state(self) -> IndexState:
        """Return the state at a checkpoint, after everything was handed over."""
        return IndexState(
            self.name,
            *self.sizes,
            self.begin_ms,
            self.end_ms,
            self.begin_offset,
            self.end_offset,
            self.used_slots,
            self.next_item,
            self.head_crc,
            self.items_crc,
        )

    def matches(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and self.begin_ms <= end_ms


def read_slot(disk: Disk, file: IndexFile, slot: int) -> Generator[Cold, None, int]:
    if file.slots is not None:
        return file.slots[slot]
    raw = yield from _read(disk, file, HEADER.size + _SLOT.size * slot, _SLOT.size)
    return int(_SLOT.unpack(raw)[0]) if len(raw) == _SLOT.size else 0


def read_item(
    disk: Disk, file: IndexFile, item: int
) -> Generator[Cold, None, tuple[int, int, int, int] | None]:
    if item >= file.tail_start:
        return ITEM.unpack_from(file.tail, (item - file.tail_start) * ITEM.size)
    raw = yield from _read(disk, file, file.sizes.items_at + item * ITEM.size, ITEM.size)
    return ITEM.unpack(raw) if len(raw) == ITEM.size else None


def _read(disk: Disk, file: IndexFile, at: int, size: int) -> Generator[Cold, None, bytes]:
    """Read a file. Return nothing if it does not exist any more: retention was faster."""
    for _ in range(_TRIES):
        try:
            return disk.read(file.path, size, at)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise StoreError(f"the index of keys cannot be read in {file.path}: {exc}") from exc
        except Cold as cold:
            cold.place = cold.place._replace(offset=at - at % _WINDOW, size=_WINDOW)
            yield cold
    # memory is so short that what was brought in is gone each time
    waits, disk.waits = disk.waits, True
    try:
        return disk.read(file.path, size, at)
    except OSError as exc:
        raise StoreError(f"the index of keys cannot be read in {file.path}: {exc}") from exc
    finally:
        disk.waits = waits


def file_name(stored_ms: int) -> str:
    """Return yyyyMMddHHmmssSSS in UTC; for the time of a damaged record, the nearest possible
    time.
    """
    stored_ms = min(max(0, stored_ms), _LAST_MS)
    at = datetime.fromtimestamp(stored_ms // 1000, UTC)
    return f"{at:%Y%m%d%H%M%S}{stored_ms % 1000:03d}"


class IndexFiles:
    """Files of the key index, changed by the writer thread or recovery."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._handles = Handles(fs, 2)

    def write(self, writes: Iterable[IndexWrite]) -> None:
        for write in writes:
            try:
                handle = self._handles.get(write.path)
            except FileNotFoundError:
                self._fs.make_dirs(write.path.parent)
                handle = self._handles.create(write.path, write.size)
            self._fs.pwrite(handle, write.data, write.at)

    def remove(self, path: Path) -> None:
        self._handles.forget(path)
        self._fs.unlink(path)

    def close(self) -> None:
        self._handles.close()


def restored(fs: Fs, directory: Path, states: Sequence[IndexState]) -> list[IndexFile]:
    """Return the files whose bytes match the checkpoint, up to the first that does not.

    That one and those after it must be rebuilt.
    """
    found: list[IndexFile] = []
    for state in states:
        sizes = Sizes(state.slots, state.items)
        file = IndexFile(directory / state.name, sizes)
        last = state is states[-1]
        head = _checked(fs, file.path, sizes, state)
        if head is None:
            break
        file.begin_ms, file.end_ms = state.begin_ms, state.end_ms
        file.begin_offset, file.end_offset = state.begin_offset, state.end_offset
        file.used_slots, file.next_item = state.used_slots, state.next_item
        file.tail_start = file.handed = file.written = state.next_item
        file.head_crc, file.items_crc = state.head_crc, state.items_crc
        if last:
            slots = array("i", head[HEADER.size :])
            if sys.byteorder == "little":
                slots.byteswap()
            file.slots = slots
        else:
            file.slots, file.sealed = None, True
        found.append(file)
    # it was full, or it would not have had a successor
    if len(found) < len(states) and found:
        found[-1].sealed = True
    return found


def _checked(fs: Fs, path: Path, sizes: Sizes, state: IndexState) -> bytes | None:
    """Return header and slots if the whole file matches *state*."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        if fs.size(handle) != sizes.file_bytes:
            return None
        head = read_or_nothing(fs, handle, path, sizes.items_at, 0)
        if crc32(head) != state.head_crc or not head.startswith(state.header()):
            return None
        crc, at, end = 0, sizes.items_at + ITEM.size, sizes.items_at + state.next_item * ITEM.size
        while at < end:
            block = read_or_nothing(fs, handle, path, min(_CHECK_BLOCK, end - at), at)
            if not block:
                return None
            crc = crc32(block, crc)
            at += len(block)
        return head if crc == state.items_crc else None
    finally:
        fs.close(handle)


def found_sizes(fs: Fs, directory: Path) -> Sizes | None:
    """Return the sizes of the index files that another broker left.

    None if there are none, or their lengths do not say.
    """
    found: set[Sizes | None] = set()
    for name in index_names(fs, directory):
        handle = fs.open(directory / name)
        try:
            found.add(sizes_of(fs.size(handle)))
        finally:
            fs.close(handle)
    return found.pop() if len(found) == 1 else None


def index_names(fs: Fs, directory: Path) -> list[str]:
    return [name for name in fs.list(directory) if name.isdecimal()]
