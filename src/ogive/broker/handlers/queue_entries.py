"""The entries of a consume queue: QUERY_CONSUME_QUEUE (321), to find out why a message is not
consumed.

Source: AdminBrokerProcessor.java, 5.5.

Behaviour
- The entries of *count* offsets from *index* on, with the queue's bounds; in a topic of batches one
  stands for a whole batch. If there are none, the answer is a success that says so in its remark.
- With a group: its subscription, and for each entry whether that lets it pass.

Differs from Java
- At most 1,000 entries, and as many as an expression can be put to in LOOK_S: it needs each record.
  Whether an entry passes is also said of subscriptions by tag; Java says it of SQL92 only.
"""

import time
from typing import Final

from ogive.broker.clients import Subscription
from ogive.broker.context import Context
from ogive.broker.filtering import lets_pass
from ogive.broker.replies import Rejected, success
from ogive.errors import ResponseCode
from ogive.sql92 import Expression
from ogive.store.model import Entry
from ogive.transport.connection import Connection
from ogive.wire.bodies import QueueEntry, queue_entries_dumps
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import QueryConsumeQueueRequest

MAX_ENTRIES: Final = 1_000
LOOK_S: Final = 0.05


def show(
    ctx: Context, connection: Connection, header: QueryConsumeQueueRequest, body: bytes
) -> RemotingCommand:
    if header.index < 0 or header.count <= 0:
        remark = (
            f"index {header.index} and count {header.count}: an index from 0 and a count from "
            "1 are needed"
        )
        raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
    topic, queue_id = header.topic, header.queue_id
    first, end = ctx.store.min_offset(topic, queue_id), ctx.store.max_offset(topic, queue_id)
    if (topic, queue_id) not in ctx.store.queues:
        return success(remark=f"{queue_id}@{topic[:256]} is not exist!")
    entries = ctx.store.entries(topic, queue_id, header.index, min(header.count, MAX_ENTRIES))
    if not entries:
        return success(remark=f"Index {header.index} of {queue_id}@{topic[:256]} is not exist!")
    # what Apache keeps of SQL92 subscriptions, as JSON text, does not exist here
    subscription, note = None, None
    if header.consumer_group:
        online = ctx.clients.consumer_group(header.consumer_group)
        subscription = online.subscriptions.get(topic) if online is not None else None
        note = (
            "null"
            if subscription is not None
            else f"{header.consumer_group[:256]}@{topic[:256]} is not online!"
        )
    rows: list[QueueEntry] = []
    until = time.monotonic() + LOOK_S
    for entry in entries:
        if rows and time.monotonic() > until:
            break
        passes = subscription is not None and _passes(ctx, subscription, entry)
        rows.append(
            QueueEntry(
                commitlog_offset=entry.commitlog_offset,
                size=entry.size,
                tags_code=entry.tags_code,
                passes=passes,
            )
        )
    return success(
        body=queue_entries_dumps(
            rows, first, end, subscription.data if subscription is not None else None, note
        )
    )


def _passes(ctx: Context, subscription: Subscription, entry: Entry) -> bool:
    wanted = subscription.wanted
    if isinstance(wanted, Expression):
        record = ctx.store.record_at(entry.commitlog_offset)
        return record is not None and lets_pass(wanted, record)
    return wanted is None or entry.tags_code in wanted
