"""Messages to publish, and the producer that sends them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState
from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

import ogive
from ogive.model import as_keys
from ogive_faststream.message import (
    CONTENT_TYPE,
    CORRELATION_ID,
    REPLY_TO,
    decode_one,
    parse_reply,
)
from ogive_faststream.options import PublishOptions, SendOptions

if TYPE_CHECKING:
    from ogive.aio import Producer


class RocketMQResponse(Response):
    """Result of a handler, with options of the message that is published for it."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> "RocketMQPublishCommand":
        """Return the response as a message to publish."""
        return RocketMQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class RocketMQPublishCommand(BatchPublishCommand):
    """A message to publish, or a batch of them, as middlewares see it."""

    def __init__(
        self,
        *bodies: Any,
        topic: str = "",
        options: SendOptions | None = None,
        timeout: float | None = None,
        **rest: Any,
    ) -> None:
        body, *extra = bodies or (None,)
        super().__init__(body, *extra, destination=topic, **rest)
        self.options: SendOptions = options or {}
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> "RocketMQPublishCommand":
        """Return *cmd* with the options of RocketMQ."""
        if isinstance(cmd, RocketMQPublishCommand):
            return cmd
        return cls(
            cmd.body,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )


def command(
    *bodies: Any,
    topic: str,
    given: PublishOptions,
    id_generator: Callable[[], str],
    reply_to: str = "",
    request: bool = False,
) -> RocketMQPublishCommand:
    """Return what a call that publishes is to send."""
    options: dict[str, Any] = {**given}
    headers, timeout = options.pop("headers", None), options.pop("timeout", None)
    return RocketMQPublishCommand(
        *bodies,
        topic=topic,
        headers=headers,
        timeout=timeout,
        correlation_id=options.pop("correlation_id", None) or id_generator(),
        options=cast(SendOptions, options),
        reply_to=reply_to,
        _publish_type=PublishType.REQUEST if request else PublishType.PUBLISH,
    )


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """FastStream's face of ogive's producer."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, parse_reply)
        self._decoder = ParserComposition(decoder, decode_one)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._producer: Producer | None = None

    def connect(self, producer: "Producer | None", serializer: Any, codec: Any) -> None:
        """Send through *producer* from now on."""
        self._producer = producer
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    @property
    def producer(self) -> "Producer":
        """Connected producer. Raises IncorrectState before the start."""
        if self._producer is None:
            raise IncorrectState("the broker is not connected: `await broker.connect()` first")
        return self._producer

    async def publish(self, cmd: RocketMQPublishCommand) -> ogive.SendResult:
        """Return when a broker has stored the message. Raises OgiveError."""
        (message,) = await self.messages(cmd, (cmd.body,))
        return await self.producer.send(message, timeout_s=cmd.timeout)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[ogive.SendResult]:
        """Return when brokers have stored all messages. Raises OgiveError."""
        messages = await self.messages(cmd, cmd.batch_bodies)
        return await self.producer.send_batch(cmd.destination, messages, timeout_s=cmd.timeout)

    async def request(self, cmd: RocketMQPublishCommand) -> ogive.MessageExt:
        """Return the reply to a message. Raises OgiveError, such as ReplyTimeout."""
        (message,) = await self.messages(cmd, (cmd.body,))
        return await self.producer.request(message, timeout_s=cmd.timeout)

    async def messages(
        self, cmd: RocketMQPublishCommand, bodies: tuple[Any, ...]
    ) -> list[ogive.Message]:
        """Return the messages of *cmd*, encoded."""
        options: dict[str, Any] = {**cmd.options}
        return [
            ogive.Message(cmd.destination, body, properties=properties, **options)
            for body, properties in [await self._encode(cmd, one) for one in bodies]
        ]

    async def reply(self, cmd: RocketMQPublishCommand) -> ogive.Reply:
        """Return *cmd* as the reply to a request. Of its options it has the tag and the keys."""
        body, properties = await self._encode(cmd, cmd.body)
        return ogive.Reply(
            body,
            tag=cmd.options.get("tag"),
            keys=as_keys(cmd.options.get("keys", ())),
            properties=properties,
        )

    async def _encode(self, cmd: RocketMQPublishCommand, body: Any) -> tuple[bytes, dict[str, str]]:
        encoded, content_type = await self.codec.encode(body, self._serializer)
        known = {
            CONTENT_TYPE: content_type,
            CORRELATION_ID: cmd.correlation_id,
            REPLY_TO: cmd.reply_to,
        }
        headers = {name: str(value) for name, value in cmd.headers.items()}
        return encoded, {name: value for name, value in known.items() if value} | headers
