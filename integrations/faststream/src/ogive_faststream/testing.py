"""A broker in memory, for tests of handlers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock

from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response import Response

import ogive
from ogive import testing
from ogive.model import parse_tags
from ogive.sql92 import compile_expression
from ogive_faststream.broker import RocketMQBroker
from ogive_faststream.connection import Connection
from ogive_faststream.message import Delivery, current
from ogive_faststream.publisher import Publisher
from ogive_faststream.publishing import RocketMQProducer, RocketMQPublishCommand
from ogive_faststream.subscriber import RocketMQSubscriber

TEST_GROUP = "faststream-test"


class TestRocketMQBroker(TestBroker[RocketMQBroker, Any], broker=RocketMQBroker):
    """``async with TestRocketMQBroker(broker) as test_broker``: messages go to handlers at once.

    A message goes to one subscriber of each group whose filter selects it, without delays and
    retries; the error of a handler is raised where the message is published. ``with_real=True``
    runs the same test against the broker's name server.
    """

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Iterator[None]:
        with change_producer(
            broker.config.broker_config, MemoryProducer(broker, self._subscribers)
        ):
            yield

    async def _fake_connect(self, broker: RocketMQBroker, *args: Any, **kwargs: Any) -> Any:
        connection = AsyncMock(Connection)
        broker.config.broker_config.open_connection = connection
        return connection

    def _subscribers(self) -> Iterator[RocketMQSubscriber]:
        for broker in self.brokers:
            for subscriber in broker.subscribers:
                assert isinstance(subscriber, RocketMQSubscriber)
                yield subscriber

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: Publisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return the subscriber of the publisher's topic, or else make one; and False then."""
        for subscriber in self._subscribers():
            if subscriber.topic == publisher.topic:
                return subscriber, True
        # its topic is complete, without the prefix of a router
        return broker.subscriber(publisher.topic, group=TEST_GROUP, persistent=False), False


class MemoryProducer(RocketMQProducer):
    """Producer that calls the handlers."""

    def __init__(
        self, broker: RocketMQBroker, subscribers: Callable[[], Iterator[RocketMQSubscriber]]
    ) -> None:
        super().__init__(broker._parser, broker._decoder)
        config = broker.config.broker_config
        self.connect(None, config.fd_config._serializer, config.broker_codec)
        self._subscribers = subscribers

    async def publish(self, cmd: RocketMQPublishCommand) -> ogive.SendResult:
        """Call the handlers of a message."""
        (result,) = await self._deliver(cmd, (cmd.body,))
        return result

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[ogive.SendResult]:
        """Call the handlers of several messages."""
        return await self._deliver(cmd, cmd.batch_bodies)

    async def request(self, cmd: RocketMQPublishCommand) -> ogive.MessageExt:
        """Call the first handler of a message, and return its result as the reply."""
        (message,) = await self.messages(cmd, (cmd.body,))
        delivered = received(message, 0)
        for subscriber in self._selected(delivered):
            async with asyncio.timeout(cmd.timeout):
                response = await handle(subscriber, [delivered])
            reply = await self.reply(RocketMQPublishCommand.from_cmd(response.as_publish_command()))
            return received(reply.message(cmd.destination), 0)
        raise SubscriberNotFound(f"no subscriber of {cmd.destination} takes the request")

    async def _deliver(
        self, cmd: RocketMQPublishCommand, bodies: tuple[Any, ...]
    ) -> list[ogive.SendResult]:
        messages = [
            received(one, offset) for offset, one in enumerate(await self.messages(cmd, bodies))
        ]
        batches: dict[RocketMQSubscriber, list[ogive.MessageExt]] = {}
        for message in messages:
            for subscriber in self._selected(message):
                if subscriber.is_batch:
                    batches.setdefault(subscriber, []).append(message)
                else:
                    await handle(subscriber, [message])
        for subscriber, batch in batches.items():
            await handle(subscriber, batch)
        return [
            ogive.SendResult(
                ogive.SendStatus.SEND_OK, one.id, one.offset_id, one.queue, one.queue_offset
            )
            for one in messages
        ]

    def _selected(self, message: ogive.MessageExt) -> Iterator[RocketMQSubscriber]:
        """Yield one subscriber of each group, if its filter selects the message."""
        groups = set()
        for subscriber in self._subscribers():
            if subscriber.topic != message.topic or subscriber.group in groups:
                continue
            groups.add(subscriber.group)
            if selects(subscriber, message):
                yield subscriber


def received(message: ogive.Message, queue_offset: int) -> ogive.MessageExt:
    """Return *message* as a subscriber gets it."""
    return testing.message(
        message.topic,
        message.body,
        tag=message.tag,
        keys=message.keys,
        properties=message.properties,
        sharding_key=message.sharding_key,
        queue_offset=queue_offset,
    )


def selects(subscriber: RocketMQSubscriber, message: ogive.MessageExt) -> bool:
    """Return True if the tags or the SQL of the subscriber select the message."""
    config = subscriber.listener.config
    if config.sql is not None:
        return compile_expression(config.sql).matches(message.properties)
    tags = parse_tags(config.tags)
    return not tags or message.tag in tags


async def handle(subscriber: RocketMQSubscriber, messages: list[ogive.MessageExt]) -> Response:
    """Call the handler of *subscriber*. Raises what it raises."""
    token = current.set(Delivery())
    try:
        raw = messages if subscriber.is_batch else messages[0]
        response: Response = await subscriber.process_message(raw)
    finally:
        current.reset(token)
    return response
