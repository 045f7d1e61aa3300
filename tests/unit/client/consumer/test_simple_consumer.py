"""A simple consumer against a broker that does what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ogive import aio
from ogive.client.config import ClientConfig
from ogive.client.consumer import simple_consumer
from ogive.client.rpc import pop
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    IllegalStateError,
    InvalidOption,
    LeaseEnded,
    NoPermission,
    NotSupported,
    ResponseCode,
    SubscriptionInvalid,
)
from ogive.model import MessageExt
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, error
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode

POP = RequestCode.POP_MESSAGE
WAIT = RequestCode.NOTIFICATION
ACK = RequestCode.ACK_MESSAGE
BATCH = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2, "Refunds": 1}) as broker:
        yield broker


def consumer(broker: FakeBroker, *topics: str, **settings: Any) -> aio.SimpleConsumer:
    given = {"group": "billing", "start": "earliest", "name_server": broker.address, **settings}
    return aio.SimpleConsumer(*(topics or ("Orders",)), **given)


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return sorted(message.body for message in messages)


# --- receive and acknowledge ----------------------------------------------------------------------


async def test_a_message_is_received_once_and_after_its_acknowledgement_never_again(
    broker: FakeBroker,
) -> None:
    for i in range(5):
        broker.put("Orders", b"%d" % i, queue_id=i % 2)
    async with consumer(broker) as running, consumer(broker) as other:
        messages = await running.receive(invisible_s=60)
        assert bodies(messages) == [b"0", b"1", b"2", b"3", b"4"]
        assert await other.receive(wait_s=0) == []
        await running.ack(*messages)
        assert not broker.pops.leases
        assert len(broker.of(BATCH)) == 1
        assert await running.receive(wait_s=0.05) == []


async def test_at_most_what_was_asked_for_comes(broker: FakeBroker) -> None:
    for i in range(50):
        broker.put("Orders", b"%02d" % i)
    async with consumer(broker) as running:
        assert [len(await running.receive(most)) for most in (1, 3, 100, 100)] == [1, 3, 32, 14]


async def test_a_receive_ends_with_the_first_message(broker: FakeBroker) -> None:
    async with consumer(broker) as running:
        receiving = asyncio.create_task(running.receive())
        await broker.received(WAIT)
        broker.put("Orders", b"now")
        async with asyncio.timeout(WAIT_S):
            assert bodies(await receiving) == [b"now"]


async def test_all_topics_are_waited_for_together(broker: FakeBroker) -> None:
    async with consumer(broker, "Orders", "Refunds") as running:
        for topic in "Refunds", "Orders", "Refunds":
            receiving = asyncio.create_task(running.receive())
            await broker.received(WAIT, len(broker.of(WAIT)) + 2)
            broker.put(topic, topic.encode())
            async with asyncio.timeout(WAIT_S):
                (message,) = await receiving
            assert message.topic == topic
            await running.ack(message)


async def test_topics_with_a_backlog_take_turns(broker: FakeBroker) -> None:
    for i in range(20):
        broker.put("Orders", b"%d" % i)
        broker.put("Refunds", b"%d" % i)
    async with consumer(broker, "Orders", "Refunds") as running:
        topics = [(await running.receive(1))[0].topic for _ in range(6)]
    assert {topics.count(topic) for topic in ("Orders", "Refunds")} == {3}


async def test_a_message_comes_again_when_its_lease_ends(broker: FakeBroker) -> None:
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        (first,) = await running.receive(invisible_s=0.05)
        (again,) = await running.receive()
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert (again.topic, again.body) == ("Orders", b"paid")
        await running.ack(again)
        assert not broker.pops.leases


async def test_an_acknowledgement_after_the_end_of_the_lease_is_an_error(
    broker: FakeBroker,
) -> None:
    """The broker would call it a success. The others of the call are acknowledged."""
    for i in range(3):
        broker.put("Orders", b"%d" % i)
    async with consumer(broker) as running:
        (late,) = await running.receive(1, invisible_s=0.01)
        messages = await running.receive(2, invisible_s=60)
        await asyncio.sleep(0.02)
        with pytest.raises(
            LeaseEnded, match=r"Orders/broker-a/0/0 .* its lease has ended"
        ) as raised:
            await running.ack(late, *messages)
        assert raised.value.messages == (late,)
        assert not broker.pops.leases or {key[3] for key in broker.pops.leases} == {0}
        with pytest.raises(LeaseEnded, match="acknowledged before"):
            await running.ack(messages[0])
        with pytest.raises(LeaseEnded, match="cannot be kept"):
            await running.change_invisible(messages[0], 10)
        assert not broker.of(CHANGE)


async def test_a_lease_can_be_made_longer_and_shorter(broker: FakeBroker) -> None:
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        (message,) = await running.receive(invisible_s=1.0)
        for _ in range(3):
            await running.change_invisible(message, 60)
        await asyncio.sleep(1.05)
        assert await running.receive(wait_s=0) == []
        await running.change_invisible(message, 0)
        (again,) = await running.receive()
        assert again.reconsume_times == 1
        await running.ack(again)
        assert not broker.pops.leases


async def test_an_acknowledgement_waits_for_the_change_in_flight(broker: FakeBroker) -> None:
    """With the old handle it would finish nothing."""
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        (message,) = await running.receive(invisible_s=30)
        broker.hold(CHANGE)
        changing = asyncio.create_task(running.change_invisible(message, 60))
        await broker.received(CHANGE)
        acking = asyncio.create_task(running.ack(message))
        await asyncio.sleep(0.02)
        assert not broker.of(ACK)
        broker.release(CHANGE)
        await changing
        await acking
        assert not broker.pops.leases


async def test_a_failed_acknowledgement_can_be_repeated(broker: FakeBroker) -> None:
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        messages = await running.receive()
        broker.script(ACK, error(ResponseCode.SYSTEM_ERROR))
        with pytest.raises(BrokerInternalError):
            await running.ack(*messages)
        await running.ack(*messages)
        assert not broker.pops.leases


async def test_brokers_before_5_1_2_get_an_acknowledgement_for_each_message(
    broker: FakeBroker,
) -> None:
    for i in range(6):
        broker.put("Orders", b"%d" % i)
    broker.on(BATCH, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    async with consumer(broker) as running:
        await running.ack(*await running.receive(3))
        await running.ack(*await running.receive(3))
    assert (len(broker.of(BATCH)), len(broker.of(ACK))) == (1, 6)
    assert not broker.pops.leases


async def test_what_the_filter_does_not_want_is_acknowledged(broker: FakeBroker) -> None:
    """Brokers filter by the hash of the tag."""
    broker.put("Orders", b"paid", properties=b"TAGS\x01paid\x02")
    broker.put("Orders", b"open", properties=b"TAGS\x01open\x02")
    async with consumer(broker, tags="paid") as running:
        (message,) = await running.receive()
        assert message.body == b"paid"
        assert broker.of(POP)[0].ext_fields["exp"] == "paid"
        await running.ack(message)
        assert not broker.pops.leases


async def test_names_in_a_namespace_are_the_applications(broker: FakeBroker) -> None:
    broker.topics["shop%Orders"] = 1
    broker.put("shop%Orders", b"paid")
    config = ClientConfig(name_server=broker.address, namespace="shop")
    settings: Any = {"group": "billing", "start": "earliest", "client": config}
    async with aio.SimpleConsumer("Orders", **settings) as running:
        (message,) = await running.receive()
        assert (message.topic, message.queue.topic, running.topics) == (
            "Orders",
            "Orders",
            ["Orders"],
        )
        await running.ack(message)
    assert broker.of(POP)[0].ext_fields["consumerGroup"] == "shop%billing"
    assert not broker.pops.leases


# --- nothing is lost ------------------------------------------------------------------------------


async def test_a_receive_that_is_cancelled_keeps_its_messages_for_the_next(
    broker: FakeBroker,
) -> None:
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        broker.hold(POP)
        receiving = asyncio.create_task(running.receive())
        await broker.received(POP)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        broker.release(POP)
        async with asyncio.timeout(WAIT_S):
            assert bodies(await running.receive()) == [b"paid"]
        assert len(broker.pops.leases) == 1


async def test_what_nobody_received_is_given_back_at_the_close(broker: FakeBroker) -> None:
    """It has not been tried, and the broker is told that."""
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        broker.hold(POP)
        receiving = asyncio.create_task(running.receive())
        await broker.received(POP)
        receiving.cancel()
        closing = asyncio.create_task(running.close())
        await asyncio.sleep(0.01)
        broker.release(POP)
        await closing
    (change,) = broker.of(CHANGE)
    assert (change.ext_fields["invisibleTime"], change.ext_fields["suspend"]) == ("0", "true")
    async with consumer(broker) as other:
        (message,) = await other.receive()
        assert message.reconsume_times == 0


async def test_messages_that_an_interrupt_kept_from_the_caller_come_again(
    broker: FakeBroker,
) -> None:
    broker.put("Orders", b"paid")
    async with consumer(broker) as running:
        messages = await running.receive()
        running.take_back(messages)
        (message,) = await running.receive()
        assert message == messages[0]
        await running.ack(message)
        assert not broker.pops.leases


async def test_a_close_ends_a_receive_that_waits(broker: FakeBroker) -> None:
    running = consumer(broker)
    await running.start()
    receiving = asyncio.create_task(running.receive())
    await broker.received(WAIT)
    async with asyncio.timeout(WAIT_S):
        await running.close()
        assert await receiving == []
    with pytest.raises(IllegalStateError, match="closed"):
        await running.receive()


async def test_a_pop_without_an_answer_does_not_hold_up_the_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_consumer, "LEAVE_TIMEOUT_S", 0.05, raising=False)
    broker.on(POP, SILENT)
    running = consumer(broker)
    await running.start()
    receiving = asyncio.create_task(running.receive())
    await broker.received(POP)
    receiving.cancel()
    async with asyncio.timeout(WAIT_S):
        await running.close()


# --- brokers that fail ----------------------------------------------------------------------------


async def test_a_broker_that_does_not_pop_is_an_error_that_says_so(broker: FakeBroker) -> None:
    broker.on(POP, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "pop is not supported"))
    async with consumer(broker) as running:
        with pytest.raises(NotSupported, match=r"pop is not supported. This broker does not serve"):
            await running.receive()


async def test_a_refusal_does_not_wait_for_the_end(broker: FakeBroker) -> None:
    broker.on(POP, error(ResponseCode.NO_PERMISSION))
    async with consumer(broker) as running:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(NoPermission):
                await running.receive(wait_s=60)


async def test_a_broker_that_is_away_does_not_hold_up_the_others(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_consumer, "RETRY_PAUSE_S", 0.01)
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        async with consumer(broker) as running:
            await running.receive(wait_s=0)
            await other.stop()
            receiving = asyncio.create_task(running.receive())
            await broker.received(WAIT)
            broker.put("Orders", b"paid")
            async with asyncio.timeout(WAIT_S):
                assert bodies(await receiving) == [b"paid"]
            # it is back
            await other.start()
            other.put("Orders", b"late")
            async with asyncio.timeout(WAIT_S):
                assert bodies(await running.receive()) == [b"late"]


async def test_a_broker_that_does_not_answer_is_asked_last(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as others have messages, nobody waits for it."""
    monkeypatch.setattr(pop, "POLL_MARGIN_S", 0.1)
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        other.on(POP, SILENT)
        for i in range(10):
            broker.put("Orders", b"%d" % i)
        async with consumer(broker) as running:
            for _ in range(10):
                assert len(await running.receive(1)) == 1
    assert len(other.of(POP)) <= 1


async def test_a_broker_that_lets_nobody_wait_does_not_hold_up_the_others(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, and what it has comes, too."""
    monkeypatch.setattr(simple_consumer, "RETRY_PAUSE_S", 0.01)
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        other.on(WAIT, error(ResponseCode.SYSTEM_BUSY))
        async with consumer(broker) as running:
            receiving = asyncio.create_task(running.receive())
            await other.received(WAIT, 3)
            broker.put("Orders", b"paid")
            async with asyncio.timeout(WAIT_S):
                assert bodies(await receiving) == [b"paid"]
            broker.on(WAIT, error(ResponseCode.SYSTEM_BUSY))
            with pytest.raises(BrokerBusy):
                await running.receive()


async def test_a_lease_begins_when_it_is_asked_for(broker: FakeBroker) -> None:
    """Its answer may come late: then others have the message before."""
    broker.put("Orders", b"paid")
    broker.hold(POP)
    async with consumer(broker) as running:
        receiving = asyncio.create_task(running.receive(invisible_s=0.1))
        await broker.received(POP)
        await asyncio.sleep(0.15)
        broker.release(POP)
        (message,) = await receiving
        with pytest.raises(LeaseEnded):
            await running.ack(message)


async def test_a_longer_lease_begins_when_it_is_asked_for(broker: FakeBroker) -> None:
    broker.put("Orders", b"paid")
    broker.hold(CHANGE)
    async with consumer(broker) as running:
        (message,) = await running.receive(invisible_s=60)
        changing = asyncio.create_task(running.change_invisible(message, 0.1))
        await broker.received(CHANGE)
        await asyncio.sleep(0.15)
        broker.release(CHANGE)
        await changing
        with pytest.raises(LeaseEnded):
            await running.ack(message)


async def test_a_topic_that_does_not_exist_yet_is_waited_for(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simple_consumer, "RETRY_PAUSE_S", 0.01)
    async with consumer(broker, "Later") as running:
        receiving = asyncio.create_task(running.receive())
        await asyncio.sleep(0.05)
        broker.topics["Later"] = 1
        broker.put("Later", b"paid")
        async with asyncio.timeout(WAIT_S):
            assert bodies(await receiving) == [b"paid"]


async def test_an_answer_that_does_not_come_is_no_answer(broker: FakeBroker) -> None:
    broker.put("Orders", b"paid")
    broker.script(POP, SILENT)
    async with consumer(broker) as running:
        receiving = asyncio.create_task(running.receive())
        await broker.received(POP)
        receiving.cancel()
        assert bodies(await running.receive()) == [b"paid"]
        # its answer would come 10 s later
        for task in running._popping:
            task.cancel()


# --- subscriptions --------------------------------------------------------------------------------


def subscribed(broker: FakeBroker) -> dict[str, str]:
    data = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[-1].body)
    (group,) = data.consumers
    assert group.consume_type == "CONSUME_POP"
    return {one.topic: one.expression for one in group.subscriptions}


async def test_topics_come_and_go(broker: FakeBroker) -> None:
    broker.put("Refunds", b"back")
    async with consumer(broker) as running:
        assert subscribed(broker) == {"Orders": "*"}
        await running.subscribe("Refunds", tags="a || b")
        assert running.topics == ["Orders", "Refunds"]
        assert subscribed(broker) == {"Orders": "*", "Refunds": "a || b"}
        await running.subscribe("Refunds")
        assert bodies(await running.receive()) == [b"back"]
        await running.unsubscribe("Refunds")
        assert subscribed(broker) == {"Orders": "*"}
        with pytest.raises(InvalidOption, match="'Refunds' is not subscribed to: Orders"):
            await running.unsubscribe("Refunds")
        broker.put("Refunds", b"more")
        assert await running.receive(wait_s=0.05) == []


async def test_a_filter_that_the_broker_refuses_changes_nothing(broker: FakeBroker) -> None:
    async with consumer(broker) as running:
        await running.receive(wait_s=0)
        broker.on(RequestCode.CHECK_CLIENT_CONFIG, error(ResponseCode.SUBSCRIPTION_PARSE_FAILED))
        with pytest.raises(SubscriptionInvalid):
            await running.subscribe("Refunds", sql="a > 1")
        assert running.topics == ["Orders"]


async def test_without_topics_there_is_nothing_to_receive(broker: FakeBroker) -> None:
    settings: Any = {"group": "billing", "name_server": broker.address}
    async with aio.SimpleConsumer(**settings) as running:
        with pytest.raises(IllegalStateError, match=r"subscribe\('Orders'\)"):
            await running.receive()


# --- arguments and limits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_messages": 0}, "max_messages is 0"),
        ({"invisible_s": 0}, "invisible_s is 0: must be between 0.001 and 43200 seconds"),
        ({"invisible_s": 50_000}, "invisible_s is 50000"),
        ({"invisible_s": float("nan")}, "invisible_s is nan"),
        ({"wait_s": -1}, "wait_s is -1"),
    ],
)
async def test_arguments_of_a_receive(
    broker: FakeBroker, arguments: dict[str, Any], text: str
) -> None:
    async with consumer(broker) as running:
        with pytest.raises(InvalidOption, match=text):
            await running.receive(**arguments)
        assert not broker.of(POP)


async def test_arguments_of_wrong_types(broker: FakeBroker) -> None:
    wrong: Any = "1"
    async with consumer(broker) as running:
        for call in (
            running.receive(wrong),
            running.receive(invisible_s=wrong),
            running.ack(wrong),
            running.change_invisible(wrong, 1),
        ):
            with pytest.raises(TypeError, match="must be"):
                await call
    with pytest.raises(InvalidOption, match='begins at "latest" or "earliest"'):
        consumer(broker, start="soon")


async def test_leases_have_a_limit(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have ended do not count."""
    monkeypatch.setattr(simple_consumer, "MAX_LEASES", 3)
    for i in range(4):
        broker.put("Orders", b"%d" % i)
    async with consumer(broker) as running:
        monkeypatch.setattr(running._leases, "_prune_at", 0)
        await running.receive(1, invisible_s=1.0)
        messages = await running.receive(2, invisible_s=60)
        with pytest.raises(IllegalStateError, match="3 received messages are not acknowledged"):
            await running.receive(1)
        await asyncio.sleep(1.05)
        assert len(await running.receive(1)) == 1
        await running.ack(*messages)


async def test_an_unused_consumer_is_neither_started_nor_closed(broker: FakeBroker) -> None:
    running = consumer(broker)
    await running.close()
    with pytest.raises(IllegalStateError, match="not started"):
        await running.receive()
    async with running:
        with pytest.raises(IllegalStateError, match="started before"):
            await running.start()
    assert broker.of(RequestCode.UNREGISTER_CLIENT)
