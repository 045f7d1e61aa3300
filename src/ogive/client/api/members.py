"""Heartbeats, the members of groups, and their queue locks."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask, check, request
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import (
    HeartbeatData,
    LockBatchBody,
    SubscriptionData,
    consumer_ids_loads,
    dumps,
    locked_queues_loads,
)
from ogive.wire.headers import decode_header

LOCK_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What a broker says to a heartbeat, from 5.1 on: what it makes of fingerprints."""

    supports_v2: bool | None
    subscription_changed: bool | None


async def heartbeat(
    pool: ConnectionPool, address: str, data: HeartbeatData, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> HeartbeatAnswer:
    """Tell a broker who we are."""
    header = decode_header(
        h.HeartbeatResponse,
        (await ask(pool, address, h.HeartbeatRequest(), timeout_s, data.encode())).ext_fields,
    )
    return HeartbeatAnswer(header.supports_v2, header.subscription_changed)


async def unregister(
    pool: ConnectionPool,
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    header = h.UnregisterClientRequest(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    await ask(pool, address, header, timeout_s)


async def check_client_config(
    pool: ConnectionPool,
    address: str,
    client_id: str,
    group: str,
    subscription: SubscriptionData,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Whether the broker can filter like this.

    Raises SubscriptionInvalid, and BrokerInternalError where it filters by tags only.
    """
    body = dumps(
        {"clientId": client_id, "group": group, "subscriptionData": subscription.to_json()}
    )
    await ask(pool, address, h.CheckClientConfigRequest(), timeout_s, body)


async def consumer_ids(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """Client ids of the members that this broker knows.

    Brokers of 4.x and 5.x answer a group without members with SYSTEM_ERROR.
    """
    return consumer_ids_loads(
        (await ask(pool, address, h.GetConsumerListRequest(consumer_group=group), timeout_s)).body
    )


async def lock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> list[MessageQueue]:
    """Lock queues of one broker for an orderly consumer, or renew the locks; returns those that are
    locked now.
    """
    body = LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode()
    return locked_queues_loads(
        (await ask(pool, address, h.LockBatchRequest(), timeout_s, body)).body
    )


async def unlock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    oneway: bool = False,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> None:
    command = request(
        h.UnlockBatchRequest(),
        LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode(),
    )
    if oneway:
        await pool.send(address, command)
    else:
        check(await pool.call(address, command, timeout_s), address)
