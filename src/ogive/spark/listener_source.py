"""Listeners as a Spark job: the queues' new messages of each micro-batch are ranges, and the tasks
that read a range consume it.

Behaviour
- The checkpoint has the progress. A batch ends when all of its ranges are done (see
  listener_task.py); the group's offsets follow.
- A group without an offset begins where its listener says, and its retry topic at the first
  message. So does a topic that a later version of the listeners adds. A queue that appears later
  begins at the group's offset, else at its first message.
- A queue that is shorter than its consumed part, because its broker lost messages or its topic was
  created again, continues at the group's current offset; the log names the gap.
- Batches are as large as the tasks can consume in a few seconds, so that a restart repeats little
  and other queues do not wait long; but they always have enough messages for every thread, and one
  of each queue.
- No more messages are returned once the file in `stopFile` exists; the reader confirms this by a
  file beside it.

The listeners are pickled in an option of the source, because Spark creates the reader in processes
of its own. The connection to the cluster, which may include a secret, is in the options of
format("rocketmq") for it.
"""

import base64
import binascii
import importlib
import logging
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from ogive.client.config import ClientConfig
from ogive.client.instrumentation import instrumentation
from ogive.client.listener import AnyListener
from ogive.client.namespace import Namespace
from ogive.client.portal import portal
from ogive.errors import InvalidOption
from ogive.model import RETRY_PREFIX, MessageQueue, retry_topic
from ogive.spark.cluster_options import Access
from ogive.spark.compat import (
    ReadAllAvailable,
    ReadLimit,
    reader_of_release,
)
from ogive.spark.group_progress import MirroredStream
from ogive.spark.listener_task import consume
from ogive.spark.offsets import Positions, Spans, entering, from_offset, last_stored, to_offset
from ogive.spark.options import access_of
from ogive.spark.ranges import QueueRange, admit
from ogive.spark.remade import Ends, find_remade, times_at
from ogive.spark.stopping import end_with_driver

log = logging.getLogger(__name__)

FORMAT: Final = "rocketmq-listeners"
SCHEMA: Final = (
    "topic STRING, brokerName STRING, queueId INT, start BIGINT, end BIGINT, messages "
    "BIGINT, calls BIGINT, failed BIGINT"
)

OWN: Final = ("work", "stopfile", "everything")
"""Options in addition to those of Access, in lower case."""
FIRST_BATCH: Final = 1_000
LARGEST_BATCH: Final = 200_000
SHORT_S: Final = 2.5
LONG_S: Final = 5.0
# a broker that starts shows its queues bit by bit
SETTLE_S: Final = 3.0
_LONGEST_IDLE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Work:
    """Description of the work, for executors.

    *client* does not include the connection to the cluster. *partitions* limits the tasks of a
    batch. *modules* are imported by each process of an executor, because they set up OpenTelemetry
    there: listeners themselves are pickled.
    """

    client: ClientConfig
    listeners: tuple[AnyListener, ...]
    partitions: int
    modules: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # one thought
        assert self.client.credentials is None and self.client.ssl is False  # noqa: PT018

    @property
    def namespace(self) -> Namespace:
        return Namespace(self.client.namespace or "")

    @property
    def group(self) -> str:
        """Names as on the wire, like the topics."""
        return self.namespace.wrap(self.listeners[0].config.group)

    @property
    def threads(self) -> int:
        """Return the number of concurrent calls of a batch's tasks, if its queues allow that
        many.
        """
        return self.partitions * max(one.config.threads for one in self.listeners)

    @property
    def topics(self) -> tuple[str, ...]:
        return (
            *(self.namespace.wrap(one.config.topic) for one in self.listeners),
            retry_topic(self.group),
        )

    def dumps(self) -> str:
        """Return the work as text. Raises InvalidOption for a listener that cannot be pickled,
        for example because it holds an open connection.
        """
        try:
            # pyspark's copy has no types
            pickled = cloudpickle.dumps(self)  # type: ignore[no-untyped-call]
            return base64.b64encode(pickled).decode()
        except (pickle.PicklingError, TypeError, AttributeError) as exc:
            names = ", ".join(one.name for one in self.listeners)
            raise InvalidOption(
                f"{names} cannot be sent to executors: {exc}. Make what it needs inside of it, at "
                "the first call"
            ) from None

    @classmethod
    def loads(cls, text: str) -> "Work":
        try:
            work = cloudpickle.loads(base64.b64decode(text))
        except (ValueError, binascii.Error, pickle.UnpicklingError) as exc:
            raise InvalidOption(f"the option work holds no listeners: {exc}") from None
        assert isinstance(work, cls)
        return work


def modules_with_telemetry(listeners: Sequence[AnyListener]) -> tuple[str, ...]:
    """Return the modules of the listeners if OpenTelemetry is set up here, else none.

    The main module has another name on executors, so it is not one of them.
    """
    if instrumentation() is None:
        return ()
    names = {one.function.__module__ for one in listeners}
    return tuple(sorted(names - {"__main__"}))


def import_modules(names: Sequence[str]) -> None:
    """Import modules on an executor. Raises InvalidOption if one is not there."""
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as exc:
            raise InvalidOption(
                f"executors need module {name} for OpenTelemetry, and do not find it: {exc}; ship "
                "it with --py-files"
            ) from None


class ListenerSource(DataSource):
    """`format("rocketmq-listeners")`, for ogive.spark.jobs only."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        end_with_driver()
        stop = self.options.get("stopFile")
        access = access_of(
            {name: text for name, text in self.options.items() if name.lower() not in OWN}
        )
        everything = self.options.get("everything") == "true"
        reader = ListenerReader(
            Work.loads(self.options["work"]), access, Path(stop) if stop else None, everything
        )
        return reader_of_release(reader, keep_limit_after_restart=False)


class ListenerReader(MirroredStream):
    """Reader that plans in one process on the driver, and consumes on the executors."""

    def __init__(
        self, work: Work, access: Access, stop_file: Path | None, everything: bool = False
    ) -> None:
        """Read batches that have no limit with *everything*."""
        super().__init__(access, f"listeners of {work.group}", work.group, 0.0, _LONGEST_IDLE_S)
        self._work = work
        self._everything = everything
        self._stop_file = stop_file
        self._size = FIRST_BATCH
        self._least = 1
        # when the last batch was planned, and how many messages it has
        self._planned: tuple[float, int] | None = None

    # --- on the driver ----------------------------------------------------------------------------

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._look()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch. The messages before *start* are done, and durable in
        the checkpoint.
        """
        begin, times = from_offset(start, self._owner), last_stored(start)
        if self._stop_file is not None and self._stop_file.exists():
            self._store(begin)
            self._stop_file.with_suffix(".seen").touch()
            return start
        self._learn()
        ends = self._target if self._target is not None else self._wait_for_news(begin)
        self._report_removed(begin, ends)
        remade = self._remade(begin, times)
        taken_up = remade | self._taken_up({**begin, **remade}, ends)
        if taken_up:
            self._planned = None
            # what the group stood at before would be behind the queue's end, or another's
            self._store({**begin, **taken_up}, now=True)
            kept = {queue: ms for queue, ms in times.items() if queue not in taken_up}
            return to_offset({**begin, **taken_up}, self._owner, taken_up, kept)
        self._store(begin)
        self._least = max(self._work.threads, len(ends))
        ends = {**begin, **{queue: max(end, begin[queue]) for queue, end in ends.items()}}
        end = admit(begin, ends, None if self._everything else max(self._size, self._least))
        count = sum(end[queue] - begin[queue] for queue in end)
        self._planned = (time.monotonic(), count) if count else None
        if not count:
            return start
        return to_offset(
            end, self._owner, stored_ms=times_at(end, self._ends, begin, times, self._look_at)
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return partitions of whole queues; the longest queue goes to the task with the least
        work.
        """
        begin, finish = from_offset(start, self._owner), from_offset(end, self._owner)
        read = finish.keys() - entering(end)
        ranges = [
            QueueRange(queue, begin.get(queue, 0), finish[queue])
            for queue in read
            if finish[queue] > begin.get(queue, 0)
        ]
        return [InputPartition(tuple(group)) for group in spread(ranges, self._work.partitions)]

    def _first_positions(self) -> Positions:
        """Return where the group stands, or where the listeners start. It is committed, so that it
        still holds after a crash of the first batch.
        """
        spans = self._cluster.spans(self._work.topics)
        positions = self._starts(spans) | self._committed(spans)
        self._store(positions, now=True)
        return positions

    def _committed(self, spans: Spans) -> dict[MessageQueue, int]:
        """Return the group's offsets, limited to the queues' bounds."""
        committed = self._cluster.committed(self._work.group, spans)
        return {
            queue: min(max(offset, spans[queue].min_offset), spans[queue].max_offset)
            for queue, offset in committed.items()
        }

    def _starts(self, spans: Spans) -> dict[MessageQueue, int]:
        """Return the listeners' starts for queues in which the group has no offset."""
        starts = {
            self._work.namespace.wrap(one.config.topic): one.config.start
            for one in self._work.listeners
        }
        first: dict[MessageQueue, int] = {}
        for queue, span in spans.items():
            start = "earliest" if queue.topic.startswith(RETRY_PREFIX) else starts[queue.topic]
            if start == "latest":
                first[queue] = span.max_offset
            elif start == "earliest":
                first[queue] = span.min_offset
            else:
                raise InvalidOption(
                    f"{self._work.group} starts at a time: set its offsets first, `ogive group "
                    "reset --to TIME`"
                )
        return first

    def _taken_up(self, begin: Positions, ends: Positions) -> dict[MessageQueue, int]:
        """Return the starts in queues that are new since *begin*, or shorter than its position;
        nothing before the starts is consumed.
        """
        fresh = [queue for queue in ends if queue not in begin]
        shorter = [queue for queue, end in ends.items() if end < begin.get(queue, 0)]
        if shorter:
            shorter = self._still_shorter(begin)
        if not fresh and not shorter:
            return {}
        all_spans = self._cluster.spans(self._work.topics)
        spans = {queue: all_spans[queue] for queue in (*fresh, *shorter) if queue in all_spans}
        committed, known = self._committed(spans), {queue.topic for queue in begin}
        added = {
            queue: span
            for queue, span in spans.items()
            if queue.topic not in known and queue not in committed
        }
        positions = (
            {queue: span.min_offset for queue, span in spans.items()}
            | self._starts(added)
            | committed
        )
        for queue in spans.keys() & shorter:
            log.error(
                "%s ends at %d, but group %s had consumed up to %d: its broker lost messages, or "
                "its topic was recreated. The job continues at %d",
                queue,
                spans[queue].max_offset,
                self._work.group,
                begin[queue],
                positions[queue],
            )
        return positions

    def _remade(
        self, begin: Positions, times: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return the new positions in queues whose topic was deleted and created again.

        That is the first message, or the group's offset if it was set since.
        """
        found = find_remade(self._ends, begin, times, self._look_at)
        committed = self._cluster.committed(self._work.group, found) if found else {}
        positions: dict[MessageQueue, int] = {}
        for queue in sorted(found):
            first = self._ends.first[queue]
            stands = committed.get(queue, first)
            positions[queue] = stands if first <= stands < begin[queue] else first
            log.error(
                "%s was deleted and recreated: group %s had consumed its earlier messages up to "
                "%d. The job continues at %d",
                queue,
                self._work.group,
                begin[queue],
                positions[queue],
            )
        return positions

    def _report_removed(self, begin: Positions, ends: Positions) -> None:
        """Log queues that were removed from their topic, with the offsets that the group has not
        consumed.
        """
        there = {(queue.topic, queue.broker_name) for queue in ends}
        removed = {
            queue
            for queue in begin.keys() - ends.keys()
            if (queue.topic, queue.broker_name) in there
        }
        for queue in sorted(removed - self._missing):
            end = self._cluster.end_of(queue)
            if end > begin[queue]:
                log.error(
                    "%s is no longer a queue of its topic: its offsets %d to %d are not consumed "
                    "by group %s unless the topic gets the queue back",
                    queue,
                    begin[queue],
                    end - 1,
                    self._work.group,
                )
        self._missing = removed

    def _still_shorter(self, begin: Positions) -> list[MessageQueue]:
        deadline = time.monotonic() + SETTLE_S
        while True:
            ends = self._look()
            # a slave may not have the last messages yet
            away = self._cluster.without_master
            shorter = [
                queue
                for queue, end in ends.items()
                if end < begin.get(queue, 0) and queue.broker_name not in away
            ]
            if not shorter or time.monotonic() > deadline:
                return shorter
            time.sleep(_LONGEST_IDLE_S)

    def _learn(self) -> None:
        """Set the size of the next batch by the time that the last one took."""
        if self._planned is not None:
            planned_at, count = self._planned
            self._size = next_size(self._size, count, time.monotonic() - planned_at, self._least)

    def _wait_for_news(self, begin: Positions) -> Positions:
        """Return the ends of the queues, after a pause."""
        self._pause()
        ends = self._look()
        self._adapt_pause(news=any(end != begin.get(queue) for queue, end in ends.items()))
        return ends

    def _look(self) -> Positions:
        self._looked_at = time.monotonic()
        self._ends = Ends.of(self._cluster.spans(self._work.topics))
        return self._ends.latest

    # --- on executors -----------------------------------------------------------------------------

    def read(self, partition: InputPartition | None) -> Iterator[tuple[Any, ...]]:
        """Consume ranges, and yield a row for each."""
        ranges: Sequence[QueueRange] = () if partition is None else partition.value or ()
        import_modules(self._work.modules)
        for done in portal().call(
            consume(self._access.client(self._work.client), self._work.listeners, ranges)
        ):
            queue, wanted = done.wanted.queue, done.wanted
            yield (
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                wanted.start,
                wanted.end,
                wanted.end - done.begun,
                done.calls,
                done.failed,
            )


def next_size(size: int, count: int, took_s: float, least: int) -> int:
    """Return the size of the next batch after one of *count* messages (at most *size*) that took
    *took_s*.

    Fewer than *least* would leave threads idle, and then take as long.
    """
    if took_s > LONG_S:
        return max(least, int(min(size, count) * LONG_S / took_s))
    if took_s < SHORT_S and count >= size:
        return min(LARGEST_BATCH, 2 * size)
    return size


def spread(ranges: Sequence[QueueRange], partitions: int) -> list[list[QueueRange]]:
    """Return at most *partitions* groups of about equal size.

    A queue is never in two groups: its progress is one number, and its order one sequence.
    """
    groups: list[list[QueueRange]] = [[] for _ in range(min(partitions, len(ranges)))]
    for item in sorted(ranges, key=lambda item: (-len(item), item)):
        min(groups, key=lambda group: sum(map(len, group))).append(item)
    return groups


def options_of(
    work: Work, access: Access, stop_file: Path, *, everything: bool = False
) -> Mapping[str, str]:
    """Return the options of a query; with *everything* its batches have no limit."""
    given = {**access.options(), "work": work.dumps(), "stopFile": str(stop_file)}
    return {**given, "everything": "true"} if everything else given
