"""Namespaces: of 4.x as a prefix of names, of 5.x as fields of every request."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive import aio
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.namespace import Namespace
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import Message, MessageExt, MessageQueue
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode
from ogive.wire.message import encode_properties
from tests.unit.client.consumer.polling import collect
from tests.unit.client.consumer.test_push_consumer import QUICK, Seen, to

SEND, PULL, HEARTBEAT, UPDATE = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_CONSUMER_OFFSET,
)
ORDERS = MessageQueue("Orders", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"shop%Orders": 1, "%RETRY%shop%billing": 1}) as broker:
        yield broker


def shop(broker: FakeBroker) -> ClientConfig:
    return ClientConfig(name_server=broker.address, namespace="shop")


@pytest.mark.feature(138)
@pytest.mark.parametrize(
    ("name", "on_wire"),
    [
        ("Orders", "shop%Orders"),
        # exactly one prefix, however often
        ("shop%Orders", "shop%Orders"),
        ("%RETRY%billing", "%RETRY%shop%billing"),
        ("%DLQ%billing", "%DLQ%shop%billing"),
        ("%RETRY%shop%billing", "%RETRY%shop%billing"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_a_name_gets_one_prefix_and_loses_it_again(name: str, on_wire: str) -> None:
    namespace = Namespace("shop")
    assert namespace.wrap(name) == on_wire
    assert namespace.strip(on_wire) == name.replace("shop%", "")
    assert (Namespace().wrap(name), Namespace().strip(name)) == (name, name)
    assert namespace.holds(on_wire) == ("shop%" in on_wire)


@pytest.mark.parametrize("name", ["", "a%b", "a b", "ä"])
def test_a_namespace_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="namespace"):
        ClientConfig(namespace=name)
    with pytest.raises(InvalidOption, match="namespace"):
        ClientConfig(namespace_v2=name)


@pytest.mark.feature(138)
async def test_what_is_sent_again_has_one_prefix_still(broker: FakeBroker) -> None:
    broker.script(SEND, error(ResponseCode.SYSTEM_ERROR, "not now"))
    async with aio.Producer(group="sellers", client=shop(broker)) as producer:
        sent = await producer.send("Orders", b"4711", sharding_key="a")
        assert sent.queue == ORDERS
        await producer.send("Orders", b"4711", queue=sent.queue)
        await producer.send_oneway("Orders", b"4711")
        assert [
            result.queue
            for result in await producer.send_batch("Orders", [b"1", Message("Orders", b"2")])
        ] == [ORDERS] * 2
        await broker.received(RequestCode.SEND_BATCH_MESSAGE)
        assert producer.config.group == "sellers"
        await producer.client.heartbeat_now()
    sends = [*broker.of(SEND), *broker.of(RequestCode.SEND_BATCH_MESSAGE)]
    assert {(request.ext_fields["a"], request.ext_fields["b"]) for request in sends} == {
        ("shop%sellers", "shop%Orders")
    }
    assert len(sends) == 5
    assert HeartbeatData.decode(broker.of(HEARTBEAT)[-1].body).producers == ("shop%sellers",)


@pytest.mark.feature(5)
@pytest.mark.parametrize("batch", [1, 2])
async def test_a_listener_sees_no_namespace_and_the_broker_nothing_else(
    broker: FakeBroker, batch: int
) -> None:
    seen, changes = Seen(), list[MessageQueue]()
    broker.put("shop%Orders", b"new")
    broker.put(
        "%RETRY%shop%billing",
        b"again",
        properties=encode_properties({"RETRY_TOPIC": "shop%Orders"}),
    )

    def take(got: MessageExt | list[MessageExt]) -> None:
        for message in got if isinstance(got, list) else [got]:
            seen(message)

    async with aio.PushConsumer(
        to(take, batch=batch),
        client=shop(broker),
        config=QUICK,
        on_change=lambda taken, _: changes.extend(taken),
    ) as consumer:
        await seen.wait(2)
        await broker.until(lambda: broker.offsets.get(("shop%billing", "shop%Orders", 0)) == 1)
        await broker.until(
            lambda: broker.offsets.get(("shop%billing", "%RETRY%shop%billing", 0)) == 1
        )
        retry = MessageQueue("%RETRY%billing", "broker-a", 0)
        assert consumer.assignment == {"billing": [retry, ORDERS]}
        assert await consumer.lag() == {ORDERS: 0}
        await seen.until(lambda: changes == [ORDERS])
    assert sorted((m.topic, m.queue.topic, m.body) for m in seen.messages) == [
        ("Orders", "%RETRY%billing", b"again"),
        ("Orders", "Orders", b"new"),
    ]
    (group,) = HeartbeatData.decode(broker.of(HEARTBEAT)[0].body).consumers
    assert group.group == "shop%billing"
    assert {one.topic for one in group.subscriptions} == {"shop%Orders", "%RETRY%shop%billing"}


async def test_messages_that_are_iterated_over_have_none_either(broker: FakeBroker) -> None:
    broker.put("shop%Orders", b"new")
    async with aio.PushConsumer(
        "Orders", group="billing", start="earliest", client=shop(broker), config=QUICK
    ) as consumer:
        async for message in consumer:
            async with message.process():
                assert (message.topic, message.queue) == ("Orders", ORDERS)
            break
        await broker.until(lambda: broker.offsets.get(("shop%billing", "shop%Orders", 0)) == 1)


async def test_listeners_come_and_go_by_their_own_names(broker: FakeBroker) -> None:
    broker.topics["shop%Prices"] = 1
    orders, prices, other = to(print), to(print, topic="Prices"), to(print, topic="News")
    async with aio.PushConsumer(orders, client=shop(broker), config=QUICK) as consumer:
        await consumer.subscribe(prices)
        with pytest.raises(InvalidOption, match="no listener of News in group billing"):
            await consumer.unsubscribe(other)
        await consumer.unsubscribe(prices)
    topics = {
        one.topic
        for one in HeartbeatData.decode(broker.of(HEARTBEAT)[-1].body).consumers[0].subscriptions
    }
    assert topics == {"shop%Orders", "%RETRY%shop%billing"}


async def test_who_pulls_speaks_of_bare_queues(broker: FakeBroker) -> None:
    for body in (b"0", b"1", b"2"):
        broker.put("shop%Orders", body)
    async with aio.PullConsumer(
        "Orders", group="billing", start="earliest", client=shop(broker), config=QUICK
    ) as consumer:
        assert [(m.topic, m.queue, m.body) for m in await collect(consumer, 1)] == [
            ("Orders", ORDERS, b"0")
        ]
        assert consumer.assignment == await consumer.queues("Orders") == [ORDERS]
        await consumer.seek(ORDERS, 2)
        assert [m.body for m in await collect(consumer, 1)] == [b"2"]
        await consumer.pause(ORDERS)
        await consumer.resume(ORDERS)
        assert await consumer.position(ORDERS) == 3
        await consumer.commit({ORDERS: 1})
        assert await consumer.committed(ORDERS) == 1
        assert await consumer.lag() == {ORDERS: 0}
        assert (await consumer.beginning_offset(ORDERS), await consumer.end_offset(ORDERS)) == (
            0,
            3,
        )
        (message,) = (await consumer.pull(ORDERS, 1, max_messages=1)).messages
        assert (message.topic, message.queue) == ("Orders", ORDERS)
    assert {request.ext_fields["topic"] for request in broker.of(PULL)} == {"shop%Orders"}
    async with aio.PullConsumer(group="billing", client=shop(broker), config=QUICK) as consumer:
        await consumer.assign([ORDERS])
        assert consumer.assignment == [ORDERS]


async def test_two_namespaces_share_a_process(broker: FakeBroker) -> None:
    broker.topics["desk%Orders"] = 1
    async with (
        aio.Producer(client=shop(broker)) as one,
        aio.Producer(client=ClientConfig(name_server=broker.address, namespace="desk")) as two,
    ):
        await asyncio.gather(one.send("Orders", b"1"), two.send("Orders", b"2"))
    assert {
        topic: [m.body for m in rows] for (topic, _), rows in broker.stored.items() if rows
    } == {
        "shop%Orders": [b"1"],
        "desk%Orders": [b"2"],
    }


@pytest.mark.feature(5)
async def test_in_5_every_request_names_the_namespace_in_its_header() -> None:
    async with FakeBroker({"Orders": 1, "%RETRY%billing": 1}) as broker:
        config = ClientConfig(name_server=broker.address, namespace_v2="shop")
        seen = Seen()
        async with (
            aio.Producer(client=config, config=ProducerConfig(group="sellers")) as producer,
            aio.PushConsumer(to(seen), client=config, config=QUICK),
        ):
            await producer.send("Orders", b"new")
            await producer.send_batch("Orders", [b"1", b"2"])
            await producer.send_oneway("Orders", b"3")
            await seen.wait(4)
            await broker.until(lambda: broker.offsets.get(("billing", "Orders", 0)) == 4)
        assert {message.topic for message in seen.messages} == {"Orders"}
        assert len(broker.requests) > 10
        assert {
            (request.ext_fields.get("ns"), request.ext_fields.get("nsd"))
            for request in broker.requests
        } == {("shop", "true")}
