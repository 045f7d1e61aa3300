"""The data source behind `format("rocketmq")`.

Each stream starts a process for its source and waits for it, so the modules that only writing needs
are not imported for reading.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from ogive.errors import InvalidOption
from ogive.spark.compat import reader_of_release
from ogive.spark.interpreter import warn_if_zipped
from ogive.spark.options import SinkOptions, SourceOptions
from ogive.spark.reader import BatchReader, StreamReader
from ogive.spark.schema import check_sink_schema, check_source_schema, kafka_schema, source_schema
from ogive.spark.stopping import end_with_driver

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

    from ogive.spark.sink import BatchSink, StreamSink


def schema(options: Mapping[str, str]) -> StructType:
    parsed = SourceOptions.parse(options)
    if parsed.columns == "kafka":
        return kafka_schema(include_headers=parsed.include_headers)
    return source_schema(
        include_properties=parsed.include_properties, include_metadata=parsed.include_metadata
    )


def batch_reader(
    options: Mapping[str, str], columns: StructType, cores: int | None = None
) -> BatchReader:
    parsed = _source_options(options, columns)
    return BatchReader(parsed, columns, cores)


def stream_reader(
    options: Mapping[str, str], columns: StructType, cores: int | None = None
) -> StreamReader:
    parsed = _source_options(options, columns)
    end_with_driver()
    return StreamReader(parsed, columns, cores)


def stream_reader_of_release(
    options: Mapping[str, str], columns: StructType, cores: int | None = None
) -> "DataSourceStreamReader":
    """Return the reader in the form that the installed Spark calls: on 4.2 and later the
    `stream_reader` itself.
    """
    reader = stream_reader(options, columns, cores)
    # the default limit is a precaution, one that is given may be relied on
    limited = any(name.lower() == "maxoffsetspertrigger" for name in options)
    grouped = any(name.lower() == "consumergroup" for name in options)
    return reader_of_release(reader, keep_limit_after_restart=limited and grouped)


def batch_sink(options: Mapping[str, str], columns: StructType, *, overwrite: bool) -> "BatchSink":
    from ogive.spark.sink import BatchSink

    if overwrite:
        raise InvalidOption('a topic cannot be overwritten; use mode("append")')
    return BatchSink(_sink_options(options, columns))


def stream_sink(options: Mapping[str, str], columns: StructType) -> "StreamSink":
    from ogive.spark.sink import StreamSink

    return StreamSink(_sink_options(options, columns))


def _source_options(options: Mapping[str, str], columns: StructType) -> SourceOptions:
    warn_if_zipped()
    parsed = SourceOptions.parse(options)
    kafka = parsed.columns == "kafka"
    check_source_schema(columns, kafka_schema(include_headers=True) if kafka else None)
    return parsed


def _sink_options(options: Mapping[str, str], columns: StructType) -> SinkOptions:
    warn_if_zipped()
    parsed = SinkOptions.parse(options)
    if not options and "topic" not in columns.names:
        raise InvalidOption(
            "where to write: give the option topic, or a column topic. In SQL: Spark hands the "
            "OPTIONS of CREATE TABLE ... AS SELECT to no Python source; write with "
            "df.write.format('rocketmq').options(...).mode('append').save()"
        )
    check_sink_schema(columns, topic_given=parsed.topic is not None, delivery=parsed.delivery)
    return parsed
