"""Functions that the pipelines share: run, stop, watch, summary, folders.

A clean stop finishes the batch that is being written and begins no other, so that the next run
neither repeats nor misses a message.

Any client can store messages that cannot be sent again. The pipelines that send skip and count
them, with a reason each: no message may stop a pipeline.

Folders that a pipeline writes to must be on file systems of this machine, because it renames and
syncs files.
"""

import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from ogive.errors import InvalidOption
from ogive.model import MAX_BODY_BYTES
from ogive.spark import register
from ogive.spark.cli_session import own_session
from ogive.spark.cluster import Cluster, cluster
from ogive.spark.compat import (
    ends_after_open_batch,
    limit_of_available_now,
    reported_lag,
)
from ogive.spark.options import SourceOptions, access_of
from ogive.spark.stopping import Stop, cancelled, silence
from ogive.wire.message import MAX_PROPERTIES_BYTES


@dataclass(slots=True)
class Summary:
    """Result of a pipeline. Counts are messages.

    *skipped* has the reasons, *notes* other information; with *dry_run* nothing was written.
    """

    pipeline: str
    """Name of the pipeline."""
    read: int = 0
    """Messages read."""
    written: int = 0
    """Messages written."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Messages skipped, by reason."""
    notes: list[str] = field(default_factory=list)
    """Further information."""
    dry_run: bool = False
    """True if nothing was written."""
    stopped: bool = False
    """Stopped on request: the next run continues from here."""
    figures: dict[str, Any] = field(default_factory=dict)
    """Figures that only this pipeline has."""

    def as_json(self) -> dict[str, Any]:
        """Return the summary as ``--json`` prints it."""
        return {
            "pipeline": self.pipeline,
            "read": self.read,
            "written": self.written,
            "skipped": dict(self.skipped),
            "notes": self.notes,
            "dry_run": self.dry_run,
            "stopped": self.stopped,
            **self.figures,
        }

    def lines(self) -> list[str]:
        """Return the summary as lines for people."""
        head = (
            f"{self.pipeline}: {self.read:,} read, {self.written:,} "
            f"{'would be written' if self.dry_run else 'written'}"
        )
        if self.skipped:
            head += f", {self.skipped.total():,} skipped"
        lines = [head + (" (stopped; run it again to go on)" if self.stopped else "")]
        lines += [f"  skipped {count:,}: {why}" for why, count in sorted(self.skipped.items())]
        return lines + [f"  {note}" for note in self.notes]


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """Progress of a pipeline. Its text is a line for people."""

    rows: int
    """Messages so far."""
    what: str
    """Words for the messages in the line, such as "messages archived"."""
    rows_per_s: float
    """Messages a second: in a stream those of the last batch, else the mean so far."""
    lag: int | None = None
    """Messages that are left; None while this is unknown."""

    def __str__(self) -> str:
        left = "" if self.lag is None else f", {self.lag:,} behind"
        return f"{self.rows:,} {self.what}, {self.rows_per_s:,.0f} a second{left}"


Say = Callable[[str], None]
Show = Callable[[PipelineProgress], None]
"""Shows the progress; without one, its text goes to *say*."""
Offsets = Mapping[str, Mapping[str, Mapping[str, int]]]
"""topic -> broker name -> queue id -> offset, as in a checkpoint and in startingOffsets"""

Security = Mapping[str, str]
"""Options of format("rocketmq") in addition to nameServer: credentials, tls, tls.ca, namespace and
so on.
"""

OPEN: Final[Security] = MappingProxyType({})
LOOK_S: Final = 1

Job = Callable[[SparkSession, Stop], Summary]
Report = Callable[[int, Mapping[str, Any]], None]


def run(
    job: Job,
    *,
    master: str,
    memory: str,
    say: Say,
    reads_only: bool = False,
    config: Mapping[str, str] = MappingProxyType({}),
) -> Summary:
    """Run *job* in a Spark session of its own, with Spark's settings *config*; Ctrl-C ends it
    cleanly.

    Raises OgiveError, also for errors of Spark.

    A job that *reads_only*, or whose Spark has not started, has nothing to finish: it is cancelled,
    and KeyboardInterrupt is raised.
    """
    # register: Spark's own search for data sources takes at most 10 s, and on a busy machine finds
    # none in that time
    with own_session(
        "ogive pipeline", master=master, memory=memory, say=say, ready=register, config=config
    ) as (spark, stop):
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
    """`watch` the query that *start* returns until it ends.

    If Spark ends it after a batch of an earlier run, start and watch a second one.
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
    """Wait until *query* ends or *stop* is requested. Return the number of rows that its batches
    read, and the sums of their observed metrics, by name.

    *report* gets the number of rows so far and Spark's latest progress.

    The query's batch function must call ``stop.check()`` before it writes; *at_once* is for sinks
    that a partly written batch does not harm. Raises the error with which the query failed.
    """
    batches: dict[int, int] = {}
    observed: dict[int, Counter[str]] = {}
    ended = False
    level: str | None = None
    while not ended:
        try:
            ended = bool(query.awaitTermination(LOOK_S))
        except StreamingQueryException:
            # Also after a stop request a query can fail by itself.
            if not stop.left_batch:
                raise
            ended = True
        progress = query.recentProgress
        news = {one["batchId"]: one["numInputRows"] for one in progress if one["numInputRows"]}
        if news.items() - batches.items():
            batches |= news
            observed |= {one["batchId"]: _observed(one) for one in progress if one["numInputRows"]}
            report(sum(batches.values()), progress[-1])
        if stop.asked and not ended:
            # Spark treats our Stopped as a failure
            level = level or silence(spark)
            if at_once or not query.status["isTriggerActive"]:
                query.stop()
                ended = True
    # Interrupted work may still fail, and log that, after the query has ended.
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


def stream_progress(rows: int, what: str, progress: Mapping[str, Any]) -> PipelineProgress:
    """Return the progress of a query with one source, by Spark's latest report.

    Spark does not know the lag in a batch that an earlier run began.
    """
    queues = reported_lag(progress["sources"][0])
    lag = sum(queues.values()) if queues else None
    return PipelineProgress(rows, what, progress.get("processedRowsPerSecond") or 0.0, lag)


def sent_progress(sent: int, total: int, what: str, begun: float) -> PipelineProgress:
    """Return the progress of a pipeline that has sent messages since *begun*, a monotonic time."""
    rows_per_s = sent / max(time.monotonic() - begun, 1e-3)
    return PipelineProgress(sent, f"of {total:,} {what}", rows_per_s, total - sent)


def shown_by(say: Say, show: Show | None) -> Show:
    """Return *show*, or without one a function that gives the text to *say*."""
    return show or (lambda progress: say(str(progress)))


def last_batch(checkpoint: Path) -> int:
    """Return the last finished batch by Spark's commit log, -1 if there is none."""
    return max((int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def positions(checkpoint: Path) -> Offsets:
    """Return the offsets at which a query with *checkpoint* continues; empty for a new one."""
    batch = last_batch(checkpoint)
    return planned(checkpoint, batch) if batch >= 0 else {}


def planned(checkpoint: Path, batch: int) -> Offsets:
    """Return the offsets at which *batch* ends, by Spark's plan."""
    offset: Offsets = json.loads(
        (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()[-1]
    )["q"]
    return offset


def source_options(
    name_server: str,
    topics: Sequence[str],
    group: str | None,
    security: Security,
    max_rows: int,
    allow_loss: bool,
    *,
    follow: bool = False,
) -> dict[str, str]:
    """Return the options of the source of a stream with batches of *max_rows*, which ends with the
    messages that exist now, unless it must *follow*. Raises InvalidOption.
    """
    options = {
        **security,
        "nameServer": name_server,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        **({"maxOffsetsPerTrigger": str(max_rows)} if follow else limit_of_available_now(max_rows)),
        "failOnDataLoss": str(not allow_loss).lower(),
    }
    options |= {"consumerGroup": group} if group else {}
    SourceOptions.parse(options)
    return options


def with_remaining(
    summary: Summary, name_server: str, security: Security, topics: Sequence[str], checkpoint: Path
) -> Summary:
    """Return the summary of a dry run: what a run would read now."""
    left = count_remaining(name_server, security, topics, positions(checkpoint))
    summary.notes = [f"{topic}: {count:,} messages" for topic, count in left.items()]
    summary.read = summary.written = sum(left.values())
    return summary


def read_in_batches(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataFrame, int], None],
    checkpoint: Path,
    stop: Stop,
    show: Show,
    summary: Summary,
) -> None:
    """Give *write* all messages that there are now, batch by batch, and count them."""
    stream = spark.readStream.format("rocketmq").options(**options).load()
    writer = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
    )

    def report(rows: int, progress: Mapping[str, Any]) -> None:
        show(stream_progress(rows, "messages archived", progress))

    rows, _ = read_all(spark, writer.start, checkpoint, stop, report)
    summary.read += rows
    summary.written += rows


def connected_cluster(name_server: str, security: Security) -> Cluster:
    """Return the cluster, to query offsets."""
    return cluster(access_of({**security, "nameServer": name_server}))


def count_remaining(
    name_server: str, security: Security, topics: Sequence[str], done: Offsets
) -> dict[str, int]:
    """Count the messages of each topic after *done*, which a run would read now."""
    namespace = access_of(security).namespace
    left = dict.fromkeys(topics, 0)
    for queue, span in (
        connected_cluster(name_server, security).spans(map(namespace.wrap, topics)).items()
    ):
        first = done.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id), 0)
        left[namespace.strip(queue.topic)] += max(0, span.max_offset - max(first, span.min_offset))
    return left


UNREADABLE: Final = "its sender wrote a body that nobody can read"
TOO_LARGE: Final = (
    f"its body, inflated, is over the {MAX_BODY_BYTES:,} bytes that a message may have"
)
TOO_MANY_PROPERTIES: Final = (
    "its properties and those of a copy are over the "
    f"{MAX_PROPERTIES_BYTES:,} bytes that a message may have"
)
REASONS: Final = (UNREADABLE, TOO_LARGE, TOO_MANY_PROPERTIES)

_ADDED: Final = 512
"""Bytes that a copy may need in addition: a unique key, a sharding key with the names of topic and
broker, and the next broker's own properties.
"""


def why_not() -> Column:
    """Return one of REASONS by the columns body and properties; null for a message that can be
    sent.
    """
    names, values = f.map_keys("properties"), f.map_values("properties")
    properties = f.octet_length(f.concat_ws("", names, values)) + 2 * f.size("properties")
    return (
        f.when(f.col("body").isNull(), UNREADABLE)
        .when(f.octet_length("body") > MAX_BODY_BYTES, TOO_LARGE)
        .when(properties > MAX_PROPERTIES_BYTES - _ADDED, TOO_MANY_PROPERTIES)
    )


_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):/")
"""The scheme of a URL; a drive letter of Windows is not one."""


def local(option: str, place: str | Path) -> Path:
    """Return *place* as a path; ``file:///lake`` is ``/lake``.

    Raises InvalidOption for another file system, such as ``s3://lake``.
    """
    text = re.sub(r"^file:(//)?(?=/)", "", str(place))
    scheme = _SCHEME.match(text)
    if scheme:
        raise InvalidOption(
            f"{option} {place}: pipelines rename and sync files themselves, which {scheme[1]}: "
            "does not allow; name a folder of this "
            "machine, also a mounted one, and copy it from there"
        )
    return Path(text)


def writable(option: str, place: str | Path) -> Path:
    """Return the folder, which may be new.

    Raises InvalidOption if nothing can be written there: at once, not after Spark has read
    everything, and in a dry run as well.
    """
    path = local(option, place)
    # not Path.exists(), which raises where this user may not look
    places = (path, *path.absolute().parents)
    there = next(one for one in places if os.path.exists(one))  # noqa: PTH110
    if not there.is_dir():
        raise InvalidOption(f"{option} {place}: {there} is a file, and a folder is expected")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidOption(f"{option} {place}: this user may not write in {there}")
    try:
        with tempfile.TemporaryDirectory(prefix=".ogive-", dir=there) as probe:
            file = Path(probe, "probe")
            file.write_bytes(b"0")
            file.rename(file.with_suffix(".new"))
    except OSError as exc:
        raise InvalidOption(
            f"{option} {place}: nothing can be written in {there}: {exc.strerror or exc}"
        ) from None
    return path
