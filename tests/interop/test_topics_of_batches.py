"""Topics of batches (queue.type=BatchCQ) at Apache's broker and at ours: a batch is one record, for
Java's clients and for ours, and a store that has such a topic goes from one broker to the other.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

import pytest

import ogive
from ogive import aio
from ogive.model import MessageExt, MessageQueue
from ogive.store import MessageStore, StoreConfig
from ogive.store.verify import verify
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.message import WRAPPED
from tests.interop import apache
from tests.interop.test_store_exchange import new_apache
from tests.peers import RunningBroker, our_broker
from tests.raw_client import RawClient
from tests.topics import wait_until_shown

pytestmark = pytest.mark.first

# Apache's broker dispatches when it has time
WAIT_S = 150.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)
INSIDE = (1, 9, 13, 35, 55)
"""Offsets inside records and at their edges."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A topic with one queue, and the body at each of its offsets: 3 records of Java's with 10
    messages each, one of ours with 5, then a message, and a record of Java's with 20.
    """

    server: str
    address: str
    topic: str
    bodies: list[str]

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, "broker-a", 0)

    @property
    def expected(self) -> list[tuple[int, str]]:
        return list(enumerate(self.bodies))


def create(broker: RunningBroker, topic: str) -> None:
    (said,) = apache.admin(
        broker.name_server,
        f"updateTopic -b {broker.address} -t {topic} -r 1 -w 1 -a +queue.type=BatchCQ",
    )
    assert "success" in said, said


def fill(server: str, topic: str, offset: int = 0, last: int = 20) -> list[str]:
    """Java's batches, one of ours with a single message behind it, and *last* more of Java's in one
    batch; the first is at *offset*.
    """
    apache.send(server, topic, 30, mode="batch", batch=10, tags="a,b")
    with ogive.Producer(server, config=ogive.ProducerConfig(whole_batches=True)) as producer:
        sent = producer.send_batch(topic, [b"ours %d" % n for n in range(5)], tag="a")
        sent.append(producer.send(topic, b"alone", tag="a"))
        assert [result.queue_offset for result in sent] == list(range(offset + 30, offset + 36))
    if last:
        apache.send(server, topic, last, first=30, mode="batch", batch=last, tags="a,b")
    javas = [f"message {n}" for n in range(30 + last)]
    return [*javas[:30], *(f"ours {n}" for n in range(5)), "alone", *javas[30:]]


@pytest.fixture(scope="module", params=["apache", "ogive"])
def broker(request: pytest.FixtureRequest) -> RunningBroker:
    running: RunningBroker = request.getfixturevalue(f"{request.param}_broker")
    return running


@pytest.fixture(scope="module")
def filled(broker: RunningBroker) -> Filled:
    create(broker, "Batches")
    return Filled(
        broker.name_server, broker.address, "Batches", fill(broker.name_server, "Batches")
    )


def places(messages: list[MessageExt]) -> list[tuple[int, str]]:
    return [(message.queue_offset, message.text) for message in messages]


def test_a_batch_is_one_record(filled: Filled) -> None:
    """What an offset id names is the record."""
    with ogive.Admin(filled.server) as admin:
        first, last, ours = (admin.message_at(filled.queue, n) for n in (0, 55, 31))
        assert {admin.message_at(filled.queue, n).offset_id for n in range(10)} == {first.offset_id}
        assert len({admin.message_at(filled.queue, n).offset_id for n in range(30, 36)}) == 2
        records = [admin.message(message.offset_id) for message in (first, last, ours)]
        by_key = admin.messages(filled.topic, key=records[0].properties["UNIQ_KEY"])
    assert [
        (record.queue_offset, record.sys_flag & WRAPPED, record.properties.get("INNER_NUM"))
        for record in records
    ] == [
        (0, WRAPPED, "10"),
        (36, WRAPPED, "20"),
        (30, WRAPPED, "5"),
    ]
    assert {record.properties["INNER_BASE"] for record in records} == {"0", "36", "30"}
    assert [message.offset_id for message in by_key] == [first.offset_id]
    assert (first.sys_flag, first.tag, first.keys, first.properties["index"], first.text) == (
        SysFlag.INNER_BATCH,
        "a",
        ("key-0",),
        "0",
        "message 0",
    )


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_listener_gets_each_message_once_with_its_offset(
    filled: Filled, group: str, orderly: bool
) -> None:
    got: list[MessageExt] = []
    listener = ogive.listener(filled.topic, group=group, start="earliest", orderly=orderly)(
        got.append
    )
    async with aio.Admin(filled.server) as admin, asyncio.timeout(WAIT_S):
        async with aio.PushConsumer(listener, name_server=filled.server, config=QUICK):
            while len(got) < len(filled.bodies):
                await asyncio.sleep(0.05)
        (lag,) = await admin.lag(group, filled.topic)
    assert (
        places(got if orderly else sorted(got, key=lambda message: message.queue_offset))
        == filled.expected
    )
    assert (lag.consumer_offset, lag.lag) == (56, 0)


async def test_a_failed_message_of_a_batch_comes_again_alone(filled: Filled, group: str) -> None:
    got: list[MessageExt] = []

    def bill(message: MessageExt) -> ogive.ConsumeResult:
        got.append(message)
        return ogive.LATER if message.text == "message 13" and not message.reconsume_times else None

    listener = ogive.listener(filled.topic, group=group, start="earliest")(bill)
    async with (
        asyncio.timeout(WAIT_S),
        aio.PushConsumer(listener, name_server=filled.server, config=QUICK),
    ):
        while len(got) < len(filled.bodies) + 1:
            await asyncio.sleep(0.05)
        # for what should not come
        await asyncio.sleep(1.0)
    again = [message for message in got if message.queue.topic != filled.topic]
    assert [
        (message.topic, message.text, message.keys, message.reconsume_times) for message in again
    ] == [(filled.topic, "message 13", ("key-13",), 1)]
    assert (
        sorted(places([message for message in got if message.queue.topic == filled.topic]))
        == filled.expected
    )


@pytest.mark.parametrize("begin", INSIDE)
def test_a_group_goes_on_inside_a_batch(filled: Filled, group: str, begin: int) -> None:
    """One member commits inside a record, and the next one gets what is behind that."""
    got: list[MessageExt] = []
    with ogive.PullConsumer(
        filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK
    ) as first:
        while len(got) < begin:
            got += first.poll(WAIT_S, max_messages=begin - len(got))
    with ogive.PullConsumer(
        filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK
    ) as second:
        while len(got) < len(filled.bodies):
            got += second.poll(WAIT_S)
    assert places(got) == filled.expected


def test_java_delivers_a_batch_again_from_its_first_message(filled: Filled, group: str) -> None:
    """What ours does otherwise: a Java group that stands at 13 gets 10 to 12 once more."""
    with ogive.PullConsumer(
        filled.topic, group=group, start="earliest", name_server=filled.server, config=QUICK
    ) as member:
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
            assert (
                places(consumer.poll(WAIT_S, max_messages=3)) == filled.expected[begin : begin + 3]
            )
        pulled = consumer.pull(filled.queue, 17, max_messages=1)
        assert (places(list(pulled.messages)), pulled.next_offset) == (filled.expected[17:20], 20)
        assert (consumer.beginning_offset(filled.queue), consumer.end_offset(filled.queue)) == (
            0,
            56,
        )
        behind_the_filter = consumer.pull(filled.queue, 0, max_messages=32, tags="a")
        # the brokers' doing, see the docs
        assert [message.text for message in behind_the_filter.messages] == ["alone"]
    with ogive.Admin(filled.server) as admin:
        assert places([admin.message_at(filled.queue, n) for n in INSIDE]) == [
            filled.expected[n] for n in INSIDE
        ]
        assert places(admin.messages(filled.topic, limit=100)) == filled.expected


def test_a_search_by_time_finds_the_first_message_of_a_batch(filled: Filled) -> None:
    with ogive.Admin(filled.server) as admin:
        times = [
            (message.store_timestamp_ms, message.queue_offset)
            for message in admin.messages(filled.topic, limit=100)
        ]
    asked = sorted({time_ms for time_ms, _ in times})

    async def ask() -> list[int]:
        async with await RawClient.open(filled.address) as client:
            code, where = (
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                {"topic": filled.topic, "queueId": 0},
            )
            return [
                int((await client.ok(code, **where, timestamp=time_ms)).ext_fields["offset"])
                for time_ms in (0, *asked)
            ]

    assert asyncio.run(ask()) == [
        0,
        *(min(offset for at, offset in times if at >= time_ms) for time_ms in asked),
    ]


def test_mqadmin_counts_and_shows_messages(filled: Filled) -> None:
    status, inside = apache.admin(
        filled.server,
        f"topicStatus -t {filled.topic}",
        f"queryMsgByOffset -b broker-a -i 0 -o 13 -t {filled.topic}",
    )
    (row,) = apache.table(status)
    assert (row["Min Offset"], row["Max Offset"]) == ("0", "56")
    # of the whole record, which is what a pull at 13 gives
    assert "Queue Offset:        10" in inside


def test_tail_shows_each_message(filled: Filled) -> None:
    command = [
        sys.executable,
        "-m",
        "ogive",
        "tail",
        filled.topic,
        "--from",
        "earliest",
        "--count",
        "56",
        "--json",
        "-n",
        filled.server,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == filled.bodies


@pytest.mark.parametrize("size", ["1", "7", "1000"])
def test_sparks_source_reads_each_message_wherever_its_tasks_begin(
    filled: Filled, size: str
) -> None:
    pytest.importorskip("pyspark")
    from ogive.spark.options import SourceOptions
    from ogive.spark.reader import BatchReader
    from ogive.spark.schema import MESSAGE_COLUMNS

    options = {
        "nameServer": filled.server,
        "subscribe": filled.topic,
        "maxRecordsPerPartition": size,
        "preserveOrder": "false",
    }
    reader = BatchReader(SourceOptions.parse(options), MESSAGE_COLUMNS)
    rows = [
        row
        for partition in reader.partitions()
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    assert sorted((row["queueOffset"], row["body"].decode()) for row in rows) == filled.expected


def test_java_sends_back_each_message_of_a_batch_by_itself(filled: Filled, group: str) -> None:
    lines = apache.consume(filled.server, filled.topic, group, 2 * len(filled.bodies), failures=1)
    again = [line["body"] for line in lines if line["reconsumeTimes"]]
    assert sorted(again) == sorted(filled.bodies)


def key_of_batch(server: str, offset: int) -> dict[str, int]:
    """Of the batch with this message: its own key, and its first offset."""
    with ogive.Admin(server) as admin:
        record = admin.message(
            admin.message_at(MessageQueue("Batches", "broker-a", 0), offset).offset_id
        )
    return {record.properties["UNIQ_KEY"]: record.queue_offset}


def check(server: str, bodies: list[str], keys: dict[str, int]) -> None:
    """Every message is at its place, and the records are found by their keys; the index follows the
    log by a moment.
    """
    ends_at = time.monotonic() + WAIT_S
    wait_until_shown(server, "Batches", len(bodies))
    with ogive.Admin(server) as admin:
        assert places(admin.messages("Batches", limit=1000)) == list(enumerate(bodies))
        while True:
            found = {
                key: [message.queue_offset for message in admin.messages("Batches", key=key)]
                for key in keys
            }
            if found == {key: [offset] for key, offset in keys.items()}:
                break
            assert time.monotonic() < ends_at, found
            time.sleep(0.2)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(methodcaller("stop"), id="stopped", marks=pytest.mark.nightly),
        pytest.param(methodcaller("kill"), id="killed"),
    ],
)
@pytest.mark.parametrize("first", ["apache", "ogive"])
def test_a_store_goes_from_one_broker_to_the_other_and_back(
    tmp_path: Path, first: str, end: Callable[[RunningBroker], None]
) -> None:
    """Every message at its place, also for Java's consumer; keys, groups and offsets too.

    Each broker adds to it.
    """
    bodies: list[str] = []
    keys: dict[str, int] = {}
    for number, flavour in enumerate(
        ["apache", "ogive", "apache"] if first == "apache" else ["ogive", "apache", "ogive"]
    ):
        with (new_apache if flavour == "apache" else our_broker)(tmp_path) as broker:
            if not number:
                create(broker, "Batches")
            server = broker.name_server
            if bodies:
                check(server, bodies, keys)
                lines = apache.consume(server, "Batches", f"java{number}", len(bodies))
                assert sorted((line["queueOffset"], line["body"]) for line in lines) == list(
                    enumerate(bodies)
                )
            bodies += fill(server, "Batches", len(bodies), last=0)
            keys |= key_of_batch(server, len(bodies) - 1 - 5)
            check(server, bodies, keys)
            apache.send(server, "Plain", 4, first=4 * number)
            end(broker)
    if first == "apache":
        store = MessageStore.open(StoreConfig(root=tmp_path / "store"))
        assert store.stats().damaged == 0
        store.close()
    report = verify(tmp_path / "store")
    assert [problem for problem in report.problems if "queue" in problem] == []


def test_what_a_deleted_topic_of_batches_left_is_passed_over(tmp_path: Path) -> None:
    with new_apache(tmp_path) as theirs:
        create(theirs, "Batches")
        fill(theirs.name_server, "Batches")
        apache.send(theirs.name_server, "Plain", 4, mode="batch", batch=4)
        theirs.admin("deleteTopic -c DefaultCluster -t Batches")
        theirs.stop()
    with our_broker(tmp_path) as ours:
        assert len(apache.consume(ours.name_server, "Plain", "ours", 4)) == 4
        with ogive.Admin(ours.name_server) as admin, ogive.Producer(ours.name_server) as producer:
            admin.create_topic("Batches", queues=1)
            producer.send("Batches", b"anew")
            # what was stored by itself is still in the log
            assert places(admin.messages("Batches", limit=100)) == [
                (35, "alone"),
                (36, "anew"),
            ]
        ours.stop()
    with new_apache(tmp_path) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 4)) == 4


def test_an_apache_of_4_9_forgets_such_a_topic_and_serves_the_others(tmp_path: Path) -> None:
    with our_broker(tmp_path) as ours:
        create(ours, "Batches")
        fill(ours.name_server, "Batches", last=0)
        apache.send(ours.name_server, "Plain", 4)
        ours.stop()
    with new_apache(tmp_path, "4.9.7") as old:
        assert len(apache.consume(old.name_server, "Plain", "old", 4)) == 4
        with ogive.Admin(old.name_server) as admin, ogive.Producer(old.name_server) as producer:
            assert admin.messages("Batches", limit=100) == []
            producer.send_batch("Batches", [b"0", b"1"])
            # it writes its table of topics
            admin.create_topic("Other", queues=1)
        old.stop()
    with our_broker(tmp_path) as again, ogive.Admin(again.name_server) as admin:
        assert places(admin.messages("Batches", limit=100)) == [(0, "0"), (1, "1")]
        assert len(apache.consume(again.name_server, "Plain", "again", 4)) == 4
