"""Consumer groups, their members, and producers."""

from typing import Any, Final, Literal

from ogive.client import rpc
from ogive.client.admin.base import AdminBase
from ogive.client.admin.records import (
    NO_MEMBER,
    Group,
    GroupSummary,
    Member,
    QueueLag,
    SettingChange,
    SettingValue,
    refusal,
    setting_changes,
)
from ogive.client.config import check_type
from ogive.errors import (
    BrokerError,
    BrokerInternalError,
    ConsumerNotOnline,
    GroupNotExist,
    InvalidOption,
    NoRoute,
    ProtocolError,
    ResponseCode,
    TopicNotExist,
    TransportError,
)
from ogive.model import (
    MessageQueue,
    is_system_group,
    pop_retry_topics,
    retry_topic,
    validate_group,
    validate_topic,
)
from ogive.transport.event_loop import each
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    RequestMode,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.codes import version_name

_ON_THE_WIRE: Final = {
    "retry_queues": "retryQueueNums",
    "max_retries": "retryMaxTimes",
    "broadcast": "consumeBroadcastEnable",
    "enabled": "consumeEnable",
    "orderly": "consumeMessageOrderly",
}


class GroupCalls(AdminBase):
    async def create_group(
        self,
        group: str,
        *,
        retry_queues: int = 1,
        max_retries: int = 16,
        broadcast: bool = True,
        enabled: bool = True,
        cluster: str | None = None,
    ) -> None:
        """Create the consumer group on every master of the cluster (default: of all) that lacks
        it.

        *max_retries*: how often a message is delivered again before it becomes a dead letter.
        *broadcast*: whether members may broadcast. *enabled* False: no member gets messages. Raises
        InvalidOption if a broker has it with other settings: ``update_group`` changes them.
        """
        validate_group(group)
        check_retries(retry_queues, max_retries)
        config = SubscriptionGroupConfig(
            name=group,
            retry_queues=retry_queues,
            retry_max_times=max_retries,
            consume_broadcast_enable=broadcast,
            consume_enable=enabled,
        )
        wanted = {
            name: value for name, value in _settings(config.to_json()).items() if value is not None
        }
        tables = await self._group_tables(cluster)
        known = [
            setting_changes(broker, _settings(table[group]), wanted)
            for broker, _, table in tables
            if group in table
        ]
        if others := [change for rows in known for change in rows]:
            raise refusal("group", group, others)
        lacking = [address for _, address, table in tables if group not in table]
        await each(
            lacking,
            lambda address: rpc.create_group(
                self.client.pool, address, config, timeout_s=self._timeout_s
            ),
        )

    async def update_group(
        self,
        group: str,
        *,
        retry_queues: int | None = None,
        max_retries: int | None = None,
        broadcast: bool | None = None,
        enabled: bool | None = None,
        orderly: bool | None = None,
        dry_run: bool = False,
    ) -> list[SettingChange]:
        """Change the settings that are given, at every broker that knows the group.

        Returns the changes.

        *orderly*: members that use gRPC get messages in order. *dry_run*: only return what would
        change. Raises GroupNotExist.
        """
        validate_group(group)
        check_retries(retry_queues, max_retries)
        named = {
            "retry_queues": retry_queues,
            "max_retries": max_retries,
            "broadcast": broadcast,
            "enabled": enabled,
            "orderly": orderly,
        }
        wanted: dict[str, SettingValue] = {
            name: value for name, value in named.items() if value is not None
        }
        if not wanted:
            raise InvalidOption(f'nothing is to be changed of group "{group}": name a setting')
        tables = await self._group_tables()
        known = [
            (broker, address, table[group]) for broker, address, table in tables if group in table
        ]
        if not known:
            raise await self._unknown_group(group, tables)
        plans = [
            (address, config, setting_changes(broker, _settings(config), wanted))
            for broker, address, config in known
        ]

        async def carry_out(plan: tuple[str, dict[str, Any], list[SettingChange]]) -> None:
            address, config, rows = plan
            if rows:
                # In a request attributes are changes ("+name"): without any they stay.
                body = {
                    **config,
                    **{_ON_THE_WIRE[row.setting]: row.after for row in rows},
                    "attributes": {},
                }
                await rpc.update_group(self.client.pool, address, body, timeout_s=self._timeout_s)

        if not dry_run:
            await each(plans, carry_out)
        return [change for _, _, rows in plans for change in rows]

    async def set_consume_mode(
        self,
        group: str,
        topic: str,
        mode: Literal["pull", "pop"],
        *,
        share_queues: int = 0,
    ) -> None:
        """Set whether members that ask pop or pull *topic*, at each broker that holds it.

        Apache's push clients ask with setClientRebalance(false). ogive's listeners go by their own
        *mode*, and pop from the queues that they are assigned. *share_queues*: so many other
        members pop a member's queues as well; 0: all members pop from all queues. Raises NoRoute,
        GroupNotExist, and InvalidOption for an unknown mode.
        """
        validate_group(group)
        validate_topic(topic)
        check_type("share_queues", share_queues, int, "int")
        if mode not in ("pull", "pop"):
            raise InvalidOption(f'mode is {mode!r}: must be "pull" or "pop"')
        if share_queues < 0:
            raise InvalidOption(f"share_queues is {share_queues}: must not be negative")
        wanted = RequestMode(topic=topic, group=group, mode=mode.upper(), share_queues=share_queues)
        masters = await self._topic_masters(topic)
        try:
            await each(
                masters.values(),
                lambda at: rpc.set_request_mode(
                    self.client.pool, at, wanted, timeout_s=self._timeout_s
                ),
            )
        except GroupNotExist:
            # if no broker has it, the error names groups that are spelt alike
            await self._check_known(group)
            raise

    async def delete_group(self, group: str, *, offsets: bool = False) -> None:
        """Delete the group from every broker; with *offsets* its progress, too.

        Its retry and dead-letter topics stay.

        Raises GroupNotExist, and InvalidOption while members are online, whose next heartbeat would
        create the group again.
        """
        validate_group(group)
        tables = await self._group_tables()
        if not any(group in table for _, _, table in tables):
            raise await self._unknown_group(group, tables, "There is nothing to delete.")
        online = await self._connections(group)
        if online:
            ids = ", ".join(
                sorted(connection.client_id for _, one in online for connection in one.connections)
            )
            raise InvalidOption(
                f'group "{group}" has members online, which would make it again: stop them first '
                f"({ids})"
            )

        async def delete(address: str) -> None:
            await rpc.delete_group(
                self.client.pool, address, group, clean_offset=offsets, timeout_s=self._timeout_s
            )

        self._listed.discard(group)
        await each((address for _, address, _ in tables), delete)

    async def groups(self, *, system: bool = False) -> list[GroupSummary]:
        """Return all consumer groups, by name; *system* includes the brokers' own."""
        rows: dict[str, list[tuple[str, SubscriptionGroupConfig]]] = {}
        for broker, _, table in await self._group_tables():
            for name, config in table.items():
                if system or not is_system_group(name):
                    rows.setdefault(name, []).append(
                        (broker, SubscriptionGroupConfig.from_json(config))
                    )
        return [
            GroupSummary(
                name=name,
                brokers=tuple(broker for broker, _ in held),
                enabled=all(config.consume_enable for _, config in held),
                max_retries=max(config.retry_max_times for _, config in held),
            )
            for name, held in sorted(rows.items())
        ]

    async def group(self, group: str) -> Group:
        """Settings, members, subscriptions and progress of one group.

        Raises GroupNotExist, which names similar groups.
        """
        validate_group(group)
        tables = await self._group_tables()
        held = [
            (broker, SubscriptionGroupConfig.from_json(table[group]))
            for broker, _, table in tables
            if group in table
        ]
        if not held:
            raise await self._unknown_group(group, tables)
        online = [one for _, one in await self._connections(group)]
        lag, rate = await self._progress(group)
        members = {
            member.client_id: member for one in online for member in map(_member, one.connections)
        }
        first = held[0][1]
        return Group(
            name=group,
            brokers=tuple(broker for broker, _ in held),
            enabled=all(config.consume_enable for _, config in held),
            broadcast=all(config.consume_broadcast_enable for _, config in held),
            orderly=any(config.consume_message_orderly for _, config in held),
            retry_queues=first.retry_queues,
            max_retries=first.retry_max_times,
            members=tuple(member for _, member in sorted(members.items())),
            subscriptions={
                topic: data.expression
                for one in online
                for topic, data in sorted(one.subscriptions.items())
            },
            consume_type=online[0].consume_type if online else "",
            message_model=online[0].message_model if online else "",
            lag=sum(row.lag for row in lag),
            messages_per_s=rate,
        )

    async def members(self, group: str) -> ConsumerConnection | None:
        """Return the members online now and their subscriptions; None if there are none.

        Raises GroupNotExist, which names similar groups.
        """
        validate_group(group)
        for address in (await self._group_masters(group)).values():
            try:
                return await rpc.consumer_connections(
                    self.client.pool, address, group, timeout_s=self._timeout_s
                )
            except ConsumerNotOnline:
                continue
        await self._check_known(group)
        return None

    async def producers(self, group: str) -> list[Member]:
        """Return the producers of the group that are online now."""
        validate_group(group)
        found: dict[str, Member] = {}
        for address in (await self._masters()).values():
            try:
                connections = await rpc.producer_connections(
                    self.client.pool, address, group, timeout_s=self._timeout_s
                )
            except BrokerInternalError:
                # Apache's answer for a group that this broker does not know
                continue
            found |= {member.client_id: member for member in map(_member, connections)}
        return [member for _, member in sorted(found.items())]

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """Return what one member reports about itself; *stack* includes its threads.

        Raises ConsumerNotOnline, GroupNotExist, or a BrokerError if the member refuses.
        """
        validate_group(group)
        online: set[str] = set()
        for address, one in await self._connections(group):
            online |= {connection.client_id for connection in one.connections}
            if client_id in online:
                return await rpc.consumer_running_info(
                    self.client.pool,
                    address,
                    group,
                    client_id,
                    stack=stack,
                    timeout_s=self._timeout_s,
                )
        if not online:
            await self._check_known(group)
        there = f": online are {', '.join(sorted(online))}" if online else ", and no other"
        raise ConsumerNotOnline(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f'no member "{client_id}" of group "{group}" is online{there}',
        )

    async def lag(
        self, group: str, topic: str | None = None, *, members: bool = True
    ) -> list[QueueLag]:
        """Return how far the group is behind in each queue, including those of its retry topics.

        Empty if it never committed. *members*: also ask every member which queues it holds. Raises
        GroupNotExist and NoRoute, which name similar groups and topics.
        """
        rows = await self._lag(group, topic)
        if topic is not None:
            rows += await self._pop_retries(group, topic)
        if not rows and topic is not None:
            await self.client.routes.refresh(validate_topic(topic))
        holders = await self._holders(group) if members and rows else {}
        return [
            QueueLag(
                row.queue,
                row.consumer_offset,
                row.max_offset,
                row.lag,
                row.last_consumed_ms,
                holders.get(row.queue),
            )
            for row in rows
        ]

    async def _pop_retries(self, group: str, topic: str) -> list[QueueLag]:
        """Return the lag in the topics from which members that pop get messages again."""
        names = pop_retry_topics(group, topic)
        tables = [await self._progress(group, name) for name in names]
        return [row for rows, _ in tables for row in rows if row.queue.topic in names]

    async def _lag(self, group: str, topic: str | None) -> list[QueueLag]:
        """Return the lag in each queue. Raises GroupNotExist."""
        validate_group(group)
        rows, _ = await self._progress(group, topic)
        if not rows:
            await self._check_known(group)
        return rows

    async def lag_gaps(
        self, group: str, topic: str | None = None, *, members: bool = True
    ) -> list[str]:
        """Return what is missing from ``lag()``, a sentence each. Empty if nothing is missing.

        Messages are missing while a broker is away, and in a topic, or at a broker, where the group
        has no position yet. A position beyond the end of its queue means that the topic was deleted
        and made again.

        *members*: a group that has no member online is a gap too. Only ogive's name server knows
        brokers that are gone, for a day; a master that is away while its slave serves is always
        seen.
        """
        gaps = [
            f"broker {name} is away, and may hold messages of the group"
            for name in (await self.cluster_info()).away
        ]
        rows = await self._lag(group, topic)
        gaps += [
            f"the position {row.consumer_offset} is beyond the end of "
            f"{self._namespace.strip_queue(row.queue)}, which is "
            f"{row.max_offset}: the topic was deleted and created again"
            for row in rows
            if row.consumer_offset > row.max_offset
        ]
        subscribed: set[str] = {
            name for _, one in await self._connections(group) for name in one.subscriptions
        }
        if topic is not None:
            subscribed &= {topic}
        if members and not subscribed:
            online = (
                f"{NO_MEMBER} that consumes {self._namespace.strip(topic)}" if topic else NO_MEMBER
            )
            gaps.append(online)
        known = {row.queue for row in rows}
        for name in sorted(subscribed - {retry_topic(group)}):
            unknown = [queue for queue in await self._filled_queues(name) if queue not in known]
            gaps += [
                f"the group has no position in {self._namespace.strip_queue(queue)}"
                for queue in unknown
            ]
        return gaps

    async def _filled_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that hold messages, or none if the topic does not exist."""
        try:
            masters = await self._topic_masters(topic)
        except NoRoute:
            return []
        tables = await each(
            masters.values(),
            lambda at: rpc.topic_stats(self.client.pool, at, topic, timeout_s=self._timeout_s),
        )
        return sorted(
            queue
            for table in tables
            for queue, row in table.items()
            if row.max_offset > row.min_offset
        )

    async def _progress(self, group: str, topic: str | None = None) -> tuple[list[QueueLag], float]:
        rows: list[QueueLag] = []
        rate = 0.0
        for address in (await self._group_masters(group, topic)).values():
            try:
                table, per_s = await rpc.consume_stats_and_rate(
                    self.client.pool, address, group, topic, timeout_s=self._timeout_s
                )
            except (GroupNotExist, TopicNotExist, ConsumerNotOnline):
                # this broker knows nothing of the group
                continue
            rate += per_s
            for queue, row in table.items():
                behind = max(0, row.broker_offset - max(0, row.consumer_offset))
                rows.append(
                    QueueLag(
                        queue,
                        row.consumer_offset,
                        row.broker_offset,
                        behind,
                        row.last_timestamp or None,
                    )
                )
        return sorted(rows, key=lambda row: row.queue), rate

    async def _holders(self, group: str) -> dict[MessageQueue, str]:
        """Return the member that holds each queue, as the members report it.

        Members of a broadcasting group hold all queues, so none is named.
        """
        asked = {
            connection.client_id: address
            for address, one in await self._connections(group)
            if one.message_model != "BROADCASTING"
            for connection in one.connections
        }

        async def queues(member: tuple[str, str]) -> dict[MessageQueue, str]:
            client_id, address = member
            try:
                info = await rpc.consumer_running_info(
                    self.client.pool, address, group, client_id, timeout_s=self._timeout_s
                )
            except (BrokerError, TransportError, ProtocolError):
                # it does not tell: its queues stay without a name, which is no reason to hide the
                # lag
                return {}
            return {queue: client_id for queue, row in info.queues.items() if not row.dropped}

        holders: dict[MessageQueue, str] = {}
        for table in await each(asked.items(), queues):
            holders |= table
        return holders


def _settings(config: dict[str, Any]) -> dict[str, SettingValue | None]:
    """Return the settings as ``update_group`` names them."""
    read = SubscriptionGroupConfig.from_json(config)
    return {
        "retry_queues": read.retry_queues,
        "max_retries": read.retry_max_times,
        "broadcast": read.consume_broadcast_enable,
        "enabled": read.consume_enable,
        "orderly": read.consume_message_orderly,
    }


def check_retries(retry_queues: int | None, max_retries: int | None) -> None:
    """Raise InvalidOption for a value that no group can have."""
    check_type("retry_queues", retry_queues, int | None, "int or None")
    check_type("max_retries", max_retries, int | None, "int or None")
    if retry_queues is not None and retry_queues < 1:
        raise InvalidOption(f"retry_queues is {retry_queues}: must be at least 1")
    if max_retries is not None and max_retries < 0:
        raise InvalidOption(f"max_retries is {max_retries}: must be 0 or more")


def _member(connection: ConnectionInfo) -> Member:
    return Member(
        client_id=connection.client_id,
        address=connection.address,
        language=connection.language,
        version=version_name(connection.version),
    )
