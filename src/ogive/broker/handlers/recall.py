"""RECALL_MESSAGE (370): cancel a timer message before its time.

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
from typing import Final

from ogive.broker.context import Context
from ogive.broker.handlers.send_rules import stored_form
from ogive.broker.replies import Rejected, success
from ogive.broker.timed import DELETE_KEY, DELIVER_MS, OUT_MS, Handle, read_handle, timed
from ogive.errors import ResponseCode
from ogive.model import PropertyName, validate_group
from ogive.store.model import NewMessage
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import RecallMessageRequest, RecallMessageResponse

_TAG: Final = "_RECALL_TAG_"


async def handle(
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
    ctx: Context, connection: Connection, header: RecallMessageRequest, taken: Handle, now_ms: int
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
        topic, queue_id, b"0", stored, 0, 0, now_ms, ctx.born_hosts[connection], ctx.store_host
    )
    await ctx.stored((message,), header.topic)
