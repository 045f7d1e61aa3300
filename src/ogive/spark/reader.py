"""Batch and stream readers.

Behaviour
- A batch reads the messages that exist when its partitions are planned; Spark plans once for each
  load().
- Spark's checkpoint is authoritative for a stream. A consumer group only gets a copy of it (see
  group_progress.py), and may provide the start.
- Queues are packed into as many partitions as there are cores, and fewer for few rows, because each
  Python task costs 20 to 28 ms. Each task has its share in the limits of the query.
- Spark creates readers in several processes and pickles them: they hold options and schema;
  connections are in cluster.py.

Differs from Spark's Kafka source
- One trigger reads a bounded number of messages by default.
- A new queue is read from its first message, also if the stream started with latest.
- Starting and ending times need no message after them: a queue without one starts or ends at its
  end (startingOffsetsByTimestampStrategy).
- A stream may have an end: it stops there, and new queues are read up to it.
- A stream that starts with latest stores that position in its consumer group, if it has one, and
  starts there again if its first batch failed: Spark asks a Python source for its initial offset a
  second time, and newer messages would move it.
"""

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ogive.errors import DataLoss, InvalidOption, NoRoute, OgiveError
from ogive.model import TOOLS_GROUP, MessageQueue
from ogive.spark.cluster import SAMPLE_ROWS, Cluster, cluster
from ogive.spark.compat import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    arrow_schema,
)
from ogive.spark.group_progress import MirroredStream
from ogive.spark.interpreter import warn_if_zipped
from ogive.spark.offsets import (
    AtTime,
    AtTimes,
    Bound,
    Positions,
    Spans,
    entering,
    fingerprint,
    from_offset,
    last_stored,
    resolve,
    times_wanted,
    to_offset,
)
from ogive.spark.options import SourceOptions
from ogive.spark.patience import BrokerAway, Patience
from ogive.spark.range_reader import SETTLE_S, data_loss, deleted, made_anew, removed, shrunk
from ogive.spark.ranges import (
    Filter,
    Pace,
    QueueRange,
    admit,
    admit_bytes,
    pack,
    share,
    spread_partitions,
)
from ogive.spark.remade import Ends, find_remade, times_at
from ogive.spark.schema import as_kafka, check_partitions, decoded_columns
from ogive.sql92 import compile_expression
from ogive.wire.bodies.stats import TopicOffset

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 2 * 1024 * 1024
"""Stored bytes that become one Arrow batch: 2,000 rows of 1 KiB, 8,000 of 100 B, where both Arrow
and the JVM work best.
"""

_LONGEST_IDLE_S: Final = 1.0
"""Time between two looks at one topic while nothing comes: one request to each of its brokers."""


class TaskPartition(InputPartition):
    """The ranges that one task reads, and its share in the limits of the query."""

    def __init__(self, ranges: tuple[QueueRange, ...], pace: Pace) -> None:
        super().__init__(ranges)
        self.pace = pace


class _Reading:
    """Base of batch and stream readers: planning on the driver, reading on executors."""

    def __init__(
        self, options: SourceOptions, schema: StructType, cores: int | None = None
    ) -> None:
        """*cores*: those of the cluster, if they are known."""
        self._options = options
        self._schema = schema
        self._cores = cores

    @property
    def _cluster(self) -> Cluster:
        return cluster(self._options.access)

    def _spans(self, *, settled: bool = False, read: Iterable[MessageQueue] | None = None) -> Spans:
        """Return first and next offset of each queue.

        *settled*: not the first call of a query, see Patience. Queues that were *read* before may
        be missing, and others that the query has given up.
        """
        options = self._options
        patience = Patience(
            options.poll_timeout_s, options.fetch_retries, options.fetch_retry_interval_s, settled
        )
        given_up = read is not None and not options.fail_on_data_loss
        return self._cluster.selected(options.selection, patience, read or (), any_missing=given_up)

    def _resolve(
        self, side: str, bound: Bound, spans: Spans, *, beyond: bool = False
    ) -> dict[MessageQueue, int]:
        """Return the offset of *bound* in every queue; *side* is the start or the end."""
        name = _option(side, bound)
        times = times_wanted(name, bound, spans)
        group = self._options.consumer_group or TOOLS_GROUP
        found = self._cluster.search(times, group) if times else {}
        if side == "starting" and self._options.starting_strategy == "error":
            for queue in sorted(found):
                if found[queue] >= spans[queue].max_offset:
                    raise InvalidOption(
                        f"{name}: queue {queue} has no message since then "
                        "(startingOffsetsByTimestampStrategy=error)"
                    )
        committed = self._committed(spans) if bound == "group" else {}
        return resolve(name, bound, spans, committed, found, beyond=beyond)

    def _plan(self, start: Positions, end: Positions) -> list[TaskPartition]:
        ranges = [QueueRange(queue, start[queue], max(start[queue], end[queue])) for queue in end]
        options = self._options
        if options.columns == "kafka" and "partition" in self._schema.names:
            check_partitions(end)
        most = (
            options.max_partitions
            or self._cores
            or spread_partitions(sum(map(len, ranges)), os.cpu_count() or 1)
        )
        groups = pack(
            ranges,
            most,
            preserve_order=options.preserve_order,
            min_partitions=options.min_partitions,
            max_rows=options.max_records_per_partition,
        )
        paces = share(groups, most, options.max_pulls_per_broker, options.max_bytes_per_second)
        return [
            TaskPartition(tuple(group), pace) for group, pace in zip(groups, paces, strict=True)
        ]

    def _committed(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        group = self._options.consumer_group
        return {} if group is None else self._cluster.committed(group, queues)

    def _refuse_reversed(self, starting: Bound, queue: MessageQueue, start: int, end: int) -> None:
        """Raise InvalidOption for a start behind the end that must be a mistake.

        *start* is the position of *starting* in *queue*. A group may have passed the end, and the
        messages before it may be deleted.
        """
        if start > end and starting not in ("group", "earliest"):
            raise InvalidOption(
                f"{_option('starting', starting)} says {start} for queue {queue}, behind the end "
                f"of the read, which is {end}"
            )

    def _lost(self, loss: DataLoss) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        log.warning("%s", loss)

    def _read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # here: 40 ms that a stream's start need not wait for, see source.py
        from ogive.spark.decode import RecordDecoder

        warn_if_zipped()
        # for an empty plan Spark makes a partition of None, and Spark 4.0 gives None itself
        if partition is None or partition.value is None:
            return
        if not isinstance(partition, TaskPartition):
            raise OgiveError(
                "the driver planned a task that this executor does not know: install the same "
                "release of ogive on both"
            )
        options = self._options
        sql = None if options.sql_filter is None else compile_expression(options.sql_filter)
        kafka = options.columns == "kafka"
        decoder = RecordDecoder(
            arrow_schema(decoded_columns(self._schema) if kafka else self._schema),
            options.tags,
            sql,
        )
        shown = arrow_schema(self._schema)
        wanted = Filter(options.subscription, "TAG" if sql is None else "SQL92")
        answers = self._cluster.read(
            partition.value,
            pace=partition.pace,
            group=self._options.consumer_group or TOOLS_GROUP,
            wanted=wanted,
            fail_on_data_loss=self._options.fail_on_data_loss,
            patience=Patience(self._options.poll_timeout_s, settled=True),
        )
        for covered, records in joined(answers):
            rows = 0
            for batch in decoder.batches(
                records, options.access.namespace.strip_queue(covered.queue), covered.offsets
            ):
                rows += batch.num_rows
                if batch.num_rows:
                    yield as_kafka(batch, covered.queue, shown) if kafka else batch
            if wanted.takes_all and rows != len(covered):
                self._look_for_holes(covered, records)

    def _look_for_holes(self, covered: QueueRange, records: bytes) -> None:
        """Report offsets that are missing in an answer without a filter: it must have every message
        of its offsets.
        """
        from ogive.spark.decode import queue_offsets

        lost = [
            QueueRange(covered.queue, a + 1, b)
            for a, b in pairwise(
                [covered.start - 1, *queue_offsets(records, covered.offsets), covered.end]
            )
            if b > a + 1
        ]
        for gone in lost:
            self._lost(data_loss(gone))


def _option(side: str, bound: Bound) -> str:
    """Return the name of the option that *bound* is from; *side* is the start or the end."""
    if isinstance(bound, AtTimes):
        return f"{side}OffsetsByTimestamp"
    return f"{side}Timestamp" if isinstance(bound, AtTime) else f"{side}Offsets"


def joined(answers: Iterator[tuple[QueueRange, bytes]]) -> Iterator[tuple[QueueRange, bytes]]:
    """Join answers of one queue up to BATCH_BYTES: Apache's brokers return 32 messages at a
    time.
    """
    parts: list[bytes] = []
    size = 0
    joined: QueueRange | None = None
    for covered, records in answers:
        if joined is not None and (
            covered.queue != joined.queue
            or covered.start != joined.end
            or size + len(records) > BATCH_BYTES
        ):
            yield joined, parts[0] if len(parts) == 1 else b"".join(parts)
            parts, size, joined = [], 0, None
        joined = covered if joined is None else QueueRange(joined.queue, joined.start, covered.end)
        parts.append(records)
        size += len(records)
    if joined is not None:
        yield joined, b"".join(parts)


class BatchReader(_Reading, DataSourceReader):
    """A topic as a table."""

    def partitions(self) -> list[TaskPartition]:
        options = self._options
        if options.min_offsets_per_trigger is not None or options.max_bytes_per_trigger is not None:
            log.warning(
                "minOffsetsPerTrigger and maxBytesPerTrigger apply to streams only: a batch reads "
                "everything within its bounds"
            )
        spans = self._spans()
        start = self._resolve("starting", options.starting or "earliest", spans)
        end = self._resolve("ending", options.ending or "latest", spans)
        for queue in sorted(spans):
            self._check(queue, start[queue], end[queue], spans[queue].max_offset)
        return self._plan(start, end)

    def _check(self, queue: MessageQueue, start: int, end: int, queue_end: int) -> None:
        """Refuse or report a range that is empty because of an error: it must not count as read."""
        # only a group's offset can be behind the end: JSON is checked against the queues
        if start > queue_end:
            self._lost(shrunk(queue, queue_end, start))
        else:
            self._refuse_reversed(self._options.starting or "earliest", queue, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


class StreamReader(_Reading, MirroredStream):
    """A topic as a stream.

    Spark calls everything except read() in one process that lives as long as the query.
    """

    def __init__(
        self, options: SourceOptions, schema: StructType, cores: int | None = None
    ) -> None:
        _Reading.__init__(self, options, schema, cores)
        owner = fingerprint(
            options.selection.identity,
            options.subscription if options.sql_filter is None else f"sql {options.subscription}",
        )
        mirrored = options.consumer_group is not None and options.commit_offsets
        MirroredStream.__init__(
            self,
            options.access,
            owner,
            options.consumer_group or TOOLS_GROUP,
            options.offset_commit_interval_s if mirrored else None,
            _LONGEST_IDLE_S,
        )
        self._until_now = False  # trigger(availableNow=True)
        # the end by the options
        self._stop_at: Positions | None = None
        self._advanced_at = -math.inf
        self._trigger = 0
        # the trigger that read each queue last, see admit()
        self._served: dict[MessageQueue, int] = {}
        self._behind: set[MessageQueue] = set()
        # mean size of a message of each topic and broker in the last batches
        self._record_bytes: dict[tuple[str, str], float] = {}

    # --- on the driver ----------------------------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until_now = True
        try:
            self._target = self._look()[0]
        except BrokerAway:
            raise
        except (NoRoute, InvalidOption) as exc:
            # It may be missing because it was read before and then deleted. That is known when
            # Spark says where the query continues.
            log.info("the query's first batch will fix its end: %s", exc)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch.

        *start* is durable in the checkpoint: this is the only moment to commit a query's last batch
        to the consumer group.
        """
        begin, times = from_offset(start, self._owner), last_stored(start)
        self._store(begin)
        end, shorter = self._up_to_target(begin) if self._until_now else self._wait_for_news(begin)
        moved = (
            self._taken_up(begin, end) | self._jumped(begin, end) | self._made_anew(begin, times)
        )
        for gone in shorter:
            if gone.queue not in moved:
                self._lost(shrunk(gone.queue, gone.start, gone.end))
        if moved:
            kept = {queue: ms for queue, ms in times.items() if queue not in moved}
            return to_offset({**begin, **moved}, self._owner, moved, kept)
        known = self._known(begin, end)
        max_rows = _max_rows(limit)
        if max_rows is not None and self._holds_back(known, end):
            return start
        admitted = admit(known, end, max_rows, self._served)
        if max_rows is not None and self._options.max_bytes_per_trigger is not None:
            admitted = self._limit_bytes(known, admitted, self._options.max_bytes_per_trigger)
        if admitted == begin:
            return start
        self._advanced_at = time.monotonic()
        self._trigger += 1
        self._served |= {
            queue: self._trigger for queue in admitted if admitted[queue] > known[queue]
        }
        return to_offset(
            admitted,
            self._owner,
            stored_ms=times_at(admitted, self._ends, begin, times, self._look_at),
        )

    def _limit_bytes(
        self, known: Positions, end: Positions, max_bytes: int
    ) -> dict[MessageQueue, int]:
        """Return an end about *max_bytes* after *known*, by the mean size of the last batches.

        Each broker of a topic is asked for a few messages of one queue: at the end of the batch,
        where messages may have grown, and before the first batch also at its start.
        """

        def sample(at: Positions, queues: Iterable[MessageQueue]) -> dict[tuple[str, str], float]:
            turn = sorted(queues, key=lambda queue: self._served.get(queue, 0), reverse=True)
            chosen = {(queue.topic, queue.broker_name): queue for queue in turn}
            found = self._cluster.record_bytes(
                {queue: max(known[queue], at[queue]) for queue in chosen.values()}
            )
            return {(queue.topic, queue.broker_name): size for queue, size in found.items()}

        def limited(
            end: Positions, sizes: Mapping[tuple[str, str], float]
        ) -> dict[MessageQueue, int]:
            of_queues = {queue: sizes.get((queue.topic, queue.broker_name), 0.0) for queue in end}
            return admit_bytes(known, end, of_queues, max_bytes, self._served)

        behind = [queue for queue in end if end[queue] > known[queue]]
        self._record_bytes |= sample(
            known,
            (q for q in behind if (q.topic, q.broker_name) not in self._record_bytes),
        )
        nearer = limited(end, self._record_bytes)
        last = {queue: at - SAMPLE_ROWS for queue, at in nearer.items()}
        sizes = sample(last, (queue for queue in behind if nearer[queue] > known[queue]))
        before = self._record_bytes
        self._record_bytes = before | {
            place: (size + before.get(place, size)) / 2 for place, size in sizes.items()
        }
        return limited(
            nearer, {place: max(size, sizes.get(place, 0.0)) for place, size in before.items()}
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskPartition]:
        begin, finish = from_offset(start, self._owner), from_offset(end, self._owner)
        if finish.keys() - begin.keys():
            spans = self._spans(settled=True, read=finish)
            begin = {
                queue: spans[queue].min_offset if queue in spans else 0 for queue in finish
            } | begin
        return self._plan(begin | {queue: finish[queue] for queue in entering(end)}, finish)

    def _first_positions(self) -> Positions:
        bound = self._options.starting or "latest"
        spans = self._spans()
        positions = self._resolve("starting", bound, spans)
        of_group = self._committed(spans) if bound == "latest" else {}
        if self._options.ending is not None:
            stop = self._resolve("ending", self._options.ending, spans, beyond=True)
            for queue in sorted(spans.keys() - of_group.keys()):
                self._refuse_reversed(bound, queue, positions[queue], stop[queue])
        if bound == "latest":
            positions = {**positions, **of_group}
            self._store(positions, now=True)
        return positions

    def _taken_up(self, begin: Positions, end: Positions) -> dict[MessageQueue, int]:
        """Return the group's offsets in queues that are new since *begin*: their broker was away
        when the query began.

        Other new queues are read from their first message, because the topic got them later.
        """
        fresh = [queue for queue in end if queue not in begin]
        if not fresh or (self._options.starting or "latest") not in ("latest", "group"):
            return {}
        committed = self._committed(fresh)
        return {
            q: min(offset, self._ends.latest.get(q, offset))
            for q, offset in committed.items()
            if offset > self._ends.first.get(q, 0)
        }

    def _jumped(self, begin: Positions, end: Positions) -> dict[MessageQueue, int]:
        """Return the first offset after the gap for queues whose next messages were deleted."""
        moved: dict[MessageQueue, int] = {}
        for queue, position in begin.items():
            to = min(self._ends.first.get(queue, 0), end.get(queue, 0))
            if position < to and queue.broker_name not in self._cluster.without_master:
                self._lost(data_loss(QueueRange(queue, position, to)))
                moved[queue] = to
        return moved

    def _made_anew(
        self, begin: Positions, times: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return the first offset of queues whose topic was deleted and created again."""
        moved: dict[MessageQueue, int] = {}
        for queue, ms in sorted(find_remade(self._ends, begin, times, self._look_at).items()):
            first = self._ends.first[queue]
            self._lost(made_anew(queue, begin[queue], first, ms, times[queue]))
            moved[queue] = first
        return moved

    def _wait_for_news(self, begin: Positions) -> tuple[Positions, list[QueueRange]]:
        """Return what `_settled` does, after a pause."""
        self._pause()
        end, shorter = self._settled(begin)
        self._adapt_pause(news=end != begin and not self._holds_back(self._known(begin, end), end))
        return end, shorter

    def _known(self, begin: Positions, end: Positions) -> dict[MessageQueue, int]:
        """Return *begin*, with the starts of queues that are new since."""
        return {**{queue: self._ends.first.get(queue, 0) for queue in end}, **begin}

    def _holds_back(self, begin: Positions, end: Positions) -> bool:
        """Return True if the batch must wait for minOffsetsPerTrigger; trigger(availableNow=True)
        would never end.
        """
        least = self._options.min_offsets_per_trigger
        if (
            least is None
            or self._until_now
            or begin.keys() - end.keys()
            or time.monotonic() - self._advanced_at >= self._options.max_trigger_delay_s
        ):
            return False
        ahead = {queue: end[queue] - begin.get(queue, 0) for queue in end}
        # below 0: messages are lost, which must be reported
        return min(ahead.values(), default=0) >= 0 and sum(ahead.values()) < least

    def _up_to_target(self, begin: Positions) -> tuple[Positions, list[QueueRange]]:
        """Return the result of `_settled`, limited to the ends that the queues had when the query
        began.

        A queue that grew before its position was fixed stays there.
        """
        end, shorter = self._settled(begin)
        if self._target is None:
            self._target = end
        limits = {
            queue: max(at, begin.get(queue, 0)) for queue, at in ({**begin, **self._target}).items()
        }
        return {
            queue: min(at, limits[queue]) for queue, at in end.items() if queue in limits
        }, shorter

    def _look(self, begin: Positions | None = None) -> tuple[Positions, list[QueueRange]]:
        """Return the ends of the queues, and the positions of *begin* that are behind them.

        A queue whose broker is away stays where it was; one whose topic was deleted is left out.
        """
        spans = self._spans(settled=begin is not None, read=begin)
        begin = begin or {}
        self._looked_at = time.monotonic()
        self._ends = Ends.of(spans)
        self._longest_idle_s = _LONGEST_IDLE_S * max(1, len({queue.topic for queue in spans}))
        self._wait_for_slaves(begin)
        shorter = [
            QueueRange(queue, self._ends.latest[queue], position)
            for queue, position in begin.items()
            if self._ends.latest.get(queue, position) < position
        ]
        self._report_missing(begin, spans)
        left = {
            queue: position
            for queue, position in begin.items()
            if queue not in self._missing or not self._is_deleted(queue)
        }
        return {**left, **self._bounded(begin, spans)}, shorter

    def _is_deleted(self, queue: MessageQueue) -> bool:
        return (queue.topic, queue.broker_name) in self._cluster.deleted

    def _wait_for_slaves(self, begin: Positions) -> None:
        """Wait for a slave that may not yet have the last messages that its master returned:
        nothing is lost, and nothing is returned before it has them.
        """
        away = self._cluster.without_master
        behind = {
            q: end
            for q, end in self._ends.latest.items()
            if q.broker_name in away and end < begin.get(q, 0)
        }
        for queue in sorted(behind.keys() - self._behind):
            log.warning(
                "queue %s was read up to %d, and its master is unavailable: waiting for its "
                "slave, which ends at %d",
                queue,
                begin[queue],
                behind[queue],
            )
        self._behind = set(behind)
        self._ends = replace(
            self._ends, latest={**self._ends.latest, **{queue: begin[queue] for queue in behind}}
        )

    def _report_missing(self, begin: Positions, spans: Spans) -> None:
        """Report queues that were read before and are missing: their broker is unreachable, or they
        were removed from the topic.
        """
        missing = begin.keys() - spans.keys()
        brokers = {(queue.topic, queue.broker_name) for queue in spans}
        for queue in sorted(missing - self._missing):
            if self._is_deleted(queue):
                self._lost(deleted(queue, begin[queue]))
            elif (queue.topic, queue.broker_name) not in brokers:
                log.warning(
                    "queue %s, read up to offset %d, is in no route: its broker is unavailable, "
                    "or the queue has moved",
                    queue,
                    begin[queue],
                )
            elif (end := self._cluster.end_of(queue)) > begin[queue]:
                self._lost(removed(QueueRange(queue, begin[queue], end)))
            else:
                log.info(
                    "queue %s is no longer a queue of its topic; it was read to its end", queue
                )
        self._missing = set(missing)

    def _bounded(self, begin: Positions, spans: Spans) -> Positions:
        """Return the ends of the queues, or the query's ends in them. Offsets that were read stay
        read.
        """
        bound = self._options.ending
        if bound is None:
            return self._ends.latest
        # messages before that time may still come, and new queues
        if isinstance(bound, AtTime | AtTimes):
            stop = self._resolve("ending", bound, spans)
        else:
            if self._stop_at is None:
                gone = {
                    queue: TopicOffset(min_offset=at, max_offset=at, last_update_timestamp=0)
                    for queue, at in begin.items()
                    if queue not in spans
                }
                self._stop_at = self._resolve("ending", bound, {**gone, **spans}, beyond=True)
            stop = dict(self._stop_at)
        return {
            queue: latest
            if latest < begin.get(queue, 0)
            else max(begin.get(queue, 0), min(latest, stop.get(queue, self._ends.first[queue])))
            for queue, latest in self._ends.latest.items()
        }

    def _settled(self, begin: Positions) -> tuple[Positions, list[QueueRange]]:
        """Return the result of `_look`, after more tries if a queue is shorter than its part that
        was read.

        A starting broker reports its queues one after the other.
        """
        deadline = time.monotonic() + SETTLE_S
        while True:
            end, shorter = self._look(begin)
            if not shorter or time.monotonic() > deadline:
                return end, shorter
            time.sleep(0.2)

    # --- on executors -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._read(partition)


def _max_rows(limit: ReadLimit) -> int | None:
    """Return the limit, or None for no limit."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable):
        return None
    raise OgiveError(f"Spark asks for a limit that this source does not offer: {limit}")
