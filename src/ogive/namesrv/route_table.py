"""Table of the brokers that have each topic.

It uses no clock and no network: the caller passes the time and the number of the connection.

An *owner* is the number of a connection; a later connection has a larger number. A broker belongs
to the newest connection that it used, so the late end of an older one does not remove it. Source:
RouteInfoManager.java, 5.3.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ogive.errors import OgiveError
from ogive.wire.bodies.configs import DataVersion, TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ, PERM_WRITE
from ogive.wire.bodies.routes import MAX_QUEUES, BrokerData, ClusterInfo, QueueData, TopicRouteData

MASTER_ID: Final = 0
MAX_NAME_LENGTH: Final = 255
LOST_KEPT_S: Final = 24 * 3600.0


class RegistrationRefused(OgiveError):
    """Error for a broker that is not registered; nothing was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerIdentity:
    """The broker that sent the request. Clients connect to it at *address*."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker's registration.

    *acting_master* is None for a broker that does not have the option (4.9).
    """

    broker: BrokerIdentity
    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    ha_address: str = ""
    expiry_s: float | None = None
    acting_master: bool | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """Addresses of a master, for its slaves."""

    address: str
    ha_address: str


@dataclass(slots=True)
class _Live:
    """One address that sends signs of life."""

    broker: BrokerIdentity
    data_version: DataVersion
    ha_address: str
    expiry_s: float
    seen: float
    owner: int


def _check_length(what: str, text: str) -> None:
    if not 0 < len(text) <= MAX_NAME_LENGTH:
        raise RegistrationRefused(
            f"{what} of {len(text)} characters: must be between 1 and {MAX_NAME_LENGTH}"
        )


def can_be_routed(config: TopicConfig) -> bool:
    """Return True if clients can use routes of the topic: Apache's mqadmin can create topics of -1
    queues, which stay in a broker's table.
    """
    return 0 <= config.read_queues <= MAX_QUEUES and 0 <= config.write_queues <= MAX_QUEUES


class RouteTable:
    """Tables of a name server. Times are seconds of one clock that the caller chooses."""

    def __init__(
        self, *, expiry_s: float = 120.0, max_brokers: int = 1_000, max_topics: int = 100_000
    ) -> None:
        self._expiry_s = expiry_s
        self._max_brokers = max_brokers
        self._max_topics = max_topics
        # by cluster and address
        self._live: dict[tuple[str, str], _Live] = {}
        # by broker name, then broker id
        self._addresses: dict[str, dict[int, str]] = {}
        # by broker name
        self._cluster_of: dict[str, str] = {}
        # by topic, then broker name
        self._queues: dict[str, dict[str, QueueData]] = {}
        # by broker name: the inverse of _queues
        self._topics_of: dict[str, set[str]] = {}
        # by broker name, then topic: the registered configuration of topics that were made
        # read-only
        self._wiped: dict[str, dict[str, QueueData]] = {}
        # by broker name: the last registration of brokers that left without unregistering
        self._lost: dict[str, _Live] = {}

    # --- brokers come -----------------------------------------------------------------------------

    def register(
        self, registration: BrokerRegistration, *, now: float, owner: int
    ) -> Master | None:
        """Register a broker and its topics. Return its master, if it is a slave and the master is
        known.

        Raises RegistrationRefused.
        """
        broker = registration.broker
        self._check(registration)
        addresses = self._addresses.get(broker.name, {})
        holder = addresses.get(broker.broker_id)
        if (
            holder is not None
            and holder != broker.address
            and self._is_newer(broker.cluster, holder, registration.data_version)
        ):
            # from a master that was replaced: ignored, as by Java
            return None
        if holder is None and len(registration.topics) == 1:
            raise RegistrationRefused(
                "register broker failed: the first registration of a broker must not hold exactly "
                "one topic"
            )
        known = self._live.get((broker.cluster, broker.address))
        if known is not None and known.broker.name != broker.name:
            # the process at this address has a new name
            self._remove(known)
        first = holder is None
        self._lost.pop(broker.name, None)
        self._cluster_of[broker.name] = broker.cluster
        self._addresses[broker.name] = {
            i: a for i, a in addresses.items() if a != broker.address
        } | {broker.broker_id: broker.address}
        if holder is not None and holder != broker.address:
            self._live.pop((broker.cluster, holder), None)
        self._take_topics(registration, first)
        self._live[broker.cluster, broker.address] = _Live(
            broker=broker,
            data_version=registration.data_version,
            ha_address=registration.ha_address,
            expiry_s=registration.expiry_s or self._expiry_s,
            seen=now,
            owner=owner if known is None else max(owner, known.owner),
        )
        return self._master(broker)

    def _check(self, registration: BrokerRegistration) -> None:
        broker = registration.broker
        for what, name in (
            ("cluster name", broker.cluster),
            ("broker name", broker.name),
            ("address", broker.address),
        ):
            _check_length(what, name)
        if len(registration.ha_address) > MAX_NAME_LENGTH:
            raise RegistrationRefused(
                f"HA address of {len(registration.ha_address)} characters: at most "
                f"{MAX_NAME_LENGTH} are allowed"
            )
        if self._cluster_of.get(broker.name, broker.cluster) != broker.cluster:
            raise RegistrationRefused(
                f"broker name {broker.name} belongs to cluster {self._cluster_of[broker.name]} "
                "already"
            )
        if (broker.cluster, broker.address) not in self._live and len(
            self._live
        ) >= self._max_brokers:
            raise RegistrationRefused(
                f"the name server holds {len(self._live)} brokers, its limit is {self._max_brokers}"
            )
        held = self._topics_of.get(broker.name, set())
        total = sum(map(len, self._topics_of.values())) + sum(
            1 for topic in registration.topics if topic not in held
        )
        if total > self._max_topics:
            raise RegistrationRefused(
                f"with this broker the name server would hold {total} topics, its limit is "
                f"{self._max_topics}"
            )
        for topic in registration.topics:
            _check_length("topic name", topic)

    def _is_newer(self, cluster: str, address: str, version: DataVersion) -> bool:
        """Return True if the broker at *address* was elected after the one that has *version*."""
        live = self._live.get((cluster, address))
        return live is not None and live.data_version.state_version > version.state_version

    def _take_topics(self, registration: BrokerRegistration, first: bool) -> None:
        """Add topics of the master, or of the slave with the lowest id if a slave may act for
        it.
        """
        broker = registration.broker
        is_master = broker.broker_id == MASTER_ID
        acts = registration.acting_master is not None and broker.broker_id == min(
            self._addresses[broker.name]
        )
        if not is_master and not acts:
            return
        everything = first or self.data_version(broker) != registration.data_version
        held = self._topics_of.setdefault(broker.name, set())
        for topic, config in registration.topics.items():
            if (everything or topic not in held) and can_be_routed(config):
                writable = is_master or not registration.acting_master
                queue = QueueData(
                    broker_name=broker.name,
                    read_queues=config.read_queues,
                    write_queues=config.write_queues,
                    perm=config.perm if writable else config.perm & ~PERM_WRITE,
                    topic_sys_flag=config.sys_flag,
                )
                wiped = self._wiped.get(broker.name, {})
                if wiped.get(topic) == queue:
                    # the configuration of this topic has not changed
                    continue
                wiped.pop(topic, None)
                self._queues.setdefault(topic, {})[broker.name] = queue
                held.add(topic)

    def _master(self, broker: BrokerIdentity) -> Master | None:
        address = self._addresses[broker.name].get(MASTER_ID)
        live = self._live.get((broker.cluster, address)) if address else None
        return (
            Master(live.broker.address, live.ha_address)
            if live is not None and broker.broker_id != MASTER_ID
            else None
        )

    def heartbeat(self, cluster: str, address: str, *, now: float, owner: int) -> None:
        """Record a sign of life; do nothing for an unknown broker."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.seen = now
            live.owner = max(owner, live.owner)

    def add_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Route one topic to those of the brokers that are registered.

        Raises RegistrationRefused if the table is full.
        """
        _check_length("topic name", topic)
        for queue in queues:
            held = self._topics_of.get(queue.broker_name)
            if held is None:
                continue
            if topic not in held and sum(map(len, self._topics_of.values())) >= self._max_topics:
                raise RegistrationRefused(
                    f"the name server holds its limit of {self._max_topics} topics"
                )
            self._wiped.get(queue.broker_name, {}).pop(topic, None)
            self._queues.setdefault(topic, {})[queue.broker_name] = queue
            held.add(topic)

    # --- brokers go -------------------------------------------------------------------------------

    def unregister(self, broker: BrokerIdentity, *, owner: int) -> bool:
        """Remove a broker. Return False if it has registered on a later connection since."""
        live = self._live.get((broker.cluster, broker.address))
        if live is None or owner < live.owner:
            return False
        self._remove(live)
        return True

    def disconnected(self, owner: int) -> list[BrokerIdentity]:
        """Remove the brokers of a connection that closed, and return them."""
        return self._remove_all([live for live in self._live.values() if live.owner == owner])

    def expire(self, now: float) -> list[BrokerIdentity]:
        """Remove the brokers without a sign of life for too long, and return them."""
        self._lost = {
            name: live for name, live in self._lost.items() if live.seen + LOST_KEPT_S >= now
        }
        return self._remove_all(
            [live for live in self._live.values() if live.seen + live.expiry_s < now]
        )

    def _remove_all(self, gone: list[_Live]) -> list[BrokerIdentity]:
        for live in gone:
            self._remove(live)
            if live.broker.name not in self._addresses:
                # for cluster_info()
                if len(self._lost) >= self._max_brokers:
                    del self._lost[next(iter(self._lost))]
                self._lost[live.broker.name] = live
        return [live.broker for live in gone]

    def _remove(self, live: _Live) -> None:
        broker = live.broker
        del self._live[broker.cluster, broker.address]
        addresses = self._addresses.get(broker.name, {})
        for broker_id in [i for i, address in addresses.items() if address == broker.address]:
            del addresses[broker_id]
        if addresses:
            return
        for table in (self._addresses, self._cluster_of, self._wiped):
            table.pop(broker.name, None)
        for topic in self._topics_of.pop(broker.name, ()):
            self._drop_queues(topic, broker.name)

    def _drop_queues(self, topic: str, broker_name: str) -> None:
        queues = self._queues[topic]
        del queues[broker_name]
        if not queues:
            del self._queues[topic]

    # --- operators --------------------------------------------------------------------------------

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget the topic, at one cluster's brokers or everywhere, until a broker registers it
        again.
        """
        for broker_name in list(self._queues.get(topic, ())):
            if not cluster or self._cluster_of[broker_name] == cluster:
                self._topics_of[broker_name].discard(topic)
                self._wiped.get(broker_name, {}).pop(topic, None)
                self._drop_queues(topic, broker_name)

    def closed(self, broker_name: str) -> int:
        """Return the number of topics of a broker that are not writable."""
        return len(self._wiped.get(broker_name, ()))

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Make all topics of a broker writable or not, each until another configuration of it is
        registered. Return their number.
        """
        topics = self._topics_of.get(broker_name, ())
        if writable:
            self._wiped.pop(broker_name, None)
        # most topics are equal: few new objects instead of one each
        made: dict[QueueData, QueueData] = {}
        for topic in topics:
            queue = self._queues[topic][broker_name]
            if not writable and queue.perm & PERM_WRITE:
                self._wiped.setdefault(broker_name, {})[topic] = queue
            perm = PERM_READ | PERM_WRITE if writable else queue.perm & ~PERM_WRITE
            if queue not in made:
                made[queue] = replace(queue, perm=perm)
            self._queues[topic][broker_name] = made[queue]
        return len(topics)

    # --- questions --------------------------------------------------------------------------------

    def data_version(self, broker: BrokerIdentity) -> DataVersion | None:
        """Return the version of the topic table that the broker registered last."""
        live = self._live.get((broker.cluster, broker.address))
        return None if live is None else live.data_version

    def route(self, topic: str) -> TopicRouteData | None:
        queues = self._queues.get(topic)
        if not queues:
            return None
        brokers = tuple(self.member_group(self._cluster_of[name], name) for name in queues)
        return TopicRouteData(queues=tuple(queues.values()), brokers=brokers)

    def member_group(self, cluster: str, broker_name: str) -> BrokerData:
        """Return the addresses under one broker name; none if the cluster has no such broker."""
        known = self._cluster_of.get(broker_name) == cluster
        return BrokerData(
            cluster=cluster,
            broker_name=broker_name,
            addresses=dict(self._addresses[broker_name]) if known else {},
        )

    def cluster_info(self) -> ClusterInfo:
        brokers = {
            name: self.member_group(cluster, name) for name, cluster in self._cluster_of.items()
        }
        lost = {
            name: BrokerData(
                cluster=live.broker.cluster,
                broker_name=name,
                addresses={live.broker.broker_id: live.broker.address},
            )
            for name, live in self._lost.items()
        }
        return ClusterInfo(
            brokers=brokers,
            clusters={name: tuple(members) for name, members in self._clusters().items()},
            lost=lost,
        )

    def _clusters(self) -> dict[str, list[str]]:
        """Return the broker names of each cluster."""
        members: dict[str, list[str]] = {}
        for broker_name, cluster in self._cluster_of.items():
            members.setdefault(cluster, []).append(broker_name)
        return members

    def topics(self) -> list[str]:
        return list(self._queues)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        members = {name for name, of in self._cluster_of.items() if of == cluster}
        return [topic for topic, queues in self._queues.items() if not members.isdisjoint(queues)]

    def topics_by_sys_flag(self, *, on: int, off: int = 0) -> list[str]:
        """Return topics whose topicSysFlag has all bits of *on* and none of *off*."""
        return [
            topic
            for topic, queues in self._queues.items()
            if next(iter(queues.values())).topic_sys_flag & (on | off) == on
        ]

    def system_topics(self) -> list[str]:
        """Return the names of all clusters and brokers: each has a topic of that name."""
        return [
            name for cluster, members in self._clusters().items() for name in (cluster, *members)
        ]

    def any_address(self) -> str | None:
        return next(
            (address for addresses in self._addresses.values() for address in addresses.values()),
            None,
        )
