"""Pages of consumer groups: the list, those with the largest lag, and one group with members and
queues.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ogive.client import rpc
from ogive.client.admin import Member, QueueLag
from ogive.client.admin.records import behind_s, how_consumed
from ogive.console.cluster_pages import ClusterQueries, GroupAtBrokers
from ogive.console.forms import Page
from ogive.console.queries import gather_answers, reason
from ogive.console.topic_pages import TopicQueries
from ogive.errors import ConsumerNotOnline, GroupNotExist, OgiveError, ResponseCode, TopicNotExist
from ogive.model import RETRY_PREFIX, MessageQueue, dlq_topic
from ogive.wire.bodies.clients import ConsumerConnection, ConsumerRunningInfo
from ogive.wire.bodies.stats import OffsetWrapper
from ogive.wire.codes import version_name

# groups whose lag is queried for one view of the overview
LOOKS: Final = 100
WORST: Final = 10
# limit for members whose queues are queried
MAX_ASKED: Final = 64
MAX_REMEMBERED: Final = 20_000  # lags
BROADCASTING: Final = "BROADCASTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group in a list.

    *lag* is None if it is unknown: no broker answered, or the members broadcast. *behind_s* is the
    age of the oldest progress. *consumed*: the sum of all positions, which grows with consumption.
    *in_flight*: messages that members were given and have not acknowledged, as on leases of pop.
    *oldest*: the queue of the oldest lease, and when it was given out in ms; None if there is none,
    or if its broker does not report it.
    """

    name: str
    enabled: bool
    max_retries: int
    members: int
    model: str
    lag: int | None
    behind_s: float | None
    retries: int
    in_flight: int
    oldest: tuple[MessageQueue, int] | None
    consumed: int
    trouble: str | None


@dataclass(frozen=True, slots=True)
class HeldMember:
    """A member with its queues; *trouble*: the reason if it does not report them."""

    member: Member
    queues: tuple[MessageQueue, ...]
    trouble: str | None


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A group's progress in one topic."""

    topic: str
    subscription: str | None
    lag: int
    behind_s: float | None
    queues: tuple[QueueLag, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """A group's page. *how*: the way in which its members consume; *dead* is None if it is
    unknown.
    """

    row: GroupRow
    brokers: tuple[str, ...]
    broadcast: bool
    retry_queues: int
    how: str
    per_s: float
    members: tuple[HeldMember, ...]
    member_pages: Page
    topics: tuple[TopicLag, ...]
    retries: tuple[TopicLag, ...]
    dead: int | None
    troubles: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Progress:
    rows: dict[MessageQueue, OffsetWrapper]
    per_s: float
    online: tuple[ConsumerConnection, ...]
    troubles: dict[str, str]


class GroupQueries:
    def __init__(
        self, cluster: ClusterQueries, topics: TopicQueries, clock: Callable[[], float] = time.time
    ) -> None:
        self._cluster, self._topics, self._clock = cluster, topics, clock
        # the last known values, the least recently viewed first
        self._lags: dict[str, GroupRow] = {}

    async def rows(self, names: Sequence[str]) -> list[GroupRow]:
        known = (await self._cluster.groups()).known
        told, troubles = await gather_answers(
            (name for name in names if name in known), lambda name: self.row(known[name])
        )
        nothing = _Progress({}, 0.0, (), {})
        for name, error in troubles.items():
            row = self._row(known[name], nothing)
            told[name] = replace(row, lag=None, behind_s=None, trouble=reason(error))
        return [told[name] for name in names if name in told]

    async def row(self, group: GroupAtBrokers) -> GroupRow:
        progress = await self._progress(group)
        return self._row(group, progress)

    async def worst(self) -> tuple[list[GroupRow], int, str | None]:
        """Return the groups with the largest lag, the number of groups that were queried, and a
        sentence if figures of some are missing.

        A call queries LOOKS groups: those that had the largest lag before, and the next in turn, so
        that all are known after some calls.
        """
        names = (await self._cluster.groups()).names
        listed = set(names)
        self._lags = {name: row for name, row in self._lags.items() if name in listed}
        unknown = [name for name in names if name not in self._lags]
        turn = [row.name for row in self._worst()] + unknown[:LOOKS] + list(self._lags)
        for row in await self.rows(list(dict.fromkeys(turn))[:LOOKS]):
            self._lags.pop(row.name, None)
            if len(self._lags) < MAX_REMEMBERED:
                self._lags[row.name] = row
        silent = [row for row in self._lags.values() if row.trouble]
        trouble = f"{silent[0].name}: {silent[0].trouble}" if silent else None
        if len(silent) > 1:
            trouble = f"{trouble}; figures of {len(silent) - 1} more groups are missing, too"
        return self._worst(), len(self._lags), trouble

    def _worst(self) -> list[GroupRow]:
        behind = [row for row in self._lags.values() if row.lag]
        return sorted(behind, key=lambda row: (-(row.lag or 0), row.name))[:WORST]

    async def page(self, name: str, member_pages: Callable[[int], Page]) -> GroupPage:
        """Return the page of a group; *member_pages* gets the number of members. Raises
        GroupNotExist.
        """
        group = await self._cluster.group(name)
        silent = (await self._cluster.groups()).troubles
        progress = await self._progress(group)
        row = self._row(group, progress)
        members, member_page = await self._members(group, progress, member_pages)
        holders = (
            {queue: held.member.client_id for held in members for queue in held.queues}
            if row.model != BROADCASTING
            else {}
        )
        subscriptions = {
            topic: data.expression
            for one in progress.online
            for topic, data in one.subscriptions.items()
        }
        topics = [
            self._topic_lag(topic, progress.rows, holders, subscriptions.get(topic))
            for topic in sorted({queue.topic for queue in progress.rows} | subscriptions.keys())
        ]
        settings = group.settings()
        dead, dead_trouble = await self._dead(name)
        return GroupPage(
            row=row,
            brokers=tuple(group.tables),
            broadcast=all(config.consume_broadcast_enable for config in settings),
            retry_queues=settings[0].retry_queues,
            how=how_consumed(progress.online[0].message_model, progress.online[0].consume_type)
            if progress.online
            else "",
            per_s=progress.per_s,
            members=members[member_page.start : member_page.end],
            member_pages=member_page,
            topics=tuple(one for one in topics if not one.topic.startswith(RETRY_PREFIX)),
            retries=tuple(one for one in topics if one.topic.startswith(RETRY_PREFIX)),
            dead=dead,
            troubles=silent | progress.troubles | dead_trouble,
        )

    # --- queries of the cluster ------------------------------------------------------------------

    async def _progress(self, group: GroupAtBrokers) -> _Progress:
        return await self._cluster.queries.once(
            ("progress", group.name), lambda: self._ask_progress(group)
        )

    async def _ask_progress(self, group: GroupAtBrokers) -> _Progress:
        masters = {
            broker: address
            for broker, address in (await self._cluster.masters()).items()
            if broker in group.tables
        }
        queries, name = self._cluster.queries, group.name

        async def stats(broker: str) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
            try:
                return await queries.server(masters[broker], rpc.consume_stats_and_rate, name)
            except (GroupNotExist, TopicNotExist, ConsumerNotOnline):
                # Apache's ways to say that the group has consumed nothing from this broker
                return {}, 0.0

        async def online(broker: str) -> ConsumerConnection | None:
            try:
                return await queries.server(masters[broker], rpc.consumer_connections, name)
            except ConsumerNotOnline:
                return None

        told, troubles = await gather_answers(masters, stats)
        connected, more = await gather_answers(masters, online)
        return _Progress(
            rows={queue: row for table, _ in told.values() for queue, row in sorted(table.items())},
            per_s=sum(rate for _, rate in told.values()),
            online=tuple(one for one in connected.values() if one is not None),
            troubles={broker: reason(error) for broker, error in (more | troubles).items()},
        )

    async def _members(
        self, group: GroupAtBrokers, progress: _Progress, pages: Callable[[int], Page]
    ) -> tuple[tuple[HeldMember, ...], Page]:
        """Return each member with the queues that it reports, and which of them are shown.

        The shown ones are asked, and the first ones, for the queues that they hold.
        """
        members = {
            connection.client_id: connection
            for one in progress.online
            for connection in one.connections
        }
        masters = await self._cluster.masters()
        brokers = [masters[broker] for broker in group.tables if broker in masters]

        async def ask(client_id: str) -> ConsumerRunningInfo:
            return await self._cluster.queries.once(
                ("member", group.name, client_id),
                lambda: self._running(brokers, group.name, client_id),
            )

        names, page = sorted(members), pages(len(members))
        asked = dict.fromkeys((*names[:MAX_ASKED], *names[page.start : page.end]))
        told, troubles = await gather_answers(asked, ask)

        def held(client_id: str) -> HeldMember:
            connection = members[client_id]
            info = told.get(client_id)
            trouble = troubles.get(client_id)
            member = Member(
                client_id=client_id,
                address=connection.address,
                language=connection.language,
                version=version_name(connection.version),
            )
            queues = (
                ()
                if info is None
                else tuple(sorted(queue for queue, row in info.queues.items() if not row.dropped))
            )
            return HeldMember(
                member,
                queues,
                reason(trouble) if trouble else None if info else "not asked",
            )

        return tuple(held(client_id) for client_id in names), page

    async def _running(
        self, brokers: Iterable[str], group: str, client_id: str
    ) -> ConsumerRunningInfo:
        """Ask the member through the first broker that knows it."""
        error: OgiveError = ConsumerNotOnline(
            ResponseCode.CONSUMER_NOT_ONLINE, "it is not online any more"
        )
        for address in brokers:
            try:
                return await self._cluster.queries.server(
                    address, rpc.consumer_running_info, group, client_id, judged=False
                )
            except OgiveError as exc:
                error = exc
        raise error

    async def _dead(self, group: str) -> tuple[int | None, dict[str, str]]:
        """Return the number of stored dead letters, and the reason if some are not counted."""
        try:
            row = await self._topics.row(dlq_topic(group))
        except TopicNotExist:
            return 0, {}
        return row.held, {} if row.trouble is None else {"dead letters": row.trouble}

    # --- reckoning --------------------------------------------------------------------------------

    def _row(self, group: GroupAtBrokers, progress: _Progress) -> GroupRow:
        model = next((one.message_model for one in progress.online), "")
        known = bool(group.tables.keys() - progress.troubles.keys()) and model != BROADCASTING
        rows, settings = progress.rows, group.settings()
        queues = [_queue_lag(queue, row) for queue, row in rows.items()]
        return GroupRow(
            name=group.name,
            enabled=all(config.consume_enable for config in settings),
            max_retries=max(config.retry_max_times for config in settings),
            members=len(
                {connection.client_id for one in progress.online for connection in one.connections}
            ),
            model=model,
            lag=sum(row.lag for row in queues) if known else None,
            behind_s=self._behind_s(queues) if known else None,
            retries=sum(row.lag for row in queues if row.queue.topic.startswith(RETRY_PREFIX)),
            in_flight=sum(max(0, row.pull_offset - row.consumer_offset) for row in rows.values()),
            oldest=min(
                ((queue, row.pop_timestamp) for queue, row in rows.items() if row.pop_timestamp),
                key=lambda one: one[1],
                default=None,
            ),
            consumed=sum(max(0, row.consumer_offset) for row in queues),
            trouble="; ".join(
                f"{broker}: {text}" for broker, text in sorted(progress.troubles.items())
            )
            or None,
        )

    def _topic_lag(
        self,
        topic: str,
        rows: dict[MessageQueue, OffsetWrapper],
        holders: dict[MessageQueue, str],
        subscription: str | None,
    ) -> TopicLag:
        queues = tuple(
            _queue_lag(queue, row, holders.get(queue))
            for queue, row in sorted(rows.items())
            if queue.topic == topic
        )
        return TopicLag(
            topic,
            subscription,
            sum(row.lag for row in queues),
            self._behind_s(queues),
            queues,
        )

    def _behind_s(self, rows: Iterable[QueueLag]) -> float | None:
        """Return the age of the newest consumed message in the slowest queue; 0 if there is no
        backlog, None if unknown.
        """
        ages = [behind_s(row, self._clock()) for row in rows if row.lag]
        known = [age for age in ages if age is not None]
        return max(known) if known else None if ages else 0.0


def _queue_lag(queue: MessageQueue, row: OffsetWrapper, member: str | None = None) -> QueueLag:
    return QueueLag(
        queue,
        row.consumer_offset,
        row.broker_offset,
        max(0, row.broker_offset - max(0, row.consumer_offset)),
        row.last_timestamp if row.last_timestamp > 0 else None,
        member,
    )
