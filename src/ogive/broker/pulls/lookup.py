"""Find messages by key, unique key or tag (12), and show entries of a queue (321).

Messages by key, unique key or tag: QUERY_MESSAGE (12).

Source: QueryMessageProcessor.java, DefaultMessageStore.queryMessage, 5.3.

Behaviour
- The answer's body is the newest records that have the key, at most 64 and max_large_pull_bytes, in
  the order of the commit log; its header says up to where keys are indexed. None: QUERY_NOT_FOUND.
- indexType=T asks for a tag, as in 5.5; see below.
- _UNIQUE_KEY_QUERY=true limits the answer to 32.

Differs from Java
- Only records that really have the key: Java gives everything with the same hash in the same
  second, and clients sort it out.
- A search stops for others, and for the disk, so it takes as long as it takes without being in
  anybody's way. At most MAX_SEARCHES are under way, none of them for a client that is gone or does
  not take the answers it has.

The messages of a topic that have a tag, for QUERY_MESSAGE (12) with indexType=T.

Differs from Java: 5.5 keeps tags in the index of keys; here the consume queues are read, whose
entries hold each message's tag as a hash. So what a broker of 4.9 stored is found as well, and a
topic with very many messages in the asked time takes longer.

The entries of a consume queue: QUERY_CONSUME_QUEUE (321), to find out why a message is not
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

import asyncio
import heapq
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from ogive.broker.filters import lets_pass
from ogive.broker.pulls.long_polling import LOOK_AGAIN_S
from ogive.broker.replies import Rejected, success
from ogive.broker.services import Context
from ogive.broker.state.client_table import Subscription
from ogive.errors import ConnectError, ResponseCode
from ogive.model import PropertyName
from ogive.sql92 import Expression
from ogive.store.file_reader import Cold, in_memory
from ogive.store.message_store import MessageStore
from ogive.store.types import Entry
from ogive.transport.connection import Connection
from ogive.wire.bodies.stats import QueueEntry, queue_entries_dumps
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import QueryConsumeQueueRequest
from ogive.wire.headers.pull import QueryMessageRequest, QueryMessageResponse
from ogive.wire.message import decode_stored, java_hash, raw_property

# entries between two stops
CHUNK: Final = 512
_LATEST_MS: Final = 1 << 62


def find_tag(
    store: MessageStore, topic: str, tag: str, begin_ms: int, end_ms: int
) -> Iterator[bytes | Cold | None]:
    """Yield the visible records of *topic* with *tag*, stored from *begin_ms* to *end_ms*, newest
    first.

    Yields as find_key() does.
    """
    wanted = tag.encode("utf-8", "replace")
    queues = [
        _newest_first(store, key, java_hash(tag), begin_ms, end_ms)
        for key in store.queues
        if key[0] == topic
    ]
    # commit-log offset, negative, and which of the queues it is the newest of
    heads: list[tuple[int, int]] = []
    waiting = list(range(len(queues)))
    while True:
        for index in waiting:
            found = None
            for found in queues[index]:
                if isinstance(found, int):
                    heapq.heappush(heads, (-found, index))
                    break
                yield found
        if not heads:
            return
        offset, index = heapq.heappop(heads)
        record = yield from in_memory(partial(store.record_at, -offset))
        if record is not None:
            stored = decode_stored(record)
            if (
                raw_property(stored.properties, PropertyName.TAGS.encode()) == wanted
                and begin_ms <= stored.store_timestamp_ms <= end_ms
            ):
                yield record
        waiting = [index]


def _newest_first(
    store: MessageStore, key: tuple[str, int], code: int, begin_ms: int, end_ms: int
) -> Iterator[int | Cold | None]:
    """Yield the commit-log offsets of the entries with that code."""
    first = yield from in_memory(partial(store.offset_by_time, *key, begin_ms))
    end = yield from in_memory(partial(store.offset_by_time, *key, min(end_ms, _LATEST_MS) + 1))
    while end > first:
        start = max(first, end - CHUNK)
        entries = yield from in_memory(partial(store.entries, *key, start, end - start))
        yield from (
            entry.commitlog_offset for entry in reversed(entries) if entry.tags_code == code
        )
        yield None
        end = start


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


# MessageConst.INDEX_TAG_TYPE
BY_TAG: Final = "T"
# maxMsgsNumBatch
MAX_FOUND: Final = 64
# defaultQueryMaxNum
MAX_FOUND_UNIQUE: Final = 32


async def query(
    ctx: Context, connection: Connection, header: QueryMessageRequest, body: bytes
) -> RemotingCommand:
    while True:
        await _room(connection)
        async with ctx.searches:
            if not ctx.slow_readers.must_wait(connection):
                return await _search(ctx, connection, header)
        # until the answers before it have reached the socket's buffer, and pulls that wait are
        # through
        await asyncio.sleep(LOOK_AGAIN_S)


async def _room(connection: Connection) -> None:
    try:
        await connection.drain()
    except ConnectError as exc:
        raise _gone() from exc


def _gone() -> Rejected:
    return Rejected(ResponseCode.SYSTEM_ERROR, "the client is gone")


async def _search(
    ctx: Context, connection: Connection, header: QueryMessageRequest
) -> RemotingCommand:
    limit = MAX_FOUND_UNIQUE if header.unique_key_query else min(header.max_num, MAX_FOUND)
    records: list[bytes] = []
    size = 0
    find = partial(find_tag, ctx.store) if header.index_type == BY_TAG else ctx.store.find_key
    search = find(header.topic, header.key, header.begin_timestamp, header.end_timestamp)
    with ctx.store.without_waiting():
        found = next(search, False)
    while found is not False and len(records) < limit:
        if connection.closed:
            raise _gone()
        if isinstance(found, bytes):
            size += len(found)
            if records and size > ctx.config.max_large_pull_bytes:
                break
            records.append(found)
        elif isinstance(found, Cold):
            await ctx.cold_reads.bring_in(found)
        else:
            await asyncio.sleep(0)
        with ctx.store.without_waiting():
            found = next(search, False)
    indexed_ms, indexed_offset = ctx.store.indexed_up_to
    answer = success(
        QueryMessageResponse(
            index_last_update_timestamp=indexed_ms, index_last_update_phyoffset=indexed_offset
        ),
        b"".join(reversed(records)),
    )
    if not records:
        answer.code = ResponseCode.QUERY_NOT_FOUND
        answer.remark = "can not find message, maybe time range not correct"
    return answer
