"""A sink whose cluster, or a broker of it, is away at the wrong moment."""

import asyncio
import os
import threading
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from ogive.client import rpc
from ogive.errors import ConnectError, OgiveError, SendFailed, TopicNotExist
from ogive.model import MessageQueue
from ogive.spark import sink
from ogive.spark.cluster import Cluster, connect
from ogive.spark.cluster_options import Access
from ogive.spark.dedup import RUN_TOPIC, TopicInDoubt
from ogive.spark.offsets import Positions
from ogive.spark.options import SinkOptions
from ogive.spark.patience import USUAL, Patience
from ogive.spark.row_sender import Half, Recall
from ogive.spark.rows import Keys, form
from ogive.wire.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from ogive.wire.bodies.stats import TopicOffset

A = MessageQueue("Orders", "broker-a", 0)
BROKER = BrokerData(cluster="c", broker_name="broker-a", addresses={0: "127.0.0.1:10911"})


def use_cluster(
    monkeypatch: pytest.MonkeyPatch, *answers: Callable[..., Awaitable[object]]
) -> None:
    """The sink's cluster gives *answers*, functions with the names of `ogive.client.rpc`'s."""
    for answer in answers:
        monkeypatch.setattr(rpc, answer.__name__, answer)
    here = connect(Access(name_servers=("127.0.0.1:9876",)))
    monkeypatch.setattr(sink, "cluster", lambda _: here)


# --- committing in a process that has not reached the cluster before, while all of it restarts: the


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What groups are told, by topic. No name server answers the first question."""
    told: list[tuple[str, int]] = []
    silent = [ConnectError("connection refused")]

    def answer() -> None:
        if silent:
            raise silent.pop()

    async def get_cluster_info(*_: object, **__: object) -> ClusterInfo:
        answer()
        return ClusterInfo(brokers={"broker-a": BROKER}, clusters={})

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        answer()
        return TopicRouteData(
            queues=(QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),),
            brokers=(BROKER,),
        )

    async def topic_stats(*_: object, **__: object) -> dict[MessageQueue, TopicOffset]:
        return {A: TopicOffset(min_offset=0, max_offset=0, last_update_timestamp=0)}

    async def update_consumer_offset(
        _: object, __: str, ___: str, queue: MessageQueue, offset: int, **____: object
    ) -> None:
        told.append((queue.topic, offset))

    async def update_consumer_offsets(
        _: object, __: str, ___: str, offsets: Mapping[MessageQueue, int], **____: object
    ) -> None:
        told.extend((queue.topic, offset) for queue, offset in offsets.items())

    async def query_consumer_offset(
        _: object, __: str, ___: str, queue: MessageQueue, **____: object
    ) -> int | None:
        return dict(told).get(queue.topic)

    use_cluster(
        monkeypatch,
        get_cluster_info,
        get_route,
        topic_stats,
        query_consumer_offset,
        update_consumer_offset,
        update_consumer_offsets,
    )
    return told


def test_the_first_batch_of_a_query(told: list[tuple[str, int]]) -> None:
    options = SinkOptions.parse(
        {"nameServer": "127.0.0.1:9876", "topic": "Orders", "delivery": "idempotent"}
    )
    sink.StreamSink(options).commit([sink.Sent(3, ("Orders",), "7f")], 0)
    assert told == [("SPARK_SINK_BATCHES", 1), ("Orders", 0)]


IDEMPOTENT = {"nameServer": "127.0.0.1:9876", "topic": "Orders", "delivery": "idempotent"}


def test_a_driver_that_wrote_a_batch_of_another_one_is_told_so(told: list[tuple[str, int]]) -> None:
    """Both have copies of one checkpoint. A batch that all of its tasks skipped is in order."""
    target = sink.StreamSink(SinkOptions.parse(IDEMPOTENT))
    told.append(("SPARK_SINK_BATCHES", 5))
    target.commit([sink.Sent(0, (), "7f", skipped=True)], 4)
    with pytest.raises(OgiveError, match="another driver has written batch 4 of query 7f"):
        target.commit([sink.Sent(3, ("Orders",), "7f")], 4)
    target.commit([sink.Sent(3, ("Orders",), "7f")], 5)
    assert told[-2:] == [("SPARK_SINK_BATCHES", 6), ("Orders", 0)]


def test_a_batch_before_the_last_one_is_refused(
    told: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats the last batch only: the checkpoint was set back, or is a copy."""
    told.append(("SPARK_SINK_BATCHES", 5))
    target = sink.StreamSink(SinkOptions.parse(IDEMPOTENT))

    def write(batch: int) -> sink.Sent:
        attempt = sink.Attempt(query_id="set back", run_id=f"run {batch}", batch_id=batch)
        monkeypatch.setattr(sink.Attempt, "current", classmethod(lambda _: attempt))
        return target.write(iter([pa.RecordBatch.from_arrays([pa.array(["row"])], ["body"])]))

    assert write(4).skipped
    with pytest.raises(OgiveError, match=r"batch 4 .* is written already, .* at batch 3: .* copy"):
        write(3)


def test_a_batch_write(told: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit looks for what it cannot know after an answer was lost."""
    recalled: list[set[str]] = []

    async def end_transactions(
        _: object, __: str, halves: Sequence[Half], ___: object, *, recall: Recall, **____: object
    ) -> None:
        recalled.append(await recall())

    monkeypatch.setattr(sink, "end_transactions", end_transactions)
    writer = sink.BatchSink(SinkOptions.parse({"nameServer": "127.0.0.1:9876", "topic": "Orders"}))
    writer._begins = {"Orders": {A: 0}}
    writer.commit([sink.Sent(1, ("Orders",), None, (Half("Orders", "broker-a", "key", 0, 0),))])
    assert recalled == [set()]


# --- a query's first batch, and a topic without route in a cluster that has other brokers ---------


@pytest.mark.parametrize(
    ("begun_by", "refusal"),
    [(None, SendFailed), ("this run", SendFailed), ("another run", TopicInDoubt)],
    ids=["nobody", "this run", "another run"],
)
def test_a_topic_is_new_only_to_the_first_run_of_a_query(
    begun_by: str | None, refusal: type[OgiveError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another run has stored there, before its broker went away, would be stored again on the
    brokers that are left.
    """
    noted: list[tuple[str, int]] = []

    async def get_cluster_info(*_: object, **__: object) -> ClusterInfo:
        return ClusterInfo(brokers={"broker-a": BROKER}, clusters={})

    async def get_route(*_: object, **__: object) -> TopicRouteData:
        raise TopicNotExist(17, "no route")

    async def query_consumer_offset(
        _: object, __: str, ___: str, queue: MessageQueue, **____: object
    ) -> int | None:
        if begun_by is not None and queue.topic == RUN_TOPIC:
            return zlib.crc32(begun_by.encode())
        return dict(noted).get(queue.topic)

    async def update_consumer_offset(
        _: object, __: str, ___: str, queue: MessageQueue, offset: int, **____: object
    ) -> None:
        noted.append((queue.topic, offset))

    use_cluster(
        monkeypatch, get_cluster_info, get_route, query_consumer_offset, update_consumer_offset
    )
    monkeypatch.setattr(sink, "DOUBTFUL", Patience(window_s=0.0, doubtful=True))
    attempt = sink.Attempt(query_id=f"begun by {begun_by}", run_id="this run")
    monkeypatch.setattr(sink.Attempt, "current", classmethod(lambda _: attempt))
    options = SinkOptions.parse(
        {"nameServer": "127.0.0.1:9876", "topic": "Orders", "delivery": "idempotent"}
    )
    with pytest.raises(OgiveError) as refused:
        sink.StreamSink(options).write(
            iter([pa.RecordBatch.from_arrays([pa.array(["row"])], ["body"])])
        )
    assert type(refused.value) is refusal
    assert noted == ([(RUN_TOPIC, zlib.crc32(b"this run"))] if begun_by is None else [])


# --- what earlier attempts have stored ------------------------------------------------------------


def test_one_key_of_a_users_may_stand_in_several_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt died when the row of the first topic was stored."""
    names = ["topic", "body", "uniqueKey"]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["Bills", "Parcels"]), pa.array(["a", "b"]), pa.array(["order 17"] * 2)], names
    )
    rows = form(batch, None, 0, 0, Keys("query", 7, partition=0, of_content=True))
    stored = {"Bills": {rows[0].key}, "Parcels": set[str]()}
    monkeypatch.setattr(sink, "stored_keys", lambda _, topic, *__: stored[topic])
    memory = sink._Memory(cast(Cluster, None), lambda _: {}, repeated=True, patience=USUAL)
    assert memory.unsent(rows) == rows[1:]


async def test_a_task_may_come_to_a_new_topic_while_it_is_looked_up_what_is_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks, added = threading.Event(), threading.Event()

    def stored_keys(_: object, topic: str, *__: object) -> set[str]:
        looks.set()
        added.wait(60)
        return {f"key of {topic}"}

    monkeypatch.setattr(sink, "stored_keys", stored_keys)
    begins: dict[str, Positions] = {"Bills": {}}
    recall = asyncio.create_task(sink._recall(cast(Cluster, None), begins))
    await asyncio.to_thread(looks.wait, 60)
    begins["Parcels"] = {}
    added.set()
    assert await recall == {"key of Bills"}


# --- a power cut ----------------------------------------------------------------------------------


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="the name of an open file is read from /proc"
)
@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize(
    ("delivery", "kept"), [("atLeastOnce", False), ("idempotent", True), ("transactional", True)]
)
def test_which_rows_a_batch_has_is_on_stable_storage_before_any_is_written(
    delivery: str, kept: bool, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch with more rows would be planned under its number after a power cut, and taken
    for the one that is written.
    """
    for name in ("metadata", "offsets/9", "offsets/10", "commits/9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("v1")
    synced: list[str] = []

    def fsync(handle: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{handle}").readlink(), tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint = {"checkpointLocation": f"{scheme}{tmp_path}"}
    sink.StreamSink(
        SinkOptions.parse(
            {"nameServer": "127.0.0.1:9876", "topic": "Orders", "delivery": delivery, **checkpoint}
        )
    )
    assert synced == (["offsets/10", "metadata", "offsets", ".", ".."] if kept else [])


@pytest.mark.parametrize(
    "folder", ["hdfs://nn:8020/checkpoint", "s3a://bucket/checkpoint", "/no/such/folder"]
)
def test_a_checkpoint_elsewhere_is_its_file_systems_matter(folder: str) -> None:
    given = {
        "nameServer": "127.0.0.1:9876",
        "topic": "Orders",
        "delivery": "idempotent",
        "checkpointLocation": folder,
    }
    sink.StreamSink(SinkOptions.parse(given))
