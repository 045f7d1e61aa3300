"""Batches: messages of one queue, stored all or none. Source: SendMessageProcessor.sendBatchMessage, 5.3."""

from functools import partial
from typing import Final

from ogive.broker.context import Context
from ogive.broker.handlers.send_answer import json_text, reply_head, reply_in_full
from ogive.broker.handlers.send_rules import encoded, inner_batch
from ogive.broker.replies import ONEWAY, Rejected, refuse
from ogive.broker.timed import DELAY_MS, DELAY_SEC, DELIVER_MS
from ogive.errors import OgiveError, ResponseCode
from ogive.model import RETRY_PREFIX, PropertyName
from ogive.native import native
from ogive.store.model import NewBatch, NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import MAX_PROPERTIES_BYTES, BatchItem, decode_batch, decode_properties, offset_message_ids, raw_property

_SPECIAL: Final = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"INNER_NUM\x01")
"""How properties begin that no message in a batch may have."""


def put_batch(ctx: Context, connection: Connection, command: RemotingCommand, draft: NewMessage, text: str) -> None:
    """*draft* holds what all items share. Stored all or none, with offsets that follow each other."""
    own = decode_properties(encoded(text))
    if draft.topic.startswith(RETRY_PREFIX):
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {draft.topic}")
    items = decode_batch(command.body)
    if not items:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    if native is None or not native.batch_is_plain(items, _SPECIAL, MAX_PROPERTIES_BYTES):
        _check_items(items)
    if PropertyName.DELAY in own or PropertyName.TRANSACTION_PREPARED in own:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional")
    batch, key, started = NewBatch(draft, items), own.get(PropertyName.UNIQ_KEY), ctx.loop.time()
    if ctx.duplicates is not None:
        ctx.put_once(batch.each(), partial(_placed_batch, ctx, connection, command, draft, key, started), draft.topic)
    else:
        ctx.put(batch, partial(_stored_batch, ctx, connection, command, draft, key, started), draft.topic)
    ctx.sends_waiting += 1


def _placed_batch(
    ctx: Context, connection: Connection, command: RemotingCommand, draft: NewMessage, key: str | None, started: float, queue_id: int,
    result: list[PutResult] | OgiveError,
) -> None:  # fmt: skip
    """_stored_batch() for messages some of which may have been stored before."""
    _stored_batch(ctx, connection, command, draft._replace(queue_id=queue_id), key, started, result)


def _check_items(items: list[BatchItem]) -> None:
    if max([len(properties) for _, _, properties in items]) > MAX_PROPERTIES_BYTES:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, f"properties in a batch are over the limit of {MAX_PROPERTIES_BYTES} bytes")
    texts = b"\x02".join([properties for _, _, properties in items])  # to be searched at once, for what nearly no batch has
    if any(start in texts for start in _SPECIAL):
        for item in items:
            _refuse_special_item(item.properties)


def _refuse_special_item(properties: bytes) -> None:
    for name in (PropertyName.DELAY, PropertyName.TRANSACTION_PREPARED, DELAY_SEC, DELAY_MS, DELIVER_MS):
        if raw_property(properties, name.encode()):
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL, f"a message in a batch carries {name}: batches are neither delayed nor transactional"
            )
    if raw_property(properties, b"INNER_NUM"):
        raise inner_batch()


def _stored_batch(
    ctx: Context, connection: Connection, command: RemotingCommand, draft: NewMessage, key: str | None, started: float,
    result: list[PutResult] | OgiveError,
) -> None:  # fmt: skip
    ctx.sends_waiting -= 1
    if isinstance(result, OgiveError):
        ctx.traffic.failed += 1
        refuse(connection, command, result)
        return
    ctx.traffic.stored(draft.topic, len(result), sum([stored.size for stored in result]), ctx.loop.time() - started)
    if key is None:
        reply_in_full(ctx, connection, command, draft.queue_id, key, result)
    elif not command.flag & ONEWAY:
        ids = offset_message_ids(ctx.store_host, [stored.commitlog_offset for stored in result])
        reply_head(connection, ctx.batch_answer % (draft.queue_id, json_text(key), ids.encode(), result[0].queue_offset, command.opaque))
