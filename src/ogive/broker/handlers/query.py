"""Messages by key, unique key or tag: QUERY_MESSAGE (12).

Source: QueryMessageProcessor.java, DefaultMessageStore.queryMessage, 5.3.

Behaviour
- The answer's body is the newest records that have the key, at most 64 and max_large_pull_bytes, in
  the order of the commit log; its header says up to where keys are indexed. None: QUERY_NOT_FOUND.
- indexType=T asks for a tag, as in 5.5; see tag_search.py.
- _UNIQUE_KEY_QUERY=true limits the answer to 32.

Differs from Java
- Only records that really have the key: Java gives everything with the same hash in the same
  second, and clients sort it out.
- A search stops for others, and for the disk, so it takes as long as it takes without being in
  anybody's way. At most MAX_SEARCHES are under way, none of them for a client that is gone or does
  not take the answers it has.
"""

import asyncio
from functools import partial
from typing import Final

from ogive.broker.context import Context
from ogive.broker.pull_hold import LOOK_AGAIN_S
from ogive.broker.replies import Rejected, success
from ogive.broker.tag_search import find_tag
from ogive.errors import ConnectError, ResponseCode
from ogive.store.disk import Cold
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import QueryMessageRequest, QueryMessageResponse

BY_TAG: Final = "T"  # MessageConst.INDEX_TAG_TYPE
MAX_FOUND: Final = 64  # maxMsgsNumBatch
MAX_FOUND_UNIQUE: Final = 32  # defaultQueryMaxNum


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
        answer.code, answer.remark = (
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
        )
    return answer
