"""A topic without its duplicates, by key, into another topic: a stream that remembers the keys of
the last hour.
"""

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import ogive
import ogive.spark


def main(spark: SparkSession, name_server: str, folder: Path) -> None:
    source, target = "Doubled", "Unique"
    with ogive.Producer(name_server) as producer:
        for number in (1, 2, 1, 3, 2, 1, 4):
            producer.send(source, b"payment %d" % number, keys=f"payment-{number}")
    messages = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, startingOffsets="earliest")
        .load(source)
    )
    unique = messages.withWatermark("bornTimestamp", "1 hour").dropDuplicatesWithinWatermark(
        ["keys"]
    )
    writer = (
        unique.select("body", "keys")
        .writeStream.format("rocketmq")
        .options(nameServer=name_server, topic=target)
    )
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    for row in (
        ogive.spark.read(target, name_server=name_server, spark=spark).orderBy("keys").collect()
    ):
        print(f"{row['keys']}: {bytes(row.body).decode()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    with tempfile.TemporaryDirectory() as temporary:
        main(ogive.spark.session("example"), parser.parse_args().name_server, Path(temporary))
