"""ogive's clients of one broker object, which share their connections."""

import asyncio
import logging
from dataclasses import replace

import ogive
from ogive.aio import Admin, Producer, PushConsumer
from ogive.client.listener import AnyListener

log = logging.getLogger(__name__)


class Connection:
    """A producer, and from the first subscription on a consumer."""

    def __init__(
        self,
        client: ogive.ClientConfig,
        producer: ogive.ProducerConfig | None,
        consumer: ogive.ConsumerConfig | None,
        graceful_timeout: float | None,
    ) -> None:
        self.producer: Producer = Producer(client=client, config=producer)
        self._config = replace(
            consumer or ogive.ConsumerConfig(), await_termination_s=graceful_timeout or 0.0
        )
        self._consumer: PushConsumer | None = None
        self._watch: asyncio.Task[None] | None = None
        # one subscription at a time: the first makes the consumer
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Connect to a name server. Raises NoNameServer if none answers."""
        await self.producer.start()
        try:
            await self.check()
        except BaseException:
            await self.producer.close()
            raise

    async def check(self) -> None:
        """Raise OgiveError unless a name server answers and the consumer works."""
        if self._watch is not None and self._watch.done():
            self._watch.result()
        async with Admin(client=self.producer.client) as admin:
            await admin.cluster_info()

    async def subscribe(self, listener: AnyListener) -> None:
        """Call *listener* with messages from now on. Raises OgiveError."""
        async with self._changing:
            if self._consumer is not None:
                await self._consumer.subscribe(listener)
                return
            consumer = PushConsumer(listener, client=self.producer.client, config=self._config)
            await consumer.start()
            self._consumer = consumer
            self._watch = asyncio.create_task(consumer.wait(), name="watch ogive's consumer")
            self._watch.add_done_callback(_report)

    async def unsubscribe(self, listener: AnyListener) -> None:
        """Wait for the running calls of *listener*, and make no more. A listener may call this."""
        if self._consumer is not None:
            await self._consumer.unsubscribe(listener)

    async def end_calls(self) -> None:
        """Leave all groups: wait for the running calls, and make no more."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def close(self) -> None:
        """Leave all groups, wait for messages in flight, and disconnect."""
        try:
            await self.end_calls()
        finally:
            await self.producer.close()


def _report(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and (error := watch.exception()) is not None:
        log.critical("no message is received any more: %s", error, exc_info=error)
