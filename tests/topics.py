"""Topics for tests of the Spark bridge: filled over the wire, read by queries that keep what they
saw.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import ogive
from ogive.client import rpc
from ogive.model import MessageExt, MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.message import BatchItem, encode_batch, encode_properties
from tests.peers import RunningBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

T = TypeVar("T")


class Wire:
    """Plain requests to the broker, so that a test says exactly which queue holds what."""

    def __init__(self, broker: RunningBroker) -> None:
        self.name_server = broker.name_server
        self._address = broker.address

    def _run(self, call: Callable[[ConnectionPool], Coroutine[Any, Any, T]]) -> T:
        async def once() -> T:
            pool = ConnectionPool()
            try:
                return await call(pool)
            finally:
                await pool.close()

        return asyncio.run(once())

    def create(self, topic: str, queues: int = 1) -> None:
        config = TopicConfig(name=topic, read_queues=queues, write_queues=queues)
        self._run(lambda pool: rpc.create_topic(pool, self._address, config))

    def delete(self, topic: str) -> None:
        """From the broker only."""
        self._run(lambda pool: rpc.delete_topic(pool, self._address, topic))

    def delete_in_name_server(self, topic: str) -> None:
        self._run(lambda pool: rpc.delete_topic_in_name_server(pool, self.name_server, topic))

    def send(
        self,
        topic: str,
        queue_id: int,
        bodies: Sequence[bytes],
        sys_flag: int = 0,
        **properties: str,
    ) -> None:
        """Each body as a message with *properties*, where {i} stands for its position.

        Returns when all can be read.
        """

        def header(text: str, *, batch: bool) -> SendMessageRequestV2:
            return SendMessageRequestV2(
                producer_group="tests",
                topic=topic,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_timestamp=time.time_ns() // 1_000_000,
                properties=text,
                batch=batch,
            )

        texts = [
            {name: value.format(i=i) for name, value in properties.items()}
            for i in range(len(bodies))
        ]

        async def go(pool: ConnectionPool) -> None:
            if len(bodies) == 1:
                text = encode_properties(texts[0]).decode()
                sent = await rpc.send_message(
                    pool,
                    self._address,
                    header(text, batch=False),
                    bodies[0],
                    broker_name="broker-a",
                )
                await self._shown(pool, sent.queue, sent.queue_offset + 1)
                return
            for at in range(0, len(bodies), 500):
                rows = zip(bodies[at : at + 500], texts[at : at + 500], strict=True)
                batch = encode_batch(
                    BatchItem(0, body, encode_properties(text)) for body, text in rows
                )
                wait = header("WAIT\x01true\x02", batch=True)
                sent = await rpc.send_message(
                    pool, self._address, wait, batch, broker_name="broker-a", batch=True
                )
                await self._shown(pool, sent.queue, sent.queue_offset + len(bodies[at : at + 500]))

        self._run(go)

    async def _shown(self, pool: ConnectionPool, queue: MessageQueue, end: int) -> None:
        """Apache's broker acknowledges before it dispatches."""
        async with asyncio.timeout(60):
            while await rpc.max_offset(pool, self._address, queue) < end:
                await asyncio.sleep(0.01)

    def messages(self, queue: MessageQueue, count: int) -> Sequence[MessageExt]:
        """The first ones, as any client sees them."""
        return self._run(
            lambda pool: rpc.read_messages(pool, self._address, queue, 0, count)
        ).messages

    def count(self, topic: str) -> int:
        """Messages in all queues."""
        return sum(
            span.max_offset
            for span in self._run(lambda pool: rpc.topic_stats(pool, self._address, topic)).values()
        )

    def progress(self, group: str, queue: MessageQueue) -> int | None:
        return self._run(
            lambda pool: rpc.query_consumer_offset(
                pool, self._address, group, queue, zero_if_young=False
            )
        )

    def broker_name(self, topic: str) -> str:
        """Of the only broker."""
        return next(
            iter(self._run(lambda pool: rpc.topic_stats(pool, self._address, topic)))
        ).broker_name


def wait_until_shown(name_server: str, topic: str, count: int) -> None:
    """Until *count* messages of *topic* can be read: Apache's broker acknowledges before it
    dispatches.
    """
    with ogive.Admin(name_server) as admin:
        assert eventually(
            lambda: sum(row.max_offset for row in admin.offsets(topic)) >= count or None
        )


class Stream:
    """A stream over one topic that keeps what its batches hold."""

    def __init__(
        self, spark: "SparkSession", name_server: str, topic: str, checkpoint: Path
    ) -> None:
        self._spark = spark
        self._options = {"nameServer": name_server, "subscribe": topic}
        self._checkpoint = checkpoint
        self.batches: list[list[tuple[int, int]]] = []

    def start(self, options: Mapping[str, str], *, available_now: bool = True) -> "StreamingQuery":
        """With *available_now* the query reads what is there, then ends."""
        stream = (
            self._spark.readStream.format("rocketmq").options(**{**self._options, **options}).load()
        )
        writer = stream.writeStream.foreachBatch(self._keep).option(
            "checkpointLocation", str(self._checkpoint)
        )
        return (
            writer.trigger(availableNow=True)
            if available_now
            else writer.trigger(processingTime="0 seconds")
        ).start()

    @property
    def offsets(self) -> list[int]:
        """Of all batches so far, in the order in which they came."""
        return [offset for batch in list(self.batches) for _, offset in batch]

    def run(self, **options: str) -> list[list[tuple[int, int]]]:
        """Queue and offset of each message, for each batch of this run."""
        self.batches = []
        query = self.start(options)
        assert query.awaitTermination(120)
        return self.batches

    def _keep(self, frame: "DataFrame", _: int) -> None:
        self.batches.append(
            sorted(
                (row.queueId, row.queueOffset)
                for row in frame.select("queueId", "queueOffset").collect()
            )
        )


def eventually(look: Callable[[], T | None], timeout_s: float = 60.0) -> T | None:
    """What *look* finds; the stream's process may still be telling the broker when the query has
    ended.
    """
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % i for i in range(start, start + count)]
