"""A broker that refuses a heartbeat: the call that caused it raises, and what runs goes on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import ogive
from ogive.errors import BrokerError, MessageIllegal, ResponseCode
from ogive.testing.fake_broker import FakeBroker, Script, error
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.client.consumer.polling import member
from tests.unit.client.consumer.test_push_consumer import Seen, consumer, to
from tests.unit.client.serving import on_a_thread

HEART_BEAT = RequestCode.HEART_BEAT
REMARK = "group billing subscribes to 1,001 topics"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(
        {"Orders": 1, "Refunds": 1, "%RETRY%billing": 1, "%RETRY%audit": 1}
    ) as broker:
        yield broker


def topics(request: RemotingCommand) -> set[str]:
    data = HeartbeatData.decode(request.body)
    return {subscription.topic for group in data.consumers for subscription in group.subscriptions}


def refusing(topic: str, code: int = ResponseCode.INVALID_PARAMETER) -> Script:
    """Refuse heartbeats that name *topic*."""
    return lambda request: error(code, REMARK) if topic in topics(request) else None


async def refused(work: Any) -> None:
    with pytest.raises(MessageIllegal, match="subscribes to 1,001 topics"):
        await work


@pytest.mark.parametrize("group", ["billing", "audit"])
async def test_a_refused_subscribe_raises_and_what_runs_goes_on(
    broker: FakeBroker, group: str
) -> None:
    """In its own group or a new one.

    The next heartbeat leaves the topic out, and the listener may be added later.
    """
    orders, refunds = Seen(), Seen()
    late = to(refunds, topic="Refunds", group=group)
    async with consumer(broker, to(orders)) as running:
        broker.on(HEART_BEAT, refusing("Refunds"))
        await refused(running.subscribe(late))
        assert set(running.assignment) == {"billing"}
        if group == "billing":
            assert topics(broker.of(HEART_BEAT)[-1]) == {"Orders", "%RETRY%billing"}
        broker.put("Orders", b"one")
        broker.put("Refunds", b"two")
        assert await orders.wait(1) == [b"one"]
        broker.on(HEART_BEAT, None)
        await running.subscribe(late)
        assert await refunds.wait(1) == [b"two"]
    assert refunds.bodies == [b"two"]


async def test_a_refused_start_raises_and_leaves_no_member(broker: FakeBroker) -> None:
    broker.on(HEART_BEAT, refusing("Refunds"))
    push = consumer(broker, to(print), to(print, topic="Refunds", group="audit"))
    pull = member(broker, "Orders", "Refunds")
    await refused(push.start())
    await refused(pull.start())
    assert not any(broker.members.values())


async def test_one_broker_of_two_that_refuses_is_enough(broker: FakeBroker) -> None:
    """The group would end there, and its queues be read by nobody."""
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        other.on(HEART_BEAT, refusing("Orders"))
        await refused(consumer(broker, to(print)).start())
        assert not any(broker.members.values())


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.NO_PERMISSION,
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        ResponseCode.MESSAGE_ILLEGAL,
    ],
)
async def test_refusals_of_other_kinds_raise(broker: FakeBroker, code: int) -> None:
    broker.on(HEART_BEAT, refusing("Orders", code))
    with pytest.raises(BrokerError) as caught:
        await consumer(broker, to(print)).start()
    assert caught.value.code == code


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE],
)
async def test_a_broker_that_is_busy_or_starting_holds_no_start_back(
    broker: FakeBroker, code: int
) -> None:
    orders = Seen()
    broker.script(HEART_BEAT, error(code))
    broker.put("Orders", b"x")
    async with consumer(broker, to(orders)), member(broker) as pulling:
        await orders.wait(1)
        assert await pulling.poll()


async def test_a_broker_that_is_away_holds_no_start_back(broker: FakeBroker) -> None:
    orders = Seen()
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        await other.stop()
        broker.put("Orders", b"x")
        async with consumer(broker, to(orders)):
            await orders.wait(1)


def test_blocking_calls_raise_as_well() -> None:
    with on_a_thread() as broker:
        broker.topics["Refunds"] = 1
        broker.on(HEART_BEAT, refusing("Refunds"))
        late = to(print, topic="Refunds")
        with ogive.PushConsumer(to(print), name_server=broker.address) as running:
            with pytest.raises(ogive.errors.MessageIllegal, match="1,001 topics"):
                running.subscribe(late)
            assert set(running.assignment) == {"billing"}
        for refused_one in (
            ogive.PushConsumer(late, name_server=broker.address),
            ogive.PullConsumer("Refunds", group="replay", name_server=broker.address),
        ):
            with pytest.raises(ogive.errors.MessageIllegal, match="1,001 topics"), refused_one:
                pass
