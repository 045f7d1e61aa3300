"""What the pipelines share: a clean stop, a streaming query watched to its end, and what a
checkpoint says.

A clean stop ends the batch that is being written and begins no other, so that the next run neither
repeats nor misses a message.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ogive.pipelines.summary import Summary
from ogive.spark import register
from ogive.spark.compat import ends_after_open_batch, reported_lag
from ogive.spark.options import access_of
from ogive.spark.owning import own_session
from ogive.spark.rpc import Cluster, cluster
from ogive.spark.stopping import Stop, cancelled, silence

Say = Callable[[str], None]
Offsets = Mapping[str, Mapping[str, Mapping[str, int]]]
"""topic -> broker name -> queue id -> offset, as in a checkpoint and in startingOffsets"""

Security = Mapping[str, str]
"""Options of format("rocketmq") beside nameServer: credentials, tls, tls.ca, namespace and their
like
"""

OPEN: Final[Security] = MappingProxyType({})
LOOK_S: Final = 1

Job = Callable[[SparkSession, Stop], Summary]
Report = Callable[[int, Mapping[str, Any]], None]


def run(job: Job, *, master: str, memory: str, say: Say, reads_only: bool = False) -> Summary:
    """*job* in a Spark session of its own, ended cleanly by Ctrl-C.

    Raises OgiveError, also for what Spark failed with.

    A job that *reads_only* has nothing to bring to an end, nor has one whose Spark has not started:
    it is cancelled, and KeyboardInterrupt raised.
    """
    # register: Spark's own search for data sources has 10 s, and on a busy machine finds nothing in
    # them
    with own_session("ogive pipeline", master=master, memory=memory, say=say, ready=register) as (
        spark,
        stop,
    ):
        if not reads_only:
            return job(spark, stop)
        try:
            with cancelled(spark, stop):
                return job(spark, stop)
        except KeyboardInterrupt:
            say("stopped before the end: there is no result")
            raise


def read_all(
    spark: SparkSession,
    start: Callable[[], StreamingQuery],
    checkpoint: Path,
    stop: Stop,
    report: Report,
    *,
    at_once: bool = False,
) -> tuple[int, Counter[str]]:
    """`watch` the query that *start* returns to its end.

    Start and watch a second one if Spark ends the first after a batch of an earlier run.
    """
    again = ends_after_open_batch(checkpoint)
    rows, observed = watch(spark, start(), stop, report, at_once=at_once)
    if again and not stop.asked:
        more, also = watch(
            spark,
            start(),
            stop,
            lambda count, progress: report(rows + count, progress),
            at_once=at_once,
        )
        return rows + more, observed + also
    return rows, observed


def watch(
    spark: SparkSession, query: StreamingQuery, stop: Stop, report: Report, *, at_once: bool = False
) -> tuple[int, Counter[str]]:
    """Wait until *query* ends or *stop* is asked; the rows that its batches read, and what they
    observed of them, each number by its name.

    *report* gets rows so far and Spark's latest progress.

    The query's batch function must call ``stop.check()`` before it writes; *at_once* is for sinks
    that a half-written batch does not harm. Raises what the query failed with.
    """
    batches: dict[int, int] = {}
    observed: dict[int, Counter[str]] = {}
    ended = False
    level: str | None = None
    while not ended:
        try:
            ended = bool(query.awaitTermination(LOOK_S))
        except StreamingQueryException:
            # else it is our own Stopped, raised before anything of the next batch was written
            if not stop.asked:
                raise
            ended = True
        progress = query.recentProgress
        news = {one["batchId"]: one["numInputRows"] for one in progress if one["numInputRows"]}
        if news.items() - batches.items():
            batches |= news
            observed |= {one["batchId"]: _observed(one) for one in progress if one["numInputRows"]}
            report(sum(batches.values()), progress[-1])
        if stop.asked and not ended:
            # our Stopped is a failure for Spark
            level = level or silence(spark)
            if at_once or not query.status["isTriggerActive"]:
                query.stop()
                ended = True
    # What the stop has cut off may still fail, and log it, after the query has ended.
    if level is not None and not stop.ends_session:
        spark.sparkContext.setLogLevel(level)
    return sum(batches.values()), sum(observed.values(), Counter())


def _observed(progress: Mapping[str, Any]) -> Counter[str]:
    return Counter(
        {
            name: count
            for row in progress["observedMetrics"].values()
            for name, count in row.asDict().items()
        }
    )


def lag(progress: Mapping[str, Any]) -> str:
    """How far a query over one source is behind the end of its topics, to stand at the end of a
    line; nothing where Spark does not know it yet: of a batch that an earlier run had begun.
    """
    queues = reported_lag(progress["sources"][0])
    return f", {sum(queues.values()):,} behind" if queues else ""


def last_batch(checkpoint: Path) -> int:
    """The last batch that is finished by Spark's commit log, -1 for none."""
    return max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def positions(checkpoint: Path) -> Offsets:
    """Where a query with *checkpoint* goes on; empty for a new one."""
    batch = last_batch(checkpoint)
    if batch < 0:
        return {}
    offset: Offsets = json.loads(
        (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()[-1]
    )["q"]
    return offset


def reach(name_server: str, security: Security) -> Cluster:
    """The cluster, to ask it for offsets."""
    return cluster(access_of({**security, "nameServer": name_server}))


def waiting(
    name_server: str, security: Security, topics: Sequence[str], done: Offsets
) -> dict[str, int]:
    """Messages of each topic behind *done*: what a run would read now."""
    namespace = access_of(security).namespace
    left = dict.fromkeys(topics, 0)
    for queue, span in reach(name_server, security).spans(map(namespace.wrap, topics)).items():
        first = done.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id), 0)
        left[namespace.strip(queue.topic)] += max(0, span.max_offset - max(first, span.min_offset))
    return left
