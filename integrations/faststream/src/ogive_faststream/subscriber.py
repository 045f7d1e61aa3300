"""Subscribers: ogive calls them with messages, FastStream's handlers decide, and ogive gets the
decision as the result of the call.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

from faststream import AckPolicy
from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage
from faststream.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

import ogive
from ogive.client.listener import AnyListener
from ogive_faststream.message import (
    REPLY_TO,
    Delivery,
    RocketMQMessage,
    current,
    decode_batch,
    decode_one,
    parse_batch,
    parse_message,
)
from ogive_faststream.publishing import RocketMQPublishCommand


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """Settings of a subscriber."""

    @property
    def ack_policy(self) -> AckPolicy:
        """Own policy, else the broker's, else NACK_ON_ERROR."""
        own = self._ack_policy if self._ack_policy is not EMPTY else self._outer_config.ack_policy
        policy: AckPolicy = own if own is not EMPTY else AckPolicy.NACK_ON_ERROR
        return policy


class RocketMQSubscriber(SubscriberUsecase[Any]):
    """Subscriber of one topic, as a member of a consumer group."""

    def __init__(
        self,
        listener_of: Any,
        config: SubscriberConfig,
        specification: "RocketMQSubscriberSpecification",
        calls: CallsCollection[Any],
    ) -> None:
        # raises InvalidOption for options that ogive refuses
        self.listener: AnyListener = listener_of(self._call)
        self.is_batch = self.listener.config.batch > 1
        config.parser = parse_batch if self.is_batch else parse_message
        config.decoder = decode_batch if self.is_batch else decode_one
        super().__init__(config, specification, calls)
        # the settings that the broker and its routers compose
        self._settings: Any = config._outer_config
        self._subscribed: AnyListener | None = None
        self._leaving: asyncio.Task[None] | None = None

    @property
    def topic(self) -> str:
        """Topic, with the prefixes of routers."""
        return f"{self._settings.prefix}{self.listener.config.topic}"

    @property
    def group(self) -> str:
        """Consumer group."""
        return self.listener.config.group

    async def start(self) -> None:
        """Receive messages from now on. Raises OgiveError if a broker refuses the group."""
        await super().start()
        self._post_start()
        if self.calls:
            config = replace(self.listener.config, topic=self.topic)
            listener = replace(self.listener, config=config, name=self.specification.call_name)
            await self._settings.connection.subscribe(listener)
            self._subscribed = listener

    async def stop(self) -> None:
        """Wait for running handlers, and receive no more messages.

        A handler may call this. It ends in the background then, after the handler.
        """
        listener, self._subscribed = self._subscribed, None
        if listener is not None:
            self._leaving = asyncio.create_task(self._leave(listener))
        if self._leaving is not None and current.get(None) is None:
            await self._leaving

    async def _leave(self, listener: AnyListener) -> None:
        await self._settings.connection.unsubscribe(listener)
        self.running = False

    async def _call(self, raw: Any) -> ogive.ConsumeResult:
        """Handle one message, or a batch. FastStream logs errors of handlers."""
        delivery = Delivery()
        token = current.set(delivery)
        try:
            await self.consume([raw] if self.is_batch and not isinstance(raw, list) else raw)
        finally:
            current.reset(token)
        if not delivery.is_decided:
            self._log(
                logging.WARNING,
                "the handler ended without ack, nack or reject: the message is delivered again",
                self.get_log_context(None),
            )
        return delivery.reply if delivery.result is None else delivery.result

    def _make_response_publisher(
        self, message: StreamMessage[Any]
    ) -> Iterable["ReplyPublisher | TopicPublisher"]:
        producer = self._settings.producer
        if topic := message.headers.get(REPLY_TO):
            return (TopicPublisher(producer=producer, topic=topic),)
        if self.is_batch or self.listener.config.orderly:
            self._log(
                logging.WARNING,
                "a request gets no reply: only a subscriber that is not orderly and takes no "
                "batches can reply",
                self.get_log_context(message),
            )
            return ()
        delivery = message.delivery if isinstance(message, RocketMQMessage) else Delivery()
        return (ReplyPublisher(producer=producer, delivery=delivery),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what log lines say about *message*."""
        return {
            "topic": self.topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }

    async def get_one(self, *, timeout: float = 5.0) -> NoReturn:
        """Raise FeatureNotSupportedException."""
        raise FeatureNotSupportedException(_NO_PULL)

    def __aiter__(self) -> AsyncIterator[Any]:
        raise FeatureNotSupportedException(_NO_PULL)


_NO_PULL = (
    "a subscriber of RocketMQ needs a handler; to fetch messages one by one, use "
    "ogive.aio.SimpleConsumer or PullConsumer"
)


class RocketMQSubscriberSpecification(SubscriberSpecification[Any, SubscriberSpecificationConfig]):
    """Entry of a subscriber in the AsyncAPI document, which has no bindings for RocketMQ."""

    def __init__(
        self,
        broker_config: Any,
        config: SubscriberSpecificationConfig,
        calls: CallsCollection[Any],
        topic: str,
    ) -> None:
        super().__init__(broker_config, config, calls)
        self._topic = topic

    @property
    def address(self) -> str:
        """Topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def channel_labels(self) -> list[str]:
        """Name of the only channel."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the entry under its name."""
        payload = resolve_payloads(self.get_payloads())
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: SubscriberSpec(
                address=self.address,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class TopicPublisher(FakePublisher):
    """Publisher of a handler's result to the topic that the message names in ``reply_to``."""

    def __init__(self, *, producer: Any, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Return *cmd* for the topic."""
        patched = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        patched.destination = self._topic
        return patched


class ReplyPublisher(FakePublisher):
    """Publisher of a handler's result as the reply to a request."""

    def __init__(self, *, producer: Any, delivery: Delivery) -> None:
        super().__init__(producer=producer)
        self._sender = producer
        self._delivery = delivery

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Return *cmd* with the options of RocketMQ."""
        return RocketMQPublishCommand.from_cmd(super().patch_command(cmd))

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        call: Any = self._keep
        for middleware in _extra_middlewares:
            call = partial(middleware, call)
        await call(self.patch_command(cmd))

    async def _keep(self, cmd: RocketMQPublishCommand) -> None:
        """Have the reply sent when the handler's message is finished."""
        self._delivery.reply = await self._sender.reply(cmd)
