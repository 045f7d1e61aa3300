"""Redrive of dead letters to their original topic, as new messages with their keys, tags,
properties and order of a sharding key.

All groups of that topic get them; to send them to the one group that failed, use ``ogive
dead-letter redrive``. A ledger under *state* records each letter that was sent, by its place and
id, so that no run sends a letter again; a crash repeats at most one chunk.
"""

import time
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

from ogive.errors import NoRoute
from ogive.model import MAX_TOPIC_LENGTH, NAME_CHARACTER, PropertyName, dlq_topic, validate_group
from ogive.pipelines.job import (
    OPEN,
    Say,
    Security,
    Show,
    Summary,
    connected_cluster,
    sent_progress,
    shown_by,
    why_not,
    writable,
)
from ogive.spark.options import access_of
from ogive.spark.stopping import Stop

PLACE: Final = ["topic", "brokerName", "queueId", "queueOffset"]
_TOPIC: Final = rf"^{NAME_CHARACTER}{{1,{MAX_TOPIC_LENGTH}}}\z"
NO_TOPIC: Final = "what it names as its origin is not a topic (choose one with --to)"
_LEDGER: Final = "topic STRING, brokerName STRING, queueId INT, queueOffset BIGINT, msgId STRING"


def redrive(
    spark: SparkSession,
    *,
    name_server: str,
    group: str,
    state: Path,
    stop: Stop,
    say: Say,
    show: Show | None = None,
    where: str = "true",
    to: str | None = None,
    security: Security = OPEN,
    chunk: int = 10_000,
    dry_run: bool = True,
) -> Summary:
    """Send the letters for which the SQL expression *where* is true to their original topic, or to
    *to*.

    Only report what would be sent, unless *dry_run* is False.
    """
    summary = Summary("redrive", dry_run=dry_run)
    state = writable("state", state)
    topic = dlq_topic(validate_group(group))
    try:
        connected_cluster(name_server, security).spans([access_of(security).namespace.wrap(topic)])
    except NoRoute:
        return no_letters(group, dry_run=dry_run)
    options = {**security, "nameServer": name_server}
    letters = spark.read.format("rocketmq").options(**options, includeMetadata="true").load(topic)
    origin = f.lit(to) if to else f.col("properties")[PropertyName.RETRY_TOPIC]
    marked = letters.withColumn("wanted", f.coalesce(f.expr(where), f.lit(False))).withColumn(
        "origin", origin
    )
    ledger = state / group
    sent = (
        spark.read.schema(_LEDGER).parquet(str(ledger))
        if ledger.exists()
        else spark.createDataFrame([], _LEDGER)
    )
    sent = sent.select(f.struct(*PLACE).alias("sent"), f.col("msgId").alias("sent_id")).distinct()
    # a ledger of an earlier release has no ids
    same = (f.struct(*PLACE) == f.col("sent")) & (f.coalesce("sent_id", "msgId") == f.col("msgId"))
    plan = marked.join(sent, same, "left").withColumn(
        "why",
        f.when(~f.col("wanted"), "not chosen")
        .when(f.col("sent").isNotNull(), "sent by an earlier run")
        .when(
            f.col("origin").isNull(), "does not say where it came from (choose a topic with --to)"
        )
        .when(~f.col("origin").rlike(_TOPIC), NO_TOPIC)
        .otherwise(why_not()),
    )
    chosen = (
        plan.where(f.col("why").isNull())
        .withColumn("number", f.row_number().over(Window.orderBy("storeTimestamp", *PLACE)))
        .select("number", "origin", "body", "keys", "tags", "properties", *PLACE, "msgId")
        # not persist(): Spark would recompute it when the ledger, which is in its plan, grows
        .localCheckpoint()
    )
    for row in plan.groupBy("why").count().collect():
        summary.read += row["count"]
        if row["why"] is not None:
            summary.skipped[row["why"]] = row["count"]
    targets = chosen.groupBy("origin", "tags").count().orderBy("origin", "tags").limit(20).collect()
    summary.notes += [
        f"{row['count']:,} to {row['origin']}" + (f", tag {row['tags']}" if row["tags"] else "")
        for row in targets
    ]
    count = chosen.count()
    if dry_run:
        summary.written = count
        return summary
    begun = time.monotonic()
    for first in range(1, count + 1, chunk):
        if stop.asked:
            summary.stopped = True
            break
        part = chosen.where(f.col("number").between(first, first + chunk - 1))
        messages = (
            part.coalesce(1)
            .sortWithinPartitions("number")
            .select(
                f.col("origin").alias("topic"),
                "body",
                "keys",
                "tags",
                "properties",
                f.col("properties")[PropertyName.SHARDING_KEY].alias("shardingKey"),
            )
        )
        messages.write.format("rocketmq").options(**options).mode("append").save()
        part.select(*PLACE, "msgId").coalesce(1).write.mode("append").parquet(str(ledger))
        summary.written += min(chunk, count - first + 1)
        shown_by(say, show)(sent_progress(summary.written, count, "dead letters sent", begun))
    return summary


def no_letters(group: str, *, dry_run: bool) -> Summary:
    return Summary("redrive", dry_run=dry_run, notes=[f"group {group} has no dead letters"])
