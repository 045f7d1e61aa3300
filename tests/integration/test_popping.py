"""Popping from a real broker, ours or Apache's."""

import asyncio
from collections import Counter
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.consumer import pop_member
from ogive.model import MessageExt
from tests.peers import RunningBroker

pytestmark = [
    pytest.mark.client_suite,
    pytest.mark.since("5.1.2", what="pop consumption with batches of acknowledgements"),
]

WAIT_S = 60.0


def consumer(broker: RunningBroker, *topics: str, **settings: Any) -> aio.SimpleConsumer:
    return aio.SimpleConsumer(
        *topics, **{"name_server": broker.name_server, "start": "earliest", **settings}
    )


async def send(producer: aio.Producer, topic: str, count: int, **settings: Any) -> None:
    await producer.send_batch(
        topic, [ogive.Message(topic, b"%d" % i, **settings) for i in range(count)]
    )


async def collect(running: aio.SimpleConsumer, count: int, **settings: Any) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await running.receive(32, **settings)
    return found


def numbers(messages: list[MessageExt]) -> list[int]:
    return sorted(int(message.body) for message in messages)


async def test_members_share_the_messages_and_each_is_received_once(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Four queues, and six members of which none is idle."""
    for _ in range(10):
        await send(orders, topic, 60)
    seen: Counter[int] = Counter()
    received: list[MessageExt] = []

    async def work(number: int) -> None:
        async with consumer(broker, topic, group=group) as running:
            while len(received) < 600:
                messages = await running.receive(8, wait_s=1.0)
                await running.ack(*messages)
                received.extend(messages)
                seen[number] += len(messages)

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*(work(number) for number in range(6)))
    assert len({message.offset_id for message in received}) == len(received) == 600
    assert all(seen[number] for number in range(6))
    async with aio.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in await admin.lag(group)) == 0


async def test_a_message_wakes_a_receive_that_waits(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    other = f"{topic}_other"
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(other, queues=2)
    async with consumer(broker, topic, other, group=group) as running:
        assert await running.receive(wait_s=0.5) == []
        for name in other, topic, other:
            receiving = asyncio.create_task(running.receive(wait_s=WAIT_S))
            await asyncio.sleep(0.2)
            await orders.send(name, b"1")
            async with asyncio.timeout(WAIT_S):
                (message,) = await receiving
            assert message.topic == name
            await running.ack(message)


async def test_what_is_not_acknowledged_comes_again_and_what_is_does_not(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    await send(orders, topic, 10)
    async with consumer(broker, topic, group=group) as running:
        first = await collect(running, 10, invisible_s=2.0)
        kept = {message.id for message in first if int(message.body) % 2}
        await running.ack(*(message for message in first if message.id not in kept))
        again = await collect(running, 5, invisible_s=WAIT_S)
        assert {message.id for message in again} == kept
        assert {(message.reconsume_times, message.topic) for message in again} == {(1, topic)}
        late = next(message for message in first if message.id in kept)
        with pytest.raises(ogive.LeaseEnded):
            await running.ack(late)
        await running.ack(*again)
        assert await running.receive(wait_s=5.0) == []


async def test_a_longer_lease_keeps_a_message_and_a_shorter_one_returns_it(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Also where it is not the first of its batch."""
    await send(orders, topic, 8)
    async with consumer(broker, topic, group=group) as running:
        messages = await collect(running, 8, invisible_s=3.0)
        kept, returned, *others = messages[::-1]
        await running.ack(*others)
        for _ in range(3):
            await running.change_invisible(kept, WAIT_S)
        await running.change_invisible(returned, 0)
        (again,) = await collect(running, 1)
        assert again.body == returned.body
        assert await running.receive(wait_s=6.0) == []
        await running.ack(kept, again)
    async with aio.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in await admin.lag(group)) == 0


async def test_only_wanted_messages_come(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    for tag in "paid", "open":
        await send(orders, topic, 40, tag=tag)
    async with consumer(broker, topic, group=group, tags="paid") as running:
        messages = await collect(running, 40)
        assert {message.tag for message in messages} == {"paid"}
        assert numbers(messages) == list(range(40))
        # the filter holds for what comes again, too
        await running.ack(*messages[1:])
        await running.change_invisible(messages[0], 0)
        (again,) = await collect(running, 1)
        await running.ack(again)
        await running.unsubscribe(topic)
        await running.subscribe(topic, tags="open")
        await send(orders, topic, 4, tag="open")
        found = await collect(running, 4)
        assert {message.tag for message in found} == {"open"}


async def test_nothing_is_lost_when_receives_are_cancelled_and_consumers_close(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Leases are a minute long: only what is given back comes in time."""
    for _ in range(4):
        await send(orders, topic, 50)
    found: list[MessageExt] = []
    tries = 0
    async with asyncio.timeout(WAIT_S):
        while len(found) < 200:
            async with consumer(broker, topic, group=group) as running:
                for _ in range(4):
                    tries += 1
                    receiving = asyncio.create_task(running.receive(8, invisible_s=WAIT_S))
                    await asyncio.sleep(tries % 7 * 0.001)
                    if tries % 2:
                        receiving.cancel()
                    try:
                        async with asyncio.timeout(2.0):
                            messages = await receiving
                    except (asyncio.CancelledError, TimeoutError):
                        continue
                    await running.ack(*messages)
                    found += messages
    assert len({message.id for message in found}) == len(found) == 200


def test_blocking_calls_do_the_same(broker: RunningBroker, topic: str, group: str) -> None:
    with ogive.Producer(broker.name_server) as producer:
        producer.send(topic, b"4711")
        with ogive.SimpleConsumer(
            topic, group=group, start="earliest", name_server=broker.name_server
        ) as running:
            (message,) = running.receive(wait_s=WAIT_S)
            running.change_invisible(message, WAIT_S)
            running.ack(message)
            assert (message.body, running.topics) == (b"4711", [topic])
            assert running.receive(wait_s=0) == []


# --- listeners ------------------------------------------------------------------------------------


def listener(function: Any, topic: str, group: str, **settings: Any) -> ogive.Listener:
    given = {"group": group, "start": "earliest", "mode": "pop", **settings}
    made: ogive.Listener = ogive.listener(topic, **given)(function)
    return made


async def until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.02)


async def test_listeners_that_pop_get_each_message_once_while_members_come_and_go(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Three members, of which one closes and one is new, and no hand-over of queues."""
    seen: list[bytes] = []

    def note(message: MessageExt) -> None:
        seen.append(message.body)

    members = [
        aio.PushConsumer(listener(note, topic, group), name_server=broker.name_server)
        for _ in range(4)
    ]
    for member in members[:3]:
        await member.start()
    for part in range(20):
        await orders.send_batch(
            topic, [ogive.Message(topic, b"%d" % (50 * part + i)) for i in range(50)]
        )
        if part == 8:
            await members[0].close()
        if part == 12:
            await members[3].start()
    await until(lambda: len(seen) >= 1000)
    for member in members:
        await member.close()
    assert sorted(seen, key=int) == [b"%d" % i for i in range(1000)]
    async with aio.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in await admin.lag(group)) == 0


async def test_a_message_that_fails_too_often_is_a_dead_letter(
    broker: RunningBroker,
    orders: aio.Producer,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_member, "DELAYS_S", (0.1,))
    tries: list[int] = []

    def fail(message: MessageExt) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("declined")

    failing = listener(fail, topic, group, max_retries=2)
    async with aio.PushConsumer(failing, name_server=broker.name_server):
        sent = await orders.send(topic, b"4711", keys="4711")
        async with aio.Admin(broker.name_server) as admin, asyncio.timeout(WAIT_S):
            while not (letters := await dead_letters(admin, group)):
                await asyncio.sleep(0.1)
        assert [(one.body, one.id) for one in letters] == [(b"4711", sent.id)]
        assert tries == [0, 1, 2]
    async with consumer(broker, topic, group=group) as running:
        assert await running.receive(wait_s=5.0) == []


async def dead_letters(admin: aio.Admin, group: str) -> list[MessageExt]:
    try:
        return await admin.dead_letters(group)
    except ogive.OgiveError:
        # the topic does not exist yet
        return []


async def test_orderly_listeners_that_pop_keep_the_order_of_each_queue(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """Two members; a failed message holds up its queue."""
    queues = await orders.client.routes.publish_queues(topic)
    for part in range(10):
        for queue in queues:
            await orders.send_batch(
                topic,
                [ogive.Message(topic, b"%d" % (20 * part + i)) for i in range(20)],
                queue=queue,
            )
    seen: dict[int, list[int]] = {queue.queue_id: [] for queue in queues}
    failed: set[str] = set()

    def work(message: MessageExt) -> None:
        if message.queue_offset % 50 == 7 and message.id not in failed:
            failed.add(message.id)
            raise ValueError("not yet")
        seen[message.queue.queue_id].append(int(message.body))

    made = [listener(work, topic, group, orderly=True, suspend_s=0.05) for _ in range(2)]
    async with (
        aio.PushConsumer(made[0], name_server=broker.name_server),
        aio.PushConsumer(made[1], name_server=broker.name_server),
    ):
        await until(lambda: sum(map(len, seen.values())) >= 800)
    assert all(numbers == list(range(200)) for numbers in seen.values())
    assert len(failed) == 16
    async with aio.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in await admin.lag(group)) == 0


async def test_a_call_longer_than_the_lease_keeps_its_message(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """The shortest lease that a listener can have is five seconds."""
    calls: list[int] = []

    async def work(message: MessageExt) -> None:
        calls.append(message.reconsume_times)
        await asyncio.sleep(9.0)

    await orders.send(topic, b"slow")
    config = ogive.ConsumerConfig(pop_invisible_s=5.0, await_termination_s=WAIT_S)
    made = listener(work, topic, group)
    async with aio.PushConsumer(made, name_server=broker.name_server, config=config):
        await until(lambda: calls)
    assert calls == [0]
    async with consumer(broker, topic, group=group) as running:
        assert await running.receive(wait_s=6.0) == []


# --- tools ----------------------------------------------------------------------------------------


async def test_tools_see_members_that_pop_their_lag_and_their_dead_letters(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """A message that comes again is lag of the topic, and a dead letter that is sent again reaches
    members that pop.
    """
    seen: list[int] = []

    def fail(message: MessageExt) -> ogive.ConsumeResult:
        seen.append(message.reconsume_times)
        return ogive.DEAD_LETTER if len(seen) == 1 else None

    async with aio.Admin(broker.name_server) as admin:
        async with consumer(broker, topic, group=group) as running:
            await orders.send(topic, b"4711")
            (message,) = await collect(running, 1)
            await running.change_invisible(message, 0)
            async with asyncio.timeout(WAIT_S):
                while not any(
                    row.queue.topic != topic and row.lag for row in await admin.lag(group, topic)
                ):
                    await asyncio.sleep(0.1)
        async with aio.PushConsumer(listener(fail, topic, group), name_server=broker.name_server):
            async with asyncio.timeout(WAIT_S):
                while not (letters := await dead_letters(admin, group)):
                    await asyncio.sleep(0.1)
            assert seen == [1]
            # Apache's broker registers a retry topic with its next heartbeat
            async with asyncio.timeout(WAIT_S):
                while not await sent_again(admin, group, letters[0]):
                    await asyncio.sleep(1.0)
            await until(lambda: len(seen) == 2)
        await admin.set_consume_mode(group, topic, "pop", share_queues=1)
        await admin.set_consume_mode(group, topic, "pull")


async def sent_again(admin: aio.Admin, group: str, letter: MessageExt) -> bool:
    try:
        await admin.send_again(group, letter)
    except ogive.NoRoute:
        return False
    return True
