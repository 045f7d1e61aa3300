"""How a cluster is asked: once for many, within bounds, and not again whom nobody reaches."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.client import rpc
from ogive.client.config import ClientConfig
from ogive.console import queries as module
from ogive.console.queries import AVOID_S, KEEP_S, Queries, gather_answers, reason
from ogive.errors import (
    BrokerError,
    ConnectError,
    NoNameServer,
    NoRoute,
    OgiveError,
    RequestTimeout,
)
from ogive.testing.fake_broker import FakeBroker
from ogive.wire.codes import RequestCode


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def asking(fake: FakeBroker, clock: Clock) -> AsyncIterator[Queries]:
    asking = Queries(ClientConfig(name_server=fake.address), clock=clock)
    await asking.start()
    yield asking
    await asking.close()


async def test_pages_share_an_answer_for_a_moment(
    asking: Queries, fake: FakeBroker, clock: Clock
) -> None:
    async def topics() -> list[str]:
        return await asking.once("topics", lambda: asking.name_server(rpc.topic_list))

    assert await asyncio.gather(*(topics() for _ in range(20))) == [["Orders"]] * 20
    clock.now += KEEP_S / 2
    await topics()
    assert len(fake.of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == 1
    clock.now += KEEP_S
    await topics()
    assert len(fake.of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == 2


async def test_a_reader_who_goes_away_takes_the_answer_from_nobody(
    asking: Queries, fake: FakeBroker
) -> None:
    fake.hold(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    first, second = (
        asyncio.create_task(asking.once("t", lambda: asking.name_server(rpc.topic_list)))
        for _ in range(2)
    )
    await fake.until(lambda: fake.of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) != [])
    first.cancel()
    fake.release(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    assert await second == ["Orders"]


async def test_a_failure_is_kept_no_longer_than_an_answer(asking: Queries, clock: Clock) -> None:
    tries: list[int] = []

    async def fail() -> None:
        tries.append(1)
        raise NoRoute("none")

    for _ in range(2):
        with pytest.raises(NoRoute):
            await asking.once("x", fail)
    assert len(tries) == 1
    clock.now += KEEP_S
    with pytest.raises(NoRoute):
        await asking.once("x", fail)
    assert len(tries) == 2


async def test_who_does_not_answer_is_not_asked_again_at_once(
    asking: Queries, fake: FakeBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_S", 0.05)
    fake.mute = True
    for _ in range(3):
        with pytest.raises(RequestTimeout):
            await asking.server(fake.address, rpc.broker_runtime_info)
    assert len(fake.of(RequestCode.GET_BROKER_RUNTIME_INFO)) == 1
    clock.now += AVOID_S
    with pytest.raises(RequestTimeout):
        await asking.server(fake.address, rpc.broker_runtime_info)
    assert len(fake.of(RequestCode.GET_BROKER_RUNTIME_INFO)) == 2


async def test_the_silence_of_a_client_is_not_its_brokers(
    asking: Queries, fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_S", 0.05)
    fake.hold(RequestCode.GET_CONSUMER_RUNNING_INFO)
    with pytest.raises(RequestTimeout):
        await asking.server(fake.address, rpc.consumer_running_info, "billing", "c", judged=False)
    with pytest.raises(BrokerError, match="not faked"):
        await asking.server(fake.address, rpc.broker_runtime_info)
    fake.release(RequestCode.GET_CONSUMER_RUNNING_INFO)


async def test_no_more_than_a_bounded_number_is_on_its_way(
    asking: Queries, fake: FakeBroker
) -> None:
    fake.hold(RequestCode.GET_BROKER_RUNTIME_INFO)
    asked = [
        asyncio.create_task(asking.server(fake.address, rpc.broker_runtime_info))
        for _ in range(100)
    ]
    await fake.until(lambda: len(fake.of(RequestCode.GET_BROKER_RUNTIME_INFO)) >= module.AT_ONCE)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(fake.of(RequestCode.GET_BROKER_RUNTIME_INFO)) == module.AT_ONCE
    fake.release(RequestCode.GET_BROKER_RUNTIME_INFO)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, BrokerError) for answer in answers)


async def test_name_servers_that_are_away_are_asked_once(
    fake: FakeBroker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALL_S", 0.05)
    asking = Queries(ClientConfig(name_server=fake.address), clock=clock)
    await asking.start()
    fake.mute = True
    for _ in range(3):
        with pytest.raises(NoNameServer):
            await asking.name_server(rpc.topic_list)
    assert len(fake.of(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)) == 1
    await asking.close()


async def test_what_is_kept_is_bounded(asking: Queries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 10)

    async def answer() -> int:
        return 1

    for number in range(50):
        assert await asking.once(number, answer) == 1
    assert len(asking._kept) == 10


async def test_one_failure_takes_nothing_from_the_rest() -> None:
    async def ask(number: int) -> int:
        if number == 2:
            raise ConnectError("refused", "x")
        return number * 10

    told, troubles = await gather_answers([1, 2, 3], ask)
    assert (told, {key: str(error) for key, error in troubles.items()}) == (
        {1: 10, 3: 30},
        {2: "refused"},
    )


async def test_a_bug_is_no_trouble_of_the_cluster() -> None:
    async def ask(number: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await gather_answers([1], ask)


def test_a_reason_is_what_the_broker_said() -> None:
    assert reason(BrokerError(16, "no right", "10.0.0.1:1")) == "no right (code 16)"
    assert reason(BrokerError(16, "no right")) == "no right"
    assert reason(OgiveError("gone")) == "gone"
