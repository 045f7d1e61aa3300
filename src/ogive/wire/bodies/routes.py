"""Routes, registration and the cluster."""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from ogive.errors import ProtocolError
from ogive.wire import java_json
from ogive.wire.bodies.configs import DataVersion, TopicConfig, get_attributes
from ogive.wire.bodies.json_fields import (
    MAX_REGISTERED_TOPICS,
    JsonObject,
    as_object,
    as_text,
    dumps,
    get_field,
    get_list,
    get_table,
    loads_object,
    member,
)

MAX_QUEUES: Final = 65_536


def _queue_count(obj: Mapping[str, Any], name: str) -> int:
    count = get_field(obj, name, int, 0)
    if not 0 <= count <= MAX_QUEUES:
        raise ProtocolError(f"{name} is {count}: must be between 0 and {MAX_QUEUES}")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData(JsonObject):
    """The number of a topic's queues at one broker. Source: QueueData.java."""

    broker_name: str
    read_queues: int = member("readQueueNums", read=_queue_count)
    write_queues: int = member("writeQueueNums", read=_queue_count)
    perm: int
    topic_sys_flag: int = member(
        # 4.x writes the name with a typing error
        read=lambda obj, name: get_field(obj, name, int, get_field(obj, "topicSynFlag", int, 0)),
        default=0,
    )


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
        """Return the object with bare broker ids, as fastjson writes them."""
        addresses = ",".join(f"{k}:{json.dumps(v)}" for k, v in sorted(self.addresses.items()))
        names = f'"brokerName":{json.dumps(self.broker_name)},"cluster":{json.dumps(self.cluster)}'
        return f'{{"brokerAddrs":{{{addresses}}},{names},"enableActingMaster":false}}'

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "broker data")
        try:
            addresses = {
                int(k): as_text(v) for k, v in get_field(obj, "brokerAddrs", dict, {}).items()
            }
        except ValueError:
            raise ProtocolError("a broker id is not an integer") from None
        return cls(
            cluster=get_field(obj, "cluster", str, ""),
            broker_name=get_field(obj, "brokerName", str, ""),
            addresses=addresses,
        )


MAX_BROKERS: Final = 4_096
"""Limit for names and for addresses in one answer.

A client keeps a connection to each address, and sends it heartbeats.
"""


def check_brokers(brokers: Iterable[BrokerData]) -> tuple[BrokerData, ...]:
    """Return *brokers*. Raises ProtocolError for more than MAX_BROKERS."""
    found = tuple(brokers)
    for what, count in (
        ("brokers", len(found)),
        ("addresses of brokers", sum(len(broker.addresses) for broker in found)),
    ):
        if count > MAX_BROKERS:
            raise ProtocolError(
                f"a name server's answer holds {count} {what}: {MAX_BROKERS} are the limit"
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """The brokers of a topic, and its queues there. Source: TopicRouteData.java."""

    queues: tuple[QueueData, ...]
    brokers: tuple[BrokerData, ...]
    order_topic_conf: str | None = None
    # by broker address; only brokers before 5.0 have it
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "brokerDatas": [broker.to_json() for broker in self.brokers],
            "filterServerTable": {
                address: list(servers) for address, servers in self.filter_servers.items()
            },
            "queueDatas": [queue.to_json() for queue in self.queues],
        }
        if self.order_topic_conf:
            out["orderTopicConf"] = self.order_topic_conf
        return out

    def encode(self, *, standard: bool) -> bytes:
        """Return *standard* JSON in ASCII with sorted keys, or Java's dialect for clients before
        4.9.4.
        """
        obj = self.to_json()
        if standard:
            return json.dumps(obj, separators=(",", ":"), sort_keys=True).encode()
        brokers = ",".join(broker.java_text() for broker in self.brokers)
        del obj["brokerDatas"]
        return f'{{"brokerDatas":[{brokers}],{json.dumps(obj, separators=(",", ":"))[1:]}'.encode()

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "route")
        return cls(
            queues=tuple(get_list(obj, "queueDatas", QueueData.from_json)),
            brokers=check_brokers(get_list(obj, "brokerDatas", BrokerData.from_json)),
            order_topic_conf=get_field(obj, "orderTopicConf", str, "") or None,
            filter_servers=_filter_servers(get_field(obj, "filterServerTable", dict, {})),
        )


def _filter_servers(table: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    return {address: tuple(get_list(table, address, as_text)) for address in table}


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerBody:
    """A broker's whole topic table in a registration. Source: RegisterBrokerBody.java."""

    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    filter_servers: tuple[str, ...] = ()

    @property
    def fits_compressed(self) -> bool:
        """True if the compressed form loses nothing: it has no field for the flags of topics."""
        return not any(topic.sys_flag for topic in self.topics.values())

    def encode(self, *, compressed: bool = False) -> bytes:
        """Return the JSON form, or the compressed one, which is a twentieth as long.

        Name servers read the compressed form since 4.3.
        """
        if compressed:
            return zlib.compress(self._plain())
        return dumps(
            {
                "filterServerList": list(self.filter_servers),
                "topicConfigSerializeWrapper": {
                    "dataVersion": self.data_version.to_json(),
                    "mappingDataVersion": DataVersion().to_json(),
                    "topicConfigTable": {
                        name: config.to_json() for name, config in self.topics.items()
                    },
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )

    def _plain(self) -> bytes:
        """Return the compressed form before compression.

        Lines have no attributes, because no name server reads them, and 4.9 refuses them.
        """
        lines = (
            f"{name} {t.read_queues} {t.write_queues} {t.perm} {t.filter_type}".encode()
            for name, t in self.topics.items()
        )
        version = dumps(self.data_version.to_json())
        filter_servers = dumps(list(self.filter_servers))
        count, no_mappings = len(self.topics).to_bytes(4), bytes(4)
        return b"".join(
            (_sized(version), count, *map(_sized, lines), _sized(filter_servers), no_mappings)
        )

    @classmethod
    def decode(
        cls, body: bytes, *, compressed: bool, max_inflated_bytes: int = 16 * 1024 * 1024
    ) -> Self:
        if compressed:
            return cls._decode_compressed(body, max_inflated_bytes)
        obj = loads_object(body)
        wrapper = as_object(obj.get("topicConfigSerializeWrapper") or {}, "topic table")
        table = get_field(wrapper, "topicConfigTable", dict, {})
        _check_count(len(table))
        return cls(
            data_version=DataVersion.from_json(wrapper.get("dataVersion") or {}),
            topics={str(name): TopicConfig.from_json(config) for name, config in table.items()},
            filter_servers=tuple(get_list(obj, "filterServerList", as_text)),
        )

    @classmethod
    def _decode_compressed(cls, body: bytes, limit: int) -> Self:
        """Read int n, data version JSON; int count, count times int n and "name readQ writeQ
        perm filterType attributesJson"; ...
        """
        inflater = zlib.decompressobj()
        try:
            plain = inflater.decompress(body, limit)
        except zlib.error as exc:
            raise ProtocolError(f"registration is not a zlib stream: {exc}") from None
        if not inflater.eof:
            raise ProtocolError(
                f"registration ends in the middle, or inflates to more than {limit} bytes"
            )
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
                raise ProtocolError(
                    f"registration declares {size} bytes where {len(plain) - at} are left"
                )
            at += size
            try:
                return plain[at - size : at].decode()
            except UnicodeDecodeError as exc:
                raise ProtocolError(f"registration is not UTF-8: {exc.reason}") from None

        version = DataVersion.from_json(loads_object(text()))
        count = number()
        _check_count(count)
        topics = [_topic_from_words(text()) for _ in range(count)]
        filter_servers = java_json.loads(text(), bounded=True) if at < len(plain) else []
        if not isinstance(filter_servers, list):
            raise ProtocolError("the filter-server list is not a list")
        return cls(
            data_version=version,
            topics={t.name: t for t in topics},
            filter_servers=tuple(map(as_text, filter_servers)),
        )


def _sized(text: bytes) -> bytes:
    return len(text).to_bytes(4) + text


def _check_count(count: int) -> None:
    if count > MAX_REGISTERED_TOPICS:
        raise ProtocolError(
            f"{count} topics in one registration are over the limit of {MAX_REGISTERED_TOPICS}"
        )


def _topic_from_words(line: str) -> TopicConfig:
    words = line.split(" ", 5)
    if len(words) < 5:
        raise ProtocolError(f"topic line {line[:80]!r} has fewer than five words")
    try:
        read, write, perm = map(int, words[1:4])
    except ValueError:
        raise ProtocolError(
            f"topic line {line[:80]!r} holds something that is not a number"
        ) from None
    members = {}
    if any(words[5:]):
        # plain JSON only: Java's dialect in the lines of all topics could block a server for ten
        # seconds
        members["attributes"] = java_json.loads(words[5], bounded=True, java_values=0)
    return TopicConfig(
        name=words[0],
        read_queues=read,
        write_queues=write,
        perm=perm,
        filter_type=words[4],
        attributes=get_attributes(members, "attributes"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """All brokers and clusters. Source: ClusterInfo.java.

    *lost* is ogive's own: brokers whose connection broke, or that sent no sign of life, and that
    are not back yet. Other name servers never fill it, and Java's parser ignores it.
    """

    brokers: Mapping[str, BrokerData]
    clusters: Mapping[str, tuple[str, ...]]
    lost: Mapping[str, BrokerData] = field(default_factory=dict)

    @property
    def away(self) -> list[str]:
        """The names of brokers whose master is away: their slave may serve."""
        masterless = {name for name, one in self.brokers.items() if 0 not in one.addresses}
        return sorted(self.lost.keys() | masterless)

    def encode(self) -> bytes:
        """Return JSON with bare broker ids, as Java's parser of this body expects them."""
        clusters = json.dumps(
            {name: list(members) for name, members in self.clusters.items()}, separators=(",", ":")
        )
        lost = f',"lostBrokers":{_broker_table(self.lost)}' if self.lost else ""
        return (
            f'{{"brokerAddrTable":{_broker_table(self.brokers)},"clusterAddrTable":{clusters}'
            f"{lost}}}"
        ).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        obj = loads_object(body)
        clusters = get_field(obj, "clusterAddrTable", dict, {})
        return cls(
            brokers=get_table(obj, "brokerAddrTable", BrokerData.from_json),
            clusters={str(name): tuple(get_list(clusters, name, as_text)) for name in clusters},
            lost=get_table(obj, "lostBrokers", BrokerData.from_json),
        )


def _broker_table(brokers: Mapping[str, BrokerData]) -> str:
    rows = ",".join(f"{json.dumps(name)}:{broker.java_text()}" for name, broker in brokers.items())
    return f"{{{rows}}}"


def topic_list_dumps(topics: Iterable[str], broker_addr: str | None = None) -> bytes:
    """Write a list of topics. Source: TopicList.java."""
    body: dict[str, Any] = {"topicList": list(topics)}
    if broker_addr:
        body["brokerAddr"] = broker_addr
    return dumps(body)


def topic_list_loads(body: bytes) -> list[str]:
    return get_list(loads_object(body), "topicList", as_text)
