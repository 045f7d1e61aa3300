"""Topics read and written, as batches and as streams, where the tasks do not run in the driver's
process: on local-cluster, on a standalone cluster of one master and two workers, and behind Spark
Connect. Nobody registers the data source, on either side.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.native import native
from ogive.spark import source
from ogive.spark.schema import MESSAGE_COLUMNS, only
from tests.peers import RunningBroker
from tests.processes import tail
from tests.spark_clusters import (
    CONNECT,
    PATIENCE_S,
    connect_server,
    environment,
    run_job,
    standalone,
)
from tests.topics import Wire, bodies

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MESSAGES = 2000

Environment = dict[str, str]


@contextmanager
def local_cluster(directory: Path) -> Iterator[tuple[str, Environment]]:
    """Its workers leave the folder work in Spark's home: PySpark's own package, but for this
    copy.
    """
    home = directory / "home"
    home.mkdir(parents=True)
    for part in Path(environment()["SPARK_HOME"]).iterdir():
        # of somebody else's run
        if part.name != "work":
            (home / part.name).symlink_to(part)
    yield "local-cluster[2,1,1024]", {"SPARK_HOME": str(home)}


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[str, Environment]]:
    with standalone(directory) as running:
        yield running.master, {}


@contextmanager
def connect(directory: Path) -> Iterator[tuple[str, Environment]]:
    with connect_server(directory) as address:
        yield address, {"PYTHONPATH": str(CONNECT)}


Start = Callable[[Path], AbstractContextManager[tuple[str, Environment]]]


def run(start: Start, wire: Wire, topic: str, directory: Path) -> dict[int, int]:
    """Copies a topic. The processes that read it, with their rows."""
    wire.create(topic, 2)
    for queue_id in (0, 1):
        wire.send(topic, queue_id, bodies(MESSAGES // 2, queue_id * MESSAGES))
    for copy in ("batch", "stream"):
        wire.create(f"{topic}_{copy}", 2)
    with start(directory / "cluster") as (master, extra):
        job = [
            "-m",
            "tests.integration.cluster_job",
            master,
            wire.name_server,
            topic,
            str(directory),
        ]
        run_job(job, directory, extra)
    for copy in ("batch", "stream"):
        assert copied(wire, f"{topic}_{copy}") == sorted(
            bodies(MESSAGES // 2) + bodies(MESSAGES // 2, MESSAGES)
        )
    found: dict[str, int] = json.loads((directory / "result.json").read_text())
    return {int(process): rows for process, rows in found.items()}


def copied(wire: Wire, topic: str) -> list[bytes]:
    """Read without Spark."""
    reader = source.batch_reader(
        {"nameServer": wire.name_server, "subscribe": topic}, only(MESSAGE_COLUMNS, "body")
    )
    return sorted(
        body
        for part in reader.partitions()
        for batch in reader.read(part)
        for body in batch.column("body").to_pylist()
    )


@pytest.mark.parametrize("start", [local_cluster, cluster], ids=["local-cluster", "standalone"])
def test_executors_of_their_own_read_and_write(
    start: Start, wire: Wire, topic: str, tmp_path: Path
) -> None:
    """Half of the topic each."""
    assert sorted(run(start, wire, topic, tmp_path).values()) == [MESSAGES // 2] * 2


def test_spark_connect_reads_and_writes(broker: RunningBroker, topic: str, tmp_path: Path) -> None:
    """The client's process has no JVM and loads nothing of ogive: the server finds the data
    source.
    """
    if not CONNECT.exists():
        pytest.skip("Spark Connect's client is not installed: tools/setup slow")
    assert sum(run(connect, Wire(broker), topic, tmp_path).values()) == MESSAGES


class Shipping:
    """Jobs of spark-submit on a cluster whose executors have pyarrow and not ogive: they get its
    wheel as an archive, as docs/spark.md says.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log = directory / "driver.log"
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            str(directory),
            str(ROOT),
        ]
        subprocess.run(build, check=True, timeout=200)
        next(directory.glob("ogive-*.whl")).rename(directory / "ogive_site.zip")
        # of the driver
        self._site = directory / "site"
        shutil.unpack_archive(directory / "ogive_site.zip", self._site)
        # Python reads no .pth file of this folder, so that the editable install of the driver is
        # not found.
        self._bare = directory / "python"
        packages, interpreter = sysconfig.get_path("purelib"), Path(sys.executable).resolve()
        self._bare.write_text(
            f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {interpreter} "$@"\n', "utf-8"
        )
        self._bare.chmod(0o755)

    def run(self, master: str, script: str, *words: str) -> None:
        """Run a driver to its end. Raises AssertionError with the end of what it said."""
        # of both sides, because Spark has one interpreter for a data source
        env = environment() | {"PYSPARK_PYTHON": str(self._bare), "PYTHONPATH": str(self._site)}
        settings = {
            "spark.executor.memory": "700m",
            "spark.executorEnv.PYTHONPATH": "ogive_site",
        }
        command = [
            f"{env['SPARK_HOME']}/bin/spark-submit",
            "--master",
            master,
            "--archives",
            "ogive_site.zip#ogive_site",
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            str(ROOT / "tests" / "integration" / script),
            *words,
        ]
        with self.log.open("wb") as log:
            driver = subprocess.Popen(
                command,
                cwd=self._directory,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            assert driver.wait(4 * PATIENCE_S) == 0, tail(self.log)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()


def test_executors_without_ogive_take_it_from_an_archive(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    """With the compiled part where the driver has it."""
    wire.create(topic, 2)
    wire.create(f"{topic}_copy", 2)
    wire.send(topic, 0, bodies(MESSAGES))
    result = tmp_path / "result.json"
    shipping = Shipping(tmp_path)
    with standalone(tmp_path / "cluster") as running:
        words = (wire.name_server, topic, str(result))
        shipping.run(running.master, "shipped_job.py", *words)
    found = json.loads(result.read_text())
    assert found["rows"] == MESSAGES
    assert all(
        "ogive_site/ogive" in home and compiled == (native is not None)
        for home, compiled in found["homes"]
    )
    assert copied(wire, f"{topic}_copy") == sorted(bodies(MESSAGES))


def test_a_stream_gives_its_executors_back_and_asks_for_them_again(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    """With dynamic allocation, without a shuffle service."""
    wire.create(topic, 2)
    wire.create(f"{topic}_copy", 2)
    sent = bodies(12_000)
    for queue_id in (0, 1):
        wire.send(topic, queue_id, sent[queue_id::2])
    with standalone(tmp_path / "cluster") as running:
        job = ["-m", "tests.integration.elastic_job", running.master, wire.name_server, topic]
        run_job([*job, str(tmp_path)], tmp_path, {})
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["executors"][1:] == [2, 0, found["executors"][3], 0]
    # maxExecutors, although none runs when the batch is planned
    assert found["tasks"] == 2
    assert copied(wire, f"{topic}_copy") == sorted([*sent, b"later"])
