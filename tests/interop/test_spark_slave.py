"""The master of an Apache broker is down and its slave serves: batches and streams read on from the
slave, as push consumers do.
"""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.spark import source
from ogive.spark.compat import ReadMaxRows
from ogive.spark.schema import MESSAGE_COLUMNS
from tests.interop.apache import Apache
from tests.topics import eventually

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Apache, Apache]]:
    with Apache(tmp_path_factory.mktemp("master"), {"brokerRole": "SYNC_MASTER"}) as master:
        settings = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        with Apache(
            tmp_path_factory.mktemp("slave"), settings, name_server=master.name_server
        ) as slave:
            yield master, slave


def rows(options: dict[str, str], parts: list[Any], reader: Any) -> list[tuple[int, int]]:
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted((row["queueId"], row["queueOffset"]) for row in found)


def process(options: dict[str, str], number: int) -> dict[str, str]:
    """The options in a process that Spark starts: other credentials, which nobody asks for, keep it
    from sharing routes.
    """
    return {**options, "accessKey": f"process-{number}", "secretKey": "unused"}


def test_reads_go_on_from_the_slave(pair: tuple[Apache, Apache], topic: str, group: str) -> None:
    master, slave = pair
    with ogive.Admin(master.name_server) as admin, ogive.Producer(master.name_server) as producer:
        admin.create_topic(topic, queues=2)
        for number in range(10):
            producer.send(topic, b"%d" % number)

        def copied() -> bool | None:
            found = admin.offsets(topic)
            return sum(row.max_offset for row in found) == 10 or None

        assert eventually(copied)
    options = {
        "nameServer": master.name_server,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "consumerGroup": group,
    }
    stream = source.stream_reader(process(options, 0), MESSAGE_COLUMNS)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(4))
    read = rows(options, stream.partitions(start, end), stream)
    assert len(read) == 4

    topics = slave.data / "config" / "topics.json"

    def known() -> bool | None:
        """A slave copies topics and offsets once in 10 s."""
        return (topics.exists() and topic in topics.read_text()) or None

    assert eventually(known)
    master.kill()
    batch = source.batch_reader(process(options, 1), MESSAGE_COLUMNS)

    def whole() -> list[tuple[int, int]] | None:
        found = rows(options, batch.partitions(), batch)
        return found if len(found) == 10 else None

    everything = eventually(whole)
    assert everything is not None
    again = source.stream_reader(process(options, 2), MESSAGE_COLUMNS)
    last = again.latestOffset(end, ReadMaxRows(100))
    assert sorted(read + rows(options, again.partitions(end, last), again)) == everything
    began = source.batch_reader(
        process({**options, "startingTimestamp": "-1h"}, 3), MESSAGE_COLUMNS
    )
    assert rows(options, began.partitions(), began) == everything
