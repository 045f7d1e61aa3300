"""Replies to requests: SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325).

Source: ReplyMessageProcessor.java, 5.3.

Behaviour
- A reply is pushed (code 326) to the client that its property REPLY_TO_CLIENT names, which must be
  known here as a producer. Once the client has accepted it, it is stored in its topic as well,
  unless storeReplyMessageEnable is off.
- The answer comes when the client has accepted the reply: SUCCESS with the place of the stored copy
  (message id 0 if there is none), or SYSTEM_ERROR in Java's words.

Differs from Java
- A reply that is transactional or delayed, or says that it is a batch, is refused, as in a batch;
  Java keeps the first as it is, pushes the second at once and delays its copy.
- A reply that was not pushed is not stored, as anyone could otherwise fill the disk with replies to
  nobody. Java stores it.
- A reply does not create its topic. What is pushed carries the broker's CLUSTER, as every stored
  message does.
- A copy that cannot be stored, for example because its properties are too long, is logged. The
  answer stays the same: the client has its reply.
- Replies that wait are bounded, in all and for one client.
- With access control a client counts as unknown while another user's producer is here under its id.
"""

import logging
from typing import Final

from ogive.broker.replies import RESPONSE, Rejected, success
from ogive.broker.sends.checks import (
    check_body,
    check_may_send_to,
    check_numbers,
    check_plain,
    check_queue,
    check_room,
)
from ogive.broker.sends.commit import store_one
from ogive.broker.services import Context
from ogive.errors import InvalidOption, ResponseCode, StoreError, TransportError
from ogive.model import PropertyName
from ogive.store.types import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.send import (
    PushReplyMessageRequest,
    SendMessageRequest,
    SendMessageRequestV2,
    SendMessageResponse,
)
from ogive.wire.message import decode_host, decode_properties, join_properties, offset_message_id

log = logging.getLogger(__name__)

CLIENT_ANSWER_S: Final = 10.0
NOT_STORED: Final = "0"


async def handle(
    ctx: Context,
    connection: Connection,
    header: SendMessageRequest | SendMessageRequestV2,
    body: bytes,
) -> RemotingCommand:
    check_room(ctx)
    message = _message(ctx, connection, header, body)
    trouble = await _push(ctx, header, message)
    stored = await _store(ctx, message) if trouble is None and ctx.config.store_replies else None
    answer = success(
        SendMessageResponse(
            msg_id=NOT_STORED
            if stored is None
            else offset_message_id(ctx.store_host, stored.commitlog_offset),
            queue_id=message.queue_id,
            queue_offset=0 if stored is None else stored.queue_offset,
            region=ctx.config.region,
            trace_on="true",
        )
    )
    return (
        answer
        if trouble is None
        else RemotingCommand(
            ResponseCode.SYSTEM_ERROR, answer.ext_fields, b"", 0, RESPONSE, trouble
        )
    )


def _message(
    ctx: Context,
    connection: Connection,
    header: SendMessageRequest | SendMessageRequestV2,
    body: bytes,
) -> NewMessage:
    """Return the reply in stored form. Raises Rejected, ProtocolError."""
    reconsume_times = header.reconsume_times or 0
    check_numbers(header.sys_flag, header.born_timestamp, header.flag, reconsume_times)
    check_may_send_to(header.topic)
    config = ctx.topics.get(header.topic)
    if config is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{header.topic[:256]}] not exist, apply first please!",
        )
    check_body(ctx, len(body))
    sent = (header.properties or "").encode(errors="replace")
    properties = decode_properties(sent) | decode_properties(ctx.own_properties)
    check_plain("a reply", properties)
    return NewMessage(
        header.topic,
        check_queue(header.queue_id, config),
        body,
        join_properties(properties),
        header.sys_flag,
        header.flag,
        header.born_timestamp,
        ctx.origins[connection].born_host,
        ctx.store_host,
        reconsume_times,
    )


async def _push(
    ctx: Context, header: SendMessageRequest | SendMessageRequestV2, message: NewMessage
) -> str | None:
    """Send the reply to its client. Return None, or the reason if that is not possible.

    Raises Rejected if too many wait.
    """
    properties = decode_properties(message.properties)
    client_id = properties.get(PropertyName.REPLY_TO_CLIENT)
    if client_id is None:
        return f"reply message properties[{PropertyName.REPLY_TO_CLIENT}] is null"
    connection = ctx.clients.producer_connection(client_id)
    if connection is None:
        return f"push reply message fail, channel of <{client_id[:256]}> not found."
    now_ms = ctx.now_ms()
    properties[PropertyName.PUSH_REPLY_TIME] = str(now_ms)
    push = PushReplyMessageRequest(
        producer_group=header.producer_group,
        topic=message.topic,
        default_topic=header.default_topic,
        default_topic_queue_nums=header.default_topic_queue_nums,
        queue_id=message.queue_id,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp_ms,
        flag=message.flag,
        properties=join_properties(properties).decode(),
        reconsume_times=message.reconsume_times,
        unit_mode=header.unit_mode or False,
        born_host=decode_host(message.born_host),
        store_host=decode_host(message.store_host),
        store_timestamp=now_ms,
    )
    if not ctx.reply_quota.acquire_one(connection, ctx.config.max_sends_waiting):
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]system busy: too many replies wait for <{client_id[:256]}>, or in all",
        )
    try:
        answer = await connection.call(
            RemotingCommand(push.code, encode_header(push), message.body), CLIENT_ANSWER_S
        )
    except TransportError as exc:
        log.warning("client %s did not accept a reply: %s", client_id, exc)
    else:
        if answer.code == ResponseCode.SUCCESS:
            return None
        log.warning(
            "client %s did not accept a reply: code %d, %s", client_id, answer.code, answer.remark
        )
    finally:
        ctx.reply_quota.release(connection, 1)
    return f"push reply message to {client_id}fail."


async def _store(ctx: Context, message: NewMessage) -> PutResult | None:
    try:
        return await store_one(ctx, message)
    except (StoreError, InvalidOption) as exc:
        # InvalidOption: it fits no file of the log
        log.warning("could not store a reply: %s", exc)
        return None
