"""Spark's side of writing: batch and stream sinks, in three kinds of delivery.

Behaviour
- A task ends when every row of it is acknowledged by a broker. Spark repeats a failed task or batch
  as a whole.
- A row has the same unique key in every attempt that has the same rows in the same order.
- `atLeastOnce`: rows that a failed attempt had sent stay, and are sent again; readers can recognise
  them by the key.
- `idempotent`: rows that an earlier attempt has stored are not sent again, in whichever order they
  were; see dedup.py.
- `transactional`: rows are half messages until the batch is committed; rows of a failed attempt are
  never delivered. The keys show which rows were delivered before a crash during the commit.
- After the first write the addresses are known to be right: then every process, also a new one,
  waits if no name server answers.
- An error names its row, counted from 0 in its partition, or the rows before and after it.
"""

import asyncio
import concurrent.futures
import functools
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ogive.client.portal import portal
from ogive.errors import IllegalStateError, InvalidOption, MessageIllegal, OgiveError
from ogive.spark.cluster import Cluster, DelayLimits, cluster
from ogive.spark.compat import DataSourceStreamArrowWriter
from ogive.spark.dedup import SEEN, BatchLog, Unsent, ends, stored_keys
from ogive.spark.fsync import sync_plan
from ogive.spark.interpreter import warn_if_zipped
from ogive.spark.offsets import Positions
from ogive.spark.options import SinkOptions
from ogive.spark.patience import DOUBTFUL, USUAL, Patience
from ogive.spark.row_sender import BATCH_BYTES, Half, Recall, Sending, end_transactions
from ogive.spark.rows import InvalidRow, Keys, Row, dead_letters, encode, form, refused_row
from ogive.text import pluralize
from ogive.wire.codes import Decision

log = logging.getLogger(__name__)

# batches in flight; Spark puts 10,000 rows into each
_ARROW_BATCHES: Final = 4


@dataclass
class Sent(WriterCommitMessage):
    """Report of a task: all of its rows are stored, those of a transaction as *halves*."""

    rows: int
    topics: tuple[str, ...] = ()
    query_id: str | None = None
    halves: tuple[Half, ...] = ()
    invalid: int = 0
    """Rows that no broker would accept; with invalidRows=deadLetter they are in *rows* too."""
    skipped: bool = False
    """True if the batch was finished before."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of a task's attempt."""

    partition: int = 0
    number: int = 0
    # set for a stream, like the next fields
    query_id: str | None = None
    run_id: str = ""
    batch_id: int = 0

    @classmethod
    def current(cls) -> "Attempt":
        context = TaskContext.get()
        if context is None:
            return cls()
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            context.partitionId(),
            context.attemptNumber(),
            query_id,
            context.getLocalProperty("spark.jobGroup.id") or "",
            int(batch_id) if batch_id is not None else 0,
        )


class _Memory:
    """Knowledge of a task about earlier attempts at its rows.

    *begin* is the first position of the write's messages in a topic; *patience* says whether the
    broker of a topic without a route may be away.
    """

    def __init__(
        self,
        cluster: Cluster,
        begin: Callable[[str], Positions],
        *,
        repeated: bool,
        patience: Patience,
    ) -> None:
        self._cluster = cluster
        self._begin = begin
        self._repeated = repeated
        self._patience = patience
        self._begins: dict[str, Positions] = {}
        self._unsent = Unsent()
        # of the task, and of a row that is replaced while the task takes the next ones
        self._one_at_a_time = threading.Lock()

    def unsent(self, rows: Sequence[Row]) -> list[Row]:
        with self._one_at_a_time:
            return self._unsent_of(rows)

    def _unsent_of(self, rows: Sequence[Row]) -> list[Row]:
        for topic in {row.topic for row in rows} - self._begins.keys():
            self._begins[topic] = self._begin(topic)
            if self._repeated:
                self._unsent.add(
                    stored_keys(self._cluster, topic, self._begins[topic], self._patience)
                )
        return self._unsent.of(rows)

    async def recall(self) -> set[str]:
        return await _recall(self._cluster, self._begins)


async def _recall(cluster: Cluster, begins: Mapping[str, Positions]) -> set[str]:
    """Return the unique keys of all messages stored since *begins*. Reading blocks, so it has a
    thread.
    """
    # while it reads, the task may add one
    topics = dict(begins)

    def look() -> set[str]:
        return set[str]().union(
            *(stored_keys(cluster, topic, since, DOUBTFUL) for topic, since in topics.items())
        )

    return await asyncio.to_thread(look)


class _Sink:
    """Base of batch and stream sinks. Pickled to the executors: holds options only."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    @property
    def _cluster(self) -> Cluster:
        return cluster(self._options.access)

    def _send(
        self,
        batches: Iterator[pa.RecordBatch],
        attempt: Attempt,
        origin: Sequence[object],
        memory: _Memory | None,
    ) -> Sent:
        warn_if_zipped()
        options, loop = self._options, portal().loop
        replaced: list[InvalidRow] = []

        async def replace(row: Row, why: MessageIllegal) -> Sequence[Row]:
            topic = options.access.namespace.strip(row.topic)
            invalid_row = refused_row(row, topic, str(why))
            replaced.append(invalid_row)
            log.warning("%s", _told([invalid_row], attempt.partition, options.dead_letter_topic))
            if options.dead_letter_topic is None:
                return ()
            letters = dead_letters(
                [invalid_row], options.dead_letter_topic, attempt.partition, keys
            )
            topics.add(options.dead_letter_topic)
            return letters if memory is None else await asyncio.to_thread(memory.unsent, letters)

        sending = Sending(
            self._cluster,
            options.producer_group,
            attempt.partition,
            max_in_flight=options.max_in_flight,
            recall=memory.recall
            if memory is not None and options.delivery == "idempotent"
            else None,
            immunity_s=options.transaction_timeout_s
            if options.delivery == "transactional"
            else None,
            replace=None if options.invalid_rows == "fail" else replace,
        )
        keys = Keys(
            *origin, partition=attempt.partition, of_content=options.delivery != "atLeastOnce"
        )

        @functools.cache
        def limits(topic: str) -> DelayLimits:
            return self._cluster.delay_limits(options.access.namespace.wrap(topic))

        count = 0
        topics = set[str]()
        halves = list[Half]()
        invalid = 0
        on_their_way: deque[Future[list[Half]]] = deque()
        try:
            for batch in batches:
                if len(on_their_way) == _ARROW_BATCHES:
                    halves += on_their_way.popleft().result()
                encoded = (
                    encode(batch, options.topic, count, keys, BATCH_BYTES)
                    if memory is None
                    else None
                )
                if encoded is not None:
                    topic, parts = encoded
                    topic = options.access.namespace.wrap(topic)
                    topics.add(topic)
                    sent = sending.send_encoded(topic, parts)
                else:
                    refused = None if options.invalid_rows == "fail" else list[InvalidRow]()
                    rows = form(
                        batch, options.topic, count, attempt.partition, keys, refused, limits
                    )
                    if options.access.namespace:
                        rows = [
                            row._replace(topic=options.access.namespace.wrap(row.topic))
                            for row in rows
                        ]
                    if refused:
                        log.warning(
                            "%s", _told(refused, attempt.partition, options.dead_letter_topic)
                        )
                        invalid += len(refused)
                        if options.dead_letter_topic is not None:
                            rows += dead_letters(
                                refused, options.dead_letter_topic, attempt.partition, keys
                            )
                    topics |= {row.topic for row in rows}
                    sent = sending.send(rows if memory is None else memory.unsent(rows))
                count += batch.num_rows
                on_their_way.append(asyncio.run_coroutine_threadsafe(sent, loop))
        finally:
            # even if the task fails: what it still sends must not mix with the rows of the next
            # attempt
            concurrent.futures.wait(on_their_way)
        for ended in on_their_way:
            halves += ended.result()
        invalid += len(replaced)
        sent_rows = count if options.dead_letter_topic is not None else count - invalid
        return Sent(sent_rows, tuple(sorted(topics)), attempt.query_id, tuple(halves), invalid)

    def _end(
        self,
        messages: Sequence[WriterCommitMessage | None],
        decision: Decision,
        recall: Recall | None = None,
    ) -> None:
        """End the transactions of all tasks that are known."""
        options = self._options
        halves = [
            half for message in messages if isinstance(message, Sent) for half in message.halves
        ]
        if halves:
            ending = end_transactions(
                self._cluster,
                options.producer_group,
                halves,
                decision,
                max_in_flight=options.max_in_flight,
                recall=recall,
            )
            portal().call(ending)

    def _report_invalid(self, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        count = sum(message.invalid for message in messages if isinstance(message, Sent))
        if count:
            topic, verb = self._options.dead_letter_topic, "was" if count == 1 else "were"
            log.warning(
                "%s: %s that cannot be sent %s %s",
                what,
                pluralize(count, "row"),
                verb,
                f"sent to {topic}" if topic else "dropped",
            )

    def _roll_back(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        try:
            self._end(messages, Decision.ROLLBACK)
        except OgiveError as exc:
            # the brokers discard what is never ended
            log.warning(
                "could not roll back the half messages of a failed write, the brokers will: %s", exc
            )


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("rocketmq").mode("append")`"""

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self._write_id = uuid.uuid4().hex
        self._begins: dict[str, Positions] = {}
        if options.delivery != "atLeastOnce":
            if options.topic is None:
                raise InvalidOption(
                    f"delivery={options.delivery} of a batch needs the option topic: a column does "
                    "not say it before the rows"
                )
            for topic in filter(None, (options.topic, options.dead_letter_topic)):
                self._begins[topic] = ends(self._cluster, topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        attempt, memory = Attempt.current(), None
        if self._begins:
            memory = _Memory(
                self._cluster,
                self._begins.__getitem__,
                repeated=attempt.number > 0,
                patience=DOUBTFUL,
            )
        return self._send(iterator, attempt, (self._write_id,), memory)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._cluster.settle()
        self._end(messages, Decision.COMMIT, partial(_recall, self._cluster, self._begins))
        log.info("%d messages are sent", _total(messages))
        self._report_invalid(messages, "the write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._roll_back(messages)
        log.warning("the write failed; %s", _LEFT[self._options.delivery])


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`.

    Spark creates one for each batch, on the driver's machine, after it has written the offsets of
    the batch.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        if options.checkpoint is not None and options.delivery != "atLeastOnce":
            sync_plan(options.checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        attempt = Attempt.current()
        if attempt.query_id is None:
            raise IllegalStateError(
                "Spark does not say which query writes: its local property sql.streaming.queryId "
                "is missing"
            )
        origin = attempt.query_id, attempt.batch_id
        if attempt.batch_id > 0:
            self._cluster.settle()
        if self._options.delivery == "atLeastOnce":
            return self._send(iterator, attempt, origin, None)
        batches = BatchLog(self._cluster, attempt.query_id)
        repeated = (
            SEEN.may_repeat(attempt.query_id, attempt.run_id, attempt.batch_id)
            or attempt.number > 0
        )
        if repeated and (following := batches.next_batch()) > attempt.batch_id:
            # Spark repeats the last batch only
            if following > attempt.batch_id + 1:
                raise OgiveError(
                    f"batch {following - 1} of query {attempt.query_id} is written already, and "
                    f"this driver is at batch {attempt.batch_id}: its checkpoint was set back, or "
                    "is an older copy. Use the newest checkpoint, or a new one"
                )
            log.warning(
                "skipped batch %d of query %s, which Spark repeats: it is already written",
                attempt.batch_id,
                attempt.query_id,
            )
            for _ in iterator:
                pass
            return Sent(0, (), attempt.query_id, skipped=True)
        first = (
            attempt.batch_id == 0 and attempt.number == 0 and batches.is_first_run(attempt.run_id)
        )
        # the first may write to a topic that its messages make
        patience = DOUBTFUL if repeated and not first else USUAL
        begin = partial(
            batches.begin, batch_id=attempt.batch_id, repeated=repeated, patience=patience
        )
        memory = _Memory(self._cluster, begin, repeated=repeated, patience=patience)
        return self._send(iterator, attempt, origin, memory)

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        sent = [message for message in messages if isinstance(message, Sent)]
        if sent:
            self._cluster.settle()
        query_id = next((message.query_id for message in sent), None)
        if self._options.delivery != "atLeastOnce" and query_id is not None:
            batches = BatchLog(self._cluster, query_id)
            if batches.next_batch() > batchId and not any(one.skipped for one in sent):
                raise OgiveError(
                    f"another driver has written batch {batchId} of query {query_id} meanwhile: "
                    "two run with copies of one checkpoint. Rows may be missing or stored twice "
                    "from this batch on. End one of them; the other goes on with the next start"
                )
            topics = tuple(sorted({topic for message in sent for topic in message.topics}))
            if self._options.delivery == "transactional":
                begins = {topic: batches.begin(topic) for topic in topics}
                self._end(messages, Decision.COMMIT, partial(_recall, self._cluster, begins))
            batches.finish(batchId, topics)
        log.info("batch %d: %d messages are sent", batchId, _total(messages))
        self._report_invalid(messages, f"batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._roll_back(messages)
        log.warning("batch %d failed; %s", batchId, _LEFT[self._options.delivery])


_LEFT: Final = {
    "atLeastOnce": "messages of the tasks that had ended, and some of others, stay sent",
    "idempotent": "what is sent stays sent, and is not sent again when the batch is repeated",
    "transactional": "messages that were not committed yet are never delivered",
}


def _told(rows: Sequence[InvalidRow], partition: int, topic: str | None) -> str:
    first = rows[0]
    others = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
    where = f"goes to {topic}" if topic else "is dropped"
    return f"row {first.number} of partition {partition}{others} {where}: {first.why}"


def _total(messages: list[WriterCommitMessage | None]) -> int:
    return sum(message.rows for message in messages if isinstance(message, Sent))
