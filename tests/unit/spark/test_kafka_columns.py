"""Kafka's columns of a message: what a job for Kafka's source finds under its names."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.errors import InvalidOption
from ogive.model import MessageQueue
from ogive.spark import reader
from ogive.spark.compat import arrow_schema
from ogive.spark.ranges import Pace, QueueRange
from ogive.spark.reader import BatchReader, TaskPartition
from ogive.spark.schema import check_partitions, only
from ogive.wire.message import StoredMessage, encode_stored
from pyspark_rocketmq import DefaultSource

KAFKA = {"subscribe": "Orders", "columns": "kafka"}
QUEUE, OTHER = MessageQueue("Orders", "broker-a", 3), MessageQueue("Orders", "broker-b", 3)
TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORDS = b"".join(
    encode_stored(
        StoredMessage(
            "Orders",
            b"paid",
            queue_offset=offset,
            properties=properties,
            store_timestamp_ms=int(1000 * TIME.timestamp()),
        )
    )
    for offset, properties in ((7, b"KEYS\x01order-1\x02shop\x01Ulm\x02"), (8, b""))
)


class OneAnswer:
    """A cluster that answers every read with RECORDS."""

    def read(self, ranges: tuple[QueueRange, ...], **_: object) -> Iterator[Any]:
        yield ranges[0], RECORDS


def rows(monkeypatch: pytest.MonkeyPatch, queue: MessageQueue, **more: str) -> list[dict[str, Any]]:
    monkeypatch.setattr(reader, "cluster", lambda _: OneAnswer())
    source = DefaultSource({**KAFKA, **more})
    batch = source.reader(source.schema())
    assert isinstance(batch, BatchReader)
    part = TaskPartition((QueueRange(queue, 7, 9),), Pace(1))
    (found,) = batch.read(part)
    assert found.schema.equals(arrow_schema(source.schema()))
    shown: list[dict[str, Any]] = found.to_pylist()
    return shown


def test_a_message_has_the_columns_of_kafkas_source(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = rows(monkeypatch, QUEUE, includeHeaders="true")
    partition = first.pop("partition")
    assert partition % 65536 == 3
    assert first == {
        "key": b"order-1",
        "value": b"paid",
        "topic": "Orders",
        "offset": 7,
        "timestamp": TIME,
        "timestampType": 1,
        "headers": [
            {"key": "KEYS", "value": b"order-1"},
            {"key": "shop", "value": b"Ulm"},
        ],
    }
    assert (second["key"], second["offset"], second["headers"]) == (None, 8, [])
    assert "headers" not in rows(monkeypatch, QUEUE)[0]


def test_queues_of_two_brokers_are_two_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else topic, partition and offset would not be unique, and dropDuplicates would lose rows."""
    (one, _), (two, _) = rows(monkeypatch, QUEUE), rows(monkeypatch, OTHER)
    assert one["partition"] != two["partition"]
    check_partitions([QUEUE, OTHER])


def test_names_of_brokers_that_look_the_same_are_refused() -> None:
    """Their checksums end in the same 15 bits."""
    alike = [MessageQueue("Orders", name, 3) for name in ("broker-421", "broker-7000")]
    with pytest.raises(InvalidOption, match="use brokerName, queueId and queueOffset"):
        check_partitions(alike)


def test_a_schema_may_name_some_of_the_columns() -> None:
    source = DefaultSource(KAFKA)
    whole = source.schema()
    assert source.reader(only(whole, "value", "partition")) is not None
    with pytest.raises(InvalidOption, match="no column 'brokerName'; it has key, value, topic"):
        source.reader(DefaultSource({"subscribe": "Orders"}).schema())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"columns": "pulsar"}, "columns='pulsar': expected rocketmq or kafka"),
        ({"includeHeaders": "true"}, "includeHeaders needs columns=kafka"),
        (
            {"columns": "kafka", "includeProperties": "true"},
            "with columns=kafka the option is includeHeaders",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        DefaultSource({"subscribe": "Orders", **options}).schema()


def test_kafkas_names_are_answered_with_ours() -> None:
    source = DefaultSource({"subscribe": "Orders"})
    with pytest.raises(InvalidOption, match=r"no column 'key'; here it is keys \(.*columns=kafka"):
        source.reader(DefaultSource(KAFKA).schema())
    with pytest.raises(InvalidOption, match="'key' cannot be sent: did you mean keys, or sharding"):
        DefaultSource({"topic": "Orders"}).writer(DefaultSource(KAFKA).schema(), overwrite=False)
