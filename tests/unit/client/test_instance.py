"""What producers and consumers of one client share: its life, name servers, groups and
heartbeats.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.errors import IllegalStateError, InvalidOption, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error
from ogive.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.codes import RequestCode

HEART_BEAT = RequestCode.HEART_BEAT


class Member:
    """A consumer that only counts how often it is told to rebalance."""

    def __init__(self, group: str = "billing", topic: str = "Orders") -> None:
        self.group = group
        self.topic = topic
        self.told = 0
        self.was_told = asyncio.Event()

    def consumer_data(self) -> ConsumerData:
        return ConsumerData(group=self.group, subscriptions=(SubscriptionData(topic=self.topic),))

    def on_consumer_ids_changed(self) -> None:
        self.told += 1
        self.was_told.set()

    def holdings(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        return []

    def running_info(self) -> bytes:
        return b'{"properties":{}}'

    async def wait_told(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.was_told.wait()
        self.was_told.clear()


def client_of(
    *brokers: FakeBroker,
    request_timeout_s: float = 3.0,
    heartbeat_period_s: float = 30.0,
    route_period_s: float = 30.0,
) -> ClientInstance:
    return ClientInstance(
        ClientConfig(
            name_server=";".join(broker.address for broker in brokers),
            request_timeout_s=request_timeout_s,
            heartbeat_period_s=heartbeat_period_s,
            route_period_s=route_period_s,
        )
    )


async def test_a_cancelled_close_still_closes_everything() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        before = asyncio.all_tasks()
        client = client_of(broker)
        await client.start()
        await client.routes.find("Orders")
        client.register_producer("sellers")
        broker.on(RequestCode.UNREGISTER_CLIENT, SILENT)
        closing = asyncio.create_task(client.close())
        await broker.received(RequestCode.UNREGISTER_CLIENT)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.pool.addresses() == []
        assert {
            task
            for task in asyncio.all_tasks() - before
            if task.get_name().endswith(client.client_id)
        } == set()


@pytest.mark.feature(6)
async def test_heartbeats_name_every_group_and_reach_every_broker() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        FakeBroker({"Orders": 1}, name="broker-b") as other,
        client_of(broker) as client,
    ):
        broker.peers.append(other)
        await client.routes.find("Orders")
        # nobody to speak for
        assert await client.heartbeat_now() == 0
        client.register_producer("sellers")
        client.register_consumer(Member())
        assert await client.heartbeat_now() == 2
        for peer in (broker, other):
            data = HeartbeatData.decode(peer.of(HEART_BEAT)[0].body)
            assert (data.client_id, data.producers, [c.group for c in data.consumers]) == (
                client.client_id,
                ("sellers",),
                ["billing"],
            )


@pytest.mark.feature(178)
async def test_heartbeats_go_on_by_themselves() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        client_of(broker, heartbeat_period_s=0.02) as client,
    ):
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await broker.received(HEART_BEAT, 3)


async def test_a_broker_that_restarts_gets_a_heartbeat_with_the_first_new_connection() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        await broker.stop()
        await broker.start()
        await client.routes.refresh("Orders")
        await broker.received(HEART_BEAT, 2)


async def test_a_dead_broker_is_reported_once_per_outage(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        FakeBroker({"Orders": 1}, name="broker-b") as other,
        client_of(broker) as client,
    ):
        broker.peers.append(other)
        await client.routes.find("Orders")
        client.register_consumer(Member())
        await other.stop()
        with caplog.at_level(logging.INFO, "ogive.client"):
            assert [await client.heartbeat_now() for _ in range(3)] == [1, 1, 1]
            await other.start()
            assert await client.heartbeat_now() == 2
        texts = [record.message for record in caplog.records]
        assert [other.address in text for text in texts] == [True, True]
        assert texts[1] == f"broker {other.address} is back"


@pytest.mark.feature(28)
async def test_one_heartbeat_is_on_its_way_at_a_time() -> None:
    """Whoever asks for the next one waits: the broker never takes an older word for the last."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        client.register_producer("sellers")
        broker.hold(HEART_BEAT)
        first = asyncio.create_task(client.heartbeat_now())
        await broker.received(HEART_BEAT)
        # These say what has changed since the first left, and one heartbeat says it for all of
        # them.
        beating = [first, *(asyncio.create_task(client.heartbeat_now()) for _ in range(5))]
        # an answer that comes later than further heartbeats would have come
        await client.routes.refresh("Orders")
        assert len(broker.of(HEART_BEAT)) == 1
        broker.release(HEART_BEAT)
        assert await asyncio.gather(*beating) == [1] * 6
        assert len(broker.of(HEART_BEAT)) == 2


@pytest.mark.feature(182)
async def test_a_group_is_left_behind_the_last_heartbeat_that_names_it() -> None:
    """Brokers hand the two to different threads: a heartbeat that is overtaken would bring the
    member back.
    """
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        member = Member()
        client.register_consumer(member)
        client.register_producer("sellers")
        broker.hold(HEART_BEAT)
        beating = asyncio.create_task(client.heartbeat_now())
        await broker.received(HEART_BEAT)
        leaving = asyncio.create_task(client.unregister_consumer(member))
        # an answer that comes later than a leave would have come
        await client.routes.refresh("Orders")
        assert not broker.of(RequestCode.UNREGISTER_CLIENT)
        broker.release(HEART_BEAT)
        await asyncio.gather(beating, leaving)
        assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1
        await client.heartbeat_now()
        assert HeartbeatData.decode(broker.of(HEART_BEAT)[-1].body).consumers == ()


async def test_a_broker_that_answers_no_heartbeat_is_told_all_the_same() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        member = Member()
        client.register_consumer(member)
        broker.on(HEART_BEAT, SILENT)
        beating = asyncio.create_task(client.heartbeat_now())
        await broker.received(HEART_BEAT)
        await client.unregister_consumer(member)
        assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1
        await beating


@pytest.mark.feature(21)
async def test_one_client_holds_one_member_of_a_group() -> None:
    async with FakeBroker() as broker, client_of(broker) as client:
        client.register_consumer(Member())
        with pytest.raises(IllegalStateError, match="billing"):
            client.register_consumer(Member())


async def test_leaving_tells_the_brokers() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        async with client_of(broker) as client:
            await client.routes.find("Orders")
            client.register_producer("sellers")
            client.register_consumer(Member())
            await client.heartbeat_now()
            assert list(broker.members["billing"]) == [client.client_id]
        left = [
            (r.ext_fields.get("producerGroup"), r.ext_fields.get("consumerGroup"))
            for r in broker.of(RequestCode.UNREGISTER_CLIENT)
        ]
        assert left == [("sellers", None), (None, "billing")]
        assert not broker.members["billing"]


async def test_a_broker_that_refuses_heartbeats_is_asked_again() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        client.register_producer("sellers")
        broker.script(HEART_BEAT, error(ResponseCode.SYSTEM_BUSY))
        assert [await client.heartbeat_now(), await client.heartbeat_now()] == [0, 1]


async def test_a_background_task_with_a_bug_stops_the_client_loudly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def bug() -> None:
        raise ZeroDivisionError

    async with FakeBroker() as broker, client_of(broker) as client:
        failed: list[BaseException] = []
        client.on_failure.append(failed.append)
        await asyncio.wait([client.spawn(bug(), "counting")])
        await asyncio.sleep(0)
        assert isinstance(failed[0], ZeroDivisionError)
        assert "counting" in caplog.text
        with pytest.raises(IllegalStateError, match="unexpected error: ZeroDivisionError"):
            await client.routes.find("Orders")


@pytest.mark.feature(8)
async def test_a_client_says_what_is_wrong_with_its_use() -> None:
    client = ClientInstance()
    with pytest.raises(IllegalStateError, match="not started"):
        await client.routes.find("Orders")
    await client.start()
    with pytest.raises(IllegalStateError, match="started before"):
        await client.start()
    await client.close()
    await client.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await client.routes.find("Orders")


@pytest.mark.feature(3)
@pytest.mark.parametrize(
    "text", ["", ";", "host:port", "host:0", ":1", "a:1,b:1", "rocketmq://a:1"]
)
def test_a_name_server_address_that_cannot_work_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="name server"):
        ClientConfig(name_server=text)


@pytest.mark.parametrize("value", [None, 9876, ["127.0.0.1:9876"]])
def test_a_name_server_that_is_no_text_is_named(value: Any) -> None:
    """As ``os.environ.get`` gives it where nothing is set."""
    with pytest.raises(TypeError, match="name_server must be str"):
        ClientConfig(name_server=value)


def test_name_servers_are_split_and_get_the_usual_port() -> None:
    assert ClientConfig(name_server=" a:1; b ;http://c:2").name_servers == ("a:1", "b:9876", "c:2")
