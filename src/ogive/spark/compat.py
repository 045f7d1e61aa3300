"""The differences between releases of Spark. No other module of ogive checks the release.

Spark 4.2 and later pass the position of a query when they ask for its next end, pass the limit of a
batch, announce `trigger(availableNow=True)` and ask for the ends of the queues. Spark 4.0 and 4.1
do none of this: `reader_of_release` adapts a reader for 4.2 to them. Spark 4.0 has no Arrow writer
for streams, but passes Arrow batches to a stream's writer that is also one for batches. Docs: the
table of releases in docs/spark.md.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
except ModuleNotFoundError as exc:
    if exc.name != "pyspark.sql.datasource":
        raise
    import pyspark

    from ogive.errors import OgiveError

    raise OgiveError(
        f"ogive needs Spark 4.0 or later, and pyspark {pyspark.__version__} is installed: pip "
        "install --upgrade 'ogive[spark]'"
    ) from None

from pyspark.errors import AnalysisException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ogive.model import MessageQueue
from ogive.spark.offsets import behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    ADMISSION_CONTROL: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        ADMISSION_CONTROL = True
    except ModuleNotFoundError:
        ADMISSION_CONTROL = False

        class ReadLimit:
            """A limit of the messages that a batch may read."""

        class ReadAllAvailable(ReadLimit):
            """Limit that admits all messages."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """Limit of a number of rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """A reader that can fix its end when a query starts."""

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """A stream's writer that gets Arrow batches: Spark 4.0 looks for the second class."""


__all__ = [
    "ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "TrackingReader",
    "arrow_schema",
    "ends_after_open_batch",
    "limit_of_available_now",
    "reader_of_release",
    "register_source",
    "reported_lag",
]

Offset = dict[str, Any]


_TIMEZONE: Final[Mapping[str, Any]] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
)
"""Spark 4.0 and 4.1 take UTC by themselves."""


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema that Spark requires of the batches of a reader of *schema*."""
    return to_arrow_schema(schema, **_TIMEZONE)


def register_source(spark: "SparkSession", source: type[DataSource]) -> None:
    """Register *source* with *spark*, again if it is registered already.

    Spark 4.0 refuses a source that it has found itself among the installed packages. That source is
    usable as it is.
    """
    try:
        spark.dataSource.register(source)
    except AnalysisException as exc:
        if exc.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def reported_lag(source: Mapping[str, Any]) -> Mapping[MessageQueue, int]:
    """Return the lag per queue of a source in a query's progress.

    Return nothing for a Spark that does not ask for the ends of the queues: it reports the end of
    the last batch instead, so every lag would be 0.
    """
    return behind(source) if ADMISSION_CONTROL else {}


class AdmittingReader(Protocol):
    """A stream reader with the methods that Spark 4.2 calls."""

    def initialOffset(self) -> Offset: ...  # noqa: N802

    def getDefaultReadLimit(self) -> ReadLimit: ...  # noqa: N802

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset: ...  # noqa: N802

    def partitions(self, start: Offset, end: Offset) -> Any: ...

    def read(self, partition: InputPartition) -> Iterator[Any]: ...

    def commit(self, end: Offset) -> None: ...

    def stop(self) -> None: ...


def reader_of_release(
    reader: AdmittingReader, *, keep_limit_after_restart: bool
) -> DataSourceStreamReader:
    """Return *reader* in the form that the installed Spark calls.

    Spark 4.0 and 4.1 do not say whether a query has `trigger(availableNow=True)`, which runs one
    batch there that must read everything. So the first batch of a process has no limit. With
    *keep_limit_after_restart* it has one, unless the query is new.
    """
    if ADMISSION_CONTROL:
        assert isinstance(reader, DataSourceStreamReader)
        return reader
    return TrackingReader(reader, keep_limit_after_restart=keep_limit_after_restart)


def limit_of_available_now(max_rows: int) -> Mapping[str, str]:
    """Return the options that limit the batches of a query with `trigger(availableNow=True)`.

    Return none for a Spark that runs such a query in one batch, which must be complete.
    """
    return {"maxOffsetsPerTrigger": str(max_rows)} if ADMISSION_CONTROL else {}


def ends_after_open_batch(checkpoint: Path) -> bool:
    """Return True if a query with `trigger(availableNow=True)` needs two runs to read everything.

    Spark 4.0 and 4.1 run one batch with that trigger: the one that the query left open, if there is
    one.
    """
    planned, done = (
        max((int(file.name) for file in (checkpoint / log).glob("[0-9]*")), default=-1)
        for log in ("offsets", "commits")
    )
    return planned > done and not ADMISSION_CONTROL


class TrackingReader(DataSourceStreamReader):
    """Reader that keeps track of the query's end, for a Spark that only asks for the next end.

    A process first sees the position of a restarted query as an empty range to plan. After that the
    position is the end of the last range, or the last end that was returned.
    """

    def __init__(self, reader: AdmittingReader, *, keep_limit_after_restart: bool) -> None:
        self._reader = reader
        self._keep_limit_after_restart = keep_limit_after_restart
        self._position: Offset | None = None
        self._first = True

    def initialOffset(self) -> Offset:  # noqa: N802
        return self._reader.initialOffset()

    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802  the signature of 4.1
        limit = self._reader.getDefaultReadLimit()
        if self._first and not (self._keep_limit_after_restart and self._position is not None):
            limit = ReadAllAvailable()
        self._first = False
        start = self.initialOffset() if self._position is None else self._position
        self._position = self._reader.latestOffset(start, limit)
        return self._position

    def partitions(self, start: Offset, end: Offset) -> Any:
        self._position = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()
