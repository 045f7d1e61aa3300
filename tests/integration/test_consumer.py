"""Consuming from a real broker, ours or Apache's: nothing lost, order kept, retries and dead
letters as promised.
"""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client import rpc
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.offset_store import RemoteOffsetStore
from ogive.client.listener import AnyListener
from ogive.errors import BrokerBusy
from ogive.model import MessageExt, MessageQueue, dlq_topic, retry_topic
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import HeartbeatData
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 150.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


async def send(producer: aio.Producer, topic: str, numbers: range, *, tags: int = 1) -> None:
    """Bodies are the numbers; every queue gets its own in order: one after the other, as Apache's
    broker may reorder a pipeline.
    """
    queues = await producer.client.routes.publish_queues(topic)

    async def fill(queue: MessageQueue) -> None:
        for i in numbers:
            if queues[i % len(queues)] == queue:
                await send_one(
                    producer, topic, b"%d" % i, queue=queue, tag=f"t{i % tags}", keys=f"k{i}"
                )

    await asyncio.gather(*map(fill, queues))


async def send_one(producer: aio.Producer, topic: str, body: bytes, **settings: Any) -> None:
    """Try again while a broker that has just started says that it is busy: a send to a chosen queue
    is not repeated by itself.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await producer.send(topic, body, timeout_s=WAIT_S, **settings)
                return
            except BrokerBusy:
                await asyncio.sleep(0.1)


async def until(condition: Callable[[], bool], wait_s: float = WAIT_S) -> None:
    async with asyncio.timeout(wait_s):
        while not condition():
            await asyncio.sleep(0.02)


def consumer(broker: RunningBroker, *listeners: AnyListener) -> aio.PushConsumer:
    return aio.PushConsumer(*listeners, name_server=broker.name_server, config=QUICK)


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


async def dead_letters(broker: RunningBroker, group: str, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with (
        asyncio.timeout(WAIT_S),
        aio.PushConsumer(
            dlq_topic(group),
            group=f"{group}-dead",
            start="earliest",
            name_server=broker.name_server,
            config=QUICK,
        ) as letters,
    ):
        async for message in letters:
            async with message.process():
                found.append(message)
            if len(found) == count:
                break
    return found


@pytest.mark.feature(62)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_every_message_is_delivered_once_and_never_again(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str, kind: str
) -> None:
    """Progress is at the broker after a clean close: the next member starts behind the last
    message.
    """
    seen: list[MessageExt] = []

    def bill(message: MessageExt) -> None:
        seen.append(message)

    async def bill_async(message: MessageExt) -> None:
        await asyncio.sleep(0)
        seen.append(message)

    listener = ogive.listener(topic, group=group, start="earliest")(
        bill if kind == "plain" else bill_async
    )
    await send(orders, topic, range(3000))
    async with consumer(broker, listener) as running:
        await until(lambda: len(seen) >= 3000)
        assert set((await running.lag()).values()) <= set(range(3000))
    assert sorted(numbers(seen)) == list(range(3000))
    async with consumer(broker, listener) as running:
        await until(lambda: len(running.assignment[group]) >= 4)
        assert set((await running.lag()).values()) == {0}
        await send(orders, topic, range(3000, 3010))
        await until(lambda: len(seen) >= 3010)
    assert sorted(numbers(seen)) == list(range(3010))


@pytest.mark.feature(66)
async def test_only_the_wanted_tags_arrive_and_the_others_are_no_lag(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    seen: list[MessageExt] = []
    await send(orders, topic, range(200), tags=4)
    async with consumer(
        broker, ogive.listener(topic, group=group, start="earliest", tags="t1 || t3")(seen.append)
    ) as running:
        await until(lambda: len(seen) >= 100)
        async with asyncio.timeout(WAIT_S):
            while set((await running.lag()).values()) != {0}:
                await asyncio.sleep(0.02)
    assert sorted(numbers(seen)) == [i for i in range(200) if i % 2]


@pytest.mark.feature(55)
async def test_failed_messages_come_again_and_end_in_the_dead_letter_topic(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """After exactly max_retries further tries; good messages are delivered once."""
    tries: dict[int, list[int]] = defaultdict(list)

    @ogive.listener(topic, group=group, start="earliest", max_retries=2)
    def bill(message: MessageExt) -> Any:
        number = int(message.body)
        tries[number].append(message.reconsume_times)
        assert (message.topic, message.keys) == (topic, (f"k{number}",))
        if number == 7:
            raise ValueError("never")
        if number == 8 and message.reconsume_times == 0:
            return ogive.LATER
        return ogive.DEAD_LETTER if number == 9 else None

    await send(orders, topic, range(20))
    async with consumer(broker, bill):
        letters = await dead_letters(broker, group, 2)
    assert sorted(numbers(letters)) == [7, 9]
    assert {n: t for n, t in tries.items() if t != [0]} == {7: [0, 1, 2], 8: [0, 1]}
    assert len(tries) == 20
    assert {message.properties["RETRY_TOPIC"] for message in letters} == {topic}


@pytest.mark.feature(93, 106)
async def test_an_orderly_group_keeps_the_order_while_members_come_and_go(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """One call of a queue at a time over all members, each queue in order, nothing twice."""
    busy: Counter[MessageQueue] = Counter()
    overlaps: list[MessageQueue] = []
    seen: list[tuple[str, MessageExt]] = []
    lock = threading.Lock()

    def member(name: str) -> aio.PushConsumer:
        @ogive.listener(topic, group=group, start="earliest", orderly=True)
        def ship(message: MessageExt) -> None:
            with lock:
                busy[message.queue] += 1
                if busy[message.queue] > 1:
                    overlaps.append(message.queue)
            time.sleep(0.002)
            with lock:
                busy[message.queue] -= 1
                seen.append((name, message))

        return consumer(broker, ship)

    await send(orders, topic, range(2000))
    async with member("first"):
        await until(lambda: len(seen) >= 100)
        async with member("second") as second:
            await until(lambda: any(name == "second" for name, _ in seen))
            assert sum(queue.topic == topic for queue in second.assignment[group]) == 2
        await until(lambda: len(seen) >= 2000)
    assert overlaps == []
    offsets: dict[int, list[int]] = defaultdict(list)
    for _, message in seen:
        offsets[message.queue.queue_id].append(message.queue_offset)
    assert dict(offsets) == {i: list(range(500)) for i in range(4)}


@pytest.mark.feature(95)
async def test_no_two_calls_of_a_queue_overlap_while_a_member_comes_and_goes_twenty_times(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Orders flow meanwhile. Each time the other member has calls of its own."""
    busy: Counter[MessageQueue] = Counter()
    overlaps: list[MessageQueue] = []
    seen: list[tuple[int, MessageExt]] = []
    lock, over = threading.Lock(), asyncio.Event()

    def member(turn: int) -> aio.PushConsumer:
        @ogive.listener(topic, group=group, start="earliest", orderly=True)
        def ship(message: MessageExt) -> None:
            with lock:
                busy[message.queue] += 1
                if busy[message.queue] > 1:
                    overlaps.append(message.queue)
            time.sleep(0.005)
            with lock:
                busy[message.queue] -= 1
                seen.append((turn, message))

        return consumer(broker, ship)

    async def flow() -> int:
        sent = 0
        while not over.is_set():
            await send(orders, topic, range(sent, sent + 20))
            sent += 20
            await asyncio.sleep(0.05)
        return sent

    flowing = asyncio.create_task(flow())
    async with member(0):
        for turn in range(1, 21):
            async with member(turn):
                wanted = turn
                await until(lambda: any(by == wanted for by, _ in seen))  # noqa: B023
        over.set()
        sent = await flowing
        await until(lambda: len(seen) >= sent)
    assert overlaps == []
    offsets: dict[int, list[int]] = defaultdict(list)
    for _, message in seen:
        offsets[message.queue.queue_id].append(message.queue_offset)
    assert all(found == list(range(len(found))) for found in offsets.values())
    assert sum(map(len, offsets.values())) == sent


@pytest.mark.feature(94)
async def test_a_topic_with_one_queue_is_in_order_as_a_whole(
    broker: RunningBroker, topic: str, group: str
) -> None:
    """Whoever sends: what one producer has had confirmed comes before what another sends then."""
    seen: list[MessageExt] = []
    async with (
        aio.Admin(broker.name_server) as admin,
        aio.Producer(broker.name_server) as one,
        aio.Producer(broker.name_server) as other,
    ):
        await admin.create_topic(topic, queues=1)
        async with consumer(
            broker, ogive.listener(topic, group=group, start="earliest", orderly=True)(seen.append)
        ):
            for i in range(200):
                await (one, other)[i % 2].send(topic, b"%d" % i)
            await until(lambda: len(seen) >= 200)
    assert numbers(seen) == list(range(200))


@pytest.mark.feature(165)
async def test_the_progress_told_last_is_the_one_that_a_broker_keeps(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Apache's broker may apply two updates of one connection the other way round: no two of a
    queue are on their way together.
    """
    async with consumer(broker, ogive.listener(topic, group=group)(print)):
        # now the broker has the group
        pass
    queues = list(await orders.client.routes.publish_queues(topic))
    for queue in queues:
        # beyond the end of a queue there is no progress
        await orders.send_batch(topic, [b""] * 400, queue=queue)
    store = RemoteOffsetStore(GroupClient(orders.client, group))
    for offset in range(1, 200):
        for queue in queues:
            store.update(queue, 2 * offset)
        periodic = asyncio.create_task(store.persist(queues))
        # turns of the loop until the requests are on their way
        for _ in range(5):
            await asyncio.sleep(0)
        for queue in queues:
            store.update(queue, 2 * offset + 1)
        await store.persist(queues, again=True)
        await periodic
        assert [await store.fetch(queue) for queue in queues] == [2 * offset + 1] * len(queues)


async def test_an_orderly_listener_gives_up_in_order(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """The failing message holds back those behind it until it goes to the dead letters."""
    seen: dict[int, list[int]] = defaultdict(list)

    @ogive.listener(
        topic, group=group, start="earliest", orderly=True, max_retries=2, suspend_s=0.05
    )
    def ship(message: MessageExt) -> None:
        seen[message.queue.queue_id].append(int(message.body))
        if int(message.body) == 9:
            raise ValueError("never")

    await send(orders, topic, range(24))
    async with consumer(broker, ship):
        letters = await dead_letters(broker, group, 1)
        await until(lambda: sum(map(len, seen.values())) == 26)
    assert numbers(letters) == [9]
    assert sorted(seen.values()) == [
        [0, 4, 8, 12, 16, 20],
        [1, 5, 9, 9, 9, 13, 17, 21],
        [2, 6, 10, 14, 18, 22],
        [3, 7, 11, 15, 19, 23],
    ]


@pytest.mark.feature(10, 155)
async def test_members_share_the_queues_of_a_topic(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Between them every queue once; whoever stays gets the rest back."""
    seen: list[MessageExt] = []
    listener = ogive.listener(topic, group=group, start="earliest")(seen.append)

    def mine(member: aio.PushConsumer) -> set[int]:
        return {queue.queue_id for queue in member.assignment[group] if queue.topic == topic}

    async with consumer(broker, listener) as first:
        async with consumer(broker, listener) as second, consumer(broker, listener) as third:
            members = (first, second, third)
            await until(
                lambda: (
                    sorted(len(mine(m)) for m in members) == [1, 1, 2]
                    and len(set.union(*map(mine, members))) == 4
                )
            )
            await send(orders, topic, range(400))
            await until(lambda: len(seen) >= 400)
        await until(lambda: len(mine(first)) == 4)
        await send(orders, topic, range(400, 500))
        await until(lambda: len(seen) >= 500)
    assert sorted(numbers(seen)) == list(range(500))


@pytest.mark.feature(10)
async def test_broadcasting_members_get_everything_and_remember_it(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str, tmp_path: Path
) -> None:
    """Each of them every message once, the failing ones too, over a restart; nothing is sent
    back.
    """
    seen: dict[str, list[MessageExt]] = {"left": [], "right": []}

    def member(name: str) -> aio.PushConsumer:
        @ogive.listener(topic, group=group, start="earliest", broadcast=True)
        def show(message: MessageExt) -> Any:
            seen[name].append(message)
            return ogive.LATER if message.body == b"7" else None

        client = ogive.ClientConfig(name_server=broker.name_server, instance_name=name)
        return aio.PushConsumer(show, client=client, config=replace(QUICK, offsets_dir=tmp_path))

    await send(orders, topic, range(100))
    async with member("left"), member("right"):
        await until(lambda: len(seen["left"]) >= 100 and len(seen["right"]) >= 100)
    await send(orders, topic, range(100, 120))
    async with member("left"):
        await until(lambda: len(seen["left"]) >= 120)
    assert sorted(numbers(seen["left"])) == list(range(120))
    assert sorted(numbers(seen["right"])) == list(range(100))
    async with aio.Admin(broker.name_server) as admin:
        assert {row.max_offset for row in await admin.offsets(retry_topic(group))} == {0}


async def test_iteration_with_retries(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    good: list[int] = []
    failed: set[int] = set()
    await send(orders, topic, range(50))
    async with (
        asyncio.timeout(WAIT_S),
        aio.PushConsumer(
            topic, group=group, start="earliest", name_server=broker.name_server, config=QUICK
        ) as messages,
    ):
        async for message in messages:
            async with message.process():
                number = int(message.body)
                if number % 10 == 3 and message.reconsume_times == 0:
                    failed.add(number)
                    raise ValueError("once")
                good.append(number)
            if len(good) == 50:
                break
    assert sorted(good) == list(range(50))
    assert failed == {3, 13, 23, 33, 43}


@pytest.mark.feature(179)
async def test_topics_come_and_go_while_the_consumer_runs(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """The broker learns of a new topic at once, and nothing is lost or repeated of one that is
    given up and taken again.
    """
    first: list[MessageExt] = []
    second: list[MessageExt] = []
    held: set[MessageQueue] = set()

    async def note(taken: list[MessageQueue], given_up: list[MessageQueue]) -> None:
        held.difference_update(given_up)
        held.update(taken)

    other = f"{topic}_2"
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(other, queues=2)
    one = ogive.listener(topic, group=group, start="earliest")(first.append)
    two = ogive.listener(other, group=group, start="earliest", tags="t1")(second.append)
    async with aio.PushConsumer(
        one, on_change=note, name_server=broker.name_server, config=QUICK
    ) as running:
        await until(lambda: len(held) == 4)
        await send(orders, other, range(20), tags=2)
        await running.subscribe(two)
        await until(lambda: len(second) >= 10 and len(held) == 6)
        await running.unsubscribe(two)
        await until(lambda: len(held) == 4)
        await send(orders, other, range(20, 40), tags=2)
        await send(orders, topic, range(20))
        await until(lambda: len(first) >= 20)
        assert len(second) == 10
        await running.subscribe(two)
        await until(lambda: len(second) >= 20)
    assert sorted(numbers(first)) == list(range(20))
    assert sorted(numbers(second)) == list(range(1, 40, 2))


@pytest.mark.feature(12)
async def test_a_new_group_begins_where_it_says(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """By time: the first message stored at or after it."""
    await send(orders, topic, range(8))
    # brokers note the time in ms
    start = datetime.now(UTC) + timedelta(milliseconds=2)
    await until(lambda: datetime.now(UTC) > start)
    await send(orders, topic, range(8, 16))
    seen: list[MessageExt] = []
    # Brokers answer 0 instead of "no offset" while a young topic's first message is in memory; a
    # start by time is for groups on old topics.
    async with consumer(broker, ogive.listener(topic, group=group, start=start)(seen.append)):
        await until(lambda: {int(m.body) for m in seen} >= set(range(8, 16)))


async def test_a_restarted_broker_is_found_again(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """kill -9 and start: consumption goes on, at least once, in the same consumer."""
    seen: list[MessageExt] = []
    await send(orders, topic, range(100))
    async with consumer(broker, ogive.listener(topic, group=group, start="earliest")(seen.append)):
        await until(lambda: len(seen) >= 100)
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        async with aio.Producer(broker.name_server) as producer:
            await send(producer, topic, range(100, 200))
        await until(lambda: set(numbers(seen)) == set(range(200)), 60)


@pytest.mark.since("5.1.0", what="heartbeats without subscriptions")
async def test_heartbeats_without_subscriptions_keep_a_member_whole(
    broker: RunningBroker,
    orders: aio.Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker goes on filtering and counting us as a member, however often it is only told that
    nothing changed.
    """
    short: list[HeartbeatData] = []
    send_it = rpc.heartbeat

    async def note(
        pool: ConnectionPool, address: str, data: HeartbeatData, *, timeout_s: float
    ) -> rpc.HeartbeatAnswer:
        answer = await send_it(pool, address, data, timeout_s=timeout_s)
        if data.without_sub and answer.subscription_changed is False:
            short.append(data)
        return answer

    monkeypatch.setattr(rpc, "heartbeat", note)
    seen: list[MessageExt] = []
    listener = ogive.listener(topic, group=group, tags="t1", start="earliest")(seen.append)
    client = ogive.ClientConfig(name_server=broker.name_server, heartbeat_period_s=0.1)
    async with (
        aio.PushConsumer(listener, client=client, config=QUICK),
        aio.Admin(broker.name_server) as admin,
    ):
        await until(lambda: len(short) >= 5)
        assert not any(consumer.subscriptions for data in short for consumer in data.consumers)
        await send(orders, topic, range(100), tags=2)
        await until(lambda: set(numbers(seen)) == set(range(1, 100, 2)))
        shown = await admin.group(group)
        assert (len(shown.members), shown.subscriptions[topic]) == (1, "t1")


# --- the blocking face ----------------------------------------------------------------------------


def test_the_blocking_consumer(broker: RunningBroker, topic: str, group: str) -> None:
    """The same words without asyncio; a listener may close its consumer."""
    seen: list[MessageExt] = []
    all_seen, closed = threading.Event(), threading.Event()

    @ogive.listener(topic, group=group, start="earliest")
    def bill(message: MessageExt) -> None:
        seen.append(message)
        if len(seen) == 100:
            all_seen.set()
        if message.body == b"last":
            running.close()
            closed.set()

    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=4)
    with (
        ogive.Producer(broker.name_server) as producer,
        ogive.PushConsumer(bill, name_server=broker.name_server, config=QUICK) as running,
    ):
        for i in range(100):
            producer.send(topic, b"%d" % i)
        assert all_seen.wait(WAIT_S)
        assert sum(running.lag().values()) >= 0
        producer.send(topic, b"last")
        assert closed.wait(WAIT_S)
        running.close()
    assert len(seen) == 101


PROGRAM = """
import sys
import ogive

@ogive.listener(sys.argv[2], group=sys.argv[3], start="earliest")
def bill(message):
    print(message.text, flush=True)

ogive.run(bill, name_server=sys.argv[1])
print("left", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_until_a_signal(
    broker: RunningBroker, topic: str, group: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM leave the group in good order: exit code 0, and nothing is delivered twice
    to the next.
    """
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=4)
    command = [sys.executable, str(program), broker.name_server, topic, group]
    with ogive.Producer(broker.name_server) as producer:
        for expected in (b"first", b"second"):
            producer.send(topic, expected)
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline().strip() == expected
            process.send_signal(number)
            out, err = process.communicate(timeout=WAIT_S)
            assert (out.strip(), process.returncode) == (b"left", 0), err
