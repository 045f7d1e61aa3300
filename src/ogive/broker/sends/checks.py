"""Checks of every message that a client sends, whichever request carries it.

Source: SendMessageProcessor.java, 5.3.
"""

import random
from collections.abc import Mapping
from typing import Final

from ogive.broker.deferred.timer_properties import (
    DELAY_MS,
    DELAY_SEC,
    DELIVER_MS,
)
from ogive.broker.replies import Rejected
from ogive.broker.services import Context
from ogive.errors import ProtocolError, ResponseCode
from ogive.model import (
    PropertyName,
    is_written_by_brokers_alone,
)
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.message import (
    MAX_PROPERTIES_BYTES,
    decode_properties,
    encode_properties,
    join_properties,
)
from ogive.wire.sends import CLIENT_FLAGS, fit

# 3.4.9: older clients send the field without meaning it
VERSION_WITH_MAX_RECONSUME: Final = 121
NOT_PLAIN: Final = (
    PropertyName.DELAY,
    PropertyName.TRANSACTION_PREPARED,
    DELAY_SEC,
    DELAY_MS,
    DELIVER_MS,
)


def check_room(ctx: Context) -> None:
    """Raise Rejected if the limit of waiting sends is reached."""
    if ctx.sends_waiting >= ctx.config.max_sends_waiting:
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]system busy: {ctx.sends_waiting} sends wait to be stored",
        )


def check_body(ctx: Context, size: int) -> None:
    """Raise Rejected for a body that is too long."""
    if size > ctx.config.max_message_bytes:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a body of {size} bytes is over the limit of {ctx.config.max_message_bytes}",
        )


def check_may_send_to(topic: str) -> None:
    """Raise Rejected for topics that only the broker may write to."""
    if is_written_by_brokers_alone(topic):
        raise Rejected(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )


def check_numbers(sys_flag: int, born_ms: int, flag: int, reconsume_times: int) -> None:
    """Raise Rejected for a message that no client may send by itself, half messages included."""
    if sys_flag & ~CLIENT_FLAGS or not fit(born_ms, flag, reconsume_times):
        raise unusual(sys_flag)


def unusual(sys_flag: int) -> Rejected:
    return Rejected(
        ResponseCode.MESSAGE_ILLEGAL,
        f"sysFlag {sys_flag:#x}, flag, bornTimestamp or reconsumeTimes is outside what a client "
        "may send",
    )


def inner_batch() -> Rejected:
    """Return the refusal of a message with the count of a batch.

    Apache's broker, if it gets the store, would read the log only up to a wrong count.
    """
    return Rejected(
        ResponseCode.MESSAGE_ILLEGAL,
        "the property INNER_NUM is for brokers: what is to be a batch is sent as "
        "SEND_BATCH_MESSAGE",
    )


def check_plain(what: str, properties: Mapping[str, str]) -> None:
    """Raise Rejected if the properties of *what*, which is stored at once in its own topic and is
    one message, say otherwise.
    """
    for name in NOT_PLAIN:
        if name in properties:
            raise Rejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{what} carries {name}: it can be neither delayed nor transactional",
            )
    if "INNER_NUM" in properties:
        raise inner_batch()


def check_queue(queue_id: int, config: TopicConfig) -> int:
    """Return a queue to write to, for a negative id or one beyond the write queues.

    Raises Rejected beyond all queues, and if there are none to choose from.
    """
    queues = max(config.write_queues, config.read_queues)
    if queue_id >= queues:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, topic {config.name} has {queues} queues",
        )
    if queue_id >= 0:
        return queue_id
    if not config.write_queues:
        raise Rejected(ResponseCode.INVALID_PARAMETER, f"topic {config.name} has no write queues")
    return random.randrange(config.write_queues)  # noqa: S311  any queue will do


def check_size(properties: bytes) -> bytes:
    """Return properties of a client in stored form.

    If they are too long, only their map is stored, so for example only the last of two equal names:
    Java's broker stores the map. Raises Rejected if no record can hold them.
    """
    if len(properties) > MAX_PROPERTIES_BYTES:
        properties = join_properties(decode_properties(properties))
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(properties)} bytes of properties are over the limit of {MAX_PROPERTIES_BYTES}",
        )
    return properties


def stored_form(properties: Mapping[str, str]) -> bytes:
    """Call encode_properties(). Raises Rejected for properties that no record can hold."""
    try:
        return encode_properties(properties)
    except ProtocolError as exc:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, str(exc)) from None
