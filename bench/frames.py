"""Loads of Spark through public interfaces alone, so that an older release can run them as well."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAME: Final = (
    "keys string, body binary, topic string, queueId int, queueOffset bigint, "
    "storeTimestamp timestamp"
)

Load = Callable[[], "DataFrame"]


def frame(spark: "SparkSession", body_bytes: int, rows: int) -> "DataFrame":
    """Rows to send."""
    columns = (
        f"cast(rpad(cast(id as string), {body_bytes}, 'x') as binary) as body",
        "cast(id as string) as key",
    )
    return spark.range(rows).selectExpr(*columns)


def count(load: Load) -> None:
    """A batch, into nothing."""
    load().write.format("noop").mode("overwrite").save()


def drain(directory: Path, load: Load) -> None:
    """A stream to its end, into nothing."""
    checkpoint = tempfile.mkdtemp(dir=directory)
    query = (
        load()
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
