"""Bounds of a read and positions in queues, as options and checkpoints have them. Pure."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ogive.errors import InvalidOption
from ogive.model import DLQ_PREFIX, RETRY_PREFIX, MessageQueue
from ogive.wire.bodies.stats import TopicOffset


def matching(pattern: str, topics: Iterable[str]) -> list[str]:
    """Return the topics whose whole name matches *pattern*, sorted.

    Retry and dead-letter topics are included only if the pattern itself begins with %.
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

    Raises InvalidOption if one does not exist. Queues that were *read* before may be missing, or
    with *any_missing* any queue: the caller decides what that means.
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


# in offsets given as JSON, as in rocketmq-spark and Kafka
EARLIEST: Final = -2
LATEST: Final = -1

QueueNumbers = dict[str, dict[str, dict[int, int]]]
"""topic -> broker name ("" where the user left it out) -> queue id -> offset (or EARLIEST or
LATEST), or time in ms
"""


@dataclass(frozen=True, slots=True)
class Behind:
    """Bound that is a number of messages before the end of every queue."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Bound at the first message of every queue that was stored at that time or later."""

    ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Bound like AtTime, with a time for each queue."""

    ms: QueueNumbers


Bound = Literal["earliest", "latest", "group"] | Behind | AtTime | AtTimes | QueueNumbers

_WORDS: Final[Mapping[str, Literal["earliest", "latest", "group"]]] = {
    "earliest": "earliest",
    "latest": "latest",
    "group": "group",
}
_JSON_FORM: Final = '{"Orders": {"broker-a": {"0": 23, "1": -2}}} (-2 earliest, -1 latest)'
_TIMES_FORM: Final = '{"Orders": {"broker-a": {"0": 1767225600000, "1": "2026-01-01T00:00:00Z"}}}'
_BEHIND: Final = re.compile(r"latest\s*-\s*(\d{1,18})")
_UNITS_S: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(
    r"(\d{1,12})\s*(ms|s|m|h|d)(?:(?<=[smhd])(?:ec|econds?|in|inutes?|ours?|ays?)?)?"
)
_MAX_MS: Final = 253_402_300_800_000
"""The end of the year 9999: a larger number is in microseconds."""


def offsets_bound(name: str, text: str) -> Bound:
    """Read a bound of offsets. Raises InvalidOption."""
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    behind = _BEHIND.fullmatch(text.strip().lower())
    if behind is not None:
        return Behind(int(behind[1]))
    try:
        return _bounds_by_queue(json.loads(text), _offset)
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(
            f"{name}={text!r}: expected earliest, latest, latest-1000, group, or JSON like "
            f"{_JSON_FORM}"
        ) from None


def time_bound(name: str, text: str, now_ms: int) -> AtTime:
    """Read a bound of one time. Raises InvalidOption."""
    return AtTime(parse_time(name, text, now_ms))


def times_bound(name: str, text: str, now_ms: int) -> AtTimes:
    """Read a bound of a time for each queue. Raises InvalidOption."""
    try:
        return AtTimes(
            _bounds_by_queue(json.loads(text), lambda value: parse_time(name, str(value), now_ms))
        )
    except (ValueError, AttributeError, TypeError):
        # InvalidOption is a ValueError
        raise InvalidOption(f"{name}={text!r}: expected JSON like {_TIMES_FORM}") from None


def parse_time(name: str, text: str, now_ms: int) -> int:
    """Parse ``1767225600000``, ``2026-01-01T00:00:00+01:00`` (UTC without a zone) or ``-10m`` to
    milliseconds since 1970.
    """
    text = text.strip()
    if text.isdecimal() and int(text) < _MAX_MS:
        return int(text)
    if text.startswith("-") and (ago := _seconds(text[1:])) is not None:
        return now_ms - round(1000 * ago)
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidOption(
            f"{name}={text!r}: expected milliseconds since 1970, a time like 2026-01-01T00:00:00Z, "
            "or -10m"
        ) from None


def parse_duration_s(name: str, text: str) -> float:
    """Parse ``500ms``, ``30s``, ``15m`` or ``2 hours`` to seconds. Raises InvalidOption."""
    seconds = _seconds(text)
    if seconds is None:
        raise InvalidOption(f"{name}={text!r}: expected a time like 500ms, 30s, 15m or 2h")
    return seconds


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else int(found[1]) * _UNITS_S[found[2]]


def _bounds_by_queue(topics: dict[str, Any], number: Callable[[Any], int]) -> QueueNumbers:
    return {topic: _brokers(queues, number) for topic, queues in topics.items()}


def _brokers(value: dict[str, Any], number: Callable[[Any], int]) -> dict[str, dict[int, int]]:
    """Return queues by broker name. In Kafka's form, which has no brokers, all belong to a broker
    named "".
    """
    if value and not any(isinstance(part, dict) for part in value.values()):
        value = {"": value}
    return {
        broker: {int(queue_id): number(given) for queue_id, given in queues.items()}
        for broker, queues in value.items()
    }


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(f"{value!r} is not an offset")
    return value


VERSION: Final = 1

Positions = Mapping[MessageQueue, int]
Spans = Mapping[MessageQueue, TopicOffset]


# --- in the checkpoint ----------------------------------------------------------------------------


def fingerprint(selection: str, subscription: str) -> str:
    """Return the identity of a checkpoint.

    With other topics or another filter its offsets would have another meaning.
    """
    return hashlib.sha256(f"{selection}\0\0{subscription}".encode()).hexdigest()[:16]


def to_offset(
    positions: Positions,
    owner: str,
    entering: Collection[MessageQueue] = (),
    stored_ms: Mapping[MessageQueue, int] | None = None,
) -> dict[str, Any]:
    """Return ``{"f": owner, "q": {topic: {broker: {queue id: offset}}}, "v": 1}``, always in the
    same order: Spark compares offsets as text.

    *entering* are queues that the query adds at their position, without reading anything before it:
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
    """Return the queues of which a batch that ends at *offset* reads nothing."""
    return {
        MessageQueue(topic, broker_name, queue_id)
        for topic, broker_name, queue_id in offset.get("e", ())
    }


def from_offset(offset: Mapping[str, Any], owner: str) -> dict[MessageQueue, int]:
    """Return the positions that `to_offset` wrote.

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
    """Return the store time in ms of the last message read from each queue, by *offset*."""
    return _by_queue(offset.get("t", {}))


def behind(source: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the number of messages behind the last batch for each queue of a source, by the
    progress of a query. Empty if Spark does not report it.
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
    """Return the queues of an offset, which is an object, a text, or null in the progress."""
    value = json.loads(offset) if isinstance(offset, str) else offset
    queues: Mapping[str, Any] = value.get("q", {}) if isinstance(value, dict) else {}
    return queues


# --- in options -----------------------------------------------------------------------------------


def times_wanted(name: str, bound: Bound | None, spans: Spans) -> dict[MessageQueue, int]:
    """Return the times, in ms, for which brokers must find the offsets of *bound*; empty for a
    bound without times. Raises InvalidOption.
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
    """Return the position in every queue of *spans* by option *name*.

    A group without an offset in a queue starts at the first message. *found* are the offsets of
    `times_wanted`. With *beyond*, offsets may be behind the end of their queue: a stream reaches
    them later. Raises InvalidOption for JSON offsets that do not fit the queues.
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
