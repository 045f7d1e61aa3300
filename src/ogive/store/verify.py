"""Check a store's directory without changing it, and repair one.

Behaviour
- verify reads every record of the log, compares the consume queues with the log, the index and the
  list of queues with their checksums, and parses the tables. It opens files for reading only.
- If Apache's broker ran with enableConsumeQueueExt, queues have addresses in consumequeue_ext
  instead of tags codes; these are not looked up. Our broker rebuilds such queues from the log when
  it opens the store.
- repair rebuilds everything derived from the log, and tables from their backups. It deletes no
  valid record; bytes that are not a record stay in the middle of the log, and are zeroed behind its
  end. Faults that prevent reading the log at all are repaired first, see repair.py.
- Delayed messages keep their due time, or get a later one, see replay.py.
- Both refuse while a broker runs on the directory.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from ogive.errors import ProtocolError, StoreLocked, StoreUnusable
from ogive.model import SCHEDULE_TOPIC
from ogive.store import checkpoint as checkpoints
from ogive.store.checkpoint import Checkpoint
from ogive.store.clock import now_ms
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE
from ogive.store.directory import was_ours
from ogive.store.file_reader import Handles
from ogive.store.fs import Fs, OsFs, ReadOnlyFs, reason
from ogive.store.index_file import index_names, restored
from ogive.store.log_scan import LogEnd, LogScan, properties_of
from ogive.store.queue_types import UNIT, UNIT_BYTES, QueueKind, QueueKinds, messages_in
from ogive.store.record import Record, tag_hash
from ogive.store.recovery import end_is_lost, recover, refuse_emptied, traces, usable
from ogive.store.repair import (
    TABLE,
    completed,
    is_topic_table,
    not_in,
    places_of_waiting,
    queue_counts,
    repair_files,
    topic_table,
    waiting_place,
)
from ogive.store.replay import too_far
from ogive.store.segments import find_segments, segment_names, segment_path
from ogive.store.tables import JsonTable, peek, read_file
from ogive.store.types import QueueKey, StoreConfig
from ogive.wire import java_json
from ogive.wire.codes import SysFlag

_COMPARED: int = 38
"""bytes of an entry; the rest is for compaction"""


class ExpectedUnits:
    """Entries that a queue of batches must have by the log, from offset *first* on.

    The log does not have the index of an entry: entries of records that are not in the log any more
    are skipped.
    """

    __slots__ = ("_found", "_waiting", "end", "mismatch", "missing")

    def __init__(self, first: int, found: Iterator[bytes]) -> None:
        """*found* are the entries in the files."""
        self._found = found
        # offset and entry
        self._waiting: list[tuple[int, bytes]] = []
        self.end = first
        self.mismatch: int | None = None
        self.missing: int | None = None

    def add(self, unit: bytes, count: int) -> None:
        """Add *unit*, which is for the next *count* messages."""
        self._waiting.append((self.end, unit))
        self.end += count

    def compare(self) -> None:
        """Compare the entries that were added since the last call."""
        for offset, unit in self._waiting:
            # commit-log offsets, never below 0
            held = next((held for held in self._found if held[:8] >= unit[:8]), None)
            if held is None and self.missing is None:
                self.missing = offset
            elif (
                held is not None and held[:_COMPARED] != unit[:_COMPARED] and self.mismatch is None
            ):
                self.mismatch = offset
        self._waiting.clear()


def units_in_files(fs: Fs, handles: Handles, kind: QueueKind, key: QueueKey) -> Iterator[bytes]:
    """Yield all entries of a queue that have a record, in order. Raises OSError."""
    directory = kind.directory(key)
    for name in segment_names(fs, directory):
        path = segment_path(directory, int(name))
        raw = handles.read(path, kind.file_bytes, 0)
        for at in range(0, len(raw) - UNIT_BYTES + 1, UNIT_BYTES):
            unit = raw[at : at + UNIT_BYTES]
            if not any(unit):
                break
            if UNIT.unpack(unit)[1] != FILLER_SIZE:
                yield unit


Changed = TypeVar("Changed")

# entries in memory, all queues together
_BUFFERED: Final = 1_000_000
_MAX_LISTED: Final = 100
# of damaged places in one sentence
_MAX_OFFSETS: Final = 20
_MAX_EXTENSION_ADDRESS: Final = -(2**31) - 1
"""Largest tags code that is an address in consumequeue_ext.

Source: ConsumeQueueExt.isExtAddr, 5.5.
"""


@dataclass(slots=True)
class Report:
    """Contents of a directory. *problems* are sentences; without any, nothing is wrong."""

    directory: str
    # the last stop was one
    clean: bool = True
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    # each of one record or more
    damaged_places: int = 0
    damaged_bytes: int = 0
    topics: int = 0
    queues: int = 0
    # of a store that was not stopped: the next start completes them
    queues_behind: int = 0
    wrong_queues: int = 0
    index_files: int = 0
    wrong_index_files: int = 0
    wrong_tables: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about facts that are not faults."""

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def tell(self, problem: str) -> None:
        if len(self.problems) < _MAX_LISTED:
            self.problems.append(problem)


def verify(root: Path) -> Report:
    """Check a store. Raises StoreLocked, StoreUnusable, StoreCorrupt, with a plain sentence
    each.
    """
    fs = ReadOnlyFs()
    try:
        _check_is_store(root)
        try:
            lock = fs.lock(root / "lock")
        except BlockingIOError:
            raise _in_use(root) from None
        try:
            return _Verification(fs, root).run()
        finally:
            if lock >= 0:
                fs.close(lock)
    except OSError as exc:
        raise StoreUnusable(f"the store in {root} cannot be read: {reason(exc)}") from exc


def repair(root: Path) -> tuple[Report, Report]:
    """Repair a store. Return the results of verify() before and after. Raises as verify() does."""
    mended = _changing(root, repair_files)
    before = verify(root)
    before.problems[:0] = mended
    _changing(root, _mend)
    return before, verify(root)


def _changing(root: Path, change: Callable[[Fs, Path], Changed]) -> Changed:
    """Carry it out under the store's lock. Raises StoreLocked, StoreUnusable."""
    fs = OsFs()
    try:
        _check_is_store(root)
        lock = fs.lock(root / "lock")
        try:
            return change(fs, root)
        finally:
            fs.close(lock)
    except BlockingIOError:
        raise _in_use(root) from None
    except OSError as exc:
        raise StoreUnusable(f"the store in {root} cannot be repaired: {reason(exc)}") from exc


def _check_is_store(root: Path) -> None:
    if not (root / "commitlog").is_dir():
        raise StoreUnusable(f"{root} holds no store: there is no directory commitlog in it")


def _mend(fs: Fs, root: Path) -> None:
    refuse_emptied(fs, StoreConfig(root=root))
    for path in list(_tables(fs, root)):
        if _table_problem(fs, path) is None:
            continue
        if path.suffix == ".bak":
            fs.rename(path, path.with_name(f"{path.name}.corrupt-{time.time():.0f}"))
            fs.fsync_dir(path.parent)
        elif path.name != TABLE:
            table = JsonTable(fs, path)
            # sets the bad file aside
            value = table.load()
            if value is not None:
                table.save(value)
    recovered = recover(fs, StoreConfig(root=root), now_ms(), rebuild=True)
    topics = topic_table(fs, root)
    left = topics.load()
    if topics.is_lost:
        whole = completed(
            left,
            {*recovered.queues, *places_of_waiting(fs, root)},
            recovered.kinds.batched.__contains__,
        )
        if whole:
            topics.save(whole)
    if "abort" in fs.list(root):
        checkpoints.mark_stopped(fs, root)


def _in_use(root: Path) -> StoreLocked:
    return StoreLocked(f"a broker runs on the store in {root}: stop it first")


class _Expected:
    """Entries that a queue must have by the log, and that are not compared yet."""

    __slots__ = ("entries", "first", "index", "mismatch", "missing")

    def __init__(self, first: int) -> None:
        self.first = self.index = first  # of *entries*
        self.entries = bytearray()
        # the lowest offset whose entry is another one
        self.mismatch: int | None = None
        # the lowest offset that has no entry
        self.missing: int | None = None

    @property
    def end(self) -> int:
        return self.index + len(self.entries) // ENTRY_BYTES


class _Verification:
    def __init__(self, fs: Fs, root: Path) -> None:
        self._fs, self._root = fs, root
        self._report = Report(str(root))
        self._queues: dict[tuple[bytes, int], _Expected | ExpectedUnits] = {}
        # where those go that wait for their time, or their end
        self._waiting: set[QueueKey] = set()
        self._buffered = 0
        self._handles = Handles(fs, 256)
        self._kinds = QueueKinds.found(fs, StoreConfig(root=root))
        self._file_entries = self._kinds.usual.file_entries

    def run(self) -> Report:
        report, fs, root = self._report, self._fs, self._root
        report.clean = "abort" not in fs.list(root)
        found = find_segments(fs, root / "commitlog", 1)
        raw = read_file(fs, root / "queues.json")
        checkpoint = checkpoints.load(fs, root)
        if (told := traces(fs, StoreConfig(root=root))) is not None:
            report.tell(
                f"the log is empty, but {told}: is the disk of commitlog mounted? A broker does "
                "not start on it without --empty-log"
            )
        if raw is not None and checkpoint is None:
            report.tell(
                "queues.json, the list of queues, is damaged: the next start reads the whole log"
            )
        reached = checkpoint.position if checkpoint is not None else 0
        checkpoint = usable(checkpoint, found.starts[0] if found.starts else 0, found.end)
        scan = LogScan.of_store(fs, root, found, checkpoint)
        report.log_start = scan.start
        result = LogEnd(scan.start)
        deleted = checkpoints.load_deletions(fs, root, checkpoint, found.end)
        with closing(scan):
            for scanned in scan.records(scan.start, result):
                report.records += 1
                self._expect(scanned[0], scanned[1], properties_of(scanned), deleted)
            report.log_end = result.offset
            used = result.offset % found.segment_bytes and scan.used_after(result.offset)
            if used and report.clean:
                report.tell(
                    f"the bytes after the end of the log at {result.offset} are not a record: an "
                    "unclean stop left them, a start clears them"
                )
        report.damaged_places, report.damaged_bytes = result.damaged, result.damaged_bytes
        if result.damaged:
            places = (
                "1 damaged place" if result.damaged == 1 else f"{result.damaged} damaged places"
            )
            report.tell(
                f"the log has {places}, {result.damaged_bytes} bytes in all, at {_listed(result)}: "
                "those records are lost"
            )
        if result.offset < reached and told is None and was_ours(fs, root):
            report.tell(end_is_lost(result.offset, reached))
        self._compare_queues()
        self._check_index(checkpoint)
        self._check_tables()
        self._handles.close()
        return report

    # --- consume queues ---------------------------------------------------------------------------

    def _expect(
        self, offset: int, record: Record, properties: bytes, deleted: dict[str, int]
    ) -> None:
        state = record.sys_flag & SysFlag.TRANSACTION_MASK
        topic = record.topic.decode("utf-8", "replace")
        place = waiting_place(record.topic, properties)
        if place is not None and offset >= deleted.get(place[0], 0):
            self._waiting.add(place)
        if state not in (0, SysFlag.TRANSACTION_COMMIT) or offset < deleted.get(topic, 0):
            return
        kind = self._kinds.of(topic)
        count = messages_in(record.sys_flag, properties)
        if record.sys_flag & SysFlag.INNER_BATCH and (kind is self._kinds.usual or not count):
            return
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key)
        # new, or deleted and made again
        if queue is None or record.queue_offset < queue.end:
            queue = self._queues[key] = self._expected(
                kind, (topic, record.queue_id), record.queue_offset
            )
        gap = record.queue_offset - queue.end
        if too_far(gap, offset - self._report.log_start, kind.queue.log_bytes):
            claim = f"message {record.queue_offset} of queue {record.queue_id} of {topic}"
            self._report.tell(
                f"the record at {offset} says that it is {claim}: no log held so many before it, "
                "and a start passes it over"
            )
            return
        if isinstance(queue, ExpectedUnits):
            queue.end = record.queue_offset
            queue.add(
                UNIT.pack(
                    offset,
                    record.size,
                    tag_hash(properties),
                    record.store_timestamp_ms,
                    record.queue_offset,
                    count,
                    0,
                    0,
                ),
                count,
            )
            self._count_buffered(1)
            return
        for done in range(0, gap, _BUFFERED):
            self._add(queue, FILLER * min(_BUFFERED, gap - done))
        self._add(queue, ENTRY.pack(offset, record.size, tag_hash(properties)))

    def _expected(self, kind: QueueKind, key: QueueKey, first: int) -> _Expected | ExpectedUnits:
        if kind is self._kinds.usual:
            return _Expected(first)
        return ExpectedUnits(first, units_in_files(self._fs, self._handles, kind, key))

    def _add(self, queue: _Expected, entries: bytes) -> None:
        queue.entries += entries
        self._count_buffered(len(entries) // ENTRY_BYTES)

    def _count_buffered(self, count: int) -> None:
        self._buffered += count
        if self._buffered >= _BUFFERED:
            for (topic_bytes, queue_id), other in self._queues.items():
                self._compare(topic_bytes.decode("utf-8", "replace"), queue_id, other)
            self._buffered = 0

    def _compare_queues(self) -> None:
        report = self._report
        table, left = self._topic_tables()
        known = None if left is None else {*left, SCHEDULE_TOPIC}
        places: set[QueueKey] = set()
        for (topic_bytes, queue_id), queue in self._queues.items():
            topic = topic_bytes.decode("utf-8", "replace")
            if (
                known is not None
                and topic not in known
                and not self._fs.list(self._kinds.of(topic).directory((topic, queue_id)))
            ):
                # of a topic that was deleted
                continue
            places.add((topic, queue_id))
            self._compare(topic, queue_id, queue)
            report.queues += 1
            if queue.mismatch is not None:
                report.wrong_queues += 1
                report.tell(
                    f"queue {queue_id} of {topic} does not say what the log says, from offset "
                    f"{queue.mismatch} on"
                )
            elif queue.missing is not None:
                report.queues_behind += 1
                if report.clean:
                    report.wrong_queues += 1
                    report.tell(
                        f"queue {queue_id} of {topic} has no entries from offset {queue.missing} on"
                    )
        report.topics = len({topic for topic, _ in self._queues})
        if table is None:
            self._tell_lost(not_in(left or {}, queue_counts(places | self._waiting)))
        else:
            self._note_unserved(sorted(queue_counts(places).keys() - table.keys()))

    def _tell_lost(self, missing: Collection[str]) -> None:
        if missing:
            self._report.tell(
                f"the table of topics, config/{TABLE}, is lost, and its backup does not have all: "
                "nobody is served the messages of "
                f"{_and_more(sorted(missing))}; a repair or a start makes the topics again, with "
                "as many queues as their messages use"
            )

    def _note_unserved(self, topics: list[str]) -> None:
        if topics:
            self._report.notes.append(
                f"no topic has the messages of {_and_more(topics)}: they came after it was "
                "deleted, and are served when it is made again"
            )

    def _compare(self, topic: str, queue_id: int, queue: _Expected | ExpectedUnits) -> None:
        if isinstance(queue, ExpectedUnits):
            queue.compare()
            return
        directory = self._root / "consumequeue" / topic / str(queue_id)
        at = 0
        while at < len(queue.entries):
            index = queue.index + at // ENTRY_BYTES
            count = min(
                (len(queue.entries) - at) // ENTRY_BYTES,
                self._file_entries - index % self._file_entries,
            )
            wanted = bytes(queue.entries[at : at + count * ENTRY_BYTES])
            held = self._entries(directory, index, count)
            if held != wanted:
                self._mismatch(queue, index, wanted, held, scheduled=topic == SCHEDULE_TOPIC)
            at += count * ENTRY_BYTES
        queue.index = queue.end
        queue.entries.clear()

    def _mismatch(
        self, queue: _Expected, index: int, wanted: bytes, held: bytes, *, scheduled: bool
    ) -> None:
        for n, at in enumerate(range(0, len(wanted), ENTRY_BYTES)):
            if at >= len(held) and queue.missing is not None:
                # nothing behind it can say more
                return
            expected, found = wanted[at : at + ENTRY_BYTES], held[at : at + ENTRY_BYTES]
            if expected == found or (
                expected[:12] == found[:12]
                and (scheduled or ENTRY.unpack(found)[2] <= _MAX_EXTENSION_ADDRESS)
            ):
                # of a scheduled message the tags code is the time of delivery
                continue
            if not any(found):
                if queue.missing is None:
                    queue.missing = index + n
            elif expected != FILLER and queue.mismatch is None:
                queue.mismatch = index + n

    def _entries(self, directory: Path, index: int, count: int) -> bytes:
        at = index % self._file_entries
        path = segment_path(directory, (index - at) * ENTRY_BYTES)
        raw = self._handles.read(path, count * ENTRY_BYTES, at * ENTRY_BYTES)
        # a file may end in the middle of one
        return raw[: len(raw) - len(raw) % ENTRY_BYTES]

    def _topic_tables(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Return config/topics.json, and the table that applies if it is lost: the backup.

        None for an invalid one.
        """
        table = self._topics_in(TABLE)
        return table, self._topics_in(f"{TABLE}.bak") if table is None else table

    def _topics_in(self, name: str) -> dict[str, Any] | None:
        table = peek(self._fs, self._root / "config" / name)
        return table["topicConfigTable"] if table is not None and is_topic_table(table) else None

    # --- the rest ---------------------------------------------------------------------------------

    def _check_index(self, checkpoint: Checkpoint | None) -> None:
        report, directory = self._report, self._root / "index"
        report.index_files = len(index_names(self._fs, directory))
        states = checkpoint.index if checkpoint is not None else None
        for state in states or ():
            if not restored(self._fs, directory, [state]):
                report.wrong_index_files += 1
                report.tell(
                    f"index file {state.name} is missing or damaged: keys in it are not found "
                    "until a start makes it again"
                )

    def _check_tables(self) -> None:
        for path in _tables(self._fs, self._root):
            problem = _table_problem(self._fs, path)
            if problem is not None:
                self._report.wrong_tables += 1
                self._report.tell(problem)


def _listed(result: LogEnd) -> str:
    """Return the offsets of the damaged places, only the first ones if there are many."""
    offsets = [str(offset) for offset in list(result.places)[:_MAX_OFFSETS]]
    if result.damaged > len(offsets):
        return f"{', '.join(offsets)} and {result.damaged - len(offsets)} more places"
    return " and ".join([part for part in (", ".join(offsets[:-1]), offsets[-1]) if part])


def _and_more(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _tables(fs: Fs, root: Path) -> Iterator[Path]:
    """Return the tables with their backups; users and rules are among them."""
    for folder in (root / "config", root / "config" / "access"):
        yield from (
            folder / name for name in fs.list(folder) if name.endswith((".json.bak", ".json"))
        )


def _table_problem(fs: Fs, path: Path) -> str | None:
    raw = read_file(fs, path)
    try:
        value: Any = java_json.loads(raw) if raw is not None else {}
    except ProtocolError as exc:
        return f"{path.name} is not a table: {exc}"
    return None if isinstance(value, dict) else f"{path.name} is not a table"
