"""The broker object of a FastStream application."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

from fast_depends import dependency_provider
from faststream import AckPolicy, ContextRepo
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.security import BaseSecurity, SASLPlaintext
from faststream.specification.schema import BrokerSpec

import ogive
from ogive_faststream.connection import Connection
from ogive_faststream.message import RocketMQMessage
from ogive_faststream.options import PublishOptions
from ogive_faststream.publishing import RocketMQProducer, RocketMQPublishCommand, command
from ogive_faststream.router import RocketMQConfig, RocketMQRegistrator


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Any, Connection, RocketMQConfig]):
    """Broker for ``FastStream(broker)``, or by itself: ``async with RocketMQBroker() as broker``.

    *name_server* and *security* (BaseSecurity with TLS, SASLPlaintext with a user's access key and
    secret key) describe the cluster, or *client* does with more settings. *producer* and *consumer*
    are ogive's settings of sending and receiving. A stop waits *graceful_timeout* seconds for
    running handlers; the messages of those that take longer are delivered again.
    """

    def __init__(
        self,
        name_server: str = "127.0.0.1:9876",
        *,
        client: ogive.ClientConfig | None = None,
        producer: ogive.ProducerConfig | None = None,
        consumer: ogive.ConsumerConfig | None = None,
        security: BaseSecurity | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        id_generator: Any = gen_cor_id,
        specification_url: str | Iterable[str] | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
    ) -> None:
        self._connection: Connection | None = None
        self._client = client_config(name_server, client, security)
        self._sender = RocketMQProducer(parser, decoder)
        self._settings = (producer, consumer, graceful_timeout)
        urls = [specification_url] if isinstance(specification_url, str) else specification_url
        super().__init__(
            routers=routers,
            config=RocketMQConfig(
                producer=self._sender,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=LogFormat
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
            ),
            specification=BrokerSpec(
                url=list(urls or addresses(self._client.name_server)),
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # --- life -------------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        connection = Connection(self._client, *self._settings)
        await connection.start()
        self._use(connection)
        return connection

    def _use(self, connection: Connection | None) -> None:
        """Send and receive through *connection* from now on."""
        config = self.config.broker_config
        config.open_connection = connection
        self._sender.connect(
            connection.producer if connection is not None else None,
            config.fd_config._serializer,
            config.broker_codec,
        )

    async def start(self) -> None:
        """Connect, and call handlers from now on.

        Raises NoNameServer if no name server answers, and the BrokerError of a broker that refuses
        a group.
        """
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Wait for running handlers and messages in flight, and disconnect."""
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                # all groups at the same time
                await connection.end_calls()
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            if connection is not None:
                await connection.close()
            self._use(None)

    async def ping(self, timeout: float | None = None) -> bool:
        """Return True if a name server answers and the subscribers work."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout):
                await self._connection.check()
        except (ogive.OgiveError, TimeoutError):
            return False
        return True

    # --- publishing -------------------------------------------------------------------------------

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        reply_to: str = "",
        **options: Unpack[PublishOptions],
    ) -> ogive.SendResult:
        """Publish a message to *topic*, and return when a broker has stored it.

        What the handler returns is published to the topic *reply_to*. The other options are
        headers, correlation_id, timeout, and those of ``ogive.Message``: tag, keys, sharding_key,
        delay_level, deliver_at, delay_s, priority. Raises OgiveError, as
        ``ogive.aio.Producer.send`` does.
        """
        cmd = self._command(message, topic=topic, given=options, reply_to=reply_to)
        result: ogive.SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(
        self, *messages: Any, topic: str = "", **options: Unpack[PublishOptions]
    ) -> list[ogive.SendResult]:
        """Publish several messages to *topic* in few requests, and return a result for each.

        Raises the first error when all have their outcome. Messages of a batch have no delay.
        """
        cmd = self._command(*messages, topic=topic, given=options)
        results: list[ogive.SendResult] = await self._basic_publish_batch(
            cmd, producer=self.config.producer
        )
        return results

    async def request(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> RocketMQMessage:
        """Publish a message to *topic*, and return what its handler returns.

        Raises OgiveError, such as ReplyTimeout.
        """
        cmd = self._command(message, topic=topic, given=options, request=True)
        reply: RocketMQMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    def _command(self, *bodies: Any, **rest: Any) -> RocketMQPublishCommand:
        return command(*bodies, id_generator=self.config.id_generator, **rest)


def addresses(name_server: str) -> list[str]:
    """Return the URLs of a list of name servers, for the AsyncAPI document."""
    return [one if "://" in one else f"rocketmq://{one}" for one in name_server.split(";")]


def client_config(
    name_server: str, client: ogive.ClientConfig | None, security: BaseSecurity | None
) -> ogive.ClientConfig:
    """Return the settings of the cluster. Raises InvalidOption for a security that RocketMQ
    lacks.
    """
    if client is not None:
        if security is not None:
            raise ogive.InvalidOption("client has settings of security: give only one of the two")
        return client
    if security is None:
        return ogive.ClientConfig(name_server=name_server)
    if type(security) not in (BaseSecurity, SASLPlaintext):
        raise ogive.InvalidOption(
            f"security is {type(security).__name__}: RocketMQ has TLS (BaseSecurity), and users "
            "(SASLPlaintext with the access key and the secret key)"
        )
    keys = None
    if isinstance(security, SASLPlaintext):
        keys = ogive.Credentials(access_key=security.username, secret_key=security.password)
    tls = security.ssl_context or security.use_ssl
    return ogive.ClientConfig(name_server=name_server, ssl=tls, credentials=keys)


class LogFormat(DefaultLoggerStorage):
    """Logger of a broker, whose lines have the topic and the group."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing: the columns have no fixed width."""

    def get_logger(self, *, context: ContextRepo) -> Any:
        """Return the logger, and make it at the first call."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=32,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)-32s - "
                "%(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
