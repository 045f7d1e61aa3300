"""CONSUMER_SEND_MSG_BACK (36): a consumer could not process a message and wants it again later.

Source: SendMessageProcessor.consumerSendMsgBack, AbstractSendMessageProcessor.java, 5.3.

Behaviour
- The message is read from the log, and stored again for the group: in its retry topic after a
  delay, or in its dead-letter topic when it has had its retries, or when the client asks for that
  (delay level below 0).
- Level 0 means the broker's choice: 3 + the number of retries so far.
- A record that holds a batch whole is refused: clients then send the one message to the retry topic
  themselves.
- Properties that leave no room for those of the copy are removed from it, the largest first; the
  body is never changed.
- The answer leaves when the copy is safe; with a group that has no retry queues the message is
  dropped.

Differs from Java
- A copy that cannot be stored is answered with the store's own code (14, 2) where Java says
  SYSTEM_ERROR.
- Java's broker refuses a copy whose properties do not fit, each time, and the group's progress
  stops there.
"""

import random
from functools import partial
from typing import Final

from ogive.broker.context import Context
from ogive.broker.handlers.send_rules import MAX_INT, VERSION_WITH_MAX_RECONSUME
from ogive.broker.replies import Rejected, refuse, reply_success
from ogive.broker.schedule import check_delivery, delayed
from ogive.errors import OgiveError, ResponseCode
from ogive.model import MAX_RESOURCE_LENGTH, SCHEDULE_TOPIC, PropertyName
from ogive.store.model import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.bodies import PERM_WRITE
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.fitting import fit_properties
from ogive.wire.headers import ConsumerSendMsgBackRequest, decode_header
from ogive.wire.message import (
    StoredMessage,
    decode_properties,
    decode_stored,
    encode_properties,
    offset_message_id,
)

FIRST_RETRY_LEVEL: Final = 3
_NAME_LENGTHS: Final = range(1, MAX_RESOURCE_LENGTH + 1)
_OFFSET_ID_LENGTHS: Final = (32, 56)


def handle(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    header = decode_header(ConsumerSendMsgBackRequest, command.ext_fields)
    group = ctx.groups.find_or_create(header.group)
    if group is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group not exist, {header.group}",
        )
    if group.retry_queues <= 0:
        reply_success(connection, command)
        return
    retry = ctx.topics.ensure_retry(group.name, group.retry_queues)
    if not retry.perm & PERM_WRITE:
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"the topic[{retry.name}] sending message is forbidden"
        )
    with ctx.store.without_waiting():
        record = ctx.store.record_at(header.offset)
    if record is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
    message = decode_stored(record)
    if message.sys_flag & SysFlag.INNER_BATCH:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"{header.offset} is a whole batch of {message.topic}: send the message to "
            f"{retry.name} instead",
        )
    limit = group.retry_max_times
    if command.version >= VERSION_WITH_MAX_RECONSUME and header.max_reconsume_times is not None:
        limit = header.max_reconsume_times
    properties = _retry_properties(message)
    if message.reconsume_times >= limit or header.delay_level < 0:
        topic, queue_id = ctx.topics.ensure_dlq(group.name).name, 0
        properties[PropertyName.DELAY] = "0"
    else:
        # any queue will do
        topic, queue_id = retry.name, random.randrange(max(1, retry.write_queues))  # noqa: S311
        properties[PropertyName.DELAY] = str(
            header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        )
    topic, queue_id = delayed(ctx.levels, topic, queue_id, properties)
    copy = NewMessage(
        topic,
        queue_id,
        message.body,
        encode_properties(fit_properties(properties)),
        message.sys_flag,
        message.flag,
        message.born_timestamp_ms,
        message.born_host,
        ctx.store_host,
        min(message.reconsume_times + 1, MAX_INT),
    )
    if topic == SCHEDULE_TOPIC:
        check_delivery(ctx.store, copy, retry.name)
        topic = retry.name
    ctx.put(
        (copy,),
        ctx.traffic.counted(
            (copy,), partial(_stored, ctx, connection, command, group.name, message.topic)
        ),
        topic,
    )


def _retry_properties(message: StoredMessage) -> dict[str, str]:
    """Return the properties of a copy, which keeps topic and id of the first delivery."""
    properties = decode_properties(message.properties)
    properties.pop(PropertyName.RECORD_CRC, None)
    # Only in a batch item, which no broker checks. In the copy it would mean a batch.
    properties.pop("INNER_NUM", None)
    if len(properties.get(PropertyName.RETRY_TOPIC, "")) not in _NAME_LENGTHS:
        properties[PropertyName.RETRY_TOPIC] = message.topic
    if len(properties.get(PropertyName.ORIGIN_MESSAGE_ID, "")) not in _OFFSET_ID_LENGTHS:
        properties[PropertyName.ORIGIN_MESSAGE_ID] = offset_message_id(
            message.store_host, message.commitlog_offset
        )
    properties[PropertyName.WAIT] = "false"
    return properties


def _stored(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    group: str,
    topic: str,
    result: list[PutResult] | OgiveError,
) -> None:
    if isinstance(result, OgiveError):
        refuse(connection, command, result)
    else:
        ctx.traffic.sent_back.count(group, topic, 1, result[0].size)
        reply_success(connection, command)
