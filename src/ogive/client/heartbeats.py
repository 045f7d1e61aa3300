"""Contents of heartbeats: all subscriptions, or only that nothing has changed.

Source: sendHeartbeatToBrokerV2, 5.5.

Behaviour
- The first heartbeat on a connection is a full one, with a fingerprint of what it says. From a
  broker that answers that it knows these fingerprints (5.1 and later) the periodic ones leave the
  subscriptions out, until they change or the broker asks for them.
- A heartbeat that repairs something (a rebalance, an unknown subscription, a new member) is always
  full.
- A client of many groups, or of groups with many subscriptions, sends several heartbeats: our
  broker refuses one of more than 256 groups or 1 MiB. Brokers keep the groups that a heartbeat does
  not name.

Differs from Java
- On wherever the broker offers it; Java's is behind a switch (useHeartbeatV2).
- What was told counts for one connection: a broker that restarted, or another one at the same
  address, is told everything.
- A broker that asks for the subscriptions gets them at once, not with the next heartbeat.
- The fingerprint is a number of our own: brokers only compare it with that of the group's last
  heartbeat. Where members of another language send theirs (Java's by default do not), every
  heartbeat of the group is full.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeVar

from ogive.client import rpc
from ogive.transport.connection import Connection
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.checksum import crc32

T = TypeVar("T")

MAX_GROUPS: Final = 256
MAX_BYTES: Final = 512 * 1024
"""Consumer groups of one heartbeat. The names of 256 producer groups take less than 80 KiB more."""
_INT_MAX: Final = 0x7FFFFFFF


class Heartbeats:
    """Heartbeats to brokers, and what each broker was told last."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        # By address and number of the heartbeat; only brokers that take short ones.
        self._told: dict[tuple[str, int], tuple[Connection, tuple[ConsumerData, ...]]] = {}

    async def tell(
        self, address: str, data: HeartbeatData, *, full: bool, timeout_s: float
    ) -> None:
        """Send *data*, in several heartbeats if it is large.

        A heartbeat that is refused does not hold up the others. Raises the first OgiveError.
        """
        ends = await asyncio.gather(
            *(
                self._tell((address, number), part, full=full, timeout_s=timeout_s)
                for number, part in enumerate(parts(data))
            ),
            return_exceptions=True,
        )
        for end in ends:
            if end is not None:
                raise end

    async def _tell(
        self, place: tuple[str, int], data: HeartbeatData, *, full: bool, timeout_s: float
    ) -> None:
        address = place[0]
        connection, told = self._pool.existing(address), self._told.pop(place, None)
        data = replace(data, fingerprint=fingerprint(data))
        if connection is not None and not full and told == (connection, data.consumers):
            answer = await rpc.heartbeat(
                self._pool, address, without_subscriptions(data), timeout_s=timeout_s
            )
            if self._pool.existing(address) is connection and answer.subscription_changed is False:
                self._told[place] = told
                return
            # Not noted: where members of a group differ for good, the next heartbeat is a full one
            # again, and so a single request.
            await rpc.heartbeat(self._pool, address, data, timeout_s=timeout_s)
            return
        answer = await rpc.heartbeat(self._pool, address, data, timeout_s=timeout_s)
        connection = self._pool.existing(address)
        if connection is not None and answer.supports_v2 and answer.subscription_changed is False:
            self._told[place] = (connection, data.consumers)

    def forget_all_but(self, addresses: set[str]) -> None:
        self._told = {place: told for place, told in self._told.items() if place[0] in addresses}


def parts(data: HeartbeatData) -> list[HeartbeatData]:
    """Split *data* into heartbeats of at most MAX_GROUPS groups and about MAX_BYTES.

    A group that is larger goes alone.
    """
    consumers = _pieces(data.consumers, lambda consumer: len(dumps(consumer.to_json())))
    producers = _pieces(data.producers, len)
    if len(consumers) <= 1 and len(data.consumers) + len(data.producers) <= MAX_GROUPS:
        return [data]
    return [
        *(replace(data, producers=(), consumers=some) for some in consumers),
        *(replace(data, producers=some, consumers=()) for some in producers),
    ]


def _pieces(groups: Iterable[T], size: Callable[[T], int]) -> list[tuple[T, ...]]:
    pieces: list[list[T]] = []
    room = 0
    for group in groups:
        needed = size(group)
        if not pieces or needed > room or len(pieces[-1]) == MAX_GROUPS:
            pieces.append([])
            room = MAX_BYTES
        pieces[-1].append(group)
        room -= needed
    return [tuple(piece) for piece in pieces]


def fingerprint(data: HeartbeatData) -> int:
    """Return a hash of everything except the sender and the time of subscription.

    It is the same for all members that run the same program. 0 without consumers.
    """
    if not data.consumers:
        return 0
    consumers = tuple(
        replace(
            consumer,
            subscriptions=tuple(
                replace(subscription, version=0) for subscription in consumer.subscriptions
            ),
        )
        for consumer in data.consumers
    )
    return (
        crc32(replace(data, client_id="", consumers=consumers, fingerprint=0).encode()) & _INT_MAX
        or 1
    )


def without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    return replace(
        data,
        consumers=tuple(replace(consumer, subscriptions=()) for consumer in data.consumers),
        without_sub=True,
    )
