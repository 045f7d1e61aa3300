"""Makes `format("rocketmq")` known to Spark, which imports every package called pyspark_* and looks
for a DefaultSource.

That happens in every session of an environment, also for people who never read a topic: this module
imports next to nothing and must not fail. What it offers is in ogive.spark.
"""

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from ogive.spark.reader import BatchReader
    from ogive.spark.sink import BatchSink, StreamSink


class DefaultSource(DataSource):
    """Topics as tables and streams. Options and columns: docs/spark.md."""

    cores: ClassVar[int | None] = None
    """Cores of the cluster, in the class that `ogive.spark.register` makes for a session."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> "StructType":
        from ogive.spark import source

        return source.schema(self.options)

    def reader(self, schema: "StructType") -> "BatchReader":
        from ogive.spark import source

        return source.batch_reader(self.options, schema, self.cores)

    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        from ogive.spark import source

        return source.stream_reader_of_release(self.options, schema, self.cores)

    def writer(self, schema: "StructType", overwrite: bool) -> "BatchSink":
        from ogive.spark import source

        return source.batch_sink(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "StreamSink":  # noqa: N802
        from ogive.spark import source

        # in complete mode every batch is the whole result: appended as well
        return source.stream_sink(self.options, schema)
