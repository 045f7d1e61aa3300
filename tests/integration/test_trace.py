"""Message traces on a real broker, ours or Apache's: what was sent and consumed can be read back
from the trace topic.
"""

import asyncio

import pytest

import ogive
from ogive import aio
from ogive.model import TRACE_TOPIC
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
MANY = 2_000
QUICK = ogive.ConsumerConfig(rebalance_pause_s=0.1, trace=True)


async def test_a_messages_way_can_be_read_from_the_trace_topic(
    broker: RunningBroker, topic: str, group: str
) -> None:
    consumed = asyncio.Event()
    found: set[str] = set()

    @ogive.listener(topic, group=group, start="earliest")
    async def bill(_: ogive.MessageExt) -> None:
        consumed.set()

    @ogive.listener(TRACE_TOPIC, group=f"{group}-reader", start="earliest", batch=32)
    async def collect(messages: list[ogive.MessageExt]) -> None:
        records = [
            record.split("\x01") for message in messages for record in message.text.split("\x02")
        ]
        found.update(record[0] for record in records if sent.id in record)

    async with asyncio.timeout(WAIT_S):
        settings = ogive.ProducerConfig(trace=True, send_timeout_s=WAIT_S)
        async with aio.Producer(broker.name_server, config=settings) as producer:
            sent = await producer.send(topic, b"espresso", keys="k1")
        async with aio.PushConsumer(bill, name_server=broker.name_server, config=QUICK):
            await consumed.wait()
        async with aio.PushConsumer(collect, name_server=broker.name_server, config=QUICK):
            while found != {"Pub", "SubBefore", "SubAfter"}:
                await asyncio.sleep(0.02)


async def test_each_of_many_messages_at_once_is_found_in_the_traces(
    broker: RunningBroker, topic: str
) -> None:
    """A trace message is about hundreds of messages, and each of their ids is a key of it."""
    settings = ogive.ProducerConfig(trace=True, send_timeout_s=WAIT_S)
    async with aio.Producer(broker.name_server, config=settings) as producer:
        sent = await asyncio.gather(
            *[producer.send(topic, b"espresso", keys=f"{n}") for n in range(MANY)]
        )
    async with asyncio.timeout(WAIT_S), aio.Admin(broker.name_server) as admin:
        # the index is a moment behind
        while not await admin.trace(sent[-1].id):
            await asyncio.sleep(0.1)
        missing = [
            one.id
            for one in sent
            if {step.message_id for step in await admin.trace(one.id)} != {one.id}
        ]
        assert missing == []
