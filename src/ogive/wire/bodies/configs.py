"""Configuration of topics and groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ogive.wire.bodies.json_fields import PERM_READ, PERM_WRITE, as_object, get_field, get_list


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Equal versions mean equal tables; *counter* grows with each change.

    Source: DataVersion.java.
    """

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> Self:
        return type(self)(self.counter + 1, now_ms, self.state_version)

    def to_json(self) -> dict[str, Any]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "data version")
        return cls(
            get_field(obj, "counter", int, 0),
            get_field(obj, "timestamp", int, 0),
            get_field(obj, "stateVersion", int, 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic at one broker. Source: TopicConfig.java."""

    name: str
    read_queues: int = 4
    write_queues: int = 4
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "topic configuration")
        attributes = as_object(obj.get("attributes") or {}, "topic attributes")
        return cls(
            name=get_field(obj, "topicName", str, ""),
            read_queues=get_field(obj, "readQueueNums", int, 16),
            write_queues=get_field(obj, "writeQueueNums", int, 16),
            perm=get_field(obj, "perm", int, PERM_READ | PERM_WRITE),
            filter_type=get_field(obj, "topicFilterType", str, "SINGLE_TAG"),
            sys_flag=get_field(obj, "topicSysFlag", int, 0),
            order=get_field(obj, "order", bool, False),
            attributes={str(k): str(v) for k, v in attributes.items()},
        )


DEFAULT_RETRY_POLICY: Final[Mapping[str, Any]] = {"type": "CUSTOMIZED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group at one broker. Source: SubscriptionGroupConfig.java, 5.5.

    *attributes* of a request are changes: "+name" with the value, or "-name". *retry_policy* and
    *subscriptions* are as they came.
    """

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed: bool = True
    consume_timeout_minutes: int = 15
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)
    retry_policy: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_RETRY_POLICY)
    subscriptions: tuple[Mapping[str, Any], ...] | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": dict(self.retry_policy),
            "groupSysFlag": self.sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        if self.subscriptions is not None:
            out["subscriptionDataSet"] = [dict(subscription) for subscription in self.subscriptions]
        return out

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "group configuration")
        attributes = as_object(obj.get("attributes") or {}, "group attributes")
        subscriptions = get_list(
            obj, "subscriptionDataSet", lambda item: as_object(item, "subscription of a group")
        )
        return cls(
            name=get_field(obj, "groupName", str, ""),
            consume_enable=get_field(obj, "consumeEnable", bool, True),
            consume_from_min_enable=get_field(obj, "consumeFromMinEnable", bool, True),
            consume_broadcast_enable=get_field(obj, "consumeBroadcastEnable", bool, True),
            consume_message_orderly=get_field(obj, "consumeMessageOrderly", bool, False),
            retry_queues=get_field(obj, "retryQueueNums", int, 1),
            retry_max_times=get_field(obj, "retryMaxTimes", int, 16),
            broker_id=get_field(obj, "brokerId", int, 0),
            which_broker_when_consume_slowly=get_field(obj, "whichBrokerWhenConsumeSlowly", int, 1),
            notify_consumer_ids_changed=get_field(
                obj, "notifyConsumerIdsChangedEnable", bool, True
            ),
            consume_timeout_minutes=get_field(obj, "consumeTimeoutMinute", int, 15),
            sys_flag=get_field(obj, "groupSysFlag", int, 0),
            attributes={str(k): "" if v is None else str(v) for k, v in attributes.items()},
            retry_policy=as_object(
                obj.get("groupRetryPolicy") or DEFAULT_RETRY_POLICY, "retry policy"
            ),
            subscriptions=None if obj.get("subscriptionDataSet") is None else tuple(subscriptions),
        )
