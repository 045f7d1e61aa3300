"""Heartbeats, clients, subscriptions, assignments and queue locks."""

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.json_fields import (
    JsonObject,
    as_object,
    as_text,
    check_long,
    dumps,
    get_field,
    get_list,
    get_queue_table,
    get_table,
    listed,
    loads_object,
    loads_table,
    member,
    queue_from_json,
    queue_map_dumps,
    queue_to_json,
)
from ogive.wire.message import java_hash

SQL92: Final = "SQL92"


def _code(value: Any) -> int:
    try:
        code = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ProtocolError("codeSet holds something that is not an integer") from None
    return check_long(code, "a number in codeSet")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData(JsonObject):
    """A group's subscription to one topic.

    Brokers filter by *codes* (Java hashes of the tags). Source: SubscriptionData.java.
    """

    topic: str
    expression: str = member("subString", default="*")
    tags: tuple[str, ...] = listed("tagsSet", as_text, default=())
    codes: tuple[int, ...] = listed("codeSet", _code, default=())
    version: int = member("subVersion", default=0)
    expression_type: str = "TAG"
    class_filter: bool = member("classFilterMode", default=False)

    @classmethod
    def of_tags(cls, topic: str, expression: str = "*", version: int = 0) -> Self:
        """Subscribe to tags: ``a || b``, or ``*`` (also empty) for all."""
        words = tuple(
            dict.fromkeys(word.strip() for word in expression.split("||") if word.strip())
        )
        if not words or words == ("*",):
            return cls(topic=topic, version=version)
        return cls(
            topic=topic,
            expression=expression,
            tags=words,
            codes=tuple(java_hash(word) for word in words),
            version=version,
        )

    @classmethod
    def of_sql(cls, topic: str, expression: str, version: int = 0) -> Self:
        """Subscribe by a condition over the properties of messages."""
        return cls(topic=topic, expression=expression, version=version, expression_type=SQL92)


# limit for the producer groups, and for the consumer groups, in a heartbeat; a broker accepts fewer
MAX_GROUPS: Final = 1_024
# limit for the subscriptions of all groups in a heartbeat
MAX_SUBSCRIPTIONS: Final = 20_000
# limit for the queues that one request locks or unlocks
MAX_LOCKED: Final = 65_536
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


def _enum(obj: Mapping[str, Any], name: str, names: tuple[str, ...], default: str) -> str:
    """Read a Java enum: its name, or its position, as clients in C++ write it."""
    value = obj.get(name)
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    text = get_field(obj, name, str, default)
    if text not in names:
        raise ProtocolError(f"member {name} is not one of {', '.join(names)}")
    return text


def _choice(names: tuple[str, ...], default: str) -> Any:
    return member(read=lambda obj, name: _enum(obj, name, names, default), default=default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData(JsonObject):
    """A group as registered by one of its members. Source: ConsumerData.java."""

    group: str = member("groupName")
    consume_type: str = _choice(CONSUME_TYPES, "CONSUME_PASSIVELY")
    message_model: str = _choice(MESSAGE_MODELS, "CLUSTERING")
    consume_from_where: str = _choice(CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET")
    subscriptions: tuple[SubscriptionData, ...] = listed(
        "subscriptionDataSet", SubscriptionData.from_json, SubscriptionData.to_json, default=()
    )
    unit_mode: bool = False


def _producer_group(value: Any) -> str:
    return get_field(as_object(value, "producer data"), "groupName", str, "")


def _consumers(obj: Mapping[str, Any], name: str) -> tuple[ConsumerData, ...]:
    groups = get_field(obj, name, list, [])
    subscriptions = [
        group.get("subscriptionDataSet") for group in groups if isinstance(group, dict)
    ]
    if sum([len(found) for found in subscriptions if isinstance(found, list)]) > MAX_SUBSCRIPTIONS:
        raise ProtocolError(f"a heartbeat holds more than {MAX_SUBSCRIPTIONS} subscriptions")
    return tuple(get_list(obj, name, ConsumerData.from_json, MAX_GROUPS))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData(JsonObject):
    """Body of HEART_BEAT. Source: HeartbeatData.java.

    *without_sub*: the subscriptions are left out because the broker knows them (fingerprint).
    """

    client_id: str = member("clientID")
    producers: tuple[str, ...] = listed(
        "producerDataSet",
        _producer_group,
        lambda group: {"groupName": group},
        most=MAX_GROUPS,
        default=(),
    )
    consumers: tuple[ConsumerData, ...] = member(
        "consumerDataSet",
        read=_consumers,
        write=lambda groups: [group.to_json() for group in groups],
        default=(),
    )
    fingerprint: int = member("heartbeatFingerprint", default=0)
    without_sub: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchBody(JsonObject):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. Source: LockBatchRequestBody.java."""

    group: str = member("consumerGroup")
    client_id: str
    queues: tuple[MessageQueue, ...] = listed(
        "mqSet", queue_from_json, queue_to_json, most=MAX_LOCKED
    )
    only_this_broker: bool = False


def locked_queues_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Answer of LOCK_BATCH_MQ."""
    return dumps({"lockOKMQSet": [queue_to_json(queue) for queue in queues]})


def locked_queues_loads(body: bytes) -> list[MessageQueue]:
    return get_list(loads_object(body), "lockOKMQSet", queue_from_json)


def consumer_ids_dumps(client_ids: Iterable[str]) -> bytes:
    """Answer of GET_CONSUMER_LIST_BY_GROUP."""
    return dumps({"consumerIdList": list(client_ids)})


def consumer_ids_loads(body: bytes) -> list[str]:
    return get_list(loads_object(body), "consumerIdList", as_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo(JsonObject):
    """One client in GET_CONSUMER_CONNECTION_LIST. Source: Connection.java."""

    client_id: str
    address: str = member("clientAddr")
    language: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection(JsonObject):
    """The members of a group and their subscriptions. Source: ConsumerConnection.java."""

    connections: tuple[ConnectionInfo, ...] = listed(
        "connectionSet", ConnectionInfo.from_json, ConnectionInfo.to_json
    )
    subscriptions: Mapping[str, SubscriptionData] = member(
        "subscriptionTable",
        read=lambda obj, name: get_table(obj, name, SubscriptionData.from_json),
        write=lambda table: {topic: one.to_json() for topic, one in table.items()},
    )
    consume_type: str
    message_model: str
    consume_from_where: str


def producer_connections_dumps(connections: Iterable[ConnectionInfo]) -> bytes:
    """Answer of GET_PRODUCER_CONNECTION_LIST. Source: ProducerConnection.java."""
    return dumps({"connectionSet": [c.to_json() for c in connections]})


def producer_connections_loads(body: bytes) -> list[ConnectionInfo]:
    return get_list(loads_object(body), "connectionSet", ConnectionInfo.from_json)


def group_list_dumps(groups: Iterable[str]) -> bytes:
    """Answer of QUERY_TOPIC_CONSUME_BY_WHO. Source: GroupList.java."""
    return dumps({"groupList": list(groups)})


def group_list_loads(body: bytes) -> list[str]:
    return get_list(loads_object(body), "groupList", as_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo(JsonObject):
    """A producer in GET_ALL_PRODUCER_INFO; *seen_ms* is the time of its last heartbeat.

    Source: ProducerInfo.java.
    """

    client_id: str
    # as Java prints a socket's address
    address: str = member("remoteIP", write=lambda address: f"/{address}")
    language: str
    version: int
    seen_ms: int = member("lastUpdateTimestamp")


def producer_table_dumps(groups: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """Write the answer of GET_ALL_PRODUCER_INFO. Source: ProducerTableInfo.java."""
    return dumps(
        {"data": {group: [info.to_json() for info in infos] for group, infos in groups.items()}}
    )


def group_subscription_dumps(
    group: str, topic: str, subscription: SubscriptionData | None
) -> bytes:
    """Answer of QUERY_SUBSCRIPTION_BY_CONSUMER. Source: QuerySubscriptionResponseBody.java."""
    return dumps(
        {
            "group": group,
            "subscriptionData": None if subscription is None else subscription.to_json(),
            "topic": topic,
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentQuery(JsonObject):
    """Body of QUERY_ASSIGNMENT. Source: QueryAssignmentRequestBody.java."""

    topic: str
    group: str = member("consumerGroup")
    client_id: str
    strategy: str = member("strategyName")
    message_model: str = member(absent="CLUSTERING")


def assignments_dumps(queues: Iterable[MessageQueue], mode: str = "PULL") -> bytes:
    """Answer of QUERY_ASSIGNMENT. To pop, queue id -1 means all queues of the broker.

    Source: QueryAssignmentResponseBody.java.
    """
    return dumps(
        {
            "messageQueueAssignments": [
                {"messageQueue": queue_to_json(queue), "mode": mode} for queue in queues
            ]
        }
    )


def assignments_loads(body: bytes) -> list[tuple[MessageQueue, str]] | None:
    """Read the answer of QUERY_ASSIGNMENT: queues, each with PULL or POP. Raises ProtocolError.

    Return None if the client keeps what it has.
    """
    value = loads_object(body).get("messageQueueAssignments")
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_LOCKED:
        raise ProtocolError("messageQueueAssignments is not a list of queues")
    rows = [as_object(row, "an assignment") for row in value]
    return [
        (queue_from_json(row.get("messageQueue")), get_field(row, "mode", str, "PULL"))
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMode(JsonObject):
    """Body of SET_MESSAGE_REQUEST_MODE. Source: SetMessageRequestModeRequestBody.java."""

    topic: str
    group: str = member("consumerGroup")
    mode: str = member(absent="PULL")
    share_queues: int = member("popShareQueueNum", absent=0)
    """With POP: so many other members pop a member's queues as well; 0: all members all queues."""


# --- running information --------------------------------------------------------------------------
# Running info of a consumer, for brokers and tools.
#
# Source: ConsumerRunningInfo.java and its parts, 5.5.


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
