"""Answers to sends: the usual one from a template, the others from their header class."""

import json
from typing import Final

from ogive.broker.replies import code_and_remark, framed, refuse, reply, success
from ogive.broker.services import Context
from ogive.errors import OgiveError, ProtocolError, StoreError
from ogive.native import native
from ogive.store.types import PutResult
from ogive.transport.connection import Connection
from ogive.wire.codes import VERSION, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.send import SendMessageResponse
from ogive.wire.message import offset_message_ids


def settled(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    result: list[PutResult] | OgiveError,
) -> list[PutResult] | None:
    """A send waits no more: what it stored, or None, and it is refused."""
    ctx.sends_waiting -= 1
    if isinstance(result, OgiveError):
        refuse_send(ctx, connection, command, result)
        return None
    return result


_WITH_REGION: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
    )
)


def refuse_send(
    ctx: Context, connection: Connection, command: RemotingCommand, error: OgiveError
) -> None:
    """Count a send that is not stored, and say why."""
    ctx.traffic.refused(
        command.code, code_and_remark(error)[0], by_store=isinstance(error, StoreError)
    )
    refuse(connection, command, error, fields_of_refusal(ctx, command.code, error))


def fields_of_refusal(ctx: Context, code: int, error: OgiveError) -> dict[str, str]:
    """Return the headers that the answer to a refused send, reply or recall has in Java, too.

    A request that could not be read has none.
    """
    if isinstance(error, ProtocolError) or code not in _WITH_REGION:
        return {}
    region = {"MSG_REGION": ctx.config.region}
    return region if code == RequestCode.RECALL_MESSAGE else region | {"TRACE_ON": "true"}


def message_id_format(store_host: bytes) -> str:
    """Of a message's id; to fill in: its commit-log offset."""
    return f"{store_host.hex().upper()}%016X"


def answer_template(region: str, message_id: str, *, keyed: bool = True) -> bytes:
    """The header of a send's answer.

    To fill in: queue id, unique key (JSON text) if *keyed*, what *message_id* asks for, queue
    offset, opaque.
    """
    text = (
        '{"code":0,"extFields":{"queueId":"%d",'
        + ('"transactionId":%s,' if keyed else "")
        + '"msgId":"'
        + message_id
        + '","TRACE_ON":"true","MSG_REGION":'
        + json.dumps(region).replace("%", "%%")
        + (
            ',"queueOffset":"%d"},"flag":1,"language":"PYTHON","opaque":%d,'
            '"serializeTypeCurrentRPC":"JSON","version":'
        )
        + f"{VERSION}}}"
    )
    return text.encode()


def json_text(key: str) -> bytes:
    return b'"%b"' % key.encode() if key.isascii() and key.isalnum() else json.dumps(key).encode()


def reply_head(connection: Connection, head: bytes) -> None:
    connection.reply(framed(head))


def reply_to_batch(
    ctx: Context,
    connection: Connection,
    queue_id: int,
    key: str | None,
    stored: list[PutResult],
    opaque: int,
) -> None:
    """The answer of a batch that became as many records, with its own unique key where it has
    one.
    """
    template = ctx.keyless_batch_answer if key is None else ctx.batch_answer
    frame = (
        None
        if native is None
        else native.batch_answer(template, queue_id, key, ctx.store_host, stored, opaque)
    )
    if frame is None:
        ids = offset_message_ids(ctx.store_host, [one.commitlog_offset for one in stored]).encode()
        keys = () if key is None else (json_text(key),)
        frame = framed(template % (queue_id, *keys, ids, stored[0].queue_offset, opaque))
    connection.reply(frame)


def reply_in_full(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    queue_id: int,
    key: str | None,
    result: list[PutResult],
    recall: str | None = None,
    batch_key: str | None = None,
) -> None:
    """The answer of a batch that is one record, with its key, or of one message with a handle to
    take it back.
    """
    header = SendMessageResponse(
        msg_id=offset_message_ids(ctx.store_host, [stored.commitlog_offset for stored in result]),
        queue_id=queue_id,
        queue_offset=result[0].queue_offset,
        transaction_id=key,
        region=ctx.config.region,
        trace_on="true",
        recall_handle=recall,
        batch_uniq_id=batch_key,
    )
    reply(connection, command, success(header))
