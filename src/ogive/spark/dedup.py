"""Skip rows that earlier attempts of a task or batch have stored.

Behaviour
- A query's batches have a consumer group, SPARK_SINK_<query id>. Its offset in SPARK_SINK_BATCHES,
  at every broker, is the number of the next batch: a batch below it is finished, and if Spark
  repeats it (because its own commit log is older), nothing is written.
- The group's offsets in a target topic are the beginning of the unfinished batch. Before a batch is
  repeated, the messages from there on are read: rows whose unique keys are among them are not sent
  again.
- The offsets in the topic move after the batch's mark is stored, never before. A broker that lost
  its last seconds of progress only makes the next search longer, and nothing is written twice. If a
  query has no offset although it should, the whole topic is read; for a query's first batch, which
  may be the first attempt or not, the last hour of it.
- The first batch of a query in a process may be a repeated one, and so is every attempt of a task
  except the first. All others cost nothing.
- The only broker of a topic without a route may be away. A topic counts as one that its first
  message will create only if nothing can have been written to it: in the first attempt at a query's
  first batch, in the first run of the query. The group's offset in SPARK_SINK_RUNS says which run
  that is. All other attempts wait, and then fail.

This module also decides which rows of a repeated task are not stored yet. Pure.

Behaviour
- A row is stored if a row with its content is: after a shuffle Spark changes the order of the rows
  in a partition each time. Of equal rows, as many are skipped as are stored.
- A row with a key of the user's is stored if its key is; the key also identifies the write and the
  topic.
- No two rows get the same key: if the key of an equal row is taken, the row gets the key of one
  that was skipped.
"""

import logging
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ogive.errors import NoRoute
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster
from ogive.spark.compat import arrow_schema
from ogive.spark.decode import RecordDecoder
from ogive.spark.offsets import Positions
from ogive.spark.patience import DOUBTFUL, USUAL, BrokerAway, Patience
from ogive.spark.ranges import QueueRange
from ogive.spark.rows import HEAD_DIGITS, KEY_DIGITS, Row
from ogive.spark.schema import METADATA_COLUMNS, only
from ogive.wire.bodies.stats import TopicOffset

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Equal:
    """Rows with the same content. Keys without their heads."""

    stored: set[str]
    to_pass: int
    free: list[str] = field(default_factory=list)


class Unsent:
    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._stored: dict[str, list[str]] = {}
        self._equal: dict[str, _Equal] = {}
        self.add(keys)

    def add(self, keys: Iterable[str]) -> None:
        """Add the unique keys of all messages in a topic, before calling `missing` for any of its
        rows.
        """
        for key in keys:
            if len(key) == KEY_DIGITS:
                self._stored.setdefault(key[:HEAD_DIGITS], []).append(key[HEAD_DIGITS:])

    def of(self, rows: Sequence[Row]) -> list[Row]:
        """Return those of *rows* that must be sent, in their order.

        Call it once with all rows of a task.
        """
        if not self._stored:
            return list(rows)
        return [row for row in map(self._look, rows) if row is not None]

    def _look(self, row: Row) -> Row | None:
        head, tail = row.key[:HEAD_DIGITS], row.key[HEAD_DIGITS:]
        tails = self._stored.get(head)
        if tails is None:
            return row
        if row.named:
            return None if tail in tails else row
        equal = self._equal.get(head)
        if equal is None:
            stored = set(tails)
            equal = self._equal[head] = _Equal(stored, len(stored))
        taken = tail in equal.stored
        if equal.to_pass:
            equal.to_pass -= 1
            if not taken:
                equal.free.append(tail)
            return None
        if not taken:
            return row
        # there is one: as many rows were skipped as are stored, and this row's key was not theirs
        key = head + equal.free.pop()
        return row._replace(
            key=key, properties=row.properties.replace(row.key.encode(), key.encode(), 1)
        )


MARK_TOPIC: Final = "SPARK_SINK_BATCHES"
RUN_TOPIC: Final = "SPARK_SINK_RUNS"
GROUP_PREFIX: Final = "SPARK_SINK_"
FIRST_BATCH_MS: Final = 3_600_000
_MAX_QUERIES: Final = 1000


class TopicInDoubt(NoRoute):
    """Error for a topic without a route to which earlier attempts may have written."""


class BatchLog:
    """One query's batches, recorded in its consumer group. Calls block."""

    def __init__(self, cluster: Cluster, query_id: str) -> None:
        self._cluster = cluster
        self.group = GROUP_PREFIX + query_id

    def next_batch(self) -> int:
        """Return the first batch that is not known to be finished.

        A broker that cannot be asked counts as one without a finished batch.
        """
        return max(self._cluster.marks(self.group, MARK_TOPIC).values(), default=0)

    def is_first_run(self, run_id: str) -> bool:
        """Return True if no run before *run_id* has begun the query's first batch.

        The brokers record the first run that calls this.
        """
        mine = zlib.crc32(run_id.encode())
        begun = set(self._cluster.marks(self.group, RUN_TOPIC).values())
        if not begun:
            self._cluster.mark(self.group, RUN_TOPIC, mine)
        return begun <= {mine}

    def finish(self, batch_id: int, topics: tuple[str, ...]) -> None:
        """Record that *batch_id* is stored completely.

        Raises OgiveError if no broker accepts the record.
        """
        self._cluster.mark(self.group, MARK_TOPIC, batch_id + 1)
        for topic in topics:
            self._cluster.commit(self.group, ends(self._cluster, topic))

    def begin(
        self, topic: str, *, batch_id: int = 0, repeated: bool = False, patience: Patience = USUAL
    ) -> Positions:
        """Return the first positions of the unfinished batch's messages in *topic*.

        If they are unknown: the current ends or, if an earlier attempt may have written, the
        earliest place of its messages.
        """
        # read the ends first: messages that another task writes after it has recorded its ends must
        # not count as earlier
        now = ends(self._cluster, topic, patience)
        noted = self._cluster.committed(self.group, now)
        absent = {queue: end for queue, end in now.items() if queue not in noted}
        if absent and repeated:
            since_ms = 0 if batch_id else time.time_ns() // 1_000_000 - FIRST_BATCH_MS
            absent = self._cluster.search(dict.fromkeys(absent, since_ms), self.group)
        if absent:
            self._cluster.commit(self.group, absent)
        return {**absent, **noted}


def ends(cluster: Cluster, topic: str, patience: Patience = USUAL) -> dict[MessageQueue, int]:
    """Return the ends of the queues of *topic*; empty for one that its first message will create.

    Raises BrokerAway if they cannot be read, and TopicInDoubt after a wait with *patience* if the
    topic may have a broker that is away.
    """
    return {queue: span.max_offset for queue, span in _spans(cluster, topic, patience).items()}


def _spans(cluster: Cluster, topic: str, patience: Patience) -> dict[MessageQueue, TopicOffset]:
    try:
        return cluster.spans((topic,), patience)
    except BrokerAway:
        raise
    except NoRoute as exc:
        if not patience.doubtful:
            return {}
        raise TopicInDoubt(
            f"{exc}. An attempt before this one may have written to it, so it is not taken for a "
            "new topic: "
            "start its broker, or create the topic if there is none"
        ) from exc


def stored_keys(
    cluster: Cluster, topic: str, since: Positions, patience: Patience = USUAL
) -> set[str]:
    """Return the unique keys of all messages in *topic* from *since* on. A queue that is not in
    it is read from its first message.
    """
    # a topic with positions exists
    spans = _spans(cluster, topic, DOUBTFUL if since else patience)
    ranges = [
        QueueRange(
            queue, max(span.min_offset, min(since.get(queue, 0), span.max_offset)), span.max_offset
        )
        for queue, span in spans.items()
    ]
    decoder = RecordDecoder(arrow_schema(only(METADATA_COLUMNS, "msgId")))
    keys: set[str] = set()
    for covered, records in cluster.read(
        [item for item in ranges if len(item)], fail_on_data_loss=False
    ):
        for batch in decoder.batches(records, covered.queue, covered.offsets):
            keys.update(batch.column("msgId").to_pylist())
    if keys:
        log.info("%d messages of %s may be from an earlier attempt", len(keys), topic)
    return keys


class FirstBatches:
    """First batch of each query in this process.

    Owned by the process's one task thread.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def may_repeat(self, query_id: str, run_id: str, batch_id: int) -> bool:
        """Return True if an earlier run may have begun *batch_id*: only the first batch of a run
        can be a repeated one.
        """
        run, first = self._seen.get(query_id, ("", 0))
        if run != run_id:
            self._seen[query_id] = run_id, batch_id
            self._seen.move_to_end(query_id)
            if len(self._seen) > _MAX_QUERIES:
                self._seen.popitem(last=False)
            return True
        return batch_id <= first


SEEN: Final = FirstBatches()
