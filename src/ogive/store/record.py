"""Records of the commit log on the hot paths: built straight from their parts, checked without an object for each.

The layout itself stands in ogive.wire.message; this module adds the checksum over the whole record, a property that 5.x brokers
write when asked to: the last 20 bytes are ``__CRC32#`` 0x01, ten digits (least significant first), 0x02.
Source: MessageDecoder.createCrc32, 5.3.
"""

import functools
import struct
import zlib
from typing import Final, NamedTuple

from ogive.store.model import NewMessage
from ogive.wire.codes import SysFlag
from ogive.wire.message import HEAD, MAGIC_V1, MAGIC_V2, RECORD_V4, TAIL, java_hash, raw_property

BLANK: Final = struct.Struct(">II")
"""room left, MAGIC_BLANK"""
BLANK_BYTES: Final = BLANK.size
CRC_BYTES: Final = 20
_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_NAME_BYTES: Final = len(_CRC_NAME)
_V6: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_FIXED_V4: Final = RECORD_V4.size
_MIN_RECORD_BYTES: Final = _FIXED_V4 + 3
_crc32 = zlib.crc32


class Record(NamedTuple):
    """What a scan needs to know of a whole, checked record."""

    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp_ms: int
    properties_at: int


def overhead(topic: bytes, message: NewMessage) -> int:
    """Bytes of a record beside its body and properties."""
    hosts = len(message.born_host) + len(message.store_host) - 16
    return _FIXED_V4 + hosts + (1 if len(topic) <= 127 else 2) + len(topic) + 2


def strip_crc(properties: bytes) -> bytes:
    """Without the checksum of a record that this message came from: it would speak of other bytes."""
    return properties[:-CRC_BYTES] if properties[-CRC_BYTES : _CRC_NAME_BYTES - CRC_BYTES] == _CRC_NAME else properties


def close_properties(properties: bytes) -> bytes:
    """With the separator at the end that 4.9 leaves off, so that another property can follow."""
    return properties if not properties or properties[-1] == 2 else properties + b"\x02"


def build_parts(
    message: NewMessage,
    topic: bytes,
    properties: bytes,
    size: int,
    queue_offset: int,
    commitlog_offset: int,
    store_timestamp_ms: int,
    with_crc: bool,
) -> tuple[bytes, ...]:
    """The record of *size* bytes, checksum included, in pieces. Raises struct.error or OverflowError for a number that does not fit."""
    _, queue_id, body, _, sys_flag, flag, born, born_host, store_host, reconsume_times, prepared = message
    topic_size = len(topic)
    properties_size = len(properties) + (CRC_BYTES if with_crc else 0)
    body_crc = _crc32(body) & 0x7FFFFFFF
    sys_flag &= ~_V6
    if len(born_host) == 8 and len(store_host) == 8 and topic_size <= 127:
        head = RECORD_V4.pack(
            size, MAGIC_V1, body_crc, queue_id, flag, queue_offset, commitlog_offset, sys_flag, born, born_host,
            store_timestamp_ms, store_host, reconsume_times, prepared, len(body),
        )  # fmt: skip
        tail = b"%c%b%b%b" % (topic_size, topic, properties_size.to_bytes(2), properties)
    else:
        sys_flag |= (SysFlag.BORN_HOST_V6 if len(born_host) == 20 else 0) | (SysFlag.STORE_HOST_V6 if len(store_host) == 20 else 0)
        magic, length = (MAGIC_V1, 1) if topic_size <= 127 else (MAGIC_V2, 2)
        head = b"".join(
            (
                HEAD.pack(size, magic, body_crc, queue_id, flag, queue_offset, commitlog_offset, sys_flag, born),
                born_host,
                store_timestamp_ms.to_bytes(8),
                store_host,
                TAIL.pack(reconsume_times, prepared),
                len(body).to_bytes(4),
            )
        )
        tail = b"".join((topic_size.to_bytes(length), topic, properties_size.to_bytes(2), properties))
    if not with_crc:
        return head, body, tail
    crc = _crc32(tail, _crc32(body, _crc32(head))) & 0x7FFFFFFF
    return head, body, tail, crc_property(crc)


def crc_property(crc: int) -> bytes:
    return b"%b%b\x02" % (_CRC_NAME, (b"%010d" % crc)[::-1])


def read_record(buffer: bytes, at: int, commitlog_offset: int) -> Record | None:
    """The record at byte *at* of *buffer*, or None unless it is whole, belongs at *commitlog_offset* and its checksum holds."""
    try:
        fields = RECORD_V4.unpack_from(buffer, at)
    except struct.error:
        return None
    size, magic, body_crc, queue_id, _, queue_offset, offset, sys_flag, _, _, stored_ms, _, _, _, body_size = fields
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
    if properties_at > end or properties_at + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != end:
        return None
    view = memoryview(buffer)
    if buffer[end - CRC_BYTES : end - CRC_BYTES + _CRC_NAME_BYTES] == _CRC_NAME and properties_at <= end - CRC_BYTES:
        if crc_property(_crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF) != buffer[end - CRC_BYTES : end]:
            return None
    elif _crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF != body_crc:
        return None
    return Record(size, buffer[topic_at:topic_end], queue_id, queue_offset, sys_flag, stored_ms, properties_at)


def _v6_part(buffer: bytes, at: int, sys_flag: int) -> tuple[int, int, int]:
    """Where the body starts, store timestamp and body length of a record with a host of 20 bytes."""
    stored_at = at + HEAD.size + (20 if sys_flag & SysFlag.BORN_HOST_V6 else 8)
    tail_at = stored_at + 8 + (20 if sys_flag & SysFlag.STORE_HOST_V6 else 8)
    body_at = tail_at + TAIL.size + 4
    return body_at, int.from_bytes(buffer[stored_at : stored_at + 8]), int.from_bytes(buffer[body_at - 4 : body_at], signed=True)


def store_timestamp(record: bytes | memoryview) -> int:
    """The store timestamp of a record's first bytes (76 are enough)."""
    at = 68 if record[39] & SysFlag.BORN_HOST_V6 else 56
    return int.from_bytes(record[at : at + 8])


def tag_hash(properties: bytes) -> int:
    """Java's hash of the TAGS property, 0 without one."""
    if b"TAGS\x01" not in properties:
        return 0
    tag = raw_property(properties, b"TAGS")
    return _hash_of(tag) if tag else 0


@functools.lru_cache(4096)
def _hash_of(tag: bytes) -> int:
    return java_hash(tag.decode("utf-8", "replace"))


def delay_level(properties: bytes) -> int:
    """The DELAY property, 0 without one or where it is no number."""
    raw = raw_property(properties, b"DELAY")
    return int(raw) if raw is not None and raw.isdigit() else 0
