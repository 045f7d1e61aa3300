"""Spark's own processes on loopback: a standalone cluster of one master and two workers, and a
server of Spark Connect.

They are started by the script that PySpark brings (bin/spark-class, which becomes the JVM) and
ended by their process ids, with whatever they have started.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from ogive.spark.java import find_java
from tests.processes import QUICK_JAVA, free_port, is_free, tail, wait_until

# what some of Spark needs beside .venv; made by tools/setup slow
CONNECT: Final = Path(__file__).parents[1] / ".cache" / "connect"
PATIENCE_S: Final = 120.0
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


def environment() -> dict[str, str]:
    """Of every process of a cluster: workers on this interpreter, everything on loopback, a Java
    that can run Spark.
    """
    import pyspark

    find_java()
    return os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # five JVMs on two cores: their starts are most of a test
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }


class SparkProcess:
    """One of Spark's programs, and all that it starts. It is started here, and ready after wait."""

    def __init__(
        self,
        directory: Path,
        name: str,
        arguments: Sequence[str],
        ready: Callable[[], bool],
        memory: str = "128m",
    ) -> None:
        self.log = directory / f"{name}.log"
        around = environment() | {"SPARK_DAEMON_MEMORY": memory}
        command = [str(Path(around["SPARK_HOME"], "bin", "spark-class")), *arguments]
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=directory, env=around, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        self._ready, self._name = ready, name

    def wait(self) -> None:
        """Until it is ready. Raises StartFailed."""
        wait_until(self._ready, self._process, self.log, self._name, PATIENCE_S)

    def executors(self) -> list[psutil.Process]:
        """The JVMs in which this worker runs tasks now."""
        return [
            one
            for one in psutil.Process(self._process.pid).children(recursive=True)
            if _is_executor(one)
        ]

    def end(self) -> None:
        """kill -9 of it and of what it started.

        What has changed its parent since ends by itself, with its executor.
        """
        if self._process.poll() is None:
            kill(
                [
                    *psutil.Process(self._process.pid).children(recursive=True),
                    psutil.Process(self._process.pid),
                ]
            )
        self._process.wait(PATIENCE_S)


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in part for part in process.cmdline())
    except psutil.Error:
        # has ended meanwhile
        return False


def kill(processes: Sequence[psutil.Process]) -> None:
    """psutil knows a process by its start as well: an id that another one has got since is left
    alone.
    """
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)


class Standalone:
    """A master and two workers with one core each; an application without a limit gets an executor
    on both.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self.workers: list[SparkProcess] = []
        main = [
            "org.apache.spark.deploy.master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            "0",
        ]
        self._master = SparkProcess(directory, "master", main, lambda: not is_free(port))
        try:
            self._master.wait()
            for number in (1, 2):
                self.workers.append(self._worker(directory, f"worker-{number}"))
            for worker in self.workers:
                worker.wait()
        except BaseException:
            self.end()
            raise

    def _worker(self, directory: Path, name: str) -> SparkProcess:
        work, log = directory / name, directory / f"{name}.log"
        arguments = [
            "--host",
            "127.0.0.1",
            "--webui-port",
            "0",
            "--cores",
            "1",
            "--memory",
            "1g",
            "--work-dir",
            str(work),
            self.master,
        ]
        main = "org.apache.spark.deploy.worker.Worker"
        return SparkProcess(
            directory,
            name,
            [main, *arguments],
            lambda: b"Successfully registered with master" in log.read_bytes(),
        )

    def executors(self) -> list[psutil.Process]:
        return [one for worker in self.workers for one in worker.executors()]

    def end(self) -> None:
        for one in (*self.workers, self._master):
            one.end()


@contextmanager
def standalone(directory: Path) -> Iterator[Standalone]:
    cluster = Standalone(directory)
    try:
        yield cluster
    finally:
        cluster.end()


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Spark Connect with local[2] behind it: the address for SparkSession.builder.remote."""
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    arguments = [
        "org.apache.spark.deploy.SparkSubmit",
        "--class",
        server,
        "--master",
        "local[2]",
        *given,
    ]
    process = SparkProcess(
        directory, "connect", arguments, lambda: not is_free(port), memory="768m"
    )
    try:
        process.wait()
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.end()


def run_job(command: Sequence[str], directory: Path, extra: dict[str, str]) -> None:
    """A driver to its end. Raises AssertionError with the end of what it said."""
    log = directory / "job.log"
    with log.open("wb") as out:
        job = subprocess.Popen(
            [sys.executable, *command],
            env=environment() | extra,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        deadline = time.monotonic() + 4 * PATIENCE_S
        while job.poll() is None:
            assert time.monotonic() < deadline, tail(log)
            time.sleep(0.1)
        assert job.returncode == 0, tail(log)
    finally:
        if job.poll() is None:
            kill([*psutil.Process(job.pid).children(recursive=True), psutil.Process(job.pid)])
            job.wait(PATIENCE_S)
