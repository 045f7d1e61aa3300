"""Registration of subscribers and publishers, by brokers and routers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from faststream import AckPolicy
from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import IncorrectState, SetupError

import ogive
from ogive_faststream.connection import Connection
from ogive_faststream.options import (
    ListenerOptions,
    SendOptions,
)
from ogive_faststream.publisher import Publisher, RocketMQPublisherSpecification
from ogive_faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberSpecification,
    SubscriberConfig,
)


@dataclass(kw_only=True)
class RocketMQConfig(BrokerConfig):
    """Settings of a broker or router, and the broker's connection."""

    open_connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        """Connection of the broker. Raises IncorrectState before the start."""
        if self.open_connection is None:
            raise IncorrectState("the broker is not connected: `await broker.connect()` first")
        return self.open_connection


class RocketMQRegistrator(Registrator[Any, RocketMQConfig]):
    """What brokers and routers have in common."""

    def subscriber(
        self,
        topic: str,
        *,
        group: str,
        max_workers: int = 1,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Unpack[ListenerOptions],
    ) -> RocketMQSubscriber:
        """Subscribe a handler to *topic*, as a member of the consumer group *group*.

        Up to *max_workers* messages are handled at a time; with ``orderly=True`` one of each
        queue. The other *options* are those of ``ogive.listener``: tags, sql, orderly, broadcast,
        batch, consume_timeout_s, max_retries, start, suspend_s and mode. Raises InvalidOption.
        """
        calls: CallsCollection[Any] = CallsCollection()
        config: Any = self.config
        subscriber = RocketMQSubscriber(
            ogive.listener(topic, group=group, threads=max_workers, **options),
            SubscriberConfig(_outer_config=config, _ack_policy=ack_policy, no_reply=no_reply),
            RocketMQSubscriberSpecification(
                config,
                SubscriberSpecificationConfig(
                    title_=title, description_=description, include_in_schema=include_in_schema
                ),
                calls,
                topic,
            ),
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )
        return subscriber

    def publisher(
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Unpack[SendOptions],
    ) -> Publisher:
        """Return a publisher of *topic*: an object to publish with, and a decorator of handlers
        whose results it publishes.

        All of its messages have *headers* and *options* (tag, keys, sharding_key, delay_level,
        deliver_at, delay_s, priority), unless a message has its own.
        """
        config: Any = self.config
        publisher = Publisher(
            PublisherUsecaseConfig(_outer_config=config),
            RocketMQPublisherSpecification(
                config,
                PublisherSpecificationConfig(
                    title_=title,
                    description_=description,
                    schema_=schema,
                    include_in_schema=include_in_schema,
                ),
                topic,
            ),
            headers=headers,
            reply_to=reply_to,
            options=options,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(self, router: Any, **options: Any) -> None:
        """Add the subscribers and publishers of *router*, with a ``prefix`` for their topics.

        Raises SetupError for a router of another broker.
        """
        if not isinstance(router, RocketMQRegistrator):
            raise SetupError(f"{type(router).__name__} is not a RocketMQRouter")
        super().include_router(router, **options)


class RocketMQPublisher(ArgsContainer):
    """Arguments of ``RocketMQRouter.publisher``, for a RocketMQRoute."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class RocketMQRoute(SubscriberRoute):
    """A handler and the arguments of ``RocketMQRouter.subscriber``."""

    def __init__(
        self,
        call: Callable[..., Any],
        topic: str,
        *,
        publishers: Iterable[RocketMQPublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, topic, publishers=publishers, **options)


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[Any, RocketMQConfig]):
    """Subscribers and publishers that a broker includes."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketMQRoute] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=handlers,
            routers=routers,
            config=RocketMQConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
        )
