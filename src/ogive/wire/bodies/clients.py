"""Heartbeats, members, subscriptions and queue locks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies.json_fields import (
    as_object,
    as_text,
    dumps,
    get_field,
    get_list,
    loads_object,
    queue_from_json,
    queue_to_json,
)
from ogive.wire.message import java_hash

SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """A group's subscription to one topic.

    Brokers filter by *codes* (Java hashes of the tags). Source: SubscriptionData.java.
    """

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    expression_type: str = "TAG"
    class_filter: bool = False

    @classmethod
    def of_tags(cls, topic: str, expression: str = "*", version: int = 0) -> Self:
        """``a || b``, or ``*`` (also empty) for all."""
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
        """A condition over the properties of messages."""
        return cls(topic=topic, expression=expression, version=version, expression_type=SQL92)

    def to_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": self.class_filter,
            "codeSet": list(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": list(self.tags),
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "subscription")
        return cls(
            topic=get_field(obj, "topic", str, ""),
            expression=get_field(obj, "subString", str, "*"),
            tags=tuple(get_list(obj, "tagsSet", as_text)),
            codes=tuple(get_list(obj, "codeSet", _code)),
            version=get_field(obj, "subVersion", int, 0),
            expression_type=get_field(obj, "expressionType", str, "TAG"),
            class_filter=get_field(obj, "classFilterMode", bool, False),
        )


def _code(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ProtocolError("codeSet holds something that is no integer") from None


# producers', and as many of consumers, in a heartbeat that is read; a broker takes fewer
MAX_GROUPS: Final = 1_024
# of all groups in a heartbeat
MAX_SUBSCRIPTIONS: Final = 20_000
# queues that are locked or given back at once
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
        raise ProtocolError(f"member {name} is none of {', '.join(names)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    """A group as one of its members sees it. Source: ConsumerData.java."""

    group: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where,
            "consumeType": self.consume_type,
            "groupName": self.group,
            "messageModel": self.message_model,
            "subscriptionDataSet": [s.to_json() for s in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "consumer data")
        return cls(
            group=get_field(obj, "groupName", str, ""),
            consume_type=_enum(obj, "consumeType", CONSUME_TYPES, "CONSUME_PASSIVELY"),
            message_model=_enum(obj, "messageModel", MESSAGE_MODELS, "CLUSTERING"),
            consume_from_where=_enum(
                obj, "consumeFromWhere", CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET"
            ),
            subscriptions=tuple(get_list(obj, "subscriptionDataSet", SubscriptionData.from_json)),
            unit_mode=get_field(obj, "unitMode", bool, False),
        )


def _producer_group(value: Any) -> str:
    return get_field(as_object(value, "producer data"), "groupName", str, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """Source: HeartbeatData.java.

    *without_sub*: the subscriptions are left out because the broker knows them (fingerprint).
    """

    client_id: str
    producers: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    without_sub: bool = False

    def encode(self) -> bytes:
        return dumps(
            {
                "clientID": self.client_id,
                "consumerDataSet": [c.to_json() for c in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producers],
                "withoutSub": self.without_sub,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        groups = get_field(obj, "consumerDataSet", list, [])
        subscriptions = [
            group.get("subscriptionDataSet") for group in groups if isinstance(group, dict)
        ]
        if (
            sum([len(found) for found in subscriptions if isinstance(found, list)])
            > MAX_SUBSCRIPTIONS
        ):
            raise ProtocolError(f"a heartbeat holds more than {MAX_SUBSCRIPTIONS} subscriptions")
        return cls(
            client_id=get_field(obj, "clientID", str, ""),
            producers=tuple(get_list(obj, "producerDataSet", _producer_group, MAX_GROUPS)),
            consumers=tuple(get_list(obj, "consumerDataSet", ConsumerData.from_json, MAX_GROUPS)),
            fingerprint=get_field(obj, "heartbeatFingerprint", int, 0),
            without_sub=get_field(obj, "withoutSub", bool, False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchBody:
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. Source: LockBatchRequestBody.java."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]

    def encode(self) -> bytes:
        queues = [queue_to_json(queue) for queue in self.queues]
        return dumps(
            {
                "clientId": self.client_id,
                "consumerGroup": self.group,
                "mqSet": queues,
                "onlyThisBroker": False,
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        return cls(
            group=get_field(obj, "consumerGroup", str, ""),
            client_id=get_field(obj, "clientId", str, ""),
            queues=tuple(get_list(obj, "mqSet", queue_from_json, MAX_LOCKED)),
        )


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
class Connection:
    """One client as GET_CONSUMER_CONNECTION_LIST shows it. Source: Connection.java."""

    client_id: str
    address: str
    language: str
    version: int

    def to_json(self) -> dict[str, Any]:
        return {
            "clientAddr": self.address,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "connection")
        return cls(
            client_id=get_field(obj, "clientId", str, ""),
            address=get_field(obj, "clientAddr", str, ""),
            language=get_field(obj, "language", str, ""),
            version=get_field(obj, "version", int, 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    """The members of a group and what they subscribe to. Source: ConsumerConnection.java."""

    connections: tuple[Connection, ...]
    subscriptions: Mapping[str, SubscriptionData]
    consume_type: str
    message_model: str
    consume_from_where: str

    def encode(self) -> bytes:
        return dumps(
            {
                "connectionSet": [c.to_json() for c in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {
                    topic: s.to_json() for topic, s in self.subscriptions.items()
                },
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        table = get_field(obj, "subscriptionTable", dict, {})
        return cls(
            connections=tuple(get_list(obj, "connectionSet", Connection.from_json)),
            subscriptions={str(topic): SubscriptionData.from_json(s) for topic, s in table.items()},
            consume_type=get_field(obj, "consumeType", str, ""),
            message_model=get_field(obj, "messageModel", str, ""),
            consume_from_where=get_field(obj, "consumeFromWhere", str, ""),
        )


def producer_connections_dumps(connections: Iterable[Connection]) -> bytes:
    """Answer of GET_PRODUCER_CONNECTION_LIST. Source: ProducerConnection.java."""
    return dumps({"connectionSet": [c.to_json() for c in connections]})


def producer_connections_loads(body: bytes) -> list[Connection]:
    return get_list(loads_object(body), "connectionSet", Connection.from_json)


def group_list_dumps(groups: Iterable[str]) -> bytes:
    """Answer of QUERY_TOPIC_CONSUME_BY_WHO. Source: GroupList.java."""
    return dumps({"groupList": list(groups)})


def group_list_loads(body: bytes) -> list[str]:
    return get_list(loads_object(body), "groupList", as_text)
