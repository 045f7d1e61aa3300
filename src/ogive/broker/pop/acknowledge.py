"""End and prolong leases: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151),
CHANGE_MESSAGE_INVISIBLETIME (200053).

Source: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java, 5.5.

Behaviour
- A handle is plain text. It counts only if it names, in every part, a lease that is out; of that
  group, topic and queue only.
- An acknowledgement is answered with success whether or not the lease was still out.
- A change gives the message a new lease, and the answer what the new handle is made of.

Differs from Java: a change of a lease that is over is answered 208 (NO_MESSAGE) and begins no new
one: the message was acknowledged, or another consumer has it.
"""

from functools import partial

from ogive.broker.pop.leases import End, Lease, LeaseKey
from ogive.broker.pop.order import Batch
from ogive.broker.pop.pop import check_time
from ogive.broker.replies import Rejected, refuse, reply, reply_success, success
from ogive.broker.services import Context
from ogive.errors import OgiveError, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.pull import (
    AckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
)
from ogive.wire.pop import ORDERLY_QUEUE, BatchAck, BatchAckBody, PopHandle, retry_flag

MAX_BODY_BYTES = 1024 * 1024


def acknowledge(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Serve ACK_MESSAGE. Raises OgiveError."""
    header = decode_header(AckMessageRequest, command.ext_fields)
    handle, end = PopHandle.read(header.extra_info), partial(_answer, connection, command)
    if handle.revive_queue == ORDERLY_QUEUE:
        batch = _ordered(ctx, header, handle)
        ctx.leases.acknowledge_ordered(
            _place(header),
            handle.pop_time_ms,
            0 if batch is None else batch.bit(header.offset),
            end,
        )
        return
    lease = _find(ctx, header, handle)
    pairs = [] if lease is None else [(lease, lease.bits((header.offset,)))]
    ctx.pop_figures.acknowledged += len(pairs)
    ctx.leases.acknowledge(pairs, end)


def acknowledge_batch(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Serve BATCH_ACK_MESSAGE. Raises OgiveError."""
    if len(command.body) > MAX_BODY_BYTES:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"a body of {len(command.body)} bytes, {MAX_BODY_BYTES} are allowed",
        )
    body = BatchAckBody.decode(command.body) if command.body else BatchAckBody()
    if not body.acks:
        raise Rejected(ResponseCode.NO_MESSAGE, "the request acknowledges nothing")
    ordered = [ack for ack in body.acks if ack.revive_queue == ORDERLY_QUEUE]
    end = _last_of(len(ordered) + 1, partial(_answer, connection, command))
    for ack in ordered:
        _acknowledge_ordered(ctx, ack, end)
    pairs = [
        pair
        for ack in body.acks
        if ack.revive_queue != ORDERLY_QUEUE and (pair := _found(ctx, ack)) is not None
    ]
    ctx.pop_figures.acknowledged += sum([bits.bit_count() for _, bits in pairs])
    ctx.leases.acknowledge(pairs, end)


def _last_of(count: int, answer: End) -> End:
    """Return a function that calls *answer* at its last of *count* calls, with the first error."""
    errors: list[OgiveError | None] = []

    def end(error: OgiveError | None) -> None:
        errors.append(error)
        if len(errors) == count:
            answer(next(filter(None, errors), None))

    return end


def _found(ctx: Context, ack: BatchAck) -> tuple[Lease, int] | None:
    """Return the lease and the bits that are acknowledged. Raises ProtocolError."""
    key = LeaseKey(ack.group, ack.read_topic, ack.queue_id, ack.start, ack.pop_time_ms)
    lease = ctx.leases.get(key)
    if lease is None or lease.invisible_ms != ack.invisible_ms:
        return None
    wanted = [offset for offset in lease.offsets if ack.bits >> (offset - ack.start) & 1]
    return lease, lease.bits(wanted)


def _acknowledge_ordered(ctx: Context, ack: BatchAck, end: End) -> None:
    """Acknowledge messages of the batch of a queue. Raises StoreError.

    *end* is called once that is safe, or with the error.
    """
    place = (ack.group, ack.read_topic, ack.queue_id)
    batch = ctx.leases.orders.get(place)
    if batch is not None and batch.pop_time_ms == ack.pop_time_ms:
        bits = sum(
            [
                1 << at
                for at, offset in enumerate(batch.offsets)
                if offset >= ack.start and ack.bits >> (offset - ack.start) & 1
            ]
        )
        ctx.leases.acknowledge_ordered(place, ack.pop_time_ms, bits, end)
    else:
        end(None)


def change(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Serve CHANGE_MESSAGE_INVISIBLETIME. Raises OgiveError."""
    header = decode_header(ChangeInvisibleTimeRequest, command.ext_fields)
    check_time("invisibleTime", header.invisible_time_ms)
    handle = PopHandle.read(header.extra_info)
    if handle.revive_queue == ORDERLY_QUEUE:
        _change_ordered(ctx, connection, command, header, handle)
        return
    lease = _find(ctx, header, handle)
    # the message is being stored again, or is: its time was over
    if lease is None or lease.reviving or lease.stored & lease.bits((header.offset,)):
        raise Rejected(
            ResponseCode.NO_MESSAGE,
            "the lease is over: the message was acknowledged, or its invisible time has ended",
        )
    if ctx.leases.is_full and lease.open.bit_count() > 1:
        # the message would get a lease of its own
        raise Rejected(
            ResponseCode.SYSTEM_BUSY, f"{len(ctx.leases)} leases are out, this broker keeps no more"
        )

    def done(error: OgiveError | None) -> None:
        if error is not None:
            refuse(connection, command, error)
            return
        answer = ChangeInvisibleTimeResponse(
            pop_time_ms=pop_time_ms,
            invisible_time_ms=header.invisible_time_ms,
            revive_queue_id=changed.revive_queue,
        )
        reply(connection, command, success(answer))

    pop_time_ms, changed = ctx.leases.change(
        lease, header.offset, header.invisible_time_ms, header.suspend, done
    )


def _change_ordered(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    header: ChangeInvisibleTimeRequest,
    handle: PopHandle,
) -> None:
    """Serve the request for a message of an ordered batch. Raises OgiveError."""

    def done(error: OgiveError | None) -> None:
        if error is not None:
            refuse(connection, command, error)
            return
        answer = ChangeInvisibleTimeResponse(
            pop_time_ms=handle.pop_time_ms,
            invisible_time_ms=visible_ms - handle.pop_time_ms,
            revive_queue_id=ORDERLY_QUEUE,
        )
        reply(connection, command, success(answer))

    batch = _ordered(ctx, header, handle)
    if batch is None or batch.acked & batch.bit(header.offset):
        # it is done, or another batch is out: nothing changes, and the answer looks the same
        visible_ms = ctx.now_ms() + header.invisible_time_ms
        done(None)
    else:
        visible_ms = ctx.leases.change_ordered(
            _place(header), header.offset, header.invisible_time_ms, done
        )


def _ordered(
    ctx: Context, header: AckMessageRequest | ChangeInvisibleTimeRequest, handle: PopHandle
) -> Batch | None:
    """Return the batch that a handle names, or None if that is not out any more.

    Raises Rejected for a message that was not in it.
    """
    topic = _checked_topic(ctx, header)
    batch = ctx.leases.orders.get((header.consumer_group, topic.name, header.queue_id))
    committed = ctx.offsets.get(header.consumer_group, topic.name, header.queue_id)
    if (
        batch is None
        or batch.pop_time_ms != handle.pop_time_ms
        or handle.broker != ctx.config.name
        or (handle.queue_id, handle.offset) != (header.queue_id, header.offset)
        or (committed is not None and header.offset < committed)
    ):
        return None
    if not batch.bit(header.offset):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"offset {header.offset} is not in the batch of queue {header.queue_id} that is out",
        )
    return batch


def _place(header: AckMessageRequest | ChangeInvisibleTimeRequest) -> tuple[str, str, int]:
    return header.consumer_group, header.topic, header.queue_id


def _find(
    ctx: Context, header: AckMessageRequest | ChangeInvisibleTimeRequest, handle: PopHandle
) -> Lease | None:
    """Return the lease of a message that is still out. Raises Rejected."""
    topic = _checked_topic(ctx, header)
    key = LeaseKey(
        header.consumer_group, topic.name, header.queue_id, handle.start, handle.pop_time_ms
    )
    lease = ctx.leases.get(key)
    if (
        lease is None
        or handle.broker != ctx.config.name
        or (handle.queue_id, handle.offset) != (header.queue_id, header.offset)
        or (handle.invisible_ms, handle.revive_queue) != (lease.invisible_ms, lease.revive_queue)
        or handle.flag != retry_flag(topic.name)
        or not lease.bits((header.offset,))
    ):
        return None
    return lease


def _checked_topic(
    ctx: Context, header: AckMessageRequest | ChangeInvisibleTimeRequest
) -> TopicConfig:
    """Return the topic that a message was read from. Raises Rejected."""
    topic = ctx.topics.get(header.topic)
    if topic is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:256]}] not exist, apply first"
        )
    _check_place(ctx, topic, header.queue_id, header.offset)
    return topic


def _check_place(ctx: Context, topic: TopicConfig, queue_id: int, offset: int) -> None:
    """Raises Rejected. A topic may have fewer queues than when the message was given out."""
    if queue_id < 0 or (
        queue_id >= max(topic.read_queues, topic.write_queues)
        and (topic.name, queue_id) not in ctx.store.queues
    ):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic.name}] has {topic.read_queues} read "
            "queues",
        )
    low = ctx.store.min_offset(topic.name, queue_id)
    end = ctx.store.max_offset(topic.name, queue_id)
    if not low <= offset < max(end, 1):
        raise Rejected(
            ResponseCode.NO_MESSAGE, f"offset {offset} is not in the queue's range [{low}-{end}]"
        )


def _answer(connection: Connection, command: RemotingCommand, error: OgiveError | None) -> None:
    if error is None:
        reply_success(connection, command)
    else:
        refuse(connection, command, error)
