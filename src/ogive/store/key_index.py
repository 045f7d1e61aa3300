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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, cast

from ogive.native import native
from ogive.store.file_reader import Cold, Disk
from ogive.store.index_file import (
    ADD_AT,
    HEADER,
    ITEM,
    IndexFile,
    IndexState,
    IndexWrite,
    Sizes,
    file_name,
    read_item,
    read_slot,
)
from ogive.wire.message import java_hash, raw_property

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
