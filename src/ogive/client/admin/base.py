"""What the families of calls share: the client, and which brokers to ask."""

from types import TracebackType
from typing import Any, Self

from ogive.client import api
from ogive.client.admin.records import TopicKind, topic_kind
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.namespace import Namespace
from ogive.client.owner import ClientOwner
from ogive.client.routes import MASTER_ID, similar_topics
from ogive.client.with_blocks import OnlyAsyncWith
from ogive.errors import (
    BrokerError,
    GroupNotExist,
    InvalidOption,
    NoRoute,
    ProtocolError,
    ResponseCode,
    TopicNotExist,
)
from ogive.model import MessageQueue, reply_topic, retry_topic
from ogive.transport.tasks import each
from ogive.wire.bodies import ClusterInfo, TopicRouteData


class AdminBase(OnlyAsyncWith):
    """Start, close, and which brokers to ask."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        self._owner = ClientOwner("admin", name_server, client)
        # Groups that the brokers listed last.
        self._listed: set[str] = set()

    async def start(self) -> None:
        """Start the client. The first call connects."""
        await self._owner.start()

    async def close(self) -> None:
        """Close the client, unless it is shared."""
        await self._owner.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def client(self) -> ClientInstance:
        """The connections and routes that this object uses."""
        return self._owner.client

    @property
    def _namespace(self) -> Namespace:
        """Names go in and come out without it."""
        return self._owner.namespace

    async def cluster_info(self) -> ClusterInfo:
        """The clusters and brokers that the name server knows."""
        return await self.client.ask_name_server(api.get_cluster_info)

    # --- who to ask -------------------------------------------------------------------------------

    @property
    def _timeout_s(self) -> float:
        return self.client.config.request_timeout_s

    async def _masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name to address.

        Raises NoRoute where there is none, InvalidOption for an unknown cluster.
        """
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.clusters:
            raise InvalidOption(
                f'cluster "{cluster}" is unknown; there are: '
                f"{', '.join(sorted(info.clusters)) or 'none'}"
            )
        names = sorted(info.brokers) if cluster is None else info.clusters[cluster]
        masters = {
            name: info.brokers[name].addresses[MASTER_ID]
            for name in names
            if MASTER_ID in info.brokers[name].addresses
        }
        if not masters:
            raise NoRoute(f"{self.client.name_servers} knows no broker yet")
        return masters

    async def _topic_kinds(self) -> dict[str, TopicKind]:
        """Every topic that the name server knows.

        Apache's brokers register the names of clusters and brokers as topics, too.
        """
        names, info = await self.client.ask_name_server(api.topic_list), await self.cluster_info()
        own = {*info.brokers, *info.clusters, *map(reply_topic, info.clusters)}
        return {name: "system" if name in own else topic_kind(name) for name in names}

    async def _route(self, topic: str) -> TopicRouteData:
        """Not through the cache: a list of all topics must not fill it."""
        return await self.client.ask_name_server(api.get_route, topic)

    async def _topic_masters(self, topic: str) -> dict[str, str]:
        """Broker name to address. Raises NoRoute, with advice."""
        return master_addresses(await self.client.routes.refresh(topic))

    async def _group_masters(self, group: str, topic: str | None = None) -> dict[str, str]:
        """Brokers that know the group: those of its retry topic; all of them where that has no
        route.
        """
        try:
            return master_addresses(await self._route(topic or retry_topic(group)))
        except TopicNotExist:
            return await self._masters()

    async def _group_tables(
        self, cluster: str | None = None
    ) -> list[tuple[str, str, dict[str, dict[str, Any]]]]:
        """Return name, address and groups of each broker."""
        masters = list((await self._masters(cluster)).items())
        tables = await each(
            masters,
            lambda one: api.group_configs(self.client.pool, one[1], timeout_s=self._timeout_s),
        )
        self._listed = {group for table in tables for group in table}
        return [
            (broker, address, table)
            for (broker, address), table in zip(masters, tables, strict=True)
        ]

    async def _check_known(self, group: str) -> None:
        """Raise GroupNotExist if no broker has the group. If brokers list no groups, do nothing."""
        # Who goes through a list of groups does not list them again for each.
        if group in self._listed:
            return
        try:
            tables = await self._group_tables()
        except (BrokerError, ProtocolError):
            return
        if not any(group in table for _, _, table in tables):
            raise unknown_group(group, tables)


def master_addresses(route: TopicRouteData) -> dict[str, str]:
    """Broker name to address."""
    return {
        broker.broker_name: broker.addresses[MASTER_ID]
        for broker in route.brokers
        if MASTER_ID in broker.addresses
    }


def master_of(queue: MessageQueue, masters: dict[str, str]) -> str:
    """Raises NoRoute."""
    if queue.broker_name not in masters:
        raise NoRoute(
            f'broker "{queue.broker_name}" of {queue.topic} has no master now: its offsets cannot '
            "be asked for or changed"
        )
    return masters[queue.broker_name]


def unknown_group(
    group: str, tables: list[tuple[str, str, dict[str, dict[str, Any]]]], advice: str | None = None
) -> GroupNotExist:
    """Return the error for a group that is in none of the *tables*, with similar names."""
    similar = similar_topics(group, {name for _, _, table in tables for name in table})
    hint = f" Similar groups: {', '.join(similar)}." if similar else ""
    way_out = advice or f"Create it with `ogive group create {group}`, or start a member of it."
    return GroupNotExist(
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        f'no broker knows a consumer group "{group}".{hint} {way_out}',
    )
