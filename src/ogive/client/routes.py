"""Meaning of a route for producers and consumers: pure functions.

Source: MQClientInstance.java topicRouteData2TopicPublishInfo, 5.3.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, TypeVar

from ogive.errors import (
    NoRoute,
    ProtocolError,
)
from ogive.model import MessageQueue
from ogive.wire.bodies.json_fields import PERM_READ, PERM_WRITE
from ogive.wire.bodies.routes import TopicRouteData
from ogive.wire.message import java_hash

Q = TypeVar("Q")
MASTER_ID = 0
# characters by characters: 34,000 names of usual length
MAX_COMPARED: Final = 20_000_000
# of one topic on all brokers; a wrong answer must not fill the memory
MAX_ROUTE_QUEUES: Final = 262_144


class NotWritable(NoRoute):
    """Error of a topic that exists, but whose permissions forbid writing: brokers that would create
    it are not looked for.
    """


def publish_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues to send to: writable, and their broker has a master.

    An order configuration names them itself, in its order.

    Raises ProtocolError where there are more than a client should hold.
    """
    if route.order_topic_conf:
        return _queues(topic, _ordered_counts(route.order_topic_conf))
    masters = {broker.broker_name for broker in route.brokers if MASTER_ID in broker.addresses}
    rows = sorted(
        (row for row in route.queues if row.perm & PERM_WRITE and row.broker_name in masters),
        key=lambda row: row.broker_name,
    )
    return _queues(topic, [(row.broker_name, row.write_queues) for row in rows])


def subscribe_queues(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """Return the queues to read, sorted: readable; a slave alone is enough.

    Raises ProtocolError where there are too many.
    """
    return tuple(
        sorted(
            _queues(
                topic,
                [
                    (row.broker_name, row.read_queues)
                    for row in route.queues
                    if row.perm & PERM_READ
                ],
            )
        )
    )


def _ordered_counts(conf: str) -> list[tuple[str, int]]:
    """Read ``broker-a:4;broker-b:4``; entries that are not of this form are skipped, as in Java."""
    entries = [entry.partition(":") for entry in conf.split(";")]
    return [
        (name, int(count))
        for name, _, count in entries
        if name and count.isdecimal() and len(count) <= 9
    ]


def _queues(topic: str, counts: Sequence[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    total = sum(count for _, count in counts)
    if total > MAX_ROUTE_QUEUES:
        raise ProtocolError(
            f"the route of {topic} names {total} queues: {MAX_ROUTE_QUEUES} are the limit"
        )
    return tuple(MessageQueue(topic, name, i) for name, count in counts for i in range(count))


def broker_addresses(routes: Iterable[TopicRouteData]) -> dict[str, dict[int, str]]:
    """Return all brokers of all routes: name -> id -> ``ip:port``.

    Of several routes that name a broker the last one counts.
    """
    return {
        broker.broker_name: dict(broker.addresses) for route in routes for broker in route.brokers
    }


def auto_create_route(template: TopicRouteData, queues: int) -> TopicRouteData:
    """Return the route that a topic will have once its first message makes a broker create it, from
    the route of TBW102.
    """
    rows = tuple(
        replace(
            row,
            read_queues=min(queues, row.read_queues),
            write_queues=min(queues, row.write_queues),
        )
        for row in template.queues
    )
    return TopicRouteData(queues=rows, brokers=template.brokers)


def choose_queue(sharding_key: str, queues: Sequence[Q]) -> Q:
    """Return the one of *queues* that every client chooses for messages with *sharding_key*.

    Source: SelectMessageQueueByHash.java.
    """
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def similar_topics(topic: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return names that *topic* may be a misspelling of, the likeliest first.

    The advice is worth half a second, however many there are.
    """
    ours, left = {}, MAX_COMPARED
    for name in known:
        if not name.startswith("%"):
            ours[name.lower()] = name
            left -= len(name) ** 2
        if left < 0:
            break
    return [ours[name] for name in difflib.get_close_matches(topic.lower(), ours, limit, 0.7)]


def split_by_size(sizes: Iterable[int], limit: int, max_count: int) -> list[slice]:
    """Cut consecutive items into groups of at most *limit* bytes and *max_count* items; one too-big
    item is a group of its own.
    """
    cuts, total, count = [0], 0, 0
    at = 0
    for at, size in enumerate(sizes, 1):
        if count and (total + size > limit or count == max_count):
            cuts.append(at - 1)
            total, count = 0, 0
        total += size
        count += 1
    cuts.append(at)
    return [slice(a, b) for a, b in pairwise(cuts) if b > a]
