"""T24: streams into files and into topics whose driver, executor or broker is killed again and
again. Files and the idempotent and the transactional copy hold every message once; the plain copy
holds every message, and what it holds twice has the same key twice.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.errors import OgiveError
from ogive.testing import Broker
from tests.figures import figures
from tests.peers import our_broker
from tests.processes import tail
from tests.rel.spark_job import DELIVERIES
from tests.spark_clusters import Standalone, environment, kill, standalone
from tests.topics import Wire, bodies

pytestmark = [
    pytest.mark.spark,
    pytest.mark.apart(90),
    pytest.mark.rel,
    pytest.mark.nightly,
    pytest.mark.timeout(1500),
]

KILLS = 10
# 80 batches, of all queries together
MESSAGES = 20_000
STEP = 500
PATIENCE_S = 240.0
SEED = os.environ.get("OGIVE_SEED", "T24")


class Job:
    """The driver process, started again after each kill."""

    def __init__(self, master: str, name_server: str, topic: str, directory: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.rel.spark_job",
            master,
            name_server,
            topic,
            str(directory),
        ]
        self.directory = directory
        self._log = directory / "job.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                self._command,
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kill the driver with all that it started: it leads a process group of its own."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def batches(self) -> int:
        """How many batches of all queries are done so far."""
        return sum(
            len(list(done.glob("[0-9]*"))) for done in self.directory.glob("checkpoint-*/commits")
        )

    def wait_for_batches(self, more: int) -> None:
        """Until so many more batches are done: the queries are in the midst of their work then."""
        wanted = self.batches() + more
        self._keep_running_until(lambda: self.batches() >= wanted)

    def result(self) -> dict[str, dict[str, int]]:
        (self.directory / "sent").touch()
        self._keep_running_until((self.directory / "result.json").exists)
        found: dict[str, dict[str, int]] = json.loads((self.directory / "result.json").read_text())
        return found

    def _keep_running_until(self, reached: Callable[[], bool]) -> None:
        """As a supervisor does: Spark gives its Python processes 10 s to start, which a busy
        machine does not always keep.

        Five starts may fail, and PATIENCE_S may pass, before the next batch is done.
        """
        assert self.process is not None
        done, failures, give_up = self.batches(), 0, time.monotonic() + PATIENCE_S
        while not reached():
            if (now := self.batches()) > done:
                done, failures, give_up = now, 0, time.monotonic() + PATIENCE_S
            if self.process.poll() is not None:
                failures += 1
                assert failures <= 5, self._log.read_text()[-3000:]
                self.start()
            assert time.monotonic() < give_up, self._log.read_text()[-3000:]
            time.sleep(0.05)


class Writer(threading.Thread):
    """Fills the topic while it is read.

    A request without an answer is sent again, so that a message may be there twice.
    """

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire
        self._ended = threading.Event()

    def run(self) -> None:
        for at in range(0, MESSAGES, STEP):
            while not self._ended.is_set():
                try:
                    self._wire.send("Kills", at // STEP % 2, bodies(STEP, at))
                    break
                except OgiveError:
                    # the broker was killed
                    self._ended.wait(0.2)
            self._ended.wait(0.2)

    def stop(self) -> None:
        self._ended.set()
        self.join()


def run(directory: Path, master: str, kill: Callable[[Job, Broker], None], victim: str) -> None:
    """Copy the topic under KILLS kills, then compare every copy with it."""
    random.seed(SEED)
    with (
        figures(
            "T24", nightly=True, seed=SEED, victim=victim, faults=KILLS, attempts=MESSAGES
        ) as line,
        our_broker(directory / "broker") as broker,
    ):
        wire = Wire(broker)
        for name in ("Kills", *(f"Kills_{delivery}" for delivery in DELIVERIES)):
            wire.create(name, 2)
        writer, job = Writer(wire), Job(master, broker.name_server, "Kills", directory)
        writer.start()
        job.start()
        try:
            for _ in range(KILLS):
                # far fewer than there are
                job.wait_for_batches(random.randint(1, 4))
                # anywhere in a batch
                time.sleep(random.random() * 0.3)
                kill(job, broker)
            writer.join()
            found = job.result()
            rows = wire.count("Kills")
            check(found, rows)
        finally:
            writer.stop()
            job.end()
        line |= {
            "acknowledged": rows,
            "received": rows,
            "lost": 0,
            "duplicates": found["atLeastOnce"]["rows"] - rows,
        }


def check(found: dict[str, dict[str, int]], rows: int) -> None:
    """*rows* are in the topic; more than MESSAGES where its writer sent some twice."""
    for copy in ("files", "idempotent", "transactional"):
        assert (found[copy]["rows"], found[copy]["bodies"]) == (rows, MESSAGES), (copy, rows, found)
    plain = found["atLeastOnce"]
    assert (plain["bodies"], plain["keys"]) == (MESSAGES, rows), (rows, found)
    assert plain["rows"] >= rows


def kill_driver(job: Job, _: Broker) -> None:
    job.end()
    job.start()


def kill_broker(_: Job, broker: Broker) -> None:
    """With its name server; both come back where they were."""
    broker.kill()
    broker.start()


def kill_executor(cluster: Standalone, _: Job, __: Broker) -> None:
    """One of those that run; its worker starts another one."""
    give_up = time.monotonic() + PATIENCE_S
    while not (running := cluster.executors()):
        assert time.monotonic() < give_up, tail(cluster.workers[0].log)
        time.sleep(0.1)
    kill([random.choice(running)])


def test_a_killed_driver_loses_and_doubles_nothing(tmp_path: Path) -> None:
    run(tmp_path, "local[2]", kill_driver, "driver")


def test_a_killed_executor_loses_and_doubles_nothing(tmp_path: Path) -> None:
    with standalone(tmp_path / "cluster") as cluster:
        run(tmp_path, cluster.master, partial(kill_executor, cluster), "executor")


def test_a_killed_broker_loses_and_doubles_nothing(tmp_path: Path) -> None:
    # tasks that fail are tried again, as on a cluster
    run(tmp_path, "local[2,4]", kill_broker, "broker")
