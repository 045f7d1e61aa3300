"""What producers and consumers of one client share: name servers, routes, heartbeats, requests of brokers."""

import asyncio
import json
import logging
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.errors import IllegalStateError, InvalidOption, NoNameServer, NoRoute, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, Silent, error, ok
from ogive.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
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

    def running_info(self) -> bytes:
        return b'{"properties":{}}'

    async def wait_told(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.was_told.wait()
        self.was_told.clear()


def client_of(
    *brokers: FakeBroker, request_timeout_s: float = 3.0, heartbeat_period_s: float = 30.0, route_period_s: float = 30.0
) -> ClientInstance:
    return ClientInstance(
        ClientConfig(
            name_server=";".join(broker.address for broker in brokers),
            request_timeout_s=request_timeout_s,
            heartbeat_period_s=heartbeat_period_s,
            route_period_s=route_period_s,
        )
    )


async def test_one_question_serves_all_callers_of_a_topic_and_its_answer_is_kept() -> None:
    async with FakeBroker({"Orders": 2}) as broker, client_of(broker) as client:
        expected = (MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1))
        assert await asyncio.gather(*(client.publish_queues("Orders") for _ in range(10))) == [expected] * 10
        assert await client.subscribe_queues("Orders") == expected
        assert client.broker_address("broker-a") == broker.address
        assert len(broker.of(ROUTE)) == 1


async def test_a_dead_name_server_is_passed_over_within_the_same_call() -> None:
    gone = FakeBroker()
    await gone.start()
    await gone.stop()
    async with FakeBroker({"Orders": 1}) as broker, client_of(gone, broker) as client:
        assert len(await client.publish_queues("Orders")) == 1
        await client.refresh_route("Orders")
        assert len(broker.of(ROUTE)) == 2


async def test_a_silent_name_server_costs_its_share_of_the_budget_only() -> None:
    async with FakeBroker() as silent, FakeBroker({"Orders": 1}) as broker, client_of(silent, broker, request_timeout_s=0.4) as client:
        silent.on(ROUTE, SILENT)
        assert len(await client.publish_queues("Orders")) == 1


@pytest.mark.parametrize("doubtful", [error(ResponseCode.TOPIC_NOT_EXIST), SILENT], ids=["restarted", "silent"])
async def test_a_doubted_route_is_not_lost_to_a_server_that_cannot_say(doubtful: RemotingCommand | Silent) -> None:
    async with FakeBroker({"Orders": 1}) as good, FakeBroker() as bad, client_of(good, bad, request_timeout_s=2.0) as client:
        bad.on(ROUTE, doubtful)
        await client.route("Orders")
        assert len((await client.refresh_route("Orders", doubted=True)).queues) == 1
        assert len(bad.of(ROUTE)) == 1
        await client.refresh_route("Orders")  # what nobody doubts goes to the one that answers
        assert len(bad.of(ROUTE)) == 1


async def test_no_name_server_says_where_how_long_and_why() -> None:
    """How often it tried, too, unless the time was up in the middle of a try."""
    gone = FakeBroker()
    await gone.start()
    await gone.stop()
    said = rf"no name server answered at {gone.address} within 0\.[2-9] s(; tried \d times, at last)?: no conn.*refused"
    async with client_of(gone, request_timeout_s=0.25) as client:
        with pytest.raises(NoNameServer, match=said):
            await client.route("Orders")


async def test_a_name_server_that_is_just_starting_is_waited_for() -> None:
    broker = FakeBroker({"Orders": 1})
    await broker.start()
    await broker.stop()
    async with client_of(broker) as client:
        asking = asyncio.create_task(client.publish_queues("Orders"))
        await asyncio.sleep(0)
        await broker.start()
        assert len(await asking) == 1
    await broker.stop()


async def test_a_route_with_20_000_brokers_is_refused_and_the_known_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    """Else the client would open a connection to each of them, and send it heartbeats."""
    brokers = [{"brokerName": f"b{i}", "cluster": "c", "brokerAddrs": {"0": f"127.1.{i >> 8}.{i & 255}:1"}} for i in range(20_000)]
    rows = [{"brokerName": f"b{i}", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0} for i in range(20_000)]
    flood = ok(body=json.dumps({"brokerDatas": brokers, "queueDatas": rows, "filterServerTable": {}}).encode())
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker, route_period_s=0.02) as client:
        client.register_producer("shop")
        await client.route("Orders")
        broker.on(ROUTE, flood)
        asked = len(broker.of(ROUTE))
        await broker.received(ROUTE, asked + 2)
        assert client.heartbeat_addresses() == [broker.address]
        assert await client.heartbeat_now() == 1
        assert len(await client.publish_queues("Orders")) == 1
    assert "route of Orders: a name server's answer holds 20000 brokers: 4096 are the limit" in caplog.text


async def test_a_callers_own_timeout_holds_and_does_not_end_the_question_for_others() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker, request_timeout_s=5.0) as client:
        broker.hold(ROUTE)
        other = asyncio.create_task(client.publish_queues("Orders"))
        with pytest.raises(NoNameServer, match=r"within 0\.1 s"):
            await client.route("Orders", timeout_s=0.05)
        broker.release(ROUTE)
        assert len(await other) == 1
        assert len(broker.of(ROUTE)) == 1


async def test_a_missing_topic_gets_advice_with_names_like_it() -> None:
    async with FakeBroker({"Orders": 1, "Prices": 1, "%RETRY%Ordres": 1}) as broker, client_of(broker) as client:
        with pytest.raises(NoRoute) as caught:
            await client.route("Ordres")
    assert str(caught.value) == (
        f'topic "Ordres" has no route on {broker.address}. Similar topics: Orders. '
        "Create it with `ogive topic create Ordres`, or switch auto-create on at the broker."
    )


async def test_a_topic_whose_brokers_are_gone_is_not_taken_for_a_misspelt_one() -> None:
    """The name server keeps the topic's name in its list, and has no address to give."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        broker.on(ROUTE, error(ResponseCode.TOPIC_NOT_EXIST))
        with pytest.raises(
            NoRoute, match=r"has no route on .*: the name server knows the topic, but at present no broker that holds it"
        ) as caught:
            await client.route("Orders")
    assert "Create it" not in str(caught.value)


async def test_a_changed_route_wakes_the_consumers_of_the_topic() -> None:
    async with FakeBroker({"Orders": 1, "Prices": 1}) as broker, client_of(broker) as client:
        orders, prices = Member(), Member("screens", "Prices")
        changed: list[str] = []
        client.register_consumer(orders)
        client.register_consumer(prices)
        client.on_route_change.append(changed.append)
        await client.route("Orders")
        await client.route("Prices")
        broker.topics["Orders"] = 2
        await client.refresh_route("Orders")
        assert len(await client.subscribe_queues("Orders")) == 2
        assert (orders.told, prices.told, changed) == (2, 1, ["Orders", "Prices", "Orders"])


async def test_new_queues_are_found_without_a_restart() -> None:
    async with FakeBroker({"Orders": 1}) as broker, ClientInstance(ClientConfig(name_server=broker.address, route_period_s=0.02)) as client:
        changed = asyncio.Event()
        await client.route("Orders")
        client.on_route_change.append(lambda _: changed.set())
        broker.topics["Orders"] = 2
        async with asyncio.timeout(WAIT_S):
            await changed.wait()
        assert len(await client.subscribe_queues("Orders")) == 2


async def test_a_topic_that_vanishes_keeps_its_last_route() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        del broker.topics["Orders"]
        with pytest.raises(NoRoute):
            await client.refresh_route("Orders")
        assert len(await client.publish_queues("Orders")) == 1


async def test_a_broker_that_moved_is_found_although_a_vanished_topic_still_names_its_old_address() -> None:
    """The last answer counts, whichever topic was asked for first."""
    async with FakeBroker({"Orders": 1, "Old": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        await client.route("Old")
        del broker.topics["Old"], broker.topics["Orders"]
        async with FakeBroker({"Orders": 1}) as moved:
            broker.peers.append(moved)
            await client.refresh_route("Orders")
            with pytest.raises(NoRoute):
                await client.refresh_route("Old")
            assert client.broker_address("broker-a") == moved.address


async def test_one_topic_with_an_odd_answer_does_not_keep_the_others_from_being_read_again() -> None:
    async with FakeBroker({"Orders": 1, "Odd": 1}) as broker, client_of(broker, route_period_s=0.05) as client:
        await client.route("Odd")
        await client.route("Orders")
        broker.on(ROUTE, lambda request: ok(body=b"[]") if request.ext_fields["topic"] == "Odd" else None)
        broker.topics["Orders"] = 3
        await broker.until(lambda: [request.ext_fields["topic"] for request in broker.of(ROUTE)].count("Orders") > 2)
        assert len(await client.publish_queues("Orders")) == 3


async def test_a_cancelled_close_still_closes_everything() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        before = asyncio.all_tasks()
        client = client_of(broker)
        await client.start()
        await client.route("Orders")
        client.register_producer("sellers")
        broker.on(RequestCode.UNREGISTER_CLIENT, SILENT)
        closing = asyncio.create_task(client.close())
        await broker.received(RequestCode.UNREGISTER_CLIENT)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert client.pool.addresses() == []
        assert {task for task in asyncio.all_tasks() - before if task.get_name().endswith(client.client_id)} == set()


async def test_heartbeats_name_every_group_and_reach_every_broker() -> None:
    async with FakeBroker({"Orders": 1}) as broker, FakeBroker({"Orders": 1}, name="broker-b") as other, client_of(broker) as client:
        broker.peers.append(other)
        await client.route("Orders")
        assert await client.heartbeat_now() == 0  # nobody to speak for
        client.register_producer("sellers")
        client.register_consumer(Member())
        assert await client.heartbeat_now() == 2
        for peer in (broker, other):
            data = HeartbeatData.decode(peer.of(HEART_BEAT)[0].body)
            assert (data.client_id, data.producers, [c.group for c in data.consumers]) == (client.client_id, ("sellers",), ["billing"])
        assert set(client.broker_versions) == {broker.address, other.address}


async def test_heartbeats_go_on_by_themselves() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker, heartbeat_period_s=0.02) as client:
        await client.route("Orders")
        client.register_consumer(Member())
        await broker.received(HEART_BEAT, 3)


async def test_a_broker_that_restarts_gets_a_heartbeat_with_the_first_new_connection() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        await broker.stop()
        await broker.start()
        await client.refresh_route("Orders")
        await broker.received(HEART_BEAT, 2)


async def test_a_dead_broker_is_reported_once_per_outage(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker({"Orders": 1}) as broker, FakeBroker({"Orders": 1}, name="broker-b") as other, client_of(broker) as client:
        broker.peers.append(other)
        await client.route("Orders")
        client.register_consumer(Member())
        await other.stop()
        with caplog.at_level(logging.INFO, "ogive.client"):
            assert [await client.heartbeat_now() for _ in range(3)] == [1, 1, 1]
            await other.start()
            assert await client.heartbeat_now() == 2
        texts = [record.message for record in caplog.records]
        assert [other.address in text for text in texts] == [True, True]
        assert texts[1] == f"broker {other.address} is back"


async def test_a_change_of_the_group_wakes_every_consumer() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        members = Member(), Member("shipping")
        for member in members:
            client.register_consumer(member)
        await client.heartbeat_now()
        broker.notify("billing")
        for member in members:
            await member.wait_told()


async def test_running_info_is_answered_for_the_group_that_is_asked_for() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        ask = {"consumerGroup": "billing", "clientId": client.client_id}
        answer = await broker.ask("billing", client.client_id, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ask))
        assert (answer.code, answer.body) == (ResponseCode.SUCCESS, b'{"properties":{}}')
        ask["consumerGroup"] = "nobody"
        answer = await broker.ask("billing", client.client_id, RemotingCommand(RequestCode.GET_CONSUMER_RUNNING_INFO, ask))
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_an_unknown_request_of_a_broker_is_refused_at_once() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        answer = await broker.ask("billing", client.client_id, RemotingCommand(9_999))
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_handler_that_breaks_tells_the_broker_and_leaves_the_client_whole(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: object) -> RemotingCommand:
        raise LookupError("odd")

    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        client.serve(RequestCode.CONSUME_MESSAGE_DIRECTLY, broken)
        await client.route("Orders")
        client.register_consumer(Member())
        await client.heartbeat_now()
        answer = await broker.ask("billing", client.client_id, RemotingCommand(RequestCode.CONSUME_MESSAGE_DIRECTLY))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "LookupError: odd")
        assert client.running
    assert "request 309" in caplog.text


async def test_one_heartbeat_is_on_its_way_at_a_time() -> None:
    """Whoever asks for the next one waits: the broker never takes an older word for the last."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        client.register_producer("sellers")
        broker.hold(HEART_BEAT)
        beating = [asyncio.create_task(client.heartbeat_now()) for _ in range(5)]
        await broker.received(HEART_BEAT)
        await client.refresh_route("Orders")  # an answer that comes later than further heartbeats would have come
        assert len(broker.of(HEART_BEAT)) == 1
        broker.release(HEART_BEAT)
        assert await asyncio.gather(*beating) == [1] * 5
        assert len(broker.of(HEART_BEAT)) == 5


async def test_a_group_is_left_behind_the_last_heartbeat_that_names_it() -> None:
    """Brokers hand the two to different threads: a heartbeat that is overtaken would bring the member back."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        member = Member()
        client.register_consumer(member)
        client.register_producer("sellers")
        broker.hold(HEART_BEAT)
        beating = asyncio.create_task(client.heartbeat_now())
        await broker.received(HEART_BEAT)
        leaving = asyncio.create_task(client.unregister_consumer(member))
        await client.refresh_route("Orders")  # an answer that comes later than a leave would have come
        assert not broker.of(RequestCode.UNREGISTER_CLIENT)
        broker.release(HEART_BEAT)
        await asyncio.gather(beating, leaving)
        assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1
        await client.heartbeat_now()
        assert HeartbeatData.decode(broker.of(HEART_BEAT)[-1].body).consumers == ()


async def test_a_broker_that_answers_no_heartbeat_is_told_all_the_same() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        member = Member()
        client.register_consumer(member)
        broker.on(HEART_BEAT, SILENT)
        beating = asyncio.create_task(client.heartbeat_now())
        await broker.received(HEART_BEAT)
        await client.unregister_consumer(member)
        assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1
        await beating


async def test_one_client_holds_one_member_of_a_group() -> None:
    async with FakeBroker() as broker, client_of(broker) as client:
        client.register_consumer(Member())
        with pytest.raises(IllegalStateError, match="billing"):
            client.register_consumer(Member())


async def test_leaving_tells_the_brokers() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        async with client_of(broker) as client:
            await client.route("Orders")
            client.register_producer("sellers")
            client.register_consumer(Member())
            await client.heartbeat_now()
            assert list(broker.members["billing"]) == [client.client_id]
        left = [(r.ext_fields.get("producerGroup"), r.ext_fields.get("consumerGroup")) for r in broker.of(RequestCode.UNREGISTER_CLIENT)]
        assert left == [("sellers", None), (None, "billing")]
        assert not broker.members["billing"]


async def test_a_broker_that_refuses_heartbeats_is_asked_again() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.route("Orders")
        client.register_producer("sellers")
        broker.script(HEART_BEAT, error(ResponseCode.SYSTEM_BUSY))
        assert [await client.heartbeat_now(), await client.heartbeat_now()] == [0, 1]


async def test_a_background_task_with_a_bug_stops_the_client_loudly(caplog: pytest.LogCaptureFixture) -> None:
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
            await client.route("Orders")


async def test_a_client_says_what_is_wrong_with_its_use() -> None:
    client = ClientInstance()
    with pytest.raises(IllegalStateError, match="not started"):
        await client.route("Orders")
    await client.start()
    with pytest.raises(IllegalStateError, match="started before"):
        await client.start()
    await client.close()
    await client.close()
    with pytest.raises(IllegalStateError, match="closed"):
        await client.route("Orders")


@pytest.mark.parametrize("text", ["", ";", "host:port", "host:0", ":1", "a:1,b:1", "rocketmq://a:1"])
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
