"""Selects topics and queues by the words of an option. Pure."""

import re
from collections.abc import Iterable, Mapping

from ogive.errors import InvalidOption
from ogive.model import DLQ_PREFIX, RETRY_PREFIX, MessageQueue


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """The topics whose whole name matches *pattern*, sorted.

    Retry and dead-letter topics only where the pattern itself begins with %.
    """
    whole = re.compile(pattern)
    special = (RETRY_PREFIX, DLQ_PREFIX)
    return sorted(
        topic
        for topic in topics
        if whole.fullmatch(topic) and (pattern.startswith("%") or not topic.startswith(special))
    )


def assigned(
    queues: Mapping[str, Mapping[str, Iterable[int]]],
    known: Iterable[MessageQueue],
    read: Iterable[MessageQueue] = (),
    *,
    any_missing: bool = False,
) -> list[MessageQueue]:
    """Return the *known* queues that the option assign names.

    Raises InvalidOption if one does not exist. One that was *read* before may be missing, or with
    *any_missing* any: the caller decides what that means.
    """
    before = {
        (queue.topic, name, queue.queue_id) for queue in read for name in ("", queue.broker_name)
    }
    of_topic: dict[str, dict[str, set[int]]] = {}
    for queue in known:
        of_topic.setdefault(queue.topic, {}).setdefault(queue.broker_name, set()).add(
            queue.queue_id
        )
    found: list[MessageQueue] = []
    for topic, brokers in queues.items():
        for broker, ids in brokers.items():
            names = list(of_topic.get(topic, {})) if not broker else [broker]
            for queue_id in sorted(ids):
                there = [
                    MessageQueue(topic, name, queue_id)
                    for name in names
                    if queue_id in of_topic.get(topic, {}).get(name, set())
                ]
                if not there and not any_missing and (topic, broker, queue_id) not in before:
                    raise InvalidOption(
                        f"assign names queue {topic}/{broker or '*'}/{queue_id}, which does not "
                        "exist"
                    )
                found += there
    return found
