"""JSON bodies: records with ``to_json`` (plain values for json.dumps, Java's key names) and ``from_json`` (raises ProtocolError).

Source: remoting/protocol/body, route, heartbeat, subscription, 5.3. Readers ignore unknown members and take defaults for absent ones.
"""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from ogive.errors import ProtocolError
from ogive.model import MessageQueue
from ogive.wire import java_json
from ogive.wire.message import java_hash

T = TypeVar("T")

MAX_REGISTERED_TOPICS: Final = 20_000
PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4


def dumps(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def loads_object(raw: bytes | str) -> dict[str, Any]:
    """A JSON object, also in Java's dialect. Raises ProtocolError."""
    return _object(java_json.loads(raw), "body")


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError(f"{name} is no JSON object")
    return value


def _get(obj: Mapping[str, Any], name: str, kind: type[T], default: T) -> T:
    """A member of the right type; absent and null mean the default. Numbers may also stand as text."""
    value = obj.get(name)
    if value is None:
        return default
    if kind is int and isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ProtocolError(f"member {name} is no integer") from None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"member {name} is no {kind.__name__}")
    if isinstance(value, int) and not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ProtocolError(f"member {name} is outside 64 bits")
    return value


def _list(obj: Mapping[str, Any], name: str, item: Callable[[Any], T]) -> list[T]:
    return [item(value) for value in _get(obj, name, list, [])]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ProtocolError("a list of names holds something that is no text")
    return value


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def queue_from_json(value: Any) -> MessageQueue:
    obj = _object(value, "message queue")
    return MessageQueue(_get(obj, "topic", str, ""), _get(obj, "brokerName", str, ""), _get(obj, "queueId", int, 0))


def queue_map_dumps(table: Iterable[tuple[MessageQueue, str]]) -> str:
    """A map keyed by queue as Java's parser wants it: the key is an object, unquoted. Values are JSON text already."""
    return "{" + ",".join(f"{json.dumps(queue_to_json(queue), separators=(',', ':'))}:{value}" for queue, value in table) + "}"


# --- configuration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Equal versions mean equal tables; *counter* grows with each change. Source: DataVersion.java."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def next(self, now_ms: int) -> Self:
        return type(self)(self.counter + 1, now_ms, self.state_version)

    def to_json(self) -> dict[str, Any]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "data version")
        return cls(_get(obj, "counter", int, 0), _get(obj, "timestamp", int, 0), _get(obj, "stateVersion", int, 0))


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
        obj = _object(value, "topic configuration")
        attributes = _object(obj.get("attributes") or {}, "topic attributes")
        return cls(
            name=_get(obj, "topicName", str, ""),
            read_queues=_get(obj, "readQueueNums", int, 16),
            write_queues=_get(obj, "writeQueueNums", int, 16),
            perm=_get(obj, "perm", int, PERM_READ | PERM_WRITE),
            filter_type=_get(obj, "topicFilterType", str, "SINGLE_TAG"),
            sys_flag=_get(obj, "topicSysFlag", int, 0),
            order=_get(obj, "order", bool, False),
            attributes={str(k): str(v) for k, v in attributes.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionGroupConfig:
    """A consumer group at one broker. Source: SubscriptionGroupConfig.java."""

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

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": {},
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "group configuration")
        return cls(
            name=_get(obj, "groupName", str, ""),
            consume_enable=_get(obj, "consumeEnable", bool, True),
            consume_from_min_enable=_get(obj, "consumeFromMinEnable", bool, True),
            consume_broadcast_enable=_get(obj, "consumeBroadcastEnable", bool, True),
            consume_message_orderly=_get(obj, "consumeMessageOrderly", bool, False),
            retry_queues=_get(obj, "retryQueueNums", int, 1),
            retry_max_times=_get(obj, "retryMaxTimes", int, 16),
            broker_id=_get(obj, "brokerId", int, 0),
            which_broker_when_consume_slowly=_get(obj, "whichBrokerWhenConsumeSlowly", int, 1),
            notify_consumer_ids_changed=_get(obj, "notifyConsumerIdsChangedEnable", bool, True),
            consume_timeout_minutes=_get(obj, "consumeTimeoutMinute", int, 15),
        )


# --- routes and the name server --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    """How many queues of a topic one broker holds. Source: QueueData.java."""

    broker_name: str
    read_queues: int
    write_queues: int
    perm: int
    topic_sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "queue data")
        return cls(
            broker_name=_get(obj, "brokerName", str, ""),
            read_queues=_queue_count(obj, "readQueueNums"),
            write_queues=_queue_count(obj, "writeQueueNums"),
            perm=_get(obj, "perm", int, 0),
            topic_sys_flag=_get(obj, "topicSysFlag", int, _get(obj, "topicSynFlag", int, 0)),
        )


MAX_QUEUES: Final = 65_536


def _queue_count(obj: Mapping[str, Any], name: str) -> int:
    count = _get(obj, name, int, 0)
    if not 0 <= count <= MAX_QUEUES:
        raise ProtocolError(f"{name} is {count}: 0 to {MAX_QUEUES} are possible")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """The addresses of one broker name: id 0 is the master. Source: BrokerData.java."""

    cluster: str
    broker_name: str
    addresses: Mapping[int, str]

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerAddrs": {str(k): v for k, v in sorted(self.addresses.items())},
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": False,
        }

    def java_text(self) -> str:
        """The same with bare broker ids, as fastjson writes them."""
        addresses = ",".join(f"{k}:{json.dumps(v)}" for k, v in sorted(self.addresses.items()))
        names = f'"brokerName":{json.dumps(self.broker_name)},"cluster":{json.dumps(self.cluster)}'
        return f'{{"brokerAddrs":{{{addresses}}},{names},"enableActingMaster":false}}'

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "broker data")
        try:
            addresses = {int(k): _text(v) for k, v in _get(obj, "brokerAddrs", dict, {}).items()}
        except ValueError:
            raise ProtocolError("a broker id is no integer") from None
        return cls(cluster=_get(obj, "cluster", str, ""), broker_name=_get(obj, "brokerName", str, ""), addresses=addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """Where a topic lives. Source: TopicRouteData.java."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_topic_conf: str | None = None

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": {},
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if self.order_topic_conf:
            out["orderTopicConf"] = self.order_topic_conf
        return out

    def encode(self, *, standard: bool) -> bytes:
        """Standard JSON in ASCII with sorted keys; else Java's dialect for clients before 4.9.4."""
        obj = self.to_json()
        if standard:
            return json.dumps(obj, separators=(",", ":"), sort_keys=True).encode()
        brokers = ",".join(broker.java_text() for broker in self.brokers)
        del obj["brokerDatas"]
        return f'{{"brokerDatas":[{brokers}],{json.dumps(obj, separators=(",", ":"))[1:]}'.encode()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "route")
        return cls(
            queues=tuple(_list(obj, "queueDatas", QueueData.from_json)),
            brokers=tuple(_list(obj, "brokerDatas", BrokerData.from_json)),
            order_topic_conf=_get(obj, "orderTopicConf", str, "") or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody:
    """A broker's whole topic table, as it registers it. Source: RegisterBrokerBody.java."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    filter_servers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The uncompressed JSON form."""
        return dumps(
            {
                "filterServerList": list(self.filter_servers),
                "topicConfigSerializeWrapper": {
                    "dataVersion": self.data_version.to_json(),
                    "mappingDataVersion": DataVersion().to_json(),
                    "topicConfigTable": {name: config.to_json() for name, config in self.topics.items()},
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )

    @classmethod
    def decode(cls, body: bytes, *, compressed: bool, max_inflated_bytes: int = 16 * 1024 * 1024) -> Self:
        if compressed:
            return cls._decode_compressed(body, max_inflated_bytes)
        obj = loads_object(body)
        wrapper = _object(obj.get("topicConfigSerializeWrapper") or {}, "topic table")
        table = _get(wrapper, "topicConfigTable", dict, {})
        _check_count(len(table))
        return cls(
            data_version=DataVersion.from_json(wrapper.get("dataVersion") or {}),
            topics={str(name): TopicConfig.from_json(config) for name, config in table.items()},
            filter_servers=tuple(_list(obj, "filterServerList", _text)),
        )

    @classmethod
    def _decode_compressed(cls, body: bytes, limit: int) -> Self:
        """int n, data version JSON; int count, count times int n and "name readQ writeQ perm filterType attributesJson"; ..."""
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(body, limit)
        except zlib.error as exc:
            raise ProtocolError(f"registration is no zlib stream: {exc}") from None
        if not inflater.eof:
            raise ProtocolError(f"registration ends in the middle, or inflates to more than {limit} bytes")
        at = 0

        def number() -> int:
            nonlocal at
            if len(plain) - at < 4:
                raise ProtocolError("registration ends in the middle of a length")
            at += 4
            return int.from_bytes(plain[at - 4 : at])

        def text() -> str:
            nonlocal at
            size = number()
            if size > len(plain) - at:
                raise ProtocolError(f"registration declares {size} bytes where {len(plain) - at} are left")
            at += size
            try:
                return plain[at - size : at].decode()
            except UnicodeDecodeError as exc:
                raise ProtocolError(f"registration is no UTF-8: {exc.reason}") from None

        version = DataVersion.from_json(loads_object(text()))
        count = number()
        _check_count(count)
        topics = [_topic_from_words(text()) for _ in range(count)]
        filter_servers = java_json.loads(text()) if at < len(plain) else []
        if not isinstance(filter_servers, list):
            raise ProtocolError("the filter-server list is no list")
        return cls(data_version=version, topics={t.name: t for t in topics}, filter_servers=tuple(map(_text, filter_servers)))


def _check_count(count: int) -> None:
    if count > MAX_REGISTERED_TOPICS:
        raise ProtocolError(f"{count} topics in one registration are over the limit of {MAX_REGISTERED_TOPICS}")


def _topic_from_words(line: str) -> TopicConfig:
    words = line.split(" ", 5)
    if len(words) < 5:
        raise ProtocolError(f"topic line {line[:80]!r} has fewer than five words")
    try:
        read, write, perm = int(words[1]), int(words[2]), int(words[3])
    except ValueError:
        raise ProtocolError(f"topic line {line[:80]!r} holds something that is no number") from None
    attributes = loads_object(words[5]) if len(words) == 6 and words[5] else {}
    return TopicConfig(
        name=words[0],
        read_queues=read,
        write_queues=write,
        perm=perm,
        filter_type=words[4],
        attributes={str(k): str(v) for k, v in attributes.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """All brokers and clusters. Source: ClusterInfo.java."""

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]

    def encode(self) -> bytes:
        """Broker ids bare, as Java's parser of this body expects them."""
        brokers = ",".join(f"{json.dumps(name)}:{broker.java_text()}" for name, broker in self.brokers.items())
        clusters = json.dumps({name: list(members) for name, members in self.clusters.items()}, separators=(",", ":"))
        return f'{{"brokerAddrTable":{{{brokers}}},"clusterAddrTable":{clusters}}}'.encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        clusters = _get(obj, "clusterAddrTable", dict, {})
        return cls(
            brokers={str(k): BrokerData.from_json(v) for k, v in _get(obj, "brokerAddrTable", dict, {}).items()},
            clusters={str(name): tuple(_text(m) for m in members) for name, members in clusters.items()},
        )


def topic_list_dumps(topics: Iterable[str], broker_addr: str | None = None) -> bytes:
    """Source: TopicList.java."""
    body: dict[str, Any] = {"topicList": list(topics)}
    if broker_addr:
        body["brokerAddr"] = broker_addr
    return dumps(body)


def topic_list_loads(body: bytes) -> list[str]:
    return _list(loads_object(body), "topicList", _text)


# --- clients ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionData:
    """What a group wants of a topic. Brokers filter by *codes* (Java hashes of the tags). Source: SubscriptionData.java."""

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
        words = tuple(dict.fromkeys(word.strip() for word in expression.split("||") if word.strip()))
        if not words or words == ("*",):
            return cls(topic=topic, version=version)
        return cls(topic=topic, expression=expression, tags=words, codes=tuple(java_hash(word) for word in words), version=version)

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
        obj = _object(value, "subscription")
        return cls(
            topic=_get(obj, "topic", str, ""),
            expression=_get(obj, "subString", str, "*"),
            tags=tuple(_list(obj, "tagsSet", _text)),
            codes=tuple(_list(obj, "codeSet", _code)),
            version=_get(obj, "subVersion", int, 0),
            expression_type=_get(obj, "expressionType", str, "TAG"),
            class_filter=_get(obj, "classFilterMode", bool, False),
        )


def _code(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ProtocolError("codeSet holds something that is no integer") from None


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
    """A Java enum: its name, or, as clients in C++ write it, its position."""
    value = obj.get(name)
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    text = _get(obj, name, str, default)
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
        obj = _object(value, "consumer data")
        return cls(
            group=_get(obj, "groupName", str, ""),
            consume_type=_enum(obj, "consumeType", CONSUME_TYPES, "CONSUME_PASSIVELY"),
            message_model=_enum(obj, "messageModel", MESSAGE_MODELS, "CLUSTERING"),
            consume_from_where=_enum(obj, "consumeFromWhere", CONSUME_FROM_WHERE, "CONSUME_FROM_LAST_OFFSET"),
            subscriptions=tuple(_list(obj, "subscriptionDataSet", SubscriptionData.from_json)),
            unit_mode=_get(obj, "unitMode", bool, False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatData:
    """Source: HeartbeatData.java. *without_sub*: the subscriptions are left out because the broker knows them (fingerprint)."""

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
        return cls(
            client_id=_get(obj, "clientID", str, ""),
            producers=tuple(_list(obj, "producerDataSet", lambda p: _get(_object(p, "producer data"), "groupName", str, ""))),
            consumers=tuple(_list(obj, "consumerDataSet", ConsumerData.from_json)),
            fingerprint=_get(obj, "heartbeatFingerprint", int, 0),
            without_sub=_get(obj, "withoutSub", bool, False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LockBatchBody:
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ. Source: LockBatchRequestBody.java."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]

    def encode(self) -> bytes:
        queues = [queue_to_json(queue) for queue in self.queues]
        return dumps({"clientId": self.client_id, "consumerGroup": self.group, "mqSet": queues, "onlyThisBroker": False})

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        return cls(
            group=_get(obj, "consumerGroup", str, ""),
            client_id=_get(obj, "clientId", str, ""),
            queues=tuple(_list(obj, "mqSet", queue_from_json)),
        )


def locked_queues_dumps(queues: Iterable[MessageQueue]) -> bytes:
    """Answer of LOCK_BATCH_MQ."""
    return dumps({"lockOKMQSet": [queue_to_json(queue) for queue in queues]})


def locked_queues_loads(body: bytes) -> list[MessageQueue]:
    return _list(loads_object(body), "lockOKMQSet", queue_from_json)


def consumer_ids_dumps(client_ids: Iterable[str]) -> bytes:
    """Answer of GET_CONSUMER_LIST_BY_GROUP."""
    return dumps({"consumerIdList": list(client_ids)})


def consumer_ids_loads(body: bytes) -> list[str]:
    return _list(loads_object(body), "consumerIdList", _text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One client as GET_CONSUMER_CONNECTION_LIST shows it. Source: Connection.java."""

    client_id: str
    address: str
    language: str
    version: int

    def to_json(self) -> dict[str, Any]:
        return {"clientAddr": self.address, "clientId": self.client_id, "language": self.language, "version": self.version}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "connection")
        return cls(
            client_id=_get(obj, "clientId", str, ""),
            address=_get(obj, "clientAddr", str, ""),
            language=_get(obj, "language", str, ""),
            version=_get(obj, "version", int, 0),
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
                "subscriptionTable": {topic: s.to_json() for topic, s in self.subscriptions.items()},
            }
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        table = _get(obj, "subscriptionTable", dict, {})
        return cls(
            connections=tuple(_list(obj, "connectionSet", Connection.from_json)),
            subscriptions={str(topic): SubscriptionData.from_json(s) for topic, s in table.items()},
            consume_type=_get(obj, "consumeType", str, ""),
            message_model=_get(obj, "messageModel", str, ""),
            consume_from_where=_get(obj, "consumeFromWhere", str, ""),
        )


def producer_connections_dumps(connections: Iterable[Connection]) -> bytes:
    """Answer of GET_PRODUCER_CONNECTION_LIST. Source: ProducerConnection.java."""
    return dumps({"connectionSet": [c.to_json() for c in connections]})


def producer_connections_loads(body: bytes) -> list[Connection]:
    return _list(loads_object(body), "connectionSet", Connection.from_json)


def group_list_dumps(groups: Iterable[str]) -> bytes:
    """Answer of QUERY_TOPIC_CONSUME_BY_WHO. Source: GroupList.java."""
    return dumps({"groupList": list(groups)})


def group_list_loads(body: bytes) -> list[str]:
    return _list(loads_object(body), "groupList", _text)


# --- statistics ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOffset:
    """One queue in GET_TOPIC_STATS_INFO. Times in ms, 0 for none. Source: TopicOffset.java."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int

    def to_json(self) -> dict[str, Any]:
        return {"lastUpdateTimestamp": self.last_update_timestamp, "maxOffset": self.max_offset, "minOffset": self.min_offset}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "topic offset")
        return cls(
            min_offset=_get(obj, "minOffset", int, 0),
            max_offset=_get(obj, "maxOffset", int, 0),
            last_update_timestamp=_get(obj, "lastUpdateTimestamp", int, 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper:
    """One queue in GET_CONSUME_STATS: where the queue ends, where the group stands. Source: OffsetWrapper.java."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = _object(value, "offset wrapper")
        return cls(
            broker_offset=_get(obj, "brokerOffset", int, 0),
            consumer_offset=_get(obj, "consumerOffset", int, 0),
            last_timestamp=_get(obj, "lastTimestamp", int, 0),
            pull_offset=_get(obj, "pullOffset", int, 0),
        )


def topic_stats_dumps(table: Mapping[MessageQueue, TopicOffset]) -> bytes:
    """Source: TopicStatsTable.java."""
    rows = queue_map_dumps((queue, json.dumps(row.to_json())) for queue, row in table.items())
    return f'{{"offsetTable":{rows},"topicPutTps":0.0}}'.encode()


def topic_stats_loads(body: bytes) -> dict[MessageQueue, TopicOffset]:
    return _queue_table(body, TopicOffset.from_json)


def consume_stats_dumps(table: Mapping[MessageQueue, OffsetWrapper], consume_tps: float) -> bytes:
    """Source: ConsumeStats.java."""
    rows = queue_map_dumps((queue, json.dumps(row.to_json())) for queue, row in table.items())
    return f'{{"consumeTps":{float(consume_tps)},"offsetTable":{rows}}}'.encode()


def consume_stats_loads(body: bytes) -> dict[MessageQueue, OffsetWrapper]:
    return _queue_table(body, OffsetWrapper.from_json)


def consume_tps_loads(body: bytes) -> float:
    """Messages a second that the group takes, from the same body."""
    value = loads_object(body).get("consumeTps", 0.0)
    if not isinstance(value, int | float):
        raise ProtocolError("member consumeTps is no number")
    return float(value)


def _queue_table(body: bytes, row: Callable[[Any], T]) -> dict[MessageQueue, T]:
    table = _get(loads_object(body), "offsetTable", dict, {})
    return {queue_from_json(java_json.loads(key) if isinstance(key, str) else key): row(value) for key, value in table.items()}


def offset_table_dumps(table: Mapping[MessageQueue, int]) -> bytes:
    """Offsets by queue: body of RESET_CONSUMER_CLIENT_OFFSET, and a broadcasting consumer's file. Source: OffsetSerializeWrapper.java."""
    return f'{{"offsetTable":{queue_map_dumps((queue, str(offset)) for queue, offset in table.items())}}}'.encode()


def offset_table_loads(body: bytes) -> dict[MessageQueue, int]:
    return _queue_table(body, _queue_offset)


def _queue_offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ProtocolError("offsetTable holds something that is no offset")
    return value


def kv_table_dumps(table: Mapping[str, str]) -> bytes:
    """Source: KVTable.java."""
    return dumps({"table": dict(table)})


def kv_table_loads(body: bytes) -> dict[str, str]:
    return {str(k): str(v) for k, v in _get(loads_object(body), "table", dict, {}).items()}
