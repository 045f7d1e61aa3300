"""Planning on the driver: what a read covers, and when it must not begin."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition

from ogive.errors import DataLoss, InvalidOption, OgiveError
from ogive.model import MessageQueue
from ogive.spark import reader
from ogive.spark.compat import ReadMaxRows
from ogive.spark.offsets import Positions, Spans, to_offset
from ogive.spark.options import SourceOptions
from ogive.spark.patience import Patience
from ogive.spark.ranges import Pace, QueueRange
from ogive.spark.reader import BatchReader, StreamReader, TaskPartition
from ogive.spark.schema import MESSAGE_COLUMNS
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.message import StoredMessage, encode_stored

QUEUE, OTHER = (MessageQueue("Orders", "broker-a", queue_id) for queue_id in range(2))


class FixedCluster:
    """Queues that end where the test says, and a group's offsets."""

    def __init__(self, ends: Positions, committed: Positions | None = None) -> None:
        self.ends = dict(ends)
        # 0 where nothing else is said
        self.starts: dict[MessageQueue, int] = {}
        self.removed: dict[MessageQueue, int] = {}
        self.without_master: set[str] = set()
        self.deleted: set[tuple[str, str]] = set()
        self.of_group = dict(committed or {})
        self.stored_at: dict[MessageQueue, list[int]] = {}
        self.answers: list[tuple[QueueRange, bytes]] = []
        # size of a message by its offset
        self.size: Callable[[int], float] = lambda _: 100.0
        self.samples: list[MessageQueue] = []
        self.looks = 0

    def stored_ms(self, _: Positions, __: str) -> dict[MessageQueue, int]:
        return {}

    def selected(
        self, _: object, patience: Patience, __: Iterable[MessageQueue] = (), **___: bool
    ) -> Spans:
        self.patience = patience
        self.looks += 1
        return {
            queue: TopicOffset(
                min_offset=self.starts.get(queue, 0), max_offset=end, last_update_timestamp=0
            )
            for queue, end in self.ends.items()
        }

    def committed(self, _: str, queues: Iterable[MessageQueue]) -> Positions:
        return {queue: self.of_group[queue] for queue in queues if queue in self.of_group}

    def start_copy(self, _: str, positions: Positions) -> "Future[None]":
        self.of_group.update(positions)
        stored: Future[None] = Future()
        stored.set_result(None)
        return stored

    def search(self, times: Mapping[MessageQueue, int], _group: str) -> Positions:
        return {
            queue: sum(stored < time for stored in self.stored_at[queue])
            for queue, time in times.items()
        }

    def end_of(self, queue: MessageQueue) -> int:
        return self.removed[queue]

    def record_bytes(self, positions: Positions) -> dict[MessageQueue, float]:
        self.samples += positions
        return {queue: self.size(at) for queue, at in positions.items()}

    def read(self, *_: object, **__: object) -> Iterator[tuple[QueueRange, bytes]]:
        yield from self.answers


def plan(
    monkeypatch: pytest.MonkeyPatch,
    ends: Positions,
    committed: Positions | None = None,
    **options: str,
) -> list[QueueRange]:
    """What a batch with *options* would read."""
    monkeypatch.setattr(reader, "cluster", lambda _: FixedCluster(ends, committed))
    batch = BatchReader(SourceOptions.parse({"subscribe": "Orders", **options}), MESSAGE_COLUMNS)
    return sorted(part for partition in batch.partitions() for part in partition.value)


def test_options_say_how_long_a_broker_that_is_away_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FixedCluster({QUEUE: 30})
    monkeypatch.setattr(reader, "cluster", lambda _: cluster)
    asked = {
        "pollTimeoutMs": "1500",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "10",
    }
    BatchReader(SourceOptions.parse({"subscribe": "Orders", **asked}), MESSAGE_COLUMNS).partitions()
    assert (cluster.patience.window_s, cluster.patience.retries, cluster.patience.pause_s) == (
        1.5,
        2,
        0.01,
    )


def test_a_batch_reads_from_where_the_group_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(
        monkeypatch, {QUEUE: 30, OTHER: 5}, {QUEUE: 10}, startingOffsets="group", consumerGroup="g"
    )
    assert planned == [QueueRange(QUEUE, 10, 30), QueueRange(OTHER, 0, 5)]


def test_a_group_behind_the_end_of_a_queue_is_data_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue was made anew since: it holds messages at offsets that the group has passed, which
    nobody would ever read.
    """
    shorter = {QUEUE: 30, OTHER: 5}
    with pytest.raises(DataLoss, match="ends at offset 30, but was read up to 100"):
        plan(monkeypatch, shorter, {QUEUE: 100}, startingOffsets="group", consumerGroup="g")
    with caplog.at_level(logging.WARNING):
        planned = plan(
            monkeypatch,
            shorter,
            {QUEUE: 100},
            startingOffsets="group",
            consumerGroup="g",
            failOnDataLoss="false",
        )
    assert planned == [QueueRange(OTHER, 0, 5)]
    assert "ends at offset 30" in caplog.text


def test_a_start_behind_the_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read nothing and say nothing."""
    with pytest.raises(
        InvalidOption,
        match=r"startingOffsets says 20 for queue .*, behind the end of the read, which is 10",
    ):
        plan(
            monkeypatch,
            {QUEUE: 30},
            startingOffsets='{"Orders": {"0": 20}}',
            endingOffsets='{"Orders": {"0": 10}}',
        )


@pytest.mark.parametrize("starting", ['{"Orders": {"0": 20}}', "latest", "latest-5"])
def test_a_start_behind_the_end_is_refused_however_it_is_said(
    monkeypatch: pytest.MonkeyPatch, starting: str
) -> None:
    """Also where one side leaves the broker out, and of a stream."""
    ending = '{"Orders": {"broker-a": {"0": 10}}}'
    message = r"startingOffsets says \d+ for queue .*, behind the end of the read, which is 10"
    with pytest.raises(InvalidOption, match=message):
        plan(monkeypatch, {QUEUE: 30}, startingOffsets=starting, endingOffsets=ending)
    with pytest.raises(InvalidOption, match=message):
        stream(
            monkeypatch, FixedCluster({QUEUE: 30}), startingOffsets=starting, endingOffsets=ending
        ).initialOffset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingTimestamp": "200", "endingOffsets": '{"Orders": {"0": 1}}'},
            "startingTimestamp says 2 for queue .*, behind the end of the read, which is 1",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"Orders": {"0": 200}}',
                "endingOffsets": "latest-2",
            },
            "startingOffsetsByTimestamp says 2 for queue .*, behind .*, which is 1",
        ),
        (
            {"startingOffsets": "latest", "endingTimestamp": "200"},
            "startingOffsets says 3 for queue .*, behind the end of the read, which is 2",
        ),
        (
            {
                "startingOffsets": "latest-1",
                "endingOffsetsByTimestamp": '{"Orders": {"0": 100}}',
            },
            "startingOffsets says 2 for queue .*, behind the end of the read, which is 0",
        ),
        (
            {"startingOffsets": '{"Orders": {"0": 2}}', "endingTimestamp": "200"},
            None,
        ),
        ({"startingTimestamp": "301", "endingOffsets": "latest"}, None),
    ],
)
def test_a_start_behind_the_end_is_refused_also_if_one_of_both_is_a_time(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str | None
) -> None:
    cluster = FixedCluster({QUEUE: 3})
    cluster.stored_at[QUEUE] = [100, 199, 300]
    monkeypatch.setattr(reader, "cluster", lambda _: cluster)
    batch = BatchReader(SourceOptions.parse({"subscribe": "Orders", **options}), MESSAGE_COLUMNS)
    streamed = stream(monkeypatch, cluster, **options)
    if message is None:
        assert not batch.partitions()
        assert streamed.initialOffset()
        return
    with pytest.raises(InvalidOption, match=message):
        batch.partitions()
    with pytest.raises(InvalidOption, match=message):
        streamed.initialOffset()


def test_a_stream_that_starts_where_its_group_stands_may_end_before_the_latest_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FixedCluster({QUEUE: 30}, {QUEUE: 10})
    options = {
        "startingOffsets": "latest",
        "consumerGroup": "g",
        "endingOffsets": '{"Orders": {"0": 20}}',
    }
    assert ends(stream(monkeypatch, cluster, **options).initialOffset()) == [10]


def test_a_group_that_has_passed_the_end_leaves_nothing_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending = '{"Orders": {"0": 10}}'
    assert (
        plan(
            monkeypatch,
            {QUEUE: 30},
            {QUEUE: 20},
            startingOffsets="group",
            consumerGroup="g",
            endingOffsets=ending,
        )
        == []
    )


# --- streams --------------------------------------------------------------------------------------


def stream(monkeypatch: pytest.MonkeyPatch, cluster: FixedCluster, **options: str) -> StreamReader:
    monkeypatch.setattr(reader, "cluster", lambda _: cluster)
    monkeypatch.setattr(reader, "SETTLE_S", 0.0)
    return StreamReader(
        SourceOptions.parse({"subscribe": "Orders", "startingOffsets": "earliest", **options}),
        MESSAGE_COLUMNS,
    )


def ends(offset: Mapping[str, Any]) -> list[int]:
    return [
        end
        for brokers in offset["q"].values()
        for queues in brokers.values()
        for end in queues.values()
    ]


def test_the_first_offset_is_asked_twice_and_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.3 asks a new query's reader again after the first latestOffset: what came in between
    would never be read.
    """
    cluster = FixedCluster({QUEUE: 30})
    source = stream(monkeypatch, cluster, startingOffsets="latest")
    first = source.initialOffset()
    cluster.ends[QUEUE] = 35
    assert ends(source.latestOffset(first, ReadMaxRows(100))) == [35]
    assert source.initialOffset() == first


def test_a_first_batch_that_failed_begins_again_where_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new process is asked then, which sees what has come meanwhile; Spark gives a Python source
    no place to write to but its group.
    """
    cluster = FixedCluster({QUEUE: 30, OTHER: 5})
    options = {"startingOffsets": "latest", "consumerGroup": "g"}
    first = stream(monkeypatch, cluster, **options).initialOffset()
    cluster.ends[QUEUE] = 35
    assert ends(first) == [30, 5]
    assert stream(monkeypatch, cluster, **options).initialOffset() == first


@pytest.mark.parametrize("looks", [1, 3, 1000])
def test_a_queue_that_is_shorter_than_what_was_read_is_looked_at_again_for_a_while(
    monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """A broker that starts shows its queues bit by bit: five looks a second, until they are whole
    or two seconds are over.
    """
    cluster = FixedCluster({QUEUE: 30})
    source = stream(monkeypatch, cluster)
    monkeypatch.setattr(reader, "SETTLE_S", 2.0)
    start = source.latestOffset(source.initialOffset(), ReadMaxRows(100))
    cluster.ends[QUEUE] = 10
    waits: list[float] = []
    now = time.monotonic()

    def sleep(wait_s: float) -> None:
        waits.append(wait_s)
        if len(waits) == 1 + looks:
            cluster.ends[QUEUE] = 40

    # The first wait is that of every call.
    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now + sum(waits))
    if looks == 1000:
        with pytest.raises(DataLoss):
            source.latestOffset(start, ReadMaxRows(100))
        assert 10 <= len(waits[1:]) <= 11
    else:
        assert ends(source.latestOffset(start, ReadMaxRows(100))) == [40]
        assert waits[1:] == [0.2] * looks


def test_a_stream_ends_where_its_option_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FixedCluster({QUEUE: 30, OTHER: 5})
    source = stream(monkeypatch, cluster, endingOffsets='{"Orders": {"0": 50, "1": -1}}')
    start = source.initialOffset()
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [30, 5]
    cluster.ends = {QUEUE: 80, OTHER: 90, MessageQueue("Orders", "broker-a", 2): 7}
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [50, 5, 0]


def test_a_stream_that_ends_at_latest_ends_where_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FixedCluster({QUEUE: 30})
    source = stream(monkeypatch, cluster, endingOffsets="latest")
    start = source.initialOffset()
    source.latestOffset(start, ReadMaxRows(10))
    cluster.ends[QUEUE] = 40
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [30]


def test_messages_before_an_ending_time_may_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FixedCluster({QUEUE: 3})
    cluster.stored_at[QUEUE] = [100, 110, 120]
    source = stream(monkeypatch, cluster, endingTimestamp="125")
    start = source.initialOffset()
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [3]
    cluster.stored_at[QUEUE] += [124, 125, 130]
    cluster.ends[QUEUE] = 6
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [4]


def test_a_start_without_a_message_since_then_is_an_error_where_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FixedCluster({QUEUE: 3})
    cluster.stored_at[QUEUE] = [100, 110, 120]
    assert ends(stream(monkeypatch, cluster, startingTimestamp="105").initialOffset()) == [1]
    assert ends(stream(monkeypatch, cluster, startingTimestamp="500").initialOffset()) == [3]
    with pytest.raises(
        InvalidOption, match="startingTimestamp: queue Orders/broker-a/0 has no message since then"
    ):
        stream(
            monkeypatch,
            cluster,
            startingTimestamp="500",
            startingOffsetsByTimestampStrategy="error",
        ).initialOffset()


def test_a_trigger_waits_for_enough_messages_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FixedCluster({QUEUE: 30})
    source = stream(monkeypatch, cluster, minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    start = source.initialOffset()
    first = source.latestOffset(start, ReadMaxRows(1000))
    # a query begins at once
    assert ends(first) == [30]
    cluster.ends[QUEUE] = 79
    assert source.latestOffset(first, ReadMaxRows(1000)) == first
    cluster.ends[QUEUE] = 80
    assert ends(source.latestOffset(first, ReadMaxRows(1000))) == [80]
    cluster.ends[QUEUE] = 81
    held = to_offset({QUEUE: 80}, first["f"])
    assert source.latestOffset(held, ReadMaxRows(1000)) == held
    source._advanced_at -= 3600
    assert ends(source.latestOffset(held, ReadMaxRows(1000))) == [81]


def test_an_available_now_query_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = stream(
        monkeypatch, FixedCluster({QUEUE: 30}), minOffsetsPerTrigger="50", maxTriggerDelay="1h"
    )
    source._advanced_at = time.monotonic()
    source.prepareForTriggerAvailableNow()
    assert ends(source.latestOffset(source.initialOffset(), ReadMaxRows(1000))) == [30]


def test_a_trigger_reads_about_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of the cluster are 100 bytes long each."""
    source = stream(monkeypatch, FixedCluster({QUEUE: 300, OTHER: 100}), maxBytesPerTrigger="2000")
    assert ends(source.latestOffset(source.initialOffset(), ReadMaxRows(1000))) == [15, 5]


def test_a_queue_that_was_taken_from_its_topic_is_named_with_what_was_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FixedCluster({QUEUE: 30})
    cluster.removed[OTHER] = 9
    both = {QUEUE: 30, OTHER: 5}
    source = stream(monkeypatch, cluster)
    start = to_offset(both, source._owner)
    with pytest.raises(
        DataLoss,
        match="Orders/broker-a/1 is not a queue of its topic any more, and its offsets 5 to 8 were "
        "not read",
    ):
        source.latestOffset(start, ReadMaxRows(1000))
    lenient = stream(monkeypatch, cluster, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert lenient.latestOffset(start, ReadMaxRows(1000)) == start
    assert caplog.text.count("offsets 5 to 8") == 1


def test_a_queue_whose_broker_is_away_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = MessageQueue("Orders", "broker-b", 0)
    cluster = FixedCluster({QUEUE: 30})
    source = stream(monkeypatch, cluster)
    start = to_offset({QUEUE: 30, away: 5}, source._owner)
    with caplog.at_level(logging.WARNING):
        assert source.latestOffset(start, ReadMaxRows(1000)) == start
    assert "Orders/broker-b/0, read up to offset 5, is in no route" in caplog.text
    cluster.ends[away] = 8
    assert ends(source.latestOffset(start, ReadMaxRows(1000))) == [30, 8]


def record(offset: int) -> bytes:
    return encode_stored(StoredMessage("Orders", b"x", queue_offset=offset))


def test_a_hole_in_the_middle_of_an_answer_is_data_loss(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FixedCluster({QUEUE: 30})
    cluster.answers = [
        (QueueRange(QUEUE, 10, 20), b"".join(record(at) for at in (10, 11, 14, 15, 16, 18))),
        (QueueRange(QUEUE, 20, 21), record(20)),
    ]
    part = TaskPartition((QueueRange(QUEUE, 10, 21),), Pace(2))
    with pytest.raises(DataLoss, match="offsets 12 to 13 were deleted"):
        list(stream(monkeypatch, cluster).read(part))
    with caplog.at_level(logging.WARNING):
        batches = list(stream(monkeypatch, cluster, failOnDataLoss="false").read(part))
    assert [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()] == [
        10,
        11,
        14,
        15,
        16,
        18,
        20,
    ]
    assert [gap in caplog.text for gap in ("12 to 13", "17 to 17", "19 to 19")] == [True] * 3


def test_a_task_of_another_release_is_refused_and_not_read_as_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the batch would end, and its messages would count as read."""
    source = stream(monkeypatch, FixedCluster({QUEUE: 30}))
    with pytest.raises(OgiveError, match="install the same release of ogive on both"):
        list(source.read(InputPartition((QueueRange(QUEUE, 10, 21),))))
    assert list(source.read(InputPartition(None))) == []


# --- brokers that are away ------------------------------------------------------------------------

AWAY = MessageQueue("Orders", "broker-b", 0)


def batches(source: StreamReader, at: dict[str, Any], count: int = 3) -> list[QueueRange]:
    """What the next batches read, from the offset *at* on."""
    planned: list[QueueRange] = []
    for _ in range(count):
        end = source.latestOffset(at, ReadMaxRows(100))
        planned += [
            part for partition in source.partitions(at, end) for part in partition.value or ()
        ]
        at = end
    return planned


@pytest.mark.parametrize("starting", ["group", "latest"])
def test_a_broker_that_comes_back_is_read_from_where_the_group_stands(
    starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from its first message; and the group is not put back to that."""
    cluster = FixedCluster({QUEUE: 30}, {QUEUE: 30, AWAY: 1000})
    source = stream(monkeypatch, cluster, startingOffsets=starting, consumerGroup="g")
    at = source.initialOffset()
    cluster.ends[AWAY] = 1003
    assert batches(source, at) == [QueueRange(AWAY, 1000, 1003)]
    source.stop()
    assert cluster.of_group[AWAY] == 1003


def test_a_queue_that_its_topic_got_since_is_read_from_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FixedCluster({QUEUE: 30}, {QUEUE: 30})
    source = stream(monkeypatch, cluster, startingOffsets="group", consumerGroup="g")
    at = source.initialOffset()
    cluster.ends[OTHER] = 4
    assert batches(source, at) == [QueueRange(OTHER, 0, 4)]


def test_what_a_new_queue_no_longer_has_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed by age: else the batch would be one that lost data."""
    cluster = FixedCluster({QUEUE: 30}, {QUEUE: 30})
    source = stream(monkeypatch, cluster)
    at = source.latestOffset(source.initialOffset(), ReadMaxRows(100))
    cluster.ends[OTHER], cluster.starts[OTHER] = 4, 3
    assert batches(source, at) == [QueueRange(OTHER, 3, 4)]


def test_a_slave_that_is_behind_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FixedCluster({QUEUE: 100})
    source = stream(monkeypatch, cluster)
    at = source.latestOffset(source.initialOffset(), ReadMaxRows(1000))
    cluster.ends[QUEUE], cluster.without_master = 98, {QUEUE.broker_name}
    assert batches(source, at) == []
    assert [entry.getMessage() for entry in caplog.records] == [
        f"queue {QUEUE} was read up to 100, and its master is unavailable: waiting for its slave, "
        "which ends at 98"
    ]
    cluster.ends[QUEUE], cluster.without_master = 102, set()
    assert batches(source, at) == [QueueRange(QUEUE, 100, 102)]


# --- bytes, cores and rest ------------------------------------------------------------------------


def test_a_batch_keeps_to_its_bytes_when_messages_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 100 B to 10,000 B at once: no batch has more than twice the limit."""
    cluster = FixedCluster({QUEUE: 40_000, OTHER: 40_000})
    cluster.size = lambda at: 100.0 if at < 10_000 else 10_000.0
    source = stream(monkeypatch, cluster, maxBytesPerTrigger="1000000")
    at, batches, asked = source.initialOffset(), 0, []
    while at != (end := source.latestOffset(at, ReadMaxRows(10**6))):
        parts = list(zip(ends(at), ends(end), strict=True))
        size = sum(sum(map(cluster.size, range(start, stop))) for start, stop in parts)
        assert size <= 2_000_000
        asked.append(len(cluster.samples))
        cluster.samples.clear()
        at, batches = end, batches + 1
    assert ends(at) == [40_000, 40_000]
    # near the limit on both sides of the change: 2 batches of small and 600 of large messages
    assert batches < 700
    # one pull for the broker, and before the first batch another one
    assert asked[0] == 2
    assert set(asked[1:]) <= {1}


def test_an_idle_stream_looks_at_its_queues_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0

    def sleep(wait_s: float) -> None:
        nonlocal now
        now += wait_s

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: now)
    cluster = FixedCluster({QUEUE: 30, MessageQueue("Refunds", "broker-a", 0): 30})
    source = stream(monkeypatch, cluster, subscribe="Orders,Refunds")
    at = source.latestOffset(source.initialOffset(), ReadMaxRows(100))
    # the pauses grow
    while now < 1010:
        source.latestOffset(at, ReadMaxRows(100))
    cluster.looks = 0
    while now < 1110:
        source.latestOffset(at, ReadMaxRows(100))
    # each look asks the broker about two topics
    assert 49 <= cluster.looks <= 51


@pytest.mark.parametrize(
    ("cores", "options", "tasks"),
    [
        (3, {}, 3),
        (16, {}, 4),
        (16, {"maxPartitions": "2"}, 2),
    ],
)
def test_a_batch_has_as_many_tasks_as_the_cluster_has_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, options: dict[str, str], tasks: int
) -> None:
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(8)]
    monkeypatch.setattr(reader, "cluster", lambda _: FixedCluster(dict.fromkeys(queues, 2_500)))
    asked = SourceOptions.parse({"subscribe": "Orders", **options})
    assert len(BatchReader(asked, MESSAGE_COLUMNS, cores).partitions()) == tasks
