"""Rows to messages.

Behaviour
- At least once: a task ends when every row of it is acknowledged by a broker. Spark repeats a failed task or batch as a whole, and what the
  first attempt had sent stays sent.
- Rows travel as batches, one request for many messages; a row with a delay level travels alone, because brokers do not delay batches.
- Rows with one `shardingKey` go to one queue, those of one partition in their order. The queue is the one that other clients choose.
- Names in `properties` that RocketMQ reserves are left out: a map that came out of a topic has them, they tell of the message's first life.
- An error says which row it was about, counted from 0 in its partition, or between which rows.
"""

import asyncio
import concurrent.futures
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.portal import portal
from ogive.client.producer import Producer
from ogive.errors import MessageIllegal, NoRoute, OgiveError, SendFailed, SendTimeout
from ogive.model import RESERVED_PROPERTIES, Message, MessageQueue
from ogive.spark.options import SinkOptions
from ogive.wire.message import java_hash

log = logging.getLogger(__name__)

SEND_TIMEOUT_S: Final = 30.0
"""The whole budget of one request, retries included. Longer outages end the task; Spark then tries the task again."""


@dataclass
class Sent(WriterCommitMessage):
    """What a task reports: all of its rows are stored."""

    rows: int


@dataclass(frozen=True, slots=True)
class Row:
    """One message, and which row of its partition it was."""

    number: int
    message: Message


class _Sink:
    """What batch and stream sinks share. Pickled to the executors: holds options only."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        producer = _producer(self._options)
        count = 0
        on_its_way: Future[None] | None = None
        try:
            for batch in batches:
                rows = list(form(batch, self._options.topic, count, partition))
                count += len(rows)
                if on_its_way is not None:
                    on_its_way.result()  # one batch at a time, so that a queue keeps the order of rows
                on_its_way = asyncio.run_coroutine_threadsafe(_send(producer, rows, partition), portal().loop)
        finally:  # also of a task that fails: what it still sends must not come between the rows of the next attempt
            if on_its_way is not None:
                concurrent.futures.wait((on_its_way,))
        if on_its_way is not None:
            on_its_way.result()
        return Sent(count)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("rocketmq").mode("append")`"""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        log.info("%d messages are sent", _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log.warning("the write failed; messages of the tasks that had ended, and some of others, stay sent")


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`"""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.info("batch %d: %d messages are sent", batchId, _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        log.warning("batch %d failed; messages of the tasks that had ended, and some of others, stay sent", batchId)


def _total(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Sent))


# --- forming ---------------------------------------------------------------------------------------------------------


def form(batch: pa.RecordBatch, topic: str | None, first: int, partition: int) -> Iterator[Row]:
    """The rows of *batch* as messages; *topic* overrides the column. Raises SendFailed that names the row which cannot be sent."""
    names = batch.schema.names
    nothing: list[Any] = [None] * batch.num_rows

    def column(name: str) -> list[Any]:
        values: list[Any] = batch.column(name).to_pylist() if name in names else nothing
        return values

    topics = [topic] * batch.num_rows if topic is not None else column("topic")
    columns = (column(name) for name in ("body", "tags", "keys", "properties", "shardingKey", "delayTimeLevel"))
    for number, (name, body, tag, keys, properties, sharding_key, delay) in enumerate(zip(topics, *columns, strict=True), first):
        try:
            message = Message(
                _present("topic", name),
                _bytes(body),
                tag=tag,
                keys=_keys(keys),
                properties=_own(properties) if properties else {},
                sharding_key=sharding_key,
                delay_level=_level(delay),
            )
        except (OgiveError, TypeError, ValueError) as exc:
            why = exc.remark if isinstance(exc, MessageIllegal) else exc  # no broker was asked yet
            raise SendFailed(f"row {number} of partition {partition} cannot be sent: {why}") from exc
        yield Row(number, message)


def _present(name: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"its {name} is null")
    return value


def _bytes(body: str | bytes | None) -> bytes:
    return body.encode() if isinstance(body, str) else bytes(_present("body", body))


def _keys(keys: str | list[str | None] | None) -> tuple[str, ...]:
    """As a column of text, where spaces separate keys as they do on the wire, or as one of arrays."""
    if keys is None:
        return ()
    if isinstance(keys, str):
        return tuple(keys.split())
    return tuple(_present("array of keys", key) for key in keys)


_MAX_LEVEL: Final = 0x7FFFFFFF  # Java's brokers read an int; above their last level they take that


def _level(delay: int | None) -> int:
    if delay is not None and not 0 <= delay <= _MAX_LEVEL:
        raise ValueError(f"its delay level {delay} is outside 0 to {_MAX_LEVEL}")
    return delay or 0


def _own(properties: list[tuple[str, str | None]]) -> dict[str, str]:
    return {name: value for name, value in properties if value is not None and name not in RESERVED_PROPERTIES}


# --- sending ---------------------------------------------------------------------------------------------------------


def _producer(options: SinkOptions) -> Producer:
    """This process's producer, used again by every task and batch."""
    return _producer_of(os.getpid(), options.name_servers, options.producer_group, options.max_in_flight)


@functools.cache
def _producer_of(_pid: int, name_servers: tuple[str, ...], group: str, max_in_flight: int) -> Producer:
    async def start() -> Producer:
        producer = Producer(
            config=ProducerConfig(group=group, send_timeout_s=SEND_TIMEOUT_S, max_in_flight=max_in_flight),
            client=ClientConfig(name_server=";".join(name_servers)),
        )
        await producer.start()
        return producer

    return portal().call(start())


async def _send(producer: Producer, rows: Sequence[Row], partition: int) -> None:
    """Returns when all are stored; when some are not, after all have their outcome, raises for the first of them."""
    queues = {topic: await _queues(producer, topic) for topic in {row.message.topic for row in rows}}
    groups: dict[tuple[str, MessageQueue | None], list[Row]] = {}
    alone: list[Row] = []
    for row in rows:
        if row.message.delay_level:
            alone.append(row)
        else:
            queue = _queue_of(row.message, queues[row.message.topic])
            groups.setdefault((row.message.topic, queue), []).append(row)
    work = [_send_group(producer, topic, queue, group, partition) for (topic, queue), group in groups.items()]
    room = asyncio.Semaphore(producer.config.max_in_flight)
    work += [_send_alone(producer, row, partition, room) for row in alone]
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


async def _queues(producer: Producer, topic: str) -> tuple[MessageQueue, ...]:
    """Empty for a topic that its first message will create."""
    try:
        return await producer.client.publish_queues(topic)
    except NoRoute:
        return ()


def _queue_of(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue | None:
    """The queue that every client chooses for the message's sharding key."""
    if message.sharding_key is None or not queues:
        return None
    return queues[abs(java_hash(message.sharding_key)) % len(queues)]


async def _send_group(producer: Producer, topic: str, queue: MessageQueue | None, rows: Sequence[Row], partition: int) -> None:
    try:
        await producer.send_batch(topic, [row.message for row in rows], queue=queue)
    except OgiveError as exc:
        span = f"row {rows[0].number}" if len(rows) == 1 else f"one or more of the rows {rows[0].number} to {rows[-1].number}"
        raise _failure(exc, f"{span} of partition {partition} for topic {topic}") from exc


async def _send_alone(producer: Producer, row: Row, partition: int, room: asyncio.Semaphore) -> None:
    """*room* lets in as many as the producer sends at once: a row that waits in line must not use up the time of its request."""
    try:
        async with room:
            await producer.send(row.message)
    except OgiveError as exc:
        raise _failure(exc, f"row {row.number} of partition {partition} for topic {row.message.topic}") from exc


def _failure(cause: OgiveError, what: str) -> OgiveError:
    kind = SendTimeout if cause.outcome_unknown else SendFailed
    return kind(f"{what}: {cause}")
