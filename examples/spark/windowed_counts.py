"""Departures per hour of event time, as a stream with a watermark, back into a topic."""

import argparse
import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import ogive
import ogive.spark


def main(spark: SparkSession, name_server: str, folder: Path) -> None:
    source, target = "Departures", "DeparturesPerHour"
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        for topic in (source, target):
            admin.create_topic(topic, queues=2)
        # four hours from 2013-01-01T05:00Z
        for minute in range(0, 240, 5):
            body = {
                "origin": ("EWR", "JFK", "LGA")[minute // 5 % 3],
                "at": 1_357_016_400 + 60 * minute,
            }
            producer.submit(source, json.dumps(body).encode())
    messages = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, startingOffsets="earliest")
        .load(source)
    )
    events = messages.select(
        f.from_json(f.col("body").cast("string"), "origin STRING, at BIGINT").alias("event")
    ).select("event.*")
    timed = events.withColumn("at", f.timestamp_seconds("at")).withWatermark("at", "30 minutes")
    hours = timed.groupBy("origin", f.window("at", "1 hour")).count()
    rows = hours.select(
        f.to_json(f.struct("origin", f.col("window.start").alias("hour"), "count")).alias("body"),
        f.col("origin").alias("tags"),
    )
    writer = (
        rows.writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=target)
        .outputMode("append")
    )
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    counted = ogive.spark.read(target, name_server=name_server, spark=spark)
    for row in counted.select(f.col("body").cast("string").alias("body")).orderBy("body").collect():
        print(row.body)
    # the last hour is not there yet: the watermark, 30 minutes behind the last event, has not
    # passed its end


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    with tempfile.TemporaryDirectory() as temporary:
        main(ogive.spark.session("example"), parser.parse_args().name_server, Path(temporary))
