"""``ogive run --engine spark``: a streaming query for each consumer group, kept running until it is
stopped.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import ogive
from ogive.client import rpc
from ogive.client.config import ClientConfig
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.listener_call import bound
from ogive.client.consumer.member import check_one_group
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener
from ogive.client.portal import portal
from ogive.errors import InvalidOption, NoRoute, OgiveError
from ogive.model import retry_topic
from ogive.spark.cli_session import own_session
from ogive.spark.cluster_options import Access
from ogive.spark.compat import ADMISSION_CONTROL, ends_after_open_batch, register_source
from ogive.spark.failures import is_final, reason
from ogive.spark.listener_source import (
    FORMAT,
    ListenerSource,
    Work,
    modules_with_telemetry,
    options_of,
)
from ogive.spark.stopping import Stop, silence
from ogive.wire.bodies.configs import TopicConfig

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
RESTART_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
# in a row, without a batch between them
MAX_RESTARTS: Final = 20

Say = Callable[[str], None]


@dataclass(slots=True)
class Totals:
    """The counts of one group since the job began; *failed* are messages of failed calls."""

    messages: int = 0
    failed: int = 0
    batches: int = 0


class GroupJob:
    """The query of one consumer group.

    *checkpoint* is its folder; with *once* it ends when it has consumed the messages that exist at
    the start.
    """

    def __init__(
        self,
        spark: SparkSession,
        work: Work,
        access: Access,
        checkpoint: Path,
        say: Say,
        *,
        once: bool = False,
    ) -> None:
        self.totals = Totals()
        self._spark = spark
        self._work = work
        self._access = access
        self._checkpoint = checkpoint
        self._say = say
        self._once = once
        self._stop_file = checkpoint.parent / f"{checkpoint.name}.stop"
        self._query: StreamingQuery | None = None
        # the last batch that is counted
        self._seen = -1
        self._failures = 0
        self._restart_at = 0.0
        # Spark ends the query before it has read everything
        self._again = False

    def start(self) -> None:
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        for left in (self._stop_file, self._stop_file.with_suffix(".seen")):
            left.unlink(missing_ok=True)
        self._again = self._once and ends_after_open_batch(self._checkpoint)
        everything = self._once and not ADMISSION_CONTROL
        options = options_of(self._work, self._access, self._stop_file, everything=everything)
        stream = self._spark.readStream.format(FORMAT).options(**options).load()
        counted = stream.observe(
            "listeners", f.sum("messages").alias("messages"), f.sum("failed").alias("failed")
        )
        writer = (
            counted.writeStream.format("noop")
            .option("checkpointLocation", str(self._checkpoint))
            .queryName(self._work.group)
        )
        self._query = (
            writer.trigger(availableNow=True)
            if self._once
            else writer.trigger(processingTime="0 seconds")
        ).start()
        self._seen = -1

    def look(self) -> bool:
        """Count progress, and restart the query after a failure. Return False once it has ended.

        Raises OgiveError for a failure that another try cannot fix.
        """
        query = self._query
        if query is None:
            if time.monotonic() >= self._restart_at:
                self.start()
            return True
        self._count(query)
        if query.isActive:
            return True
        try:
            query.awaitTermination()
        except StreamingQueryException as exc:
            self._failed(str(exc))
            return True
        if self._again:
            self.start()
            return True
        return False

    def stop(self, timeout_s: float) -> None:
        """End after the current batch, or after *timeout_s* in the middle of it: its messages are
        then delivered again.
        """
        query = self._query
        if query is None:
            return
        if query.isActive:
            self._stop_file.touch()
            deadline = time.monotonic() + timeout_s
            seen = self._stop_file.with_suffix(".seen")
            while not seen.exists() and time.monotonic() < deadline and query.isActive:
                time.sleep(0.05)
            level = silence(self._spark)
            query.stop()
            self._spark.sparkContext.setLogLevel(level)
        self._count(query)

    def _count(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            if progress["batchId"] <= self._seen or not progress["numInputRows"]:
                continue
            self._seen = progress["batchId"]
            observed: Any = progress["observedMetrics"]
            row = observed.get("listeners")
            if row is not None:
                self.totals.messages += row["messages"] or 0
                self.totals.failed += row["failed"] or 0
            self.totals.batches += 1
            self._failures = 0

    def _failed(self, text: str) -> None:
        self._query = None
        self._failures += 1
        why = reason(text)
        if is_final(text) or self._failures > MAX_RESTARTS:
            raise OgiveError(f"the job of group {self._work.group} failed: {why}")
        pause = RESTART_S[min(self._failures, len(RESTART_S)) - 1]
        self._restart_at = time.monotonic() + pause
        self._say(f"{self._work.group}: {why}; starting again in {pause:.0f} s")


def run_listeners(
    spark: SparkSession,
    listeners: Sequence[AnyListener],
    *,
    client: ClientConfig | Access,
    checkpoint: Path,
    stop: Stop,
    say: Say,
    partitions: int | None = None,
    wait_s: float = 10.0,
    once: bool = False,
) -> dict[str, Totals]:
    """Run *listeners* on Spark until *stop*, or with *once* until they have consumed the messages
    that exist at the start. Return the counts of each group.

    *client* is an Access if executors shall read credentials or authorities from files.
    *checkpoint* is a folder that all restarts share, on a cluster one that all machines reach; each
    group has a folder in it. Raises InvalidOption for a setting that only the other engine
    supports, OgiveError for a job that fails repeatedly.
    """
    access = client if isinstance(client, Access) else Access.of(client)
    bare = replace(_settings(client), credentials=None, ssl=False)
    register_source(spark, ListenerSource)
    _check_speculation(spark.sparkContext.getConf(), listeners)
    tasks = partitions or spark.sparkContext.defaultParallelism
    jobs: dict[str, GroupJob] = {}
    for group, ours in prepared(listeners, client).items():
        jobs[group] = GroupJob(
            spark,
            Work(bare, tuple(ours), tasks, modules_with_telemetry(ours)),
            access,
            checkpoint / group,
            say,
            once=once,
        )
    for job in jobs.values():
        job.start()
    running = dict(jobs)
    said = ""
    try:
        while running and not stop.asked:
            running = {group: job for group, job in running.items() if job.look()}
            news = ", ".join(
                f"{group}: {job.totals.messages:,} consumed, {job.totals.failed:,} failed"
                for group, job in jobs.items()
            )
            if news != said:
                said = news
                say(news)
            if running:
                stop.wait(LOOK_S)
    finally:
        for job in jobs.values():
            job.stop(wait_s)
    return {group: job.totals for group, job in jobs.items()}


def _check_speculation(settings: SparkConf, listeners: Sequence[AnyListener]) -> None:
    """Refuse speculation: ranges that are not orderly would be consumed by every attempt that Spark
    starts.
    """
    unordered = [one.name for one in listeners if not one.config.orderly]
    if settings.get("spark.speculation") == "true" and unordered:
        raise InvalidOption(
            "spark.speculation is on: a slow task gets a second one beside it, and "
            f"{', '.join(unordered)} would be called twice for all "
            "that is left of its messages. Switch it off for this job"
        )


def serve(
    listeners: Sequence[AnyListener],
    *,
    client: ClientConfig | Access,
    checkpoint: Path,
    say: Say,
    master: str = "local[*,4]",
    memory: str = "1g",
    py_files: Sequence[str] = (),
    once: bool = False,
    wait_s: float = 10.0,
) -> dict[str, Totals]:
    """Run `run_listeners` in a new Spark session, until Ctrl-C or SIGTERM.

    Raises KeyboardInterrupt if one comes while Spark starts.
    """
    # report what cannot work at once, not after Spark has started
    prepared(listeners, client)
    # where the listeners' module was found: Spark's processes look there, too
    here = str(Path.cwd())
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    ).rstrip(os.pathsep)

    def add_files(spark: SparkSession) -> None:
        for file in py_files:
            spark.sparkContext.addPyFile(file)

    with own_session("ogive run", master=master, memory=memory, say=say, ready=add_files) as (
        spark,
        stop,
    ):
        return run_listeners(
            spark,
            listeners,
            client=client,
            checkpoint=checkpoint.absolute(),
            stop=stop,
            say=say,
            wait_s=wait_s,
            once=once,
        )


def prepared(
    listeners: Sequence[AnyListener], client: ClientConfig | Access
) -> dict[str, list[AnyListener]]:
    """Group the *listeners*, once `check` and `prepare` have accepted them.

    Raises what those raise.
    """
    here = (
        client.client(_settings(client))
        if isinstance(client, Access)
        else Access.of(client).client(client)
    )
    groups: dict[str, list[AnyListener]] = {}
    for one in listeners:
        groups.setdefault(one.config.group, []).append(one)
    for ours in groups.values():
        check(ours)
        prepare(here, ours)
    return groups


def _settings(client: ClientConfig | Access) -> ClientConfig:
    return (
        ClientConfig(namespace=client.namespace.name or None)
        if isinstance(client, Access)
        else client
    )


def check(listeners: Sequence[AnyListener]) -> None:
    """Raise InvalidOption for what Spark cannot run."""
    check_one_group([one.config for one in listeners])
    for one in listeners:
        if not one.config.auto_commit:
            raise InvalidOption(
                f"{one.name} commits by itself (auto_commit=False), and a batch could not end: use "
                "--engine local"
            )
        if one.config.broadcast:
            raise InvalidOption(
                f"{one.name} is broadcasting: every member would get every message, which a Spark "
                "job has not; use --engine local"
            )
        if one.config.mode == "pop":
            raise InvalidOption(
                f'{one.name} pops (mode="pop"), and a batch of a Spark job is a range of offsets: '
                "use --engine local"
            )


def prepare(client: ClientConfig, listeners: Sequence[AnyListener]) -> None:
    """Create the group's retry topic if necessary, and check that the topics exist: a stream cannot
    begin without its queues.

    Raises SubscriptionInvalid for SQL that a broker refuses, and BrokerInternalError if it filters
    by tags only.
    """
    group = listeners[0].config.group
    portal().call(check_filters(client, listeners))
    with ogive.Admin(client=client) as admin:
        route = None
        for one in listeners:
            route = admin.route(one.config.topic)
        try:
            admin.route(retry_topic(group))
            return
        except NoRoute:
            pass
    assert route is not None
    masters = [broker.addresses[0] for broker in route.brokers if 0 in broker.addresses]

    async def create() -> None:
        async with ClientInstance(client) as instance:
            name = retry_topic(instance.namespace.wrap(group))
            for address in masters:
                await rpc.create_topic(
                    instance.pool, address, TopicConfig(name=name, read_queues=1, write_queues=1)
                )

    portal().call(create())


async def check_filters(client: ClientConfig, listeners: Sequence[AnyListener]) -> None:
    """Let a broker check each listener's SQL, so that the job fails at its start and not in its
    tasks.
    """
    async with ClientInstance(client) as instance:
        ours = [bound(one, instance.namespace).config for one in listeners]
        calls = GroupClient(instance, ours[0].group)
        for one in ours:
            await instance.routes.find(one.topic)
            await calls.check_filter(one.subscription(0))
