"""The table of topics, made again from the queues where it and its backup are lost: a topic that no table knows is served to nobody."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption
from ogive.model import BATCHES, QUEUE_TYPE, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, validate_topic
from ogive.store.fs import Fs
from ogive.store.model import QueueKey
from ogive.store.tables import JsonTable
from ogive.wire.bodies import MAX_QUEUES, TopicConfig

log = logging.getLogger(__name__)

TABLE: Final = "topics.json"


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


def topics_again(queues: Iterable[QueueKey], has_batches: Callable[[str], bool]) -> dict[str, Any]:
    """A table with the topics that *queues* are of, for one that is lost; empty where there are none.

    Each gets as many queues as its messages use. What else it had, as its message type, is not in the log.
    """
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        if queue_id < MAX_QUEUES and is_of_users(topic):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    if not counts:
        return {}
    log.warning(
        "the table of topics is lost, and its backup: %d topics are made again from the log, for example %s; look at their settings",
        len(counts), min(counts),
    )  # fmt: skip
    return {
        "topicConfigTable": {
            topic: TopicConfig(
                name=topic, read_queues=count, write_queues=count, attributes={QUEUE_TYPE: BATCHES} if has_batches(topic) else {}
            ).to_json()
            for topic, count in counts.items()
        }
    }
