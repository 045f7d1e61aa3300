"""Pulling from a real broker, ours or Apache's."""

import asyncio
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client import rpc
from ogive.errors import InvalidOption
from ogive.model import MessageExt, MessageQueue, PullStatus
from tests.peers import Flavour, RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1)


async def send(producer: aio.Producer, topic: str, numbers: range, *, tags: int = 1) -> None:
    """Bodies are the numbers, dealt out to the queues."""
    queues = await producer.client.routes.publish_queues(topic)
    messages: dict[MessageQueue, list[ogive.Message]] = defaultdict(list)
    for i in numbers:
        messages[queues[i % len(queues)]].append(
            ogive.Message(topic, b"%d" % i, tag=f"t{i % tags}")
        )
    for queue, ours in messages.items():
        results = await producer.send_batch(topic, ours, queue=queue, timeout_s=WAIT_S)
        await shown(producer, queue, results[-1].queue_offset + 1)


async def shown(producer: aio.Producer, queue: MessageQueue, end: int) -> None:
    """Apache's broker acknowledges before it dispatches."""
    address = producer.client.routes.broker_address(queue.broker_name)
    async with asyncio.timeout(WAIT_S):
        while await rpc.max_offset(producer.client.pool, address, queue) < end:
            await asyncio.sleep(0.01)


def consumer(broker: RunningBroker, *topics: str, **settings: Any) -> aio.PullConsumer:
    return aio.PullConsumer(
        *topics,
        **{"name_server": broker.name_server, "config": QUICK, "start": "earliest", **settings},
    )


async def collect(running: aio.PullConsumer, count: int) -> list[MessageExt]:
    found: list[MessageExt] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await running.poll(max_messages=100)
    return found


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


async def settled(running: aio.PullConsumer, queues: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(running.assignment) != queues:
            await asyncio.sleep(0.02)


async def test_every_message_is_handed_out_once_and_never_again_after_a_clean_close(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    await send(orders, topic, range(2000))
    async with consumer(broker, topic, group=group) as running:
        first = await collect(running, 1000)
    async with consumer(broker, topic, group=group) as running:
        rest = await collect(running, 2000 - len(first))
        assert set((await running.lag()).values()) == {0}
    assert sorted(numbers(first + rest)) == list(range(2000))
    async with aio.Admin(broker.name_server) as admin:
        assert sum(row.lag for row in await admin.lag(group) if row.queue.topic == topic) == 0


async def test_each_queue_keeps_its_order(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    await send(orders, topic, range(1000))
    by_queue: dict[int, list[int]] = defaultdict(list)
    async with consumer(broker, topic, group=group) as running:
        for message in await collect(running, 1000):
            by_queue[message.queue.queue_id].append(message.queue_offset)
    assert dict(by_queue) == {i: list(range(250)) for i in range(4)}


async def test_only_the_wanted_tags_are_handed_out_and_the_others_are_no_lag(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    await send(orders, topic, range(200), tags=5)
    async with consumer(broker, topic, group=group, tags="t1 || t3") as running:
        found = await collect(running, 80)
        async with asyncio.timeout(WAIT_S):
            while set((await running.lag()).values()) != {0}:
                assert await running.poll(0.1) == []
    assert sorted(numbers(found)) == [i for i in range(200) if i % 5 in (1, 3)]


async def test_an_application_commits_by_itself(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str, flavour: Flavour
) -> None:
    """What it commits is what the broker has when commit returns; what it does not commit comes
    again.
    """
    await send(orders, topic, range(100))
    async with consumer(broker, topic, group=group, auto_commit=False) as running:
        await collect(running, 100)
        queues = running.assignment
        await running.commit({queues[0]: 10})
        assert await running.committed(queues[0]) == 10
        await running.commit()
        assert [await running.committed(queue) for queue in queues] == [25, 25, 25, 25]
        if flavour == "ogive":
            with pytest.raises(InvalidOption, match="ends before 99"):
                await running.commit({queues[0]: 99})
            assert await running.committed(queues[0]) == 25
        await running.commit(dict.fromkeys(queues, 20))
    async with consumer(broker, topic, group=group) as running:
        assert sorted(message.queue_offset for message in await collect(running, 20)) == sorted(
            [20, 21, 22, 23, 24] * 4
        )


async def test_a_seek_goes_to_offsets_ends_and_times(
    broker: RunningBroker, orders: aio.Producer, topic: str
) -> None:
    await send(orders, topic, range(40))
    between = datetime.now(UTC) + timedelta(milliseconds=50)
    while datetime.now(UTC) < between + timedelta(milliseconds=50):
        await asyncio.sleep(0.01)
    await send(orders, topic, range(40, 80))
    async with consumer(broker) as running:
        queue = (await running.queues(topic))[0]
        await running.assign([queue])
        assert len(await collect(running, 20)) == 20
        for where, first in ((7, 7), ("earliest", 0), (between, 10)):
            await (
                running.seek(queue, at=where)
                if isinstance(where, datetime)
                else running.seek(queue, where)  # type: ignore[arg-type]
            )
            assert await running.position(queue) == first
            assert [m.queue_offset for m in await collect(running, 20 - first)] == list(
                range(first, 20)
            )
        assert await running.offset_at(queue, between) == 10
        assert (await running.beginning_offset(queue), await running.end_offset(queue)) == (0, 20)
        await running.seek(queue, "latest")
        assert await running.poll(0.2) == []
        with pytest.raises(InvalidOption, match="holds 0 to 20"):
            await running.seek(queue, 21)


async def test_members_come_and_go_and_nothing_is_lost(
    broker: RunningBroker, orders: aio.Producer, topic: str, group: str
) -> None:
    """What was in hand at a hand-over is repeated, at most."""
    seen: Counter[int] = Counter()

    async def poll_all(running: aio.PullConsumer) -> None:
        async for batch in running.batches(max_messages=50):
            seen.update(numbers(batch))

    async with consumer(broker, topic, group=group) as first:
        polling = [asyncio.create_task(poll_all(first))]
        await settled(first, 4)
        for turn in range(3):
            async with consumer(broker, topic, group=group) as second:
                polling.append(asyncio.create_task(poll_all(second)))
                await send(orders, topic, range(turn * 500, turn * 500 + 250))
                await settled(first, 2)
                await settled(second, 2)
                assert not set(first.assignment) & set(second.assignment)
                await send(orders, topic, range(turn * 500 + 250, turn * 500 + 500))
            await settled(first, 4)
        async with asyncio.timeout(WAIT_S):
            while len(seen) < 1500:
                await asyncio.sleep(0.02)
    await asyncio.gather(*polling)
    assert sorted(seen) == list(range(1500))


@pytest.mark.feature(115, 116)
async def test_a_raw_pull_says_what_the_broker_answered(
    broker: RunningBroker, orders: aio.Producer, topic: str
) -> None:
    await send(orders, topic, range(40), tags=4)
    async with consumer(broker) as running:
        queue = (await running.queues(topic))[1]
        found = await running.pull(queue, 3, max_messages=4)
        assert (found.status, found.next_offset, found.min_offset, found.max_offset) == (
            PullStatus.FOUND,
            7,
            0,
            10,
        )
        assert [(m.queue, m.queue_offset) for m in found.messages] == [
            (queue, i) for i in (3, 4, 5, 6)
        ]
        assert (await running.pull(queue, 10)).status is PullStatus.NO_NEW_MSG
        illegal = await running.pull(queue, 99)
        assert (illegal.status, illegal.next_offset) == (PullStatus.OFFSET_ILLEGAL, 10)
        no_match = await running.pull(queue, 0, tags="no such tag")
        assert (no_match.status, no_match.next_offset, no_match.messages) == (
            PullStatus.NO_MATCHED_MSG,
            10,
            (),
        )
        waiting = asyncio.create_task(running.pull(queue, 10, suspend_s=WAIT_S))
        await send(orders, topic, range(41, 42))
        assert numbers(list((await waiting).messages)) == [41]


def test_threads_poll_too(broker: RunningBroker, topic: str, group: str) -> None:
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=2)
        for i in range(10):
            producer.send(topic, b"%d" % i, timeout_s=WAIT_S)
    seen: list[MessageExt] = []
    with ogive.PullConsumer(
        topic, group=group, start="earliest", name_server=broker.name_server, config=QUICK
    ) as consumer:
        for batch in consumer.batches(max_messages=3):
            seen += batch
            if len(seen) == 10:
                break
    assert sorted(numbers(seen)) == list(range(10))
