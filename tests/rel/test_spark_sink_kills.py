"""T24 for the sink, without Spark around it: who writes is killed again and again, or the broker
is, anywhere in a batch or a commit.

Nothing is lost, `idempotent` and `transactional` write each row once, and of `atLeastOnce` the rows
that are there twice have one key.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from ogive.spark import source
from ogive.spark.schema import MESSAGE_COLUMNS, METADATA_COLUMNS, only
from ogive.testing import Broker
from tests.peers import our_broker
from tests.rel.sink_job import TASKS, bodies
from tests.topics import Wire

pytestmark = [pytest.mark.rel, pytest.mark.bridge, pytest.mark.waits(35), pytest.mark.timeout(600)]

PATIENCE_S = 120.0


class Job:
    """The writing process, under a supervisor that starts it again."""

    def __init__(
        self, broker: Broker, topic: str, delivery: str, directory: Path, batches: int
    ) -> None:
        self.done, self._log, self._batches = directory / "commits", directory / "job.log", batches
        self.done.mkdir()
        arguments = (broker.name_server, topic, delivery, str(self.done), str(batches))
        self._command = [sys.executable, "-m", "tests.rel.sink_job", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def ensure(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.starts += 1
            assert self.starts < 100, self._log.read_text()[-3000:]
            with self._log.open("a") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=subprocess.STDOUT
                )

    @property
    def batches(self) -> int:
        return len(list(self.done.iterdir()))

    def reach(self, batches: int) -> None:
        """Until so many are done."""
        give_up = time.monotonic() + PATIENCE_S
        while self.batches < min(batches, self._batches):
            self.ensure()
            assert time.monotonic() < give_up, self._log.read_text()[-3000:]
            time.sleep(0.005)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


def kill_writer(job: Job, _: Broker) -> None:
    job.kill()


def kill_broker(_: Job, broker: Broker) -> None:
    broker.kill()
    broker.start()


def kill_both(job: Job, broker: Broker) -> None:
    broker.kill()
    job.kill()
    broker.start()


def read(broker: Broker, topic: str) -> list[tuple[str, str]]:
    """Body and unique key of every message."""
    columns = StructType([*only(MESSAGE_COLUMNS, "body"), *only(METADATA_COLUMNS, "msgId")])
    reader = source.batch_reader({"nameServer": broker.name_server, "subscribe": topic}, columns)
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return [(row["body"].decode(), row["msgId"]) for row in rows]


@pytest.mark.parametrize("delivery", ["atLeastOnce", "idempotent", "transactional"])
@pytest.mark.parametrize(
    ("kill", "kills"),
    [
        (kill_both, 2),
        *(
            pytest.param(kill, 10, marks=pytest.mark.nightly)
            for kill in (kill_writer, kill_broker, kill_both)
        ),
    ],
)
def test_each_row_is_written_once_whoever_is_killed(
    tmp_path: Path, delivery: str, kill: Callable[[Job, Broker], None], kills: int
) -> None:
    chance = random.Random(os.environ.get("OGIVE_SEED", "T24"))
    batches = 6 * kills
    with our_broker(tmp_path / "broker") as broker:
        Wire(broker).create("Copy", 2)
        job = Job(broker, "Copy", delivery, tmp_path, batches)
        try:
            for number in range(kills):
                job.reach(6 * number + chance.randint(1, 5))
                # anywhere in a batch or its commit
                time.sleep(chance.random() * 0.02)
                kill(job, broker)
            job.reach(batches)
        finally:
            job.kill()
        found = read(broker, "Copy")
    wanted = {
        body for batch in range(batches) for task in range(TASKS) for body in bodies(batch, task)
    }
    assert {body for body, _ in found} == wanted
    assert len({key for _, key in found}) == len(wanted)
    if delivery != "atLeastOnce":
        assert [
            body for body, count in Counter(body for body, _ in found).items() if count > 1
        ] == []
