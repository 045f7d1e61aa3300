"""A query goes on from the checkpoint of an earlier release, of ogive and of Spark, and reads every
row once.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from ogive.pipelines.archive import SCHEMA
from tests import golden_broker
from tests.integration import checkpoint_job
from tests.peers import Flavour
from tests.topics import Wire, bodies

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(400)]

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = ROOT / "tests" / "vectors" / "spark-checkpoints-0.1.0.zip"
"""What checkpoint_job.py left with commit 4d913277 on Spark 4.3.0, for each of OPTIONS: read to the
end of what fill() sends before, and then with a batch that failed of what it sends after.
"""

OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "subscribe": {"maxOffsetsPerTrigger": "4", "consumerGroup": "Golden"},
    "tags": {"maxOffsetsPerTrigger": "4", "tags": "paid || refunded"},
    "sql": {"maxOffsetsPerTrigger": "4", "sqlFilter": "TAGS = 'paid' OR TAGS = 'refunded'"},
    "assign": {"maxOffsetsPerTrigger": "4", "assign": '{"Golden_assign": [0, 1]}'},
    "pattern": {"maxOffsetsPerTrigger": "4", "subscribePattern": "Golden_pattern.*"},
}

Row = tuple[int, int, str]


def fill(wire: Wire, topic: str, when: Literal["before", "after"]) -> dict[Row, str]:
    """Send to two queues; the rows and their tags."""
    first = 0 if when == "before" else 9
    if first == 0:
        wire.create(topic, 2)
    rows: dict[Row, str] = {}
    for queue_id in (0, 1):
        for at, tag in enumerate(("paid", "refunded", "other")):
            start = first + 3 * at
            wire.send(topic, queue_id, bodies(3, start), TAGS=tag)
            rows |= {(queue_id, i, f"body {i}"): tag for i in range(start, start + 3)}
    return rows


def noted(folder: Path) -> list[Row]:
    """The rows of all batches, in the order of queues and offsets."""
    lines = map(json.loads, (folder / "rows.jsonl").read_text().splitlines())
    return sorted(
        (queue_id, offset, body) for line in lines for queue_id, offset, body in line["rows"]
    )


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_checkpoint_of_an_earlier_ogive_is_gone_on_with(
    spark: SparkSession, wire: Wire, kind: str, tmp_path: Path
) -> None:
    """Also in the batch that had failed, whose rows are planned."""
    topic, options = f"Golden_{kind}", OPTIONS[kind]
    with zipfile.ZipFile(GOLDEN) as file:
        file.extractall(tmp_path)
    folder = tmp_path / kind
    sent = fill(wire, topic, "before") | fill(wire, topic, "after")
    wanted = {"paid", "refunded"} if kind in ("tags", "sql") else {"paid", "refunded", "other"}
    assert noted(folder) == sorted(row for row, tag in sent.items() if tag in wanted and row[1] < 9)

    def note(frame: DataFrame, batch: int) -> None:
        checkpoint_job.note(frame, batch, folder)

    before = 0
    # Spark 4.0 and 4.1 end after the batch that had failed, and after one of the limit
    while before < (before := len(noted(folder))):
        stream = spark.readStream.format("rocketmq").options(
            nameServer=wire.name_server, startingOffsets="earliest", **options
        )
        query = checkpoint_job.load(stream, topic, options).writeStream.foreachBatch(note)
        assert (
            query.option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination(120)
        )
    assert noted(folder) == sorted(row for row, tag in sent.items() if tag in wanted)


@pytest.mark.parametrize("archive", golden_broker.ARCHIVES, ids=golden_broker.NAMES)
def test_sinks_listeners_and_pipelines_of_an_earlier_ogive_are_gone_on_with(
    archive: Path,
    spark: SparkSession,
    flavour: Flavour,
    tmp_path: Path,
) -> None:
    """Every row comes once, also of the batch that had failed behind the first of its two tasks."""
    if flavour != "ogive":
        pytest.skip("the directory is that of our broker")
    on_disk, packed, golden = tmp_path / "spark", tmp_path / "packed", golden_broker
    with golden.opened(archive, tmp_path) as (server, _):
        begun = Counter(message.keys[0] for message in golden.held(server, "Out_idempotent"))
        assert begun == golden.keys(golden.FIRST) + golden.keys(golden.SECOND, queues=(0,))
        everything = golden.keys(range(golden.THIRD.stop))
        golden.listen(spark, server, on_disk / "listeners", packed)
        assert Counter(packed.read_text().split()) == everything
        for delivery in golden.DELIVERIES:
            # Spark 4.0 and 4.1 end after the batch that had failed
            for _ in range(2):
                golden.sink(spark, server, delivery, on_disk, fails=False)
        golden.run_pipelines(spark, server, on_disk)
        for topic in ("Out_idempotent", "Out_transactional", "Mirrored_In"):
            came = Counter(message.keys[0] for message in golden.held(server, topic))
            assert came == everything, topic
        lake = spark.read.schema(SCHEMA).parquet(str(on_disk / "lake"))
        assert Counter(row["keys"] for row in lake.collect()) == everything
        # these two had done all that they were to do
        replayed = Counter(message.keys[0] for message in golden.held(server, "Replayed"))
        assert replayed == golden.keys(golden.FIRST)
        assert [message.body for message in golden.held(server, "Redriven")] == [b"text"]


def run(release: str, wire: Wire, topic: str, folder: Path, *options: str) -> None:
    """Run checkpoint_job.py on that release of Spark."""
    python = (
        Path(sys.executable)
        if release == "43"
        else ROOT / ".cache" / f"spark{release}" / "bin" / "python"
    )
    if not python.exists():
        pytest.skip(f"Spark {release} is not installed: tools/setup slow")
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_"))
    }
    command = [
        str(python),
        checkpoint_job.__file__,
        wire.name_server,
        topic,
        str(folder),
        "consumerGroup=moving",
        *options,
    ]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.nightly
def test_a_query_moves_to_later_releases_of_spark(wire: Wire, topic: str, tmp_path: Path) -> None:
    """Each release leaves a batch that failed, which the next one repeats, and then more to
    read.
    """
    wire.create(topic, 2)
    number = 0
    for release in ("40", "41", "43"):
        wire.send(topic, 0, bodies(5, number))
        # Spark 4.0 and 4.1 end after the repeated batch
        run(release, wire, topic, tmp_path)
        run(release, wire, topic, tmp_path)
        wire.send(topic, 1, bodies(4, number))
        last = max(int(file.name) for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
        run(release, wire, topic, tmp_path, f"fail={last + 1}")
        number += 5
    run("43", wire, topic, tmp_path)
    in_0 = [(0, offset, f"body {offset}") for offset in range(15)]
    in_1 = [(1, 4 * turn + i, f"body {5 * turn + i}") for turn in range(3) for i in range(4)]
    assert noted(tmp_path) == in_0 + in_1
