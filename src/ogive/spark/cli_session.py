"""The Spark session of a command, and the Java process that PySpark launches.

No Java process stays behind, whenever Ctrl-C or SIGTERM arrives. PySpark knows its Java process
only after the start, which takes seconds. If the start is interrupted, PySpark removes the folder
in which Java should write its port: Java fails to do so, and would run for ever. So this module
tracks the process from its launch.
"""

import contextlib
import logging
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from ogive.spark.failures import ending
from ogive.spark.session import NO_BAR, create, prepare, quiet
from ogive.spark.stopping import Stop

# what launch_gateway starts Java with
_POPEN: Final = "Popen"
_END_S: Final = 10.0


class Launch:
    """Context manager for the Java process that PySpark launches inside: it is ended on request,
    and if an exception made PySpark lose it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._popen: type[subprocess.Popen[bytes]] = subprocess.Popen

    def end(self) -> None:
        """Ask it to end; kill it at the second call. If it is not launched yet, it never is, and
        KeyboardInterrupt is raised instead.

        Does not wait, so it can be called in a signal handler. Calls of PySpark to Java at that
        time fail.
        """
        if self._process is not None:
            (self._process.kill if self._ended else self._process.terminate)()
        self._ended = True

    def __enter__(self) -> Self:
        self._popen = getattr(java_gateway, _POPEN)
        setattr(java_gateway, _POPEN, self._launch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(java_gateway, _POPEN, self._popen)
        if error is not None and not self._is_held():
            self.end()
        if self._ended and self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _launch(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if self._ended:
            raise KeyboardInterrupt
        self._process = process = self._popen(command, **options)
        # asked for while it was launched
        if self._ended:
            process.kill()
        return process

    def _is_held(self) -> bool:
        """Return True if PySpark knows the process: then it serves the next session, and ends with
        this process.
        """
        return (
            self._process is not None
            and getattr(SparkContext._gateway, "proc", None) is self._process
        )


@contextlib.contextmanager
def own_session(
    app_name: str,
    *,
    master: str,
    memory: str,
    say: Callable[[str], None],
    ready: Callable[[SparkSession], None],
    config: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[SparkSession, Stop]]:
    """Run the block in a quiet session with Spark's settings *config*, and with the stop that
    Ctrl-C and SIGTERM request. *ready* is called at the end of its start.

    During the start either signal ends Java at once, and KeyboardInterrupt is raised. Raises
    OgiveError without a Java, and for errors of Spark in the block.
    """
    quiet()
    with Stop(ends_session=True) as stop:
        say("starting Spark")
        with _given_up_at_once(stop):
            settings = prepare(app_name, master=master, memory=memory, config={**NO_BAR, **config})
            context = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
            # again: PySpark has set a handler of its own
            stop.handle_signals()
            context.setLogLevel("ERROR")
            spark = create(settings)
            ready(spark)
        with ending(spark):
            yield spark, stop


@contextlib.contextmanager
def _given_up_at_once(stop: Stop) -> Iterator[None]:
    """End the Java launched in the block as soon as *stop* is requested. Raises KeyboardInterrupt
    instead of PySpark's error then.

    Nothing is raised in the middle of PySpark, which would log it and continue to talk to Java.
    """
    java = Launch()

    def give_up() -> None:
        # Py4J and PySpark would tell of the Java that is gone, with stacks; Stop undoes it
        logging.disable()
        warnings.simplefilter("ignore")
        java.end()

    try:
        with warnings.catch_warnings(), stop.calling(give_up), java:
            yield
    except Exception:
        if not stop.asked:
            raise
    if stop.asked:
        java.end()
        raise KeyboardInterrupt
