"""A driver that a test kills: queries that copy a topic into files and into other topics, until a
file says that all is sent.

    python -m tests.rel.spark_job MASTER NAME_SERVER TOPIC DIRECTORY

Writes DIRECTORY/result.json when it came to its end: for each copy how many rows it has and how
many different ones.
"""

import json
import random
import sys
import time
from functools import partial
from pathlib import Path

import ogive.spark

DELIVERIES = ("atLeastOnce", "idempotent", "transactional")
BATCH = 1000


def main(master: str, name_server: str, topic: str, directory: Path) -> None:
    config = {
        "spark.task.maxFailures": "4",
        "spark.executor.memory": "512m",
        # also a query that has nothing to do says soon that it runs
        "spark.sql.streaming.noDataProgressEventInterval": "100ms",
    }
    spark = ogive.spark.session("kills", master=master, memory="512m", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    # on a busy machine Spark's own search, which has 10 s and is made once, may find nothing
    ogive.spark.register(spark)
    source = spark.readStream.format("rocketmq").options(
        nameServer=name_server,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(BATCH),
    )

    def start(name: str, format_: str, **options: str) -> None:
        rows = source.load().selectExpr("cast(body as string) as body")
        sink = rows.writeStream.format(format_).queryName(name)
        query = sink.options(
            checkpointLocation=str(directory / f"checkpoint-{name}"), **options
        ).start()
        while query.exception() is None and not query.recentProgress:
            time.sleep(0.05)

    starts = [partial(start, "files", "json", path=str(directory / "files"))] + [
        partial(
            start,
            delivery,
            "rocketmq",
            nameServer=name_server,
            topic=f"{topic}_{delivery}",
            delivery=delivery,
        )
        for delivery in DELIVERIES
    ]
    # one after the other: Spark gives a Python process 10 s to start
    for one in random.sample(starts, len(starts)):
        one()
    while not (directory / "sent").exists():
        for query in spark.streams.active:
            if query.exception() is not None:
                raise SystemExit(f"{query.name}: {query.exception()}")
        if len(spark.streams.active) < 1 + len(DELIVERIES):
            raise SystemExit("a query has ended")
        time.sleep(0.1)
    for query in spark.streams.active:
        query.processAllAvailable()
    for query in spark.streams.active:
        query.stop()
    result = {"files": spark.read.json(str(directory / "files")).selectExpr("body", "body as key")}
    for delivery in DELIVERIES:
        copy = (
            spark.read.format("rocketmq")
            .option("nameServer", name_server)
            .schema("body binary, msgId string")
        )
        result[delivery] = copy.load(f"{topic}_{delivery}").selectExpr(
            "cast(body as string) as body", "msgId as key"
        )
    counts = {
        # an aggregate has one row
        name: frame.selectExpr(
            "count(*) as rows", "count(distinct body) as bodies", "count(distinct key) as keys"
        )
        .first()
        .asDict()  # type: ignore[union-attr]
        for name, frame in result.items()
    }
    (directory / "result.new").write_text(json.dumps(counts))
    (directory / "result.new").rename(directory / "result.json")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
