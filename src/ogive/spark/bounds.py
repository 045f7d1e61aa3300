"""The start and end of a read, as given by options: words, offsets, times. Pure."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ogive.errors import InvalidOption

# in offsets given as JSON, as in rocketmq-spark and Kafka
EARLIEST: Final = -2
LATEST: Final = -1

QueueNumbers = dict[str, dict[str, dict[int, int]]]
"""topic -> broker name ("" where the user left it out) -> queue id -> offset (or EARLIEST or
LATEST), or time in ms
"""


@dataclass(frozen=True, slots=True)
class Behind:
    """So many messages before the end of every queue."""

    count: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at that time or later, in every queue."""

    ms: int


@dataclass(frozen=True, slots=True)
class AtTimes:
    """The same with a time for each queue."""

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
_MAX_MS: Final = 1 << 62


def offsets_bound(name: str, text: str) -> Bound:
    """Raises InvalidOption."""
    word = _WORDS.get(text.strip().lower())
    if word is not None:
        return word
    behind = _BEHIND.fullmatch(text.strip().lower())
    if behind is not None:
        return Behind(int(behind[1]))
    try:
        return _by_queue(json.loads(text), _offset)
    except (ValueError, AttributeError, TypeError):
        raise InvalidOption(
            f"{name}={text!r}: expected earliest, latest, latest-1000, group, or JSON like "
            f"{_JSON_FORM}"
        ) from None


def time_bound(name: str, text: str, now_ms: int) -> AtTime:
    """Raises InvalidOption."""
    return AtTime(parse_time(name, text, now_ms))


def times_bound(name: str, text: str, now_ms: int) -> AtTimes:
    """Raises InvalidOption."""
    try:
        return AtTimes(
            _by_queue(json.loads(text), lambda value: parse_time(name, str(value), now_ms))
        )
    except (ValueError, AttributeError, TypeError):
        # InvalidOption is a ValueError
        raise InvalidOption(f"{name}={text!r}: expected JSON like {_TIMES_FORM}") from None


def parse_time(name: str, text: str, now_ms: int) -> int:
    """Milliseconds since 1970: of ``1767225600000``, of ``2026-01-01T00:00:00+01:00`` (UTC where it
    names no zone), of ``-10m``.
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
    """``500ms``, ``30s``, ``15m``, ``2 hours``. Raises InvalidOption."""
    seconds = _seconds(text)
    if seconds is None:
        raise InvalidOption(f"{name}={text!r}: expected a time like 500ms, 30s, 15m or 2h")
    return seconds


def _seconds(text: str) -> float | None:
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else int(found[1]) * _UNITS_S[found[2]]


def _by_queue(topics: dict[str, Any], number: Callable[[Any], int]) -> QueueNumbers:
    return {topic: _brokers(queues, number) for topic, queues in topics.items()}


def _brokers(value: dict[str, Any], number: Callable[[Any], int]) -> dict[str, dict[int, int]]:
    """Broker name -> queues; Kafka's form, which has no brokers, becomes the one broker named
    "".
    """
    if value and not any(isinstance(part, dict) for part in value.values()):
        value = {"": value}
    return {
        broker: {int(queue_id): number(given) for queue_id, given in queues.items()}
        for broker, queues in value.items()
    }


def _offset(value: Any) -> int:
    if type(value) is not int or value < EARLIEST:
        raise ValueError(f"{value!r} is no offset")
    return value
