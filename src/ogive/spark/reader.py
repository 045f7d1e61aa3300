"""Batch and stream readers.

Behaviour
- A batch reads what is there when its partitions are planned; Spark plans once for each load().
- A stream's truth is Spark's checkpoint. A consumer group only gets a copy of it (see progress.py), and may say where to start.
- Queues are packed into few partitions, because each Python task costs 20 to 28 ms.
- Spark makes readers in several processes and pickles them: they hold options and schema; connections live in rpc.py.

Differs from Spark's Kafka source
- One trigger reads a bounded number of messages by default.
- A new queue is read from its first message, also when the stream started with latest.
- A stream that starts with latest stores that position in its consumer group, if it has one, and starts there again when its first batch
  failed: Spark asks a Python source for its initial offset a second time, and later messages would move it.
"""

import logging
import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ogive.errors import DataLoss, InvalidOption, OgiveError
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.spark.decode import RecordDecoder
from ogive.spark.offsets import Positions, Spans, fingerprint, from_offset, resolve, to_offset
from ogive.spark.options import SourceOptions
from ogive.spark.progress import FLUSH_S, Progress
from ogive.spark.ranges import QueueRange, admit, pack
from ogive.spark.rpc import SETTLE_S, Cluster, cluster, shrunk
from ogive.spark.schema import arrow_schema

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 2 * 1024 * 1024
"""Stored bytes that become one Arrow batch: 2,000 rows of 1 KiB, 8,000 of 100 B, where both Arrow and the JVM work best."""

_SHORTEST_IDLE_S: Final = 0.01
_LONGEST_IDLE_S: Final = 0.25


class Ranges(InputPartition):
    """What one task reads."""

    def __init__(self, value: tuple[QueueRange, ...]) -> None:
        super().__init__(value)


class _Reading:
    """What batch and stream readers share: planning on the driver, reading on executors."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @property
    def _cluster(self) -> Cluster:
        return cluster(self._options.name_servers)

    def _plan(self, start: Positions, end: Positions) -> list[InputPartition]:
        ranges = (QueueRange(queue, start[queue], end[queue]) for queue in end)
        groups = pack(ranges, self._options.max_partitions, preserve_order=self._options.preserve_order)
        return [Ranges(tuple(group)) for group in groups]

    def _committed(self, spans: Spans) -> dict[MessageQueue, int]:
        group = self._options.consumer_group
        return {} if group is None else self._cluster.committed(group, spans)

    def _lost(self, loss: DataLoss) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def _read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        ranges: tuple[QueueRange, ...] = partition.value or ()  # Spark makes a partition of None where a plan is empty
        decoder = RecordDecoder(arrow_schema(self._schema), self._options.tags)
        answers = self._cluster.read(
            ranges,
            group=self._options.consumer_group or TOOLS_GROUP,
            subscription=self._options.subscription,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        for queue, records in _joined(answers):
            batch = decoder.decode(records, queue)
            if batch.num_rows:
                yield batch


def _joined(answers: Iterator[tuple[MessageQueue, bytes]]) -> Iterator[tuple[MessageQueue, bytes]]:
    """Answers of one queue joined up to BATCH_BYTES: Apache's brokers give 32 messages at a time."""
    parts: list[bytes] = []
    size = 0
    current: MessageQueue | None = None
    for queue, records in answers:
        if current is not None and (queue != current or size + len(records) > BATCH_BYTES):
            yield current, parts[0] if len(parts) == 1 else b"".join(parts)
            parts, size = [], 0
        current = queue
        parts.append(records)
        size += len(records)
    if current is not None:
        yield current, b"".join(parts)


class BatchReader(_Reading, DataSourceReader):
    """A topic as a table."""

    def partitions(self) -> list[InputPartition]:
        options = self._options
        spans = self._cluster.spans(options.topics)
        committed = self._committed(spans) if options.starting_offsets == "group" else {}
        start = resolve("startingOffsets", options.starting_offsets or "earliest", spans, committed)
        end = resolve("endingOffsets", options.ending_offsets or "latest", spans, {})
        for queue in sorted(spans):
            self._check(queue, start[queue], end[queue], spans[queue].max_offset)
        return self._plan(start, end)

    def _check(self, queue: MessageQueue, start: int, end: int, queue_end: int) -> None:
        """A range that is empty because something is wrong must not pass for one that is read."""
        if start > queue_end:  # only a group's offset can be: JSON is checked against the queues
            self._lost(shrunk(queue, queue_end, start))
        elif start > end and isinstance(self._options.starting_offsets, dict):
            raise InvalidOption(f"startingOffsets says {start} for queue {queue}, behind endingOffsets, which says {end}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A topic as a stream. Spark calls everything but read() in one process that lives as long as the query."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        if options.ending_offsets is not None:
            raise InvalidOption("endingOffsets is for batches; a stream ends when it is stopped, or with trigger(availableNow=True)")
        self._owner = fingerprint(options.topics, options.tags)
        self._initial: dict[str, Any] | None = None
        self._target: Positions | None = None  # where trigger(availableNow=True) ends
        self._first: Positions = {}
        self._latest: Positions = {}
        self._looked_at = 0.0
        self._idle_s = 0.0
        self._progress: Progress | None = None

    # --- on the driver -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Asked twice for a new query: the second answer must be the first, or the messages between them are lost."""
        if self._initial is None:
            self._initial = to_offset(self._first_positions(), self._owner)
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look()[0]

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """*start* is durable in the checkpoint: the only moment to tell the consumer group of a query's last batch."""
        begin = from_offset(start, self._owner)
        self._store(begin)
        end = self._wait_for_news(begin) if self._target is None else self._up_to_target(begin, self._target)
        known = {queue: self._first.get(queue, 0) for queue in end} | begin
        return to_offset(admit(known, end, _max_rows(limit)), self._owner)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For the lag that Spark shows in a query's progress."""
        return to_offset(self._latest, self._owner) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, finish = from_offset(start, self._owner), from_offset(end, self._owner)
        if finish.keys() - begin.keys():
            spans = self._cluster.spans(self._options.topics)
            begin = {queue: spans[queue].min_offset if queue in spans else 0 for queue in finish} | begin
        return self._plan(begin, finish)

    def commit(self, end: dict[str, Any]) -> None:
        self._store(from_offset(end, self._owner))

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.flush()

    def _first_positions(self) -> Positions:
        bound = self._options.starting_offsets or "latest"
        spans = self._cluster.spans(self._options.topics)
        if bound == "latest":
            positions = {**resolve("startingOffsets", bound, spans, {}), **self._committed(spans)}
            self._store_now(positions)
            return positions
        return resolve("startingOffsets", bound, spans, self._committed(spans) if bound == "group" else {})

    def _wait_for_news(self, begin: Positions) -> Positions:
        """Where the queues end. Spark asks 75 times a second while nothing comes: pause longer and longer, up to _LONGEST_IDLE_S."""
        time.sleep(max(0.0, self._looked_at + self._idle_s - time.monotonic()))
        end, shorter = self._look(begin)
        if shorter:
            end = self._settled(begin)
        news = end != begin
        self._idle_s = 0.0 if news else min(max(2 * self._idle_s, _SHORTEST_IDLE_S), _LONGEST_IDLE_S)
        return end

    def _up_to_target(self, begin: Positions, target: Positions) -> Positions:
        """The target, except where *begin* is past it: because the queue grew in between, or because it lost messages."""
        past = [queue for queue, position in begin.items() if target.get(queue, position) < position]
        if past:
            now = self._settled(begin)
            target = self._target = {**target, **{queue: min(begin[queue], now[queue]) for queue in past}}
        return {**begin, **target}

    def _look(self, begin: Positions | None = None) -> tuple[Positions, list[QueueRange]]:
        """Where the queues end, and what of *begin* lies behind that. A queue that is gone stays where it was."""
        spans = self._cluster.spans(self._options.topics)
        self._looked_at = time.monotonic()
        self._first = {queue: span.min_offset for queue, span in spans.items()}
        self._latest = {queue: span.max_offset for queue, span in spans.items()}
        shorter = [
            QueueRange(queue, self._latest[queue], position)
            for queue, position in (begin or {}).items()
            if self._latest.get(queue, position) < position
        ]
        return {**(begin or {}), **self._latest}, shorter

    def _settled(self, begin: Positions) -> Positions:
        """A queue is shorter than what was read of it: a broker that starts shows its queues bit by bit, so look again for a while."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            end, shorter = self._look(begin)
            if not shorter:
                return end
            if time.monotonic() > deadline:
                self._lost(shrunk(shorter[0].queue, shorter[0].start, shorter[0].end))
                return end
            time.sleep(0.2)

    def _store(self, positions: Positions) -> None:
        """Mirror *positions* to the consumer group, if the query has one."""
        if self._options.consumer_group is None or not self._options.commit_offsets:
            return
        if self._progress is None:
            self._progress = Progress(self._cluster, self._options.consumer_group)
            self._progress.flush_on_sigterm()
        self._progress.advance(positions)

    def _store_now(self, positions: Positions) -> None:
        self._store(positions)
        if self._progress is not None:
            self._progress.flush(FLUSH_S)

    # --- on executors ------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


def _max_rows(limit: ReadLimit) -> int | None:
    """None: everything there is."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable):
        return None
    raise OgiveError(f"Spark asks for a limit that this source does not offer: {limit}")
