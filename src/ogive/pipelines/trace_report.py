"""Latencies from the message trace topic: of sends by topic, of deliveries and of listeners by
group, topic and queue.

Spark's own functions parse the records; their fields are those of Apache's TraceDataEncoder. A
trace does not name the queue of a message, so it is joined with the topics by the unique key, as
far as they still have the message.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from ogive.model import TRACE_TOPIC, PropertyName
from ogive.pipelines.job import OPEN, Say, Security, Summary, writable
from ogive.pipelines.page import page

LEVELS: Final = (0.5, 0.95, 0.99)
LAST_MS: Final = 253402214399999
"""A day before the end of the year 9999: a client may write traces in other units, and Spark has no
later times.
"""
PLACE: Final = "topic STRING, brokerName STRING, queueId INT, properties MAP<STRING,STRING>"


def trace_report(
    spark: SparkSession,
    *,
    name_server: str,
    to: Path,
    say: Say,
    trace_topic: str = TRACE_TOPIC,
    since: datetime | None = None,
    security: Security = OPEN,
    bucket: str = "1 minute",
    dry_run: bool = False,
) -> Summary:
    """Write a self-contained HTML page to *to*. *bucket* is the step of its time axis."""
    summary = Summary("trace-report", dry_run=dry_run)
    options = {**security, "nameServer": name_server}
    stored = spark.read.format("rocketmq").options(**options).load(trace_topic)
    stored = stored.where(f.col("storeTimestamp") >= f.lit(since)) if since else stored
    to = writable("to", to.parent) / to.name
    if dry_run:
        # Spark checks the words now
        stored.select(f.window("storeTimestamp", bucket))
        summary.read = stored.count()
        summary.notes.append(f"{summary.read:,} trace messages would be read; nothing is written")
        return summary
    say("reading traces")
    records = parse(stored).persist()
    try:
        steps = {row["step"]: row["count"] for row in records.groupBy("step").count().collect()}
        known = {"Pub", "SubBefore", "SubAfter"}
        summary.read = sum(steps.values())
        for step in sorted(steps.keys() - known):
            summary.skipped[f"step {step[:40]}"] = steps[step]
        deliveries = delivered(records, places(spark, records, options, summary)).persist()
        sent = records.where("step = 'Pub'")
        figures = {
            "Sends by topic": rows(sent, ["topic"], f.col("cost"), failed="success = 'false'"),
            "Delivery by group and topic": rows(
                deliveries, ["group", "topic"], f.col("late"), failed="success = 'false'"
            ),
            "Listener by group and topic": rows(
                deliveries, ["group", "topic"], f.col("cost"), failed="success = 'false'"
            ),
            "Delivery by group and queue": rows(
                deliveries, ["group", "queue"], f.col("late"), failed="success = 'false'"
            ),
        }
        when = f.window(f.timestamp_millis("at"), bucket)["start"]
        over_time = (
            deliveries.groupBy("group", f.unix_millis(when).alias("at"))
            .agg(*quantiles(f.col("late")))
            .orderBy("at")
            .collect()
        )
        series: dict[str, list[tuple[int, float]]] = {}
        for row in over_time:
            if row["quantiles"] is not None:
                series.setdefault(row["group"], []).append((row["at"], row["quantiles"][1]))
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(page(figures, series, read=summary.read, bucket=bucket), encoding="utf-8")
        deliveries.unpersist()
    finally:
        records.unpersist()
    summary.written = 1
    summary.figures["report"] = {
        name: [_plain(row) for row in table] for name, table in figures.items()
    }
    summary.notes.append(f"the report is {to}")
    return summary


def parse(stored: DataFrame) -> DataFrame:
    """Return a row for each record: step, at, group, topic, id, request, cost, retries, success.

    Times are in milliseconds, and null if Spark cannot represent them.
    """
    body = f.try_validate_utf8(f.col("body").cast("string"))
    text = f.explode(f.split(body, "\u0002")).alias("record")
    fields = (
        stored.select(text).where("record <> ''").select(f.split("record", "\u0001").alias("f"))
    )

    def field(**by_step: int) -> Column:
        found = f.lit(None).cast("string")
        for step, place in by_step.items():
            found = f.when(f.get("f", f.lit(0)) == step, f.get("f", f.lit(place))).otherwise(found)
        return f.nullif(found, f.lit("null"))

    at = field(Pub=1, SubBefore=1, SubAfter=7).try_cast("bigint")
    return fields.select(
        f.get("f", f.lit(0)).alias("step"),
        f.when(at.between(0, LAST_MS), at).alias("at"),
        field(Pub=3, SubBefore=3, SubAfter=8).alias("group"),
        field(Pub=4).alias("topic"),
        field(Pub=5, SubBefore=5, SubAfter=2).alias("id"),
        field(SubBefore=4, SubAfter=1).alias("request"),
        field(Pub=10, SubAfter=3).try_cast("bigint").alias("cost"),
        field(SubBefore=6).try_cast("int").alias("retries"),
        field(Pub=13, SubAfter=4).alias("success"),
    )


def places(
    spark: SparkSession, records: DataFrame, options: Mapping[str, str], summary: Summary
) -> DataFrame:
    """Map ids to queues, for the topics in the traces that can be read."""
    found = spark.createDataFrame([], "id STRING, queue STRING")
    for row in (
        records.where("step = 'Pub' and topic is not null").select("topic").distinct().collect()
    ):
        table = spark.read.format("rocketmq").options(**options).schema(PLACE).load(row["topic"])
        queue = f.concat_ws("/", "topic", "brokerName", "queueId").alias("queue")
        try:
            table.limit(1).count()
            found = found.union(
                table.select(f.col("properties")[PropertyName.UNIQ_KEY].alias("id"), queue)
            )
        except PySparkException:
            summary.notes.append(
                f"the queues of {row['topic']} are not known: the topic cannot be read"
            )
    return found.dropDuplicates(["id"])


def delivered(records: DataFrame, queues: DataFrame) -> DataFrame:
    """Return a row for each delivery: group, topic, queue, at, late (first delivery after the
    send), cost and success of its listener.
    """
    sent = (
        records.where("step = 'Pub'")
        .groupBy("id")
        .agg(f.first("topic").alias("topic"), f.min("at").alias("sent_at"))
    )
    before = records.where("step = 'SubBefore'").select("group", "id", "request", "at", "retries")
    after = records.where("step = 'SubAfter'").select("id", "request", "cost", "success")
    late = f.when(
        (f.col("retries") == 0) | f.col("retries").isNull(),
        f.greatest(f.col("at") - f.col("sent_at"), f.lit(0)),
    )
    whole = (
        before.join(after, ["id", "request"], "left")
        .join(sent, "id", "left")
        .join(queues, "id", "left")
    )
    return whole.withColumn("late", late).fillna("unknown", ["group", "topic", "queue"])


def quantiles(value: Column) -> list[Column]:
    levels = f.array(*map(f.lit, LEVELS))
    return [
        f.percentile_approx(value, levels).alias("quantiles"),
        f.count(value).alias("count"),
        f.max(value).alias("most"),
    ]


def rows(
    records: DataFrame, by: list[str], value: Column, *, failed: str
) -> list[Mapping[str, Any]]:
    """Return by group: name, count, failed, quantiles (LEVELS) and the largest, in milliseconds."""
    grouped = records.groupBy(f.concat_ws(" · ", *by).alias("name")).agg(
        *quantiles(value), f.count_if(f.expr(failed)).alias("failed")
    )
    return [row.asDict() for row in grouped.orderBy("name").collect() if row["count"]]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if name == "quantiles" else value for name, value in row.items()}
