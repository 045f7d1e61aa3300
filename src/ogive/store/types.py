"""Configuration, arguments and results of the store."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from ogive.errors import InvalidOption, OgiveError, ProtocolError
from ogive.store.index_file import Sizes
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.message import MAX_BATCH_MESSAGES, decode_batch
from ogive.wire.sends import NewMessage as NewMessage


class FileSizes(NamedTuple):
    """Sizes of the files of a store, in bytes; of the index of *keys* in slots and items."""

    segment: int
    queue_file: int
    batch_queue_file: int
    keys: Sizes


QueueKey = tuple[str, int]
"""topic, queue id"""


APACHE_CONF: Final = "apache-broker.conf"
"""File in a store's directory with the settings of its last broker, in the form of Apache's
broker.conf.
"""
MAX_RECORD_BYTES: Final = 4 * 1024 * 1024 + 64 * 1024
"""Body limit and 64 KiB for the rest, as in Apache's broker."""
_RECORD_OVERHEAD_BYTES: Final = 320
"""Upper bound of a record without body and properties.

That is 115 bytes of fixed fields with IPv6 hosts, a topic of at most 127 and a checksum of 20.
"""
MAX_PUT_BYTES: Final = MAX_RECORD_BYTES + MAX_BATCH_MESSAGES * _RECORD_OVERHEAD_BYTES
"""Limit of what one put() writes: each message of a batch becomes a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Configuration of a store.

    Sizes apply to a new directory; an existing one keeps its file sizes.
    """

    root: Path  # storePathRootDir
    flush: Literal["sync", "async"] = "sync"  # flushDiskType
    segment_bytes: int = 64 * 1024 * 1024
    """mappedFileSizeCommitLog, 1 GiB."""
    consume_queue_file_bytes: int = 6_000_000
    """mappedFileSizeConsumeQueue, 300,000 entries."""
    batch_queue_file_bytes: int = 13_800_000
    """mapperFileSizeBatchConsumeQueue, 300,000 entries."""
    index_slots: int = 250_000
    """maxHashSlotNum, 5,000,000; four keys to a slot: two messages, with a key of their own
    each.
    """
    record_crc: bool = True
    """enabledAppendPropCRC, false; 20 bytes a record."""
    delay_levels: DelayLevels = field(default_factory=DelayLevels.parse)  # messageDelayLevel
    max_group_bytes: int = 1024 * 1024
    """One write and one sync carry at most about this much."""
    max_waiting_bytes: int = 64 * 1024 * 1024
    """Above it, put() raises StoreBusy."""
    async_window_bytes: int = 4 * 1024 * 1024
    """Flush=async: a sync after this much ..."""
    async_window_s: float = 0.5
    """... or this long, whichever comes first (flushIntervalCommitLog, 500 ms)."""
    ahead_bytes: int = 4 * 1024 * 1024
    """Space allocated ahead of the log's end; flush=sync: zeros, so that a sync changes no file
    size.
    """
    hot_log_bytes: int = 32 * 1024 * 1024
    """Newest part of the log that is kept in memory for reads."""
    checksum_block_bytes: int = 64 * 1024
    """Bytes of the log for which one checksum is kept."""
    hot_entries: int = 512 * 1024
    """Newest consume-queue entries in memory, all queues together."""
    flush_bytes: int = 8 * 1024 * 1024
    """Log written between two writes of consume-queue files."""
    checkpoint_bytes: int = 64 * 1024 * 1024
    """Bytes of the log between two checkpoints; a start after a crash reads about as much."""
    max_open_files: int = 256

    @property
    def index_sizes(self) -> Sizes:
        return Sizes(self.index_slots, 4 * self.index_slots)  # maxIndexNum, 20,000,000

    @property
    def unsynced_limit(self) -> int:
        """flush=async: never more than this between the last sync and the end of the log."""
        return max(self.async_window_bytes, 2 * self.max_group_bytes + MAX_PUT_BYTES)

    def __post_init__(self) -> None:
        if self.segment_bytes < 4096 or self.segment_bytes % 512:
            raise InvalidOption(
                f"segment_bytes={self.segment_bytes}: must be a multiple of 512 and at least 4096"
            )
        if self.consume_queue_file_bytes < 20 or self.consume_queue_file_bytes % 20:
            raise InvalidOption(
                f"consume_queue_file_bytes={self.consume_queue_file_bytes}: must be a "
                "multiple of 20 (an entry)"
            )
        if self.batch_queue_file_bytes < 46 or self.batch_queue_file_bytes % 46:
            raise InvalidOption(
                f"batch_queue_file_bytes={self.batch_queue_file_bytes}: must be a "
                "multiple of 46 (an entry)"
            )
        if not 0 < self.index_slots <= 50_000_000:
            raise InvalidOption(f"index_slots={self.index_slots}: must be between 1 and 50000000")


SIZE_BEFORE: Final = 2**31
"""As a message's flag: the size of the record before it, of the same put()."""


class NewBatch(NamedTuple):
    """Messages of one queue that arrived together: data[start:] is the body of a batch, as it was
    sent, with *number* messages.

    *shared* has their common fields; its flag, body and properties are not used.
    """

    shared: NewMessage
    data: bytes
    start: int
    number: int

    def each(self) -> list[NewMessage]:
        """Return every message by itself. Raises ProtocolError if their number differs."""
        items = decode_batch(self.data[self.start :], self.number)
        if not 0 < len(items) == self.number:
            raise ProtocolError(f"a batch holds {len(items)} messages instead of {self.number}")
        return [
            self.shared._replace(flag=flag, body=body, properties=properties)
            for flag, body, properties in items
        ]


Messages = Sequence[NewMessage | NewBatch]
"""Messages of one put(), stored all or none."""


def bytes_of(messages: Messages) -> int:
    """Return the bytes of bodies and properties in memory while they wait."""
    return sum(
        [
            len(one.data) if isinstance(one, NewBatch) else len(one.body) + len(one.properties)
            for one in messages
        ]
    )


class PutResult(NamedTuple):
    """Place of a stored message, or of the first message of a batch.

    *queue_offset* is 0 for a prepared or rollback record, which is in no queue. *size* is that of
    all records.
    """

    queue_offset: int
    commitlog_offset: int
    size: int
    store_timestamp_ms: int
    places: bytes = b""
    """For a NewBatch: the commit-log offset of each record, in 8 bytes, big-endian."""


def joined(results: list[PutResult]) -> PutResult:
    """Return the place of a batch whose messages were stored one by one."""
    places = b"".join([result.commitlog_offset.to_bytes(8) for result in results])
    size = sum([result.size for result in results])
    return results[0]._replace(size=size, places=places)


PutDone = Callable[[list[PutResult] | OgiveError], None]
"""Called once on the owner thread: one result for each message or batch, in order, or the reason
why nothing was stored.
"""


class GetStatus(enum.Enum):
    """Outcome of a get. Source: GetMessageStatus.java."""

    FOUND = enum.auto()
    NO_MATCHED_MESSAGE = enum.auto()
    MESSAGE_WAS_REMOVING = enum.auto()
    OFFSET_FOUND_NULL = enum.auto()
    OFFSET_OVERFLOW_BADLY = enum.auto()
    OFFSET_OVERFLOW_ONE = enum.auto()
    OFFSET_TOO_SMALL = enum.auto()
    NO_MESSAGE_IN_QUEUE = enum.auto()


@dataclass(slots=True)
class GetResult:
    """*parts*, joined, are *count* consecutive records, as stored: views of the store's memory,
    valid as long as they are referenced.

    *more*: in topics of batches, the messages in them beyond *count*; *size* is in bytes.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    parts: list[bytes | memoryview] = field(default_factory=list)
    count: int = 0
    size: int = 0
    more: int = 0


class Entry(NamedTuple):
    """One consume-queue entry."""

    commitlog_offset: int
    size: int
    tags_code: int


@dataclass(slots=True)
class StoreStats:
    """Counters since the store was opened, and current sizes."""

    puts: int = 0
    put_bytes: int = 0
    groups: int = 0
    waiting_bytes: int = 0
    damaged: int = 0
    commitlog_start: int = 0
    commitlog_end: int = 0
    queues: int = 0
