"""Planning on the driver: what a read covers, and when it must not begin."""

import logging
from collections.abc import Iterable

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.errors import DataLoss, InvalidOption
from ogive.model import MessageQueue
from ogive.spark import reader
from ogive.spark.offsets import Positions, Spans
from ogive.spark.options import SourceOptions
from ogive.spark.ranges import QueueRange
from ogive.spark.reader import BatchReader
from ogive.spark.schema import MESSAGE_COLUMNS
from ogive.wire.bodies import TopicOffset

QUEUE, OTHER = (MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(2))


class FixedCluster:
    """Queues that end where the test says, and a group's offsets."""

    def __init__(self, ends: Positions, committed: Positions) -> None:
        self._spans = {queue: TopicOffset(min_offset=0, max_offset=end, last_update_timestamp=0) for queue, end in ends.items()}
        self._of_group = committed

    def spans(self, _: Iterable[str]) -> Spans:
        return self._spans

    def committed(self, _: str, __: Iterable[MessageQueue]) -> Positions:
        return self._of_group


def plan(monkeypatch: pytest.MonkeyPatch, ends: Positions, committed: Positions | None = None, **options: str) -> list[QueueRange]:
    """What a batch with *options* would read."""
    monkeypatch.setattr(reader, "cluster", lambda _: FixedCluster(ends, committed or {}))
    batch = BatchReader(SourceOptions.parse({"subscribe": "Orders", **options}), MESSAGE_COLUMNS)
    return sorted(part for partition in batch.partitions() for part in partition.value)


def test_a_batch_reads_from_where_the_group_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(monkeypatch, {QUEUE: 30, OTHER: 5}, {QUEUE: 10}, startingOffsets="group", consumerGroup="g")
    assert planned == [QueueRange(QUEUE, 10, 30), QueueRange(OTHER, 0, 5)]


def test_a_group_behind_the_end_of_a_queue_is_data_loss(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The queue was made anew since: it holds messages at offsets that the group has passed, which nobody would ever read."""
    shorter = {QUEUE: 30, OTHER: 5}
    with pytest.raises(DataLoss, match="ends at offset 30, but was read up to 100"):
        plan(monkeypatch, shorter, {QUEUE: 100}, startingOffsets="group", consumerGroup="g")
    with caplog.at_level(logging.WARNING):
        planned = plan(monkeypatch, shorter, {QUEUE: 100}, startingOffsets="group", consumerGroup="g", failOnDataLoss="false")
    assert planned == [QueueRange(OTHER, 0, 5)]
    assert "ends at offset 30" in caplog.text


def test_a_start_behind_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read nothing and say nothing."""
    with pytest.raises(InvalidOption, match=r"startingOffsets says 20 for queue .*, behind endingOffsets, which says 10"):
        plan(monkeypatch, {QUEUE: 30}, startingOffsets='{"Orders": {"0": 20}}', endingOffsets='{"Orders": {"0": 10}}')


def test_a_group_that_has_passed_the_end_leaves_nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = '{"Orders": {"0": 10}}'
    assert plan(monkeypatch, {QUEUE: 30}, {QUEUE: 20}, startingOffsets="group", consumerGroup="g", endingOffsets=ending) == []
