"""The body of GET_CONSUMER_RUNNING_INFO, as its reader needs it. Source: ConsumerRunningInfo.java, ProcessQueueInfo.java, 5.5.

Clients of other languages fill in less than Java's: whatever is absent is None, or empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire import java_json
from ogive.wire.bodies import SubscriptionData, loads_object, queue_from_json


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRunningInfo:
    """What a member does with one queue. *cached* messages wait in the member; times in ms."""

    committed_offset: int | None
    cached: int | None
    cached_mib: int | None
    locked: bool | None
    dropped: bool | None
    last_pull_ms: int | None
    last_consume_ms: int | None

    @classmethod
    def from_json(cls, value: Any) -> Self:
        row = _object(value, "mqTable")
        return cls(
            committed_offset=_int(row, "commitOffset"),
            cached=_int(row, "cachedMsgCount"),
            cached_mib=_int(row, "cachedMsgSizeInMiB"),
            locked=_bool(row, "locked"),
            dropped=_bool(row, "droped"),
            last_pull_ms=_int(row, "lastPullTimestamp"),
            last_consume_ms=_int(row, "lastConsumeTimestamp"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRunningInfo:
    """Rates of one topic over the last minute. *consume_ms* and *pull_ms* are averages of one call."""

    ok_per_s: float | None
    failed_per_s: float | None
    pulled_per_s: float | None
    consume_ms: float | None
    pull_ms: float | None

    @classmethod
    def from_json(cls, value: Any) -> Self:
        row = _object(value, "statusTable")
        return cls(
            ok_per_s=_float(row, "consumeOKTPS"),
            failed_per_s=_float(row, "consumeFailedTPS"),
            pulled_per_s=_float(row, "pullTPS"),
            consume_ms=_float(row, "consumeRT"),
            pull_ms=_float(row, "pullRT"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningInfo:
    """A member of a group, by its own account. *stack*: its threads, where that was asked for and it can tell."""

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, QueueRunningInfo]
    topics: Mapping[str, TopicRunningInfo]
    stack: str | None = None

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        stack = obj.get("jstack")
        queues = _table(obj, "mqTable")
        return cls(
            properties={str(name): str(value) for name, value in _table(obj, "properties").items()},
            subscriptions=tuple(SubscriptionData.from_json(row) for row in _list(obj, "subscriptionSet")),
            queues={
                queue_from_json(java_json.loads(key) if isinstance(key, str) else key): QueueRunningInfo.from_json(row)
                for key, row in queues.items()
            },
            topics={str(topic): TopicRunningInfo.from_json(row) for topic, row in _table(obj, "statusTable").items()},
            stack=stack if isinstance(stack, str) else None,
        )


def _object(value: Any, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is no JSON object")
    return value


def _table(obj: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
    value = obj.get(name)
    return {} if value is None else _object(value, name)


def _list(obj: Mapping[str, Any], name: str) -> list[Any]:
    value = obj.get(name)
    if value is not None and not isinstance(value, list):
        raise ProtocolError(f"{name} is no list")
    return value or []


def _int(row: Mapping[Any, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and type(value) is not int:
        raise ProtocolError(f"member {name} is no integer")
    return value


def _float(row: Mapping[Any, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProtocolError(f"member {name} is no number")
    return float(value)


def _bool(row: Mapping[Any, Any], name: str) -> bool | None:
    value = row.get(name)
    if value is not None and type(value) is not bool:
        raise ProtocolError(f"member {name} is neither true nor false")
    return value
