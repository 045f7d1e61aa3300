"""Spark as a producer, on a real broker of either kind: what arrives, in which order, and how often
when tasks and batches are repeated.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import ogive
from ogive.spark.cluster import cluster
from ogive.spark.rows import key_of_text
from tests.topics import Wire, bodies, eventually, wait_until_shown

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(300)]

SINK = (
    "body string, tags string, keys array<string>, properties map<string,string>, shardingKey "
    "string"
)


@pytest.mark.releases
def test_what_was_written_is_read(
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    write: Callable[..., None],
    topic: str,
) -> None:
    wire.create(topic, 4)
    rows = [
        (f"body {i}", f"T{i % 3}", [f"k{i}", "all"], {"shop": "grün"}, f"plane {i % 10}")
        for i in range(5000)
    ]
    write(spark.createDataFrame(rows, SINK))
    wait_until_shown(wire.name_server, topic, len(rows))
    found = load().collect()
    assert sorted(bytes(row.body).decode() for row in found) == sorted(row[0] for row in rows)
    by_body = {bytes(row.body).decode(): row for row in found}
    row = by_body["body 17"]
    assert (row.tags, row.keys) == ("T2", "k17 all")
    assert {name: row.properties[name] for name in ("shop", "__SHARDINGKEY")} == {
        "shop": "grün",
        "__SHARDINGKEY": "plane 7",
    }


def test_rows_with_one_sharding_key_keep_their_order(
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    write: Callable[..., None],
    topic: str,
) -> None:
    wire.create(topic, 4)
    rows = [(f"{i}", None, None, None, f"plane {i % 10}") for i in range(25_000)]
    write(spark.createDataFrame(rows, SINK).coalesce(1))
    wait_until_shown(wire.name_server, topic, len(rows))
    found = load().orderBy("queueId", "queueOffset").collect()
    planes: dict[str, list[tuple[int, int]]] = {}
    for row in found:
        planes.setdefault(row.properties["__SHARDINGKEY"], []).append(
            (row.queueId, int(bytes(row.body)))
        )
    assert len(planes) == 10
    for sent in planes.values():
        assert len({queue_id for queue_id, _ in sent}) == 1
        assert sent == sorted(sent)
        assert len(sent) == 2500


def test_a_number_is_kept_in_a_topic_that_can_be_written_to_as_well(wire: Wire, topic: str) -> None:
    """As in SPARK_SINK_BATCHES of an earlier release: our broker takes no offset there beyond the
    end of the queue.
    """
    wire.create(topic)
    with ogive.Admin(wire.name_server) as admin:
        admin.create_group(f"{topic}_counter")
    brokers = cluster((wire.name_server,))
    brokers.mark(f"{topic}_counter", topic, 7)
    assert list(brokers.marks(f"{topic}_counter", topic).values()) == [7]


def test_a_topic_column_and_a_copy_of_another_topic(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    """Properties that came out of a topic name what its broker wrote: those do not hinder a
    copy.
    """
    copy = topic + "_copy"
    wire.create(topic)
    wire.create(copy)
    wire.send(topic, 0, bodies(20), KEYS="k{i}", TAGS="t", shop="a")
    columns = load().selectExpr(f"'{copy}' as topic", "body", "keys", "tags", "properties")
    columns.write.format("rocketmq").option("nameServer", wire.name_server).mode("append").save()
    copied = load(subscribe=copy).collect()
    assert sorted(
        (bytes(row.body), row.keys, row.tags, row.properties["shop"]) for row in copied
    ) == sorted((b"body %d" % i, f"k{i}", "t", "a") for i in range(20))


def test_a_delayed_row_arrives_later(
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    write: Callable[..., None],
    topic: str,
) -> None:
    wire.create(topic)
    write(spark.createDataFrame([("now", 0), ("later", 1)], "body string, delayTimeLevel int"))

    def both() -> list[str] | None:
        bodies = [bytes(row.body).decode() for row in load().collect()]
        return bodies if len(bodies) == 2 else None

    assert eventually(both) == ["now", "later"]


@pytest.mark.releases
def test_a_stream_is_written(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str, tmp_path: Path
) -> None:
    copy = topic + "_copy"
    wire.create(topic)
    wire.create(copy)
    wire.send(topic, 0, bodies(1000))
    options = {"nameServer": wire.name_server}
    stream = spark.readStream.format("rocketmq").options(
        subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="400", **options
    )
    writer = (
        stream.load().select("body").writeStream.format("rocketmq").options(topic=copy, **options)
    )
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(bytes(row.body) for row in load(subscribe=copy).collect()) == sorted(bodies(1000))


def test_an_error_names_the_row(
    spark: SparkSession, wire: Wire, write: Callable[..., None], topic: str
) -> None:
    wire.create(topic)
    rows = [("fine", None), ("fine", ""), ("fine", None)]
    with pytest.raises(PySparkException, match="row 1 of partition 0 cannot be sent: tag is empty"):
        write(spark.createDataFrame(rows, "body string, tags string").coalesce(1))
    with pytest.raises(
        PySparkException, match="row 0 of partition 0 cannot be sent: its body is null"
    ):
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
def test_columns_that_cannot_be_sent_are_named(
    spark: SparkSession, write: Callable[..., None], schema: str, message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(spark.createDataFrame([], schema))


def test_a_topic_is_not_overwritten(spark: SparkSession, write: Callable[..., None]) -> None:
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        write(spark.createDataFrame([("a",)], "body string"), mode="overwrite")


def test_rows_may_name_their_queue_and_their_unique_key(
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    write: Callable[..., None],
    topic: str,
) -> None:
    wire.create(topic, 4)
    write(
        spark.createDataFrame(
            [(f"{i}", i % 4, f"order {i}") for i in range(40)],
            "body string, queueId int, uniqueKey string",
        )
    )
    rows = load("queueId int, body binary, msgId string").collect()
    assert sorted((row.queueId, int(bytes(row.body))) for row in rows) == sorted(
        (i % 4, i) for i in range(40)
    )
    assert {bytes(row.body).decode(): row.msgId for row in rows} == {
        f"{i}": key_of_text(f"order {i}") for i in range(40)
    }
    with pytest.raises(
        PySparkException,
        match=r"row 0 of partition 0 cannot be sent: 0 queues of topic .* are called \*/9",
    ):
        write(spark.createDataFrame([("x", 9)], "body string, queueId int").coalesce(1))


# --- delivery -------------------------------------------------------------------------------------


class Copy:
    """A query that copies one topic to another."""

    def __init__(
        self, spark: SparkSession, name_server: str, topic: str, checkpoint: Path, delivery: str
    ) -> None:
        self._spark, self._name_server, self._topic, self._checkpoint, self.delivery = (
            spark,
            name_server,
            topic,
            checkpoint,
            delivery,
        )

    def run(
        self,
        body: str = "body",
        then: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        mode: str = "append",
        **options: str,
    ) -> None:
        """To the end of what is there.

        *body*: the expression that makes the body; *then*: what is done with the rows.
        """
        source = self._spark.readStream.format("rocketmq").options(
            nameServer=self._name_server,
            subscribe=self._topic,
            startingOffsets="earliest",
            **options,
        )
        sink = then(source.load().selectExpr(f"{body} as body")).writeStream.format("rocketmq")
        sink = sink.options(
            nameServer=self._name_server, topic=f"{self._topic}_copy", delivery=self.delivery
        )
        query = (
            sink.option("checkpointLocation", str(self._checkpoint))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    def forget_last_commit(self) -> None:
        """As after a driver that died when the sink had committed and Spark had not noted it."""
        last = max((self._checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        for checksum in (self._checkpoint / "commits").glob(f".{last.name}.crc"):
            checksum.unlink()


@pytest.fixture(params=["atLeastOnce", "idempotent", "transactional"])
def copy(
    request: pytest.FixtureRequest, spark: SparkSession, wire: Wire, topic: str, tmp_path: Path
) -> Copy:
    wire.create(topic, 2)
    wire.create(f"{topic}_copy", 2)
    wire.send(topic, 0, bodies(600))
    return Copy(spark, wire.name_server, topic, tmp_path / "checkpoint", request.param)


def arrived(load: Callable[..., DataFrame], topic: str) -> tuple[list[bytes], int]:
    """The bodies of the copy, sorted, and how many different keys they have."""
    rows = load("body binary, msgId string", subscribe=f"{topic}_copy").collect()
    return sorted(bytes(row.body) for row in rows), len({row.msgId for row in rows})


@pytest.mark.releases
def test_a_replayed_batch_is_written_once(
    copy: Copy,
    request: pytest.FixtureRequest,
    wire: Wire,
    load: Callable[..., DataFrame],
    topic: str,
    admission: bool,
) -> None:
    """Spark repeats a batch whose commit it did not note.

    Twice without anything asked for, and even then told by the keys.

    Where Spark runs one batch with trigger(availableNow=True), that is the repeated one, and the
    next run reads the rest.
    """
    copy.run(maxOffsetsPerTrigger="300")
    copy.forget_last_commit()
    wire.send(topic, 0, bodies(10, 600))
    copy.run(maxOffsetsPerTrigger="300")
    if not admission:
        assert arrived(load, topic)[1] == 600
        copy.run(maxOffsetsPerTrigger="300")
    found, keys = arrived(load, topic)
    assert keys == 610
    if "atLeastOnce" in request.node.name:
        assert len(found) == (910 if admission else 1210)
    else:
        assert found == sorted(bodies(610))


@pytest.mark.parametrize("copy", ["idempotent", "transactional"], indirect=True)
def test_a_checkpoint_that_was_set_back_is_refused(
    copy: Copy, load: Callable[..., DataFrame], topic: str, tmp_path: Path, admission: bool
) -> None:
    """It would write other rows under the numbers of batches that are finished."""
    if not admission:
        pytest.skip("this Spark reads everything in one batch")
    copy.run(maxOffsetsPerTrigger="200")
    for kind in ("offsets", "commits"):
        for batch in (1, 2):
            for name in (str(batch), f".{batch}.crc"):
                (tmp_path / "checkpoint" / kind / name).unlink(missing_ok=True)
    with pytest.raises(PySparkException, match="its checkpoint was set back, or is an older copy"):
        copy.run(maxOffsetsPerTrigger="200")
    assert arrived(load, topic)[0] == sorted(bodies(600))


def test_a_batch_that_failed_half_way_is_written_once(
    copy: Copy,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    topic: str,
) -> None:
    """The rows before the bad one were sent; the second attempt sends the others, or all where
    nothing else is asked for.
    """
    # more than the pipes between Spark and its worker hold
    many = [body.ljust(2000) for body in bodies(2400, 600)]
    wire.send(topic, 0, many)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        with pytest.raises(PySparkException, match="the bad one"):
            copy.run("if(queueOffset = 2995, cast(raise_error('the bad one') as binary), body)")
        before, _ = arrived(load, topic)
        copy.run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found, keys = arrived(load, topic)
    assert keys == 3000
    if "transactional" in request.node.name:
        assert before == []
    else:
        assert 0 < len(before) < 3000
    if "atLeastOnce" in request.node.name:
        assert len(found) == 3000 + len(before)
    else:
        assert found == sorted([*bodies(600), *many])


@pytest.mark.parametrize("copy", ["idempotent", "transactional"], indirect=True)
def test_a_batch_that_comes_in_another_order_is_written_once(
    copy: Copy, spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    """Behind a shuffle Spark promises none: here each attempt has its own.

    The first dies half way. Two rows each are equal.
    """
    wire.send(topic, 0, [body.ljust(2000) for body in bodies(1200)] * 2)

    def shuffled(rows: DataFrame, trap: str) -> DataFrame:
        counted = (
            rows.groupBy("body")
            .count()
            .selectExpr("body", "explode(sequence(1, int(count)))", f"{trap} as at")
            .repartition(1)
        )
        return counted.sortWithinPartitions("at").selectExpr(
            "if(at = 0.6, cast(raise_error('the bad one') as binary), body) as body"
        )

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        with pytest.raises(PySparkException, match="the bad one"):
            copy.run(
                then=lambda rows: shuffled(
                    rows, "if(rtrim(string(body)) = 'body 900', double(0.6), rand(1))"
                ),
                mode="complete",
            )
        before, _ = arrived(load, topic)
        copy.run(then=lambda rows: shuffled(rows, "rand(2)"), mode="complete")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found, keys = arrived(load, topic)
    assert found == sorted([*bodies(600), *[body.ljust(2000) for body in bodies(1200)] * 2])
    assert keys == 3000
    assert len(before) == 0 if copy.delivery == "transactional" else 0 < len(before) < 3000


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
def test_a_batch_write_may_be_idempotent_or_transactional(
    spark: SparkSession,
    wire: Wire,
    load: Callable[..., DataFrame],
    write: Callable[..., None],
    topic: str,
    delivery: str,
) -> None:
    wire.create(topic, 2)
    write(
        spark.createDataFrame([(f"body {i}",) for i in range(300)], "body string"),
        delivery=delivery,
    )
    assert sorted(bytes(row.body) for row in load("body binary").collect()) == sorted(bodies(300))
    frame = spark.createDataFrame([("a", topic)], "body string, topic string")
    with pytest.raises(
        PySparkException, match=f"delivery={delivery} of a batch needs the option topic"
    ):
        frame.write.format("rocketmq").options(nameServer=wire.name_server, delivery=delivery).mode(
            "append"
        ).save()
