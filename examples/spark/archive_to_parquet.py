"""A topic into Parquet files by day, each message once, restartable: a stream with a checkpoint
into Spark's file sink.
"""

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import ogive
import ogive.spark


def main(spark: SparkSession, name_server: str, folder: Path) -> None:
    topic = "ArchivedOrders"
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(topic, queues=4)
        for number in range(100):
            producer.submit(
                topic, b"order %d" % number, keys=str(number), tag=("paid", "open")[number % 2]
            )
    # the second run finds nothing new: the checkpoint knows
    for _ in range(2):
        orders = (
            spark.readStream.format("rocketmq")
            .options(nameServer=name_server, startingOffsets="earliest")
            .load(topic)
        )
        dated = orders.withColumn("day", f.to_date("storeTimestamp"))
        writer = (
            dated.writeStream.format("parquet")
            .partitionBy("day")
            .option("path", str(folder / "orders"))
        )
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        stored = spark.read.parquet(str(folder / "orders"))
        print(
            f"{stored.count()} orders in the archive, "
            f"{stored.where(stored.tags == 'paid').count()} paid"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    with tempfile.TemporaryDirectory() as temporary:
        main(ogive.spark.session("example"), parser.parse_args().name_server, Path(temporary))
