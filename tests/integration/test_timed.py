"""Messages for a later time, on both brokers."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

import ogive
from ogive import aio
from tests.peers import Flavour, RunningBroker

pytestmark = pytest.mark.client_suite

# Apache's timer works in whole seconds
EARLY_S = 1.0


@pytest.mark.since("5.3.2", what="messages for a time that can be taken back")
async def test_timed_messages_come_at_their_time_and_those_taken_back_never(
    broker: RunningBroker, flavour: Flavour, topic: str, group: str
) -> None:
    came: dict[bytes, float] = {}
    done = asyncio.Event()

    @ogive.listener(topic, group=group, start="earliest")
    async def take(message: ogive.MessageExt) -> None:
        came[message.body] = time.time()
        if b"last" in came:
            done.set()

    async with aio.Admin(broker.name_server) as admin, aio.Producer(broker.name_server) as producer:
        await admin.create_topic(topic, queues=1)
        now = datetime.now(UTC)
        sent = await producer.send(topic, b"taken back", delay_s=5)
        assert sent.recall_handle is not None
        told = {"ogive": (True, False), "apache": (None, None)}[flavour]
        for recalled in told:
            assert await producer.recall(topic, sent.recall_handle) == ogive.RecallResult(
                sent.id, recalled
            )
        await producer.send(topic, b"at", deliver_at=now + timedelta(seconds=3))
        await producer.send(topic, b"after", delay_s=3)
        await producer.send(topic, b"last", delay_s=6)
        await producer.send(topic, b"now")
        async with aio.PushConsumer(take, name_server=broker.name_server):
            async with asyncio.timeout(60):
                await done.wait()
    assert set(came) == {b"now", b"at", b"after", b"last"}
    assert came[b"at"] >= now.timestamp() + 3 - EARLY_S
    assert came[b"after"] >= now.timestamp() + 3 - EARLY_S
    assert came[b"last"] >= now.timestamp() + 6 - EARLY_S
