"""Send a message back to its group (36), and recall a timer message (370).

CONSUMER_SEND_MSG_BACK (36): a consumer could not process a message and wants it again later.

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

RECALL_MESSAGE (370): cancel a timer message before its time.

Source: RecallMessageProcessor.java, 5.5.

Behaviour
- The handle is what the send answered: topic, broker, time and unique key. A message that takes it
  back is stored beside it in the timer topic; the answer leaves when that is safe. Neither is
  delivered.
- If no such message waits (it was delivered, recalled already or never sent) the answer is SUCCESS
  with the message id, as in Java.

Differs from Java
- On by default; in Java recallMessageEnable is off.
- The answer has one more field, *recalled*: true if a message was waiting and is taken back now. If
  none was, nothing is stored.
- A name that no producer group can have is refused; Java stores it in a property, with what it may
  hold of other properties.
- A second recall of a message waits for the end of the first one, which may fail.
"""

import math
import random
from functools import partial
from typing import Final

from ogive.broker.deferred.delay_levels import check_delivery, delayed
from ogive.broker.deferred.timer_properties import (
    DELETE_KEY,
    DELIVER_MS,
    OUT_MS,
    RecallHandle,
    read_handle,
    timed,
)
from ogive.broker.replies import Rejected, refuse, reply_success, success
from ogive.broker.sends.checks import VERSION_WITH_MAX_RECONSUME, stored_form
from ogive.broker.services import Context
from ogive.errors import OgiveError, ResponseCode
from ogive.model import MAX_RESOURCE_LENGTH, SCHEDULE_TOPIC, PropertyName, validate_group
from ogive.store.types import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.bodies.json_fields import PERM_WRITE
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.fitting import fit_properties
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import (
    ConsumerSendMsgBackRequest,
    RecallMessageRequest,
    RecallMessageResponse,
)
from ogive.wire.message import (
    StoredMessage,
    decode_properties,
    decode_stored,
    encode_properties,
    offset_message_id,
)
from ogive.wire.sends import MAX_INT

_TAG: Final = "_RECALL_TAG_"


async def recall(
    ctx: Context, connection: Connection, header: RecallMessageRequest, body: bytes
) -> RemotingCommand:
    if header.topic not in ctx.topics:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST,
            f"recall failed, the topic[{header.topic[:256]}] not exist",
        )
    try:
        taken = read_handle(header.recall_handle)
    except ValueError as exc:
        raise Rejected(ResponseCode.ILLEGAL_OPERATION, str(exc)) from None
    if taken.topic != header.topic:
        raise Rejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if taken.broker_name != ctx.config.name:
        raise Rejected(
            ResponseCode.ILLEGAL_OPERATION,
            f"recall failed, the message is on broker {taken.broker_name[:256]}",
        )
    now_ms = ctx.now_ms()
    if taken.time_ms <= now_ms:
        raise Rejected(
            ResponseCode.ILLEGAL_OPERATION,
            "recall failed, timestamp invalid: the time of the message has come",
        )
    if header.producer_group:
        validate_group(header.producer_group)
    while (earlier := ctx.timers.held(taken)) is not None:
        await earlier.ended.wait()
    hold = ctx.timers.hold(taken)
    if hold is None:
        if taken.time_ms - now_ms >= ctx.config.timer_max_delay_s * 1000:
            raise Rejected(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return success(
            RecallMessageResponse(msg_id=taken.unique_key, recalled=False, region=ctx.config.region)
        )
    try:
        await _store(ctx, connection, header, taken, now_ms)
    finally:
        # also where it is stored: by now it is read, or will be before anything else is delivered
        ctx.timers.release(taken, hold)
    return success(
        RecallMessageResponse(msg_id=taken.unique_key, recalled=True, region=ctx.config.region)
    )


async def _store(
    ctx: Context,
    connection: Connection,
    header: RecallMessageRequest,
    taken: RecallHandle,
    now_ms: int,
) -> None:
    properties = {
        DELETE_KEY: taken.unique_key,
        PropertyName.UNIQ_KEY: taken.unique_key,
        PropertyName.TAGS: _TAG,
        DELIVER_MS: str(taken.time_ms),
        PropertyName.PRODUCER_GROUP: header.producer_group or "",
    }
    # no limit of its own: it is due when the message is
    topic, queue_id = timed(
        properties, taken.topic, 0, wall_ms=now_ms, store_ms=now_ms, max_delay_s=math.inf
    )
    # as that message has it: an Apache broker with a finer timerPrecisionMs than ours wrote it
    properties[OUT_MS] = str(taken.time_ms - 1)
    stored = stored_form({name: value for name, value in properties.items() if value})
    message = NewMessage(
        topic,
        queue_id,
        b"0",
        stored,
        0,
        0,
        now_ms,
        ctx.origins[connection].born_host,
        ctx.store_host,
    )
    await ctx.stored((message,), header.topic)


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
        topic,
        ctx.traffic.counted(
            (copy,), partial(_stored, ctx, connection, command, group.name, message.topic)
        ),
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
