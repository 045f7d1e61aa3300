"""What a stop does to what Spark computes at once.

Clean stops of queries: tests/integration/test_pipelines.py.
"""

import signal
import threading
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from ogive.spark.stopping import Stop, cancelled


class Context:
    """A SparkContext with one job, which runs until it is cancelled."""

    def __init__(self) -> None:
        self.level = "ERROR"
        self._cancelled = threading.Event()

    def setLogLevel(self, level: str) -> None:  # noqa: N802  as Spark has it
        self.level = level

    def cancelAllJobs(self) -> None:  # noqa: N802
        self._cancelled.set()

    def job(self) -> None:
        if not self._cancelled.wait(60):
            raise AssertionError("nobody cancelled the job")
        raise PySparkException("Job 1 cancelled")


@pytest.fixture
def spark() -> Any:
    class Spark:
        sparkContext = Context()  # noqa: N815

    return Spark()


def test_a_stop_cancels_the_job_that_runs_and_is_an_interrupt(spark: Any) -> None:
    stop = Stop()
    threading.Timer(0.05, stop.ask).start()
    with pytest.raises(KeyboardInterrupt), cancelled(spark, stop):
        spark.sparkContext.job()
    # Spark does not write of it
    assert spark.sparkContext.level == "OFF"
    assert not [thread for thread in threading.enumerate() if thread.name == "ogive-cancel"]


def test_without_a_stop_a_failure_is_what_it_is(spark: Any) -> None:
    with pytest.raises(PySparkException, match="no such column"), cancelled(spark, Stop()):
        raise PySparkException("no such column")
    with cancelled(spark, Stop()):
        pass


def test_a_signal_asks_and_the_second_ctrl_c_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.asked
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_what_a_stop_calls_is_called_at_each_signal_instead() -> None:
    calls: list[str] = []
    with Stop() as stop:
        with stop.calling(lambda: calls.append("end")):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert (calls, stop.asked) == (["end", "end"], True)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert calls == ["end", "end"]
