"""Positions in queues: as Spark's checkpoint keeps them, and as the options of start and end mean
them. Pure.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from ogive.errors import InvalidOption
from ogive.model import MessageQueue
from ogive.spark.bounds import EARLIEST, LATEST, AtTime, AtTimes, Behind, Bound, QueueNumbers
from ogive.wire.bodies import TopicOffset

VERSION: Final = 1

Positions = Mapping[MessageQueue, int]
Spans = Mapping[MessageQueue, TopicOffset]


# --- in the checkpoint ----------------------------------------------------------------------------


def fingerprint(selection: str, subscription: str) -> str:
    """What a checkpoint belongs to.

    With other topics or another filter its offsets would silently mean something else.
    """
    return hashlib.sha256(f"{selection}\0\0{subscription}".encode()).hexdigest()[:16]


def to_offset(
    positions: Positions,
    owner: str,
    entering: Collection[MessageQueue] = (),
    stored_ms: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """``{"f": owner, "q": {topic: {broker: {queue id: offset}}}, "v": 1}``, in one order only:
    Spark compares offsets as text.

    *entering* are queues that the query takes up at their position, and reads nothing before it:
    ``"e": [[topic, broker, queue id]]``. *stored_ms* has the time at which the message before each
    position was stored, in the form of the positions: ``"t"``. Releases that do not know it ignore
    it.
    """
    entered = (
        {"e": [[queue.topic, queue.broker_name, queue.queue_id] for queue in sorted(entering)]}
        if entering
        else {}
    )
    times = {"t": _by_topic(stored_ms)} if stored_ms else {}
    return {**entered, "f": owner, "q": _by_topic(positions), **times, "v": VERSION}


def _by_topic(numbers: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(numbers):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[
            str(queue.queue_id)
        ] = numbers[queue]
    return topics


def _by_queue(topics: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[MessageQueue, int]:
    return {
        MessageQueue(topic, broker_name, int(queue_id)): number
        for topic, brokers in topics.items()
        for broker_name, queues in brokers.items()
        for queue_id, number in queues.items()
    }


def entering(offset: Mapping[str, Any]) -> set[MessageQueue]:
    """The queues of which a batch that ends at *offset* reads nothing."""
    return {
        MessageQueue(topic, broker_name, queue_id)
        for topic, broker_name, queue_id in offset.get("e", ())
    }


def from_offset(offset: Mapping[str, Any], owner: str) -> dict[MessageQueue, int]:
    """The positions that `to_offset` wrote.

    Raises InvalidOption for a checkpoint of another query or a later release.
    """
    if offset.get("v") != VERSION:
        raise InvalidOption(
            f"the checkpoint holds offsets of version {offset.get('v')}, this release reads "
            f"version {VERSION}"
        )
    if offset.get("f") != owner:
        topics = ", ".join(sorted(offset.get("q", {})))
        raise InvalidOption(
            "the checkpoint belongs to a query with other topics, queues or another filter (its "
            f"topics: {topics}); use a new "
            "checkpointLocation"
        )
    return _by_queue(offset["q"])


def last_stored(offset: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the store time in ms of the last message read of each queue, as in *offset*."""
    return _by_queue(offset.get("t", {}))


def behind(source: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """For each queue of a source in the progress of a query: messages behind its last batch.

    Empty where Spark says nothing.
    """
    latest, end = (_queues_of(source.get(name)) for name in ("latestOffset", "endOffset"))
    return {
        MessageQueue(topic, broker_name, int(queue_id)): max(
            0, offset - end.get(topic, {}).get(broker_name, {}).get(queue_id, 0)
        )
        for topic, brokers in latest.items()
        for broker_name, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def _queues_of(offset: Any) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
    """In the progress an offset is an object, its text, or null."""
    value = json.loads(offset) if isinstance(offset, str) else offset
    queues: Mapping[str, Any] = value.get("q", {}) if isinstance(value, dict) else {}
    return queues


# --- in options -----------------------------------------------------------------------------------


def times_wanted(name: str, bound: Bound | None, spans: Spans) -> dict[MessageQueue, int]:
    """The times, in ms, whose offsets a broker must find for *bound*; empty for one that names no
    times. Raises InvalidOption.
    """
    if isinstance(bound, AtTime):
        return dict.fromkeys(spans, bound.ms)
    return _numbers_for(name, bound.ms, spans) if isinstance(bound, AtTimes) else {}


def resolve(
    name: str,
    bound: Bound,
    spans: Spans,
    committed: Positions,
    found: Positions | None = None,
    *,
    beyond: bool = False,
) -> dict[MessageQueue, int]:
    """The position that option *name* means in every queue of *spans*.

    A group without an offset in a queue starts with the first message.

    *found* are the offsets of `times_wanted`. With *beyond* offsets may lie behind the end of their
    queue: a stream gets there later. Raises InvalidOption where JSON offsets do not fit the queues.
    """
    if isinstance(bound, dict):
        return _resolve_json(name, bound, spans, beyond=beyond)
    if isinstance(bound, AtTime | AtTimes):
        return {
            queue: min(max((found or {})[queue], span.min_offset), span.max_offset)
            for queue, span in spans.items()
        }
    if isinstance(bound, Behind):
        return {
            queue: max(span.min_offset, span.max_offset - bound.count)
            for queue, span in spans.items()
        }
    if bound == "group":
        return {queue: committed.get(queue, span.min_offset) for queue, span in spans.items()}
    return {
        queue: _at(EARLIEST if bound == "earliest" else LATEST, span)
        for queue, span in spans.items()
    }


def _resolve_json(
    name: str, given: QueueNumbers, spans: Spans, *, beyond: bool
) -> dict[MessageQueue, int]:
    wanted = _numbers_for(name, given, spans)
    for queue, offset in wanted.items():
        if offset > spans[queue].max_offset and not beyond:
            raise InvalidOption(
                f"{name} says {offset} for queue {queue}, which ends at {spans[queue].max_offset}"
            )
    return {queue: _at(offset, spans[queue]) for queue, offset in wanted.items()}


def _numbers_for(name: str, given: QueueNumbers, spans: Spans) -> dict[MessageQueue, int]:
    wanted = {
        queue: number
        for topic, brokers in given.items()
        for queue, number in _queues(name, topic, brokers, spans)
    }
    missing, unknown = sorted(spans.keys() - wanted.keys()), sorted(wanted.keys() - spans.keys())
    if missing:
        raise InvalidOption(
            f"{name} says nothing about queue {missing[0]}: every queue needs an entry, as offsets "
            "-2 earliest, -1 latest"
        )
    if unknown:
        raise InvalidOption(f"{name} names queue {unknown[0]}, which does not exist")
    return wanted


def _queues(
    name: str, topic: str, brokers: dict[str, dict[int, int]], spans: Spans
) -> Iterable[tuple[MessageQueue, int]]:
    names = {queue.broker_name for queue in spans if queue.topic == topic}
    for broker_name, queues in brokers.items():
        if not broker_name and len(names) != 1:
            raise InvalidOption(
                f"{name} names no brokers for topic {topic!r}, which is on {len(names)}: "
                f"{', '.join(sorted(names)) or 'none'}"
            )
        for queue_id, offset in queues.items():
            yield MessageQueue(topic, broker_name or next(iter(names)), queue_id), offset


def _at(offset: int, span: TopicOffset) -> int:
    return (
        span.min_offset if offset == EARLIEST else span.max_offset if offset == LATEST else offset
    )
