"""Standstill: cases 15 to 20."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.listener import LATER
from ogive.errors import OgiveError, ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.testing import Broker, FakeBroker
from ogive.testing.fake_broker import HANG_UP, After, Raw, error, ok
from ogive.wire.bodies.clients import LockBatchBody, locked_queues_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.headers.pull import PullMessageResponse
from tests.ledger import Ledger
from tests.never.scene import GROUP, HEARTBEAT, LOCK, PULL, RETRY, SEND, TOPIC, UNLOCK, Scene, until

# --- 15 and 16: order -----------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["shutdown", "rebalance"])
async def test_case_15_an_orderly_queue_is_handed_over_within_seconds(
    real: Broker, topic: str, group: str, reason: str
) -> None:
    """The broker keeps a lock for a minute, twice as long as this test waits: only giving it back
    lets the successor begin.
    """
    ledger = Ledger()

    def member(name: str) -> aio.PushConsumer:
        async def take(message: MessageExt) -> None:
            ledger.receive(message, name)

        listener = ogive.listener(topic=topic, group=group, start="earliest", orderly=True)(take)
        return aio.PushConsumer(
            listener,
            name_server=real.name_server,
            config=ogive.ConsumerConfig(rebalance_pause_s=0.1),
        )

    async def send(producer: aio.Producer, numbers: range) -> None:
        for i in numbers:
            body = b"%d" % i
            await producer.send(topic, body, queue=MessageQueue(topic, "broker-a", i % 2))
            ledger.sent([body])

    async with aio.Admin(real.name_server) as admin, aio.Producer(real.name_server) as producer:
        await admin.create_topic(topic, queues=2)
        first = member("first")
        await first.start()
        await send(producer, range(10))
        await until(lambda: len(ledger.received) == 10, "the first ten")
        if reason == "shutdown":
            await first.close()
        async with member("second") as second:
            wanted = 2 if reason == "shutdown" else 1
            await until(
                lambda: sum(q.topic == topic for q in second.assignment[group]) == wanted,
                "the successor's queues",
            )
            await send(producer, range(10, 20))
            await until(lambda: len(ledger.received) == 20, "the next ten")
            await first.close()
    ledger.check()
    assert not ledger.disordered
    assert ledger.duplicates == 0
    assert {delivery.member for delivery in ledger.deliveries[10:]} >= {"second"}


@pytest.mark.kills("case 15: locks are not given back")
async def test_case_15_locks_are_given_back_after_the_last_progress(scene: Scene) -> None:
    scene.put(5)
    async with scene.consumer(scene.listener(orderly=True)):
        await until(lambda: scene.received == 5)
    last = max(i for i, r in enumerate(scene.broker.requests) if r.code == UNLOCK)
    unlocked = {
        queue for r in scene.broker.of(UNLOCK) for queue in LockBatchBody.decode(r.body).queues
    }
    assert MessageQueue(TOPIC, "broker-a", 0) in unlocked
    assert scene.progress() == 5
    assert not [
        r for r in scene.broker.requests[last:] if r.code == RequestCode.UPDATE_CONSUMER_OFFSET
    ]


async def test_case_16_an_orderly_queue_recovers_after_a_long_failure_of_the_application(
    scene: Scene,
) -> None:
    scene.put(10)
    tries = [0]

    def work(message: MessageExt) -> Any:
        if message.queue_offset == 4 and tries[0] < 100:
            tries[0] += 1
            return LATER
        return None

    async with scene.consumer(scene.listener(work, orderly=True), rebalance_period_s=0.05):
        await until(lambda: scene.progress() == 10, "the end of the queue")
    assert [delivery.offset for delivery in scene.ledger.deliveries] == [0, 1, 2, 3] + [4] * 101 + [
        5,
        6,
        7,
        8,
        9,
    ]
    scene.check()


@pytest.mark.kills("case 16: queue lock not checked before consume", param="error")
@pytest.mark.parametrize("refusal", ["refused", "error", "silence"])
async def test_case_16_an_orderly_queue_recovers_after_its_lock_was_refused(
    scene: Scene, refusal: str
) -> None:
    """No call begins once the lease is over, and the order is kept when the lock is granted
    again.
    """
    scene.put(400)
    answers: dict[str, Any] = {
        "refused": ok(body=locked_queues_dumps([])),
        "error": error(ResponseCode.SYSTEM_ERROR),
        "silence": After(60.0),
    }
    async with scene.consumer(
        scene.listener(lambda _: asyncio.sleep(0.01), orderly=True)
    ) as running:
        await until(lambda: scene.received >= 5, "it begins")
        held = running._members[0].assignment[MessageQueue(TOPIC, "broker-a", 0)]
        scene.broker.on(LOCK, answers[refusal])
        await until(
            lambda: held.dropped or asyncio.get_running_loop().time() > held.leased_until,
            "the lease is over",
        )
        await until(lambda: not held.busy, "the running call has ended")
        stopped = len(scene.ledger.deliveries)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(scene.ledger.deliveries) == stopped
        scene.broker.on(LOCK, None)
        await until(lambda: scene.received >= stopped + 20, "it goes on")
    assert not scene.ledger.disordered
    assert not scene.ledger.phantom


# --- 17: a pull is never lost ---------------------------------------------------------------------

NO_HEADER = ok(body=b"")
FAULTS: dict[str, Any] = {
    "system error": error(ResponseCode.SYSTEM_ERROR),
    "busy": error(ResponseCode.SYSTEM_BUSY),
    "flow control": error(215),
    "no permission": error(ResponseCode.NO_PERMISSION),
    "topic unknown": error(ResponseCode.TOPIC_NOT_EXIST),
    "subscription unknown": error(ResponseCode.SUBSCRIPTION_NOT_EXIST),
    "subscription outdated": error(ResponseCode.SUBSCRIPTION_NOT_LATEST),
    "a code that nobody knows": error(4711),
    "hang up": HANG_UP,
    "no header": NO_HEADER,
    "a body that is not a message": ok(
        PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=10), b"\0\0\0\x07garbage"
    ),
    "half a message": ok(
        PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=10),
        b"\0\0\1\0" + bytes(40),
    ),
    "no frame": Raw(b"\xff" * 32),
    "an offset that is not a number": ok(
        PullMessageResponse(next_begin_offset=5, min_offset=0, max_offset=10)
    ),
}
FAULTS["an offset that is not a number"].ext_fields["nextBeginOffset"] = "soon"


@pytest.mark.kills("case 17: a failed pull is the last", param="hang up-concurrent")
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.parametrize("name", FAULTS)
async def test_case_17_whatever_a_pull_comes_to_the_queue_is_pulled_again(
    scene: Scene, name: str, orderly: bool
) -> None:
    scene.put(10)
    faults = [0]

    def thrice(request: Any) -> Any:
        if request.ext_fields["topic"] == TOPIC and faults[0] < 3:
            faults[0] += 1
            return FAULTS[name]
        return None

    scene.broker.on(PULL, thrice)
    async with scene.consumer(scene.listener(orderly=orderly), rebalance_period_s=60.0) as running:
        await until(lambda: scene.received == 10, "all messages")
        assert faults[0] == 3
        scene.put(5)
        await until(lambda: scene.received == 15, "later ones")
        await until(lambda: len(running.assignment[GROUP]) == 2, "both queues")
    scene.check()


async def test_case_17_a_full_queue_is_pulled_again_when_there_is_room(scene: Scene) -> None:
    """By the workers' progress alone, time after time: flow control loses no pull."""
    scene.put(300)
    async with scene.consumer(
        max_cached_messages=3, max_span=2, pull_batch_size=2, rebalance_period_s=60.0
    ):
        await until(lambda: scene.received == 300, "all messages")
    assert scene.ledger.duplicates == 0
    scene.check()


# --- 18: brokers that move ------------------------------------------------------------------------


def same_store(broker: FakeBroker, *, name: str) -> FakeBroker:
    """The broker at another address, with what it had."""
    other = FakeBroker(broker.topics, name=name)
    other.stored, other.offsets = broker.stored, broker.offsets
    return other


@pytest.mark.kills("case 18: routes are not asked for again")
async def test_case_18_a_broker_at_a_new_address_new_queues_and_a_new_broker_need_no_restart() -> (
    None
):
    """The routes come from a name server of its own, asked again now and then."""
    client = ClientConfig(route_period_s=0.1, heartbeat_period_s=0.2, request_timeout_s=1.0)
    async with FakeBroker() as names:
        broker = FakeBroker({TOPIC: 1, RETRY: 1})
        await broker.start()
        names.peers = [broker]
        scene = Scene(names)
        sending = ProducerConfig(send_timeout_s=20.0)
        async with (
            scene.consumer(client=client),
            aio.Producer(
                config=sending, client=replace(client, name_server=names.address)
            ) as producer,
        ):

            async def send(count: int) -> None:
                bodies = [b"%d" % (len(scene.ledger.attempted) + i) for i in range(count)]
                for body in bodies:
                    await producer.send(TOPIC, body)
                scene.ledger.sent(bodies)

            await send(10)
            await until(lambda: not scene.ledger.lost, "messages of the first broker")
            await broker.stop()
            names.peers = [moved := same_store(broker, name="broker-a")]
            await moved.start()
            await send(10)
            await until(lambda: not scene.ledger.lost, "messages after the move")
            moved.topics[TOPIC] = 3
            await until(
                lambda: (
                    {
                        r.ext_fields["queueId"]
                        for r in moved.of(PULL)
                        if r.ext_fields["topic"] == TOPIC
                    }
                    == {"0", "1", "2"}
                )
            )
            second = FakeBroker({TOPIC: 2}, name="broker-b")
            await second.start()
            names.peers = [moved, second]
            await until(
                lambda: len({r.ext_fields["queueId"] for r in second.of(PULL)}) == 2,
                "queues of the new broker",
            )
            await send(40)
            await until(lambda: not scene.ledger.lost, "messages of both brokers")
            assert second.of(SEND)
        assert scene.ledger.duplicates == 0
        await moved.stop()
        await second.stop()


@pytest.mark.kills("case 18: a silent connection is kept")
async def test_case_18_a_link_that_swallows_everything_is_replaced(scene: Scene) -> None:
    """No reset comes: calls end by their own timeouts, and the next ones get a fresh connection."""
    config = ProducerConfig(send_timeout_s=1.0)
    async with aio.Producer(scene.broker.address, config=config) as producer:
        await producer.send(TOPIC, b"1")
        address = scene.broker.address
        link = producer.client.pool.existing(address)
        assert link is not None
        scene.broker.mute = True
        while not link.closed:
            with pytest.raises(OgiveError) as failed:
                await producer.send(TOPIC, b"2")
            assert failed.value.outcome_unknown
        scene.broker.mute = False
        await producer.send(TOPIC, b"3", timeout_s=20.0)
        assert producer.client.pool.existing(address) is not link


# --- 19: a dead address ---------------------------------------------------------------------------


@pytest.mark.kills("case 19: heartbeats wait for one another")
async def test_case_19_a_dead_address_holds_up_nobody_else(scene: Scene) -> None:
    """One of two brokers answers nothing: sends to the other, and its heartbeats, go on while one
    to the dead one waits.
    """
    async with FakeBroker({TOPIC: 1}, name="broker-b") as dead:
        dead.mute = True
        scene.broker.peers = [dead]
        client = ClientConfig(
            name_server=scene.broker.address, heartbeat_period_s=0.05, request_timeout_s=60.0
        )
        config = ProducerConfig(send_timeout_s=60.0)
        async with aio.Producer(config=config, client=client) as producer:
            stuck = await producer.submit(TOPIC, b"stuck", queue=MessageQueue(TOPIC, "broker-b", 0))
            await until(lambda: dead.of(SEND), "a send to the dead broker")
            beats = len(scene.broker.of(HEARTBEAT))
            for i in range(100):
                await producer.send(TOPIC, b"%d" % i, queue=MessageQueue(TOPIC, "broker-a", 0))
            await until(
                lambda: len(scene.broker.of(HEARTBEAT)) >= beats + 3,
                "heartbeats of the living broker",
            )
            assert not stuck.done()
            stuck.cancel()
            # the end waits for what is on its way
            dead.mute = False
            await dead.stop()
            await dead.start()
        assert scene.broker.bodies(TOPIC) == {0: [b"%d" % i for i in range(100)]}


# --- 20: a listener that hangs --------------------------------------------------------------------


@pytest.mark.kills("case 20: cached messages without limit", param="plain")
@pytest.mark.parametrize("thread", [False, True], ids=["async", "plain"])
async def test_case_20_a_listener_that_hangs_stops_neither_other_topics_nor_heartbeats(
    scene: Scene, thread: bool
) -> None:
    """What it does not finish stays within the thresholds."""
    scene.broker.topics["Stuck"] = 1
    scene.put(2000, topic="Stuck")
    free = threading.Event()

    async def hang() -> None:
        await asyncio.to_thread(free.wait, 60)

    work: Callable[[MessageExt], Any] = (
        (lambda _: free.wait(60) and None) if thread else (lambda _: hang())
    )
    hung = scene.listener(work, topic="Stuck", thread=thread, threads=2)
    client = ClientConfig(heartbeat_period_s=0.05)
    async with scene.consumer(
        hung, scene.listener(), client=client, max_cached_messages=20, pull_batch_size=10
    ) as running:
        await until(
            lambda: any(d.queue.topic == "Stuck" for d in scene.ledger.deliveries),
            "a call that hangs",
        )
        beats = len(scene.broker.of(HEARTBEAT))
        scene.put(200)
        await until(lambda: scene.progress() == 200, "the other topic")
        await until(lambda: len(scene.broker.of(HEARTBEAT)) >= beats + 3, "heartbeats")
        stuck = running._members[0].assignment[MessageQueue("Stuck", "broker-a", 0)]
        assert stuck.count <= 30
        assert scene.progress(topic="Stuck") in (None, 0)
        free.set()
        await until(lambda: scene.progress(topic="Stuck") == 2000, "the topic that hung")
    scene.check()
