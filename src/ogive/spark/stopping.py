"""Stop a query cleanly on request, Spark's running jobs at once, and a process whose driver is
gone.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Final, Self

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

CHECK_S: Final = 1.0
"""Time between two checks whether the driver still runs."""
_LOOK_S: Final = 0.2
_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class Stopped(Exception):
    """Exception on a stop request, to leave a batch before any of it is written."""


class Stop:
    """Request to end a job.

    As a context manager it handles Ctrl-C and SIGTERM; a second Ctrl-C ends the process at once.

    Enter it after the Spark session was made, or call `handle_signals` then: PySpark sets a handler
    of its own, which would cancel running jobs.
    """

    def __init__(self, *, ends_session: bool = False) -> None:
        self.ends_session = ends_session
        """True if the Spark session ends with the job, so that its log after a stop is not
        needed.
        """
        self.left_batch = False
        """True once `check` has raised: the failure that Spark reports next is this stop."""
        self._asked = threading.Event()
        self._act: Callable[[], None] | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._logged = logging.NOTSET

    @property
    def asked(self) -> bool:
        """Return True if a stop was requested."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Request a stop. Returns at once."""
        self._asked.set()

    def check(self) -> None:
        """Raise Stopped if a stop was requested. Called before a batch is written."""
        if self.asked:
            self.left_batch = True
            raise Stopped

    def wait(self, timeout_s: float) -> bool:
        """Return True if a stop was requested within *timeout_s*."""
        return self._asked.wait(timeout_s)

    @contextmanager
    def calling(self, act: Callable[[], None]) -> Iterator[None]:
        """Call *act* for each signal, too; a second Ctrl-C raises nothing inside."""
        self._act = act
        try:
            yield
        finally:
            self._act = None

    def handle_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        again = self.asked
        self.ask()
        if self._act is not None:
            self._act()
        elif again and number == signal.SIGINT:
            # Py4J logs what this interrupts, with a stack
            logging.disable()
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._logged = logging.root.manager.disable
        self._before = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
        }
        self.handle_signals()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        logging.disable(self._logged)


def silence(spark: SparkSession) -> str:
    """Turn Spark's own log off, and return its previous level.

    Spark logs interrupted work with three screens of stacks.
    """
    java: Any = spark.sparkContext._jvm
    level = str(java.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().name())
    spark.sparkContext.setLogLevel("OFF")
    return level


@contextmanager
def cancelled(spark: SparkSession, stop: Stop) -> Iterator[None]:
    """Cancel Spark's jobs in the block as soon as *stop* is requested.

    Raises KeyboardInterrupt instead of their error then.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if stop.asked:
                # Java is gone, and so are its jobs
                with suppress(Py4JError, ConnectionError):
                    # Spark would log the cancelled job as a failure
                    spark.sparkContext.setLogLevel("OFF")
                    spark.sparkContext.cancelAllJobs()

    watcher = threading.Thread(target=watch, name="ogive-cancel", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError):
        if stop.asked:
            raise KeyboardInterrupt from None
        raise
    finally:
        over.set()
        watcher.join()


def end_with_driver() -> bool:
    """End this process when its driver has ended, if Spark created it for a stream's source.

    Return True if it did. Spark does not notify the process that its driver was killed: one that
    waits for a broker would stay until its timeout.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name != _RUNNER:
        return False
    threading.Thread(
        target=_watch_parent, args=(os.getppid(),), name="ogive-driver-watch", daemon=True
    ).start()
    return True


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(CHECK_S)
    # there is nobody left to see an exception
    os._exit(1)
