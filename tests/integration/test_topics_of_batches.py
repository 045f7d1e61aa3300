"""Topics of batches (queue.type=BatchCQ) with our own clients, end to end on both brokers."""

import asyncio

import pytest

import ogive
from ogive import aio
from ogive.model import MessageQueue
from ogive.wire.message import WRAPPED
from tests.peers import RunningBroker
from tests.topics import wait_until_shown

pytestmark = pytest.mark.since("5.0.0", what="topics of batches")
# Apache's broker dispatches when it has time
WAIT_S = 150.0


@pytest.fixture
async def batches(broker: RunningBroker, topic: str) -> str:
    async with aio.Admin(broker.name_server) as admin:
        await admin.create_topic(topic, queues=1, whole_batches=True)
        # is there, and as it should be
        await admin.create_topic(topic, queues=1, whole_batches=True)
        assert (await admin.topic(topic)).brokers[0].attributes["queue.type"] == "BatchCQ"
    return topic


async def test_a_batch_is_one_record_and_its_messages_are_what_everybody_sees(
    broker: RunningBroker, batches: str, group: str
) -> None:
    async with aio.Producer(
        broker.name_server, config=ogive.ProducerConfig(whole_batches=True)
    ) as producer:
        sent = await producer.send_batch(batches, [b"%d" % n for n in range(5)], tag="a")
        sent.append(await producer.send(batches, b"5", tag="a"))
        sent += await producer.send_batch(batches, [b"%d" % n for n in range(6, 9)])
    assert [result.queue_offset for result in sent] == list(range(9))
    assert len({result.id for result in sent}) == 9
    assert [
        len({result.offset_id for result in part}) for part in (sent[:5], sent[5:6], sent[6:])
    ] == [1, 1, 1]
    queue = MessageQueue(batches, sent[0].queue.broker_name, 0)
    await asyncio.to_thread(wait_until_shown, broker.name_server, batches, 9)
    async with aio.Admin(broker.name_server) as admin:
        record = await admin.message(sent[2].offset_id)
        assert (record.queue_offset, record.sys_flag & WRAPPED, record.properties["INNER_NUM"]) == (
            0,
            WRAPPED,
            "5",
        )
        found = [await admin.message_at(queue, n) for n in range(9)]
        assert [(m.queue_offset, m.body, m.id) for m in found] == [
            (n, b"%d" % n, sent[n].id) for n in range(9)
        ]
    got: list[ogive.MessageExt] = []
    listener = ogive.listener(batches, group=group, start="earliest")(got.append)
    async with asyncio.timeout(WAIT_S), aio.PushConsumer(listener, name_server=broker.name_server):
        while len(got) < 9:
            await asyncio.sleep(0.02)
    assert sorted((m.queue_offset, m.body) for m in got) == [(n, b"%d" % n) for n in range(9)]
    async with aio.Admin(broker.name_server) as admin:
        (lag,) = await admin.lag(group, batches)
        assert (lag.consumer_offset, lag.lag) == (9, 0)
        await admin.reset_offsets(group, batches, to={queue: 7})
    async with aio.PullConsumer(batches, group=group, name_server=broker.name_server) as consumer:
        assert [m.queue_offset for m in await consumer.poll(WAIT_S)] == [7, 8]
