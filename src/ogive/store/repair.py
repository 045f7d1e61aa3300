"""Repair everything that prevents reading a log, and complete a lost table of topics from the log.

Files of a log can be missing, too long, or in the wrong place.

Nothing is deleted: a file in the wrong place is moved to ``set-aside/`` in the store's directory,
under its path.

Messages of a topic that is in no table are not served. The table's backup, one version older, may
lack the newest topic, or have it with fewer queues. If both are lost, all topics are found in the
log.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption, StoreCorrupt
from ogive.model import (
    BATCHES,
    HALF_TOPIC,
    QUEUE_TYPE,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    validate_topic,
)
from ogive.store import checkpoint as checkpoints
from ogive.store.bad_sectors import Unreadable
from ogive.store.fs import Fs
from ogive.store.log_scan import LogEnd, LogScan, properties_of
from ogive.store.segments import find_segments, segment_path, sizes_of, usual_size
from ogive.store.tables import JsonTable, make_lasting_dirs
from ogive.store.types import QueueKey
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.routes import MAX_QUEUES
from ogive.wire.message import decode_properties, real_place

SET_ASIDE: Final = "set-aside"
# files of the log; beyond that it is another directory's file that is in the way
_MAX_MISSING: Final = 1_000
# a segment that is longer still is one of another size
_MAX_EXCESS_BYTES: Final = 1024 * 1024
_DERIVED_QUEUES: Final = ("consumequeue", "batchconsumequeue")


def repair_files(fs: Fs, root: Path) -> list[str]:
    """Repair the files of the log; return sentences about the changes.

    Raises StoreCorrupt if it would have to guess, and OSError.
    """
    return [*_set_strays_aside(fs, root), *_repair_segments(fs, root)]


def _repair_segments(fs: Fs, root: Path) -> Iterator[str]:
    directory = root / "commitlog"
    sizes = sizes_of(fs, directory)
    usual = usual_size(sizes)
    if usual is None:
        return
    segment_bytes, starts = usual[0], list(sizes)
    for start, size in sizes.items():
        if 0 < size - segment_bytes <= _MAX_EXCESS_BYTES:
            _cut(fs, root, segment_path(directory, start), segment_bytes)
            yield (
                f"{segment_path(directory, start).name} of the log was {size - segment_bytes} "
                f"bytes too long: they are in {SET_ASIDE}/"
            )
    missing = (starts[-1] - starts[0]) // segment_bytes + 1 - len(starts)
    if missing > _MAX_MISSING:
        raise StoreCorrupt(
            f"{directory}: {missing} files are missing between {min(starts):020d} and "
            f"{max(starts):020d}: is one another store's?"
        )
    for start in sorted({*range(starts[0], starts[-1], segment_bytes)} - sizes.keys()):
        _make_empty(fs, segment_path(directory, start), segment_bytes)
        yield (
            f"{segment_path(directory, start).name} of the log was missing: the messages in it "
            "are lost, an empty one is in its place"
        )
    fs.fsync_dir(directory)


def _cut(fs: Fs, root: Path, path: Path, size: int) -> None:
    handle = fs.open(path)
    try:
        excess = Unreadable().read(fs, handle, path, _MAX_EXCESS_BYTES, size)
        kept = _place_aside(fs, root, path)
        copy = fs.open(kept, create=True)
        try:
            fs.pwrite(copy, excess, 0)
            fs.fdatasync(copy)
        finally:
            fs.close(copy)
        fs.fsync_dir(kept.parent)
        fs.truncate(handle, size)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def _make_empty(fs: Fs, path: Path, size: int) -> None:
    handle = fs.open(path, create=True)
    try:
        fs.truncate(handle, size)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def _set_strays_aside(fs: Fs, root: Path) -> Iterator[str]:
    for path in list(_strays(fs, root)):
        kept = _place_aside(fs, root, path)
        fs.rename(path, kept)
        for directory in (kept.parent, path.parent):
            fs.fsync_dir(directory)
        yield (
            f"{path.relative_to(root)} stood where the broker keeps files of its own: it is in "
            f"{SET_ASIDE}/"
        )


def _strays(fs: Fs, root: Path) -> Iterator[Path]:
    """Yield directories where derived files should be, and files where directories should."""
    for name in (*_DERIVED_QUEUES, "index"):
        if (root / name).exists() and not (root / name).is_dir():
            yield root / name
    for topic in (
        root / queues / name for queues in _DERIVED_QUEUES for name in fs.list(root / queues)
    ):
        if not topic.is_dir():
            yield topic
            continue
        for queue in (topic / name for name in fs.list(topic)):
            if not queue.is_dir():
                yield queue
                continue
            yield from (path for name in fs.list(queue) if (path := queue / name).is_dir())
    yield from (
        path for name in fs.list(root / "index") if (path := root / "index" / name).is_dir()
    )


def _place_aside(fs: Fs, root: Path, path: Path) -> Path:
    """Return a free path for *path* in SET_ASIDE, and create its directory."""
    kept = root / SET_ASIDE / path.relative_to(root)
    make_lasting_dirs(fs, kept.parent)
    number = 1
    while kept.exists():
        number += 1
        kept = kept.with_name(f"{path.name}.{number}")
    return kept


log = logging.getLogger(__name__)

TABLE: Final = "topics.json"
_WAITING: Final = frozenset(topic.encode() for topic in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))
_READ_QUEUES: Final = "readQueueNums"


def topic_table(fs: Fs, root: Path) -> JsonTable:
    return JsonTable(fs, root / "config" / TABLE, valid=is_topic_table)


def is_topic_table(value: dict[str, Any]) -> bool:
    return isinstance(value.get("topicConfigTable"), dict)


def is_of_users(topic: str) -> bool:
    """Return True if *topic* is created by users, not by the broker, and is valid in a table."""
    try:
        validate_topic(topic)
    except InvalidOption:
        return False
    return topic not in SYSTEM_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIX)


def waiting_place(topic: bytes, properties: bytes) -> QueueKey | None:
    """Return the queue to which a record with these raw *properties* goes when it is due or
    committed, or None if it does not wait in *topic*.
    """
    if topic not in _WAITING:
        return None
    return real_place(decode_properties(properties))


def places_of_waiting(fs: Fs, root: Path) -> set[QueueKey]:
    """Return the waiting_place() of every record in the log of *root*, by reading the whole log.

    Places of topics that were deleted since are left out.
    """
    checkpoint, found = checkpoints.load(fs, root), find_segments(fs, root / "commitlog", 1)
    deleted = checkpoints.load_deletions(fs, root, checkpoint, found.end)
    places: set[QueueKey] = set()
    with closing(LogScan.of_store(fs, root, found, checkpoint)) as scan:
        for scanned in scan.records(scan.start, LogEnd(scan.start)):
            offset, record, _, _ = scanned
            if record.topic in _WAITING:
                place = waiting_place(record.topic, properties_of(scanned))
                if place is not None and offset >= deleted.get(place[0], 0):
                    places.add(place)
    return places


def queue_counts(places: Iterable[QueueKey]) -> dict[str, int]:
    """Return how many queues of each topic *places* use, for topics that are valid in a table."""
    counts: dict[str, int] = {}
    for topic, queue_id in places:
        if queue_id < MAX_QUEUES and is_of_users(topic):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts


def not_in(table: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, int]:
    """Return the *counts* that exceed the queues to read from in a topicConfigTable."""
    return {
        topic: count for topic, count in counts.items() if count > _read_queues(table.get(topic))
    }


def _read_queues(row: object) -> int:
    found = row.get(_READ_QUEUES) if isinstance(row, dict) else None
    return found if isinstance(found, int) else 0


def completed(
    stored: dict[str, Any] | None, places: Iterable[QueueKey], has_batches: Callable[[str], bool]
) -> dict[str, Any]:
    """Return *stored*, the rest of a lost table, completed with the topics of *places*.

    A missing topic gets as many queues as its messages use. Its other settings, such as its message
    type, are not in the log.
    """
    table = stored["topicConfigTable"] if stored else {}
    missing = not_in(table, queue_counts(places))
    if not missing:
        return stored or {}
    log.warning(
        "the topic table is lost%s: %d topics are recreated from the log, for example %s; check "
        "their settings",
        ", and its backup is older" if stored else ", and its backup",
        len(missing),
        min(missing),
    )
    rows = {
        topic: _row(topic, count, table.get(topic), has_batches) for topic, count in missing.items()
    }
    return (stored or {}) | {"topicConfigTable": table | rows}


def _row(
    topic: str, count: int, known: object, has_batches: Callable[[str], bool]
) -> dict[str, Any]:
    if isinstance(known, dict):
        return known | {_READ_QUEUES: count}
    attributes = {QUEUE_TYPE: BATCHES} if has_batches(topic) else {}
    return TopicConfig(
        name=topic, read_queues=count, write_queues=count, attributes=attributes
    ).to_json()
