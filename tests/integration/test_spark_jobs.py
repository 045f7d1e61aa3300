"""Jobs as users write them: in a Jupyter notebook, and with upserts into PostgreSQL."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.spark.compat import ADMISSION_CONTROL
from tests.peers import RunningBroker
from tests.processes import QUICK_JAVA

ROOT = Path(__file__).parents[2]
NOTEBOOK = Path(__file__).with_name("notebook.py")
PYTHON = ROOT / ".cache" / "jobs" / "bin" / "python"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.nightly,
    pytest.mark.apart(40),
    pytest.mark.timeout(600),
]


def absent(what: str) -> None:
    if os.environ.get("CI") == "true" or os.environ.get("OGIVE_FIGURES"):
        pytest.fail(what)
    pytest.skip(what)


def run_job(folder: Path, *words: str) -> str:
    """Run *words* with the Python that finds the packages of jobs. Return what it prints."""
    if not PYTHON.exists():
        absent("the packages of jobs are installed by tools/setup slow")
    environment = os.environ | {
        "IPYTHONDIR": str(folder),
        "JUPYTER_RUNTIME_DIR": str(folder),
        "PYTHONPATH": str(ROOT),
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    environment.pop("PYSPARK_PYTHON", None)
    done = subprocess.run(
        [str(PYTHON), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_notebook_reads_streams_and_goes_on_after_an_interrupt(
    broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """Blocking clients beside the kernel's event loop, asyncio in a cell, functions of the notebook
    in Spark's workers, and an interrupt of a cell that waits for a query: the query runs on.
    """
    out = run_job(tmp_path, str(NOTEBOOK), broker.name_server, topic)
    start, sent, offsets, count, doubled, seen, interrupted, after, stopped = json.loads(
        out.splitlines()[-1]
    )
    assert (start, sent, offsets, count) == ("", "", "10", "10")
    assert (doubled, seen) == ("['00', '11', '22']", "10")
    assert interrupted == "KeyboardInterrupt"
    assert after == "(True, 11, 'late')"
    assert stopped == ""


@pytest.fixture
def postgres() -> Iterator[tuple[str, Callable[[str], str]]]:
    """The address of a database, and a function that returns what a query prints."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)
    if programs is None or not (programs / "initdb").exists():
        absent("PostgreSQL is missing (Debian: apt-get install postgresql)")
    assert programs is not None
    # the server refuses to run as root
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="ogive-postgres-"))
    if user:
        shutil.chown(folder, user)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = ["-h", "127.0.0.1", "-p", port, "-U", "ogive"]

    def query(text: str) -> str:
        command = [str(programs / "psql"), *shared, "-d", "postgres", "-Atc", text]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        data = str(folder / "data")
        initdb = [str(programs / "initdb"), "-D", data, "-U", "ogive", "-A", "trust", "-N"]
        subprocess.run(initdb, check=True, user=user, cwd=folder, capture_output=True)
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
        options = [word for setting in settings for word in ("-c", setting)]
        server = subprocess.Popen(
            [str(programs / "postgres"), "-D", data, "-p", port, *options],
            user=user,
            cwd=folder,
            stderr=subprocess.DEVNULL,
        )
        try:
            for _ in range(600):
                ready = [str(programs / "pg_isready"), *shared]
                if subprocess.run(ready, check=False, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            yield f"postgresql://ogive@127.0.0.1:{port}/postgres", query
        finally:
            server.terminate()
            server.wait(30)
    finally:
        shutil.rmtree(folder)


def test_rows_of_postgresql_follow_the_newest_message_of_their_key(
    broker: RunningBroker,
    topic: str,
    tmp_path: Path,
    postgres: tuple[str, Callable[[str], str]],
) -> None:
    """Also after a batch that Spark repeats and that is older than the table."""
    database, query = postgres
    checkpoint = tmp_path / "checkpoint"

    def send(*versions: int) -> None:
        with ogive.Producer(broker.name_server) as producer:
            for version in versions:
                for key in ("a", "b", "c"):
                    text = f"{key} {version}"
                    producer.send(topic, text.encode(), keys=key, sharding_key=key)

    def run() -> str:
        words = ("-m", "examples.spark.upsert_postgres", broker.name_server, topic, database)
        run_job(tmp_path, *words, str(checkpoint))
        return query("SELECT string_agg(body, ',' ORDER BY key) FROM orders")

    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=2)
    send(1, 2)
    assert run() == "a 2,b 2,c 2"
    # as after a crash: the table has the batch, and Spark does not know it
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    query("UPDATE orders SET body = 'newer', queue_offset = 1000 WHERE key = 'b'")
    send(3)
    found = run()
    # Spark 4.0 and 4.1 end after the repeated batch
    assert (found if ADMISSION_CONTROL else run()) == "a 3,newer,c 3"
