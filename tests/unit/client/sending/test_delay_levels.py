"""Delay levels that the brokers of a topic do not have: refused by the producer, which asks only
where few brokers have the level.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.errors import InvalidOption, NoRoute, ResponseCode
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker, Script, error, ok
from ogive.wire.codes import RequestCode
from tests.unit.client.serving import on_a_thread

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
ASKED = RequestCode.GET_BROKER_CONFIG
USUAL = ok(body=b"messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h\n")
MANY = ok(body=b"messageDelayLevel=" + b" ".join([b"1s"] * 30))
LEVEL_30 = ogive.Message("Orders", b"x", delay_level=30)
REFUSED = (
    "delay_level is 30: broker-a has 18 delay levels, the last is 7200 s; delay_s= and "
    "deliver_at= take any time"
)

Send = Callable[[aio.Producer], Awaitable[Any]]


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        broker.on(ASKED, USUAL)
        yield broker


@pytest.mark.parametrize(
    "send",
    [
        lambda producer: producer.send("Orders", b"x", delay_level=30),
        lambda producer: producer.submit("Orders", b"x", delay_level=30),
        lambda producer: producer.send(
            "Orders", b"x", delay_level=30, properties={"a": "b"}, timeout_s=10.0
        ),
        lambda producer: producer.send(LEVEL_30),
        lambda producer: producer.submit(LEVEL_30),
        lambda producer: producer.send_oneway(LEVEL_30),
        lambda producer: producer.request(LEVEL_30),
    ],
)
async def test_a_level_that_the_broker_does_not_have_is_refused(
    broker: FakeBroker, send: Send
) -> None:
    async with aio.Producer(broker.address) as producer:
        with pytest.raises(InvalidOption) as caught:
            await send(producer)
        assert producer.in_flight == 0
    assert str(caught.value) == REFUSED
    assert not any(broker.bodies("Orders").values())


def test_blocking_sends_refuse_it_as_well() -> None:
    with on_a_thread() as broker:
        broker.on(ASKED, USUAL)
        with ogive.Producer(broker.address) as producer:
            for _ in range(3):
                producer.send("Orders", b"before", delay_level=18)
            for call in (
                lambda: producer.send(LEVEL_30),
                lambda: producer.submit("Orders", b"x", delay_level=30),
            ):
                with pytest.raises(InvalidOption, match="broker-a has 18 delay levels"):
                    call()
        assert broker.bodies("Orders")[0] == [b"before"] * 3


@pytest.mark.parametrize("way", ["send", "submit"])
async def test_a_level_that_cannot_be_checked_for_want_of_a_route_is_not_sent(
    broker: FakeBroker, way: str
) -> None:
    """The topic may get its route after the check and before the send."""
    # the look-ups of the topic and of the template
    broker.script(ROUTE, *[error(ResponseCode.TOPIC_NOT_EXIST)] * 2)
    async with aio.Producer(broker.address) as producer:
        with pytest.raises(NoRoute):
            await getattr(producer, way)(LEVEL_30)
        assert producer.in_flight == 0
    assert not any(broker.bodies("Orders").values())


@pytest.mark.parametrize(("levels", "sent"), [(USUAL, []), (MANY, [b"x"])])
async def test_the_check_waits_for_a_name_server_like_the_send(
    broker: FakeBroker, levels: Script, sent: list[bytes]
) -> None:
    broker.on(ASKED, levels)
    broker.on(ROUTE, SILENT)
    client = ClientConfig(name_server=broker.address, request_timeout_s=0.1)
    async with aio.Producer(
        client=client, config=ProducerConfig(send_timeout_s=WAIT_S)
    ) as producer:
        sending = asyncio.create_task(producer.send(LEVEL_30))
        await broker.received(ROUTE, 2)
        broker.on(ROUTE, None)
        if sent:
            await sending
        else:
            with pytest.raises(InvalidOption):
                await sending
    assert broker.bodies("Orders").get(0, []) == sent


async def test_usual_levels_cost_no_question_and_others_one(broker: FakeBroker) -> None:
    broker.on(ASKED, MANY)
    async with aio.Producer(broker.address) as producer:
        for level in (0, 1, 18):
            await producer.send("Orders", b"x", delay_level=level)
        assert not broker.of(ASKED)
        for level in (19, 30, 25):
            await producer.send("Orders", b"x", delay_level=level)
        assert len(broker.of(ASKED)) == 1


async def test_a_broker_that_has_got_more_levels_is_asked_again(broker: FakeBroker) -> None:
    async with aio.Producer(broker.address) as producer:
        with pytest.raises(InvalidOption):
            await producer.send(LEVEL_30)
        broker.on(ASKED, MANY)
        await producer.send(LEVEL_30)


@pytest.mark.parametrize(
    "answer",
    [
        error(ResponseCode.NO_PERMISSION),
        error(ResponseCode.SYSTEM_ERROR),
        ok(body=b"brokerName=broker-a\n"),
        ok(body=b"messageDelayLevel=x\n"),
    ],
    ids=["secret", "failing", "without", "bad"],
)
async def test_a_broker_that_does_not_tell_gets_the_message(
    broker: FakeBroker, answer: Script
) -> None:
    """It takes its last level, as Apache's does."""
    broker.on(ASKED, answer)
    async with aio.Producer(broker.address) as producer:
        for _ in range(2):
            await producer.send(LEVEL_30)
    assert len(broker.of(ASKED)) == 1


async def test_the_broker_with_the_fewest_levels_decides(broker: FakeBroker) -> None:
    """Any of them may get the message."""
    broker.on(ASKED, MANY)
    async with (
        FakeBroker({"Orders": 1}, name="broker-b") as other,
        aio.Producer(broker.address) as producer,
    ):
        broker.peers.append(other)
        other.on(ASKED, USUAL)
        with pytest.raises(InvalidOption, match="broker-b has 18 delay levels"):
            await producer.send(LEVEL_30)
