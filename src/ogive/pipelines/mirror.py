"""Copy of topics in another cluster, kept up to date: keys, tags, properties, sharding keys and
order stay the same.

Messages of one source queue go to one queue of the target, in their order; those with a sharding
key to the queue of that key. The checkpoint under *state* records the copied messages. A stop and a
restart copy nothing twice; a crash copies at most one batch twice, and nothing if *idempotent*.
Then Spark's own stream writes, and its sink looks up which rows of a repeated batch the target has
(see ogive.spark.dedup).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import ogive
from ogive.errors import InvalidOption, NoRoute
from ogive.model import PropertyName
from ogive.pipelines.job import (
    OPEN,
    REASONS,
    Say,
    Security,
    Show,
    Summary,
    count_remaining,
    positions,
    read_all,
    shown_by,
    source_options,
    stream_progress,
    watch,
    why_not,
    writable,
)
from ogive.spark.options import SinkOptions, access_of
from ogive.spark.session import activate
from ogive.spark.stopping import Stop


def mirror(
    spark: SparkSession,
    *,
    source: str,
    target: str,
    topics: Sequence[str],
    state: Path,
    stop: Stop,
    say: Say,
    show: Show | None = None,
    prefix: str = "",
    security: Security = OPEN,
    target_security: Security = OPEN,
    group: str | None = None,
    follow: bool = False,
    idempotent: bool = False,
    max_rows: int = 100_000,
    allow_loss: bool = False,
    dry_run: bool = False,
) -> Summary:
    """Copy from the name server *source* to *target*; with *follow* until stopped.

    *prefix* is put before the topics' names at the target.

    *group* shows the progress and the lag at the source. A topic that the target does not have is
    created with the same number of queues.
    """
    refuse_itself(source, target, prefix)
    summary = Summary("mirror", dry_run=dry_run)
    state = writable("state", state)
    reading = source_options(source, topics, group, security, max_rows, allow_loss, follow=follow)
    for topic in topics:
        SinkOptions.parse({**target_security, "nameServer": target, "topic": prefix + topic})
    if dry_run:
        left = count_remaining(source, security, topics, positions(state))
        summary.notes = [
            f"{topic} to {prefix}{topic}: {count:,} messages" for topic, count in left.items()
        ]
        summary.read = summary.written = sum(left.values())
        return summary
    there = {**target_security, "nameServer": target}
    for topic in topics:
        prepare({**security, "nameServer": source}, topic, there, prefix + topic)
    stream = spark.readStream.format("rocketmq").options(**reading)
    read = stream.load().withColumn("why", why_not())
    counted = read.observe(
        "skipped", *(f.count_if(f.col("why") == why).alias(why) for why in REASONS)
    )
    copies = counted.where("why IS NULL").select(
        f.concat(f.lit(prefix), "topic").alias("topic"),
        "body",
        "keys",
        "tags",
        "properties",
        f.coalesce(
            f.col("properties")[PropertyName.SHARDING_KEY],
            f.concat_ws("/", "brokerName", "queueId"),
        ).alias("shardingKey"),
        # its own id, so that mirrors of two clusters into one share no keys; its place, because a
        # source may hold an id twice
        f.concat_ws(
            "/",
            f.col("properties")[PropertyName.UNIQ_KEY],
            "topic",
            "brokerName",
            "queueId",
            "queueOffset",
        ).alias("uniqueKey"),
    )

    def write(rows: DataFrame, _: int) -> None:
        stop.check()
        rows.write.format("rocketmq").options(**there).mode("append").save()

    # a user's job may run this in any thread
    activate(spark)
    writer = copies.writeStream.option("checkpointLocation", str(state))
    writer = (
        writer.format("rocketmq").options(**there, delivery="idempotent")
        if idempotent
        else writer.foreachBatch(write)
    )
    triggered = (
        writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)
    )

    def report(rows: int, progress: Mapping[str, Any]) -> None:
        shown_by(say, show)(stream_progress(rows, "messages read", progress))

    if follow:
        summary.read, summary.skipped = watch(
            spark, triggered.start(), stop, report, at_once=idempotent
        )
    else:
        summary.read, summary.skipped = read_all(
            spark, triggered.start, state, stop, report, at_once=idempotent
        )
    summary.written = summary.read - summary.skipped.total()
    summary.stopped = stop.asked and not follow
    behind = sum(count_remaining(source, security, topics, positions(state)).values())
    summary.figures["lag"] = behind
    summary.notes.append(f"{behind:,} behind the source")
    return summary


def refuse_itself(source: str, target: str, prefix: str) -> None:
    """Raise InvalidOption if a topic would be copied into itself."""
    if source == target and not prefix:
        raise InvalidOption(
            "source and target are one cluster: give the copies other names with --prefix"
        )


def prepare(source: Security, topic: str, target: Security, name: str) -> None:
    """Create the topic at the target if it does not exist. Raises NoRoute if the source does not
    have it.
    """
    with ogive.Admin(client=access_of(target).client()) as there:
        try:
            there.route(name)
        except NoRoute:
            with ogive.Admin(client=access_of(source).client()) as here:
                queues = max(row.write_queues for row in here.route(topic).queues)
            there.create_topic(name, queues=queues)
