"""Batches: messages of one queue, stored all or none.

Source: SendMessageProcessor.sendBatchMessage, 5.5.

In a topic of batches (queue.type=BatchCQ) one with a unique key of its own, such as Java's
MessageBatch has, is one record with all messages in its body. Any other batch, and one for any
other topic, is as many records as it has messages.
"""

from functools import partial
from typing import Final

from ogive.broker.replies import ONEWAY, Rejected
from ogive.broker.sends.checks import NOT_PLAIN, check_plain, encoded
from ogive.broker.sends.send_answer import reply_in_full, reply_to_batch, settled
from ogive.broker.services import Context
from ogive.broker.state.topic_table import keeps_batches
from ogive.errors import OgiveError, ResponseCode
from ogive.model import RETRY_PREFIX, PropertyName
from ogive.native import native
from ogive.store.types import NewBatch, NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.message import (
    MAX_BATCH_MESSAGES,
    MAX_INNER_MESSAGES,
    MAX_PROPERTIES_BYTES,
    WRAPPED,
    BatchItem,
    decode_batch,
    decode_properties,
    encode_properties,
)

_OURS: Final = frozenset(
    (
        PropertyName.MSG_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CLUSTER,
        "INNER_NUM",
        "INNER_BASE",
    )
)
"""What a broker sets."""
BARRED_STARTS: Final = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"INNER_NUM\x01")
"""How properties begin that no message in a batch may have."""


def put_batch(
    ctx: Context, connection: Connection, command: RemotingCommand, draft: NewMessage, text: str
) -> None:
    """*draft* holds what all items share.

    Stored all or none, with offsets that follow each other.
    """
    own = decode_properties(encoded(text))
    if draft.topic.startswith(RETRY_PREFIX):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {draft.topic}",
        )
    key = own.get(PropertyName.UNIQ_KEY)
    whole = (
        bool(key)
        and (topic := ctx.topics.get(draft.topic)) is not None
        and keeps_batches(topic.attributes)
    )
    batch = _checked(draft, command.body, MAX_INNER_MESSAGES if whole else MAX_BATCH_MESSAGES)
    if any(name in own for name in NOT_PLAIN):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional"
        )
    started = ctx.loop.time()
    if whole:
        _put_whole(ctx, connection, command, draft, own, batch.number)
    elif ctx.duplicates is not None:
        ctx.put_once(
            batch.each(),
            partial(_placed_batch, ctx, connection, command, draft, key, started),
            draft.topic,
            command,
        )
    else:
        ctx.put(
            (batch,),
            partial(stored_batch, ctx, connection, command, draft, key, started),
            draft.topic,
        )
    ctx.sends_waiting += 1


def _checked(draft: NewMessage, body: bytes, most: int) -> NewBatch:
    """Raises ProtocolError and Rejected."""
    count = None if native is None else native.plain_batch(body, BARRED_STARTS, most)
    if count is not None:
        return NewBatch(draft, body, 0, count)
    items = decode_batch(body, most)
    if not items:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    _check_items(items)
    return NewBatch(draft, body, 0, len(items))


def _put_whole(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    draft: NewMessage,
    own: dict[str, str],
    count: int,
) -> None:
    """The batch as one record: as a message with the properties of the batch, and with its
    count.
    """
    if draft.sys_flag & SysFlag.COMPRESSED:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch that stays whole cannot be compressed"
        )
    text = encode_properties(
        {name: value for name, value in own.items() if name not in _OURS}
    ).decode()
    stored = encoded(f"{text}{ctx.own_properties}INNER_NUM\x01{count}\x02")
    message = draft._replace(
        body=command.body, properties=stored, sys_flag=draft.sys_flag | WRAPPED
    )
    done = partial(
        _stored_whole,
        ctx,
        connection,
        command,
        draft.topic,
        own[PropertyName.UNIQ_KEY],
        count,
        ctx.loop.time(),
    )
    if ctx.duplicates is not None:
        ctx.put_once((message,), done, draft.topic, command)
    else:
        ctx.put((message,), partial(done, draft.queue_id), draft.topic)


def _stored_whole(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    topic: str,
    key: str,
    count: int,
    started: float,
    queue_id: int,
    result: list[PutResult] | OgiveError,
) -> None:
    stored = settled(ctx, connection, command, result)
    if stored is not None:
        ctx.traffic.stored(topic, count, stored[0].size, ctx.loop.time() - started, command.code)
        reply_in_full(ctx, connection, command, queue_id, key, stored, batch_key=key)


def _placed_batch(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    draft: NewMessage,
    key: str | None,
    started: float,
    queue_id: int,
    result: list[PutResult] | OgiveError,
) -> None:
    """stored_batch() for messages some of which may have been stored before."""
    stored_batch(ctx, connection, command, draft._replace(queue_id=queue_id), key, started, result)


def _check_items(items: list[BatchItem]) -> None:
    if max([len(properties) for _, _, properties in items]) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties in a batch are over the limit of {MAX_PROPERTIES_BYTES} bytes",
        )
    # to be searched at once, for what nearly no batch has
    texts = b"\x02".join([properties for _, _, properties in items])
    if any(start in texts for start in BARRED_STARTS):
        for item in items:
            check_plain("a message in a batch", decode_properties(item.properties))


def stored_batch(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    draft: NewMessage,
    key: str | None,
    started: float,
    result: list[PutResult] | OgiveError,
) -> None:
    """A batch that becomes as many records as it has messages is counted and answered, or
    refused.
    """
    stored = settled(ctx, connection, command, result)
    if stored is None:
        return
    ctx.traffic.stored(
        draft.topic,
        len(stored),
        sum([one.size for one in stored]),
        ctx.loop.time() - started,
        command.code,
    )
    if not command.flag & ONEWAY:
        reply_to_batch(ctx, connection, draft.queue_id, key, stored, command.opaque)
