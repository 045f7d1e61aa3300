"""Spark job, in a process of its own: ``python -m examples.demo.onspark HOST:PORT
FOLDER``.

Streams the events, keeps on-time figures per airport and hour of event time, and after each batch
writes the hours that changed to a topic and to Parquet, with the batch's number. The newest version
of an hour counts, so a repeated batch changes nothing. No watermark: the state is the answer itself
(three airports times the hours of a year), and queues that are read unevenly would make events late
that are not. Reads the results and the dead-letter topic back as tables; reports in lines of JSON.
"""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.demo import names
from examples.demo.figures import DeadLetters
from examples.demo.truth import ON_TIME_MAX_DELAY_MIN, Figures
from ogive.model import dlq_topic
from ogive.spark import session
from ogive.spark.compat import limit_of_available_now

_EVENT = "type STRING, flight STRING, tail STRING, origin STRING, at BIGINT, delay INT"
_FIGURES = [column.name for column in dataclasses.fields(Figures)]
_HOUR = "airport STRING, hour BIGINT, batch BIGINT, " + ", ".join(
    f"{name} BIGINT" for name in _FIGURES
)
_EVENTS_A_BATCH = 260_000
_POLL_S = 1
# a job of a minute: a fifth less CPU, a quarter less memory
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(name_server: str, folder: Path) -> None:
    spark = session(
        "ogive demo", memory="512m", config={"spark.driver.extraJavaOptions": _JAVA_OPTIONS}
    )
    say(doing="starting the stream")
    job = Job(spark, name_server, folder)
    try:
        rows = job.stream()
    except StreamingQueryException as exc:
        # its text continues with the whole query plan
        raise SystemExit(
            "the streaming query failed: "
            f"{str(exc).partition('=== Streaming Query ===')[0].strip()}"
        ) from None
    say(doing="reading results and dead letters back")
    say(
        rows_streamed=rows,
        dead_letters=dataclasses.asdict(job.dead_letters()),
        parquet=job.save(job.newest(spark.read.parquet(str(job.parquet))), "parquet"),
        topic=job.save(job.newest(job.hours_in_topic()), "topic"),
    )
    spark.stop()


def say(**report: Any) -> None:
    print(json.dumps({"at": time.time()} | report), flush=True)


class Job:
    """Queries of the job; *folder* takes the Parquet files, the checkpoint and the results."""

    def __init__(self, spark: SparkSession, name_server: str, folder: Path) -> None:
        self._spark = spark
        self._name_server = name_server
        self._folder = folder
        self.parquet = folder / "on-time"

    def stream(self) -> int:
        """Read all events once, in bounded batches. Return their number."""
        events = (
            self._spark.readStream.format("rocketmq")
            .option("nameServer", self._name_server)
            .option("subscribe", names.FLIGHTS)
            .option("consumerGroup", names.SPARK_GROUP)
            .option("startingOffsets", "earliest")
            .options(**limit_of_available_now(_EVENTS_A_BATCH))
            .schema("body BINARY")
            .load()
        )
        query = (
            on_time(parsed(events, _EVENT))
            .writeStream.outputMode("update")
            .foreachBatch(self.write)
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        rows: dict[int, int] = {}
        finished = False
        while not finished:
            finished = bool(query.awaitTermination(_POLL_S))
            rows |= {
                progress["batchId"]: progress["numInputRows"] for progress in query.recentProgress
            }
            say(
                rows=sum(rows.values()),
                doing=_step(len(rows), reading=query.status["isDataAvailable"]),
            )
        return sum(rows.values())

    def write(self, hours: DataFrame, batch: int) -> None:
        """Write both sinks of a batch."""
        versions = hours.withColumn("batch", f.lit(batch)).persist()
        versions.drop("batch").write.mode("overwrite").parquet(str(self.parquet / f"batch={batch}"))
        messages = versions.select(
            f.to_json(f.struct("*")).alias("body"),
            f.concat_ws("/", "airport", "hour").alias("keys"),
            f.col("airport").alias("tags"),
            f.concat_ws("/", "airport", "hour").alias("shardingKey"),
        )
        messages.write.format("rocketmq").mode("append").option(
            "nameServer", self._name_server
        ).option("topic", names.ON_TIME).save()
        versions.unpersist()

    def hours_in_topic(self) -> DataFrame:
        return parsed(self._table(names.ON_TIME), _HOUR)

    def newest(self, versions: DataFrame) -> DataFrame:
        """Return for each hour the version of its last batch."""
        latest = versions.groupBy("airport", "hour").agg(
            f.max_by(f.struct(*_FIGURES), "batch").alias("newest")
        )
        return latest.select("airport", "hour", "newest.*")

    def dead_letters(self) -> DeadLetters:
        """Return the dead-letter topic of the cancellations, as a table."""
        letters = parsed(self._table(dlq_topic(names.CANCELLATION_GROUP)), _EVENT)
        by_airport = letters.groupBy("origin").agg(
            f.count("*").alias("rows"),
            f.countDistinct("flight").alias("flights"),
            f.count_if(f.col("tail").isNull()).alias("without_tail"),
        )
        found = by_airport.collect()
        return DeadLetters(
            rows=sum(row["rows"] for row in found),
            flights=sum(row["flights"] for row in found),
            without_tail=sum(row["without_tail"] for row in found),
            airports={row["origin"]: row["rows"] for row in found},
        )

    def save(self, hours: DataFrame, name: str) -> str:
        """Write the hours as lines of JSON lists [airport, hour in epoch ms, figures ...] to a
        file.

        Returns its path.
        """
        path = self._folder / f"{name}.jsonl"
        with path.open("w", encoding="ascii") as lines:
            lines.writelines(
                json.dumps(list(row)) + "\n"
                for row in hours.select("airport", "hour", *_FIGURES).toLocalIterator()
            )
        return str(path)

    def _table(self, topic: str) -> DataFrame:
        return (
            self._spark.read.format("rocketmq")
            .option("nameServer", self._name_server)
            .option("subscribe", topic)
            .load()
            .select("body")
        )


def _step(batches: int, *, reading: bool) -> str:
    """Return what a stream does that has ended so many batches; its rows count when their batch
    ends.
    """
    if reading:
        return f"reading and computing batch {batches + 1}, at most {_EVENTS_A_BATCH:,} events"
    return "between two batches" if batches else "starting the stream"


def parsed(messages: DataFrame, schema: str) -> DataFrame:
    """Return the JSON bodies as columns. A body that does not parse stops the job."""
    return messages.select(
        f.from_json(f.col("body").cast("string"), schema, {"mode": "FAILFAST"}).alias("it")
    ).select("it.*")


def on_time(events: DataFrame) -> DataFrame:
    """Return figures per airport and hour of event time; the hour is its beginning in epoch ms."""
    departed, arrived = f.col("type") == "departed", f.col("type") == "arrived"

    def total(condition: Column) -> Column:
        return f.coalesce(f.sum(f.when(condition, f.col("delay").cast("bigint"))), f.lit(0))

    hours = events.groupBy(
        f.col("origin").alias("airport"),
        f.window(f.timestamp_millis("at"), "1 hour").alias("window"),
    ).agg(
        f.count_if(f.col("type") == "scheduled").alias("scheduled"),
        f.count_if(departed).alias("departed"),
        f.count_if(departed & (f.col("delay") <= ON_TIME_MAX_DELAY_MIN)).alias("on_time"),
        total(departed).alias("delay_min"),
        f.count_if(arrived).alias("arrived"),
        total(arrived).alias("arrival_delay_min"),
        f.count_if(f.col("type") == "cancelled").alias("cancelled"),
    )
    return hours.select("airport", f.unix_millis("window.start").alias("hour"), *_FIGURES)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
