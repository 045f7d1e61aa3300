"""Records of the commit log on the hot paths: built directly from their parts, checked without an
object for each.

The layout itself is in ogive.wire.message; this module adds the checksum over the whole record, a
property that 5.x brokers write if it is configured: the last 20 bytes are ``__CRC32#`` 0x01, ten
digits (least significant first), 0x02. Source: MessageDecoder.createCrc32, 5.3.
"""

import functools
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from ogive.errors import ProtocolError
from ogive.native import Wanted, native
from ogive.store.key_index import Keyed, PackedKeys, pack_keys
from ogive.store.types import (
    MAX_RECORD_BYTES,
    SIZE_BEFORE,
    NewBatch,
    NewMessage,
    PutResult,
    joined,
)
from ogive.wire.checksum import crc32
from ogive.wire.codes import SysFlag
from ogive.wire.message import (
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    RECORD_V4,
    TAIL,
    decode_stored,
    java_hash,
    raw_property,
)

BLANK: Final = struct.Struct(">II")
"""bytes left, MAGIC_BLANK"""
BLANK_BYTES: Final = BLANK.size
CRC_BYTES: Final = 20
_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_NAME_BYTES: Final = len(_CRC_NAME)
_BORN_V6: Final = SysFlag.BORN_HOST_V6
_STORE_V6: Final = SysFlag.STORE_HOST_V6
_V6: Final = _BORN_V6 | _STORE_V6
_FIXED_V4: Final = RECORD_V4.size
_MIN_RECORD_BYTES: Final = _FIXED_V4 + 3
_MAX_HEAD_BYTES: Final = _FIXED_V4 + 2 * 12
"""up to the body, with IPv6 hosts"""
_WIDTHS: Final = {MAGIC_V1: 1, MAGIC_V2: 2}
"""of the topic's length"""
_MIN_BEHIND_BODY: Final = 3
_MAX_BEHIND_BODY: Final = 2 * (2 + 0xFFFF)
"""topic and properties with their lengths"""
_MEANT: Final = struct.Struct(">II4xi4xqqi44xi")
"""size, magic, queue id, queue offset, commit-log offset, sys flag, body size of a record with IPv4
hosts
"""
ENTRY: Final = struct.Struct(">qiq")
"""of a consume queue: commit-log offset, record size, tags code"""
_TRANSACTION: Final = SysFlag.TRANSACTION_MASK
_COMMIT: Final = SysFlag.TRANSACTION_COMMIT
_ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK

NEVER: Final = 2**63 - 1
"""as *crc_from*: no record is required to have its own checksum"""
MAX_CRC_PROPERTIES: Final = MAX_PROPERTIES_BYTES - CRC_BYTES
"""longer properties leave no room for the checksum"""


class Record(NamedTuple):
    """Fields of a whole, checked record, as a scan needs them."""

    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    properties_at: int
    # carries no checksum over the whole, though there was room for one
    plain: bool


class SizeClaim(NamedTuple):
    """Possible ends of a damaged record, by its readable parts."""

    # that it may have, the least first
    sizes: tuple[int, ...]
    # that it has the one size; else what stands behind it must bear it out
    is_proven: bool
    # so many bytes are its own whatever its size is: no record is to be looked for in them
    inside: int


def strip_crc(properties: bytes) -> bytes:
    """Remove the checksum of the record that this message was read from, because it covers other
    bytes.
    """
    return (
        properties[:-CRC_BYTES]
        if properties[-CRC_BYTES : _CRC_NAME_BYTES - CRC_BYTES] == _CRC_NAME
        else properties
    )


def topic_field(topic: bytes) -> bytes:
    """Return the topic with its length before it: one byte, or two in a version 2 record."""
    return len(topic).to_bytes(1 if len(topic) <= 127 else 2) + topic


def fixed_bytes(field: bytes) -> int:
    """Return the size of a record with IPv4 hosts without its body and properties."""
    return _FIXED_V4 + len(field) + 2


def record_size(message: NewMessage, field: bytes, with_crc: bool) -> int:
    """Return the size of the record of *message*; *field* is the topic_field.

    Raises ValueError for a message that no record can hold.
    """
    return _sized(message, message.body, message.properties, field, with_crc)[1]


def _sized(
    message: NewMessage, body: bytes, properties: bytes, field: bytes, with_crc: bool
) -> tuple[bytes, int]:
    """Return the properties to store, without the checksum, and the size of the record with it."""
    properties = strip_crc(properties)
    if with_crc and properties and properties[-1] != 2 and len(properties) < MAX_PROPERTIES_BYTES:
        # 4.9 leaves the last separator off; another property follows
        properties += b"\x02"
    hosts = len(message.born_host) + len(message.store_host)
    size = fixed_bytes(field) + hosts - 16 + len(body) + len(properties)
    if with_crc and len(properties) <= MAX_CRC_PROPERTIES:
        size += CRC_BYTES
    if size > MAX_RECORD_BYTES or len(properties) > MAX_PROPERTIES_BYTES:
        raise ValueError(
            f"record of {size} bytes, properties of {len(properties)}: the limits are "
            f"{MAX_RECORD_BYTES} and {MAX_PROPERTIES_BYTES}"
        )
    return properties, size


QueueEnd = tuple[tuple[str, int, bytes, bytes], int]
"""A queue that records are built for: topic, queue id, topic_field and topic; its next offset."""
Built = tuple[bytes, list[bytes], list[Keyed | PackedKeys], list[PutResult]]
"""Consecutive records; the entries of each queue; the keys for the index; the place of each message
or batch.
"""


def build_records_in_python(
    messages: tuple[NewMessage | NewBatch, ...],
    queues: tuple[QueueEnd, ...],
    position: int,
    room: int,
    otherwise: int,
    stored_ms: int,
    with_crc: bool,
    result: type[PutResult],
) -> Built:
    """Build the records of *messages*, each for its queue, which is one of *queues*.

    They begin at commit-log offset *position*, or at *otherwise* if they need more than *room*
    bytes. The keys of a batch are hashed here, those of a single message by the index. Raises
    ValueError for a message that no record can hold.
    """
    places = {place[:2]: (number, place[2], place[3]) for number, (place, _) in enumerate(queues)}
    try:
        sized = [
            [
                (one, *_sized(one, one.body, one.properties, places[one[:2]][1], with_crc))
                for one in (message.each() if isinstance(message, NewBatch) else (message,))
            ]
            for message in messages
        ]
        if sum([size for group in sized for _, _, size in group]) > room:
            position = otherwise
        records, keyed = list[bytes](), list[Keyed | PackedKeys]()
        results = list[PutResult]()
        entries: list[list[bytes]] = [[] for _ in queues]
        before = 0
        for given, group in zip(messages, sized, strict=True):
            own_keys, own_results = list[Keyed](), list[PutResult]()
            for message, properties, size in group:
                kind, (number, field, topic) = message.sys_flag & _TRANSACTION, places[message[:2]]
                offset = 0
                if kind in (0, _COMMIT):
                    offset = queues[number][1] + len(entries[number])
                    entries[number].append(ENTRY.pack(position, size, tag_hash(properties)))
                if message.flag == SIZE_BEFORE and before:
                    message = message._replace(flag=before)
                records.append(
                    build_record(
                        message, field, properties, size, offset, position, stored_ms, with_crc
                    )
                )
                if kind != _ROLLBACK:
                    own_keys.append((topic, properties, position, stored_ms))
                own_results.append(result(offset, position, size, stored_ms))
                position += size
                before = size
            if isinstance(given, NewBatch):
                if own_keys:
                    keyed.append((pack_keys(own_keys), stored_ms))
                results.append(joined(own_results))
            else:
                keyed += own_keys
                results += own_results
    except (struct.error, OverflowError, TypeError, KeyError, ProtocolError) as exc:
        raise ValueError(f"message does not fit the stored form: {exc}") from None
    return b"".join(records), [b"".join(of_queue) for of_queue in entries], keyed, results


build_records: Final = build_records_in_python if native is None else native.build_records


def build_record(
    message: NewMessage,
    field: bytes,
    properties: bytes,
    size: int,
    queue_offset: int,
    commitlog_offset: int,
    stored_ms: int,
    with_crc: bool,
) -> bytes:
    """Build one record of *size* bytes, checksum included. *field* is the topic_field.

    Raises struct.error for a number that does not fit.
    """
    _, queue_id, body, _, sys_flag, flag, born, born_host, store_host, reconsume_times, prepared = (
        message
    )
    if {len(born_host), len(store_host)} - {8, 20}:
        raise struct.error("a host has 8 or 20 bytes")
    sys_flag = (
        (sys_flag & ~_V6)
        | (_BORN_V6 if len(born_host) == 20 else 0)
        | (_STORE_V6 if len(store_host) == 20 else 0)
    )
    head = b"".join(
        (
            HEAD.pack(
                size,
                MAGIC_V1 if len(field) <= 128 else MAGIC_V2,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                commitlog_offset,
                sys_flag,
                born,
            ),
            born_host,
            stored_ms.to_bytes(8),
            store_host,
            TAIL.pack(reconsume_times, prepared),
            len(body).to_bytes(4),
            body,
            field,
        )
    )
    if not with_crc or len(properties) > MAX_CRC_PROPERTIES:
        return b"".join((head, len(properties).to_bytes(2), properties))
    record = b"".join((head, (len(properties) + CRC_BYTES).to_bytes(2), properties))
    return record + crc_property(crc32(record) & 0x7FFFFFFF)


def crc_property(crc: int) -> bytes:
    # the digits are in reverse order, and so is the rest here
    return (b"\x02%010d\x01#23CRC__" % crc)[::-1]


def read_record(
    buffer: bytes, at: int, commitlog_offset: int, crc_from: int, *, spoiled: bool = False
) -> Record | None:
    """Return the record at byte *at* of *buffer* if it is complete, belongs at *commitlog_offset*
    and its checksum matches, and None otherwise.

    From *crc_from* on every record has the checksum over the whole; one without it is damaged in
    just that place. Before that, it may be missing or be that of another record: Apache's broker
    copies properties when it stores a message again. *spoiled*: ignore checksums if all lengths
    fit.
    """
    try:
        fields = RECORD_V4.unpack_from(buffer, at)
    except struct.error:
        return None
    (
        size,
        magic,
        body_crc,
        queue_id,
        _,
        queue_offset,
        offset,
        sys_flag,
        _,
        _,
        stored_ms,
        _,
        _,
        _,
        body_size,
    ) = fields
    if offset != commitlog_offset or size < _MIN_RECORD_BYTES or at + size > len(buffer):
        return None
    end = at + size
    body_at = at + _FIXED_V4
    if sys_flag & _V6:
        body_at, stored_ms, body_size = _v6_part(buffer, at, sys_flag)
    topic_at = body_at + body_size + 1
    if body_size < 0 or topic_at > end - 2:
        return None
    topic_size = buffer[topic_at - 1]
    if magic != MAGIC_V1:
        if magic != MAGIC_V2:
            return None
        topic_size = topic_size << 8 | buffer[topic_at]
        topic_at += 1
    topic_end = topic_at + topic_size
    properties_at = topic_end + 2
    if (
        properties_at > end
        or properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end
    ):
        return None
    view = memoryview(buffer)
    tail = buffer[end - CRC_BYTES : end]
    if spoiled or (
        tail.startswith(_CRC_NAME)
        and properties_at <= end - CRC_BYTES
        and tail == crc_property(crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)
    ):
        plain = False
    else:
        plain = end - properties_at <= MAX_CRC_PROPERTIES
        if plain and (commitlog_offset >= crc_from or (properties_at < end and _spoiled_crc(tail))):
            return None
        if crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF != body_crc:
            return None
    return Record(
        size,
        buffer[topic_at:topic_end],
        queue_id,
        queue_offset,
        sys_flag,
        stored_ms,
        properties_at,
        plain,
    )


def is_checked_whole(record: Record) -> bool:
    """Return True if *record* has the checksum over the whole, which was verified then. Longer
    properties leave no room for it.
    """
    return not record.plain and record.size - record.properties_at <= MAX_CRC_PROPERTIES


def has_fitting_lengths(read: Callable[[int, int], bytes], room: int) -> bool:
    """Return True if the size of a possible record is the sum of its lengths, by its head and the
    few bytes after its body.
    """
    return _Remains(read, room, 0, 0).has_fitting_lengths


def claim_of(
    read: Callable[[int, int], bytes], room: int, commitlog_offset: int, crc_from: int
) -> SizeClaim:
    """Return the possible sizes of the damaged record at *commitlog_offset*, by those of its parts
    that are credible.

    *read* returns bytes of it, by their position in it and their number; it has *room* bytes at
    most.
    - If the record would be intact, by the checksum over the whole, with another size, magic or
      offset of its own, that is proof.
    - Otherwise two of three must be right: its magic, its own offset, and that the size is the sum
      of its lengths. The size then gives one end and the lengths may give another; either may be
      damaged, and the bytes behind them decide.
    """
    return _Remains(read, room, commitlog_offset, crc_from).claim()


class _Remains:
    """The parts of a damaged record. Arguments as of claim_of()."""

    def __init__(
        self, read: Callable[[int, int], bytes], room: int, commitlog_offset: int, crc_from: int
    ) -> None:
        self._read = read
        self._room = room
        self._commitlog_offset = commitlog_offset
        self._crc_from = crc_from
        self._head = head = read(0, _MAX_HEAD_BYTES).ljust(_MAX_HEAD_BYTES, b"\0")
        self._size, self._magic, _, _, _, _, offset, sys_flag, _ = HEAD.unpack_from(head)
        self._body_at, _, self._body_size = _v6_part(head, 0, sys_flag)
        self._is_known, self._is_placed = self._magic in _WIDTHS, offset == commitlog_offset

    @property
    def has_fitting_lengths(self) -> bool:
        return self._is_known and self._size_by_lengths(self._magic, self._body_size) == self._size

    def claim(self) -> SizeClaim:
        by_lengths, intact = set[int](), set[int]()
        for magic in (self._magic,) if self._is_known else _WIDTHS:
            size = self._size_by_lengths(magic, self._body_size)
            if size is None:
                continue
            by_lengths.add(size)
            record = self._mended(size, magic, self._body_size)
            if record is not None:
                if is_checked_whole(record):
                    return SizeClaim((size,), is_proven=True, inside=size)
                intact.add(size)
        agree = self._size in by_lengths
        right = self._is_known + self._is_placed + agree
        if not right:
            return SizeClaim((), is_proven=False, inside=0)
        is_body_known = bool(intact) or agree
        if right == 2 and not is_body_known:
            with_one_bit = self._with_one_bit_of_the_body_size()
            for record in filter(is_checked_whole, with_one_bit):
                return SizeClaim((record.size,), is_proven=True, inside=record.size)
            if self._may_be_cut_short():
                intact = {record.size for record in with_one_bit if record.size < self._size}
                is_body_known = not intact
        if right >= 2:
            intact |= {self._size} if agree else by_lengths | {self._size}
        sizes = tuple(sorted(size for size in intact if _MIN_RECORD_BYTES <= size <= self._room))
        return SizeClaim(
            sizes, is_proven=False, inside=self._body_at + self._body_size if is_body_known else 0
        )

    def _size_by_lengths(self, magic: int, body_size: int) -> int | None:
        """Return the size, or None if it is too long."""
        topic_at, width = self._body_at + body_size, _WIDTHS[magic]
        if body_size < 0 or topic_at + width > self._room:
            return None
        properties_at = topic_at + width + int.from_bytes(self._read(topic_at, width)) + 2
        if properties_at > self._room:
            return None
        size = properties_at + int.from_bytes(self._read(properties_at - 2, 2))
        return size if size <= self._room else None

    def _mended(self, size: int, magic: int, body_size: int) -> Record | None:
        """Return the record if it is intact with these values."""
        _, _, body_crc, queue_id, flag, queue_offset, _, sys_flag, born = HEAD.unpack_from(
            self._head
        )
        head = HEAD.pack(
            size,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            self._commitlog_offset,
            sys_flag,
            born,
        )
        rest = self._read(self._body_at, size - self._body_at)
        whole = b"".join(
            (head, self._head[HEAD.size : self._body_at - 4], body_size.to_bytes(4), rest)
        )
        record = read_record(whole, 0, self._commitlog_offset, self._crc_from)
        return record if record is not None and record.topic else None

    def _may_be_cut_short(self) -> bool:
        """Return True if size and body size fit together, and its end is zeros: an incomplete write
        leaves that.
        """
        if (
            not _MIN_BEHIND_BODY <= self._size - self._body_at - self._body_size <= _MAX_BEHIND_BODY
            or self._size > self._room
        ):
            return False
        return not any(self._read(self._size - 3, _MIN_RECORD_BYTES))

    def _with_one_bit_of_the_body_size(self) -> list[Record]:
        """Return the intact records that it may have been with another size, and one other bit in
        the length of its body.
        """
        found: list[Record] = []
        for bit in range(31) if self._is_known else ():
            body_size = self._body_size ^ 1 << bit
            size = self._size_by_lengths(self._magic, body_size)
            if (
                size is not None
                and (record := self._mended(size, self._magic, body_size)) is not None
            ):
                found.append(record)
        return found


def not_standing(
    buffer: bytes,
    base: int,
    wanted: list[Wanted],
    queue_id: int,
    field: bytes,
    crc_from: int,
    *,
    sound: bool = False,
) -> list[Wanted]:
    """Return the *wanted* records that are not intact records of their queue in *buffer*.

    *buffer* starts at commit-log offset *base*; *field* is the queue's topic_field. A record with
    IPv4 hosts and the checksum over the whole is checked in place, at half the cost of read_record
    (1.5 instead of 3 µs); read_record decides about all others. *sound*: the bytes are known to be
    intact, so only the record's topic and queue are checked.
    """
    bad: list[Wanted] = []
    if (
        native is not None
        and (doubtful := native.doubtful(buffer, base, wanted, queue_id, field, sound)) is not None
    ):
        if not doubtful:
            return bad
        wanted = doubtful
    end_of_buffer, short_field, field_size = len(buffer), len(field) <= 128, len(field) + 2
    view, unpack, no_v4 = memoryview(buffer), _MEANT.unpack_from, int(_V6)
    for entry in wanted:
        offset, size, queue_offset = entry
        at = offset - base
        end = at + size
        if short_field and size >= _MIN_RECORD_BYTES and end <= end_of_buffer:
            found_size, magic, found_id, found_offset, stands_at, sys_flag, body_size = unpack(
                buffer, at
            )
            topic_at = at + _FIXED_V4 + body_size
            properties_at = topic_at + field_size
            if (
                found_size == size
                and magic == MAGIC_V1
                and stands_at == offset
                and found_offset == queue_offset
                and found_id == queue_id
                and not sys_flag & no_v4
                and body_size >= 0
                and properties_at <= end - CRC_BYTES
                and buffer.startswith(field, topic_at)
                and (
                    sound
                    or (
                        (buffer[properties_at - 2] << 8 | buffer[properties_at - 1])
                        == end - properties_at
                        and buffer[end - 1 : end - CRC_BYTES - 1 : -1]
                        == b"\x02%010d\x01#23CRC__"
                        % (crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)
                    )
                )
            ):
                continue
        record = read_record(buffer, at, offset, crc_from)
        if (
            record is None
            or record.size != size
            or record.queue_offset != queue_offset
            or record.queue_id != queue_id
            or record.topic != field[1 if short_field else 2 :]
        ):
            bad.append(entry)
    return bad


def _spoiled_crc(tail: bytes) -> bool:
    """Return True if this was a checksum property, before one or two bits of its name changed, or a
    torn write left zeros or other bytes in its digits.
    """
    same = sum([a == b for a, b in zip(tail, _CRC_NAME, strict=False)])
    if same == _CRC_NAME_BYTES:
        # whole digits may belong to another record: Apache's broker copies properties
        return tail[-1] == 0 or not tail[_CRC_NAME_BYTES:-1].isdigit()
    return tail[-1] == 0 or same >= 6


def _v6_part(buffer: bytes, at: int, sys_flag: int) -> tuple[int, int, int]:
    """Return the start of the body, store timestamp and body length of a record with a host of 20
    bytes.
    """
    stored_at = at + HEAD.size + (20 if sys_flag & SysFlag.BORN_HOST_V6 else 8)
    tail_at = stored_at + 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    body_at = tail_at + TAIL.size + 4
    return (
        body_at,
        int.from_bytes(buffer[stored_at : stored_at + 8]),
        int.from_bytes(buffer[body_at - 4 : body_at], signed=True),
    )


def store_timestamp(record: bytes | memoryview) -> int:
    """Return the store timestamp of a record's first bytes (76 are enough)."""
    at = 68 if record[39] & SysFlag.BORN_HOST_V6 else 56
    return int.from_bytes(record[at : at + 8])


def has_key(record: bytes, topic: str, key: str) -> bool:
    """Return True if a complete record is of *topic* and has *key* as its unique key or among its
    keys.
    """
    found = decode_stored(record)
    if found.topic != topic:
        return False
    wanted = key.encode("utf-8", "replace")
    return raw_property(found.properties, b"UNIQ_KEY") == wanted or wanted in (
        raw_property(found.properties, b"KEYS") or b""
    ).split(b" ")


def tag_hash(properties: bytes) -> int:
    """Return Java's hash of the TAGS property, 0 without one."""
    at = properties.rfind(b"TAGS\x01")
    if at < 0:
        return 0
    # the end of another name
    if at and properties[at - 1] != 2:
        tag = raw_property(properties, b"TAGS") or b""
    else:
        end = properties.find(b"\x02", at)
        tag = properties[at + 5 : end] if end > 0 else properties[at + 5 :]
    return _hash_of(tag) if tag else 0


@functools.lru_cache(4096)
def _hash_of(tag: bytes) -> int:
    return java_hash(tag.decode("utf-8", "replace"))


def delay_level(properties: bytes) -> int:
    """Return the DELAY property, or 0 if it is missing or not a number."""
    raw = raw_property(properties, b"DELAY")
    return int(raw) if raw is not None and raw.isdigit() else 0
