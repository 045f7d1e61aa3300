"""Topics read and written, as batches and as streams, where the tasks do not run in the driver's
process: on local-cluster, on a standalone cluster of one master and two workers, and behind Spark
Connect. Nobody registers the data source, on either side.
"""

import json
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
from tests.spark_clusters import CONNECT, connect_server, environment, run_job, standalone
from tests.topics import Wire, bodies

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.nightly, pytest.mark.timeout(600)]

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


def test_executors_without_ogive_take_it_from_an_archive(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    """The recipe of docs/spark.md, with the compiled part where the driver has it."""
    root = Path(__file__).parents[2]
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(root),
    ]
    subprocess.run(build, check=True, timeout=200)
    next(tmp_path.glob("ogive-*.whl")).rename(tmp_path / "ogive_site.zip")
    # Python reads no .pth file of this folder, so that the editable install of the driver is not
    # found.
    bare = tmp_path / "python"
    packages, interpreter = sysconfig.get_path("purelib"), Path(sys.executable).resolve()
    bare.write_text(
        f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {interpreter} "$@"\n', "utf-8"
    )
    bare.chmod(0o755)
    wire.create(topic, 2)
    wire.create(f"{topic}_copy", 2)
    wire.send(topic, 0, bodies(MESSAGES))
    result = tmp_path / "result.json"
    job = [
        str(root / "tests" / "integration" / "shipped_job.py"),
        wire.name_server,
        topic,
        str(result),
    ]
    shipped = [
        "--archives",
        "ogive_site.zip#ogive_site",
        "--conf",
        "spark.executorEnv.PYTHONPATH=ogive_site",
    ]
    with standalone(tmp_path / "cluster") as running:
        env = environment() | {"PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable}
        submit = [
            f"{env['SPARK_HOME']}/bin/spark-submit",
            "--master",
            running.master,
            "--conf",
            "spark.executor.memory=700m",
        ]
        done = subprocess.run(
            [*submit, *shipped, *job],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(result.read_text())
    assert found["rows"] == MESSAGES
    assert all(
        "ogive_site/ogive" in home and compiled == (native is not None)
        for home, compiled in found["homes"]
    )
    assert copied(wire, f"{topic}_copy") == sorted(bodies(MESSAGES))
