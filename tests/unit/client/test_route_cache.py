"""Routes: who is asked for them, how long, and what a client holds on to."""

import asyncio
import json

import pytest

from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.errors import NoNameServer, NoRoute, ResponseCode
from ogive.model import MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, Silent, error, ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.test_instance import Member, client_of

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_one_question_serves_all_callers_of_a_topic_and_its_answer_is_kept() -> None:
    async with FakeBroker({"Orders": 2}) as broker, client_of(broker) as client:
        expected = (MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1))
        assert (
            await asyncio.gather(*(client.routes.publish_queues("Orders") for _ in range(10)))
            == [expected] * 10
        )
        assert await client.routes.subscribe_queues("Orders") == expected
        assert client.routes.broker_address("broker-a") == broker.address
        assert len(broker.of(ROUTE)) == 1


@pytest.mark.feature(3)
async def test_a_dead_name_server_is_passed_over_within_the_same_call() -> None:
    gone = FakeBroker()
    await gone.start()
    await gone.stop()
    async with FakeBroker({"Orders": 1}) as broker, client_of(gone, broker) as client:
        assert len(await client.routes.publish_queues("Orders")) == 1
        await client.routes.refresh("Orders")
        assert len(broker.of(ROUTE)) == 2


async def test_a_silent_name_server_costs_its_share_of_the_budget_only() -> None:
    async with (
        FakeBroker() as silent,
        FakeBroker({"Orders": 1}) as broker,
        client_of(silent, broker, request_timeout_s=2.0) as client,
    ):
        silent.on(ROUTE, SILENT)
        assert len(await client.routes.publish_queues("Orders")) == 1


@pytest.mark.parametrize(
    "doubtful", [error(ResponseCode.TOPIC_NOT_EXIST), SILENT], ids=["restarted", "silent"]
)
async def test_a_doubted_route_is_not_lost_to_a_server_that_cannot_say(
    doubtful: RemotingCommand | Silent,
) -> None:
    async with (
        FakeBroker({"Orders": 1}) as good,
        FakeBroker() as bad,
        client_of(good, bad, request_timeout_s=2.0) as client,
    ):
        bad.on(ROUTE, doubtful)
        await client.routes.find("Orders")
        assert len((await client.routes.refresh("Orders", doubted=True)).queues) == 1
        assert len(bad.of(ROUTE)) == 1
        # what nobody doubts goes to the one that answers
        await client.routes.refresh("Orders")
        assert len(bad.of(ROUTE)) == 1


async def test_no_name_server_says_where_how_long_and_why() -> None:
    """How often it tried, too, unless the time was up in the middle of a try."""
    gone = FakeBroker()
    await gone.start()
    await gone.stop()
    said = (
        rf"no name server answered at {gone.address} within \d+\.\d s(; tried \d times, at "
        r"last)?: no conn.*refused"
    )
    async with client_of(gone, request_timeout_s=0.25) as client:
        with pytest.raises(NoNameServer, match=said):
            await client.routes.find("Orders")


async def test_a_name_server_that_is_just_starting_is_waited_for() -> None:
    broker = FakeBroker({"Orders": 1})
    await broker.start()
    await broker.stop()
    async with client_of(broker) as client:
        asking = asyncio.create_task(client.routes.publish_queues("Orders"))
        await asyncio.sleep(0)
        await broker.start()
        assert len(await asking) == 1
    await broker.stop()


@pytest.mark.kills("hostile server: routes without limit")
async def test_a_route_with_20_000_brokers_is_refused_and_the_known_one_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Else the client would open a connection to each of them, and send it heartbeats."""
    brokers = [
        {"brokerName": f"b{i}", "cluster": "c", "brokerAddrs": {"0": f"127.1.{i >> 8}.{i & 255}:1"}}
        for i in range(20_000)
    ]
    rows = [
        {
            "brokerName": f"b{i}",
            "perm": 6,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "topicSysFlag": 0,
        }
        for i in range(20_000)
    ]
    flood = ok(
        body=json.dumps(
            {"brokerDatas": brokers, "queueDatas": rows, "filterServerTable": {}}
        ).encode()
    )
    async with (
        FakeBroker({"Orders": 1}) as broker,
        client_of(broker, route_period_s=0.02) as client,
    ):
        client.register_producer("shop")
        await client.routes.find("Orders")
        broker.on(ROUTE, flood)
        asked = len(broker.of(ROUTE))
        await broker.received(ROUTE, asked + 2)
        assert client.heartbeat_addresses() == [broker.address]
        assert await client.heartbeat_now() == 1
        assert len(await client.routes.publish_queues("Orders")) == 1
    assert (
        "route of Orders: a name server's answer holds 20000 brokers: 4096 are the limit"
        in caplog.text
    )


async def test_a_callers_own_timeout_holds_and_does_not_end_the_question_for_others() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        client_of(broker, request_timeout_s=5.0) as client,
    ):
        broker.hold(ROUTE)
        other = asyncio.create_task(client.routes.publish_queues("Orders"))
        with pytest.raises(NoNameServer, match=r"within 0\.1 s"):
            await client.routes.find("Orders", timeout_s=0.05)
        broker.release(ROUTE)
        assert len(await other) == 1
        assert len(broker.of(ROUTE)) == 1


async def test_a_missing_topic_gets_advice_with_names_like_it() -> None:
    async with (
        FakeBroker({"Orders": 1, "Prices": 1, "%RETRY%Ordres": 1}) as broker,
        client_of(broker) as client,
    ):
        with pytest.raises(NoRoute) as caught:
            await client.routes.find("Ordres")
    assert str(caught.value) == (
        f'topic "Ordres" has no route on {broker.address}. Similar topics: Orders. '
        "Create it with `ogive topic create Ordres`; where auto-create is on, the first message "
        "does."
    )


async def test_a_user_who_may_not_list_topics_is_refused_that_once() -> None:
    """Each refusal is a warning in the name server's log."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        listing = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        broker.on(listing, error(ResponseCode.NO_PERMISSION))
        for _ in range(2):
            with pytest.raises(NoRoute, match=r"has no route on \S+ Create it with"):
                await client.routes.find("Ordres")
    assert len(broker.of(listing)) == 1


async def test_a_topic_whose_brokers_are_gone_is_not_taken_for_a_misspelt_one() -> None:
    """The name server keeps the topic's name in its list, and has no address to give."""
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        broker.on(ROUTE, error(ResponseCode.TOPIC_NOT_EXIST))
        with pytest.raises(
            NoRoute,
            match=r"has no route on .*: the name server knows the topic, but at present no broker "
            r"that holds it",
        ) as caught:
            await client.routes.find("Orders")
    assert "Create it" not in str(caught.value)


async def test_a_changed_route_wakes_the_consumers_of_the_topic() -> None:
    async with FakeBroker({"Orders": 1, "Prices": 1}) as broker, client_of(broker) as client:
        orders, prices = Member(), Member("screens", "Prices")
        changed: list[str] = []
        client.register_consumer(orders)
        client.register_consumer(prices)
        client.routes.on_change.append(changed.append)
        await client.routes.find("Orders")
        await client.routes.find("Prices")
        broker.topics["Orders"] = 2
        await client.routes.refresh("Orders")
        assert len(await client.routes.subscribe_queues("Orders")) == 2
        assert (orders.told, prices.told, changed) == (2, 1, ["Orders", "Prices", "Orders"])


@pytest.mark.feature(178)
async def test_new_queues_are_found_without_a_restart() -> None:
    async with (
        FakeBroker({"Orders": 1}) as broker,
        ClientInstance(ClientConfig(name_server=broker.address, route_period_s=0.02)) as client,
    ):
        changed = asyncio.Event()
        await client.routes.find("Orders")
        client.routes.on_change.append(lambda _: changed.set())
        broker.topics["Orders"] = 2
        async with asyncio.timeout(WAIT_S):
            await changed.wait()
        assert len(await client.routes.subscribe_queues("Orders")) == 2


async def test_a_route_without_a_master_is_asked_for_again_by_who_wants_to_send() -> None:
    """Not with the next round of all routes, half a minute later."""

    def without_master(request: RemotingCommand) -> RemotingCommand:
        rows = [
            {
                "brokerName": "broker-a",
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 6,
                "topicSysFlag": 0,
            }
        ]
        brokers = [
            {
                "cluster": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerAddrs": {"1": "127.0.0.1:1"},
            }
        ]
        return ok(
            body=json.dumps(
                {"queueDatas": rows, "brokerDatas": brokers, "filterServerTable": {}}
            ).encode()
        )

    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        broker.on(ROUTE, without_master)
        with pytest.raises(NoRoute, match="no broker that may be written to"):
            await client.routes.publish_queues("Orders")
        assert len(broker.of(ROUTE)) == 1
        broker.on(ROUTE, None)
        assert len(await client.routes.publish_queues("Orders")) == 1


async def test_a_topic_that_vanishes_keeps_its_last_route() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        del broker.topics["Orders"]
        with pytest.raises(NoRoute):
            await client.routes.refresh("Orders")
        assert len(await client.routes.publish_queues("Orders")) == 1


async def test_a_broker_that_moved_is_found_although_a_vanished_topic_names_its_old_address() -> (
    None
):
    """The last answer counts, whichever topic was asked for first."""
    async with FakeBroker({"Orders": 1, "Old": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders")
        await client.routes.find("Old")
        del broker.topics["Old"], broker.topics["Orders"]
        async with FakeBroker({"Orders": 1}) as moved:
            broker.peers.append(moved)
            await client.routes.refresh("Orders")
            with pytest.raises(NoRoute):
                await client.routes.refresh("Old")
            assert client.routes.broker_address("broker-a") == moved.address


async def test_one_topic_with_an_odd_answer_does_not_keep_the_others_from_being_read_again() -> (
    None
):
    async with (
        FakeBroker({"Orders": 1, "Odd": 1}) as broker,
        client_of(broker, route_period_s=0.05) as client,
    ):
        await client.routes.find("Odd")
        await client.routes.find("Orders")
        broker.on(
            ROUTE, lambda request: ok(body=b"[]") if request.ext_fields["topic"] == "Odd" else None
        )
        broker.topics["Orders"] = 3
        await broker.until(
            lambda: (
                [request.ext_fields["topic"] for request in broker.of(ROUTE)].count("Orders") > 2
            )
        )
        assert len(await client.routes.publish_queues("Orders")) == 3


async def test_a_route_is_asked_for_again_once_it_is_old_or_in_doubt() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        await client.routes.find("Orders", max_age_s=60.0)
        await client.routes.find("Orders", max_age_s=60.0)
        assert len(broker.of(ROUTE)) == 1
        client.routes.doubt("Orders")
        await client.routes.find("Orders")
        await client.routes.find("Orders")
        assert len(broker.of(ROUTE)) == 2
        await client.routes.find("Orders", max_age_s=0.0)
        assert len(broker.of(ROUTE)) == 3


async def test_an_old_route_is_used_while_no_name_server_has_one() -> None:
    async with FakeBroker({"Orders": 1}) as broker, client_of(broker) as client:
        known = await client.routes.find("Orders")
        # what was never known cannot be in doubt
        client.routes.doubt("Prices")
        broker.on(ROUTE, error(ResponseCode.TOPIC_NOT_EXIST))
        assert await client.routes.find("Orders", max_age_s=0.0) is known
        with pytest.raises(NoRoute):
            await client.routes.find("Prices", max_age_s=0.0)
