"""Topics and brokers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

from ogive.client import rpc
from ogive.client.admin.base import AdminBase, master_addresses
from ogive.client.admin.records import (
    BrokerStatus,
    BrokerTopic,
    Permission,
    QueueOffsets,
    SettingChange,
    SettingValue,
    Topic,
    TopicSummary,
    refusal,
    setting_changes,
    topic_kind,
)
from ogive.client.config import check_type
from ogive.errors import (
    BrokerError,
    InvalidOption,
    NoRoute,
    NotSupported,
    ResponseCode,
    TopicNotExist,
    TransportError,
)
from ogive.model import BATCHES, QUEUE_TYPE, MessageQueue, MessageType, validate_topic
from ogive.transport.event_loop import each
from ogive.wire.bodies.configs import DelayLevels, TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ, PERM_WRITE
from ogive.wire.bodies.routes import QueueData, TopicRouteData
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.codes import OWN_VERSION_FIGURE

PERMISSIONS: dict[Permission, int] = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
MESSAGE_TYPE = "message.type"
_LOST = "its connection to the name server broke, and it has not come back"


class TopicCalls(AdminBase):
    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        cluster: str | None = None,
        order: bool = False,
        perm: Permission = "rw",
        message_type: MessageType | None = None,
        whole_batches: bool = False,
    ) -> None:
        """Create the topic with *queues* queues on each master of the cluster (default: of all)
        that lacks it.

        *message_type* is looked at by proxies of 5.x, and by brokers from 5.0 on kept.
        *whole_batches* makes a topic of batches (queue.type=BatchCQ, from 5.0 on), which no update
        changes. Returns when every broker has the topic and the name server answers its route.
        Raises InvalidOption if a broker has it with other settings: ``update_topic`` changes them.
        """
        validate_topic(topic)
        check_topic_settings(queues, perm, message_type)
        masters = await self._masters(cluster)
        config = TopicConfig(
            name=topic,
            read_queues=queues,
            write_queues=queues,
            order=order,
            perm=PERMISSIONS[perm],
            attributes=({MESSAGE_TYPE: message_type} if message_type else {})
            | ({QUEUE_TYPE: BATCHES} if whole_batches else {}),
        )
        wanted = {name: value for name, value in _settings(config).items() if value is not None}

        async def differences(master: tuple[str, str]) -> list[SettingChange] | None:
            broker, address = master
            try:
                return setting_changes(
                    broker, _settings(await self._config(address, topic)), wanted
                )
            except TopicNotExist:
                return None

        found = dict(zip(masters, await each(masters.items(), differences), strict=True))
        if others := [change for rows in found.values() for change in rows or ()]:
            raise refusal("topic", topic, others)
        lacking = [address for broker, address in masters.items() if found[broker] is None]
        await each(
            lacking,
            lambda address: rpc.create_topic(
                self.client.pool, address, config, timeout_s=self._timeout_s
            ),
        )
        await self._wait_for_route(
            topic, len(masters), lambda row: row.write_queues == queues and row.perm == config.perm
        )

    async def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: Permission | None = None,
        order: bool | None = None,
        message_type: MessageType | None = None,
        dry_run: bool = False,
    ) -> list[SettingChange]:
        """Change the settings that are given, at every broker that has the topic.

        Returns the changes.

        To remove queues without loss, lower *write_queues* first, and *read_queues* once the others
        are consumed. *dry_run*: only return what would change. Raises NoRoute.
        """
        validate_topic(topic)
        for count in (read_queues, write_queues):
            check_topic_settings(count, perm, message_type)
        named = {
            "read_queues": read_queues,
            "write_queues": write_queues,
            "perm": perm,
            "order": order,
            "message_type": message_type,
        }
        wanted: dict[str, SettingValue] = {
            name: value for name, value in named.items() if value is not None
        }
        if not wanted:
            raise InvalidOption(f'nothing is to be changed of topic "{topic}": name a setting')
        masters = await self._topic_masters(topic)

        async def plan(master: tuple[str, str]) -> tuple[str, TopicConfig, list[SettingChange]]:
            broker, address = master
            known = await self._config(address, topic)
            return address, known, setting_changes(broker, _settings(known), wanted)

        plans = await each(sorted(masters.items()), plan)
        changes = [change for _, _, rows in plans for change in rows]
        if dry_run or not changes:
            return changes

        async def carry_out(plan: tuple[str, TopicConfig, list[SettingChange]]) -> None:
            address, known, rows = plan
            if rows:
                config = _changed(known, {row.setting: row.after for row in rows})
                await rpc.create_topic(self.client.pool, address, config, timeout_s=self._timeout_s)

        await each(plans, carry_out)
        shown = _changed(TopicConfig(name=topic), wanted)
        names = [name for name in ("read_queues", "write_queues", "perm") if name in wanted]
        await self._wait_for_route(
            topic,
            len(masters),
            lambda row: all(getattr(row, name) == getattr(shown, name) for name in names),
        )
        return changes

    async def _wait_for_route(
        self, topic: str, brokers: int, shown: Callable[[QueueData], bool]
    ) -> None:
        """Wait until all *brokers* are shown: not every release of a name server acts on a
        registration before it answers.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        route = await self.client.routes.refresh(topic)
                    except NoRoute:
                        route = TopicRouteData(queues=(), brokers=())
                    if sum(map(shown, route.queues)) >= brokers:
                        return
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise NoRoute(
                f'topic "{topic}" is created, but {self.client.name_servers} does not show it '
                f"after {self._timeout_s:.1f} s"
            ) from None

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete the topic and its messages from every master of the cluster, and from the name
        servers. Without *cluster*, from the masters of all.

        Raises NoRoute, which names similar topics.
        """
        await self.client.routes.refresh(validate_topic(topic))
        masters = await self._masters(cluster)
        await each(
            masters.values(),
            lambda address: rpc.delete_topic(
                self.client.pool, address, topic, timeout_s=self._timeout_s
            ),
        )
        for server in self.client.name_servers.addresses:
            await rpc.delete_topic_in_name_server(
                self.client.pool, server, topic, timeout_s=self._timeout_s
            )

    async def topics(self, *, system: bool = False) -> list[TopicSummary]:
        """Return all topics, by name; *system* includes the brokers' own, and retry and dead-letter
        topics.
        """
        kinds = await self._topic_kinds()

        async def summary(name: str) -> TopicSummary | None:
            try:
                route = await self._route(name)
            except TopicNotExist:
                # deleted since it was listed
                return None
            brokers = tuple(sorted(row.broker_name for row in route.queues))
            reads = sum(row.read_queues for row in route.queues)
            writes = sum(row.write_queues for row in route.queues)
            return TopicSummary(name, brokers, reads, writes, kinds[name])

        rows = await each(
            (name for name, kind in sorted(kinds.items()) if system or kind == "application"),
            summary,
        )
        return [row for row in rows if row is not None]

    async def topic(self, topic: str) -> Topic:
        """Settings and route of one topic. Raises NoRoute, which names similar topics."""
        validate_topic(topic)
        route = await self.client.routes.refresh(topic)
        clusters = {broker.broker_name: broker.cluster for broker in route.brokers}

        async def at(master: tuple[str, str]) -> tuple[BrokerTopic, list[str]]:
            broker, address = master
            config = await self._config(address, topic)
            groups = await rpc.topic_groups(
                self.client.pool, address, topic, timeout_s=self._timeout_s
            )
            row = BrokerTopic(
                broker=broker,
                cluster=clusters[broker],
                address=address,
                read_queues=config.read_queues,
                write_queues=config.write_queues,
                perm=permission(config.perm),
                order=config.order,
                attributes=config.attributes,
            )
            return row, groups

        found = await each(sorted(master_addresses(route).items()), at)
        types = {row.attributes[MESSAGE_TYPE] for row, _ in found if MESSAGE_TYPE in row.attributes}
        return Topic(
            name=topic,
            kind=topic_kind(topic),
            message_type=" / ".join(sorted(types)) or None,
            brokers=tuple(row for row, _ in found),
            groups=tuple(sorted({group for _, groups in found for group in groups})),
        )

    async def _config(self, address: str, topic: str) -> TopicConfig:
        """Return the topic's settings at one broker. Raises TopicNotExist. Brokers of 4.x show all
        topics or none.
        """
        try:
            return await rpc.topic_config(
                self.client.pool, address, topic, timeout_s=self._timeout_s
            )
        except NotSupported:
            table = await rpc.topic_configs(self.client.pool, address, timeout_s=self._timeout_s)
        if topic not in table:
            raise TopicNotExist(
                ResponseCode.TOPIC_NOT_EXIST, f'no topic "{topic}" in this broker', address
            )
        return table[topic]

    async def route(self, topic: str) -> TopicRouteData:
        """Return the topic's brokers and queues, fresh from the name server. Raises NoRoute."""
        return await self.client.routes.refresh(topic)

    async def offsets(self, topic: str) -> list[QueueOffsets]:
        """Return the offsets in each queue of the topic. Raises NoRoute."""
        rows: dict[MessageQueue, TopicOffset] = {}
        for address in (await self._topic_masters(topic)).values():
            rows |= await rpc.topic_stats(
                self.client.pool, address, topic, timeout_s=self._timeout_s
            )
        return [
            QueueOffsets(queue, row.min_offset, row.max_offset, row.last_update_timestamp or None)
            for queue, row in sorted(rows.items())
        ]

    # --- brokers ----------------------------------------------------------------------------------

    async def brokers(self) -> list[BrokerStatus]:
        """Return every broker that the name server knows, with its version and figures.

        *trouble* is set for a broker that does not answer, and for one that is gone without having
        been stopped. Only ogive's name server lists the latter, for a day.
        """
        info = await self.cluster_info()

        async def status(row: tuple[str, str, int, str]) -> BrokerStatus:
            name, cluster, broker_id, address = row
            try:
                figures = await rpc.broker_runtime_info(
                    self.client.pool, address, timeout_s=self._timeout_s
                )
            except (BrokerError, TransportError) as exc:
                return BrokerStatus(
                    name=name,
                    cluster=cluster,
                    broker_id=broker_id,
                    address=address,
                    figures={},
                    trouble=str(exc),
                )
            return broker_status(name, cluster, broker_id, address, figures)

        rows = [
            (b.broker_name, b.cluster, i, at)
            for _, b in sorted(info.brokers.items())
            for i, at in sorted(b.addresses.items())
        ]
        lost = [
            BrokerStatus(
                name=b.broker_name,
                cluster=b.cluster,
                broker_id=i,
                address=at,
                figures={},
                trouble=_LOST,
            )
            for _, b in sorted(info.lost.items())
            for i, at in b.addresses.items()
        ]
        return [*await each(rows, status), *lost]

    async def delay_levels(self, topic: str) -> DelayLevels:
        """Return the delay levels for messages to *topic*; if its brokers differ, those of the one
        with the fewest.

        Raises BrokerError if a broker does not show its settings.
        """
        try:
            masters = master_addresses(await self._route(topic))
        except TopicNotExist:
            # whichever broker will create it
            masters = await self._masters()
        tables = await each(
            masters.values(),
            lambda address: rpc.delay_levels(self.client.pool, address, timeout_s=self._timeout_s),
        )
        return min(tables, key=lambda table: len(table.delays_ms))


def check_topic_settings(
    queues: int | None, perm: Permission | None, message_type: MessageType | None
) -> None:
    """Raise InvalidOption for a value that no topic can have."""
    check_type("queues", queues, int | None, "int or None")
    if queues is not None and queues < 1:
        raise InvalidOption(f"queues is {queues}: must be at least 1")
    if perm is not None and perm not in PERMISSIONS:
        raise InvalidOption(f"permission {perm!r} is not one of {', '.join(PERMISSIONS)}")
    if message_type is not None and message_type not in get_args(MessageType):
        raise InvalidOption(
            f"message type {message_type!r} is not one of {', '.join(get_args(MessageType))}"
        )


def _settings(config: TopicConfig) -> dict[str, SettingValue | None]:
    """Return the settings as ``update_topic`` names them."""
    return {
        "read_queues": config.read_queues,
        "write_queues": config.write_queues,
        "perm": permission(config.perm),
        "order": config.order,
        "message_type": config.attributes.get(MESSAGE_TYPE),
        # decided when it is made
        "whole_batches": config.attributes.get(QUEUE_TYPE) == BATCHES,
    }


def _changed(known: TopicConfig, changes: Mapping[str, SettingValue]) -> TopicConfig:
    """Return *known* with *changes*, which have the names of ``update_topic``.

    Of the attributes only what changes: some are fixed at creation.
    """
    fields: dict[str, Any] = {
        name: value for name, value in changes.items() if name != "message_type"
    }
    if "perm" in fields:
        fields["perm"] = PERMISSIONS[fields["perm"]]
    attributes = {MESSAGE_TYPE: str(changes["message_type"])} if "message_type" in changes else {}
    return replace(known, **fields, attributes=attributes)


def permission(perm: int) -> str:
    """Return a key of PERMISSIONS, or nothing."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")


def broker_status(
    name: str, cluster: str, broker_id: int, address: str, figures: dict[str, str]
) -> BrokerStatus:
    """Return a broker's status, with None for figures that a release does not report, or not as a
    number.
    """
    oldest = _int(figures, "earliestMessageTimeStamp")
    return BrokerStatus(
        name=name,
        cluster=cluster,
        broker_id=broker_id,
        address=address,
        version=_version(figures),
        puts_per_s=_float(figures, "putTps"),
        # the second is how 4.x spells it
        gets_per_s=_float(figures, "getTransferredTps") or _float(figures, "getTransferedTps"),
        puts_today=_difference(figures, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        gets_today=_difference(figures, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_used=_float(figures, "commitLogDiskRatio"),
        oldest_message_ms=oldest if oldest is not None and oldest >= 0 else None,
        figures=figures,
    )


def _version(figures: dict[str, str]) -> str | None:
    """Return ``5.5.0`` for V5_5_0; not every release reports the number behind the name.

    Ours has one of its own beside that of its protocol.
    """
    if ours := figures.get(OWN_VERSION_FIGURE):
        return f"ogive {ours}"
    name = figures.get("brokerVersionDesc")
    return None if name is None else name.removeprefix("V").replace("_", ".", 2).replace("_", "-")


def _int(figures: dict[str, str], name: str) -> int | None:
    text = figures.get(name, "")
    return int(text) if text.removeprefix("-").isdecimal() else None


def _float(figures: dict[str, str], name: str) -> float | None:
    """Return the first of several figures: rates are given over 10 s, 1 min and 10 min."""
    try:
        return float(figures.get(name, "").split()[0])
    except (IndexError, ValueError):
        return None


def _difference(figures: dict[str, str], now: str, before: str) -> int | None:
    end, start = _int(figures, now), _int(figures, before)
    return None if end is None or start is None else end - start
