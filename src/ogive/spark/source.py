"""The data source behind `format("rocketmq")`."""

from collections.abc import Mapping

from pyspark.sql.types import StructType

from ogive.spark.options import SourceOptions
from ogive.spark.reader import BatchReader, StreamReader
from ogive.spark.schema import check_source_schema, source_schema


def schema(options: Mapping[str, str]) -> StructType:
    return source_schema(include_properties=SourceOptions.parse(options).include_properties)


def batch_reader(options: Mapping[str, str], columns: StructType) -> BatchReader:
    check_source_schema(columns)
    return BatchReader(SourceOptions.parse(options), columns)


def stream_reader(options: Mapping[str, str], columns: StructType) -> StreamReader:
    check_source_schema(columns)
    return StreamReader(SourceOptions.parse(options), columns)
