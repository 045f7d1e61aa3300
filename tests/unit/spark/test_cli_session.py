"""Who owns the Java process of a start of Spark that is cut short.

With Spark: tests/integration/test_spark_start.py.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark import SparkContext, java_gateway

from ogive.spark.cli_session import Launch

SLEEPER = "import signal; print(flush=True); signal.pause()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def start(started: list[subprocess.Popen[bytes]]) -> Any:
    """Does what PySpark does, and waits until the process is up."""

    def go(program: str) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = java_gateway.Popen(  # type: ignore[attr-defined]
            [sys.executable, "-c", program], stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    return go


def test_an_interrupt_before_pyspark_knows_its_java_ends_it(
    start: Any, started: list[subprocess.Popen[bytes]]
) -> None:
    def interrupted() -> None:
        with Launch():
            start(SLEEPER)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode == -signal.SIGTERM


def test_a_java_that_pyspark_holds_stays_for_its_next_session(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gateway:
        proc: Any = None

    def failed() -> None:
        with Launch():
            Gateway.proc = start(SLEEPER)
            monkeypatch.setattr(SparkContext, "_gateway", Gateway)
            raise ValueError("no such setting")

    with pytest.raises(ValueError, match="no such setting"):
        failed()
    assert Gateway.proc.poll() is None


def test_one_that_does_not_end_is_killed_when_asked_again(start: Any) -> None:
    with Launch() as java:
        process = start(DEAF)
        java.end()
        java.end()
    assert process.returncode == -signal.SIGKILL


def test_none_is_launched_after_the_end_was_asked_for(
    start: Any, started: list[subprocess.Popen[bytes]]
) -> None:
    with Launch() as java:
        java.end()
        with pytest.raises(KeyboardInterrupt):
            start(SLEEPER)
    assert not started


def test_pyspark_is_left_as_it_was(start: Any) -> None:
    with Launch(), Launch():
        pass
    assert java_gateway.Popen is subprocess.Popen  # type: ignore[attr-defined]
    assert start(SLEEPER).poll() is None
