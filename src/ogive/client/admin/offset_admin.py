"""Progress of groups: reading it, and changing it.

A broker of 5.x moves a group, whoever is online: it sets the offset and tells the member at its
next pull (useServerSideResetOffset, on by default). At others the offsets of a group without
members are written; they pass a time on to each member, and nothing but a time.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ogive.client import rpc
from ogive.client.admin.base import AdminBase, master_addresses, master_of
from ogive.client.admin.records import OffsetReset, ResetTarget
from ogive.client.routes import subscribe_queues
from ogive.errors import (
    BrokerError,
    BrokerInternalError,
    ConsumerNotOnline,
    GroupNotExist,
    InvalidOption,
)
from ogive.model import MessageQueue, check_offset, check_queue, validate_group, validate_topic
from ogive.transport.event_loop import each

END_MS = -1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Places:
    """Queues of a topic, and the masters that hold them by broker name."""

    topic: str
    queues: tuple[MessageQueue, ...]
    masters: dict[str, str]

    def master(self, queue: MessageQueue) -> str:
        return master_of(queue, self.masters)


class OffsetCalls(AdminBase):
    async def offsets_at(self, topic: str, at: datetime) -> dict[MessageQueue, int]:
        """Return for each queue the offset of the first message stored at or after *at*; the
        queue's end if there is none. Raises NoRoute.
        """
        validate_topic(topic)
        return await self._targets(await self._places(topic), at)

    async def positions(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the group's committed offset in each queue, or None. It is the next one that the
        group consumes.

        Raises NoRoute and GroupNotExist, which name similar topics and groups.
        """
        validate_group(group)
        places = await self._places(validate_topic(topic))
        offsets = await self._committed(group, places, places.queues)
        if all(offset is None for offset in offsets):
            await self._check_known(group)
        return dict(zip(places.queues, offsets, strict=True))

    async def reset_offsets(
        self, group: str, topic: str, to: ResetTarget, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Move the group to ``"earliest"``, ``"latest"``, a time, or given offsets (then only in
        these queues). Returns the changes.

        Members may be online: they continue there within seconds, and may still finish what they
        have. *dry_run*: only return what would change, also for a group that no broker knows yet.
        Raises NoRoute, GroupNotExist, and InvalidOption for an offset that a queue does not have.
        """
        validate_group(group)
        places = await self._places(validate_topic(topic))
        targets = await self._targets(places, to)
        before = await self._committed(group, places, targets)
        plan = [
            OffsetReset(queue, old, new)
            for (queue, new), old in zip(sorted(targets.items()), before, strict=True)
        ]
        if not dry_run:
            await self._carry_out(group, places, plan, to)
        return plan

    async def skip_backlog(
        self, group: str, topic: str, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Skip everything that the group has not consumed yet: ``reset_offsets`` to
        ``"latest"``.
        """
        return await self.reset_offsets(group, topic, "latest", dry_run=dry_run)

    async def clone_offsets(
        self, source: str, target: str, topic: str, *, dry_run: bool = False
    ) -> list[OffsetReset]:
        """Give *target* the offsets of *source* in the topic, in all queues where it has any.

        Returns the changes.
        """
        positions = {
            queue: at
            for queue, at in (await self.positions(source, topic)).items()
            if at is not None
        }
        if not positions:
            raise InvalidOption(
                f'group "{source}" has no position in topic "{topic}": there is nothing to clone'
            )
        return await self.reset_offsets(target, topic, positions, dry_run=dry_run)

    # --- the plan ---------------------------------------------------------------------------------

    async def _places(self, topic: str) -> _Places:
        route = await self.client.routes.refresh(topic)
        return _Places(topic, subscribe_queues(topic, route), master_addresses(route))

    async def _targets(self, places: _Places, to: ResetTarget) -> dict[MessageQueue, int]:
        if isinstance(to, Mapping):
            return await self._checked(places, to)
        at_ms = None if to in ("earliest", "latest") else to_ms(to)

        async def find(queue: MessageQueue) -> int:
            pool, address = self.client.pool, places.master(queue)
            if at_ms is not None:
                return await rpc.search_offset(
                    pool, address, queue, at_ms, timeout_s=self._timeout_s
                )
            end = rpc.min_offset if to == "earliest" else rpc.max_offset
            return await end(pool, address, queue, timeout_s=self._timeout_s)

        return dict(zip(places.queues, await each(places.queues, find), strict=True))

    async def _checked(
        self, places: _Places, to: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return *to* if each queue has its offset.

        The next pull would correct any other offset, to a place that was not asked for.
        """
        for queue, offset in to.items():
            check_queue(queue)
            check_offset(offset)
        strange = sorted(set(to) - set(places.queues))
        if strange:
            raise InvalidOption(
                f"{strange[0]} is not a queue of {places.topic}, which has {len(places.queues)}"
            )

        async def check(queue: MessageQueue) -> None:
            address = places.master(queue)
            first = await rpc.min_offset(
                self.client.pool, address, queue, timeout_s=self._timeout_s
            )
            end = await rpc.max_offset(self.client.pool, address, queue, timeout_s=self._timeout_s)
            if not first <= to[queue] <= end:
                raise InvalidOption(
                    f"{queue} holds the offsets {first} to {end}: it cannot go on at {to[queue]}"
                )

        await each(to, check)
        return dict(to)

    async def _committed(
        self, group: str, places: _Places, queues: Iterable[MessageQueue]
    ) -> list[int | None]:
        """Return the committed offsets in the order of the queues."""

        async def position(queue: MessageQueue) -> int | None:
            return await rpc.query_consumer_offset(
                self.client.pool,
                places.master(queue),
                group,
                queue,
                zero_if_young=False,
                timeout_s=self._timeout_s,
            )

        return await each(sorted(queues), position)

    # --- carrying it out --------------------------------------------------------------------------

    async def _carry_out(
        self, group: str, places: _Places, plan: list[OffsetReset], to: ResetTarget
    ) -> None:
        """Move the group. Find out how at every broker before the first offset moves."""
        by_address: dict[str, list[OffsetReset]] = {}
        for row in plan:
            by_address.setdefault(places.master(row.queue), []).append(row)
        ways = {address: await self._way(address, group, to) for address in by_address}
        for address, rows in by_address.items():
            way = ways[address]
            if way == "members":
                await self._send_members(address, group, places.topic, _reset_time(to))
            else:
                move = rpc.reset_offset if way == "broker" else rpc.update_consumer_offset
                await self._move(move, address, group, rows)

    async def _move(
        self,
        move: Callable[..., Coroutine[Any, Any, object]],
        address: str,
        group: str,
        rows: list[OffsetReset],
    ) -> None:
        """Move the offsets at one broker. Raises GroupNotExist, saying how to create the group.

        The first offset goes alone: each of several first ones at once would make Apache's broker
        create the group's table for the topic again, and lose the others (see RemoteOffsetStore).
        """

        async def one(row: OffsetReset) -> None:
            await move(
                self.client.pool, address, group, row.queue, row.after, timeout_s=self._timeout_s
            )

        try:
            await one(rows[0])
            await each(rows[1:], one)
        except GroupNotExist as exc:
            await self._check_known(group)
            text = (
                f"{exc.remark}; create it first, with create_group or `ogive group create {group}`"
            )
            raise GroupNotExist(exc.code, text, address) from None

    async def _send_members(self, address: str, group: str, topic: str, at_ms: int) -> None:
        try:
            await rpc.reset_offset_by_time(
                self.client.pool, address, group, topic, at_ms, timeout_s=self._timeout_s
            )
        except BrokerInternalError as exc:
            if "not exist" not in (exc.remark or ""):
                raise
            text = (
                f"{exc.remark}; it says so while a queue of {topic} has no progress yet: try "
                "again once the members have committed in all"
            )
            raise BrokerInternalError(exc.code, text, address) from None

    async def _way(
        self, address: str, group: str, to: ResetTarget
    ) -> Literal["offsets", "broker", "members"]:
        """Return who moves the group at this broker: the broker, we (nobody is online), or the
        members.

        A broker that can reset does so even if nobody is online: it keeps the reset for members
        that are not back yet, and accepts no commit from a reset that they have not heard of. If it
        does not tell this user whether it can, and nobody is online, we set the offsets.
        """
        settings, refused = dict[str, str](), None
        try:
            settings = await rpc.broker_settings(
                self.client.pool, address, timeout_s=self._timeout_s
            )
        except BrokerError as exc:
            refused = exc
        if settings.get("useServerSideResetOffset") == "true":
            return "broker"
        try:
            await rpc.consumer_connections(
                self.client.pool, address, group, timeout_s=self._timeout_s
            )
        except ConsumerNotOnline:
            return "offsets"
        if refused is not None:
            raise refused
        if isinstance(to, Mapping):
            raise InvalidOption(
                f'group "{group}" has members online, and {address} can only tell them a time, not '
                "offsets: "
                'stop the members, or reset to "earliest", "latest" or a datetime'
            )
        return "members"


def _reset_time(to: ResetTarget) -> int:
    """Return the time that the members are sent to.

    It is a millisecond early, because Apache's brokers before 5.1.1 would answer the time itself
    with any of its messages.
    """
    assert not isinstance(to, Mapping)
    return {"earliest": 0, "latest": END_MS}[to] if isinstance(to, str) else max(0, to_ms(to) - 1)


def to_ms(at: object) -> int:
    if not isinstance(at, datetime):
        raise InvalidOption(
            f'{at!r} is not a place in a queue: expected "earliest", "latest", a datetime, or '
            "offsets by queue"
        )
    if at.tzinfo is None:
        raise InvalidOption(f"{at} needs a time zone: datetime(..., tzinfo=UTC)")
    # not by way of a float, which may end up a millisecond before
    return max(0, (at - _EPOCH) // timedelta(milliseconds=1))
