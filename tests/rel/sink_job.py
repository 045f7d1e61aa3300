"""A driver and its tasks in one process that a test kills: batches through Spark's protocol for
sinks, without Spark.

    python -m tests.rel.sink_job NAME_SERVER TOPIC DELIVERY DIRECTORY BATCHES

As Spark does, it begins with the first batch that DIRECTORY holds no file of, has each task write
its rows, commits, and notes the batch. A call that fails ends it: a supervisor starts it again.
"""

import pickle
import sys
import uuid
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from ogive.spark import sink, source

COLUMNS = StructType([StructField("body", StringType())])
# of a batch, in TASKS tasks
ROWS = 200
TASKS = 2


def bodies(batch: int, task: int) -> list[str]:
    return [f"{batch} {task} {row}" for row in range(ROWS // TASKS)]


def main(name_server: str, topic: str, delivery: str, directory: Path, batches: int) -> None:
    options = {"nameServer": name_server, "topic": topic, "delivery": delivery}
    run_id = uuid.uuid4().hex
    for batch in range(sum(1 for _ in directory.glob("[0-9]*")), batches):
        sent = []
        for task in range(TASKS):
            attempt = sink.Attempt(task, 0, f"query-{topic}", run_id, batch)
            # Spark's part
            current = classmethod(lambda _, attempt=attempt: attempt)
            sink.Attempt.current = current  # type: ignore[assignment, method-assign]
            writer = pickle.loads(pickle.dumps(source.stream_sink(options, COLUMNS)))
            rows = bodies(batch, task)
            parts = (
                pa.RecordBatch.from_arrays([pa.array(rows[at : at + 25])], ["body"])
                for at in range(0, len(rows), 25)
            )
            sent.append(writer.write(parts))
        source.stream_sink(options, COLUMNS).commit(sent, batch)
        (directory / str(batch)).touch()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))
