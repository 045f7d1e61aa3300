"""Answers of brokers to administration tools. Source: remoting/protocol/body, 5.5."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ogive.model import MessageQueue
from ogive.wire.bodies.clients import SubscriptionData
from ogive.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.fields import (
    dumps,
    get_field,
    get_list,
    loads_object,
    queue_map_dumps,
    queue_to_json,
)

# topics or groups that one request makes
MAX_LISTED: Final = 10_000


def topic_configs_loads(body: bytes) -> list[TopicConfig]:
    """Body of UPDATE_AND_CREATE_TOPIC_LIST. Source: CreateTopicListRequestBody.java."""
    return get_list(loads_object(body), "topicConfigList", TopicConfig.from_json, MAX_LISTED)


def group_configs_loads(body: bytes) -> list[SubscriptionGroupConfig]:
    """Body of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST. Source: SubscriptionGroupList.java."""
    return get_list(
        loads_object(body), "groupConfigList", SubscriptionGroupConfig.from_json, MAX_LISTED
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    """A producer in GET_ALL_PRODUCER_INFO; *seen_ms* is the time of its last heartbeat.

    Source: ProducerInfo.java.
    """

    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int

    def to_json(self) -> dict[str, Any]:
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.seen_ms,
            # as Java prints a socket's address
            "remoteIP": f"/{self.address}",
            "version": self.version,
        }


def producer_table_dumps(groups: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """Source: ProducerTableInfo.java."""
    return dumps(
        {"data": {group: [info.to_json() for info in infos] for group, infos in groups.items()}}
    )


def group_status_dumps(clients: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Answer of INVOKE_BROKER_TO_GET_CONSUMER_STATUS: offsets by client and queue.

    Source: GetConsumerStatusBody.java.
    """
    tables = (
        f"{dumps(name).decode()}:{queue_map_dumps((queue, str(at)) for queue, at in table.items())}"
        for name, table in clients.items()
    )
    return f'{{"consumerTable":{{{",".join(tables)}}},"messageQueueTable":{{}}}}'.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEntry:
    """One consume-queue entry in QUERY_CONSUME_QUEUE.

    *passes*: whether the group's filter lets it pass. Source: ConsumeQueueData.java.
    """

    commitlog_offset: int
    size: int
    tags_code: int
    passes: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "bitMap": None,
            "eval": self.passes,
            "extendDataJson": None,
            "msg": None,
            "physicOffset": self.commitlog_offset,
            "physicSize": self.size,
            "tagsCode": self.tags_code,
        }


def queue_entries_dumps(
    entries: Iterable[QueueEntry],
    first: int,
    end: int,
    subscription: SubscriptionData | None,
    filter_data: str | None,
) -> bytes:
    """Source: QueryConsumeQueueResponseBody.java."""
    return dumps(
        {
            "filterData": filter_data,
            "maxQueueIndex": end,
            "minQueueIndex": first,
            "queueData": [entry.to_json() for entry in entries],
            "subscriptionData": None if subscription is None else subscription.to_json(),
        }
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
class AssignmentQuery:
    """Body of QUERY_ASSIGNMENT. Source: QueryAssignmentRequestBody.java."""

    topic: str
    group: str
    client_id: str
    strategy: str
    message_model: str

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        return cls(
            topic=get_field(obj, "topic", str, ""),
            group=get_field(obj, "consumerGroup", str, ""),
            client_id=get_field(obj, "clientId", str, ""),
            strategy=get_field(obj, "strategyName", str, ""),
            message_model=get_field(obj, "messageModel", str, "CLUSTERING"),
        )


def pull_assignments_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Answer of QUERY_ASSIGNMENT: queues to be pulled. Source: QueryAssignmentResponseBody.java."""
    return dumps(
        {
            "messageQueueAssignments": [
                {"messageQueue": queue_to_json(queue), "mode": "PULL"} for queue in queues
            ]
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMode:
    """Body of SET_MESSAGE_REQUEST_MODE. Source: SetMessageRequestModeRequestBody.java."""

    topic: str
    group: str
    mode: str

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        return cls(
            topic=get_field(obj, "topic", str, ""),
            group=get_field(obj, "consumerGroup", str, ""),
            mode=get_field(obj, "mode", str, "PULL"),
        )
