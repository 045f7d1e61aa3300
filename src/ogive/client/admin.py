"""Operating a cluster: topics, positions of groups. Each call asks the brokers themselves."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ogive.client import api
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance, ClientOwner
from ogive.client.routes import MASTER_ID
from ogive.errors import ConsumerNotOnline, GroupNotExist, InvalidOption, NoRoute, TopicNotExist
from ogive.model import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    DelayLevels,
    MessageQueue,
    retry_topic,
    validate_group,
    validate_topic,
)
from ogive.wire.bodies import ClusterInfo, ConsumerConnection, TopicConfig, TopicOffset, TopicRouteData

_HIDDEN_TOPICS = SYSTEM_TOPICS | {"DefaultHeartBeatSyncerTopic"}  # the latter is the proxy's
_HIDDEN_PREFIXES = (SYSTEM_TOPIC_PREFIX, "RMQ_SYS_", "CID_RMQ_SYS_", RETRY_PREFIX, DLQ_PREFIX)


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic and the brokers that hold it; the counts are of all brokers together."""

    name: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int


@dataclass(frozen=True, slots=True)
class QueueOffsets:
    """What one queue holds: messages from *min_offset* up to, not including, *max_offset*. *last_stored_ms* is None for an empty queue."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_stored_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue. *last_consumed_ms*: when the newest consumed message was stored; None if there is none."""

    queue: MessageQueue
    consumer_offset: int
    max_offset: int
    lag: int
    last_consumed_ms: int | None


class Admin:
    """``async with Admin() as admin``. *client*: settings (instead of *name_server*), or a running client to share."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        self._owner = ClientOwner("admin", name_server, client)

    async def start(self) -> None:
        await self._owner.start()

    async def close(self) -> None:
        await self._owner.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def client(self) -> ClientInstance:
        return self._owner.client

    # --- topics ------------------------------------------------------------------------------------------------------

    async def create_topic(self, topic: str, *, queues: int = 4, cluster: str | None = None, order: bool = False) -> None:
        """Create the topic with *queues* queues on each master (of one cluster), or change it to that.

        Returns when every broker has it and the name server answers its route.
        """
        validate_topic(topic)
        if queues < 1:
            raise InvalidOption(f"a topic of {queues} queues: at least 1 is needed")
        addresses = await self._masters(cluster)
        config = TopicConfig(name=topic, read_queues=queues, write_queues=queues, order=order)
        await asyncio.gather(*(api.create_topic(self.client.pool, address, config, timeout_s=self._timeout_s) for address in addresses))
        await self._wait_for_route(topic, len(addresses), queues)

    async def _wait_for_route(self, topic: str, brokers: int, queues: int) -> None:
        """Brokers tell their name servers before they answer, but not in every release before these act on it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        route = await self.client.refresh_route(topic)
                    except NoRoute:
                        route = TopicRouteData(queues=(), brokers=())
                    if sum(row.write_queues == queues for row in route.queues) >= brokers:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise NoRoute(
                f'topic "{topic}" is created, but {self.client.name_servers} does not show it after {self._timeout_s:.1f} s'
            ) from None

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic with its messages from every master (of one cluster), and from the name servers."""
        validate_topic(topic)
        addresses = await self._masters(cluster)
        await asyncio.gather(*(api.delete_topic(self.client.pool, address, topic, timeout_s=self._timeout_s) for address in addresses))
        for server in self.client.name_servers.addresses:
            await api.delete_topic_in_name_server(self.client.pool, server, topic, timeout_s=self._timeout_s)

    async def topics(self, *, system: bool = False) -> list[TopicSummary]:
        """All topics by name; with *system* also the brokers' own, retry and dead-letter topics."""
        names = await self.client.ask_name_server(api.topic_list)
        cluster_words = set() if system else await self._cluster_words()
        wanted = [name for name in sorted(names) if system or not (_is_hidden(name) or name in cluster_words)]
        rows: list[TopicSummary] = []
        for name in wanted:
            try:
                route = await self._route(name)
            except TopicNotExist:
                continue  # deleted since it was listed
            brokers = tuple(sorted(row.broker_name for row in route.queues))
            reads, writes = sum(row.read_queues for row in route.queues), sum(row.write_queues for row in route.queues)
            rows.append(TopicSummary(name, brokers, reads, writes))
        return rows

    async def offsets(self, topic: str) -> list[QueueOffsets]:
        """What each queue of the topic holds. Raises NoRoute."""
        rows: dict[MessageQueue, TopicOffset] = {}
        for address in await self._topic_masters(topic):
            rows |= await api.topic_stats(self.client.pool, address, topic, timeout_s=self._timeout_s)
        return [
            QueueOffsets(queue, row.min_offset, row.max_offset, row.last_update_timestamp or None) for queue, row in sorted(rows.items())
        ]

    # --- groups ------------------------------------------------------------------------------------------------------

    async def lag(self, group: str, topic: str | None = None) -> list[QueueLag]:
        """How far the group is behind, by queue; its retry topic included. Empty for a group that never committed."""
        validate_group(group)
        rows: list[QueueLag] = []
        for address in await self._group_masters(group, topic):
            try:
                table = await api.consume_stats(self.client.pool, address, group, topic, timeout_s=self._timeout_s)
            except (GroupNotExist, TopicNotExist, ConsumerNotOnline):
                continue  # this broker knows nothing of the group
            for queue, row in table.items():
                behind = max(0, row.broker_offset - max(0, row.consumer_offset))
                rows.append(QueueLag(queue, row.consumer_offset, row.broker_offset, behind, row.last_timestamp or None))
        return sorted(rows, key=lambda row: row.queue)

    async def members(self, group: str) -> ConsumerConnection | None:
        """Who consumes for the group now, and what they subscribe to; None where nobody does."""
        validate_group(group)
        for address in await self._group_masters(group, None):
            try:
                return await api.consumer_connections(self.client.pool, address, group, timeout_s=self._timeout_s)
            except ConsumerNotOnline:
                continue
        return None

    # --- who to ask --------------------------------------------------------------------------------------------------

    @property
    def _timeout_s(self) -> float:
        return self.client.config.request_timeout_s

    async def delay_levels(self, topic: str) -> DelayLevels:
        """The delays that messages to *topic* can have; where its brokers differ, those of the one with the fewest levels.

        Raises BrokerError where a broker does not show its settings.
        """
        try:
            addresses = _master_addresses(await self._route(topic))
        except TopicNotExist:  # whichever broker will create it
            addresses = await self._masters()
        tables = await asyncio.gather(*(api.delay_levels(self.client.pool, address, timeout_s=self._timeout_s) for address in addresses))
        return min(tables, key=lambda table: len(table.delays_ms))

    async def cluster_info(self) -> ClusterInfo:
        """All brokers and clusters that the name server knows."""
        return await self.client.ask_name_server(api.get_cluster_info)

    async def _masters(self, cluster: str | None = None) -> list[str]:
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.clusters:
            raise InvalidOption(f'cluster "{cluster}" is unknown; there are: {", ".join(sorted(info.clusters)) or "none"}')
        names = sorted(info.brokers) if cluster is None else info.clusters[cluster]
        masters = [info.brokers[name].addresses[MASTER_ID] for name in names if MASTER_ID in info.brokers[name].addresses]
        if not masters:
            raise NoRoute(f"{self.client.name_servers} knows no broker yet")
        return masters

    async def _cluster_words(self) -> set[str]:
        """Names of clusters and brokers: Apache's brokers register them as topics."""
        info = await self.cluster_info()
        return set(info.brokers) | set(info.clusters) | {f"{name}_REPLY_TOPIC" for name in info.clusters}

    async def _route(self, topic: str) -> TopicRouteData:
        """Not through the cache: a list of all topics must not fill it."""
        return await self.client.ask_name_server(api.get_route, topic)

    async def _topic_masters(self, topic: str) -> list[str]:
        return _master_addresses(await self.client.refresh_route(topic))

    async def _group_masters(self, group: str, topic: str | None) -> Iterable[str]:
        """Brokers that know the group: those of its retry topic; all of them where that has no route."""
        try:
            return _master_addresses(await self._route(topic or retry_topic(group)))
        except TopicNotExist:
            return await self._masters()


def _master_addresses(route: TopicRouteData) -> list[str]:
    return [broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses]


def _is_hidden(topic: str) -> bool:
    return topic in _HIDDEN_TOPICS or topic.startswith(_HIDDEN_PREFIXES)
