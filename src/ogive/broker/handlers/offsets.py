"""Offsets of queues and groups: QUERY (14) and UPDATE_CONSUMER_OFFSET (15), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX (30) and
GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32); and VIEW_MESSAGE_BY_ID (33).

Source: ConsumerManageProcessor.java, AdminBrokerProcessor.java, QueryMessageProcessor.java, 5.3.

Behaviour
- No progress of a group in a queue: 22, unless the queue still starts at 0; then offset 0, so that a new group misses nothing.
- Offsets of a queue that does not exist are 0. The maximum counts what consumers can see.

Differs from Java
- "Starts at 0" does not ask whether the first messages are still in memory.
- VIEW_MESSAGE_BY_ID answers only where a whole record starts; Java trusts the offset.
"""

from ogive.broker.context import Context
from ogive.broker.replies import Rejected, success
from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    GetEarliestStoreTimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateConsumerOffsetRequest,
    ViewMessageRequest,
)


def query_consumer_offset(ctx: Context, _connection: Connection, header: QueryConsumerOffsetRequest, _body: bytes) -> RemotingCommand:
    offset = ctx.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is None:
        if header.set_zero_if_not_found is False or ctx.store.min_offset(header.topic, header.queue_id) > 0:
            raise Rejected(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
        offset = 0
    return success(OffsetResponse(offset=offset))


def update_consumer_offset(ctx: Context, _connection: Connection, header: UpdateConsumerOffsetRequest, _body: bytes) -> RemotingCommand:
    if ctx.groups.get(header.consumer_group) is None:
        raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
    topic = ctx.topics.get(header.topic)
    if topic is None:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
    if header.commit_offset < 0 or not 0 <= header.queue_id < max(topic.read_queues, topic.write_queues):
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, f"Offset {header.commit_offset} of queue {header.queue_id} is no progress in {topic.name}"
        )
    ctx.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return success()


def search_offset(ctx: Context, _connection: Connection, header: SearchOffsetRequest, _body: bytes) -> RemotingCommand:
    upper = (header.boundary_type or "").upper() == "UPPER"
    return success(OffsetResponse(offset=ctx.store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper)))


def max_offset(ctx: Context, _connection: Connection, header: GetMaxOffsetRequest, _body: bytes) -> RemotingCommand:
    return success(OffsetResponse(offset=ctx.store.max_offset(header.topic, header.queue_id)))


def min_offset(ctx: Context, _connection: Connection, header: GetMinOffsetRequest, _body: bytes) -> RemotingCommand:
    return success(OffsetResponse(offset=ctx.store.min_offset(header.topic, header.queue_id)))


def earliest_store_time(ctx: Context, _connection: Connection, header: GetEarliestStoreTimeRequest, _body: bytes) -> RemotingCommand:
    first = ctx.store.min_offset(header.topic, header.queue_id)
    return success(TimestampResponse(timestamp=ctx.store.store_time(header.topic, header.queue_id, first)))


def view_message(ctx: Context, _connection: Connection, header: ViewMessageRequest, _body: bytes) -> RemotingCommand:
    record = ctx.store.record_at(header.offset) if header.offset >= 0 else None
    if record is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
    return success(body=record)
