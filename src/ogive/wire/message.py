"""Stored messages, properties, ids and batches.

Source: MessageDecoder.java, CommitLog.java, 5.3.
"""

import binascii
import dataclasses
import functools
import operator
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from ogive.errors import CompressionUnavailable, ProtocolError
from ogive.model import MAX_RESOURCE_LENGTH, MessageExt, MessageQueue, PropertyName
from ogive.native import native
from ogive.wire.checksum import crc32
from ogive.wire.codes import SysFlag
from ogive.wire.command import whole_number
from ogive.wire.compression import MAX_INFLATED_BYTES, decompress

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Version 2 differs in one place: two bytes of topic length instead of one.

Only 5.x writes it, for topics over 127 bytes.
"""
MAGIC_BLANK: Final = 0xCBD43194
"""End of a commit-log file: int32 with the number of bytes left, this magic, then anything."""

MAX_PROPERTIES_BYTES: Final = 32767
MAX_BATCH_MESSAGES: Final = 4096
MAX_INNER_MESSAGES: Final = 32767
"""Limit for one record: INNER_NUM is a short in Apache's brokers."""

HEAD: Final = struct.Struct(">IIIiiqqiq")
"""total size, magic, body CRC, queue id, flag, queue offset, commit-log offset, sysFlag, born
timestamp (48 bytes)
"""
TAIL: Final = struct.Struct(">iq")
"""reconsume times, prepared transaction offset; they are between the store host and the body
length
"""
RECORD_V4: Final = struct.Struct(">IIIiiqqiq8sq8siqi")
"""The whole fixed part with IPv4 hosts: HEAD, born host, store timestamp, store host, TAIL, body
length (88 bytes)
"""

_V6_HOSTS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
WRAPPED: Final = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
"""Both flags in the sysFlag of a record that holds a whole batch: see ``unwrap``."""


# --- small parts ----------------------------------------------------------------------------------


def body_crc(body: bytes) -> int:
    """Return java.util.zip.CRC32 of the stored body with the sign bit cleared, or 0 for an empty
    body.
    """
    return crc32(body) & 0x7FFFFFFF


@functools.lru_cache(4096)
def java_hash(text: str) -> int:
    """Return String.hashCode: 31 * h + each UTF-16 unit, as a signed 32-bit number."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h


def tags_code(tag: str | None) -> int:
    """Return the hash of the tag in a consume-queue entry; 0 for no tag."""
    return java_hash(tag) if tag else 0


@functools.lru_cache(8192)
def encode_host(host: str, port: int) -> bytes:
    """Return 4 or 16 address bytes and the port as int32.

    Raises ProtocolError for a name or a scoped address.
    """
    try:
        packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    except OSError:
        raise ProtocolError(f"{host!r} is not an IP address") from None
    return packed + port.to_bytes(4)


@functools.lru_cache(8192)
def decode_host(raw: bytes) -> str:
    """Return ``ip:port`` of 8 or 20 stored bytes."""
    family = socket.AF_INET if len(raw) == 8 else socket.AF_INET6
    address = socket.inet_ntop(family, raw[:-4])
    port = int.from_bytes(raw[-4:])
    return f"{address}:{port}" if family == socket.AF_INET else f"[{address}]:{port}"


def offset_message_id(store_host: bytes, commitlog_offset: int) -> str:
    """Return the broker's id of a message: its store host and commit-log offset in upper-case hex
    (32 or 56 characters).
    """
    return (
        binascii.hexlify(store_host + (commitlog_offset & 0xFFFFFFFFFFFFFFFF).to_bytes(8))
        .decode()
        .upper()
    )


def offset_message_ids(store_host: bytes, commitlog_offsets: list[int]) -> str:
    """Return the ids of several messages, joined by commas, as in the answer to a batch."""
    raw = b"".join([store_host + offset.to_bytes(8) for offset in commitlog_offsets])
    return raw.hex(",", len(store_host) + 8).upper()


def parse_offset_message_id(text: str) -> tuple[str, int]:
    """Return ``ip:port`` of the broker, and the commit-log offset. Raises ProtocolError."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise ProtocolError(
            f"{text[:64]!r} is not a message id of a broker (32 or 56 hexadecimal digits)"
        )
    return decode_host(raw[:-8]), int.from_bytes(raw[-8:])


# --- properties -----------------------------------------------------------------------------------


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Join properties: name 0x01 value 0x02 ..., in UTF-8.

    Raises ProtocolError over 32,767 bytes, or for a separator in a name or value.
    """
    if native is not None and (stored := native.properties_text(properties)) is not None:
        return stored
    text = _joined(properties)
    if text.count("\x02") != len(properties):
        raise ProtocolError(
            "a property name or value holds the control character 2, which separates properties"
        )
    try:
        raw = text.encode()
    except UnicodeEncodeError as exc:
        raise ProtocolError(f"a property cannot be written as UTF-8: {exc.reason}") from None
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise ProtocolError(
            f"{len(raw)} bytes of properties are over the limit of {MAX_PROPERTIES_BYTES}"
        )
    return raw


def join_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties that were decoded before, of any length. It does not raise."""
    if native is not None and (stored := native.properties_text(properties)) is not None:
        return stored
    return _joined(properties).encode(errors="replace")


def _joined(properties: Mapping[str, str]) -> str:
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def decode_properties(raw: bytes) -> dict[str, str]:
    """Read stored properties as Java does.

    Entries without a name or value are dropped, the last of repeated names counts, and invalid
    UTF-8 becomes U+FFFD: a batch can bring such bytes into any store, and one message must not
    block the queue for its readers.
    """
    if native is not None and (found := native.properties(raw)) is not None:
        return found
    properties: dict[str, str] = {}
    for entry in raw.decode(errors="replace").split("\x02"):
        name, _, value = entry.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def raw_property(raw: bytes, name: bytes) -> bytes | None:
    """Return one value of the stored form, without parsing the rest.

    If there are several, return the last one, as in a Java client's map.
    """
    at = raw.rfind(b"\x02" + name + b"\x01") + 1
    if at == 0 and not raw.startswith(name + b"\x01"):
        return None
    start = at + len(name) + 1
    end = raw.find(b"\x02", start)
    return raw[start:] if end < 0 else raw[start:end]


def real_place(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return REAL_TOPIC and REAL_QID, or None if they are missing or invalid."""
    topic = properties.get(PropertyName.REAL_TOPIC)
    queue = whole_number(properties.get(PropertyName.REAL_QUEUE_ID, ""))
    if not topic or len(topic) > MAX_RESOURCE_LENGTH or queue is None:
        return None
    return topic, queue


class Properties(Mapping[str, str]):
    """Stored properties, parsed at the first access: most messages are never asked."""

    __slots__ = ("_parsed", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._parsed: dict[str, str] | None = None

    def _all(self) -> dict[str, str]:
        if self._parsed is None:
            self._parsed = decode_properties(self.raw)
            # the store's own property, about the stored record
            self._parsed.pop(PropertyName.RECORD_CRC, None)
        return self._parsed

    def put(self, name: str, value: str) -> None:
        """Set a property of a message that nobody else has yet."""
        self._all()[name] = value

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


# --- stored records -------------------------------------------------------------------------------


class DamagedMessage(ProtocolError):
    """A stored message whose body does not match its checksum; everything else of its record is
    valid.

    *read_crc* is the checksum of the body that was read, *intact* are the messages before it in the
    same answer; *alone*: the answer has nothing else.
    """

    def __init__(
        self,
        record: "StoredMessage",
        read_crc: int,
        intact: Sequence[MessageExt] = (),
        *,
        alone: bool = False,
    ) -> None:
        super().__init__(
            f"the body of {record.topic}/{record.queue_id}/{record.queue_offset}, at commit-log "
            f"offset {record.commitlog_offset}, "
            "does not match its checksum"
        )
        self.queue_offset = record.queue_offset
        self.commitlog_offset = record.commitlog_offset
        self.read_crc = read_crc
        self.intact = tuple(intact)
        self.alone = alone
        # the offset after the broker's answer, and the broker; set by the caller
        self.next_offset = self.broker_id = -1


class NoRecord(ProtocolError):
    """Bytes of a pull answer that are not a record; *intact* are the messages before them in the
    same answer.
    """

    def __init__(self, message: str, intact: Sequence[MessageExt] = ()) -> None:
        super().__init__(message)
        self.intact = tuple(intact)


@dataclass(slots=True)
class StoredMessage:
    """One record of the commit log, every field as stored (the body perhaps compressed, hosts as 8
    or 20 bytes).
    """

    topic: str
    body: bytes = b""
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    commitlog_offset: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = bytes(8)
    store_timestamp_ms: int = 0
    store_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    # decoding fills it in; encoding computes it
    body_crc: int = 0
    size: int = 0  # likewise


def encode_stored(message: StoredMessage) -> bytes:
    """Return the record of a message.

    Host flags follow the hosts' lengths; topics over 127 bytes need the version 2 layout. Raises
    ProtocolError.
    """
    topic = message.topic.encode()
    sys_flag = message.sys_flag & ~_V6_HOSTS
    sys_flag |= SysFlag.BORN_HOST_V6 if len(message.born_host) == 20 else 0
    sys_flag |= SysFlag.STORE_HOST_V6 if len(message.store_host) == 20 else 0
    long_topic = len(topic) > 127
    body, properties = message.body, message.properties
    fixed = HEAD.size + len(message.born_host) + 8 + len(message.store_host) + TAIL.size
    size = fixed + 4 + len(body) + (2 if long_topic else 1) + len(topic) + 2 + len(properties)
    try:
        return b"".join(
            (
                HEAD.pack(
                    size,
                    MAGIC_V2 if long_topic else MAGIC_V1,
                    body_crc(body),
                    message.queue_id,
                    message.flag,
                    message.queue_offset,
                    message.commitlog_offset,
                    sys_flag,
                    message.born_timestamp_ms,
                ),
                message.born_host,
                message.store_timestamp_ms.to_bytes(8, signed=True),
                message.store_host,
                TAIL.pack(message.reconsume_times, message.prepared_transaction_offset),
                len(body).to_bytes(4),
                body,
                len(topic).to_bytes(2 if long_topic else 1),
                topic,
                len(properties).to_bytes(2),
                properties,
            )
        )
    except (struct.error, OverflowError) as exc:
        raise ProtocolError(f"message does not fit the stored form: {exc}") from None


def stored_properties(buffer: memoryview, at: int) -> tuple[int, int, bytes]:
    """Return (record size, queue offset, properties) of the record at byte *at*, which must be
    complete.
    """
    size, magic, _, _, _, queue_offset, _, sys_flag, *_, body_size = RECORD_V4.unpack_from(
        buffer, at
    )
    body_at = at + RECORD_V4.size
    if sys_flag & _V6_HOSTS:
        body_at += 12 * (sys_flag & _V6_HOSTS).bit_count()
        body_size = int.from_bytes(buffer[body_at - 4 : body_at])
    topic_at = body_at + body_size
    properties_at = topic_at + 3 + buffer[topic_at]
    if magic != MAGIC_V1:
        properties_at = topic_at + 4 + int.from_bytes(buffer[topic_at : topic_at + 2])
    return size, queue_offset, bytes(buffer[properties_at : at + size])


def decode_stored(buffer: bytes | memoryview, at: int = 0) -> StoredMessage:
    """Read the record at byte *at*.

    Raises ProtocolError if it is not complete. The caller checks the CRC of the body.
    """
    end = len(buffer)
    if end - at < 91:
        raise ProtocolError(f"{end - at} bytes are not a stored message")
    size, magic, crc, queue_id, flag, queue_offset, commitlog_offset, sys_flag, born = (
        HEAD.unpack_from(buffer, at)
    )
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        raise ProtocolError(f"magic {magic:08x} is not a stored message")
    if not 91 <= size <= end - at:
        raise ProtocolError(f"record length {size} does not fit the {end - at} bytes there are")
    stop = at + size
    cursor = at + HEAD.size
    born_size = 20 if sys_flag & SysFlag.BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & SysFlag.STORE_HOST_V6 else 8
    born_host = bytes(buffer[cursor : cursor + born_size])
    cursor += born_size
    store_timestamp = int.from_bytes(buffer[cursor : cursor + 8], signed=True)
    store_host = bytes(buffer[cursor + 8 : cursor + 8 + store_size])
    cursor += 8 + store_size
    if cursor + TAIL.size + 4 > stop:
        raise ProtocolError("stored message ends inside its fixed part")
    reconsume_times, prepared = TAIL.unpack_from(buffer, cursor)
    cursor += TAIL.size
    body_end = cursor + 4 + int.from_bytes(buffer[cursor : cursor + 4])
    topic_at = body_end + (1 if magic == MAGIC_V1 else 2)
    topic_end = topic_at + int.from_bytes(buffer[body_end:topic_at])
    if (
        topic_end + 2 > stop
        or topic_end + 2 + int.from_bytes(buffer[topic_end : topic_end + 2]) != stop
    ):
        raise ProtocolError("the parts of a stored message do not add up to its length")
    try:
        topic = str(buffer[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"topic is not UTF-8: {exc.reason}") from None
    return StoredMessage(
        topic,
        bytes(buffer[cursor + 4 : body_end]),
        bytes(buffer[topic_end + 2 : stop]),
        queue_id,
        flag,
        queue_offset,
        commitlog_offset,
        sys_flag,
        born,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared,
        crc,
        size,
    )


def decode_messages(
    buffer: bytes,
    broker_name: str = "",
    *,
    check_crc: bool = True,
    max_inflated_bytes: float = MAX_INFLATED_BYTES,
) -> list[MessageExt]:
    """Read an answer's body: consecutive records, whose bodies are decompressed.

    Raises NoRecord for bytes that are not a record, and DamagedMessage. After *max_inflated_bytes*
    of decompressed bodies the others stay compressed: see MessageExt.is_compressed.
    """
    messages, _ = _decode(buffer, broker_name, check_crc, max_inflated_bytes, in_parts=False)
    return messages


def decode_message(buffer: bytes, broker_name: str = "") -> MessageExt:
    """Decode exactly one message, with its body decompressed.

    Raises NoRecord for anything else, without reading further records.
    """
    size = int.from_bytes(buffer[:4])
    if not size or size != len(buffer):
        raise NoRecord(
            f"{len(buffer)} bytes are not the one message that was asked for: it says that it has "
            f"{size}"
        )
    return decode_messages(buffer, broker_name)[0]


def decode_some(
    buffer: bytes | memoryview,
    broker_name: str = "",
    *,
    check_crc: bool = True,
    max_inflated_bytes: float = MAX_INFLATED_BYTES,
) -> tuple[list[MessageExt], int]:
    """Read as decode_messages() does, up to the first compressed body after *max_inflated_bytes* of
    others. Return the messages, and the position of that record.

    A MiB of compressed bodies may become a thousand. A record that holds a batch becomes its
    messages, see ``unwrap``; one after MAX_INNER_MESSAGES ends the reading, too. A batch that
    cannot be unwrapped is NoRecord.
    """
    return _decode(buffer, broker_name, check_crc, max_inflated_bytes, in_parts=True)


def _decode(
    buffer: bytes | memoryview,
    broker_name: str,
    check_crc: bool,
    max_inflated_bytes: float,
    *,
    in_parts: bool,
) -> tuple[list[MessageExt], int]:
    messages: list[MessageExt] = []
    at, end, inflated = 0, len(buffer), 0
    try:
        while at < end:
            if (
                native is not None
                and (at := native.messages(buffer, at, check_crc, messages, broker_name, _FORMS))
                == end
            ):
                break
            # it may change once its view is released
            buffer = bytes(buffer)
            message = _decode_common(buffer, at, end, broker_name, check_crc)
            if message is not None:
                messages.append(message)
                at += message.stored_bytes
                continue
            if in_parts and (inflated > max_inflated_bytes or len(messages) > MAX_INNER_MESSAGES):
                break
            record = decode_stored(buffer, at)
            if check_crc and body_crc(record.body) != record.body_crc:
                raise DamagedMessage(
                    record, body_crc(record.body), messages, alone=record.size == len(buffer)
                )
            queue = _queue(record.topic.encode(), broker_name, record.queue_id)
            records = (
                unwrap(record) if in_parts and record.sys_flag & WRAPPED == WRAPPED else (record,)
            )
            for one in records:
                messages.append(to_message(one, queue, inflate=inflated <= max_inflated_bytes))
                inflated += len(messages[-1].body)
            at += record.size
    except DamagedMessage:
        raise
    except (ProtocolError, CompressionUnavailable) as exc:
        raise NoRecord(str(exc), messages) from None
    return messages, at


def _decode_common(
    buffer: bytes, at: int, end: int, broker_name: str, check_crc: bool
) -> MessageExt | None:
    """Decode a complete, plain record with IPv4 hosts, as nearly every record is.

    Return None for any other record; ``_decode`` reads those.
    """
    if end - at < 91:
        return None
    (
        size,
        magic,
        crc,
        queue_id,
        flag,
        queue_offset,
        commitlog_offset,
        sys_flag,
        born,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared,
        body_length,
    ) = RECORD_V4.unpack_from(buffer, at)
    body_at = at + 88
    body_end = body_at + body_length
    stop = at + size
    if (
        magic != MAGIC_V1
        or sys_flag & _UNCOMMON
        or stop > end
        or not body_at <= body_end < stop - 2
    ):
        return None
    topic_end = body_end + 1 + buffer[body_end]
    if (
        topic_end + 2 > stop
        or topic_end + 2 + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != stop
    ):
        return None
    body = buffer[body_at:body_end]
    if check_crc and crc32(body) & 0x7FFFFFFF != crc:
        return None
    queue = _queue(buffer[body_end + 1 : topic_end], broker_name, queue_id)
    return _make_message(
        queue.topic,
        body,
        Properties(buffer[topic_end + 2 : stop]),
        queue,
        queue_offset,
        commitlog_offset,
        reconsume_times,
        born,
        store_timestamp,
        decode_host(born_host),
        decode_host(store_host),
        flag,
        sys_flag,
        size,
        prepared,
    )


_UNCOMMON: Final = _V6_HOSTS | SysFlag.COMPRESSED | SysFlag.NEED_UNWRAP


@functools.lru_cache(4096)
def _queue(topic: bytes, broker_name: str, queue_id: int) -> MessageQueue:
    try:
        return MessageQueue(topic.decode(), broker_name, queue_id)
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"topic is not UTF-8: {exc.reason}") from None


_Draft: Final[Any] = dataclasses.make_dataclass(
    "_Draft", [field.name for field in dataclasses.fields(MessageExt)], slots=True
)
"""A MessageExt that is not frozen yet, without the compiled part.

It has the same slots, so it can become one: a sixth of the cost of setting frozen fields.
"""


def _from_draft(*values: Any) -> MessageExt:
    message = _Draft(*values)
    message.__class__ = MessageExt
    return cast(MessageExt, message)


_make_message: Final = _from_draft if native is None else MessageExt

_FORMS: Final = (MessageExt, Properties, _queue, decode_host)
"""The class and functions from which the compiled part makes messages."""


def measure(messages: Sequence[MessageExt]) -> tuple[int, bool, bool]:
    """Return the size of the bodies in bytes, whether the queue offsets ascend, and whether a
    message is compressed.
    """
    if native is not None and (found := native.measure(messages)) is not None:
        return found
    offsets = [message.queue_offset for message in messages]
    return (
        sum([len(message.body) for message in messages]),
        all(map(operator.lt, offsets, offsets[1:])),
        any(message.sys_flag & SysFlag.COMPRESSED for message in messages),
    )


def to_message(record: StoredMessage, queue: MessageQueue, *, inflate: bool = True) -> MessageExt:
    """Return the record in the form for applications.

    A body that cannot be decompressed stays as it is, marked by its flag.
    """
    sys_flag, body = record.sys_flag, record.body
    if sys_flag & SysFlag.COMPRESSED and inflate:
        try:
            body = decompress(body, sys_flag)
            sys_flag &= ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
        except (ProtocolError, CompressionUnavailable):
            # the reader decides what to do with it: MessageExt.is_compressed
            pass
    return _make_message(
        record.topic,
        body,
        Properties(record.properties),
        queue,
        record.queue_offset,
        record.commitlog_offset,
        record.reconsume_times,
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        decode_host(record.born_host),
        decode_host(record.store_host),
        record.flag,
        sys_flag,
        record.size,
        record.prepared_transaction_offset,
    )


# --- batches --------------------------------------------------------------------------------------

# item size, magic 0, CRC 0, flag, body length
_BATCH_ITEM: Final = struct.Struct(">iiiii")
# the same without magic and CRC, which nothing checks
_BATCH_ITEM_READ: Final = struct.Struct(">i8xii")
# a third of what the call of a named tuple costs
_batch_item: Final = tuple.__new__


class BatchItem(NamedTuple):
    """One message inside the body of SEND_BATCH_MESSAGE."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch. *items* are BatchItems, or tuples like them.

    Source: MessageDecoder.encodeMessage, 5.3.
    """
    if native is not None:
        items = list(items)
        if (whole := native.batch_body(items)) is not None:
            return whole
    parts: list[bytes] = []
    pack = _BATCH_ITEM.pack
    for flag, body, properties in items:
        length, properties_length = len(body), len(properties)
        size = 22 + length + properties_length
        parts += (pack(size, 0, 0, flag, length), body, properties_length.to_bytes(2), properties)
    return b"".join(parts)


def decode_batch(body: bytes, max_messages: int = MAX_BATCH_MESSAGES) -> list[BatchItem]:
    """Read the body of a batch. Raises ProtocolError for wrong lengths, or for more than
    *max_messages*.
    """
    if (
        native is not None
        and (found := native.batch_items(body, max_messages, BatchItem)) is not None
    ):
        return found
    items: list[BatchItem] = []
    at, end, unpack = 0, len(body), _BATCH_ITEM_READ.unpack_from
    while at < end:
        if len(items) == max_messages:
            raise ProtocolError(f"batch holds more than {max_messages} messages")
        if end - at < 22:
            raise ProtocolError("batch ends in the middle of a message")
        size, flag, body_length = unpack(body, at)
        stop, properties_at = at + size, at + 22 + body_length
        if body_length < 0 or not properties_at <= stop <= end:
            raise ProtocolError(
                f"batch item of {size} bytes with a body of {body_length} does not fit"
            )
        if properties_at + (body[properties_at - 2] << 8 | body[properties_at - 1]) != stop:
            raise ProtocolError("the parts of a batch item do not add up to its length")
        items.append(
            _batch_item(
                BatchItem, (flag, body[at + 20 : properties_at - 2], body[properties_at:stop])
            )
        )
        at = stop
    return items


def unwrap(record: StoredMessage) -> list[StoredMessage]:
    """Return the messages of a record that holds a whole batch, as 5.x brokers store it in a topic
    with queue.type=BatchCQ.

    Each has its own offset, flag, properties and body, and the flag INNER_BATCH; all other fields
    are those of the record. Raises ProtocolError if they cannot be read, and
    CompressionUnavailable.

    Source: MessageDecoder.decodeMessage, 5.5.
    """
    where = f"the batch at {record.topic}/{record.queue_id}/{record.queue_offset}"
    body = record.body
    sys_flag = record.sys_flag & ~(
        SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK
    )
    try:
        items = decode_batch(
            decompress(body, record.sys_flag) if record.sys_flag & SysFlag.COMPRESSED else body,
            MAX_INNER_MESSAGES,
        )
    except ProtocolError as exc:
        raise ProtocolError(f"{where} cannot be read: {exc}") from None
    said = raw_property(record.properties, b"INNER_NUM")
    if not items:
        raise ProtocolError(f"{where} holds no message")
    if said not in (None, b"%d" % len(items)):
        raise ProtocolError(
            f"{where} holds {len(items)} messages, and its INNER_NUM is {said!r:.24}"
        )
    return [
        dataclasses.replace(
            record,
            body=body,
            properties=properties,
            queue_offset=record.queue_offset + i,
            flag=flag,
            sys_flag=sys_flag,
            size=22 + len(body) + len(properties),
        )
        for i, (flag, body, properties) in enumerate(items)
    ]
