"""What Spark 4.3 does to a Python data source that a reader of its documentation would not expect.

Each test shows the trap with a small source, so that a release of Spark that mends it is noticed,
and then that ours does not fall in.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="these are hazards of Spark 4.2 and later"
)

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.query import StreamingQuery

import ogive.spark
from ogive.model import MessageQueue
from ogive.spark.compat import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from tests.integration.state_job import PATIENCE
from tests.spark_clusters import CONNECT, run_job
from tests.topics import Stream, Wire, bodies, eventually

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(300)]

END = 40


class Numbers(DataSourceStreamReader):
    """A stream of the numbers below END that notes each call."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def _note(self, call: str) -> None:
        with self._log.open("a") as file:
            file.write(call + "\n")

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._note("initialOffset")
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(10)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._note("latestOffset")
        return {
            "at": min(END, start["at"] + limit.max_rows) if isinstance(limit, ReadMaxRows) else END
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._note(f"batch of {end['at'] - start['at']}")
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return ((number,) for number in range(*partition.value))

    def commit(self, end: dict[str, Any]) -> None:
        self._note("commit")

    def stop(self) -> None:
        self._note("stop")


class Admitting(Numbers, SupportsTriggerAvailableNow):
    def prepareForTriggerAvailableNow(self) -> None: ...  # noqa: N802


def counting_source(log: Path, *, admits: bool) -> type[DataSource]:
    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "admitting_numbers" if admits else "numbers"

        def schema(self) -> str:
            return "number int"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Admitting(log) if admits else Numbers(log)

    return Source


@pytest.fixture(autouse=True)
def _by_value() -> Iterator[None]:
    """Spark's processes do not have this module: its classes travel whole."""
    module = sys.modules[__name__]
    # pyspark ships it without types
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield
    cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]  # likewise


def calls_of(spark: SparkSession, directory: Path, *, admits: bool) -> Counter[str]:
    """What Spark asks of that source while a query with trigger(availableNow=True) runs to its
    end.
    """
    source, log = counting_source(directory / "calls", admits=admits), directory / "calls"
    spark.dataSource.register(source)
    writer = spark.readStream.format(source.name()).load().writeStream.format("noop")
    query = (
        writer.option("checkpointLocation", str(directory / "numbers"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return Counter(log.read_text().split("\n"))


def test_the_first_offset_is_asked_twice_and_the_last_batch_never_committed(
    spark: SparkSession, wire: Wire, stream: Stream, topic: str, group: str, tmp_path: Path
) -> None:
    """(b), (c), (d): a second initialOffset, no commit of the last batch, no stop().
    tests/unit/spark/test_reader.py has ours for (b).
    """
    calls = calls_of(spark, tmp_path, admits=True)
    assert (calls["initialOffset"], calls["batch of 10"], calls["commit"], calls["stop"]) == (
        2,
        4,
        3,
        0,
    )
    wire.create(topic)
    wire.send(topic, 0, bodies(END))
    assert (
        len(stream.run(startingOffsets="earliest", maxOffsetsPerTrigger="10", consumerGroup=group))
        == 4
    )
    queue = MessageQueue(topic, wire.broker_name(topic), 0)
    assert eventually(lambda: wire.progress(group, queue) == END or None)


def test_a_limit_holds_for_available_now(
    spark: SparkSession, wire: Wire, stream: Stream, topic: str, tmp_path: Path
) -> None:
    """(e): a source that does not say that it supports the trigger is asked for everything at
    once.
    """
    assert calls_of(spark, tmp_path, admits=False)[f"batch of {END}"] == 1
    wire.create(topic)
    wire.send(topic, 0, bodies(END))
    assert [
        len(batch) for batch in stream.run(startingOffsets="earliest", maxOffsetsPerTrigger="10")
    ] == [10] * 4


def test_an_idle_stream_shows_its_progress(
    wire: Wire, stream: Stream, topic: str, group: str
) -> None:
    """(c): Spark would tell of this batch when the next one is planned; that may be tomorrow."""
    wire.create(topic)
    wire.send(topic, 0, bodies(7))
    query = stream.start(
        {"startingOffsets": "earliest", "consumerGroup": group}, available_now=False
    )
    queue = MessageQueue(topic, wire.broker_name(topic), 0)
    try:
        assert eventually(lambda: wire.progress(group, queue) == 7 or None)
    finally:
        query.stop()


def test_pushed_filters_do_not_leak(
    spark: SparkSession, wire: Wire, load: Callable[..., DataFrame], topic: str
) -> None:
    """(a): with pushdown on, Spark gives one query of a DataFrame the rows of another one's
    filter.
    """

    class Pushing(DataSourceReader):
        def __init__(self) -> None:
            self.only: int | None = None

        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
            for one in filters:
                if isinstance(one, EqualTo) and one.attribute == ("number",):
                    self.only = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(self.only)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((number,) for number in range(10) if partition.value in (None, number))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushing_numbers"

        def schema(self) -> str:
            return "number int"

        def reader(self, schema: Any) -> DataSourceReader:
            return Pushing()

    spark.dataSource.register(Source)
    wire.create(topic)
    wire.send(topic, 0, bodies(10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        leaking = spark.read.format("pushing_numbers").load()
        assert [leaking.count(), leaking.filter("number = 3").count(), leaking.count()] == [
            10,
            1,
            1,
        ]
        ours = load()
        assert [
            ours.count(),
            ours.filter("queueOffset = 3").count(),
            ours.count(),
            ours.join(ours, "queueOffset").count(),
        ] == [
            10,
            1,
            10,
            10,
        ]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_offsets_are_one_text(wire: Wire, stream: Stream, topic: str, tmp_path: Path) -> None:
    """Spark compares offsets as text: one that is written in another order is new data to it, and
    an empty batch.
    """
    wire.create(topic, 12)
    for queue_id in (11, 2, 7):
        wire.send(topic, queue_id, bodies(1))
    stream.run(startingOffsets="earliest")
    assert stream.run(startingOffsets="earliest") == []
    (written,) = (tmp_path / "checkpoint" / "offsets").glob("[0-9]*")
    offset = json.loads(written.read_text().split("\n")[2])
    queue_ids = next(iter(offset["q"][topic].values()))
    assert list(queue_ids) == [str(queue_id) for queue_id in range(12)]


def test_a_stream_into_a_topic_can_be_started_from_another_thread(
    spark: SparkSession, wire: Wire, topic: str, tmp_path: Path
) -> None:
    """Spark looks for the sink in the session that is active in the calling thread: in a thread of
    the user's there is none.
    """
    wire.create(topic)

    def start() -> StreamingQuery:
        rows = (
            spark.readStream.format("rocketmq")
            .option("nameServer", wire.name_server)
            .load(topic)
            .select("body")
        )
        writer = rows.writeStream.format("rocketmq").options(
            nameServer=wire.name_server, topic=topic
        )
        return (
            writer.option("checkpointLocation", str(tmp_path / "copy"))
            .trigger(availableNow=True)
            .start()
        )

    with (
        ThreadPoolExecutor(1) as thread,
        pytest.raises(Py4JJavaError, match="Failed to find the data source: rocketmq"),
    ):
        thread.submit(start).result()
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ogive.spark.register, spark).result()
        assert thread.submit(start).result().awaitTermination(120)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(ogive.spark.session).result()
        assert thread.submit(start).result().awaitTermination(120)


@pytest.mark.nightly
def test_state_with_timers_never_ends_under_available_now(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    """(f): transformWithState with a TTL, so in processing time, runs batches without rows for
    ever; without one the query ends.

    A source cannot end it. Ours gives no row twice, and our own jobs keep state in other ways:
    below.
    """
    if not CONNECT.exists():
        pytest.skip("transformWithState needs pandas and protobuf: tools/setup slow")
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(END))
    run_job(
        ["-m", "tests.integration.state_job", wire.name_server, topic, str(tmp_path)],
        tmp_path,
        {"PYTHONPATH": str(CONNECT)},
    )
    found = json.loads((tmp_path / "result.json").read_text())
    assert (found["None"]["ended"], found["None"]["rows"]) == (True, END)
    assert (found["ProcessingTime"]["ended"], found["ProcessingTime"]["rows"]) == (False, END)
    assert found["ProcessingTime"]["without"] >= PATIENCE


def test_none_of_our_jobs_keeps_state_with_timers() -> None:
    """(f): pipelines, demo and examples run with trigger(availableNow=True), by default or by an
    option; test_spark_ease.py runs one that drops duplicates with the state that Spark keeps
    itself, and it ends.
    """
    root = Path(__file__).parents[2]
    jobs = [path for folder in ("src/ogive", "examples") for path in (root / folder).rglob("*.py")]
    assert any("availableNow=True" in path.read_text("utf-8") for path in jobs)
    assert [path for path in jobs if "transformWithState" in path.read_text("utf-8")] == []
