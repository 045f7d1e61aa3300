"""The running info of a consumer, for brokers and tools.

Source: ConsumerRunningInfo.java and its parts, 5.5.
"""

import dataclasses
import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire import java_json
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.json_fields import (
    dumps,
    get_list,
    loads_object,
    loads_table,
    queue_from_json,
    queue_map_dumps,
    queue_to_json,
)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _table(obj: Mapping[str, Any], name: str) -> dict[Any, Any]:
    value = obj.get(name)
    if value is not None and not isinstance(value, dict):
        raise ProtocolError(f"member {name} is no JSON object")
    return value or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo:
    """The messages of one queue that a member holds.

    *taken_...*: messages that an orderly listener has taken. Source: ProcessQueueInfo.java.
    """

    commit_offset: int = 0
    cached_min_offset: int = field(default=0, metadata={"wire": "cachedMsgMinOffset"})
    cached_max_offset: int = field(default=0, metadata={"wire": "cachedMsgMaxOffset"})
    cached_count: int = field(default=0, metadata={"wire": "cachedMsgCount"})
    cached_mib: int = field(default=0, metadata={"wire": "cachedMsgSizeInMiB"})
    taken_min_offset: int = field(default=0, metadata={"wire": "transactionMsgMinOffset"})
    taken_max_offset: int = field(default=0, metadata={"wire": "transactionMsgMaxOffset"})
    taken_count: int = field(default=0, metadata={"wire": "transactionMsgCount"})
    locked: bool = False
    failed_unlocks: int = field(default=0, metadata={"wire": "tryUnlockTimes"})
    last_lock_ms: int = field(default=0, metadata={"wire": "lastLockTimestamp"})
    dropped: bool = field(default=False, metadata={"wire": "droped"})
    last_pull_ms: int = field(default=0, metadata={"wire": "lastPullTimestamp"})
    last_consume_ms: int = field(default=0, metadata={"wire": "lastConsumeTimestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus:
    """Figures of one topic over the last minute: RT in milliseconds, TPS in messages a second.

    Source: ConsumeStatus.java.
    """

    pull_rt: float = field(default=0.0, metadata={"wire": "pullRT"})
    pull_tps: float = field(default=0.0, metadata={"wire": "pullTPS"})
    consume_rt: float = field(default=0.0, metadata={"wire": "consumeRT"})
    consume_ok_tps: float = field(default=0.0, metadata={"wire": "consumeOKTPS"})
    consume_failed_tps: float = field(default=0.0, metadata={"wire": "consumeFailedTPS"})
    # of the last hour
    consume_failed_count: int = field(default=0, metadata={"wire": "consumeFailedMsgs"})


def _to_json(record: ProcessQueueInfo | ConsumeStatus) -> dict[str, Any]:
    return {
        f.metadata.get("wire") or _camel(f.name): getattr(record, f.name)
        for f in dataclasses.fields(record)
    }


def _members(cls: type[ProcessQueueInfo | ConsumeStatus], value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{cls.__name__} is no JSON object")
    found: dict[str, Any] = {}
    for member in dataclasses.fields(cls):
        wire, kind = member.metadata.get("wire") or _camel(member.name), type(member.default)
        got = value.get(wire)
        if got is None:
            continue
        if type(got) is not kind and not (kind is float and type(got) is int):
            raise ProtocolError(f"member {wire} is no {kind.__name__}")
        found[member.name] = kind(got)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """Body of the answer to GET_CONSUMER_RUNNING_INFO.

    *stacks* is the client's to add, where they are asked for.
    """

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, ProcessQueueInfo]
    topics: Mapping[str, ConsumeStatus]
    stacks: str | None = None

    def encode(self) -> bytes:
        queues = queue_map_dumps(
            (queue, json.dumps(_to_json(info))) for queue, info in sorted(self.queues.items())
        )
        rest = {
            "properties": dict(self.properties),
            "subscriptionSet": [subscription.to_json() for subscription in self.subscriptions],
            "statusTable": {
                topic: _to_json(status) for topic, status in sorted(self.topics.items())
            },
            "userConsumerInfo": {},
        }
        return f'{{"mqTable":{queues},"mqPopTable":{{}},{dumps(rest).decode()[1:]}'.encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Raises ProtocolError."""
        obj = loads_table(body)
        queues = {
            queue_from_json(java_json.loads(key) if isinstance(key, str) else key): row
            for key, row in _table(obj, "mqTable").items()
        }
        subscriptions = obj.get("subscriptionSet")
        if subscriptions is not None and not isinstance(subscriptions, list):
            raise ProtocolError("member subscriptionSet is no list")
        return cls(
            properties={str(name): str(value) for name, value in _table(obj, "properties").items()},
            subscriptions=tuple(SubscriptionData.from_json(value) for value in subscriptions or ()),
            queues={
                queue: ProcessQueueInfo(**_members(ProcessQueueInfo, row))
                for queue, row in queues.items()
            },
            topics={
                str(topic): ConsumeStatus(**_members(ConsumeStatus, row))
                for topic, row in _table(obj, "statusTable").items()
            },
            stacks=obj.get("jstack"),
        )


def queues_asked_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Return the body of a GET_CONSUMER_RUNNING_INFO that asks about *queues* only.

    Other clients ignore the body.
    """
    return dumps({"queues": [queue_to_json(queue) for queue in queues]})


def queues_asked_loads(body: bytes) -> list[MessageQueue]:
    """Return the queues that such a body asks about. Raises ProtocolError."""
    return get_list(loads_object(body), "queues", queue_from_json)


def holdings_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Return the answer to it: the *queues* that the member holds or claims."""
    return ConsumerRunningInfo(
        properties={}, subscriptions=(), queues=dict.fromkeys(queues, ProcessQueueInfo()), topics={}
    ).encode()


class ConsumeResult(enum.Enum):
    """Source: CMResult.java."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    COMMIT = "CR_COMMIT"
    ROLLBACK = "CR_ROLLBACK"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectlyResult:
    """The outcome of a message that a tool gave to a listener.

    Source: ConsumeMessageDirectlyResult.java.
    """

    result: ConsumeResult
    orderly: bool
    spent_ms: int
    remark: str = ""

    def encode(self) -> bytes:
        return dumps(
            {
                "autoCommit": True,
                "consumeResult": self.result.value,
                "order": self.orderly,
                "remark": self.remark,
                "spentTimeMills": self.spent_ms,
            }
        )
