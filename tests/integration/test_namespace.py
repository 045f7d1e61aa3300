"""Namespaces on both brokers: of 4.x with every kind of call, of 5.x as fields that no broker
minds.
"""

import asyncio

import pytest

import ogive
from ogive import aio
from ogive.client.config import ClientConfig
from tests.peers import RunningBroker

pytestmark = pytest.mark.client_suite


@pytest.mark.feature(5)
async def test_a_namespace_holds_from_send_to_dead_letter(
    broker: RunningBroker, topic: str, group: str
) -> None:
    """Producer, transaction, request, listener, retries, pull and admin: bare names here, prefixed
    ones there.
    """
    config = ClientConfig(name_server=broker.name_server, namespace="shop")
    seen: list[tuple[str, bytes, int]] = []
    more = asyncio.Event()

    async def was_paid(message: ogive.MessageExt) -> bool:
        assert message.topic == topic
        return True

    @ogive.listener(topic, group=group, start="earliest", max_retries=1)
    async def take(message: ogive.MessageExt) -> ogive.ConsumeResult:
        seen.append((message.topic, message.body, message.reconsume_times))
        more.set()
        if message.body == b"poison":
            raise ValueError("poison")
        return ogive.Reply(b"2.20") if message.body == b"price?" else None

    async with (
        aio.Admin(client=config) as admin,
        aio.Producer(group="sellers", check=was_paid, client=config) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        sent = await producer.send(topic, b"plain", keys="k1")
        assert sent.queue.topic == topic
        await producer.send(topic, b"poison")
        async with producer.transaction(topic, b"committed"):
            pass
        transaction = producer.transaction(topic, b"checked")
        async with transaction:
            # the broker asks
            transaction.leave_open()
        async with aio.PushConsumer(take, client=config) as consumer:
            assert (await producer.request(topic, b"price?", timeout_s=60)).body == b"2.20"
            async with asyncio.timeout(60):
                while not {
                    (topic, b"plain", 0),
                    (topic, b"poison", 1),
                    (topic, b"committed", 0),
                    (topic, b"checked", 0),
                } <= set(seen):
                    more.clear()
                    await more.wait()
                while not await admin.dead_letters(group):
                    await asyncio.sleep(0.05)
            assert {queue.topic for queue in consumer.assignment[group]} == {
                topic,
                f"%RETRY%{group}",
            }
            (member,) = (await admin.group(group)).members
            info = await admin.running_info(group, member.client_id)
            assert {one.topic for one in info.subscriptions} == {topic, f"%RETRY%{group}"}
        assert {name for name, _, _ in seen} == {topic}
        found = await admin.message_at(sent.queue, sent.queue_offset)
        assert (found.topic, found.queue, found.body) == (topic, sent.queue, b"plain")
        assert {row.queue.topic for row in await admin.lag(group)} == {topic, f"%RETRY%{group}"}
        assert topic in {row.name for row in await admin.topics()}
        assert group in {row.name for row in await admin.groups()}
        assert [row.after for row in await admin.reset_offsets(group, topic, "earliest")] == [0]
        async with aio.PullConsumer(topic, group=group, start="earliest", client=config) as puller:
            async with asyncio.timeout(60):
                while not (messages := await puller.poll(1.0)):
                    pass
            assert {message.topic for message in messages} == {topic}
    async with aio.Admin(broker.name_server) as outside:
        names = {row.name for row in await outside.topics()}
        assert f"shop%{topic}" in names
        assert topic not in names
        assert f"shop%{group}" in {row.name for row in await outside.groups()}
    async with aio.Admin(
        client=ClientConfig(name_server=broker.name_server, namespace="desk")
    ) as elsewhere:
        assert [row for row in await elsewhere.topics() if row.name == topic] == []


async def test_the_fields_of_5_do_not_disturb_any_broker(
    broker: RunningBroker, topic: str, group: str
) -> None:
    config = ClientConfig(name_server=broker.name_server, namespace_v2="shop")
    done = asyncio.Event()

    @ogive.listener(topic, group=group, start="earliest", orderly=True)
    async def take(message: ogive.MessageExt) -> None:
        if message.body == b"2":
            done.set()

    async with aio.Admin(client=config) as admin, aio.Producer(client=config) as producer:
        await admin.create_topic(topic, queues=1)
        await producer.send_batch(topic, [b"0", b"1"])
        await producer.send(topic, b"2")
        async with aio.PushConsumer(take, client=config):
            async with asyncio.timeout(60):
                await done.wait()
        assert sum(row.lag for row in await admin.lag(group, topic)) == 0
