"""Options and columns of ``format("rocketmq")``, asked from the data source as Spark makes it.

read option tags
read option failOnDataLoss = true      leaving it out means the same
read column body: binary
write column keys: array<string>       one line for each type that it takes
metric ogive_spark_rows_total: counter
"""

import json
import pickle
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final
from unittest import mock

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ogive.errors import InvalidOption
from ogive.spark.metrics import QueryMetrics
from pyspark_rocketmq import DefaultSource
from tests.surface.metrics import metric_lines

READ: Final = {"subscribe": "Orders"}
WRITE: Final = {"topic": "Orders"}
UNKNOWN: Final = {"zzzzzz": "1"}
BODY: Final = StructField("body", BinaryType())

READ_DEFAULTS: Final = {
    "nameServer": "127.0.0.1:9876",
    "tls": "false",
    "tls.verify": "true",
    "startingOffsetsByTimestampStrategy": "latest",
    "maxOffsetsPerTrigger": "1000000",
    "maxTriggerDelay": "15m",
    "minPartitions": "1",
    "preserveOrder": "true",
    "commitOffsets": "true",
    "offsetCommitInterval": "5s",
    "maxPullsPerBroker": "64",
    "failOnDataLoss": "true",
    "pollTimeoutMs": "30000",
    "tags": "*",
    "includeProperties": "true",
    "includeMetadata": "false",
    "columns": "rocketmq",
    "includeHeaders": "false",
}
WRITE_DEFAULTS: Final = {
    "nameServer": "127.0.0.1:9876",
    "tls": "false",
    "tls.verify": "true",
    "producerGroup": "SPARK_SINK",
    "maxInFlight": "64",
    "delivery": "atLeastOnce",
    "transactionTimeout": "1h",
    "invalidRows": "fail",
}
CHOICES: Final = (
    {"delivery": "atLeastOnce"},
    {"delivery": "idempotent"},
    {"delivery": "transactional"},
    {"invalidRows": "fail"},
    {"invalidRows": "drop"},
    {"invalidRows": "deadLetter", "deadLetterTopic": "Letters"},
)
"""Values of options of writing, each with what it needs beside it."""
TYPES: Final[tuple[DataType, ...]] = (
    ArrayType(StringType()),
    BinaryType(),
    BooleanType(),
    DoubleType(),
    IntegerType(),
    LongType(),
    MapType(StringType(), StringType()),
    ShortType(),
    StringType(),
    TimestampType(),
)


def lines() -> set[str]:
    """Return the lines of the Spark data source."""
    return {
        f"format {DefaultSource.name()}",
        *_of_reading(),
        *_of_writing(),
        *(f"metric {line}" for line in metric_lines(page())),
    }


def page() -> str:
    """Return the metrics of a query that has read a batch."""
    ends = [{"q": {"Orders": {"broker-a": {"0": end}}}} for end in (10, 15)]
    source = {"endOffset": json.dumps(ends[0]), "latestOffset": json.dumps(ends[1])}
    progress = {
        "name": "revenue",
        "batchId": 3,
        "numInputRows": 17,
        "inputRowsPerSecond": 2.5,
        "processedRowsPerSecond": 40.0,
        "durationMs": {"triggerExecution": 250},
        "sources": [source],
    }
    event = mock.Mock()
    event.progress.runId, event.progress.json = "run", json.dumps(progress)
    with QueryMetrics(mock.Mock(), port=0) as metrics:
        metrics.onQueryProgress(event)
        with urllib.request.urlopen(f"http://{metrics.address}/metrics") as answer:
            return str(answer.read().decode())


def _of_reading() -> Iterator[str]:
    for column in DefaultSource({**READ, "includeMetadata": "true"}).schema():
        yield f"read column {column.name}: {column.dataType.simpleString()}"
    for option in _listed("known options: ", partial(_reader, READ | UNKNOWN)):
        yield f"read option {option}"
    usual = _sent(partial(_reader, READ))
    for option, value in READ_DEFAULTS.items():
        if _sent(partial(_reader, {**READ, option: value})) == usual:
            yield f"read option {option} = {value}"
    for alias in ("topic", "path"):
        if _sent(partial(_reader, {alias: "Orders"})) == usual:
            yield f"read option {alias}"


def _of_writing() -> Iterator[str]:
    for option in _listed("known options: ", partial(_writer, WRITE | UNKNOWN, BODY)):
        yield f"write option {option}"
    usual = _sent(partial(_writer, WRITE, BODY))
    for option, value in WRITE_DEFAULTS.items():
        if _sent(partial(_writer, {**WRITE, option: value}, BODY)) == usual:
            yield f"write option {option} = {value}"
    for options in CHOICES:
        if _sent(partial(_writer, WRITE | options, BODY)):
            name, value = next(iter(options.items()))
            yield f"write option {name}: choice {value}"
    if _sent(partial(_writer, {"path": "Orders"}, BODY)) == usual:
        yield "write option path"
    unknown = StructField("zzzzzz", StringType())
    for name in _listed("select some of ", partial(_writer, WRITE, BODY, unknown)):
        others = [] if name == "body" else [BODY]
        for kind in TYPES:
            if _sent(partial(_writer, WRITE, *others, StructField(name, kind))):
                yield f"write column {name}: {kind.simpleString()}"


def _reader(options: Mapping[str, str]) -> object:
    """Return what Spark makes for a read, and sends to its executors."""
    source = DefaultSource(dict(options))
    return source.reader(source.schema())


def _writer(options: Mapping[str, str], *columns: StructField) -> object:
    """Return what Spark makes for a write, and sends to its executors."""
    return DefaultSource(dict(options)).streamWriter(StructType(list(columns)), overwrite=False)


def _sent(make: Callable[[], object]) -> bytes:
    """Return the bytes that executors get: equal if options mean the same, empty if refused."""
    try:
        return pickle.dumps(make())
    except InvalidOption:
        return b""


def _listed(before: str, refused: Callable[[], object]) -> list[str]:
    """Return the names that a refusal lists."""
    try:
        refused()
    except InvalidOption as exc:
        return str(exc).partition(before)[2].split(", ")
    raise AssertionError("an unknown name was accepted")
