"""Publishers: senders of one topic, also of the results of handlers."""

from collections.abc import Iterable
from typing import Any, Unpack

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

import ogive
from ogive_faststream.message import RocketMQMessage
from ogive_faststream.options import PublishOptions, SendOptions
from ogive_faststream.publishing import RocketMQPublishCommand, command


class Publisher(PublisherUsecase):
    """Publisher of one topic, with options for all of its messages."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: "RocketMQPublisherSpecification",
        *,
        headers: dict[str, str] | None,
        reply_to: str,
        options: SendOptions,
    ) -> None:
        super().__init__(config, specification)
        self._entry = specification
        self.headers = headers or {}
        self.reply_to = reply_to
        self.options = options

    @property
    def topic(self) -> str:
        """Topic, with the prefixes of routers."""
        return self._entry.address

    async def publish(self, message: Any, /, **options: Unpack[PublishOptions]) -> ogive.SendResult:
        """Publish a message, as RocketMQBroker.publish does."""
        cmd = self._command(message, options)
        cmd.reply_to = self.reply_to
        result: ogive.SendResult = await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return result

    async def request(self, message: Any, /, **options: Unpack[PublishOptions]) -> RocketMQMessage:
        """Publish a message, and return the reply, as RocketMQBroker.request does."""
        cmd = self._command(message, options, request=True)
        reply: RocketMQMessage = await self._basic_request(
            cmd, producer=self._outer_config.producer
        )
        return reply

    def _command(
        self, message: Any, given: PublishOptions, *, request: bool = False
    ) -> RocketMQPublishCommand:
        cmd = command(
            message,
            topic=self.topic,
            given={**self.options, **given},
            id_generator=self._outer_config.id_generator,
            request=request,
        )
        cmd.add_headers(self.headers, override=False)
        return cmd

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish the result of a handler."""
        result = RocketMQPublishCommand.from_cmd(cmd)
        result.destination = self.topic
        result.reply_to = self.reply_to
        result.add_headers(self.headers, override=False)
        result.options = {**self.options, **result.options}
        await self._basic_publish(
            result, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )


class RocketMQPublisherSpecification(PublisherSpecification[Any, PublisherSpecificationConfig]):
    """Entry of a publisher in the AsyncAPI document, which has no bindings for RocketMQ."""

    def __init__(
        self, broker_config: Any, config: PublisherSpecificationConfig, topic: str
    ) -> None:
        super().__init__(broker_config, config)
        self._topic = topic

    @property
    def address(self) -> str:
        """Topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the entry under its name."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
