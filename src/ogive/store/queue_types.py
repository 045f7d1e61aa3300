"""Kinds of consume queues: which topics have which, where their files are, and the queues of topics
of batches.

A topic of batches (attribute queue.type=BatchCQ, fixed when it is created) has its queues in
batchconsumequeue/, any other in consumequeue/. Apache's broker does not start if a topic's queues
are in the wrong place. So config/topics.json decides, as there; queues in the other place are
removed, and rebuilt from the log in the right place. If that file cannot be read, its backup and
the contents of batchconsumequeue/ count. Source: ConsumeQueueStore.java, QueueTypeUtils.java, 5.5.

In a topic of batches, a batch is one record of the log, and one entry with its first offset and its
count. So an entry's index is not its offset: the entry of an offset is searched for, by the offsets
in the entries. Offsets without a record have no entry. Source: BatchConsumeQueue.java, 5.5.
"""

import itertools
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from ogive.model import BATCHES, QUEUE_TYPE
from ogive.native import Wanted
from ogive.store.consumequeue import FILLER_SIZE, ConsumeQueue, ReadEntry, names_a_directory
from ogive.store.fs import Fs
from ogive.store.segments import found_sizes
from ogive.store.tables import parsed, read_file
from ogive.store.types import QueueKey, StoreConfig
from ogive.wire.codes import SysFlag
from ogive.wire.message import MAX_INNER_MESSAGES, raw_property

_QUEUE_DIGITS: Final = 10
_QUEUES_LOOKED_AT: Final = 16


@dataclass(frozen=True, slots=True)
class QueueKind:
    """Kind of consume queues: class, directory, and the number of entries in a file."""

    queue: type[ConsumeQueue]
    root: Path
    file_entries: int

    @property
    def file_bytes(self) -> int:
        return self.file_entries * self.queue.entry_bytes

    def directory(self, key: QueueKey) -> Path:
        return self.root / key[0] / str(key[1])

    def new(self, key: QueueKey, first: int = 0) -> ConsumeQueue:
        """Return a queue without files that begins at offset *first*."""
        return self.queue(key, self.directory(key), self.file_entries, first)

    def found(self, fs: Fs) -> Iterator[QueueKey]:
        """Return the queues that have a directory. Raises OSError."""
        for topic in filter(names_a_directory, fs.list(self.root)):
            for name in fs.list(self.root / topic):
                if name.isdecimal() and len(name) < _QUEUE_DIGITS:
                    yield topic, int(name)


class QueueKinds:
    """The kind of each topic's queues.

    *batched*: the names of the topics of batches; changed by their owner.
    """

    def __init__(self, usual: QueueKind, batches: QueueKind, batched: Collection[str]) -> None:
        self.usual, self.batches, self.batched = usual, batches, set(batched)
        # names in the table of topics; once it was asked for
        self._known: set[str] | None = None

    @classmethod
    def found(cls, fs: Fs, config: StoreConfig) -> "QueueKinds":
        """Return the kinds with the file sizes of a directory. Raises OSError."""
        root = config.root
        usual, batches = root / "consumequeue", root / "batchconsumequeue"
        return cls(
            _kind(fs, ConsumeQueue, usual, config.consume_queue_file_bytes),
            _kind(fs, BatchQueue, batches, config.batch_queue_file_bytes),
            topics_of_batches(fs, root),
        )

    def __iter__(self) -> Iterator[QueueKind]:
        return iter((self.usual, self.batches))

    def of(self, topic: str) -> QueueKind:
        return self.batches if topic in self.batched else self.usual

    def is_known(self, fs: Fs, topic: str) -> bool:
        """Return True if there is such a topic: in the table or its backup, or as a directory.

        Raises OSError.
        """
        if self._known is None:
            self._known = {
                name
                for raw in _tables(fs, self.usual.root.parent)
                for name in _queue_types(raw) or ()
            }
        return topic in self._known or (
            names_a_directory(topic) and bool(fs.list(self.of(topic).root / topic))
        )

    def strays(self, fs: Fs) -> Iterator[Path]:
        """Return directories of queues in the place of the other kind. Raises OSError."""
        for kind in self:
            yield from [
                kind.directory(key) for key in kind.found(fs) if self.of(key[0]) is not kind
            ]


def _kind(fs: Fs, queue: type[ConsumeQueue], root: Path, file_bytes: int) -> QueueKind:
    return QueueKind(
        queue, root, _file_bytes(fs, root, queue.entry_bytes, file_bytes) // queue.entry_bytes
    )


def _file_bytes(fs: Fs, root: Path, entry_bytes: int, default: int) -> int:
    """Return the size that most of the first queue files have: one of them may be damaged."""
    sizes: Counter[int] = Counter()
    directories = (
        (root / topic / queue_id) for topic in fs.list(root) for queue_id in fs.list(root / topic)
    )
    for directory in itertools.islice(directories, _QUEUES_LOOKED_AT):
        sizes.update(
            size for size in found_sizes(fs, directory) if size and size % entry_bytes == 0
        )
    return sizes.most_common(1)[0][0] if sizes else default


def _tables(fs: Fs, root: Path) -> list[bytes]:
    return [
        read_file(fs, root / "config" / name) or b"" for name in ("topics.json", "topics.json.bak")
    ]


def topics_of_batches(fs: Fs, root: Path) -> set[str]:
    """Return the topics of batches, see the module. Raises OSError."""
    tables = _tables(fs, root)
    there = set(fs.list(root / "batchconsumequeue"))
    if not there and not any(BATCHES.encode() in raw for raw in tables):
        # nearly always; of ten thousand topics the broker reads the table once, later
        return set()
    for raw in tables:
        types = _queue_types(raw)
        if types is not None:
            batched = {topic for topic, kind in types.items() if kind == BATCHES}
            return batched if raw is tables[0] else batched | (there - types.keys())
    return there


def _queue_types(raw: bytes) -> dict[str, object] | None:
    """Return the queue type of each topic; None if *raw* is not a table of topics."""
    topics = (parsed(raw) or {}).get("topicConfigTable")
    return (
        {str(topic): _queue_type(config) for topic, config in topics.items()}
        if isinstance(topics, dict)
        else None
    )


def _queue_type(config: Any) -> object:
    attributes = config.get("attributes") if isinstance(config, dict) else None
    return attributes.get(QUEUE_TYPE) if isinstance(attributes, dict) else None


UNIT: Final = struct.Struct(">qiqqqhii")
"""commit-log offset, record size, tags code, store timestamp, first offset, messages; then fields
for compaction, and 4 reserved bytes
"""
UNIT_BYTES: Final = UNIT.size
_UNIT_READ: Final = struct.Struct(">qi4xi8xqh8x")
"""the same with the low 32 bits of the tags code, which filters compare, and without the store
timestamp
"""
_OFFSETS: Final = struct.Struct(">28xqh8x")
_NOT_COMPACTED: Final = -1


class BatchUnit(NamedTuple):
    """One entry, with the fields that a pull needs."""

    commitlog_offset: int
    size: int
    tag_hash: int
    offset: int
    messages: int


def units(raw: bytes) -> Iterator[BatchUnit]:
    return map(BatchUnit._make, _UNIT_READ.iter_unpack(raw))


class BatchQueue(ConsumeQueue):
    """Consume queue of a topic of batches. See ConsumeQueue, and the module."""

    __slots__ = ("_first_index",)

    layout: ClassVar[struct.Struct] = UNIT
    entry_bytes: ClassVar[int] = UNIT_BYTES
    # a message without body and properties, within a batch
    log_bytes: ClassVar[int] = 22

    def _begin(self, index: int) -> None:
        super()._begin(0)
        self._first_index = 0

    @property
    def first_index(self) -> int:
        return self._first_index

    @property
    def end(self) -> int:
        return self.tail_start + len(self.tail) // UNIT_BYTES

    @property
    def own_indexes(self) -> tuple[int, int]:
        return self.first_index, self.end

    def index_of(self, offset: int, read: ReadEntry) -> int:
        low, high = self.first_index, self.end
        # invariant: all before low end at or before the offset, that at high does not
        while low < high:
            middle = (low + high) // 2
            probe, raw = self._readable(middle, high, read)
            if raw and _end_of(raw) <= offset:
                low = probe + 1
            else:
                high = middle
        return low

    def offset_at(self, index: int, read: ReadEntry) -> int:
        _, raw = self._readable(index, self.end, read)
        return _OFFSETS.unpack(raw)[0] if raw else self.max_offset

    def _readable(self, index: int, end: int, read: ReadEntry) -> tuple[int, bytes]:
        """Return the first entry from *index* on that can be read, and its index; None if there is
        none before *end*.
        """
        while index < end:
            raw = read(index)
            if raw and self.makes_sense(*_OFFSETS.unpack(raw)):
                return index, raw
            index += 1 if raw else self.file_entries - index % self.file_entries
        return end, b""

    def makes_sense(self, offset: int, count: int) -> bool:
        """Return True if the values of an entry are possible; if its file was damaged since the
        start, it may have any.
        """
        return 0 <= offset < offset + count <= self.max_offset

    def begin_at(self, index: int, offset: int) -> None:
        self._first_index, self.min_offset = index, offset

    def record_at(self, index: int, raw: bytes) -> Wanted | None:
        commitlog_offset, size, _, offset, _ = _UNIT_READ.unpack(raw)
        return None if size == FILLER_SIZE else (commitlog_offset, size, offset)

    def entry(
        self,
        commitlog_offset: int,
        size: int,
        tags_code: int,
        stored_ms: int,
        offset: int,
        count: int,
    ) -> bytes:
        return UNIT.pack(
            commitlog_offset, size, tags_code, stored_ms, offset, count, _NOT_COMPACTED, 0
        )

    @staticmethod
    def end_in_file(first: int, raw: bytes) -> int:
        end = 0
        for commitlog_offset, size, _, offset, count in _UNIT_READ.iter_unpack(
            raw[: len(raw) - len(raw) % UNIT_BYTES]
        ):
            if commitlog_offset < 0 or size <= 0 or offset < 0 or count <= 0:
                break
            end = offset + count
        return end

    def pad(self, until: int) -> int:
        """Give a queue without entries one that has no record: only a queue's last entry says where
        the queue continues.
        """
        self.max_offset = max(self.max_offset, until)
        if self.end or not self.max_offset:
            return 0
        self.tail += UNIT.pack(0, FILLER_SIZE, 0, 0, self.max_offset - 1, 1, _NOT_COMPACTED, 0)
        self.begin_at(1, self.max_offset)
        return 1


def _end_of(raw: bytes) -> int:
    offset, count = _OFFSETS.unpack(raw)
    return int(offset) + int(count)


# --- records that hold a batch whole --------------------------------------------------------------


def messages_in(sys_flag: int, properties: bytes) -> int:
    """Return the number of messages that a record counts as; 0 if its properties are invalid.

    Source: CommitLog.setBatchSizeIfNeeded, 5.5.
    """
    if not sys_flag & SysFlag.INNER_BATCH:
        return 1
    said = raw_property(properties, b"INNER_NUM")
    if said is None or raw_property(properties, b"INNER_BASE") is None:
        return 1
    count = int(said) if said.isdigit() and len(said) < 6 else 0
    return count if count <= MAX_INNER_MESSAGES else 0


def with_first_offset(properties: bytes, offset: int) -> bytes:
    """Return the properties of a batch that gets *offset*.

    Source: BatchConsumeQueue.assignQueueOffset, 5.5.
    """
    return (
        properties
        + (b"" if not properties or properties[-1] == 2 else b"\x02")
        + b"INNER_BASE\x01%d\x02" % offset
    )
