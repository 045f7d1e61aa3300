"""Committed offsets of groups, and the first and last offsets of queues."""

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.errors import ProtocolError, QueryNotFound
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import offset_table_loads
from ogive.wire.codes import BEYOND_THE_END
from ogive.wire.headers import Header, decode_header


async def query_consumer_offset(
    pool: ConnectionPool,
    address: str,
    group: str,
    queue: MessageQueue,
    *,
    zero_if_young: bool | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int | None:
    """The offset of *group* in *queue*; None only if the broker says that there is none.

    Every failure raises.

    A broker answers 0 for a group without an offset while the queue's first message is still in
    memory; *zero_if_young* False asks it not to (5.x).
    """
    header = h.QueryConsumerOffsetRequest(
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
    header = h.UpdateConsumerOffsetRequest(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return (await ask(pool, address, header, timeout_s)).remark != BEYOND_THE_END


async def max_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int:
    """The offset that the queue's next message will get."""
    return await _ask_offset(
        pool, address, h.GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s
    )


async def min_offset(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int:
    """The offset of the oldest message that the queue still holds."""
    return await _ask_offset(
        pool, address, h.GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id), timeout_s
    )


async def search_offset(
    pool: ConnectionPool,
    address: str,
    queue: MessageQueue,
    timestamp_ms: int,
    *,
    upper: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> int:
    """The first message stored at or after *timestamp_ms*; with *upper* the last one stored at or
    before it.
    """
    boundary = "UPPER" if upper else "LOWER"
    header = h.SearchOffsetRequest(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, boundary_type=boundary
    )
    return await _ask_offset(pool, address, header, timeout_s)


async def earliest_store_time(
    pool: ConnectionPool, address: str, queue: MessageQueue, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> int | None:
    """When the queue's oldest message was stored, in ms; None for an empty queue."""
    header = h.GetEarliestStoreTimeRequest(topic=queue.topic, queue_id=queue.queue_id)
    answer = decode_header(
        h.TimestampResponse, (await ask(pool, address, header, timeout_s)).ext_fields
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
    header = h.ResetOffsetRequest(
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
    header = h.ResetOffsetRequest(topic=topic, group=group, timestamp=timestamp_ms)
    return offset_table_loads((await ask(pool, address, header, timeout_s)).body)


async def _ask_offset(pool: ConnectionPool, address: str, header: Header, timeout_s: float) -> int:
    return decode_header(
        h.OffsetResponse, (await ask(pool, address, header, timeout_s)).ext_fields
    ).offset
