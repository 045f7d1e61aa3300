"""Sending to a real broker, ours or Apache's: what was acknowledged can be read back, as it was and
in its order.
"""

import asyncio
from collections import defaultdict

import pytest

import ogive
from ogive import aio
from ogive.client import rpc
from ogive.client.instance import ClientInstance
from ogive.errors import GroupNotExist, NoRoute
from ogive.model import MessageExt, MessageQueue, PullStatus, SendStatus
from ogive.wire.compression import CompressionType
from ogive.wire.headers.pull import PullMessageRequest
from tests.peers import Flavour, RunningBroker
from tests.topics import wait_until_shown

pytestmark = pytest.mark.client_suite


async def read(client: ClientInstance, queue: MessageQueue) -> list[MessageExt]:
    """Every message of a queue, in order."""
    address = client.routes.broker_address(queue.broker_name)
    end = await rpc.max_offset(client.pool, address, queue)
    messages: list[MessageExt] = []
    while len(messages) < end:
        header = PullMessageRequest(
            consumer_group="reader",
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=len(messages),
            max_msg_nums=32,
            sys_flag=4,
            commit_offset=0,
            subscription="*",
            expression_type="TAG",
        )
        result = await rpc.pull_message(client.pool, address, header, broker_name=queue.broker_name)
        assert result.status is PullStatus.FOUND
        messages += result.messages
    return messages


async def read_all(
    client: ClientInstance, topic: str, count: int
) -> dict[MessageQueue, list[MessageExt]]:
    """Every queue's messages, once *count* are visible: Apache's broker acknowledges before it
    dispatches.
    """
    async with asyncio.timeout(60):
        while True:
            try:
                await client.routes.refresh(topic)
                stored = {
                    queue: await read(client, queue)
                    for queue in await client.routes.subscribe_queues(topic)
                }
                if sum(map(len, stored.values())) >= count:
                    return stored
            except NoRoute:
                # a broker of 4.9 tells the name server of a new topic after it has answered the
                # send
                pass
            await asyncio.sleep(0.02)


async def test_a_message_is_read_back_as_it_was_sent(broker: RunningBroker, topic: str) -> None:
    async with aio.Producer(broker.name_server) as producer:
        sent = await producer.send(
            topic,
            b"4711: 2 x espresso",
            tag="paid",
            keys=("4711", "x"),
            properties={"größe": "XL €"},
            sharding_key="7",
        )
        [message] = (await read_all(producer.client, topic, 1))[sent.queue]
    assert (message.topic, message.body, message.tag, message.keys) == (
        topic,
        b"4711: 2 x espresso",
        "paid",
        ("4711", "x"),
    )
    assert (message.properties["größe"], message.sharding_key) == ("XL €", "7")
    assert (message.id, message.offset_id, message.queue_offset) == (
        sent.id,
        sent.offset_id,
        sent.queue_offset,
    )
    assert (message.queue, sent.status) == (sent.queue, SendStatus.SEND_OK)
    assert abs(message.stored_at.timestamp() - message.born_at.timestamp()) < 60


async def test_blocking_sends_are_stored_like_any_other(broker: RunningBroker, topic: str) -> None:
    def send() -> list[ogive.SendResult]:
        with ogive.Producer(broker.name_server) as producer:
            return [
                producer.send(topic, b"%d" % number, tag="paid", properties={"größe": "XL €"})
                for number in range(50)
            ]

    results = await asyncio.to_thread(send)
    async with aio.Producer(broker.name_server) as producer:
        stored = await read_all(producer.client, topic, len(results))
    found = {
        (m.id, m.offset_id, m.queue, m.queue_offset): m for rows in stored.values() for m in rows
    }
    messages = [found.pop((r.id, r.offset_id, r.queue, r.queue_offset)) for r in results]
    assert not found
    assert [message.body for message in messages] == [b"%d" % i for i in range(len(results))]
    assert {(message.tag, message.properties["größe"]) for message in messages} == {
        ("paid", "XL €")
    }
    assert all(stored.values())


async def test_bodies_of_every_length_arrive_whole(broker: RunningBroker, topic: str) -> None:
    sizes = [1, 4095, 4096, 100_000, 3 * 1024 * 1024]
    async with aio.Producer(
        broker.name_server, config=ogive.ProducerConfig(send_timeout_s=20)
    ) as producer:
        bodies = [
            bytes(i * 31 & 0xFF for i in range(min(size, 257))) * (size // 257 + 1)
            for size in sizes
        ]
        for body in bodies:
            await producer.send(topic, body, sharding_key="one")
        [stored] = [
            rows for rows in (await read_all(producer.client, topic, len(sizes))).values() if rows
        ]
        assert [message.body for message in stored] == bodies


async def test_a_pipeline_without_keys_is_stored_whole_and_on_all_queues(
    broker: RunningBroker, topic: str
) -> None:
    """Merged on their way, the messages come out one by one, each where its result says."""
    async with (
        aio.Admin(broker.name_server) as admin,
        aio.Producer(
            broker.name_server, config=ogive.ProducerConfig(send_timeout_s=20)
        ) as producer,
    ):
        await admin.create_topic(topic, queues=4)
        futures = [
            await producer.submit(topic, b"%d" % i, tag="t", keys=f"k{i}") for i in range(2000)
        ]
        results = await asyncio.gather(*futures)
        stored = await read_all(producer.client, topic, 2000)
    places = {
        (queue, message.queue_offset): message
        for queue, messages in stored.items()
        for message in messages
    }
    assert len(places) == 2000
    assert all(messages for messages in stored.values())
    for i, result in enumerate(results):
        message = places[result.queue, result.queue_offset]
        assert (message.body, message.keys, message.id, message.offset_id) == (
            b"%d" % i,
            (f"k{i}",),
            result.id,
            result.offset_id,
        )


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_compressed_bodies_arrive_whole(
    broker: RunningBroker, topic: str, kind: CompressionType
) -> None:
    body = b"4711: 2 x espresso " * 1000
    async with aio.Producer(
        broker.name_server, config=ogive.ProducerConfig(compression=kind)
    ) as producer:
        sent = await producer.send(topic, body)
        [message] = (await read_all(producer.client, topic, 1))[sent.queue]
    assert message.body == body
    assert message.stored_bytes < 1000


async def test_a_pipeline_keeps_the_order_of_each_key(broker: RunningBroker, topic: str) -> None:
    keys = [f"N{i}" for i in range(17)]
    async with aio.Producer(
        broker.name_server, config=ogive.ProducerConfig(send_timeout_s=20)
    ) as producer:
        for i in range(3000):
            await producer.submit(topic, b"%d" % i, sharding_key=keys[i % len(keys)])
        await producer.flush()
        seen: dict[str | None, list[int]] = defaultdict(list)
        for rows in (await read_all(producer.client, topic, 3000)).values():
            for message in rows:
                seen[message.sharding_key].append(int(message.body))
    assert seen == {key: list(range(k, 3000, len(keys))) for k, key in enumerate(keys)}


async def test_a_batch_is_stored_message_by_message(broker: RunningBroker, topic: str) -> None:
    async with aio.Producer(broker.name_server) as producer:
        bodies = [b"%d" % i for i in range(300)]
        results = await producer.send_batch(topic, bodies, tag="many")
        stored = {
            (m.queue, m.queue_offset): m
            for rows in (await read_all(producer.client, topic, 300)).values()
            for m in rows
        }
    assert len(stored) == 300
    for body, result in zip(bodies, results, strict=True):
        message = stored[result.queue, result.queue_offset]
        assert (message.body, message.tag, message.id, message.offset_id) == (
            body,
            "many",
            result.id,
            result.offset_id,
        )


async def test_one_way_messages_arrive(broker: RunningBroker, topic: str) -> None:
    async with aio.Producer(broker.name_server) as producer:
        await producer.send(topic, b"first: the topic is there")
        for i in range(20):
            await producer.send_oneway(topic, b"%d" % i)
        assert sum(map(len, (await read_all(producer.client, topic, 21)).values())) == 21


async def test_a_topic_that_nobody_creates_is_reported_by_name(
    broker: RunningBroker, topic: str, flavour: Flavour
) -> None:
    async with aio.Producer(broker.name_server) as producer:
        with pytest.raises(NoRoute, match=f'"%RETRY%{topic}" has no route on {broker.name_server}'):
            await producer.send(f"%RETRY%{topic}", b"")


def test_blocking_calls_send_and_administer(broker: RunningBroker, topic: str, group: str) -> None:
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=3)
        row = next(row for row in admin.topics() if row.name == topic)
        assert (row.write_queues, row.read_queues) == (3, 3)
        futures = [producer.submit(topic, b"%d" % i) for i in range(300)]
        producer.flush()
        assert sorted({future.result().queue.queue_id for future in futures}) == [0, 1, 2]
        wait_until_shown(broker.name_server, topic, 300)
        rows = admin.offsets(topic)
        assert sum(row.max_offset for row in rows) == 300
        assert [row.min_offset for row in rows] == [0, 0, 0]
        for call in (admin.lag, admin.members):
            with pytest.raises(GroupNotExist):
                call(group)
        admin.delete_topic(topic)
        assert topic not in [row.name for row in admin.topics()]
