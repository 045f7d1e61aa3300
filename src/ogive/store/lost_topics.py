"""The table of topics, made whole from the log where it is lost: messages of a topic that no table
knows are served to nobody.

Its backup, one version older, may lack the newest topic, or know it with fewer queues; where both
are lost, all topics come from the log.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption
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
from ogive.store.deletions import deletions
from ogive.store.fs import Fs
from ogive.store.logscan import LogEnd, LogScan
from ogive.store.model import QueueKey
from ogive.store.segments import find_segments
from ogive.store.tables import JsonTable
from ogive.wire.bodies import MAX_QUEUES, TopicConfig
from ogive.wire.message import decode_properties, real_place

log = logging.getLogger(__name__)

TABLE: Final = "topics.json"
_WAITING: Final = frozenset(topic.encode() for topic in (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC))
_READ_QUEUES: Final = "readQueueNums"


def topic_table(fs: Fs, root: Path) -> JsonTable:
    return JsonTable(fs, root / "config" / TABLE, valid=is_topic_table)


def is_topic_table(value: dict[str, Any]) -> bool:
    return isinstance(value.get("topicConfigTable"), dict)


def is_of_users(topic: str) -> bool:
    """Whether the broker does not make it by itself, and a table may have it."""
    try:
        validate_topic(topic)
    except InvalidOption:
        return False
    return topic not in SYSTEM_TOPICS and not topic.startswith(SYSTEM_TOPIC_PREFIX)


def waiting_place(topic: bytes, properties: bytes) -> QueueKey | None:
    """Where a record with these raw *properties* goes when it is due, or committed; None for one
    that does not wait in *topic*.
    """
    if topic not in _WAITING:
        return None
    return real_place(decode_properties(properties))


def places_of_waiting(fs: Fs, root: Path) -> set[QueueKey]:
    """Those of everything that waits, or waited, in the log of *root*, but for topics that were
    deleted since. Reads the whole log.
    """
    checkpoint, found = checkpoints.load(fs, root), find_segments(fs, root / "commitlog", 1)
    deleted = deletions(fs, root, checkpoint, found.end)
    scan = LogScan(fs, root / "commitlog", found, checkpoints.crc_from(fs, root, checkpoint))
    places: set[QueueKey] = set()
    try:
        for offset, record, buffer, at in scan.records(scan.start, LogEnd(scan.start)):
            if record.topic in _WAITING:
                place = waiting_place(record.topic, buffer[record.properties_at : at + record.size])
                if place is not None and offset >= deleted.get(place[0], 0):
                    places.add(place)
    finally:
        scan.close()
    return places


def queue_counts(places: Iterable[QueueKey]) -> dict[str, int]:
    """Topic -> how many queues *places* use of it, of those that a table may have."""
    counts: dict[str, int] = {}
    for topic, queue_id in places:
        if queue_id < MAX_QUEUES and is_of_users(topic):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts


def not_in(table: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, int]:
    """Of *counts* those that a topicConfigTable does not have, or has with fewer queues to read
    from.
    """
    return {
        topic: count for topic, count in counts.items() if count > _read_queues(table.get(topic))
    }


def _read_queues(row: object) -> int:
    found = row.get(_READ_QUEUES) if isinstance(row, dict) else None
    return found if isinstance(found, int) else 0


def completed(
    stored: dict[str, Any] | None, places: Iterable[QueueKey], has_batches: Callable[[str], bool]
) -> dict[str, Any]:
    """*stored*, what is left of a lost table, with the topics of *places*; empty where there is
    neither.

    A new one gets as many queues as its messages use. What else it had, as its message type, is not
    in the log.
    """
    table = stored["topicConfigTable"] if stored else {}
    missing = not_in(table, queue_counts(places))
    if not missing:
        return stored or {}
    log.warning(
        "the table of topics is lost%s: %d topics are made again from the log, for example %s; "
        "look at their settings",
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
