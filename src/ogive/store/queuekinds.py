"""The two kinds of queues, which topics have which, and where their files are.

A topic of batches (attribute queue.type=BatchCQ, decided when it is made) has its queues in
batchconsumequeue/, any other in consumequeue/. Apache's broker does not start where a topic's
queues are in the wrong place: so config/topics.json says it, here as there, and what lies elsewhere
is removed, and made again from the log in the right place. Where that file cannot be read its
backup counts, and what is in batchconsumequeue/. Source: ConsumeQueueStore.java,
QueueTypeUtils.java, 5.5.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ogive.model import BATCHES, QUEUE_TYPE
from ogive.store.batchqueue import BatchQueue
from ogive.store.consumequeue import ConsumeQueue, names_a_directory
from ogive.store.fs import Fs
from ogive.store.model import QueueKey, StoreConfig
from ogive.store.segments import found_sizes
from ogive.store.tables import parsed, read_file

_QUEUE_DIGITS: Final = 10
_QUEUES_LOOKED_AT: Final = 16


@dataclass(frozen=True, slots=True)
class QueueKind:
    """One of the two: its class, its directory, and how many entries a file has."""

    queue: type[ConsumeQueue]
    root: Path
    file_entries: int

    @property
    def file_bytes(self) -> int:
        return self.file_entries * self.queue.entry_bytes

    def directory(self, key: QueueKey) -> Path:
        return self.root / key[0] / str(key[1])

    def new(self, key: QueueKey, first: int = 0) -> ConsumeQueue:
        """A queue without files, that begins with offset *first*."""
        return self.queue(key, self.directory(key), self.file_entries, first)

    def found(self, fs: Fs) -> Iterator[QueueKey]:
        """The queues that have a directory. Raises OSError."""
        for topic in filter(names_a_directory, fs.list(self.root)):
            for name in fs.list(self.root / topic):
                if name.isdecimal() and len(name) < _QUEUE_DIGITS:
                    yield topic, int(name)


class QueueKinds:
    """Which kind each topic's queues are.

    *batched*: the names of the topics of batches; changed by their owner.
    """

    def __init__(self, usual: QueueKind, batches: QueueKind, batched: Collection[str]) -> None:
        self.usual, self.batches, self.batched = usual, batches, set(batched)
        # names in the table of topics; once it was asked for
        self._known: set[str] | None = None

    @classmethod
    def found(cls, fs: Fs, config: StoreConfig) -> "QueueKinds":
        """As a directory has them. Raises OSError."""
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
        """Whether there is such a topic: in the table, or its backup, or by a directory.

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
        """Directories of queues in the other kind's place. Raises OSError."""
        for kind in self:
            yield from [
                kind.directory(key) for key in kind.found(fs) if self.of(key[0]) is not kind
            ]


def _kind(fs: Fs, queue: type[ConsumeQueue], root: Path, file_bytes: int) -> QueueKind:
    return QueueKind(
        queue, root, _file_bytes(fs, root, queue.entry_bytes, file_bytes) // queue.entry_bytes
    )


def _file_bytes(fs: Fs, root: Path, entry_bytes: int, default: int) -> int:
    """The size that most of the first queue files have: one of them may be damaged."""
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
    """See the module. Raises OSError."""
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
    """Of each topic; None where that is no table of topics."""
    topics = (parsed(raw) or {}).get("topicConfigTable")
    return (
        {str(topic): _queue_type(config) for topic, config in topics.items()}
        if isinstance(topics, dict)
        else None
    )


def _queue_type(config: Any) -> object:
    attributes = config.get("attributes") if isinstance(config, dict) else None
    return attributes.get(QUEUE_TYPE) if isinstance(attributes, dict) else None
