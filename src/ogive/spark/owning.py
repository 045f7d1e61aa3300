"""The Spark session of a command.

No Java process stays behind, whenever Ctrl-C or SIGTERM comes.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from ogive.spark.failures import ending
from ogive.spark.launching import Launch
from ogive.spark.session import NO_BAR, create, prepare, quiet
from ogive.spark.stopping import Stop


@contextlib.contextmanager
def own_session(
    app_name: str,
    *,
    master: str,
    memory: str,
    say: Callable[[str], None],
    ready: Callable[[SparkSession], None],
) -> Iterator[tuple[SparkSession, Stop]]:
    """A quiet session for what is inside, and the stop that Ctrl-C and SIGTERM ask for; *ready* is
    called at the end of its start.

    During the start either ends Java at once, and KeyboardInterrupt is raised. Raises OgiveError
    without a Java, and for what Spark fails with inside.
    """
    quiet()
    with Stop(ends_session=True) as stop:
        say("starting Spark")
        with _given_up_at_once(stop):
            settings = prepare(app_name, master=master, memory=memory, config=NO_BAR)
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
    """As soon as *stop* is asked, the Java launched inside is ended; raises KeyboardInterrupt
    instead of what PySpark fails with then.

    Nothing is raised in the midst of PySpark, which would log it and go on talking to Java.
    """
    java = Launch()
    logged = logging.root.manager.disable

    def give_up() -> None:
        # Py4J and PySpark would tell of the Java that is gone, with stacks
        logging.disable()
        warnings.simplefilter("ignore")
        java.end()

    try:
        with warnings.catch_warnings(), stop.calling(give_up), java:
            yield
    except Exception:
        if not stop.asked:
            raise
    finally:
        logging.disable(logged)
    if stop.asked:
        java.end()
        raise KeyboardInterrupt
