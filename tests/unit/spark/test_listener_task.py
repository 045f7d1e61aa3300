"""What a task of a listener job does with a message whose body does not match its checksum, and
with bytes that are no message; without a Spark session.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

import ogive
from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import READINGS
from ogive.client.instance import ClientInstance
from ogive.errors import OgiveError, ProtocolError
from ogive.model import MessageQueue, retry_topic
from ogive.testing.fake_broker import WAIT_S, FakeBroker, ok
from ogive.wire.bodies.clients import locked_queues_dumps
from ogive.wire.bodies.routes import BrokerData, QueueData, TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import PullMessageResponse
from ogive.wire.message import StoredMessage, encode_stored

pytest.importorskip("pyspark")

from ogive.spark import listener_task
from ogive.spark.listener_task import Consuming, QueueTaken, consume
from ogive.spark.ranges import QueueRange

QUEUE = MessageQueue("Orders", "broker-a", 0)
QUICK = ConsumerConfig(pull_retry_s=0.01, await_termination_s=10.0)
BAD, COUNT = 3, 10
# of a record with IPv4 addresses
BODY_AT = 88


def filled() -> FakeBroker:
    broker = FakeBroker({"Orders": 1, retry_topic("billing"): 1})
    for i in range(COUNT):
        broker.put("Orders", b"%d" % i)
    return broker


def damaged(
    broker: FakeBroker, bit: Callable[[], int] = lambda: 1
) -> Callable[[RemotingCommand], RemotingCommand]:
    """Pulls bring the message at BAD with a wrong body, and a wrong place as well."""

    def record(row: StoredMessage) -> bytes:
        if row.queue_offset != BAD:
            return encode_stored(row)
        raw = bytearray(encode_stored(replace(row, queue_offset=BAD + 3)))
        raw[BODY_AT] ^= bit()
        return bytes(raw)

    def answer(request: RemotingCommand) -> RemotingCommand:
        at, rows = int(request.ext_fields["queueOffset"]), broker.stored["Orders", 0]
        end = min(at + int(request.ext_fields["maxMsgNums"]), len(rows))
        return ok(
            PullMessageResponse(next_begin_offset=end, min_offset=0, max_offset=len(rows)),
            b"".join(map(record, rows[at:end])),
        )

    return answer


def pulls(broker: FakeBroker) -> list[int]:
    return [
        int(request.ext_fields["queueOffset"]) for request in broker.of(RequestCode.PULL_MESSAGE)
    ]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno == logging.ERROR]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_task_goes_on_behind_a_message_that_is_stored_damaged(
    caplog: pytest.LogCaptureFixture, orderly: bool
) -> None:
    """As a push consumer does; else every start of the job would end at the same record."""
    bodies: list[bytes] = []

    @ogive.listener("Orders", group="billing", orderly=orderly)
    async def take(message: ogive.MessageExt) -> None:
        bodies.append(message.body)

    async with filled() as broker:
        broker.on(RequestCode.PULL_MESSAGE, damaged(broker))
        (done,) = await consume(
            ClientConfig(name_server=broker.address), [take], [QueueRange(QUEUE, 0, COUNT)], QUICK
        )
        assert broker.offsets["billing", "Orders", 0] == COUNT
    assert sorted(bodies) == [b"%d" % i for i in range(COUNT) if i != BAD]
    assert (done.begun, done.calls, done.failed) == (0, COUNT - 1, 1)
    (said,) = errors(caplog)
    assert (
        f"Orders/broker-a/0/{BAD} is damaged in its broker's store, and billing goes on without it"
        in said
    )


async def test_damage_on_the_way_to_a_task_passes_nothing_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bodies: list[bytes] = []

    @ogive.listener("Orders", group="billing")
    async def take(message: ogive.MessageExt) -> None:
        bodies.append(message.body)

    async with filled() as broker:

        def bit() -> int:
            if pulls(broker).count(BAD) >= 3 * READINGS:
                broker.on(RequestCode.PULL_MESSAGE, None)
            return 1 << len(pulls(broker)) % 8

        broker.on(RequestCode.PULL_MESSAGE, damaged(broker, bit))
        (done,) = await consume(
            ClientConfig(name_server=broker.address), [take], [QueueRange(QUEUE, 0, COUNT)], QUICK
        )
    assert sorted(bodies) == [b"%d" % i for i in range(COUNT)]
    assert (done.calls, done.failed) == (COUNT, 0)
    assert errors(caplog) == []


async def test_what_is_damaged_on_a_slave_fails_the_task_when_no_master_comes_back(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before it is delivered; Spark tries the task again."""
    monkeypatch.setattr(listener_task, "AWAY_S", 2.0)
    bodies: list[bytes] = []

    @ogive.listener("Orders", group="billing")
    async def take(message: ogive.MessageExt) -> None:
        bodies.append(message.body)

    async with filled() as broker:
        rows = (QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6),)
        slave = (
            BrokerData(
                cluster="DefaultCluster", broker_name="broker-a", addresses={1: broker.address}
            ),
        )
        route = ok(body=TopicRouteData(queues=rows, brokers=slave).encode(standard=True))
        broker.on(RequestCode.PULL_MESSAGE, damaged(broker))
        broker.hold(RequestCode.PULL_MESSAGE)
        async with ClientInstance(
            ClientConfig(name_server=broker.address, route_period_s=0.02)
        ) as client:
            work = asyncio.create_task(
                Consuming(client, [take], replace(QUICK, pull_retry_s=0.02)).run(
                    [QueueRange(QUEUE, 0, COUNT)]
                )
            )
            await broker.received(RequestCode.PULL_MESSAGE)
            broker.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
            async with asyncio.timeout(WAIT_S):
                while client.routes.find_address("broker-a") is not None:
                    await asyncio.sleep(0.005)
            broker.release(RequestCode.PULL_MESSAGE)
            with pytest.raises(OgiveError, match="does not match its checksum"):
                await work
    assert sorted(bodies) == [b"%d" % i for i in range(BAD)]
    assert errors(caplog) == []


async def test_a_task_fails_with_the_way_out_where_no_message_can_be_read(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands before is delivered, and nothing passed over.

    The next attempt goes on where the operator has put the group.
    """
    monkeypatch.setattr(listener_task, "AWAY_S", 0.2)
    bodies: list[bytes] = []

    @ogive.listener("Orders", group="billing")
    async def take(message: ogive.MessageExt) -> None:
        bodies.append(message.body)

    def answer(request: RemotingCommand) -> RemotingCommand:
        at, rows = int(request.ext_fields["queueOffset"]), broker.stored["Orders", 0]
        end = min(at + int(request.ext_fields["maxMsgNums"]), len(rows))
        records = [
            encode_stored(row) if row.queue_offset != BAD else bytes(100) for row in rows[at:end]
        ]
        return ok(
            PullMessageResponse(next_begin_offset=end, min_offset=0, max_offset=len(rows)),
            b"".join(records),
        )

    async with filled() as broker:
        broker.on(RequestCode.PULL_MESSAGE, answer)
        client, ranges = ClientConfig(name_server=broker.address), [QueueRange(QUEUE, 0, COUNT)]
        with pytest.raises(
            ProtocolError,
            match=rf"no message: .*; Orders/broker-a/0 stands still .* --queue 0 --to {BAD + 1}`",
        ):
            await consume(client, [take], ranges, QUICK)
        assert sorted(bodies) == [b"%d" % i for i in range(BAD)]
        assert broker.offsets.get(("billing", "Orders", 0), 0) <= BAD
        assert len(errors(caplog)) == 1
        broker.offsets["billing", "Orders", 0] = BAD + 1
        (done,) = await consume(client, [take], ranges, QUICK)
    assert sorted(bodies) == [b"%d" % i for i in range(COUNT) if i != BAD]
    assert (done.begun, done.failed) == (BAD + 1, 0)


# --- ranges that cannot be filled -----------------------------------------------------------------


async def test_a_range_that_the_broker_has_lost_ends_where_its_queue_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every attempt would fail, and the job with them; the next batches go on from there."""
    monkeypatch.setattr(listener_task, "AWAY_S", 0.3)
    seen: list[bytes] = []

    @ogive.listener("Orders", group="billing")
    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    async with filled() as broker:
        client = ClientConfig(name_server=broker.address)
        [done] = await consume(client, [bill], [QueueRange(QUEUE, 4, COUNT + 40)], QUICK)
        assert sorted(seen) == [b"%d" % i for i in range(4, COUNT)]
        assert (done.wanted.end, done.calls) == (COUNT + 40, COUNT - 4)
        assert broker.offsets["billing", "Orders", 0] == COUNT
        assert errors(caplog) == [
            "Orders/broker-a/0 ends at 10, but the batch was planned up to 50: its broker lost "
            "messages, or its topic was recreated. The missing messages are skipped"
        ]


@pytest.mark.parametrize(
    ("committed", "end", "begun", "asked"),
    [
        (4, COUNT, 4, 0),
        # the attempt before had finished: nobody asks the broker for more
        (COUNT, COUNT, COUNT, 0),
        # a batch after this one was finished by another driver
        (COUNT, 6, 6, 1),
        # of a queue of that name that was deleted
        (COUNT + 1, COUNT, 0, 1),
    ],
)
async def test_an_attempt_goes_on_where_the_one_before_had_come_to(
    committed: int, end: int, begun: int, asked: int
) -> None:
    @ogive.listener("Orders", group="billing")
    def bill(message: ogive.MessageExt) -> None: ...

    async with filled() as broker:
        broker.offsets["billing", "Orders", 0] = committed
        client = ClientConfig(name_server=broker.address)
        [done] = await consume(client, [bill], [QueueRange(QUEUE, 0, end)], QUICK)
        assert (done.begun, done.calls) == (begun, end - begun)
        assert len(broker.of(RequestCode.GET_MAX_OFFSET)) == asked


async def test_a_message_whose_call_takes_too_long_counts_as_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, also where the call returns after all."""
    monkeypatch.setattr(listener_task, "CLOSE_S", 0.1)
    late = asyncio.Event()

    @ogive.listener("Orders", group="billing", consume_timeout_s=0.05)
    async def take(message: ogive.MessageExt) -> None:
        if message.body in (b"3", b"4"):
            await (late.wait() if message.body == b"3" else asyncio.Event().wait())

    async with filled() as broker:
        client = ClientConfig(name_server=broker.address)
        broker.hold(RequestCode.CONSUMER_SEND_MSG_BACK)
        work = asyncio.create_task(consume(client, [take], [QueueRange(QUEUE, 0, COUNT)], QUICK))
        await broker.received(RequestCode.CONSUMER_SEND_MSG_BACK)
        late.set()
        broker.release(RequestCode.CONSUMER_SEND_MSG_BACK)
        [done] = await work
    assert (done.calls, done.failed) == (COUNT, 2)


async def test_a_range_of_a_topic_without_a_listener_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A release took the listener away while a batch with its topic was open."""

    @ogive.listener("Orders", group="billing")
    def bill(message: ogive.MessageExt) -> None: ...

    gone = QueueRange(MessageQueue("Refunds", "broker-a", 0), 3, 9)
    async with filled() as broker:
        client = ClientConfig(name_server=broker.address)
        done = await consume(client, [bill], [gone, QueueRange(QUEUE, 0, COUNT)], QUICK)
    assert [(one.begun, one.calls) for one in done] == [(9, 0), (0, COUNT)]
    assert (
        "Refunds/broker-a/0: skipped 3 to 9: group billing no longer has a listener for them"
        in caplog.text
    )


async def test_a_range_whose_lock_is_lost_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member may be at work in the queue, and gets the messages that wait here."""
    monkeypatch.setattr(listener_task, "CLOSE_S", 0.1)
    begun = asyncio.Event()

    @ogive.listener("Orders", group="billing", orderly=True)
    async def take(message: ogive.MessageExt) -> None:
        begun.set()
        await asyncio.Event().wait()

    config = replace(QUICK, lock_renew_s=0.04)
    async with filled() as broker:
        client = ClientConfig(name_server=broker.address)
        work = asyncio.create_task(consume(client, [take], [QueueRange(QUEUE, 0, COUNT)], config))
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
        broker.on(RequestCode.LOCK_BATCH_MQ, ok(body=locked_queues_dumps(())))
        with pytest.raises(QueueTaken, match="lock of Orders/broker-a/0 was lost"):
            await work
        assert ("billing", "Orders", 0) not in broker.offsets
