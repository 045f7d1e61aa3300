"""What options make of a read, on a real broker of either kind: which queues, from where to where,
which messages, which columns.

The readers do here, in this process, what Spark has them do in its own ones; with Spark around them
they run in test_spark.py.
"""

import json
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from ogive.model import MessageQueue
from ogive.spark import source
from ogive.spark.compat import ReadMaxRows, arrow_schema
from ogive.spark.reader import StreamReader
from ogive.spark.schema import MESSAGE_COLUMNS
from ogive.wire.compression import CompressionType, compress
from tests.topics import Wire, bodies, eventually

pytestmark = [pytest.mark.timeout(240), pytest.mark.bridge]


class Topic:
    """The test's topic as Spark's processes read it."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self._options = {"nameServer": wire.name_server, "subscribe": topic}

    def options(self, given: dict[str, str | None]) -> dict[str, str]:
        """With the topic; None takes one away."""
        return {name: text for name, text in {**self._options, **given}.items() if text is not None}

    def tasks(self, **options: str | None) -> list[pa.Table]:
        """The rows of each task of a batch."""
        given = self.options(options)
        columns = source.schema(given)
        reader = source.batch_reader(given, columns)
        empty = pa.table({name: [] for name in columns.names})
        batches = [list(reader.read(part)) for part in reader.partitions()]
        return [pa.Table.from_batches(of_task) if of_task else empty for of_task in batches]

    def rows(self, **options: str | None) -> list[dict[str, Any]]:
        return [row for task in self.tasks(**options) for row in task.to_pylist()]

    def read(self, **options: str | None) -> list[tuple[int, int]]:
        """Queue and offset of each message."""
        return places(self.rows(**options))


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in rows)


@pytest.fixture
def table(wire: Wire, topic: str) -> Topic:
    return Topic(wire, topic)


class Query:
    """A stream with trigger(availableNow=True), which keeps its place over several runs."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._at: dict[str, Any] | None = None

    def run(self) -> list[list[tuple[int, int]]]:
        """What the batches of this run hold."""
        reader: StreamReader = source.stream_reader(self._options, MESSAGE_COLUMNS)
        at = self._at or reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        batches = []
        while (end := reader.latestOffset(at, ReadMaxRows(1000))) != at:
            parts = reader.partitions(at, end)
            batches.append(
                places(
                    [
                        row
                        for part in parts
                        for batch in reader.read(part)
                        for row in batch.to_pylist()
                    ]
                )
            )
            at = end
        self._at = at
        return batches


def test_queues_are_chosen_by_pattern_and_by_name(wire: Wire, table: Topic, topic: str) -> None:
    wire.create(f"%RETRY%{topic}")
    wire.send(f"%RETRY%{topic}", 0, bodies(1))
    for name in (topic, f"{topic}_more"):
        wire.create(name, 3)
        for queue_id in range(3):
            wire.send(name, queue_id, bodies(2))
    matched = table.rows(subscribe=None, subscribePattern=f"{topic}.*")
    assert sorted({row["topic"] for row in matched}) == [topic, f"{topic}_more"]
    assert len(matched) == 12
    assert table.read(subscribe=None, assign=json.dumps({topic: [0, 2]})) == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
    ]
    assert table.read(queues="1") == [(1, 0), (1, 1)]


def test_a_namespace_is_on_the_wire_only(wire: Wire, table: Topic, topic: str) -> None:
    for name in (f"shop%{topic}", topic):
        wire.create(name)
    wire.send(f"shop%{topic}", 0, bodies(3))
    assert {(row["topic"], row["queueOffset"]) for row in table.rows(namespace="shop")} == {
        (topic, offset) for offset in range(3)
    }
    pattern = {"subscribe": None, "subscribePattern": f"{topic}.*"}
    assert table.read(namespace="shop", **pattern) == [(0, 0), (0, 1), (0, 2)]
    assert table.read(**pattern) == []


def test_a_read_starts_and_ends_at_times(wire: Wire, table: Topic, topic: str) -> None:
    """Times are the broker's, when it stored the message; the end is not read."""
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(5))
    wire.send(topic, 1, bodies(3))
    # the clocks of messages count in ms
    time.sleep(0.02)
    between = time.time_ns() // 1_000_000
    time.sleep(0.02)
    wire.send(topic, 0, bodies(4))
    late = [(0, offset) for offset in range(5, 9)]
    early = [(0, offset) for offset in range(5)] + [(1, offset) for offset in range(3)]
    assert table.read(startingTimestamp=str(between)) == late
    assert (
        table.read(endingTimestamp=datetime.fromtimestamp(between / 1000, UTC).isoformat()) == early
    )
    assert table.read(startingTimestamp="-1h") == early[:5] + late + early[5:]
    assert (
        table.read(startingOffsetsByTimestamp=json.dumps({topic: {"0": between, "1": 0}}))
        == late + early[5:]
    )
    assert (
        table.read(endingOffsetsByTimestamp=json.dumps({topic: {"0": between, "1": between}}))
        == early
    )
    assert table.read(startingOffsets="latest-2") == [(0, 7), (0, 8), (1, 1), (1, 2)]
    assert table.read(startingOffsets="latest-6", endingOffsets="latest-2") == [
        (0, 3),
        (0, 4),
        (0, 5),
        (0, 6),
        (1, 0),
    ]


def test_a_stream_ends_where_it_is_told(wire: Wire, table: Topic, topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(10))
    end = json.dumps({topic: {"0": 7, "1": 2}})
    query = Query(table.options({"startingOffsets": "earliest", "endingOffsets": end}))
    assert query.run() == [[(0, offset) for offset in range(7)]]
    wire.send(topic, 1, bodies(5))
    assert query.run() == [[(1, 0), (1, 1)]]
    assert query.run() == []


def test_a_long_queue_is_read_beside_more_short_ones_than_a_batch_has_rows(
    wire: Wire, table: Topic, topic: str
) -> None:
    """Each short queue gets a message before each trigger, so that it always has a backlog."""
    wire.create(topic, 6)
    wire.send(topic, 5, bodies(20))
    reader: StreamReader = source.stream_reader(
        table.options({"startingOffsets": "earliest"}), MESSAGE_COLUMNS
    )
    at = reader.initialOffset()
    read: Counter[int] = Counter()
    for _ in range(9):
        for queue_id in range(5):
            wire.send(topic, queue_id, bodies(1))
        end = reader.latestOffset(at, ReadMaxRows(2))
        parts = reader.partitions(at, end)
        batch = places(
            [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        )
        assert len(batch) == 2
        read.update(queue_id for queue_id, _ in batch)
        at = end
    assert read == dict.fromkeys(range(6), 3)


def test_batches_are_limited_by_bytes(wire: Wire, table: Topic, topic: str) -> None:
    """About: a few messages tell how long all of them are."""
    wire.create(topic)
    wire.send(topic, 0, [b"x" * 1000] * 100)
    batches = Query(
        table.options({"startingOffsets": "earliest", "maxBytesPerTrigger": "30k"})
    ).run()
    assert [offset for batch in batches for _, offset in batch] == list(range(100))
    assert all(20 <= len(batch) <= 30 for batch in batches[:-1])


def test_sql_filters_at_the_broker_and_again_here(wire: Wire, table: Topic, topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(40), amount="{i}", TAGS="paid")
    wanted = [(0, offset) for offset in range(31, 40)]
    assert table.read(sqlFilter="amount > 30 AND TAGS = 'paid'") == wanted
    assert Query(
        table.options({"startingOffsets": "earliest", "sqlFilter": "amount > 30 AND TAGS = 'paid'"})
    ).run() == [wanted]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_every_compression_is_read(
    wire: Wire, table: Topic, topic: str, kind: CompressionType
) -> None:
    if kind != "zlib":
        pytest.importorskip({"lz4": "lz4", "zstd": "zstandard"}[kind])
    wire.create(topic)
    packed, flag = compress(b"long " * 1000, kind)
    wire.send(topic, 0, [packed], sys_flag=flag)
    assert [row["body"] for row in table.rows()] == [b"long " * 1000]


def test_metadata_say_where_a_message_is_kept(wire: Wire, table: Topic, topic: str) -> None:
    """Shown as the broker gives them to any client."""
    wire.create(topic)
    wire.send(topic, 0, bodies(3), UNIQ_KEY="7F{i}")
    rows = table.rows(includeMetadata="true")
    (queue,) = {MessageQueue(topic, row["brokerName"], row["queueId"]) for row in rows}
    for row, message in zip(rows, wire.messages(queue, 3), strict=True):
        assert row["msgId"] == f"7F{row['queueOffset']}" == message.id
        assert (row["offsetMsgId"], row["commitLogOffset"]) == (
            message.offset_id,
            message.commitlog_offset,
        )
        assert (row["bornHost"], row["storeHost"]) == (message.born_host, message.store_host)
        assert (row["reconsumeTimes"], row["flag"], row["sysFlag"], row["bodyCRC"] > 0) == (
            0,
            message.flag,
            message.sys_flag,
            True,
        )


def test_tasks_are_as_many_as_asked_for(wire: Wire, table: Topic, topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(90))
    wire.send(topic, 1, bodies(10))
    for options, tasks in (
        ({}, 1),
        ({"minPartitions": "4"}, 4),
        ({"maxRecordsPerPartition": "30"}, 4),
    ):
        read = table.tasks(**options)
        assert len(read) == tasks
        rows = [row for task in read for row in task.to_pylist()]
        assert places(rows) == [(0, offset) for offset in range(90)] + [
            (1, offset) for offset in range(10)
        ]


# --- writing --------------------------------------------------------------------------------------


def test_a_row_is_delivered_at_its_time(wire: Wire, table: Topic, topic: str) -> None:
    """The broker's timer keeps it until then."""
    wire.create(topic)
    due = datetime.now(UTC) + timedelta(seconds=2.5)
    columns = StructType(
        [StructField("body", StringType()), StructField("deliverAt", TimestampType())]
    )
    rows = pa.RecordBatch.from_pylist(
        [{"body": "later", "deliverAt": due}, {"body": "now", "deliverAt": None}],
        schema=arrow_schema(columns),
    )
    sink = source.batch_sink(
        {"nameServer": wire.name_server, "topic": topic}, columns, overwrite=False
    )
    sink.commit([sink.write(iter([rows]))])
    found = eventually(lambda: table.rows() if len(table.rows()) == 2 else None)
    assert found is not None
    assert [row["body"] for row in found] == [b"now", b"later"]
    # Apache's wheel turns once a second
    assert found[1]["storeTimestamp"] >= due - timedelta(seconds=1)
