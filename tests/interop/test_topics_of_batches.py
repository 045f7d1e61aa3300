"""Apache's topics of batches (queue.type=BatchCQ): its broker keeps a batch of Java's as one record, and our readers take it apart.

A store that has such a topic does not open here; once the topic is deleted it does.
"""

import asyncio
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue
from ogive.store import MessageStore, StoreConfig
from ogive.wire.codes import SysFlag
from ogive.wire.message import WRAPPED
from tests.interop import apache
from tests.interop.apache import Apache
from tests.interop.test_store_exchange import new_apache
from tests.peers import our_broker

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)
INSIDE = (1, 9, 13, 35, 55)
"""Offsets inside records and at their edges; 30 to 35 are plain ones."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic with one queue, and the body at each of its offsets: 3 records of Java's with 10 messages each, 6 of ours, one with 20."""

    server: str
    topic: str
    bodies: list[str]

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, "broker-a", 0)

    @property
    def expected(self) -> list[tuple[int, str]]:
        return list(enumerate(self.bodies))


def create(broker: Apache, topic: str) -> None:
    (said,) = broker.admin(f"updateTopic -b {broker.address} -t {topic} -r 1 -w 1 -a +queue.type=BatchCQ")
    assert "success" in said, said


def fill(server: str, topic: str) -> list[str]:
    apache.send(server, topic, 30, mode="batch", batch=10, tags="a,b")
    with ogive.Producer(server) as producer:
        sent = producer.send_batch(topic, [b"ours %d" % n for n in range(5)], tag="a")
        sent.append(producer.send(topic, b"alone"))
        assert [result.queue_offset for result in sent] == list(range(30, 36))
    apache.send(server, topic, 20, first=30, mode="batch", batch=20, tags="a,b")
    javas = [f"message {n}" for n in range(50)]
    return [*javas[:30], *(f"ours {n}" for n in range(5)), "alone", *javas[30:]]


@pytest.fixture(scope="module")
def filled(apache_broker: Apache) -> Filled:
    create(apache_broker, "Batches")
    return Filled(apache_broker.name_server, "Batches", fill(apache_broker.name_server, "Batches"))


def places(messages: list[MessageExt]) -> list[tuple[int, str]]:
    return [(message.queue_offset, message.text) for message in messages]


def test_apache_keeps_a_batch_as_one_record(filled: Filled) -> None:
    """What an offset id names is the record; ours, without a key of the batch, are stored one by one."""
    with ogive.Admin(filled.server) as admin:
        first, last, ours = (admin.message_at(filled.queue, n) for n in (0, 55, 31))
        assert {admin.message_at(filled.queue, n).offset_id for n in range(10)} == {first.offset_id}
        assert len({admin.message_at(filled.queue, n).offset_id for n in range(30, 36)}) == 6
        records = [admin.message(message.offset_id) for message in (first, last, ours)]
    assert [(record.queue_offset, record.sys_flag & WRAPPED, record.properties.get("INNER_NUM")) for record in records] == [
        (0, WRAPPED, "10"), (36, WRAPPED, "20"), (31, 0, None),
    ]  # fmt: skip
    assert (first.sys_flag, first.tag, first.keys, first.properties["index"], first.text) == (
        SysFlag.INNER_BATCH, "a", ("key-0",), "0", "message 0",
    )  # fmt: skip


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_gets_each_message_once_with_its_offset(filled: Filled, group: str, orderly: bool) -> None:
    got: list[MessageExt] = []
    listener = ogive.listener(filled.topic, group=group, start="earliest", orderly=orderly)(got.append)
    async with aio.Admin(filled.server) as admin, asyncio.timeout(WAIT_S):
        async with aio.PushConsumer(listener, name_server=filled.server, config=QUICK):
            while len(got) < len(filled.bodies):
                await asyncio.sleep(0.05)
        (lag,) = await admin.lag(group, filled.topic)
    assert places(got if orderly else sorted(got, key=lambda message: message.queue_offset)) == filled.expected
    assert (lag.consumer_offset, lag.lag) == (56, 0)


async def test_a_failed_message_of_a_batch_comes_again_alone(filled: Filled, group: str) -> None:
    got: list[MessageExt] = []

    def bill(message: MessageExt) -> ogive.ConsumeResult:
        got.append(message)
        return ogive.LATER if message.text == "message 13" and not message.reconsume_times else None

    listener = ogive.listener(filled.topic, group=group, start="earliest")(bill)
    async with asyncio.timeout(WAIT_S), aio.PushConsumer(listener, name_server=filled.server, config=QUICK):
        while len(got) < len(filled.bodies) + 1:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # for what should not come
    again = [message for message in got if message.queue.topic != filled.topic]
    assert [(message.topic, message.text, message.keys, message.reconsume_times) for message in again] == [
        (filled.topic, "message 13", ("key-13",), 1)
    ]
    assert sorted(places([message for message in got if message.queue.topic == filled.topic])) == filled.expected


@pytest.mark.parametrize("begin", INSIDE)
def test_a_group_goes_on_inside_a_batch(filled: Filled, group: str, begin: int) -> None:
    """One member commits inside a record, and the next one gets what is behind that."""
    got: list[MessageExt] = []
    with ogive.PullConsumer(filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK) as first:
        while len(got) < begin:
            got += first.poll(WAIT_S, max_messages=begin - len(got))
    with ogive.PullConsumer(filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK) as second:
        while len(got) < len(filled.bodies):
            got += second.poll(WAIT_S)
    assert places(got) == filled.expected


def test_java_delivers_a_batch_again_from_its_first_message(filled: Filled, group: str) -> None:
    """What ours does otherwise: a Java group that stands at 13 gets 10 to 12 once more."""
    with ogive.PullConsumer(filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK) as member:
        got: list[MessageExt] = []
        while len(got) < 13:
            got += member.poll(WAIT_S, max_messages=13 - len(got))
    lines = apache.consume(filled.server, filled.topic, group, len(filled.bodies) - 10)
    assert sorted((line["queueOffset"], line["body"]) for line in lines) == filled.expected[10:]


def test_seeks_single_pulls_and_look_ups_inside_batches(filled: Filled) -> None:
    with ogive.PullConsumer(name_server=filled.server) as consumer:
        consumer.assign([filled.queue])
        for begin in INSIDE:
            consumer.seek(filled.queue, begin)
            assert places(consumer.poll(WAIT_S, max_messages=3)) == filled.expected[begin : begin + 3]
        pulled = consumer.pull(filled.queue, 17, max_messages=1)
        assert (places(list(pulled.messages)), pulled.next_offset) == (filled.expected[17:20], 20)
        assert (consumer.beginning_offset(filled.queue), consumer.end_offset(filled.queue)) == (0, 56)
        behind_the_filter = consumer.pull(filled.queue, 0, max_messages=32, tags="a")
        assert [message.text for message in behind_the_filter.messages] == [
            f"ours {n}" for n in range(5)
        ]  # the broker's doing, see the docs
    with ogive.Admin(filled.server) as admin:
        assert places([admin.message_at(filled.queue, n) for n in INSIDE]) == [filled.expected[n] for n in INSIDE]
        assert places(admin.messages(filled.topic, limit=100)) == filled.expected


def test_tail_shows_each_message(filled: Filled) -> None:
    command = [sys.executable, "-m", "ogive", "tail", filled.topic, "--from", "earliest", "--count", "56", "--json", "-n", filled.server]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == filled.bodies


@pytest.mark.parametrize("size", ["1", "7", "1000"])
def test_sparks_source_reads_each_message_wherever_its_tasks_begin(filled: Filled, size: str) -> None:
    pytest.importorskip("pyspark")
    from ogive.spark.options import SourceOptions
    from ogive.spark.reader import BatchReader
    from ogive.spark.schema import MESSAGE_COLUMNS

    options = {"nameServer": filled.server, "subscribe": filled.topic, "maxRecordsPerPartition": size, "preserveOrder": "false"}
    reader = BatchReader(SourceOptions.parse(options), MESSAGE_COLUMNS)
    rows = [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]
    assert sorted((row["queueOffset"], row["body"].decode()) for row in rows) == filled.expected


def test_a_store_with_such_a_topic_opens_here_once_the_topic_is_deleted(tmp_path: Path) -> None:
    """Refused, it is as it was: Apache's broker goes on with it."""
    with new_apache(tmp_path) as theirs:
        create(theirs, "Batches")
        bodies = fill(theirs.name_server, "Batches")
        apache.send(theirs.name_server, "Plain", 4, mode="batch", batch=4)
        theirs.kill()
    with pytest.raises(IllegalStateError, match=r"only Apache's broker serves: Batches\."), our_broker(tmp_path):
        pass
    with new_apache(tmp_path) as theirs:
        with ogive.Admin(theirs.name_server) as admin:
            assert places(admin.messages("Batches", limit=100)) == list(enumerate(bodies))
        theirs.admin("deleteTopic -c DefaultCluster -t Batches")
        theirs.stop()
    with our_broker(tmp_path) as ours:
        assert len(apache.consume(ours.name_server, "Plain", "ours", 4)) == 4
        with ogive.Admin(ours.name_server) as admin, ogive.Producer(ours.name_server) as producer:
            admin.create_topic("Batches", queues=1)
            producer.send("Batches", b"anew")
            found = places(admin.messages("Batches", limit=100))
            assert found == [*[*enumerate(bodies)][30:36], (36, "anew")]  # the log still has what was stored by itself
        ours.stop()
    store = MessageStore.open(StoreConfig(root=tmp_path / "store"))
    assert store.stats().damaged == 0
    store.close()
    with new_apache(tmp_path) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 4)) == 4
