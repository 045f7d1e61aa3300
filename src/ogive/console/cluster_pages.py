"""Pages about the cluster: name servers, brokers, the names of topics and groups."""

import time
from dataclasses import dataclass
from typing import Any, Final

from ogive.client import rpc
from ogive.client.admin import BrokerStatus
from ogive.client.admin.base import master_addresses, unknown_group
from ogive.client.admin.records import TopicKind, topic_kind
from ogive.client.admin.topic_admin import broker_status
from ogive.client.routes import MASTER_ID
from ogive.console.queries import Queries, gather_answers, reason
from ogive.errors import OgiveError
from ogive.model import is_system_group, reply_topic
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData

# a broker's table of groups is long, so it is reused for longer
TABLES_S: Final = 5.0
# time for which a broker that left the name servers is shown
GONE_S: Final = 3600.0
MAX_GONE: Final = 256


@dataclass(frozen=True, slots=True)
class NameServerRow:
    address: str
    trouble: str | None


@dataclass(frozen=True, slots=True)
class GroupAtBrokers:
    """A group's tables by broker name, in JSON: a page shows fifty of ten thousand groups."""

    name: str
    tables: dict[str, dict[str, Any]]

    def settings(self) -> list[SubscriptionGroupConfig]:
        return [SubscriptionGroupConfig.from_json(table) for table in self.tables.values()]


@dataclass(frozen=True, slots=True)
class KnownGroups:
    """All groups sorted by name, *system* ones apart; *troubles*: brokers that did not answer, and
    the reasons.
    """

    names: tuple[str, ...]
    system: tuple[str, ...]
    known: dict[str, GroupAtBrokers]
    troubles: dict[str, str]


class ClusterQueries:
    """The cluster as pages show it. Answers are shared for a short time, see ``Queries.once``."""

    def __init__(self, queries: Queries) -> None:
        self.queries = queries
        # each with the time when it was last seen
        self._seen: dict[tuple[str, int], tuple[BrokerStatus, float]] = {}

    async def info(self) -> ClusterInfo:
        return await self.queries.once(
            "cluster", lambda: self.queries.name_server(rpc.get_cluster_info)
        )

    async def masters(self) -> dict[str, str]:
        """Return the addresses of the masters by broker name."""
        brokers = (await self.info()).brokers
        return {
            name: broker.addresses[MASTER_ID]
            for name, broker in sorted(brokers.items())
            if MASTER_ID in broker.addresses
        }

    async def name_servers(self) -> list[NameServerRow]:
        async def ask(address: str) -> str | None:
            try:
                await self.queries.server(address, rpc.get_cluster_info)
            except OgiveError as exc:
                return reason(exc)
            return None

        async def ask_all() -> list[NameServerRow]:
            told, _ = await gather_answers(self.queries.name_servers, ask)
            return [NameServerRow(address, trouble) for address, trouble in told.items()]

        return await self.queries.once("name servers", ask_all)

    async def brokers(self) -> list[BrokerStatus]:
        """Return the brokers that the name servers know. Those that left within the last hour are
        included as down.
        """
        rows = await self.queries.once("brokers", self._brokers)
        now = time.time()
        self._seen = {key: row for key, row in self._seen.items() if now - row[1] < GONE_S} | {
            (r.name, r.broker_id): (r, now) for r in rows
        }
        while len(self._seen) > MAX_GONE + len(rows):
            del self._seen[min(self._seen, key=lambda key: self._seen[key][1])]
        listed = {(row.name, row.broker_id) for row in rows}
        gone = [_gone(row, now - at) for key, (row, at) in self._seen.items() if key not in listed]
        return sorted((*rows, *gone), key=lambda row: (row.cluster, row.name, row.broker_id))

    async def _brokers(self) -> list[BrokerStatus]:
        brokers = (await self.info()).brokers.values()
        places = {
            (b.cluster, b.broker_name, number): address
            for b in brokers
            for number, address in b.addresses.items()
        }

        async def figures(place: tuple[str, str, int]) -> dict[str, str]:
            return await self.queries.server(places[place], rpc.broker_runtime_info)

        told, troubles = await gather_answers(places, figures)
        return [
            broker_status(name, cluster, number, address, told[cluster, name, number])
            if (cluster, name, number) in told
            else _down(cluster, name, number, address, reason(troubles[cluster, name, number]))
            for (cluster, name, number), address in places.items()
        ]

    async def topics(self) -> dict[str, TopicKind]:
        """Return every topic that the name server knows, sorted by name."""
        return await self.queries.once("topics", self._topics)

    async def _topics(self) -> dict[str, TopicKind]:
        names, info = await self.queries.name_server(rpc.topic_list), await self.info()
        # Apache's brokers register these as topics
        own = {*info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        return {name: "system" if name in own else topic_kind(name) for name in sorted(names)}

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of a topic. Raises TopicNotExist."""
        return await self.queries.once(
            ("route", topic), lambda: self.queries.name_server(rpc.get_route, topic)
        )

    async def topic_masters(self, topic: str) -> dict[str, str]:
        """Return the addresses of a topic's masters by broker name. Raises TopicNotExist."""
        return master_addresses(await self.route(topic))

    async def groups(self) -> KnownGroups:
        return await self.queries.once("groups", self._groups, TABLES_S)

    async def group(self, name: str) -> GroupAtBrokers:
        """Return a group. Raises GroupNotExist, which names similar groups, and the brokers that
        may know it once they answer.
        """
        groups = await self.groups()
        if name in groups.known:
            return groups.known[name]
        silent = sorted({*groups.troubles, *(await self.info()).away})
        raise unknown_group(
            name,
            groups.known,
            f"Brokers that do not answer may know it: {', '.join(silent)}." if silent else "",
        )

    async def _groups(self) -> KnownGroups:
        masters = await self.masters()

        async def table(broker: str) -> dict[str, dict[str, Any]]:
            return await self.queries.server(masters[broker], rpc.group_configs)

        tables, troubles = await gather_answers(masters, table)
        known: dict[str, GroupAtBrokers] = {}
        for broker, rows in tables.items():
            for name, config in rows.items():
                known.setdefault(name, GroupAtBrokers(name, {})).tables[broker] = config
        names = sorted(known)
        return KnownGroups(
            names=tuple(name for name in names if not is_system_group(name)),
            system=tuple(filter(is_system_group, names)),
            known=known,
            troubles={broker: reason(error) for broker, error in troubles.items()},
        )


def _down(cluster: str, name: str, number: int, address: str, trouble: str) -> BrokerStatus:
    return BrokerStatus(
        name=name, cluster=cluster, broker_id=number, address=address, figures={}, trouble=trouble
    )


def _gone(row: BrokerStatus, seconds: float) -> BrokerStatus:
    since = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return _down(
        row.cluster,
        row.name,
        row.broker_id,
        row.address,
        f"no name server has known it for {since}",
    )
