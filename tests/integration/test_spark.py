"""Topics as Spark tables and streams, and Spark as a producer, on a real broker of either kind."""

import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ogive.model import MessageQueue
from tests.peers import Flavour, start_broker
from tests.topics import Stream, Wire, bodies, eventually

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(300)]

# --- batch reads ----------------------------------------------------------------------------------


@pytest.mark.releases
def test_a_batch_shows_every_message_as_it_was_sent(
    wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    wire.create(topic, 4)
    for queue_id in range(4):
        wire.send(
            topic,
            queue_id,
            bodies(1000, 1000 * queue_id),
            KEYS="k{i} all",
            TAGS=f"T{queue_id}",
            shop="grün",
        )
    before = time.time()
    rows = load().collect()
    assert sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in rows) == [
        (queue_id, offset, b"body %d" % (1000 * queue_id + offset))
        for queue_id in range(4)
        for offset in range(1000)
    ]
    row = next(row for row in rows if (row.queueId, row.queueOffset) == (2, 7))
    assert (row.topic, row.brokerName, row.keys, row.tags) == (
        topic,
        wire.broker_name(topic),
        "k7 all",
        "T2",
    )
    assert {name: row.properties.get(name) for name in ("KEYS", "TAGS", "shop")} == {
        "KEYS": "k7 all",
        "TAGS": "T2",
        "shop": "grün",
    }
    assert (
        before - 60
        < row.bornTimestamp.timestamp()
        <= row.storeTimestamp.timestamp() + 1
        < before + 60
    )


def test_batches_read_while_somebody_writes_have_no_hole(
    wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    """Each is what was there when it was planned: every queue from its first message on, none
    twice, and never less than the one before.
    """
    wire.create(topic, 2)
    over, sent = threading.Event(), [0, 0]

    def write() -> None:
        while not over.is_set():
            for queue_id in range(2):
                wire.send(topic, queue_id, bodies(50, sent[queue_id]))
                sent[queue_id] += 50

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0, 0]
    try:
        for _ in range(8):
            before, rows = (
                list(sent),
                load("body binary, queueId int, queueOffset bigint").collect(),
            )
            for queue_id in range(2):
                found = sorted(
                    (row.queueOffset, bytes(row.body)) for row in rows if row.queueId == queue_id
                )
                assert found == [(offset, b"body %d" % offset) for offset in range(len(found))]
                assert len(found) >= max(before[queue_id], seen[queue_id])
                seen[queue_id] = len(found)
    finally:
        over.set()
        writer.join()
    assert min(seen) > 50


def test_a_schema_prunes_columns(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10), TAGS="a")
    rows = load("body binary, queueOffset bigint").collect()
    assert [(bytes(row.body), row.queueOffset) for row in rows] == [
        (b"body %d" % i, i) for i in range(10)
    ]
    assert "properties" not in load(includeProperties="false").columns


def test_start_and_end_may_be_given_for_each_queue(
    wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(100))
    wire.send(topic, 1, bodies(100))
    frame = load(
        startingOffsets=json.dumps({topic: {"0": 10, "1": -2}}),
        endingOffsets=json.dumps({topic: {"0": 15, "1": 3}}),
    )
    assert sorted((row.queueId, row.queueOffset) for row in frame.collect()) == [
        (0, i) for i in range(10, 15)
    ] + [(1, i) for i in range(3)]


@pytest.mark.releases
def test_tags_are_filtered_exactly(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    """`AaAa` and `BBBB` have one hash code, and the hash code is all that the broker compares."""
    wire.create(topic)
    for tag in ("AaAa", "BBBB", "other", "AaAa"):
        wire.send(topic, 0, bodies(50), TAGS=tag)
    assert [row.queueOffset for row in load(tags="BBBB").collect()] == list(range(50, 100))
    assert load(tags="BBBB || other").count() == 100
    assert load(tags="nobody").count() == 0


def test_compressed_bodies_are_inflated(
    wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    wire.create(topic)
    wire.send(topic, 0, [zlib.compress(b"long " * 1000)], sys_flag=0x301)
    wire.send(topic, 0, [b"short"])
    assert [bytes(row.body) for row in load().collect()] == [b"long " * 1000, b"short"]


@pytest.mark.parametrize("prefix", ["%DLQ%", "%RETRY%"])
def test_dead_letters_and_retries_are_tables(
    spark: SparkSession, wire: Wire, group: str, prefix: str
) -> None:
    name = prefix + group
    wire.create(name)
    # no batch: brokers take none for a retry topic
    for body in bodies(3):
        wire.send(name, 0, [body], RETRY_TOPIC="Orders")
    frame = spark.read.format("rocketmq").option("nameServer", wire.name_server).load(name)
    assert [(row.topic, row.properties["RETRY_TOPIC"]) for row in frame.collect()] == [
        (name, "Orders")
    ] * 3


def test_a_session_has_the_measured_settings(
    spark: SparkSession, wire: Wire, stream: Stream, topic: str, tmp_path: Path
) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith(
        ".RocksDBStateStoreProvider"
    )
    assert conf.get("spark.python.authenticate.socketTimeout") == "60s"
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count() or 1)
    wire.create(topic)
    wire.send(topic, 0, bodies(3))
    stream.run(startingOffsets="earliest")
    assert list(tmp_path.rglob("commits/0"))
    # each checksum file would cost a batch two more files
    assert not list(tmp_path.rglob("*.crc"))


def test_an_empty_topic_has_no_rows(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic, 2)
    assert load().count() == 0


def test_a_split_queue_gives_every_message_once(
    wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(45_000))
    frame = load(preserveOrder="false", maxPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.queueOffset for row in frame.select("queueOffset").collect()) == list(
        range(45_000)
    )


@pytest.mark.releases
def test_sql_reads_a_topic(spark: SparkSession, wire: Wire, topic: str) -> None:
    """A view has its options; a table of Spark 4.3 does not hand them to a Python source, a query
    that names them does.
    """
    wire.create(topic)
    wire.send(topic, 0, bodies(5))
    options = f"nameServer '{wire.name_server}', subscribe '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW {topic}_view USING rocketmq OPTIONS ({options})")
    assert spark.sql(
        f"SELECT count(*) AS n, max(queueOffset) AS last FROM {topic}_view"
    ).collect() == [(5, 4)]
    spark.sql(f"CREATE TABLE {topic}_table (queueOffset bigint, body binary) USING rocketmq")
    try:
        with pytest.raises(PySparkException, match="the option subscribe is missing"):
            spark.sql(f"SELECT * FROM {topic}_table").collect()
        given = f"`nameServer` = '{wire.name_server}', `subscribe` = '{topic}'"
        assert spark.sql(f"SELECT count(*) AS n FROM {topic}_table WITH ({given})").collect() == [
            (5,)
        ]
    finally:
        spark.sql(f"DROP TABLE {topic}_table")


# --- faults a user makes --------------------------------------------------------------------------


@pytest.mark.releases
def test_an_unknown_option_is_refused_with_the_nearest_name(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(startingOffset="latest")


def test_an_unknown_topic_is_named(load: Callable[..., DataFrame], topic: str) -> None:
    with pytest.raises(PySparkException, match=f'topic "{topic}" has no route'):
        load().collect()


def test_an_unknown_column_is_named(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match="no column 'value'"):
        load("value binary").collect()


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.releases
def test_a_stream_reads_in_several_batches_and_ends(
    wire: Wire, stream: Stream, topic: str, admission: bool
) -> None:
    """In one where Spark does not bound them."""
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(600))
    wire.send(topic, 1, bodies(400))
    batches = stream.run(startingOffsets="earliest", maxOffsetsPerTrigger="300")
    if admission:
        assert len(batches) >= 4
        assert max(len(batch) for batch in batches) <= 300
    else:
        assert len(batches) == 1
    assert sorted(pair for batch in batches for pair in batch) == [(0, i) for i in range(600)] + [
        (1, i) for i in range(400)
    ]


@pytest.mark.releases
def test_a_restart_reads_the_next_offset(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    assert stream.run(startingOffsets="earliest") == [[(0, i) for i in range(10)]]
    assert stream.run(startingOffsets="earliest") == []
    wire.send(topic, 0, bodies(5))
    assert stream.run(startingOffsets="earliest") == [[(0, i) for i in range(10, 15)]]


def test_a_new_queue_is_read_from_its_first_message(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic, 1)
    wire.send(topic, 0, bodies(5))
    stream.run(startingOffsets="earliest")
    wire.create(topic, 2)
    wire.send(topic, 1, bodies(3))
    assert stream.run(startingOffsets="earliest") == [[(1, i) for i in range(3)]]


@pytest.mark.nightly
def test_a_query_that_runs_finds_new_topics_of_its_pattern(
    wire: Wire, spark: SparkSession, topic: str, tmp_path: Path
) -> None:
    """Also one that began with latest reads them from their first message."""
    wire.create(topic)
    wire.send(topic, 0, bodies(2))
    seen: set[tuple[str, int]] = set()
    options = {
        "nameServer": wire.name_server,
        "subscribePattern": f"{topic}.*",
        "startingOffsets": "latest",
    }
    stream = spark.readStream.format("rocketmq").options(**options).load()
    writer = stream.writeStream.foreachBatch(
        lambda frame, _: seen.update((row.topic, row.queueOffset) for row in frame.collect())
    )
    query = (
        writer.option("checkpointLocation", str(tmp_path / "patterns"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        assert eventually(lambda: query.lastProgress)
        wire.create(f"{topic}_later")
        wire.send(f"{topic}_later", 0, bodies(3))
        wire.send(topic, 0, bodies(1))
        assert eventually(lambda: len(seen) == 4 or None, 120.0)
    finally:
        query.stop()
    assert seen == {(topic, 2), (f"{topic}_later", 0), (f"{topic}_later", 1), (f"{topic}_later", 2)}


@pytest.mark.releases
def test_progress_is_mirrored_to_the_consumer_group(
    wire: Wire, stream: Stream, topic: str, group: str, admission: bool
) -> None:
    """Also that of the last batch, which Spark never commits; where Spark ends without a word, the
    next run stores it.
    """
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(70))
    wire.send(topic, 1, bodies(30))
    stream.run(startingOffsets="earliest", consumerGroup=group, maxOffsetsPerTrigger="40")
    if not admission:
        assert (
            stream.run(startingOffsets="earliest", consumerGroup=group, maxOffsetsPerTrigger="40")
            == []
        )
    name = wire.broker_name(topic)
    for queue_id, count in ((0, 70), (1, 30)):
        queue = MessageQueue(topic, name, queue_id)
        # called at once
        assert eventually(lambda: wire.progress(group, queue) == count or None)  # noqa: B023


def test_no_group_is_told_without_being_asked(
    wire: Wire, stream: Stream, topic: str, group: str
) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    stream.run(startingOffsets="earliest", consumerGroup=group, commitOffsets="false")
    assert not wire.progress(group, MessageQueue(topic, wire.broker_name(topic), 0))


def test_a_stream_goes_on_where_the_group_stands(
    wire: Wire,
    spark: SparkSession,
    stream: Stream,
    topic: str,
    group: str,
    tmp_path: Path,
    admission: bool,
) -> None:
    """The checkpoint is lost, the group is not."""
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    stream.run(startingOffsets="earliest", consumerGroup=group)
    if not admission:
        assert stream.run(startingOffsets="earliest", consumerGroup=group) == []
    queue = MessageQueue(topic, wire.broker_name(topic), 0)
    assert eventually(lambda: wire.progress(group, queue) == 10 or None)
    wire.send(topic, 0, bodies(4))
    again = Stream(spark, wire.name_server, topic, tmp_path / "another")
    assert again.run(startingOffsets="group", consumerGroup=group) == [
        [(0, i) for i in range(10, 14)]
    ]


def test_latest_begins_after_what_is_there(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    assert stream.run() in ([], [[]])
    wire.send(topic, 0, bodies(2))
    assert stream.run() == [[(0, 10), (0, 11)]]


@pytest.mark.releases
def test_lost_messages_fail_the_query_or_are_skipped(
    wire: Wire, stream: Stream, topic: str, tmp_path: Path
) -> None:
    """The checkpoint says 10 were read of a queue that ends at 6, as after a broker that lost its
    disk.
    """
    wire.create(topic)
    wire.send(topic, 0, bodies(6))
    stream.run(startingOffsets="earliest")
    for written in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        written.write_text(
            written.read_text().replace('"0": 6', '"0": 10').replace('"0":6', '"0":10')
        )
    with pytest.raises(PySparkException, match="ends at offset 6, but was read up to 10"):
        stream.run(startingOffsets="earliest")
    assert stream.run(startingOffsets="earliest", failOnDataLoss="false") in ([], [[]])
    wire.send(topic, 0, bodies(2))
    assert stream.run(startingOffsets="earliest", failOnDataLoss="false") == [[(0, 6), (0, 7)]]


def test_a_checkpoint_of_another_topic_is_refused(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic)
    wire.create(topic + "_2")
    wire.send(topic, 0, bodies(3))
    stream.run(startingOffsets="earliest")
    with pytest.raises(
        PySparkException, match="belongs to a query with other topics, queues or another filter"
    ):
        stream.run(subscribe=topic + "_2")


@pytest.mark.slow
def test_a_stream_outlives_its_broker(
    spark: SparkSession, flavour: Flavour, topic: str, tmp_path: Path
) -> None:
    """kill -9 of the broker under a running query: it goes on when the broker is back, without loss
    and without reading twice.
    """
    with start_broker(flavour, tmp_path / "broker") as broker:
        wire = Wire(broker)
        wire.create(topic)
        wire.send(topic, 0, bodies(100))
        stream = Stream(spark, wire.name_server, topic, tmp_path / "checkpoint")
        query = stream.start(
            {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}, available_now=False
        )
        try:
            assert eventually(
                lambda: stream.offsets if len(stream.offsets) == 100 else None
            ) == list(range(100))
            broker.kill()
            broker.start()
            wire.send(topic, 0, bodies(50))
            assert eventually(
                lambda: stream.offsets if len(stream.offsets) == 150 else None
            ) == list(range(150))
            assert query.exception() is None
        finally:
            query.stop()
