"""A driver that keeps state of a topic's messages with transformWithState, under
trigger(availableNow=True), which is to end by itself.

    python -m tests.integration.state_job NAME_SERVER TOPIC DIRECTORY

Writes DIRECTORY/result.json: for the time modes None and ProcessingTime (there with a TTL) whether
the query has ended, how many rows it read, and how many batches without rows it ran; a query is
stopped when these are PATIENCE.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ogive.spark

PATIENCE = 10
TIMEOUT_S = 120.0


def main(name_server: str, topic: str, directory: Path) -> None:
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class Counting(StatefulProcessor):
        def __init__(self, ttl_ms: int | None) -> None:
            self._ttl_ms = ttl_ms

        def init(self, handle: StatefulProcessorHandle) -> None:
            self._count = handle.getValueState("count", "count int", self._ttl_ms)

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Row],
            timerValues: Any,  # noqa: N803
        ) -> Iterator[Row]:
            before = self._count.get()
            count = (before[0] if before else 0) + sum(1 for _ in rows)
            self._count.update((count,))
            yield Row(queue=key[0], count=count)

    spark = ogive.spark.session("state", master="local[2]", memory="512m")
    spark.sparkContext.setLogLevel("ERROR")
    result = {}
    for mode, ttl_ms in (("None", None), ("ProcessingTime", 3_600_000)):
        source = spark.readStream.format("rocketmq").options(
            nameServer=name_server, subscribe=topic, startingOffsets="earliest"
        )
        counted = (
            source.load()
            .groupBy("queueId")
            .transformWithState(Counting(ttl_ms), "queue int, count int", "Update", mode)
        )
        writer = (
            counted.writeStream.format("noop")
            .outputMode("update")
            .option("checkpointLocation", str(directory / mode))
        )
        query = writer.trigger(availableNow=True).start()
        give_up = time.monotonic() + TIMEOUT_S
        while query.isActive and time.monotonic() < give_up:
            if sum(not progress["numInputRows"] for progress in query.recentProgress) >= PATIENCE:
                break
            time.sleep(0.05)
        ended = not query.isActive
        query.stop()
        if query.exception() is not None:
            raise SystemExit(str(query.exception()))
        rows = [progress["numInputRows"] for progress in query.recentProgress]
        result[mode] = {"ended": ended, "rows": sum(rows), "without": rows.count(0)}
    (directory / "result.json").write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
