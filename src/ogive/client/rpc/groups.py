"""Requests about groups: settings, members, heartbeats, locks, offsets."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ogive.client.rpc.calling import PAGE, REQUEST_TIMEOUT_S, ask, pages, request
from ogive.client.rpc.messages import first_stored_since
from ogive.errors import ProtocolError, QueryNotFound, RequestTimeout
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchBody,
    SubscriptionData,
    consumer_ids_loads,
    locked_queues_loads,
    producer_connections_loads,
    queues_asked_dumps,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.stats import (
    OffsetWrapper,
    consume_stats_loads,
    consume_tps_loads,
    group_status_loads,
    offset_table_loads,
)
from ogive.wire.codes import BEYOND_THE_END, version_number
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    CreateGroupRequest,
    DeleteGroupRequest,
    GetAllGroupsRequest,
    GetGroupConfigRequest,
    InvokeGetConsumerStatusRequest,
)
from ogive.wire.headers.clients import (
    CheckClientConfigRequest,
    GetConsumerConnectionListRequest,
    GetConsumerListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    LockBatchRequest,
    UnlockBatchRequest,
    UnregisterClientRequest,
)
from ogive.wire.headers.codec import Header, decode_header
from ogive.wire.headers.pull import (
    GetEarliestStoreTimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    ResetOffsetRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateConsumerOffsetRequest,
)


async def create_group(
    pool: ConnectionPool,
    address: str,
    group: SubscriptionGroupConfig,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Create the consumer group, or change it to *group*."""
    await ask(pool, address, CreateGroupRequest(), timeout_s, dumps(group.to_json()))


async def group_configs(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, dict[str, Any]]:
    """Return every consumer group of a broker, as raw JSON, so that changing a group loses no field
    that some release added.

    GET_SUBSCRIPTIONGROUP_CONFIG is no alternative: Apache's brokers create the group that it asks
    for.
    """
    rows = await pages(
        lambda seq: GetAllGroupsRequest(group_seq=seq, max_group_num=PAGE, data_version=""),
        "subscriptionGroupTable",
        "totalGroupNum",
        pool,
        address,
        timeout_s,
    )
    return {name: row for name, row in rows if isinstance(row, dict)}


async def group_config(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> SubscriptionGroupConfig:
    """Return one consumer group's settings. Apache's brokers create it if it does not exist, unless
    they create no groups at all. Raises GroupNotExist.
    """
    reply = await ask(pool, address, GetGroupConfigRequest(group=group), timeout_s)
    return SubscriptionGroupConfig.from_json(loads_object(reply.body))


async def update_group(
    pool: ConnectionPool,
    address: str,
    config: Mapping[str, Any],
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Change the consumer group to *config*, in JSON as ``group_configs`` gave it."""
    await ask(pool, address, CreateGroupRequest(), timeout_s, dumps(dict(config)))


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
        DeleteGroupRequest(group_name=group, clean_offset=clean_offset, remove_offset=clean_offset),
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
    """Return the ends of the broker's queues and the group's offsets in them, in one topic or in
    all.
    """
    return (await consume_stats_and_rate(pool, address, group, topic, timeout_s=timeout_s))[0]


async def consume_stats_and_rate(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> tuple[dict[MessageQueue, OffsetWrapper], float]:
    """Return the same as ``consume_stats``, and the messages that the group takes a second from
    this broker.
    """
    body = (
        await ask(
            pool, address, GetConsumeStatsRequest(consumer_group=group, topic=topic), timeout_s
        )
    ).body
    return consume_stats_loads(body), consume_tps_loads(body)


async def consumer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> ConsumerConnection:
    """Return the members of *group* that are connected to this broker.

    Raises ConsumerNotOnline where there is none.
    """
    header = GetConsumerConnectionListRequest(consumer_group=group)
    return ConsumerConnection.decode((await ask(pool, address, header, timeout_s)).body)


async def producer_connections(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[ConnectionInfo]:
    """Return the producers of *group* that are connected to this broker.

    Raises BrokerInternalError where there is none.
    """
    header = GetProducerConnectionListRequest(producer_group=group)
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
    header = GetConsumerRunningInfoRequest(
        consumer_group=group, client_id=client_id, jstack_enable=stack
    )
    body = queues_asked_dumps(queues) if queues else b""
    return ConsumerRunningInfo.decode((await ask(pool, address, header, timeout_s, body)).body)


async def member_progress(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str,
    client_id: str,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Mapping[MessageQueue, int]:
    """Return the next offset of a member in each of its queues of *topic*.

    Raises RequestTimeout if the broker answers without it: the member gave it no answer in time.
    """
    header = InvokeGetConsumerStatusRequest(topic=topic, group=group, client_addr=client_id)
    body = (await ask(pool, address, header, timeout_s)).body
    progress = group_status_loads(body).get(client_id)
    if progress is None:
        raise RequestTimeout(f"{client_id} did not answer {address}", address)
    return progress


LOCK_TIMEOUT_S: Final = 1.0
_FIRST_EXACT_SEARCH: Final = version_number("5.1.1")


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Answer of a broker to a heartbeat, from 5.1 on: its handling of fingerprints."""

    supports_v2: bool | None
    subscription_changed: bool | None


async def heartbeat(
    pool: ConnectionPool, address: str, data: HeartbeatData, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> HeartbeatAnswer:
    """Tell a broker our groups and subscriptions."""
    header = decode_header(
        HeartbeatResponse,
        (await ask(pool, address, HeartbeatRequest(), timeout_s, data.encode())).ext_fields,
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
    header = UnregisterClientRequest(
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
    """Raise unless the broker can apply this filter.

    Raises SubscriptionInvalid, and BrokerInternalError if it filters by tags only.
    """
    body = dumps(
        {"clientId": client_id, "group": group, "subscriptionData": subscription.to_json()}
    )
    await ask(pool, address, CheckClientConfigRequest(), timeout_s, body)


async def consumer_ids(
    pool: ConnectionPool, address: str, group: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """Return the client ids of the members that this broker knows.

    Brokers of 4.x and 5.x answer a group without members with SYSTEM_ERROR.
    """
    return consumer_ids_loads(
        (await ask(pool, address, GetConsumerListRequest(consumer_group=group), timeout_s)).body
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
    """Lock queues of one broker for an orderly consumer, or renew the locks. Return those that are
    locked now.
    """
    body = LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode()
    return locked_queues_loads((await ask(pool, address, LockBatchRequest(), timeout_s, body)).body)


async def unlock_queues(
    pool: ConnectionPool,
    address: str,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    *,
    timeout_s: float = LOCK_TIMEOUT_S,
) -> None:
    body = LockBatchBody(group=group, client_id=client_id, queues=tuple(queues)).encode()
    await ask(pool, address, UnlockBatchRequest(), timeout_s, body)


async def query_consumer_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_young: bool | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int | None:
    """Return the offset of *group* in *queue*; None only if the broker says that there is none.

    Every failure raises.

    A broker answers 0 for a group without an offset while the queue's first message is still in
    memory; *zero_if_young* False asks it not to (5.x).
    """
    header = QueryConsumerOffsetRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=zero_if_young,
    )
    try:
        offset = await _ask_offset(pool, address, header, timeout_s)
    except QueryNotFound:
        return None
    if offset < 0:
        raise ProtocolError(
            f"{address} says that {group} stands at {offset} in {queue}: no queue has such a place"
        )
    return offset


async def update_consumer_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> bool:
    """Commit the offset of *group*.

    False if the broker does not keep it, because the queue ends before it.

    Differs from Java: the broker's answer is awaited.
    """
    header = UpdateConsumerOffsetRequest(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return (await ask(pool, address, header, timeout_s)).remark != BEYOND_THE_END


async def update_consumer_offsets(
    pool: ConnectionPool,
    address: str,
    group: str,
    offsets: Mapping[MessageQueue, int],
    *,
    each_acknowledged: bool = True,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Commit the offsets of *group* in queues of one broker, all in one write.

    Only the last request waits for an answer, unless each shall be acknowledged: a refusal of the
    group is then noticed, one of another queue is not.
    """
    requests = [
        UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        for queue, offset in offsets.items()
    ]
    answered = requests if each_acknowledged else requests[-1:]
    for header in requests[: len(requests) - len(answered)]:
        await pool.send(address, request(header))
    await asyncio.gather(*(ask(pool, address, header, timeout_s) for header in answered))


async def max_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int:
    """Return the offset that the queue's next message will get."""
    return await _ask_offset(
        pool, address, GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s
    )


async def min_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int:
    """Return the offset of the oldest message that the queue still holds."""
    return await _ask_offset(
        pool, address, GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s
    )


async def search_offset(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    group: str = TOOLS_GROUP,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int:
    """Return the offset of the first message stored at or after *timestamp_ms*; the queue's end if
    there is none.

    Apache's brokers before 5.1.1 answer with any message of exactly that time, or with the nearest
    one, before or after it. There the first one is looked for, in the name of *group*.
    """
    reply = await _search(pool, address, queue, timestamp_ms, timeout_s)
    if reply.version >= _FIRST_EXACT_SEARCH:
        return _offset(reply)
    # never behind the first message, because none has a time between the two
    before = await _search(pool, address, queue, max(0, timestamp_ms - 1), timeout_s)
    return await first_stored_since(
        pool, address, queue, _offset(before), timestamp_ms, group=group, timeout_s=timeout_s
    )


async def _search(
    pool: ConnectionPool, address: str, queue: MessageQueue, timestamp_ms: int, timeout_s: float
) -> RemotingCommand:
    header = SearchOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, boundary_type="LOWER"
    )
    return await ask(pool, address, header, timeout_s)


async def earliest_store_time(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int | None:
    """Return the time in ms at which the queue's oldest message was stored; None for an empty
    queue.
    """
    header = GetEarliestStoreTimeRequest(topic=queue.topic, queue_id=queue.queue_id)
    answer = decode_header(
        TimestampResponse, (await ask(pool, address, header, timeout_s)).ext_fields
    )
    return answer.timestamp if answer.timestamp >= 0 else None


async def reset_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[MessageQueue, int]:
    """Set the group's position in one queue at a broker of 5.x, which tells the member at its next
    pull.
    """
    header = ResetOffsetRequest(
        topic=queue.topic, group=group, timestamp=0, queue_id=queue.queue_id, offset=offset
    )
    return offset_table_loads((await ask(pool, address, header, timeout_s)).body)


async def reset_offset_by_time(
    pool: ConnectionPool,
    address: str,
    group: str,
    topic: str,
    timestamp_ms: int,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[MessageQueue, int]:
    """Set the group's position in all queues of a broker to a time (-1: the end); brokers of 4.x
    hand it to each member (code 220).
    """
    header = ResetOffsetRequest(topic=topic, group=group, timestamp=timestamp_ms)
    return offset_table_loads((await ask(pool, address, header, timeout_s)).body)


async def _ask_offset(pool: ConnectionPool, address: str, header: Header, timeout_s: float) -> int:
    return _offset(await ask(pool, address, header, timeout_s))


def _offset(reply: RemotingCommand) -> int:
    return decode_header(OffsetResponse, reply.ext_fields).offset
