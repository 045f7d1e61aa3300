"""Running info of a consumer, for brokers and tools.

Source: ConsumerRunningInfo.java and its parts, 5.5.
"""

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ogive.model import MessageQueue
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.json_fields import (
    JsonObject,
    dumps,
    get_field,
    get_list,
    get_queue_table,
    get_table,
    loads_object,
    loads_table,
    member,
    queue_from_json,
    queue_map_dumps,
    queue_to_json,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQueueInfo(JsonObject):
    """The messages of one queue that a member holds.

    *taken_...*: messages that an orderly listener has taken. Source: ProcessQueueInfo.java.
    """

    commit_offset: int = 0
    cached_min_offset: int = member("cachedMsgMinOffset", default=0)
    cached_max_offset: int = member("cachedMsgMaxOffset", default=0)
    cached_count: int = member("cachedMsgCount", default=0)
    cached_mib: int = member("cachedMsgSizeInMiB", default=0)
    taken_min_offset: int = member("transactionMsgMinOffset", default=0)
    taken_max_offset: int = member("transactionMsgMaxOffset", default=0)
    taken_count: int = member("transactionMsgCount", default=0)
    locked: bool = False
    failed_unlocks: int = member("tryUnlockTimes", default=0)
    last_lock_ms: int = member("lastLockTimestamp", default=0)
    dropped: bool = member("droped", default=False)
    last_pull_ms: int = member("lastPullTimestamp", default=0)
    last_consume_ms: int = member("lastConsumeTimestamp", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStatus(JsonObject):
    """Figures of one topic over the last minute: RT in milliseconds, TPS in messages a second.

    Source: ConsumeStatus.java.
    """

    pull_rt: float = member("pullRT", default=0.0)
    pull_tps: float = member("pullTPS", default=0.0)
    consume_rt: float = member("consumeRT", default=0.0)
    consume_ok_tps: float = member("consumeOKTPS", default=0.0)
    consume_failed_tps: float = member("consumeFailedTPS", default=0.0)
    # of the last hour
    consume_failed_count: int = member("consumeFailedMsgs", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRunningInfo:
    """Body of the answer to GET_CONSUMER_RUNNING_INFO.

    *stacks* are the client's threads, if they were requested.
    """

    properties: Mapping[str, str]
    subscriptions: tuple[SubscriptionData, ...]
    queues: Mapping[MessageQueue, ProcessQueueInfo]
    topics: Mapping[str, ConsumeStatus]
    stacks: str | None = None

    def encode(self) -> bytes:
        queues = queue_map_dumps(
            (queue, json.dumps(info.to_json())) for queue, info in sorted(self.queues.items())
        )
        rest: dict[str, Any] = {
            "properties": dict(self.properties),
            "subscriptionSet": [subscription.to_json() for subscription in self.subscriptions],
            "statusTable": {
                topic: status.to_json() for topic, status in sorted(self.topics.items())
            },
            "userConsumerInfo": {},
        }
        if self.stacks is not None:
            rest["jstack"] = self.stacks
        return f'{{"mqTable":{queues},"mqPopTable":{{}},{dumps(rest).decode()[1:]}'.encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body. Raises ProtocolError."""
        obj = loads_table(body)
        return cls(
            properties=get_table(obj, "properties", str),
            subscriptions=tuple(get_list(obj, "subscriptionSet", SubscriptionData.from_json)),
            queues=get_queue_table(obj, "mqTable", ProcessQueueInfo.from_json),
            topics=get_table(obj, "statusTable", ConsumeStatus.from_json),
            stacks=get_field(obj, "jstack", str, "") or None,
        )


def queues_asked_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Return the body of a GET_CONSUMER_RUNNING_INFO that asks about *queues* only.

    Other clients ignore the body.
    """
    return dumps({"queues": [queue_to_json(queue) for queue in queues]})


def queues_asked_loads(body: bytes) -> list[MessageQueue]:
    """Read the body of queues_asked_dumps(). Raises ProtocolError."""
    return get_list(loads_object(body), "queues", queue_from_json)


def holdings_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Return the answer to queues_asked_dumps(): the *queues* that the member holds or claims."""
    return ConsumerRunningInfo(
        properties={}, subscriptions=(), queues=dict.fromkeys(queues, ProcessQueueInfo()), topics={}
    ).encode()


class ConsumeResult(enum.Enum):
    """Outcome of a listener's call. Source: CMResult.java."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    COMMIT = "CR_COMMIT"
    ROLLBACK = "CR_ROLLBACK"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectlyResult:
    """The outcome of a message that a tool passed to a listener.

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
