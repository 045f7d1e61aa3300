"""What the tests on a real broker share.

One Spark session a process, because a start takes about 5 s.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ogive import aio
from tests.peers import RunningBroker
from tests.topics import Stream, Wire

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
async def orders(broker: RunningBroker, topic: str) -> AsyncIterator[aio.Producer]:
    """A producer; the topic has four queues."""
    async with aio.Admin(broker.name_server) as admin, aio.Producer(broker.name_server) as producer:
        await admin.create_topic(topic, queues=4)
        yield producer


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    import ogive.spark

    config = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = ogive.spark.session("ogive tests", master="local[2]", memory="512m", config=config)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def admission() -> bool:
    """Return True if Spark bounds the batches of trigger(availableNow=True) and reports its last
    one: docs/spark.md has the rules.
    """
    from ogive.spark.compat import ADMISSION_CONTROL

    return ADMISSION_CONTROL


@pytest.fixture
def wire(broker: RunningBroker) -> Wire:
    return Wire(broker)


@pytest.fixture
def load(spark: "SparkSession", wire: Wire, topic: str) -> Callable[..., "DataFrame"]:
    """The test's topic as a table; options by name. One that is None is left out."""

    def table(schema: str | None = None, **options: str | None) -> "DataFrame":
        given = {"nameServer": wire.name_server, "subscribe": topic, **options}
        reader = spark.read.format("rocketmq").options(
            **{name: text for name, text in given.items() if text is not None}
        )
        return (reader.schema(schema) if schema else reader).load()

    return table


@pytest.fixture
def stream(spark: "SparkSession", wire: Wire, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, wire.name_server, topic, tmp_path / "checkpoint")


@pytest.fixture
def write(wire: Wire, topic: str) -> Callable[..., None]:
    """Writes a frame to the test's topic."""

    def append(frame: "DataFrame", mode: str = "append", **options: str) -> None:
        frame.write.format("rocketmq").options(
            nameServer=wire.name_server, topic=topic, **options
        ).mode(mode).save()

    return append
