"""Groups at a broker: settings, progress and members."""

from collections.abc import Collection, Mapping
from typing import Any

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.client.api.paging import PAGE, pages
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import Connection as ConnectionInfo
from ogive.wire.bodies import (
    ConsumerConnection,
    OffsetWrapper,
    SubscriptionGroupConfig,
    consume_stats_loads,
    consume_tps_loads,
    dumps,
    producer_connections_loads,
)
from ogive.wire.running_info import ConsumerRunningInfo, queues_asked_dumps


async def create_group(
    pool: ConnectionPool,
    address: str,
    group: SubscriptionGroupConfig,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Create the consumer group, or change it to *group*."""
    await ask(pool, address, h.CreateGroupRequest(), timeout_s, dumps(group.to_json()))


async def group_configs(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, dict[str, Any]]:
    """Every consumer group of a broker, as raw JSON, so that changing a group loses no field that
    some release added.

    GET_SUBSCRIPTIONGROUP_CONFIG is no alternative: Apache's brokers create the group that it asks
    for.
    """
    rows = await pages(
        lambda seq: h.GetAllGroupsRequest(group_seq=seq, max_group_num=PAGE, data_version=""),
        "subscriptionGroupTable",
        "totalGroupNum",
        pool,
        address,
        timeout_s,
    )
    return {name: row for name, row in rows if isinstance(row, dict)}


async def update_group(
    pool: ConnectionPool,
    address: str,
    config: Mapping[str, Any],
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Change the consumer group to *config*, in JSON as ``group_configs`` gave it."""
    await ask(pool, address, h.CreateGroupRequest(), timeout_s, dumps(dict(config)))


async def delete_group(
    pool: ConnectionPool,
    address: str,
    group: str,
    *,
    clean_offset: bool,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    await ask(
        pool,
        address,
        h.DeleteGroupRequest(
            group_name=group, clean_offset=clean_offset, remove_offset=clean_offset
        ),
        timeout_s,
    )


async def consume_stats(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[MessageQueue, OffsetWrapper]:
    """The ends of the broker's queues and the group's offsets in them, in one topic or in all."""
    return (await consume_stats_and_rate(pool, address, group, topic, timeout_s=timeout_s))[0]


async def consume_stats_and_rate(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
    """The same, with how many messages the group takes a second from this broker."""
    body = (
        await ask(
            pool, address, h.GetConsumeStatsRequest(consumer_group=group, topic=topic), timeout_s
        )
    ).body
    return consume_stats_loads(body), consume_tps_loads(body)


async def consumer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> ConsumerConnection:
    """The members of *group* that are connected to this broker.

    Raises ConsumerNotOnline where there is none.
    """
    header = h.GetConsumerConnectionListRequest(consumer_group=group)
    return ConsumerConnection.decode((await ask(pool, address, header, timeout_s)).body)


async def producer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[ConnectionInfo]:
    """The producers of *group* that are connected to this broker.

    Raises BrokerInternalError where there is none.
    """
    header = h.GetProducerConnectionListRequest(producer_group=group)
    return producer_connections_loads((await ask(pool, address, header, timeout_s)).body)


async def consumer_running_info(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    *,
    stack: bool = False,
    queues: Collection[MessageQueue] = (),
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> ConsumerRunningInfo:
    """Return the report of a member on itself, asked for through a broker that it is connected to.

    If *queues* are given, ours answer only which of these they hold or claim. Other clients ignore
    the body.
    """
    header = h.GetConsumerRunningInfoRequest(
        consumer_group=group, client_id=client_id, jstack_enable=stack
    )
    body = queues_asked_dumps(queues) if queues else b""
    return ConsumerRunningInfo.decode((await ask(pool, address, header, timeout_s, body)).body)
