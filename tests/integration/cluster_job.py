"""A driver that reads a topic and writes it to others, as batches and as streams, on whatever runs
Spark.

    python -m tests.integration.cluster_job MASTER NAME_SERVER TOPIC DIRECTORY

Copies TOPIC to TOPIC_batch and TOPIC_stream. Writes DIRECTORY/result.json: which processes ran the
tasks that read, with how many rows.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(master: str) -> "SparkSession":
    if master.startswith("sc://"):
        from pyspark.sql import SparkSession

        # nothing of ogive is on this side
        return SparkSession.builder.remote(master).getOrCreate()
    import ogive.spark

    config = {
        "spark.executor.memory": "512m",
        # no task before both executors are there
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }
    return ogive.spark.session("cluster", master=master, memory="512m", config=config)


def executor() -> int:
    """The JVM above this task: parent of the daemon that made this worker."""
    daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(daemon.rpartition(")")[2].split()[1])


def main(master: str, name_server: str, topic: str, directory: Path) -> None:
    from pyspark.sql.functions import udf

    spark = session(master)
    server = {"nameServer": name_server}
    table = (
        spark.read.format("rocketmq")
        .options(**server, minPartitions="2")
        .schema("body binary")
        .load(topic)
    )
    where = udf(lambda _: executor(), "int")
    places = table.select(where("body").alias("executor")).groupBy("executor").count().collect()
    table.write.format("rocketmq").options(**server, topic=f"{topic}_batch").mode("append").save()
    source = spark.readStream.format("rocketmq").options(
        **server, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="600"
    )
    writer = (
        source.load()
        .selectExpr("body")
        .writeStream.format("rocketmq")
        .options(**server, topic=f"{topic}_stream")
    )
    query = (
        writer.option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (directory / "result.json").write_text(json.dumps({str(row[0]): row[1] for row in places}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
