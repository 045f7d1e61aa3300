"""What options make of a read, on a real broker of either kind: which queues, from where to where, which messages, which columns."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame

from ogive.model import MessageQueue
from ogive.wire.compression import CompressionType, compress
from tests.topics import Stream, Wire, bodies

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def read(frame: DataFrame) -> list[tuple[int, int]]:
    """Queue and offset of each row."""
    return sorted((row.queueId, row.queueOffset) for row in frame.select("queueId", "queueOffset").collect())


def test_queues_are_chosen_by_pattern_and_by_name(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(f"%RETRY%{topic}")
    wire.send(f"%RETRY%{topic}", 0, bodies(1))
    for name in (topic, f"{topic}_more"):
        wire.create(name, 3)
        for queue_id in range(3):
            wire.send(name, queue_id, bodies(2))
    matched = load(subscribe=None, subscribePattern=f"{topic}.*").select("topic").collect()
    assert sorted({row.topic for row in matched}) == [topic, f"{topic}_more"]
    assert len(matched) == 12
    assert read(load(subscribe=None, assign=json.dumps({topic: [0, 2]}))) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert read(load(queues="1")) == [(1, 0), (1, 1)]


def test_a_read_starts_and_ends_at_times(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    """Times are the broker's, when it stored the message; the end is not read."""
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(5))
    wire.send(topic, 1, bodies(3))
    time.sleep(0.02)  # the clocks of messages count in ms
    between = time.time_ns() // 1_000_000
    time.sleep(0.02)
    wire.send(topic, 0, bodies(4))
    late = [(0, offset) for offset in range(5, 9)]
    early = [(0, offset) for offset in range(5)] + [(1, offset) for offset in range(3)]
    assert read(load(startingTimestamp=str(between))) == late
    assert read(load(endingTimestamp=datetime.fromtimestamp(between / 1000, UTC).isoformat())) == early
    assert read(load(startingTimestamp="-1h")) == early[:5] + late + early[5:]
    assert read(load(startingOffsetsByTimestamp=json.dumps({topic: {"0": between, "1": 0}}))) == late + early[5:]
    assert read(load(startingOffsets="latest-2")) == [(0, 7), (0, 8), (1, 1), (1, 2)]
    assert read(load(startingOffsets="latest-6", endingOffsets="latest-2")) == [(0, 3), (0, 4), (0, 5), (0, 6), (1, 0)]


def test_a_stream_ends_where_it_is_told(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(10))
    end = json.dumps({topic: {"0": 7, "1": 2}})
    assert stream.run(startingOffsets="earliest", endingOffsets=end) == [[(0, offset) for offset in range(7)]]
    wire.send(topic, 1, bodies(5))
    assert stream.run(startingOffsets="earliest", endingOffsets=end) == [[(1, 0), (1, 1)]]


def test_batches_are_limited_by_bytes(wire: Wire, stream: Stream, topic: str) -> None:
    """About: a few messages tell how long all of them are."""
    wire.create(topic)
    wire.send(topic, 0, [b"x" * 1000] * 100)
    batches = stream.run(startingOffsets="earliest", maxBytesPerTrigger="30k")
    assert [offset for batch in batches for _, offset in batch] == list(range(100))
    assert all(20 <= len(batch) <= 30 for batch in batches[:-1])


def test_sql_filters_at_the_broker_and_again_here(wire: Wire, load: Callable[..., DataFrame], stream: Stream, topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(40), amount="{i}", TAGS="paid")
    wanted = [(0, offset) for offset in range(31, 40)]
    assert read(load(sqlFilter="amount > 30 AND TAGS = 'paid'")) == wanted
    assert stream.run(startingOffsets="earliest", sqlFilter="amount > 30 AND TAGS = 'paid'") == [wanted]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
def test_every_compression_is_read(wire: Wire, load: Callable[..., DataFrame], topic: str, kind: CompressionType) -> None:
    if kind != "zlib":
        pytest.importorskip({"lz4": "lz4", "zstd": "zstandard"}[kind])
    wire.create(topic)
    packed, flag = compress(b"long " * 1000, kind)
    wire.send(topic, 0, [packed], sys_flag=flag)
    assert [bytes(row.body) for row in load("body binary").collect()] == [b"long " * 1000]


def test_metadata_say_where_a_message_is_kept(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    """Shown as the broker gives them to any client."""
    wire.create(topic)
    wire.send(topic, 0, bodies(3), UNIQ_KEY="7F{i}")
    rows = load(includeMetadata="true").orderBy("queueOffset").collect()
    (queue,) = {MessageQueue(topic, row.brokerName, row.queueId) for row in rows}
    for row, message in zip(rows, wire.messages(queue, 3), strict=True):
        assert row.msgId == f"7F{row.queueOffset}" == message.id
        assert (row.offsetMsgId, row.commitLogOffset) == (message.offset_id, message.commitlog_offset)
        assert (row.bornHost, row.storeHost) == (message.born_host, message.store_host)
        assert (row.reconsumeTimes, row.flag, row.sysFlag, row.bodyCRC > 0) == (0, message.flag, message.sys_flag, True)
    assert load("msgId string").columns == ["msgId"]


def test_tasks_are_as_many_as_asked_for(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(90))
    wire.send(topic, 1, bodies(10))
    for options, tasks in (({}, 1), ({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "30"}, 4)):
        frame = load(**options)
        assert frame.rdd.getNumPartitions() == tasks
        assert read(frame) == [(0, offset) for offset in range(90)] + [(1, offset) for offset in range(10)]
