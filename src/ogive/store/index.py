"""The index of keys: for each unique key and each of a message's own keys where its record stands, in Apache's files.

A file is a table of hash slots, each the newest item of a chain, and items in the order in which they came. Source: IndexFile.java,
IndexService.java, 5.3.

Behaviour
- Derived, like consume queues: built in memory by the owner from groups that are durable, written behind by the writer thread. Slots
  and header of a file are written with each checkpoint, so that what the disk holds is whole up to that point.
- Items are hashes. Who looks a key up compares the text: store.find() does, Java leaves it to the client.

Differs from Java
- A file is named by the store time of its first message in UTC, not by the wall clock, so that it is made again byte for byte.
- Queries go through a generator that stops for the disk and for others (see find).
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from ogive.errors import StoreError
from ogive.store.disk import Cold, Disk
from ogive.store.fs import Fs
from ogive.store.keyhash import java_hashes, java_prefix
from ogive.store.segments import Handles
from ogive.wire.message import raw_property

HEADER: Final = struct.Struct(">qqqqii")
"""begin and end timestamp, begin and end commit-log offset, used slots, next free item"""
ITEM: Final = struct.Struct(">iqii")
"""hash, commit-log offset, seconds since the begin timestamp, item before in the chain"""
_SLOT: Final = struct.Struct(">i")
_SLOTS_PER_FILE_RATIO: Final = 4  # items to a slot, by which a file's sizes are told from its length; as in Apache's defaults
_BUILD_AT: Final = 256  # messages that wait before their keys are hashed together
_BREATHE: Final = 512  # steps of a search between two stops
_MAX_PREFIXES: Final = 50_000
_MAX_SECONDS: Final = 2**31 - 1
_ADD_AT: Final = 64  # items packed at once
_ITEM_FORMATS: Final = tuple([">" + "iqii" * n for n in range(_ADD_AT + 1)])
_TRIES: Final = 3
_CHECK_BLOCK: Final = 1024 * 1024
_WINDOW: Final = 1024 * 1024  # read at once when the disk must be waited for

Keyed = tuple[bytes, bytes, int, int]
"""topic, properties, commit-log offset, store timestamp of a record"""


class Sizes(NamedTuple):
    """Of an index file. Source: maxHashSlotNum, maxIndexNum."""

    slots: int
    items: int

    @property
    def file_bytes(self) -> int:
        return HEADER.size + 4 * self.slots + ITEM.size * self.items

    @property
    def items_at(self) -> int:
        return HEADER.size + 4 * self.slots


def sizes_of(file_bytes: int) -> Sizes | None:
    """Of a file that Apache's broker or ours made with four items to a slot; None where it cannot be told."""
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
        return HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.next_item)


@dataclass(frozen=True, slots=True)
class IndexWrite:
    """*data* at byte *at* of a file that has *size* bytes."""

    path: Path
    size: int
    at: int
    data: bytes


class IndexFile:
    """One file. *slots* are in memory while it grows, and until they have been written; then only the disk has them."""

    __slots__ = (
        "begin_ms", "begin_offset", "end_ms", "end_offset", "handed", "head_crc", "items_crc", "name", "next_item", "path", "sealed",
        "sizes", "slots", "tail", "tail_start", "used_slots", "written",
    )  # fmt: skip

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self.path, self.name, self.sizes = path, path.name, sizes
        self.slots: array[int] | None = array("i", bytes(4 * sizes.slots))
        self.begin_ms = self.end_ms = self.begin_offset = self.end_offset = 0
        self.used_slots = 0
        self.next_item = 1  # item 0 is none
        self.tail = bytearray()  # items tail_start .. next_item
        self.tail_start = self.handed = self.written = 1
        self.head_crc = self.items_crc = 0
        self.sealed = False  # full, and its head was handed to the writer

    @property
    def is_full(self) -> bool:
        return self.next_item >= self.sizes.items

    def add(self, hashes: Sequence[int], places: Sequence[tuple[int, int]]) -> None:
        """As many items as there is room for; *places* are (commit-log offset, store timestamp)."""
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
                at_ms, seconds = stored_ms, min(max(0, (stored_ms - begin_ms) // 1000), _MAX_SECONDS)
            fields += (key_hash, offset, seconds, before)
        self.tail += struct.pack(_ITEM_FORMATS[len(hashes)], *fields)
        self.used_slots += used
        self.next_item = item
        self.end_offset, self.end_ms = places[-1]

    def take_items(self) -> IndexWrite | None:
        """Items that no file holds yet; counts them as handed to the writer."""
        if self.handed == self.next_item:
            return None
        data = bytes(self.tail[(self.handed - self.tail_start) * ITEM.size :])
        self.items_crc = zlib.crc32(data, self.items_crc)
        at = self.sizes.items_at + self.handed * ITEM.size
        self.handed = self.next_item
        return IndexWrite(self.path, self.sizes.file_bytes, at, data)

    def take_head(self) -> IndexWrite:
        """Header and slots as they are now."""
        assert self.slots is not None
        slots = array("i", self.slots)
        if sys.byteorder == "little":
            slots.byteswap()
        header = HEADER.pack(self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.next_item)
        data = header + slots.tobytes()
        self.head_crc = zlib.crc32(data)
        return IndexWrite(self.path, self.sizes.file_bytes, 0, data)

    def state(self) -> IndexState:
        """At a checkpoint: everything was handed over."""
        return IndexState(
            self.name, *self.sizes, self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.used_slots, self.next_item,
            self.head_crc, self.items_crc,
        )  # fmt: skip

    def matches(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and self.begin_ms <= end_ms


class KeyIndex:
    """All files of a store. Owner thread only; the disk is changed through IndexWrite."""

    def __init__(self, directory: Path, sizes: Sizes, files: Iterable[IndexFile] = ()) -> None:
        self.sizes = sizes  # of the files to come
        self._directory = directory
        self.files = list(files)
        self.pending: list[Keyed] = []
        self._prefixes: dict[bytes, int] = {}
        self._full: list[IndexWrite] = []  # of files that are complete, not yet collected

    def add(self, keyed: Iterable[Keyed]) -> None:
        """Records that are durable, in their order."""
        self.pending += keyed
        if len(self.pending) >= _BUILD_AT:
            self.build()

    def build(self) -> None:
        """Put what waits into the files."""
        pending = self.pending
        if not pending:
            return
        prefixes: list[int] = []
        keys: list[bytes] = []
        places: list[tuple[int, int]] = []
        known = self._prefixes
        for topic, properties, offset, stored_ms in pending:
            unique, named = _value(properties, b"UNIQ_KEY\x01"), _value(properties, b"KEYS\x01")
            prefix = known.get(topic)
            if prefix is None:
                prefix = self._prefix(topic)
            if unique:
                prefixes.append(prefix)
                keys.append(unique)
                places.append((offset, stored_ms))
            if named:
                parts = [part for part in named.split(b" ") if part]
                prefixes += [prefix] * len(parts)
                keys += parts
                places += [(offset, stored_ms)] * len(parts)
        pending.clear()
        if keys:
            # Java's absolute value of 32 bits, and 0 for the one number that has none
            self._put([-h & 0x7FFFFFFF if h & 0x80000000 else h for h in java_hashes(prefixes, keys)], places)

    def _prefix(self, topic: bytes) -> int:
        if len(self._prefixes) >= _MAX_PREFIXES:
            self._prefixes.clear()
        prefix = self._prefixes[topic] = java_prefix(topic + b"#")
        return prefix

    def _put(self, hashes: list[int], places: list[tuple[int, int]]) -> None:
        file = self.files[-1] if self.files else None
        at = 0
        while at < len(hashes):
            if file is None or file.is_full:
                file = self._next_file(places[at][1])
            end = min(len(hashes), at + min(_ADD_AT, file.sizes.items - file.next_item))
            file.add(hashes[at:end], places[at:end])
            at = end

    def _next_file(self, stored_ms: int) -> IndexFile:
        name = file_name(stored_ms)
        if self.files:
            last = self.files[-1]
            self._seal(last)
            name = max(name, f"{int(last.name) + 1:017d}")
        self.files.append(IndexFile(self._directory / name, self.sizes))
        return self.files[-1]

    def _seal(self, file: IndexFile) -> None:
        if not file.sealed:
            file.sealed = True
            items = file.take_items()
            self._full += [write for write in (items, file.take_head()) if write is not None]

    @property
    def has_full(self) -> bool:
        """Whether a file was completed since collect(): a checkpoint saves a start after a crash from making it again."""
        return bool(self._full)

    def collect(self, *, checkpoint: bool) -> tuple[IndexWrite, ...]:
        """What no file holds yet; with a checkpoint also slots and header of the newest file, so that the disk is whole."""
        self.build()
        writes, self._full = self._full, []
        if self.files and not self.files[-1].sealed:
            file = self.files[-1]
            items = file.take_items()
            if items is not None:
                writes.append(items)
            if checkpoint:
                writes.append(file.take_head())
        return tuple(writes)

    def written(self, writes: Iterable[IndexWrite]) -> None:
        """*writes* are in the files: memory may forget what they hold."""
        by_path = {file.path: file for file in self.files}
        for write in writes:
            file = by_path.get(write.path)
            if file is None:
                continue
            if write.at:
                end = (write.at - file.sizes.items_at + len(write.data)) // ITEM.size
                del file.tail[: (end - file.tail_start) * ITEM.size]
                file.tail_start = file.written = end
            elif file.sealed and HEADER.unpack_from(write.data)[-1] == file.next_item:  # not the head of a checkpoint before
                file.slots = None

    def states(self) -> tuple[IndexState, ...]:
        """At a checkpoint, after collect()."""
        return tuple([file.state() for file in self.files])

    def expire(self, commitlog_start: int) -> list[Path]:
        """Forget the files that speak of nothing from *commitlog_start* on; what to remove. Never the newest."""
        gone = []
        while len(self.files) > 1 and self.files[0].end_offset < commitlog_start and self.files[0].slots is None:
            gone.append(self.files.pop(0).path)
        return gone

    def find(self, disk: Disk, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | Cold | None]:
        """Commit-log offsets of records that may have *key*, the newest first, in that time (whole seconds).

        Now and then None, so that the caller may let others run; and Cold where the disk must be waited for: once it is read, go on.
        """
        self.build()
        key_hash = as_index_hash(java_hashes([java_prefix(f"{topic}#".encode())], [key.encode("utf-8", "replace")])[0])
        steps = 0
        for file in reversed(list(self.files)):
            if not file.matches(begin_ms, end_ms):
                continue
            slot = yield from _read_slot(disk, file, key_hash % file.sizes.slots)
            item, newer = slot, file.next_item
            while 0 < item < newer:  # chains only lead back: damage cannot send a search round in circles
                steps += 1
                if steps % _BREATHE == 0:
                    yield None
                fields = yield from _read_item(disk, file, item)
                if fields is None:
                    break
                found, offset, seconds, before = fields
                if found == key_hash and begin_ms // 1000 * 1000 <= file.begin_ms + seconds * 1000 + 999 <= end_ms + 999:
                    yield offset
                item, newer = before, item


def _value(properties: bytes, name: bytes) -> bytes | None:
    """Of the property whose *name* ends in its separator."""
    at = properties.find(name)
    if at < 0:
        return None
    if at and properties[at - 1] != 2:  # the end of another name
        return raw_property(properties, name[:-1])
    at += len(name)
    end = properties.find(b"\x02", at)
    return properties[at:end] if end >= 0 else properties[at:]


def _read_slot(disk: Disk, file: IndexFile, slot: int) -> Generator[Cold, None, int]:
    if file.slots is not None:
        return file.slots[slot]
    raw = yield from _read(disk, file, HEADER.size + _SLOT.size * slot, _SLOT.size)
    return int(_SLOT.unpack(raw)[0]) if len(raw) == _SLOT.size else 0


def _read_item(disk: Disk, file: IndexFile, item: int) -> Generator[Cold, None, tuple[int, int, int, int] | None]:
    if item >= file.tail_start:
        return ITEM.unpack_from(file.tail, (item - file.tail_start) * ITEM.size)
    raw = yield from _read(disk, file, file.sizes.items_at + item * ITEM.size, ITEM.size)
    return ITEM.unpack(raw) if len(raw) == ITEM.size else None


def _read(disk: Disk, file: IndexFile, at: int, size: int) -> Generator[Cold, None, bytes]:
    """Nothing where the file is gone: retention was faster."""
    waits = disk.waits
    for _ in range(_TRIES):
        try:
            return disk.read(file.path, size, at)
        except FileNotFoundError:
            return b""
        except OSError as exc:
            raise StoreError(f"the index of keys cannot be read in {file.path}: {exc}") from exc
        except Cold as cold:
            cold.offset = at - at % _WINDOW
            cold.size = _WINDOW
            yield cold
    disk.waits = True  # memory is so short that what was brought in is gone each time
    try:
        return disk.read(file.path, size, at)
    except OSError as exc:
        raise StoreError(f"the index of keys cannot be read in {file.path}: {exc}") from exc
    finally:
        disk.waits = waits


def as_index_hash(java_hash: int) -> int:
    """Its absolute value as Java takes it from 32 bits, 0 where there is none."""
    return -java_hash & 0x7FFFFFFF if java_hash & 0x80000000 else java_hash


def file_name(stored_ms: int) -> str:
    """yyyyMMddHHmmssSSS in UTC."""
    at = datetime.fromtimestamp(stored_ms // 1000, UTC)
    return f"{at:%Y%m%d%H%M%S}{stored_ms % 1000:03d}"


class IndexFiles:
    """Changes the files; writer thread, or recovery."""

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
    """The files whose bytes are those of the checkpoint, up to the first that is not: it and those after it must be made again."""
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
    if len(found) < len(states) and found:  # it was full, or it would not have had a successor
        found[-1].sealed = True
    return found


def _checked(fs: Fs, path: Path, sizes: Sizes, state: IndexState) -> bytes | None:
    """Header and slots, if the whole file is as *state* says."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        if fs.size(handle) != sizes.file_bytes:
            return None
        head = fs.pread(handle, sizes.items_at, 0)
        if zlib.crc32(head) != state.head_crc or not head.startswith(state.header()):
            return None
        crc, at, end = 0, sizes.items_at + ITEM.size, sizes.items_at + state.next_item * ITEM.size
        while at < end:
            block = fs.pread(handle, min(_CHECK_BLOCK, end - at), at)
            if not block:
                return None
            crc = zlib.crc32(block, crc)
            at += len(block)
        return head if crc == state.items_crc else None
    finally:
        fs.close(handle)


def found_sizes(fs: Fs, directory: Path) -> Sizes | None:
    """Of the index files that another broker left; None where there are none, or their sizes cannot be told."""
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
