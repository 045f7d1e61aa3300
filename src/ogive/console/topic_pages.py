"""Pages of topics: the list, and a single one with its queues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ogive.client import rpc
from ogive.client.admin.records import TopicKind, topic_kind
from ogive.client.admin.topic_admin import MESSAGE_TYPE, permission
from ogive.client.routes import similar_topics
from ogive.console.cluster_pages import ClusterQueries
from ogive.console.queries import gather_answers, reason
from ogive.errors import NotSupported, TopicNotExist
from ogive.model import BATCHES, QUEUE_TYPE, MessageQueue
from ogive.wire.bodies.stats import TopicOffset


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in a list. *held*: messages in all queues; *stored*: all that were ever stored, by
    the last offsets.

    *trouble*: the reason if figures are missing or incomplete.
    """

    name: str
    kind: TopicKind
    queues: int = 0
    brokers: tuple[str, ...] = ()
    held: int | None = None
    stored: int = 0
    last_stored_ms: int | None = None
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBroker:
    """One broker's part of a topic, by its route.

    *message_type* and *whole_batches* are None unless the broker reports them (5.x).
    """

    broker: str
    address: str | None
    read_queues: int
    write_queues: int
    perm: str
    message_type: str | None
    whole_batches: bool
    trouble: str | None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """A topic's page."""

    row: TopicRow
    brokers: tuple[AtBroker, ...]
    queues: tuple[tuple[MessageQueue, TopicOffset], ...]
    groups: tuple[str, ...]

    @property
    def message_type(self) -> str | None:
        return (
            " / ".join(sorted({at.message_type for at in self.brokers if at.message_type})) or None
        )

    @property
    def whole_batches(self) -> bool:
        return any(at.whole_batches for at in self.brokers)


class TopicQueries:
    def __init__(self, cluster: ClusterQueries) -> None:
        self._cluster = cluster

    async def rows(self, names: Sequence[str]) -> list[TopicRow]:
        """Return rows for topics of a list; the row of a topic that was deleted meanwhile says
        so.
        """
        kinds = await self._cluster.topics()
        told, troubles = await gather_answers(names, self.row)
        empty = {
            name: TopicRow(name, kinds.get(name, "application"), trouble=reason(error))
            for name, error in troubles.items()
        }
        return [told.get(name) or empty[name] for name in names]

    async def row(self, name: str) -> TopicRow:
        """Return the row of a topic. Raises TopicNotExist, NoNameServer."""
        return await self._cluster.queries.once(("topic", name), lambda: self._row(name))

    async def _row(self, name: str) -> TopicRow:
        route = await self._cluster.route(name)
        stats, troubles = await self.offsets(name)
        kinds = await self._cluster.topics()
        return TopicRow(
            name,
            kinds.get(name) or topic_kind(name),
            queues=sum(max(row.read_queues, row.write_queues) for row in route.queues),
            brokers=tuple(sorted(row.broker_name for row in route.queues)),
            held=sum(row.max_offset - row.min_offset for row in stats.values())
            if stats or not troubles
            else None,
            stored=sum(row.max_offset for row in stats.values()),
            last_stored_ms=max((row.last_update_timestamp for row in stats.values()), default=0)
            or None,
            trouble="; ".join(f"{broker}: {text}" for broker, text in sorted(troubles.items()))
            or None,
        )

    async def offsets(self, name: str) -> tuple[dict[MessageQueue, TopicOffset], dict[str, str]]:
        """Return the offsets of each queue, and the reason for each broker that
        does not answer.

        Raises TopicNotExist, NoNameServer.
        """
        return await self._cluster.queries.once(("offsets", name), lambda: self._offsets(name))

    async def _offsets(self, name: str) -> tuple[dict[MessageQueue, TopicOffset], dict[str, str]]:
        masters = await self._cluster.topic_masters(name)

        async def stats(broker: str) -> dict[MessageQueue, TopicOffset]:
            return await self._cluster.queries.server(masters[broker], rpc.topic_stats, name)

        told, troubles = await gather_answers(masters, stats)
        found = {queue: row for table in told.values() for queue, row in table.items()}
        return dict(sorted(found.items())), {
            broker: reason(error) for broker, error in troubles.items()
        }

    async def groups(self, name: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the groups that consume the topic, or did, and the reason for each broker that
        does not report its groups. Raises TopicNotExist, NoNameServer.
        """
        masters = await self._cluster.topic_masters(name)

        async def readers(broker: str) -> list[str]:
            return await self._cluster.queries.server(masters[broker], rpc.topic_groups, name)

        told, troubles = await gather_answers(masters, readers)
        return tuple(sorted({group for groups in told.values() for group in groups})), {
            broker: reason(error) for broker, error in troubles.items()
        }

    async def page(self, name: str) -> TopicPage:
        """Return the page of a topic. Raises TopicNotExist, which names similar topics, and
        NoNameServer.
        """
        try:
            row = await self.row(name)
        except TopicNotExist as exc:
            if similar := similar_topics(name, await self._cluster.topics()):
                remark = f'there is no topic "{name}". Similar topics: {", ".join(similar)}.'
                raise TopicNotExist(exc.code, remark, exc.address) from None
            raise
        offsets, troubles = await self.offsets(name)
        route, masters = await self._cluster.route(name), await self._cluster.topic_masters(name)
        groups, silent = await self.groups(name)
        attributes, unknown = await gather_answers(
            masters, lambda broker: self._attributes(masters[broker], name)
        )
        brokers = tuple(
            AtBroker(
                broker=data.broker_name,
                address=masters.get(data.broker_name),
                read_queues=data.read_queues,
                write_queues=data.write_queues,
                perm=permission(data.perm) or "none",
                message_type=attributes.get(data.broker_name, {}).get(MESSAGE_TYPE),
                whole_batches=attributes.get(data.broker_name, {}).get(QUEUE_TYPE) == BATCHES,
                trouble=troubles.get(data.broker_name)
                or silent.get(data.broker_name)
                or (reason(unknown[data.broker_name]) if data.broker_name in unknown else None)
                or (None if data.broker_name in masters else "it has no master now"),
            )
            for data in sorted(route.queues, key=lambda data: data.broker_name)
        )
        return TopicPage(row, brokers, tuple(offsets.items()), groups)

    async def _attributes(self, address: str, name: str) -> Mapping[str, str]:
        try:
            config = await self._cluster.queries.server(address, rpc.topic_config, name)
        except NotSupported:
            # 4.x knows none
            return {}
        return config.attributes
