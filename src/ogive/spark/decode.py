"""Pull answers to Arrow columns, a whole answer at a time.

If all records are plain and their properties are regular, the compiled part reads the records once
and fills the columns' buffers. Otherwise, or without the compiled part, Python visits each record
once, to find the beginning of the next one. Arrow kernels over these positions then find the parts
and every column: parts are gathered by a bitmap filter, numbers are byte-swapped in one pass,
properties are split at the positions of their separators.

Behaviour
- `topic`, `brokerName` and `queueId` are those of the queue that was read, so a retry or
  dead-letter topic keeps its own name.
- Only the columns of the schema are built. Properties are not parsed at all unless `keys`, `tags`,
  `properties` or a tag filter needs them.
- Records that are not plain (compressed body, IPv6 hosts, long topic) are first rewritten as plain
  ones. If a column needs what this loses (hosts, flags), it is read from the records one by one.
- A record that holds a whole batch becomes its messages, those within the requested offsets: each
  answer with a part of it has the whole record. One that cannot be unwrapped is an error.
- A time outside of the years 1 to 9999, for example from a sender that counts in nanoseconds, is
  null: neither Python nor Spark has it.
- If a body cannot be decompressed because its sender wrote it like that, it is null, and the log
  names it: one message must not stop the readers of its topic. If the checksum says that it is
  damaged, reading fails.

Differs from Java
- The body's checksum is not verified again: the broker verifies it before it serves a record after
  a crash, and TCP protects it on the way.
- A repeated property name stays repeated in `properties` (no client writes one).
"""

import ctypes
import logging
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ogive.errors import ProtocolError
from ogive.model import MessageQueue, PropertyName
from ogive.native import Buffers, native
from ogive.spark.compat import arrow_schema
from ogive.spark.schema import MESSAGE_COLUMNS, METADATA_COLUMNS
from ogive.sql92 import Expression
from ogive.wire.codes import SysFlag
from ogive.wire.compression import decompress
from ogive.wire.message import (
    MAGIC_V1,
    RECORD_V4,
    WRAPPED,
    StoredMessage,
    body_crc,
    decode_host,
    decode_properties,
    decode_stored,
    offset_message_id,
    unwrap,
)

log = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">I")
_FIXED_BYTES: Final = RECORD_V4.size
_FIXED_WORDS: Final = _FIXED_BYTES // 4
# size without body, topic and properties
_SMALLEST: Final = _FIXED_BYTES + 3
# limit for rewritten bodies and properties: a few MiB of compressed ones may become thousands
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
# fixed part, body, topic and lengths, properties
_PARTS: Final = 4

# malloc.h
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
# columns of one batch, and the answers that wait to be decoded
_KEPT_BYTES: Final = 64 * 1024 * 1024

_NOT_PLAIN: Final = SysFlag.COMPRESSED | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | WRAPPED
EVERYWHERE: Final = range(1 << 63)

# position of each field in the fixed part, in 32-bit words; a 64-bit field or a host takes two
_BODY_CRC_AT: Final = 2
_FLAG_AT: Final = 4
_QUEUE_OFFSET_AT: Final = 5
_COMMITLOG_OFFSET_AT: Final = 7
_SYS_FLAG_AT: Final = 9
_BORN_AT: Final = 10
_BORN_HOST_AT: Final = 12
_STORED_AT: Final = 14
_STORE_HOST_AT: Final = 16
_RECONSUME_AT: Final = 18

# Typed once: a plain Python number widens results to 64 bits, and Arrow looks for a library of
# dates whenever it has to guess a type.
_ZERO: Final = pa.scalar(0, pa.int32())
_ONE: Final = pa.scalar(1, pa.int32())
_FIXED_SIZE: Final = pa.scalar(_FIXED_BYTES, pa.int32())
_ONE_64: Final = pa.scalar(1, pa.int64())
_TWO: Final = pa.scalar(2, pa.int64())
# one byte of topic length, two of property length
_TAIL: Final = pa.scalar(3, pa.int64())
_BYTE: Final = pa.scalar(256, pa.int64())
_THOUSAND: Final = pa.scalar(1000, pa.int64())
# 0001-01-02 to 9999-12-30. Python's own limits are a day further, so every time zone shows these.
_FIRST_MS: Final = pa.scalar(-62135510400000, pa.int64())
_LAST_MS: Final = pa.scalar(253402214399999, pa.int64())
_NO_TIME: Final = pa.scalar(None, pa.int64())
_EMPTY: Final = pa.scalar(b"", pa.binary())
# the first byte that is no separator
_AFTER_VALUES: Final = pa.scalar(3, pa.uint8())
_PROPERTY_NAMES: Final = {
    name: pa.scalar(name, pa.string())
    for name in (PropertyName.KEYS, PropertyName.TAGS, PropertyName.UNIQ_KEY)
}

_PROPERTY_COLUMNS: Final = frozenset({"keys", "tags", "properties", "msgId"})
_OF_QUEUE: Final = frozenset({"topic", "brokerName", "queueId"})
# columns that the compiled part returns as numbers
_HOSTS: Final = frozenset({"bornHost", "storeHost"})
_TYPES: Final = {
    field.name: field.type
    for columns in (MESSAGE_COLUMNS, METADATA_COLUMNS)
    for field in arrow_schema(columns)
}


@cache
def _keep_freed_memory() -> None:
    """Let this process use the memory of one batch again for the next.

    glibc returns blocks as large as the column of bodies to the system, depending on the sizes that
    were freed before: half of the time of a batch of 1 KiB bodies was for pages that the system
    cleared again. Other C libraries have no such setting.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)


class RecordDecoder:
    """Decoder of pull answers: their records become batches of *schema*.

    *schema* has columns of `ogive.spark.schema`, in any order and number. With *tags*, only
    messages with one of these tags are kept: the broker's filter compares hash codes, so it may
    return a few others. With *sql*, only matching messages are kept, row by row.
    """

    def __init__(
        self, schema: pa.Schema, tags: frozenset[str] | None = None, sql: Expression | None = None
    ) -> None:
        _keep_freed_memory()
        self._schema = schema
        self._tags = None if tags is None else pa.array(sorted(tags), pa.string())
        self._sql = sql
        of_filters = [
            name for name, given in (("tags", tags), ("properties", sql)) if given is not None
        ]
        self._wanted = tuple(
            name for name in dict.fromkeys([*schema.names, *of_filters]) if name not in _OF_QUEUE
        )
        self._wants_properties = not _PROPERTY_COLUMNS.isdisjoint(self._wanted)

    def batches(
        self, records: bytes, queue: MessageQueue, covered: range = EVERYWHERE
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages in *records*: stored messages of *queue*, one after the other.

        It is one batch, unless compressed bodies become too long for it. A record that holds a
        whole batch yields the messages with an offset in *covered*. Raises ProtocolError for
        damaged records, CompressionUnavailable for bodies in a compression whose library is not
        installed.
        """
        found = None if native is None else native.columns(records, self._wanted)
        if found is not None:
            yield self._compiled_batch(*found, queue)
            return
        for plain, positions, odd in _in_plain_form(records, covered):
            yield self._python_batch(plain, positions, odd, queue)

    def _compiled_batch(
        self, count: int, columns: Sequence[Buffers], queue: MessageQueue
    ) -> pa.RecordBatch:
        make, properties = _of_queue(queue, count), None
        for name, buffers in zip(self._wanted, columns, strict=True):
            if name == "properties":
                properties = _Properties.compiled(buffers)
            elif name in _HOSTS:
                make[name] = partial(_hosts, _array(pa.int64(), count, buffers))
            else:
                make[name] = partial(_array, _TYPES[name], count, buffers)
        return self._batch(make, properties)

    def _python_batch(
        self,
        records: bytes,
        positions: "array[int]",
        odd: "Sequence[_Odd] | None",
        queue: MessageQueue,
    ) -> pa.RecordBatch:
        parts = _cut(pa.binary(), pa.py_buffer(records), positions)
        words = _words(_every(parts, 0, _PARTS))
        properties = _Properties.of(_every(parts, 3, _PARTS)) if self._wants_properties else None
        make: _Columns = {
            **_of_queue(queue, len(positions) // _PARTS),
            "queueOffset": lambda: _int64(words, _QUEUE_OFFSET_AT),
            "body": lambda: _every(parts, 1, _PARTS),
            "bornTimestamp": lambda: _timestamps(words, _BORN_AT),
            "storeTimestamp": lambda: _timestamps(words, _STORED_AT),
            "flag": lambda: _int32(words, _FLAG_AT),
            "reconsumeTimes": lambda: _int32(words, _RECONSUME_AT),
            "commitLogOffset": lambda: _int64(words, _COMMITLOG_OFFSET_AT),
            **_lost_in_plain_form(words, odd),
        }
        if properties is not None:
            make["msgId"] = lambda: _or_else(
                properties.values_of(PropertyName.UNIQ_KEY), make["offsetMsgId"]
            )
            make["keys"] = lambda: properties.values_of(PropertyName.KEYS)
            make["tags"] = lambda: properties.values_of(PropertyName.TAGS)
        return self._batch(make, properties)

    def _batch(self, make: "_Columns", properties: "_Properties | None") -> pa.RecordBatch:
        if properties is not None:
            make["properties"] = lambda: properties.map_array(self._schema.field("properties").type)
        batch = pa.RecordBatch.from_arrays(
            [make[name]() for name in self._schema.names], schema=self._schema
        )
        if self._sql is not None:
            # ensured by self._wants_properties and self._wanted
            assert properties is not None
            return batch.filter(pa.array(map(self._sql.matches, properties.dicts()), pa.bool_()))
        return (
            batch
            if self._tags is None
            else batch.filter(pc.is_in(make["tags"](), value_set=self._tags))
        )


_Columns = dict[str, Callable[[], Any]]


def _of_queue(queue: MessageQueue, count: int) -> _Columns:
    return {
        "topic": lambda: pa.repeat(pa.scalar(queue.topic, pa.string()), count),
        "brokerName": lambda: pa.repeat(pa.scalar(queue.broker_name, pa.string()), count),
        "queueId": lambda: pa.repeat(pa.scalar(queue.queue_id, pa.int32()), count),
    }


# --- records --------------------------------------------------------------------------------------


def queue_offsets(records: bytes, covered: range = EVERYWHERE) -> "array[int]":
    """Return the queue offset of each message in *records*, in the form for RecordDecoder.batches.

    Raises ProtocolError.
    """
    positions = _positions(records)
    if positions is None:
        return array("q", [record.queue_offset for record in _stored(records, covered)])
    return array(
        "q",
        (
            int.from_bytes(records[at + 4 * _QUEUE_OFFSET_AT : at + 4 * _QUEUE_OFFSET_AT + 8])
            for at in positions[:-1:_PARTS]
        ),
    )


@dataclass(frozen=True, slots=True)
class _Odd:
    """The original of a record that was rewritten; *body*: its readable body, None if it cannot be
    decompressed.
    """

    record: StoredMessage
    body: bytes | None


def _in_plain_form(
    records: bytes, covered: range
) -> "Iterator[tuple[bytes, array[int], list[_Odd] | None]]":
    """Return the records, the positions in them and, if they had to be rewritten, the original
    records.
    """
    positions = _positions(records)
    if positions is not None:
        yield records, positions, None
        return
    left = _stored(records, covered)
    while left:
        plain, odd = _rewrite(left)
        positions = _positions(plain)
        # _rewrite() writes no other form
        assert positions is not None
        yield plain, positions, odd
        left = left[len(odd) :]


def _positions(records: bytes) -> "array[int] | None":
    """Return the beginnings of each record's fixed part, body, topic and properties, and finally
    the end.

    Return None if a record is not plain. Python takes one step for each record, from its start to
    the next one; kernels over those starts find everything else.
    """
    starts = _starts(records)
    count = len(starts) - 1
    if count == 0:
        return array("i", (0,))
    # fixed part, rest, fixed part, rest, ..., end
    fixed_cuts = array("i", bytes(8 * count + 4))
    fixed_cuts[0::2] = starts
    fixed_cuts[1::2] = array("i", _ints(pc.add(_view(pa.int32(), starts[:-1]), _FIXED_SIZE)))
    data = pa.py_buffer(records)
    words = _words(_every(_cut(pa.binary(), data, fixed_cuts), 0, 2))
    if any(magic != MAGIC_V1 for magic in set(words[1::_FIXED_WORDS])) or any(
        flag & _NOT_PLAIN for flag in set(words[_SYS_FLAG_AT::_FIXED_WORDS])
    ):
        return None
    bodies = _view(pa.uint32(), words[_FIXED_WORDS - 1 :: _FIXED_WORDS]).cast(pa.int64())
    body_starts = _view(pa.int32(), fixed_cuts[1::2]).cast(pa.int64())
    ends = _view(pa.int32(), starts[1:]).cast(pa.int64())
    body_ends = pc.add(body_starts, bodies)
    if not pc.all(pc.less_equal(pc.add(body_ends, _TAIL), ends)).as_py():
        raise _not_adding_up()
    octets = pa.Array.from_buffers(pa.uint8(), len(records), [None, data])
    properties_at = pc.add(pc.add(body_ends, _TAIL), octets.take(body_ends).cast(pa.int64()))
    if not pc.all(pc.less_equal(properties_at, ends)).as_py():
        raise _not_adding_up()
    high, low = (
        octets.take(pc.subtract(properties_at, back)).cast(pa.int64()) for back in (_TWO, _ONE_64)
    )
    if not pc.add(properties_at, pc.add(pc.multiply(high, _BYTE), low)).equals(ends):
        raise _not_adding_up()
    positions = array("i", bytes(16 * count + 4))
    positions[0::_PARTS] = starts
    positions[1::_PARTS] = fixed_cuts[1::2]
    positions[2::_PARTS] = _ints(body_ends.cast(pa.int32()))
    positions[3::_PARTS] = _ints(properties_at.cast(pa.int32()))
    return positions


def _starts(records: bytes) -> "array[int]":
    """Return the beginning of each record, and finally the end."""
    starts: list[int] = []
    begin, unpack = starts.append, _SIZE.unpack_from
    at, end = 0, len(records)
    try:
        while at < end:
            begin(at)
            (size,) = unpack(records, at)
            if size < _SMALLEST:
                raise ProtocolError(f"a stored message of {size} bytes is too short to be one")
            at += size
    except struct.error:
        at = end + 1
    if at != end:
        raise ProtocolError("a pull answer ends in the middle of a message")
    begin(end)
    return array("i", starts)


def _not_adding_up() -> ProtocolError:
    return ProtocolError("the parts of a stored message do not add up to its length")


def _stored(records: bytes, covered: range) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    at, following = 0, covered.start
    while at < len(records):
        record = decode_stored(records, at)
        at += record.size
        if record.sys_flag & WRAPPED == WRAPPED:
            found += [one for one in unwrap(record) if following <= one.queue_offset < covered.stop]
        else:
            found.append(record)
        following = found[-1].queue_offset + 1 if found else covered.start
    return found


def _rewrite(records: Iterable[StoredMessage]) -> tuple[bytes, list[_Odd]]:
    """Return the first of these messages as plain, decompressed records without topic, hosts and
    flags, and their numbers.

    They have up to MAX_BATCH_BYTES, and one more.
    """
    parts: list[bytes] = []
    odd: list[_Odd] = []
    size = 0
    for record in records:
        if size > MAX_BATCH_BYTES:
            break
        readable = _inflated(record) if record.sys_flag & SysFlag.COMPRESSED else record.body
        body = readable or b""
        fixed = RECORD_V4.pack(
            _FIXED_BYTES + len(body) + 3 + len(record.properties),
            MAGIC_V1,
            0,
            record.queue_id,
            record.flag,
            record.queue_offset,
            record.commitlog_offset,
            0,
            record.born_timestamp_ms,
            bytes(8),
            record.store_timestamp_ms,
            bytes(8),
            record.reconsume_times,
            record.prepared_transaction_offset,
            len(body),
        )
        parts += (fixed, body, b"\0", len(record.properties).to_bytes(2), record.properties)
        odd.append(_Odd(record, readable))
        size += len(body) + len(record.properties)
    return b"".join(parts), odd


def _inflated(record: StoredMessage) -> bytes | None:
    """Return a body, or None for one that its sender wrote in an unreadable form.

    Raises ProtocolError for a damaged one, and CompressionUnavailable.
    """
    try:
        return decompress(record.body, record.sys_flag)
    except ProtocolError as exc:
        if body_crc(record.body) != record.body_crc:
            raise
        log.error(
            "%s/%d/%d cannot be decoded, its body is null: %s",
            record.topic,
            record.queue_id,
            record.queue_offset,
            exc,
        )
        return None


# --- Arrow ----------------------------------------------------------------------------------------


def _view(arrow_type: Any, values: "array[int]") -> Any:
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])


def _cut(text_type: Any, data: Any, cuts: "array[int]") -> Any:
    """Return *data* as texts without gaps: text i is data[cuts[i] : cuts[i + 1]].

    It is a view: nothing is copied or checked.
    """
    return pa.Array.from_buffers(text_type, len(cuts) - 1, [None, pa.py_buffer(cuts), data])


def _array(arrow_type: Any, count: int, buffers: Buffers) -> Any:
    return pa.Array.from_buffers(
        arrow_type, count, [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    )


def _every(values: Any, first: int, step: int) -> Any:
    """Return values[first::step]. *step* divides 8.

    A filter by a repeated bitmap needs no Python code for each row.
    """
    bits = sum(1 << bit for bit in range(first, 8, step))
    bitmap = pa.py_buffer(bytes((bits,)) * (len(values) // 8 + 1))
    return values.filter(pa.Array.from_buffers(pa.bool_(), len(values), [None, bitmap]))


def _words(fixed_parts: Any) -> "array[int]":
    """Return the fixed parts as 32-bit numbers in this machine's byte order, _FIXED_WORDS for each
    record.
    """
    words = array("I")
    words.frombytes(_data(fixed_parts))
    # Arrow in Python runs on little-endian machines only
    words.byteswap()
    return words


def _int64(words: "array[int]", at: int) -> Any:
    """Return the 64-bit field whose two words are at *at* in every record."""
    halves = array("I", bytes(8 * (len(words) // _FIXED_WORDS)))
    halves[0::2] = words[at + 1 :: _FIXED_WORDS]
    halves[1::2] = words[at::_FIXED_WORDS]
    return pa.Array.from_buffers(pa.int64(), len(halves) // 2, [None, pa.py_buffer(halves)])


def _timestamps(words: "array[int]", at: int) -> Any:
    times = _int64(words, at)
    shown = pc.and_(pc.greater_equal(times, _FIRST_MS), pc.less_equal(times, _LAST_MS))
    if not pc.all(shown, min_count=0).as_py():
        times = pc.if_else(shown, times, _NO_TIME)
    return pc.multiply(times, _THOUSAND).cast(pa.timestamp("us", "UTC"))


def _int32(words: "array[int]", at: int) -> Any:
    return _view(pa.int32(), words[at::_FIXED_WORDS])


def _lost_in_plain_form(words: "array[int]", odd: Sequence[_Odd] | None) -> _Columns:
    """Return the columns that the rewritten records of *odd* have lost."""
    if odd is not None:
        records = [one.record for one in odd]
        made: _Columns = {
            "sysFlag": lambda: pa.array([record.sys_flag for record in records], pa.int32()),
            "bodyCRC": lambda: _view(
                pa.int32(), array("I", (record.body_crc & 0xFFFFFFFF for record in records))
            ),
            "bornHost": lambda: pa.array(
                [decode_host(record.born_host) for record in records], pa.string()
            ),
            "storeHost": lambda: pa.array(
                [decode_host(record.store_host) for record in records], pa.string()
            ),
            "offsetMsgId": lambda: pa.array(
                [offset_message_id(one.store_host, one.commitlog_offset) for one in records],
                pa.string(),
            ),
        }
        if any(one.body is None for one in odd):
            made["body"] = lambda: pa.array([one.body for one in odd], pa.binary())
        return made
    return {
        "sysFlag": lambda: _int32(words, _SYS_FLAG_AT),
        "bodyCRC": lambda: _int32(words, _BODY_CRC_AT),
        "bornHost": lambda: _hosts(_int64(words, _BORN_HOST_AT)),
        "storeHost": lambda: _hosts(_int64(words, _STORE_HOST_AT)),
        "offsetMsgId": lambda: _offset_ids(words),
    }


def _hosts(numbers: Any) -> Any:
    """Return ``ip:port`` of each record. A topic has few different hosts, so each is written
    once.
    """
    seen = numbers.dictionary_encode()
    texts = pa.array(
        [
            decode_host((host & 0xFFFFFFFFFFFFFFFF).to_bytes(8))
            for host in seen.dictionary.to_pylist()
        ],
        pa.string(),
    )
    return texts.take(seen.indices)


def _offset_ids(words: "array[int]") -> Any:
    """Store host and commit log offset in upper-case hex."""
    count = len(words) // _FIXED_WORDS
    quads = array("I", bytes(16 * count))
    for place, at in enumerate(
        (_STORE_HOST_AT, _STORE_HOST_AT + 1, _COMMITLOG_OFFSET_AT, _COMMITLOG_OFFSET_AT + 1)
    ):
        quads[place::4] = words[at::_FIXED_WORDS]
    quads.byteswap()
    text = quads.tobytes().hex().upper().encode()
    return _cut(pa.string(), pa.py_buffer(text), array("i", range(0, 32 * count + 1, 32)))


def _or_else(values: Any, other: Callable[[], Any]) -> Any:
    return values if values.null_count == 0 else pc.coalesce(values, other())


def _numbers(count: int) -> Any:
    """Return 0, 1, 2, ... as int64."""
    return _numbers_to(1 << count.bit_length()).slice(0, count)


@lru_cache(32)
def _numbers_to(count: int) -> Any:
    return _view(pa.int64(), array("q", range(count)))


def _ints(values: Any) -> "array[int]":
    copied = array("i")
    copied.frombytes(values.buffers()[1].slice(0, 4 * len(values)))
    return copied


def _text_ends(texts: Any) -> Any:
    """Return the end of each text in _data(texts), after a leading 0."""
    return pa.Array.from_buffers(pa.int32(), len(texts) + 1, [None, texts.buffers()[1]])


def _data(texts: Any) -> Any:
    """Return the bytes of a binary array, joined, without a copy.

    Only for whole arrays: the buffer of a slice has more data than the slice.
    """
    return (
        texts.buffers()[2].slice(0, _text_ends(texts)[-1].as_py())
        if len(texts)
        else pa.py_buffer(b"")
    )


# --- properties -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Properties:
    """The properties of all rows as one array of names and one of values; those of row i are
    row_ends[i] : row_ends[i + 1].
    """

    names: Any
    values: Any
    row_ends: Any

    @classmethod
    def of(cls, raw: Any) -> "_Properties":
        return _cut_properties(_terminate(raw)) or _parse_properties(raw.to_pylist())

    @classmethod
    def compiled(cls, buffers: Buffers) -> "_Properties":
        row_ends, name_ends, names, value_ends, values = (
            pa.py_buffer(buffer) for buffer in buffers
        )
        count = name_ends.size // 4 - 1
        return cls(
            pa.Array.from_buffers(pa.string(), count, [None, name_ends, names]),
            pa.Array.from_buffers(pa.string(), count, [None, value_ends, values]),
            pa.Array.from_buffers(pa.int32(), row_ends.size // 4, [None, row_ends]),
        )

    def map_array(self, map_type: Any) -> Any:
        return pa.MapArray.from_arrays(self.row_ends, self.names, self.values, map_type)

    def dicts(self) -> Iterator[dict[str, str]]:
        """Return the properties row by row."""
        names = self.names.to_pylist()
        values = self.values.to_pylist()
        ends = self.row_ends.to_pylist()
        for start, end in pairwise(ends):
            yield dict(zip(names[start:end], values[start:end], strict=True))

    def values_of(self, name: str) -> Any:
        """Return one property of every row, null if missing."""
        found = pc.indices_nonzero(pc.equal(self.names, _PROPERTY_NAMES[name]))
        rows = pc.list_parent_indices(pa.ListArray.from_arrays(self.row_ends, self.names)).take(
            found
        )
        every_row = _numbers(len(self.row_ends) - 1)
        values = self.values.take(found)
        return (
            values
            if rows.equals(every_row)
            else values.take(pc.index_in(every_row, value_set=rows))
        )


def _terminate(raw: Any) -> Any:
    """Return *raw* with a separator 2 at the end of every row that has properties: 4.9 brokers omit
    the last one.
    """
    open_ended = pc.and_not(pc.not_equal(raw, _EMPTY), pc.ends_with(raw, b"\x02"))
    if not pc.any(open_ended, min_count=0).as_py():
        return raw
    return pc.if_else(open_ended, pc.binary_join_element_wise(raw, b"\x02", b""), raw)


def _cut_properties(raw: Any) -> _Properties | None:
    """Split the joined bytes of all rows at their separators, which alternate: name 1 value 2 name
    1 value 2.

    Return None if they do not, if a name or value is empty, or if the bytes are not UTF-8.
    """
    data = _data(raw)
    octets = pa.Array.from_buffers(pa.uint8(), data.size, [None, data])
    separators = pc.indices_nonzero(pc.less(octets, _AFTER_VALUES)).cast(pa.int32())
    count = len(separators) // 2
    if octets.take(separators).buffers()[1].to_pybytes()[: len(separators)] != b"\x01\x02" * count:
        return None
    at = _ints(separators)
    cuts = array("i", bytes(8 * len(at) + 4))
    cuts[1::2] = at
    cuts[2::2] = _ints(pc.add(separators, _ONE))
    # text, separator, text, separator, ...
    texts = _cut(pa.string(), data, cuts)
    names, values = _every(texts, 0, 4), _every(texts, 2, 4)
    if not _is_utf8(data) or _any_empty(names) or _any_empty(values):
        return None
    # the last separator of a row is right before its end; rows without properties end where the one
    # before did
    last = pc.index_in(pc.subtract(_text_ends(raw), _ONE), value_set=_view(pa.int32(), at[1::2]))
    return _Properties(names, values, pc.fill_null(pc.add(last, _ONE), _ZERO))


def _any_empty(texts: Any) -> bool:
    return bool(pc.min(pc.binary_length(texts)).as_py() == 0)


def _is_utf8(data: Any) -> bool:
    try:
        _cut(pa.string(), data, array("i", (0, data.size))).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _parse_properties(rows: list[bytes]) -> _Properties:
    """Read properties row by row, see decode_properties()."""
    names: list[str] = []
    values: list[str] = []
    row_ends = array("i", (0,))
    for row in rows:
        properties = decode_properties(row)
        names += properties.keys()
        values += properties.values()
        row_ends.append(len(names))
    return _Properties(
        pa.array(names, pa.string()), pa.array(values, pa.string()), _view(pa.int32(), row_ends)
    )
