"""Which rows an earlier attempt has stored: read from where the unfinished batch begins, and only
where there may be an earlier attempt.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from ogive.errors import NoRoute
from ogive.model import MessageQueue
from ogive.spark.cluster import Cluster
from ogive.spark.dedup import RUN_TOPIC, BatchLog, FirstBatches, stored_keys
from ogive.spark.patience import Patience
from ogive.spark.ranges import QueueRange
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.message import StoredMessage, encode_stored

A, B = (MessageQueue("Orders", "broker-a", number) for number in range(2))


class OneTopic:
    """Keys in two queues, and what groups keep."""

    def __init__(self) -> None:
        self.keys: dict[MessageQueue, list[str]] = {A: [], B: []}
        self.of_group: dict[MessageQueue, int] = {}
        self.marked: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        self.done: list[str] = []

    def spans(self, topics: Iterable[str], _: Patience) -> dict[MessageQueue, TopicOffset]:
        if tuple(topics) != ("Orders",):
            raise NoRoute("no such topic")
        return {
            queue: TopicOffset(min_offset=0, max_offset=len(keys), last_update_timestamp=0)
            for queue, keys in self.keys.items()
        }

    def committed(self, _: str, __: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        return dict(self.of_group)

    def commit(self, _: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.of_group |= offsets
        self.done.append("offsets")

    def search(self, times: Mapping[MessageQueue, int], _group: str) -> dict[MessageQueue, int]:
        return {queue: 0 if time_ms == 0 else 1 for queue, time_ms in times.items()}

    def marks(self, _: str, topic: str) -> dict[str, int]:
        return self.runs if topic == RUN_TOPIC else self.marked

    def mark(self, group: str, topic: str, number: int) -> None:
        self.marks(group, topic)["broker-a"] = number
        self.done.append("mark")

    def read(self, ranges: Iterable[QueueRange], **_: Any) -> Iterator[tuple[QueueRange, bytes]]:
        for item in ranges:
            keys = enumerate(self.keys[item.queue][item.start : item.end], item.start)
            yield (
                item,
                b"".join(
                    encode_stored(
                        StoredMessage(
                            "Orders", b"x", f"UNIQ_KEY\x01{key}\x02".encode(), queue_offset=at
                        )
                    )
                    for at, key in keys
                ),
            )


def test_a_batch_begins_where_the_last_one_ended() -> None:
    topic = OneTopic()
    topic.keys = {A: ["a", "b"], B: ["c"]}
    batches = BatchLog(cast(Cluster, topic), "7f")
    assert batches.group == "SPARK_SINK_7f"
    # nobody has noted any: what is there is not of this query
    assert batches.begin("Orders") == {A: 2, B: 1}
    topic.keys[A] += ["d"]
    assert batches.begin("Orders") == {A: 2, B: 1}
    assert stored_keys(cast(Cluster, topic), "Orders", batches.begin("Orders")) == {"d"}
    batches.finish(4, ("Orders",))
    assert batches.next_batch() == 5
    assert stored_keys(cast(Cluster, topic), "Orders", batches.begin("Orders")) == set()


def test_lost_progress_makes_the_look_longer() -> None:
    """The broker was killed before it saved where the batch began, and who wrote as well: what the
    last attempt stored lies before now.
    """
    topic = OneTopic()
    topic.keys = {A: ["a", "b"], B: ["c"]}
    batches = BatchLog(cast(Cluster, topic), "7f")
    assert batches.begin("Orders", batch_id=3, repeated=True) == {A: 0, B: 0}
    topic.of_group = {A: 2}
    # the fake cluster's last hour begins at 1
    assert batches.begin("Orders", batch_id=0, repeated=True) == {A: 2, B: 1}


def test_a_batch_is_marked_as_finished_before_the_next_one_begins_behind_it() -> None:
    """The other way round, a crash in between would forget which of its messages are stored."""
    topic = OneTopic()
    BatchLog(cast(Cluster, topic), "7f").finish(0, ("Orders",))
    assert topic.done == ["mark", "offsets"]


def test_the_broker_that_knows_most_tells_which_batch_is_next() -> None:
    topic = OneTopic()
    batches = BatchLog(cast(Cluster, topic), "7f")
    assert batches.next_batch() == 0
    topic.marked = {"broker-a": 3, "broker-b": 5}
    assert batches.next_batch() == 5


def test_only_the_run_that_began_a_query_is_its_first() -> None:
    topic = OneTopic()
    batches = BatchLog(cast(Cluster, topic), "7f")
    assert batches.is_first_run("run 1")
    # another task of it
    assert batches.is_first_run("run 1")
    assert not batches.is_first_run("run 2")
    assert batches.is_first_run("run 1")
    # another run could not reach broker-a
    topic.runs = {"broker-b": 7, **topic.runs}
    assert not batches.is_first_run("run 1")


def test_a_topic_that_does_not_exist_yet_holds_nothing() -> None:
    topic = OneTopic()
    assert BatchLog(cast(Cluster, topic), "7f").begin("New") == {}
    assert stored_keys(cast(Cluster, topic), "New", {}) == set()


def test_a_queue_that_came_later_is_read_whole() -> None:
    topic = OneTopic()
    topic.keys = {A: ["a"], B: ["b"]}
    assert stored_keys(cast(Cluster, topic), "Orders", {A: 1}) == {"b"}
    # a queue made anew
    assert stored_keys(cast(Cluster, topic), "Orders", {A: 9, B: 9}) == set()


def test_only_the_first_batch_of_a_run_can_be_a_repeated_one() -> None:
    seen = FirstBatches()
    assert seen.may_repeat("q", "run 1", 5)
    # another task of it
    assert seen.may_repeat("q", "run 1", 5)
    assert not seen.may_repeat("q", "run 1", 6)
    assert not seen.may_repeat("q", "run 1", 7)
    assert seen.may_repeat("q", "run 2", 7)
    assert seen.may_repeat("other", "run 1", 7)
