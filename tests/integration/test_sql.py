"""Filters in SQL92, end to end on both brokers."""

import asyncio

import pytest

import ogive
from ogive import aio
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite

SQL = "amount BETWEEN 100 AND 300 AND region IN ('eu', 'us') OR TAGS = 'vip'"
# amount, region, tag, wanted
ROWS = [
    ("50", "eu", "plain", False),
    ("100", "eu", "plain", True),
    ("300", "us", "plain", True),
    ("200", "asia", "plain", False),
    ("200", None, "plain", False),
    ("1", None, "vip", True),
    ("x", "eu", "plain", False),
]


async def fill(broker: RunningBroker, topic: str) -> set[bytes]:
    """Send ROWS, their numbers as bodies; what SQL is true of."""
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=2)
    async with aio.Producer(broker.name_server) as producer:
        for i, (amount, region, tag, _) in enumerate(ROWS):
            properties = {"amount": amount} | ({"region": region} if region else {})
            await producer.send(topic, b"%d" % i, tag=tag, properties=properties)
    return {b"%d" % i for i, row in enumerate(ROWS) if row[3]}


async def test_a_listener_gets_what_its_sql_is_true_of(
    broker: RunningBroker, topic: str, group: str
) -> None:
    wanted = await fill(broker, topic)
    seen: list[bytes] = []
    done = asyncio.Event()

    @ogive.listener(topic, group=group, sql=SQL, start="earliest")
    async def take(message: ogive.MessageExt) -> ogive.ConsumeResult:
        if message.reconsume_times == 0 and message.body == b"1":
            # a retry comes back whatever the filter says of the retry topic
            return ogive.LATER
        seen.append(message.body)
        if len(seen) >= len(wanted):
            done.set()
        return None

    async with aio.PushConsumer(take, name_server=broker.name_server) as consumer:
        async with asyncio.timeout(60):
            await done.wait()
            while any((await consumer.lag()).values()):
                await asyncio.sleep(0.05)
    assert sorted(seen) == sorted(wanted)


async def test_pulls_get_the_same(broker: RunningBroker, topic: str, group: str) -> None:
    wanted = await fill(broker, topic)
    found: set[bytes] = set()
    async with aio.PullConsumer(
        topic, group=group, sql=SQL, start="earliest", name_server=broker.name_server
    ) as consumer:
        async with asyncio.timeout(60):
            while found != wanted:
                found |= {message.body for message in await consumer.poll(1.0)}
                assert found <= wanted
        unfiltered = [
            await consumer.pull(queue, 0, sql="TAGS IS NOT NULL")
            for queue in await consumer.queues(topic)
        ]
        assert sum(len(result.messages) for result in unfiltered) == len(ROWS)
