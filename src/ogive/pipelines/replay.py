"""Replay of an archive, or of a time range of a topic, into a topic: with the original keys, tags
and properties, and at a given rate.

Messages are sent hour by hour, and within an hour in order of storage time. Those of one sharding
key, or of one queue without a key, keep their order. Progress is saved under *state* after every
chunk: a stop and a restart send nothing twice, a crash at most one chunk.
"""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from ogive.errors import InvalidOption
from ogive.model import PropertyName
from ogive.pipelines.job import (
    OPEN,
    REASONS,
    Say,
    Security,
    Show,
    Summary,
    sent_progress,
    shown_by,
    why_not,
    writable,
)
from ogive.pipelines.progress import HOUR, QUEUE, load, save, unseen_queues
from ogive.pipelines.reconcile import ARCHIVE, messages
from ogive.spark.options import SinkOptions
from ogive.spark.stopping import Stop

CHUNK: Final = 50_000
UNSEEN: Final = (
    "nobody could read their queue when their hour was sent: replay it with --where "
    "and another --state"
)


def replay(
    spark: SparkSession,
    *,
    source: str,
    name_server: str,
    target: str,
    to: str | None,
    state: Path,
    stop: Stop,
    say: Say,
    show: Show | None = None,
    security: Security = OPEN,
    target_security: Security = OPEN,
    since: datetime | None = None,
    until: datetime | None = None,
    where: str = "true",
    rate: int | None = None,
    dry_run: bool = False,
) -> Summary:
    """Send *source*, a topic of *name_server* or ``archive:FOLDER``, to the name server *target*,
    into the topic *to* (None: its own).

    *rate* is in messages a second. *since* (inclusive) and *until* limit the storage time.
    """
    summary = Summary("replay", dry_run=dry_run)
    state = writable("state", state)
    SinkOptions.parse({**target_security, "nameServer": target} | ({"topic": to} if to else {}))
    done = load(state, source=source, target=target, to=to, where=where, since=since, until=until)
    refuse_itself(source, to, name_server, target)
    since_at, until_at = (
        datetime.fromisoformat(done[name]) if done[name] else None for name in ("since", "until")
    )
    rows = messages(spark, source, name_server=name_server, security=security).where(where)
    rows = rows.where(f.col("storeTimestamp") >= f.lit(since_at)) if since_at else rows
    rows = rows.where(f.col("storeTimestamp") < f.lit(until_at))
    # UTC: local time has one hour twice in autumn
    rows = rows.withColumn("slot", f.expr("unix_seconds(storeTimestamp) div 3600"))
    if not source.startswith(ARCHIVE):
        # read the topic once, not for every hour
        rows = rows.persist(StorageLevel.DISK_ONLY)
    counts = [f.count_if(f.col("why") == why).alias(why) for why in REASONS]
    counts += [f.count("*").alias("read"), f.count_if(f.col("why").isNull()).alias("count")]
    hours = rows.withColumn("why", why_not()).groupBy("slot").agg(*counts).orderBy("slot").collect()
    to_send = sum(row["count"] for row in hours)
    summary.read = sum(row["read"] for row in hours)
    summary.skipped.update({why: sum(row[why] for row in hours) for why in REASONS})
    sendable = rows.where(why_not().isNull())
    if dry_run:
        summary.written = to_send
        # drops the reasons with no message
        summary.skipped += Counter()
        summary.notes = [
            f"{since_epoch(row['slot']):{HOUR}}: {row['count']:,} messages" for row in hours
        ]
        return summary
    if done["hour"] is None:
        done["known"] = sorted(
            row["queue"]
            for row in rows.select(f.concat_ws("\n", *QUEUE).alias("queue")).distinct().collect()
        )
    for row in unseen_queues(sendable, done):
        summary.skipped["sent by an earlier run"] -= row["count"]
        summary.skipped[UNSEEN] += row["count"]
        summary.notes.append(
            f"{row['queue'].replace(chr(10), '/')}: {row['count']:,} messages are in no run; its "
            "broker was away in the first"
        )
    begun = time.monotonic()
    for row in hours:
        start = since_epoch(row["slot"])
        name = f"{start:{HOUR}}"
        if done["hour"] is not None and name < done["hour"]:
            summary.skipped["sent by an earlier run"] += row["count"]
            continue
        if name != done["hour"]:
            done |= {"hour": name, "queues": {}}
        # not the slot: of an archive, Spark passes over files of other times
        stored = f.col("storeTimestamp")
        ready = number_messages(
            sendable.where((stored >= f.lit(start)) & (stored < f.lit(start + timedelta(hours=1)))),
            done["queues"],
        ).persist()
        count = ready.count()
        summary.skipped["sent by an earlier run"] += row["count"] - count
        size = min(CHUNK, rate or CHUNK)
        for first in range(1, count + 1, size):
            if stop.asked:
                break
            part = ready.where(f.col("number").between(first, first + size - 1))
            send(part, to, {**target_security, "nameServer": target})
            ends = part.groupBy(*QUEUE).agg(f.max("queueOffset").alias("last")).collect()
            done["queues"] |= {
                "\n".join(map(str, (end[column] for column in QUEUE))): end["last"] + 1
                for end in ends
            }
            save(state, done)
            summary.written += min(size, count - first + 1)
            left = to_send - summary.skipped["sent by an earlier run"]
            what = f"messages sent, at {name}"
            shown_by(say, show)(sent_progress(summary.written, left, what, begun))
            if rate is not None:
                stop.wait(max(0.0, begun + summary.written / rate - time.monotonic()))
        ready.unpersist()
        if stop.asked:
            summary.stopped = True
            break
    # drops the reasons with no message
    summary.skipped += Counter()
    rows.unpersist()
    return summary


def refuse_itself(source: str, to: str | None, name_server: str, target: str) -> None:
    """Raise InvalidOption if a topic would be sent into itself by mistake: to do so on purpose,
    name it.
    """
    if to is None and not source.startswith(ARCHIVE) and name_server == target:
        raise InvalidOption("a topic would be replayed into itself; name another one with --to")


def since_epoch(hours: int) -> datetime:
    return datetime.fromtimestamp(hours * 3600, UTC)


def number_messages(rows: DataFrame, done: dict[str, int]) -> DataFrame:
    """Number the messages of an hour in the order in which they are sent, without those that were
    sent already.

    Within a queue they are in order of offsets, whatever the clock did.
    """
    queue = f.concat_ws("\n", *QUEUE)
    if done:
        ends = rows.sparkSession.createDataFrame(list(done.items()), "queue STRING, first BIGINT")
        rows = rows.withColumn("queue", queue).join(f.broadcast(ends), "queue", "left")
        rows = rows.where(f.col("queueOffset") >= f.coalesce("first", f.lit(0))).drop(
            "queue", "first"
        )
    so_far = (
        Window.partitionBy(*QUEUE)
        .orderBy("queueOffset")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    in_time = rows.withColumn("at", f.max("storeTimestamp").over(so_far))
    return in_time.withColumn(
        "number", f.row_number().over(Window.orderBy("at", *QUEUE, "queueOffset"))
    )


def send(part: DataFrame, to: str | None, options: Security) -> None:
    order = f.coalesce(f.col("properties")[PropertyName.SHARDING_KEY], f.concat_ws("/", *QUEUE))
    topic = f.lit(to) if to else f.col("topic")
    rows = (
        part.withColumn("shardingKey", order)
        .withColumn("topic", topic)
        .repartition("shardingKey")
        .sortWithinPartitions("number")
    )
    columns = rows.select("topic", "body", "keys", "tags", "properties", "shardingKey")
    columns.write.format("rocketmq").options(**options).mode("append").save()
