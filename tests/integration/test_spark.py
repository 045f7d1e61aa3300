"""Topics as Spark tables and streams, and Spark as a producer, on a real broker of either kind."""

import asyncio
import json
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import ogive.spark
from ogive.client import api
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies import TopicConfig
from ogive.wire.headers import SendMessageRequestV2
from ogive.wire.message import BatchItem, encode_batch, encode_properties
from tests.peers import Flavour, RunningBroker, start_broker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

T = TypeVar("T")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session a process: a start takes about 5 s."""
    session = ogive.spark.session("ogive tests", master="local[2]", memory="512m")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Wire:
    """Plain requests to the broker, so that a test says exactly which queue holds what."""

    def __init__(self, broker: RunningBroker) -> None:
        self.name_server = broker.name_server
        self._address = broker.address

    def _run(self, call: Callable[[ConnectionPool], Coroutine[Any, Any, T]]) -> T:
        async def once() -> T:
            pool = ConnectionPool()
            try:
                return await call(pool)
            finally:
                await pool.close()

        return asyncio.run(once())

    def create(self, topic: str, queues: int = 1) -> None:
        config = TopicConfig(name=topic, read_queues=queues, write_queues=queues)
        self._run(lambda pool: api.create_topic(pool, self._address, config))

    def send(self, topic: str, queue_id: int, bodies: Sequence[bytes], sys_flag: int = 0, **properties: str) -> None:
        """Each body as a message with *properties*, where {i} stands for its position."""

        def header(text: str, *, batch: bool) -> SendMessageRequestV2:
            return SendMessageRequestV2(
                producer_group="tests",
                topic=topic,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_timestamp=time.time_ns() // 1_000_000,
                properties=text,
                batch=batch,
            )

        texts = [{name: value.format(i=i) for name, value in properties.items()} for i in range(len(bodies))]

        async def go(pool: ConnectionPool) -> None:
            if len(bodies) == 1:
                text = encode_properties(texts[0]).decode()
                await api.send_message(pool, self._address, header(text, batch=False), bodies[0], broker_name="broker-a")
                return
            for at in range(0, len(bodies), 500):
                rows = zip(bodies[at : at + 500], texts[at : at + 500], strict=True)
                batch = encode_batch(BatchItem(0, body, encode_properties(text)) for body, text in rows)
                wait = header("WAIT\x01true\x02", batch=True)
                await api.send_message(pool, self._address, wait, batch, broker_name="broker-a", batch=True)

        self._run(go)

    def progress(self, group: str, queue: MessageQueue) -> int | None:
        return self._run(lambda pool: api.query_consumer_offset(pool, self._address, group, queue, zero_if_young=False))

    def broker_name(self, topic: str) -> str:
        """Of the only broker."""
        return next(iter(self._run(lambda pool: api.topic_stats(pool, self._address, topic)))).broker_name


@pytest.fixture
def wire(broker: RunningBroker) -> Wire:
    return Wire(broker)


@pytest.fixture
def load(spark: SparkSession, wire: Wire, topic: str) -> Callable[..., DataFrame]:
    """The test's topic as a table; options by name."""

    def table(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("rocketmq").option("nameServer", wire.name_server).option("subscribe", topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return table


class Stream:
    """A stream over one topic that keeps what its batches hold."""

    def __init__(self, spark: SparkSession, name_server: str, topic: str, checkpoint: Path) -> None:
        self._spark = spark
        self._options = {"nameServer": name_server, "subscribe": topic}
        self._checkpoint = checkpoint
        self.batches: list[list[tuple[int, int]]] = []

    def start(self, options: Mapping[str, str], *, available_now: bool = True) -> StreamingQuery:
        """With *available_now* the query reads what is there, then ends."""
        stream = self._spark.readStream.format("rocketmq").options(**{**self._options, **options}).load()
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")).start()

    @property
    def offsets(self) -> list[int]:
        """Of all batches so far, in the order in which they came."""
        return [offset for batch in list(self.batches) for _, offset in batch]

    def run(self, **options: str) -> list[list[tuple[int, int]]]:
        """Queue and offset of each message, for each batch of this run."""
        self.batches = []
        query = self.start(options)
        assert query.awaitTermination(120)
        return self.batches

    def _keep(self, frame: DataFrame, _: int) -> None:
        self.batches.append(sorted((row.queueId, row.queueOffset) for row in frame.select("queueId", "queueOffset").collect()))


@pytest.fixture
def stream(spark: SparkSession, wire: Wire, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, wire.name_server, topic, tmp_path / "checkpoint")


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"body %d" % i for i in range(start, start + count)]


# --- batch reads -----------------------------------------------------------------------------------------------------


def test_a_batch_shows_every_message_as_it_was_sent(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic, 4)
    for queue_id in range(4):
        wire.send(topic, queue_id, bodies(1000, 1000 * queue_id), KEYS="k{i} all", TAGS=f"T{queue_id}", shop="grün")
    before = time.time()
    rows = load().collect()
    assert sorted((row.queueId, row.queueOffset, bytes(row.body)) for row in rows) == [
        (queue_id, offset, b"body %d" % (1000 * queue_id + offset)) for queue_id in range(4) for offset in range(1000)
    ]
    row = next(row for row in rows if (row.queueId, row.queueOffset) == (2, 7))
    assert (row.topic, row.brokerName, row.keys, row.tags) == (topic, wire.broker_name(topic), "k7 all", "T2")
    assert {name: row.properties.get(name) for name in ("KEYS", "TAGS", "shop")} == {"KEYS": "k7 all", "TAGS": "T2", "shop": "grün"}
    assert before - 60 < row.bornTimestamp.timestamp() <= row.storeTimestamp.timestamp() + 1 < before + 60


def test_a_schema_prunes_columns(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10), TAGS="a")
    rows = load("body binary, queueOffset bigint").collect()
    assert [(bytes(row.body), row.queueOffset) for row in rows] == [(b"body %d" % i, i) for i in range(10)]
    assert "properties" not in load(includeProperties="false").columns


def test_start_and_end_may_be_given_for_each_queue(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(100))
    wire.send(topic, 1, bodies(100))
    frame = load(startingOffsets=json.dumps({topic: {"0": 10, "1": -2}}), endingOffsets=json.dumps({topic: {"0": 15, "1": 3}}))
    assert sorted((row.queueId, row.queueOffset) for row in frame.collect()) == [(0, i) for i in range(10, 15)] + [(1, i) for i in range(3)]


def test_tags_are_filtered_exactly(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    """`AaAa` and `BBBB` have one hash code, and the hash code is all that the broker compares."""
    wire.create(topic)
    for tag in ("AaAa", "BBBB", "other", "AaAa"):
        wire.send(topic, 0, bodies(50), TAGS=tag)
    assert [row.queueOffset for row in load(tags="BBBB").collect()] == list(range(50, 100))
    assert load(tags="BBBB || other").count() == 100
    assert load(tags="nobody").count() == 0


def test_compressed_bodies_are_inflated(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, [zlib.compress(b"long " * 1000)], sys_flag=0x301)
    wire.send(topic, 0, [b"short"])
    assert [bytes(row.body) for row in load().collect()] == [b"long " * 1000, b"short"]


def test_dead_letters_are_a_table(spark: SparkSession, wire: Wire, group: str) -> None:
    wire.create(f"%DLQ%{group}")
    wire.send(f"%DLQ%{group}", 0, bodies(3), RETRY_TOPIC="Orders")
    frame = spark.read.format("rocketmq").option("nameServer", wire.name_server).load(f"%DLQ%{group}")
    assert [(row.topic, row.properties["RETRY_TOPIC"]) for row in frame.collect()] == [(f"%DLQ%{group}", "Orders")] * 3


def test_an_empty_topic_has_no_rows(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic, 2)
    assert load().count() == 0


def test_a_split_queue_gives_every_message_once(wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(45_000))
    frame = load(preserveOrder="false", maxPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    assert sorted(row.queueOffset for row in frame.select("queueOffset").collect()) == list(range(45_000))


# --- faults a user makes ---------------------------------------------------------------------------------------------


def test_an_unknown_option_is_refused_with_the_nearest_name(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match="did you mean startingOffsets"):
        load(startingOffset="latest")


def test_an_unknown_topic_is_named(load: Callable[..., DataFrame], topic: str) -> None:
    with pytest.raises(PySparkException, match=f"topic '{topic}' has no route"):
        load().collect()


def test_an_unknown_column_is_named(load: Callable[..., DataFrame]) -> None:
    with pytest.raises(PySparkException, match="no column 'value'"):
        load("value binary").collect()


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_reads_in_several_batches_and_ends(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(600))
    wire.send(topic, 1, bodies(400))
    batches = stream.run(startingOffsets="earliest", maxOffsetsPerTrigger="300")
    assert len(batches) >= 4
    assert max(len(batch) for batch in batches) <= 300
    assert sorted(pair for batch in batches for pair in batch) == [(0, i) for i in range(600)] + [(1, i) for i in range(400)]


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


def test_progress_is_mirrored_to_the_consumer_group(wire: Wire, stream: Stream, topic: str, group: str) -> None:
    """Also that of the last batch, which Spark never commits."""
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(70))
    wire.send(topic, 1, bodies(30))
    stream.run(startingOffsets="earliest", consumerGroup=group, maxOffsetsPerTrigger="40")
    name = wire.broker_name(topic)
    assert eventually(lambda: wire.progress(group, MessageQueue(topic, name, 0))) == 70
    assert eventually(lambda: wire.progress(group, MessageQueue(topic, name, 1))) == 30


def eventually(look: Callable[[], T | None], timeout_s: float = 10.0) -> T | None:
    """What *look* finds; the stream's process may still be telling the broker when the query has ended."""
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_no_group_is_told_without_being_asked(wire: Wire, stream: Stream, topic: str, group: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    stream.run(startingOffsets="earliest", consumerGroup=group, commitOffsets="false")
    assert not wire.progress(group, MessageQueue(topic, wire.broker_name(topic), 0))


def test_a_stream_goes_on_where_the_group_stands(
    wire: Wire, spark: SparkSession, stream: Stream, topic: str, group: str, tmp_path: Path
) -> None:
    """The checkpoint is lost, the group is not."""
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    stream.run(startingOffsets="earliest", consumerGroup=group)
    queue = MessageQueue(topic, wire.broker_name(topic), 0)
    assert eventually(lambda: wire.progress(group, queue)) == 10
    wire.send(topic, 0, bodies(4))
    again = Stream(spark, wire.name_server, topic, tmp_path / "another")
    assert again.run(startingOffsets="group", consumerGroup=group) == [[(0, i) for i in range(10, 14)]]


def test_latest_begins_after_what_is_there(wire: Wire, stream: Stream, topic: str) -> None:
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    assert stream.run() in ([], [[]])
    wire.send(topic, 0, bodies(2))
    assert stream.run() == [[(0, 10), (0, 11)]]


def test_lost_messages_fail_the_query_or_are_skipped(wire: Wire, stream: Stream, topic: str, tmp_path: Path) -> None:
    """The checkpoint says 10 were read of a queue that ends at 6, as after a broker that lost its disk."""
    wire.create(topic)
    wire.send(topic, 0, bodies(6))
    stream.run(startingOffsets="earliest")
    for written in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        written.write_text(written.read_text().replace('"0": 6', '"0": 10').replace('"0":6', '"0":10'))
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
    with pytest.raises(PySparkException, match="belongs to a query with other topics or tags"):
        stream.run(subscribe=topic + "_2")


@pytest.mark.slow
def test_a_stream_outlives_its_broker(spark: SparkSession, flavour: Flavour, topic: str, tmp_path: Path) -> None:
    """kill -9 of the broker under a running query: it goes on when the broker is back, without loss and without reading twice."""
    with start_broker(flavour, tmp_path / "broker") as broker:
        wire = Wire(broker)
        wire.create(topic)
        wire.send(topic, 0, bodies(100))
        stream = Stream(spark, wire.name_server, topic, tmp_path / "checkpoint")
        query = stream.start({"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}, available_now=False)
        try:
            assert eventually(lambda: stream.offsets if len(stream.offsets) == 100 else None, 60) == list(range(100))
            broker.kill()
            broker.start()
            wire.send(topic, 0, bodies(50))
            assert eventually(lambda: stream.offsets if len(stream.offsets) == 150 else None, 60) == list(range(150))
            assert query.exception() is None
        finally:
            query.stop()


# --- sink ------------------------------------------------------------------------------------------------------------

SINK = "body string, tags string, keys array<string>, properties map<string,string>, shardingKey string"


@pytest.fixture
def write(wire: Wire, topic: str) -> Callable[..., None]:
    """Writes a frame to the test's topic."""

    def append(frame: DataFrame, mode: str = "append", **options: str) -> None:
        frame.write.format("rocketmq").options(nameServer=wire.name_server, topic=topic, **options).mode(mode).save()

    return append


def test_what_was_written_is_read(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], write: Callable[..., None], topic: str
) -> None:
    wire.create(topic, 4)
    rows = [(f"body {i}", f"T{i % 3}", [f"k{i}", "all"], {"shop": "grün"}, f"plane {i % 10}") for i in range(5000)]
    write(spark.createDataFrame(rows, SINK))
    found = load().collect()
    assert sorted(bytes(row.body).decode() for row in found) == sorted(row[0] for row in rows)
    by_body = {bytes(row.body).decode(): row for row in found}
    row = by_body["body 17"]
    assert (row.tags, row.keys) == ("T2", "k17 all")
    assert {name: row.properties[name] for name in ("shop", "__SHARDINGKEY")} == {"shop": "grün", "__SHARDINGKEY": "plane 7"}


def test_rows_with_one_sharding_key_keep_their_order(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], write: Callable[..., None], topic: str
) -> None:
    wire.create(topic, 4)
    rows = [(f"{i}", None, None, None, f"plane {i % 10}") for i in range(25_000)]
    write(spark.createDataFrame(rows, SINK).coalesce(1))
    found = load().orderBy("queueId", "queueOffset").collect()
    planes: dict[str, list[tuple[int, int]]] = {}
    for row in found:
        planes.setdefault(row.properties["__SHARDINGKEY"], []).append((row.queueId, int(bytes(row.body))))
    assert len(planes) == 10
    for sent in planes.values():
        assert len({queue_id for queue_id, _ in sent}) == 1
        assert sent == sorted(sent)
        assert len(sent) == 2500


def test_a_topic_column_and_a_copy_of_another_topic(spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str) -> None:
    """Properties that came out of a topic name what its broker wrote: those do not hinder a copy."""
    copy = topic + "_copy"
    wire.create(topic)
    wire.create(copy)
    wire.send(topic, 0, bodies(20), KEYS="k{i}", TAGS="t", shop="a")
    columns = load().selectExpr(f"'{copy}' as topic", "body", "keys", "tags", "properties")
    columns.write.format("rocketmq").option("nameServer", wire.name_server).mode("append").save()
    copied = load(subscribe=copy).collect()
    assert sorted((bytes(row.body), row.keys, row.tags, row.properties["shop"]) for row in copied) == sorted(
        (b"body %d" % i, f"k{i}", "t", "a") for i in range(20)
    )


def test_a_delayed_row_arrives_later(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], write: Callable[..., None], topic: str
) -> None:
    wire.create(topic)
    write(spark.createDataFrame([("now", 0), ("later", 1)], "body string, delayTimeLevel int"))

    def both() -> list[str] | None:
        bodies = [bytes(row.body).decode() for row in load().collect()]
        return bodies if len(bodies) == 2 else None

    assert eventually(both, 60) == ["now", "later"]


def test_a_stream_is_written(spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str, tmp_path: Path) -> None:
    copy = topic + "_copy"
    wire.create(topic)
    wire.create(copy)
    wire.send(topic, 0, bodies(1000))
    options = {"nameServer": wire.name_server}
    stream = spark.readStream.format("rocketmq").options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="400", **options)
    writer = stream.load().select("body").writeStream.format("rocketmq").options(topic=copy, **options)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(bytes(row.body) for row in load(subscribe=copy).collect()) == sorted(bodies(1000))


def test_an_error_names_the_row(spark: SparkSession, wire: Wire, write: Callable[..., None], topic: str) -> None:
    wire.create(topic)
    rows = [("fine", None), ("fine", ""), ("fine", None)]
    with pytest.raises(PySparkException, match="row 1 of partition 0 cannot be sent: tag is empty"):
        write(spark.createDataFrame(rows, "body string, tags string").coalesce(1))
    with pytest.raises(PySparkException, match="row 0 of partition 0 cannot be sent: its body is null"):
        write(spark.createDataFrame([(None,)], "body string").coalesce(1))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("text string", "column 'text' cannot be sent"),
        ("body int", "column 'body' is int; it must be binary or string"),
        ("tags string", "no column body"),
        ("body string, tag string", "did you mean tags"),
    ],
)
def test_columns_that_cannot_be_sent_are_named(spark: SparkSession, write: Callable[..., None], schema: str, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.createDataFrame([], schema))


def test_a_topic_is_not_overwritten(spark: SparkSession, write: Callable[..., None]) -> None:
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        write(spark.createDataFrame([("a",)], "body string"), mode="overwrite")
