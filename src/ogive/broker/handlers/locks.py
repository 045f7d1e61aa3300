"""LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): orderly consumers take and give back queues.

Source: AdminBrokerProcessor.java, RebalanceLockManager.java, 5.3.

Behaviour
- A lock is given if the queue is free, the client's own, or its lease is over; each call renews the
  lease.

Differs from Java
- Who holds a queue is on stable storage before the answer leaves, so that a restart gives no queue
  to a second member. A lease that is renewed needs no disk: a full one stops no orderly consumer.
- Only queues that this broker has can be locked; the others are left out of the answer.
"""

from ogive.broker.clients import check_client_id
from ogive.broker.context import Context
from ogive.broker.replies import success
from ogive.model import MessageQueue, validate_group
from ogive.transport.connection import Connection
from ogive.wire.bodies import LockBatchBody, locked_queues_dumps
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import LockBatchRequest, UnlockBatchRequest


async def lock(
    ctx: Context, connection: Connection, header: LockBatchRequest, body: bytes
) -> RemotingCommand:
    request = _decode(body)
    queues = [queue for queue in request.queues if _is_ours(ctx, queue)]
    held = ctx.locks.lock(request.group, request.client_id, queues)
    await ctx.locks.safe(request.group, held)
    return success(body=locked_queues_dumps(held))


def unlock(
    ctx: Context, connection: Connection, header: UnlockBatchRequest, body: bytes
) -> RemotingCommand:
    request = _decode(body)
    ctx.locks.unlock(request.group, request.client_id, request.queues)
    ctx.locks.save_soon()
    return success()


def _decode(body: bytes) -> LockBatchBody:
    request = LockBatchBody.decode(body)
    validate_group(request.group)
    check_client_id(request.client_id)
    return request


def _is_ours(ctx: Context, queue: MessageQueue) -> bool:
    topic = ctx.topics.get(queue.topic)
    return (
        topic is not None
        and queue.broker_name == ctx.config.name
        and 0 <= queue.queue_id < max(topic.read_queues, topic.write_queues)
    )
