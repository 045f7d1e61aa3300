"""A driver that reads a topic to its end and notes the rows.

Its checkpoint may come from another release, of Spark or of ogive.

checkpoint_job.py NAME_SERVER TOPIC FOLDER [OPTION=VALUE ...]: with fail=N the batch of that number
fails when it has its rows, and stays open.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamReader

import ogive.spark


def load(stream: DataStreamReader, topic: str, options: Mapping[str, str]) -> DataFrame:
    """The stream of *topic*, unless *options* say otherwise what is read."""
    named = {"subscribePattern", "assign"} & options.keys()
    return (stream.load() if named else stream.load(topic)).select("queueId", "queueOffset", "body")


def note(frame: DataFrame, batch: int, folder: Path) -> None:
    rows = sorted(
        (row.queueId, row.queueOffset, bytes(row.body).decode()) for row in frame.collect()
    )
    with (folder / "rows.jsonl").open("a") as file:
        print(json.dumps({"batch": batch, "rows": rows}), file=file)


def main(name_server: str, topic: str, folder: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    fails = int(given.pop("fail", "-1"))
    spark = ogive.spark.session("checkpoint job", master="local[1]", memory="512m")

    def write(frame: DataFrame, batch: int) -> None:
        if batch == fails:
            frame.collect()
            raise RuntimeError("it is to fail")
        note(frame, batch, Path(folder))

    stream = spark.readStream.format("rocketmq").options(
        nameServer=name_server, startingOffsets="earliest", **given
    )
    writer = load(stream, topic, given).writeStream.foreachBatch(write)
    query = (
        writer.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if fails < 0:
            raise
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
