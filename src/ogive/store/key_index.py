"""Index of keys: from a message's keys to its records, in Apache's files.

Source: IndexService.java, 5.3.

Behaviour
- Derived, like consume queues: built in memory by the owner from durable groups, and written later
  by the writer thread. Slots and header of a file are written with each checkpoint, so that the
  file on disk is complete up to that point.
- Items are hashes. Callers that look up a key compare the text: MessageStore.find_key() does, Java
  leaves it to the client.

Differs from Java
- Queries run in a generator that pauses for the disk and for other work (see find).

Java's String.hashCode of many keys at once.

The polynomial is computed for a whole batch in a few operations on one long integer: neighbouring
lanes of 8, 16, 32 and 64 bits become one of twice the width. Key by key it would be the most
expensive step of a send. A Java client's unique key has 32 characters if its host has an IPv4
address, and 56 if it has only an IPv6 one.
"""

import functools
import itertools
import struct
import sys
from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, cast

from ogive.errors import StoreError
from ogive.native import native
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.file_reader import Cold, Disk, Handles
from ogive.store.fs import Fs
from ogive.wire.checksum import crc32
from ogive.wire.message import java_hash, raw_property

# The files of the index of keys: their layout, and how they grow and are read, written and
# checked.
#
# A file is a header, a table of hash slots, each the newest item of a chain, and items in the
# order of their messages. Source: IndexFile.java, 5.3.
#
# Differs from Java: a file is named by the store time of its first message in UTC, not by the wall
# clock, so that it can be rebuilt byte for byte.


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


Keyed = tuple[bytes, bytes, int, int]
"""Record whose keys are to be hashed: topic, properties, commit-log offset, store timestamp."""
PackedKeys = tuple[bytes, int]
"""Hashed keys of a batch of records: hash and commit-log offset of each, as bytes; the store
timestamp.
"""
_PACKED: Final = struct.Struct(">iq")
BATCH: Final = 128
_WIDTH: Final = 32
_WIDE: Final = 2 * _WIDTH
_MASK: Final = 0xFFFFFFFF
_MASK_8, _MASK_16, _MASK_32, _MASK_64 = (
    int.from_bytes((bytes(lane) + b"\xff" * lane) * (_WIDE * BATCH // (2 * lane)))
    for lane in (1, 2, 4, 8)
)
_P2, _P4, _P8 = 31**2, 31**4, 31**8
_P16: Final = 31**16 & _MASK
_P32: Final = 31**32 & _MASK
_P48: Final = 31**48 & _MASK
_POWERS: Final = tuple([pow(31, n, 1 << 32) for n in range(_WIDE + 1)])
_halves: Final = struct.Struct(">12xI12xI").iter_unpack
_quarters: Final = struct.Struct(">12xI12xI12xI12xI").iter_unpack


def java_hashes(prefixes: Sequence[int], keys: Sequence[bytes]) -> list[int]:
    """Return for each key the hash of its prefix (a hash, see java_prefix) followed by the key,
    from 0 to 2**32 - 1.
    """
    longest = max(map(len, keys), default=0)
    plain = (
        keys
        if longest <= _WIDE and all(map(bytes.isascii, keys))
        else [_short(key) for key in keys]
    )
    tails: list[int] = []
    for at in range(0, len(plain), BATCH):
        tails += _fold(plain[at : at + BATCH], _WIDTH if longest <= _WIDTH else _WIDE)
    if plain is keys:
        return [
            (prefix * _POWERS[len(key)] + tail) & _MASK
            for prefix, key, tail in zip(prefixes, keys, tails, strict=True)
        ]
    return [
        (prefix * _POWERS[len(key)] + tail) & _MASK
        if len(key) <= _WIDE and key.isascii()
        else _long(prefix, key)
        for prefix, key, tail in zip(prefixes, keys, tails, strict=True)
    ]


def java_prefix(text: bytes) -> int:
    """Return the hash of the text before the keys, for java_hashes()."""
    return java_hash(text.decode("utf-8", "replace")) & _MASK


@functools.lru_cache(50_000)
def _topic_prefix(topic: bytes) -> int:
    return java_prefix(topic + b"#")


def _keys_of(
    records: Iterable[Keyed],
) -> Iterator[tuple[list[int], list[bytes], list[tuple[int, int]]]]:
    """Yield prefix, text and place of the keys of *records*, the unique one of each first: about
    _KEYS_AT_ONCE at a time.
    """
    prefixes: list[int] = []
    keys: list[bytes] = []
    places: list[tuple[int, int]] = []
    for topic, properties, offset, stored_ms in records:
        unique = _value(properties, b"UNIQ_KEY\x01")
        named = _value(properties, b"KEYS\x01") if b"KEYS\x01" in properties else None
        prefix = _topic_prefix(topic)
        if unique:
            prefixes.append(prefix)
            keys.append(unique)
            places.append((offset, stored_ms))
        if named:
            parts = [part for part in named.split(b" ") if part]
            prefixes += [prefix] * len(parts)
            keys += parts
            places += [(offset, stored_ms)] * len(parts)
        if len(keys) >= _KEYS_AT_ONCE:
            yield prefixes, keys, places
            prefixes, keys, places = [], [], []
    if keys:
        yield prefixes, keys, places


def pack_keys(records: Iterable[Keyed]) -> bytes:
    """Return the hashed keys of *records* in the form of PackedKeys."""
    packed = bytearray()
    for prefixes, keys, places in _keys_of(records):
        hashes = map(as_index_hash, java_hashes(prefixes, keys))
        for key, (offset, _) in zip(hashes, places, strict=True):
            packed += _PACKED.pack(key, offset)
    return bytes(packed)


def _short(key: bytes) -> bytes:
    return key if len(key) <= _WIDE and key.isascii() else b""


def _fold(keys: Sequence[bytes], width: int) -> list[int]:
    """Return the hashes of ASCII keys of at most *width* bytes, 32 or 64.

    Zeros before a key add nothing to the polynomial.
    """
    x = int.from_bytes(b"".join([key.rjust(width, b"\0") for key in keys]))
    x = (x & _MASK_8) + 31 * ((x >> 8) & _MASK_8)
    x = (x & _MASK_16) + _P2 * ((x >> 16) & _MASK_16)
    x = (x & _MASK_32) + _P4 * ((x >> 32) & _MASK_32)
    x = (x & _MASK_64) + _P8 * ((x >> 64) & _MASK_64)
    lanes = x.to_bytes(width * len(keys))
    if width == _WIDTH:
        return [(high * _P16 + low) & _MASK for high, low in _halves(lanes)]
    return [(a * _P48 + b * _P32 + c * _P16 + d) & _MASK for a, b, c, d in _quarters(lanes)]


def _long(prefix: int, key: bytes) -> int:
    """Return the hash of a key of any length in any alphabet: by UTF-16 units if it is not
    ASCII, else by blocks of 32.
    """
    if not key.isascii():
        units = key.decode("utf-8", "replace").encode("utf-16-be")
        for at in range(0, len(units), 2):
            prefix = (31 * prefix + (units[at] << 8 | units[at + 1])) & _MASK
        return prefix
    first = len(key) % _WIDTH
    blocks = [key[:first], *[key[at : at + _WIDTH] for at in range(first, len(key), _WIDTH)]]
    for at in range(0, len(blocks), BATCH):
        for block, tail in zip(
            blocks[at : at + BATCH], _fold(blocks[at : at + BATCH], _WIDTH), strict=True
        ):
            prefix = (
                prefix * (_P32 if len(block) == _WIDTH else _POWERS[len(block)]) + tail
            ) & _MASK
    return prefix


# messages that wait before their keys are hashed together
_BUILD_AT: Final = 256
_KEYS_AT_ONCE: Final = 4096
"""Keys that are hashed at once, in Python. The properties of one message have room for 16,384."""
# messages that are added at once, in Python where the compiled part does not
_PIECE: Final = 64
# steps of a search between two stops
_BREATHE: Final = 512


class KeyIndex:
    """All files of a store. Owner thread only; the disk is changed through IndexWrite."""

    def __init__(self, directory: Path, sizes: Sizes, files: Iterable[IndexFile] = ()) -> None:
        # of the files to come
        self.sizes = sizes
        self._directory = directory
        self.files = list(files)
        self.pending: list[Keyed | PackedKeys] = []
        # of files that are complete, not yet collected
        self._full: list[IndexWrite] = []

    def add(self, keyed: Iterable[Keyed | PackedKeys]) -> None:
        """Add durable records, in their order."""
        self.pending += keyed
        # the last of them is a batch, perhaps with thousands of keys
        if len(self.pending) >= _BUILD_AT or (self.pending and len(self.pending[-1]) == 2):
            self.build()

    def build(self) -> None:
        """Put the waiting records into the files."""
        pending = self.pending
        for at in range(0, len(pending), _PIECE):
            piece = pending[at : at + _PIECE]
            if not self._add_compiled(piece):
                if native is None:
                    self._add(piece)
                else:
                    # Usually the compiled part leaves only one record to its twin, for example at
                    # the end of a file.
                    for record in piece:
                        if not self._add_compiled([record]):
                            self._add([record])
        pending.clear()

    def _add_compiled(self, piece: list[Keyed | PackedKeys]) -> bool:
        return bool(self.files) and self.files[-1].add_records(piece)

    def _add(self, piece: Sequence[Keyed | PackedKeys]) -> None:
        """Add the records that the compiled part does not handle."""
        for is_packed, run in itertools.groupby(piece, lambda one: len(one) == 2):
            if is_packed:
                for packed, stored_ms in cast(Iterable[PackedKeys], run):
                    self._put_packed(packed, stored_ms)
                continue
            for prefixes, keys, places in _keys_of(cast(Iterable[Keyed], run)):
                self._put(list(map(as_index_hash, java_hashes(prefixes, keys))), places)

    def _put(self, hashes: list[int], places: list[tuple[int, int]]) -> None:
        at = 0
        while at < len(hashes):
            file = self._file_with_room(places[at][1])
            end = min(len(hashes), at + min(ADD_AT, file.room))
            file.add(hashes[at:end], places[at:end])
            at = end

    def _put_packed(self, packed: bytes, stored_ms: int) -> None:
        """Add the keys of a batch; those for which a file has room by the compiled part."""
        at = 0
        while at < len(packed):
            file = self._file_with_room(stored_ms)
            end = at + file.room * _PACKED.size
            if not file.add_records([(packed[at:end], stored_ms)]):
                end = at + min(ADD_AT, file.room) * _PACKED.size
                pairs = list(_PACKED.iter_unpack(packed[at:end]))
                file.add([key for key, _ in pairs], [(offset, stored_ms) for _, offset in pairs])
            at = end

    def _file_with_room(self, stored_ms: int) -> IndexFile:
        if self.files and not self.files[-1].is_full:
            return self.files[-1]
        return self._next_file(stored_ms)

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
        """Return True if a file was completed since collect(): a checkpoint then saves a start
        after a crash from rebuilding it.
        """
        return bool(self._full)

    def collect(self, *, checkpoint: bool) -> tuple[IndexWrite, ...]:
        """Return everything that is in no file yet; with a checkpoint also slots and header of the
        newest file, so that the file on disk is complete.
        """
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
        """Drop from memory the parts of *writes*, which are in the files."""
        by_path = {file.path: file for file in self.files}
        for write in writes:
            file = by_path.get(write.path)
            if file is None:
                continue
            if write.at:
                end = (write.at - file.sizes.items_at + len(write.data)) // ITEM.size
                del file.tail[: (end - file.tail_start) * ITEM.size]
                file.tail_start = file.written = end
            elif file.sealed and HEADER.unpack_from(write.data)[-1] == file.next_item:
                # not the head of a checkpoint before
                file.slots = None

    def states(self) -> tuple[IndexState, ...]:
        """Return the states at a checkpoint, after collect()."""
        return tuple([file.state() for file in self.files])

    def expire(self, commitlog_start: int) -> list[Path]:
        """Forget the files without an item from *commitlog_start* on; return the files to remove.

        The newest file stays.
        """
        gone = []
        while (
            len(self.files) > 1
            and self.files[0].end_offset < commitlog_start
            and self.files[0].slots is None
        ):
            gone.append(self.files.pop(0).path)
        return gone

    def find(
        self, disk: Disk, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[int | Cold | None]:
        """Yield commit-log offsets of records that may have *key*, the newest first, in that time
        (whole seconds).

        Yields None now and then, so that the caller may let other work run, and Cold if it needs
        the disk: bring it in, then continue.
        """
        self.build()
        key_hash = as_index_hash(
            java_hashes([java_prefix(f"{topic}#".encode())], [key.encode("utf-8", "replace")])[0]
        )
        steps = 0
        for file in reversed(list(self.files)):
            if not file.matches(begin_ms, end_ms):
                continue
            slot = yield from read_slot(disk, file, key_hash % file.sizes.slots)
            item, newer = slot, file.next_item
            # chains only lead back: damage cannot send a search round in circles
            while 0 < item < newer:
                steps += 1
                if steps % _BREATHE == 0:
                    yield None
                fields = yield from read_item(disk, file, item)
                if fields is None:
                    break
                found, offset, seconds, before = fields
                if (
                    found == key_hash
                    and begin_ms // 1000 * 1000
                    <= file.begin_ms + seconds * 1000 + 999
                    <= end_ms + 999
                ):
                    yield offset
                item, newer = before, item


def _value(properties: bytes, name: bytes) -> bytes | None:
    """Return the value of the last property whose *name* ends in its separator.

    The last: Apache's 4.9 puts a batch's unique key behind that of each message.
    """
    at = properties.rfind(name)
    if at < 0:
        return None
    # the end of another name
    if at and properties[at - 1] != 2:
        return raw_property(properties, name[:-1])
    at += len(name)
    end = properties.find(b"\x02", at)
    return properties[at:end] if end >= 0 else properties[at:]


def as_index_hash(java_hash: int) -> int:
    """Return the absolute value of 32 bits as Java computes it, or 0 if there is none."""
    return -java_hash & 0x7FFFFFFF if java_hash & 0x80000000 else java_hash
