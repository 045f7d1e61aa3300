"""Helpers around `format("rocketmq")`."""

import logging
from typing import TYPE_CHECKING

from ogive.client.config import DEFAULT_NAME_SERVER
from ogive.errors import OgiveError
from ogive.spark.interpreter import hint_at, other_interpreter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


def register(spark: "SparkSession") -> None:
    """Register `format("rocketmq")` with *spark*, and make *spark* active in the calling thread.

    Only needed where a session does not find installed packages by itself, and in a thread other
    than the one that made the session, before it starts a stream into a topic.
    """
    from ogive.spark.compat import register_source
    from ogive.spark.session import activate
    from pyspark_rocketmq import DefaultSource

    register_source(spark, DefaultSource)
    activate(spark)
    python = other_interpreter(spark)
    if python is not None:
        log.warning("%s", hint_at(python))


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
        from ogive.spark.session import session

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
