"""Received messages: from ogive's to FastStream's, and what a handler decides about them."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from faststream.message import StreamMessage, decode_message

import ogive
from ogive.model import RESERVED_PROPERTIES, PropertyName

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"


@dataclass(slots=True)
class Delivery:
    """Result of one call of a handler. Unless the handler decides, the message comes again."""

    is_decided: bool = False
    result: ogive.ConsumeResult = ogive.LATER
    reply: ogive.Reply | None = None

    def decide(self, result: ogive.ConsumeResult) -> None:
        self.is_decided, self.result = True, result


current: Final[ContextVar[Delivery]] = ContextVar("delivery")
"""Delivery that is being handled. Parsers need it, and FastStream gives them only the message."""


class RocketMQMessage(StreamMessage[Any]):
    """A message, or with ``batch`` a list of messages.

    An acknowledgement takes effect when the handler ends; only the first one counts.
    """

    def __init__(self, raw_message: Any, body: Any, *, delivery: Delivery, **options: Any) -> None:
        super().__init__(raw_message, body, **options)
        self.delivery = delivery

    async def ack(self) -> None:
        """Finish the message."""
        self._decide(None)
        await super().ack()

    async def nack(self, *, delay_level: int = 0, suspend_s: float | None = None) -> None:
        """Have the message delivered again later.

        *delay_level* chooses a delay of the broker, for a subscriber that is not orderly;
        *suspend_s* the pause of the queue, for an orderly one.
        """
        self._decide(ogive.later(delay_level) if suspend_s is None else ogive.suspend(suspend_s))
        await super().nack()

    async def reject(self) -> None:
        """Move the message to the dead-letter topic of the group."""
        self._decide(ogive.DEAD_LETTER)
        await super().reject()

    def _decide(self, result: ogive.ConsumeResult) -> None:
        if self.committed is None and not self.delivery.is_decided:
            self.delivery.decide(result)


def headers_of(message: ogive.MessageExt) -> dict[str, str]:
    """Return the properties that are the application's."""
    return {
        name: value for name, value in message.properties.items() if name not in RESERVED_PROPERTIES
    }


async def parse_message(message: ogive.MessageExt) -> RocketMQMessage:
    """Return FastStream's form of a message."""
    reply_to = message.properties.get(PropertyName.REPLY_TO_CLIENT, "")
    return _parsed(message, message, message.body, headers_of(message), reply_to=reply_to)


async def parse_reply(message: ogive.MessageExt) -> RocketMQMessage:
    """Return FastStream's form of a reply, whose acknowledgement means nothing."""
    headers = headers_of(message)
    return _parsed(message, message, message.body, headers, delivery=Delivery())


async def parse_batch(messages: Sequence[ogive.MessageExt]) -> RocketMQMessage:
    """Return FastStream's form of a batch, with the headers of its first message."""
    headers = [headers_of(one) for one in messages]
    bodies = [one.body for one in messages]
    return _parsed(messages[0], messages, bodies, headers[0], batch_headers=headers)


def _parsed(
    first: ogive.MessageExt,
    raw: Any,
    body: Any,
    headers: dict[str, str],
    *,
    reply_to: str = "",
    **options: Any,
) -> RocketMQMessage:
    return RocketMQMessage(
        raw,
        body,
        headers=headers,
        reply_to=headers.get(REPLY_TO, reply_to),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID)
        or first.properties.get(PropertyName.CORRELATION_ID),
        message_id=first.id,
        **{"delivery": current.get(None) or Delivery()} | options,
    )


async def decode_one(message: StreamMessage[Any]) -> Any:
    """Return the body as its content type says."""
    return decode_message(message)


# FastStream recognizes batches by this name
async def decode_batch(message: StreamMessage[Any]) -> list[Any]:
    """Return the body of each message as its content type says."""
    return [decode_message(await parse_message(one)) for one in message.raw_message]
