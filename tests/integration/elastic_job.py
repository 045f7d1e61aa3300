"""A driver on a cluster with dynamic allocation: a stream whose executors are given back while
nothing comes, and asked for again by the next messages.

    python -m tests.integration.elastic_job MASTER NAME_SERVER TOPIC DIRECTORY

Copies TOPIC to TOPIC_copy. Writes DIRECTORY/result.json: how many tasks a batch has, and how many
executors there were at each step.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ogive
import ogive.spark

PATIENCE_S = 240.0
SETTINGS = {
    "spark.dynamicAllocation.enabled": "true",
    # there is no shuffle service
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
}


def main(master: str, name_server: str, topic: str, directory: Path) -> None:
    spark = ogive.spark.session("elastic", master=master, memory="512m", config=SETTINGS)
    context: Any = spark.sparkContext

    def executors() -> int:
        """Without the driver, which Spark counts as one."""
        return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1

    seen = [executors()]

    def wait_until(reached: Callable[[int], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not reached(executors()):
            if time.monotonic() > deadline or query.exception() is not None:
                raise SystemExit(f"{executors()} executors, after {seen}: {query.exception()}")
            time.sleep(0.05)
        seen.append(executors())

    source = spark.readStream.format("rocketmq").options(
        nameServer=name_server, subscribe=topic, startingOffsets="earliest"
    )
    sink = source.load().select("body").writeStream.format("rocketmq")
    query = sink.options(
        nameServer=name_server,
        topic=f"{topic}_copy",
        delivery="transactional",
        checkpointLocation=str(directory / "checkpoint"),
    ).start()
    # the first batch asks for them
    wait_until(lambda now: now == 2)
    query.processAllAvailable()
    wait_until(lambda now: now == 0)
    with ogive.Producer(name_server) as producer:
        producer.send(topic, b"later")
    wait_until(lambda now: now > 0)
    query.processAllAvailable()
    wait_until(lambda now: now == 0)
    query.stop()
    table = spark.read.format("rocketmq").option("nameServer", name_server).load(topic)
    tasks = table.rdd.getNumPartitions()
    (directory / "result.json").write_text(json.dumps({"tasks": tasks, "executors": seen}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
