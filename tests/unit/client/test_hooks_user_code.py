"""Each call of a listener, and of a check, runs in a copy of the context of its own."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from ogive import aio
from ogive.client.config import ProducerConfig
from ogive.client.listener import LATER
from ogive.model import MessageExt
from ogive.testing.fake_broker import FakeBroker, ok
from tests.unit.client.consumer.test_push_consumer import Seen, consumer, progress, to
from tests.unit.client.consumer.test_requests import consume
from tests.unit.client.test_transaction import END, ask, met

bound: ContextVar[bytes | None] = ContextVar("bound", default=None)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_what_a_listener_binds_is_gone_with_its_call(kind: str, orderly: bool) -> None:
    before: list[bytes | None] = []
    within: list[bool] = []

    def work(message: MessageExt) -> None:
        before.append(bound.get())
        bound.set(message.body)

    async def bill(message: MessageExt) -> None:
        work(message)
        await asyncio.sleep(0)
        within.append(bound.get() == message.body)
        within.append(await asyncio.create_task(asyncio.sleep(0, bound.get())) == message.body)

    async with FakeBroker({"Orders": 1}) as broker:
        for i in range(20):
            broker.put("Orders", b"%d" % i)
        async with consumer(
            broker, to(bill if kind == "async" else work, orderly=orderly, threads=1)
        ):
            await broker.until(lambda: progress(broker) == 20)
    assert before == [None] * 20
    assert all(within)


async def test_an_async_listener_that_raises_or_swallows_a_timeout_is_as_before() -> None:
    seen = Seen()

    async def bill(message: MessageExt) -> Any:
        seen(message)
        if message.body == b"raise":
            raise ValueError("no")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        return LATER if message.body == b"later" else None

    async with FakeBroker({"Orders": 1}) as broker:
        for body in (b"raise", b"later", b"good"):
            broker.put("Orders", body)
        async with consumer(broker, to(bill, threads=1)):
            await broker.until(lambda: progress(broker) == 3)
    assert seen.bodies == [b"raise", b"later", b"good"]


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_what_a_transaction_check_binds_is_gone_with_its_call(kind: str) -> None:
    before: list[bytes | None] = []

    def answer(message: MessageExt) -> bool:
        before.append(bound.get())
        bound.set(message.body)
        return True

    async def answer_async(message: MessageExt) -> bool:
        return answer(message)

    check: Any = answer_async if kind == "async" else answer
    async with FakeBroker({"Orders": 1}) as broker:
        broker.on(END, ok())
        async with aio.Producer(
            broker.address, group="shop", check=check, config=ProducerConfig(check_threads=1)
        ):
            await met(broker, "shop")
            for place in range(5):
                ask(broker, place=place)
            await broker.received(END, 5)
    assert before == [None] * 5


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_what_a_listener_binds_is_gone_when_a_tool_calls_it(kind: str) -> None:
    before: list[bytes | None] = []

    def bill(message: MessageExt) -> None:
        before.append(bound.get())
        bound.set(message.body)

    async def bill_async(message: MessageExt) -> None:
        bill(message)

    async with (
        FakeBroker({"Orders": 1}) as broker,
        consumer(broker, to(bill_async if kind == "async" else bill, threads=1)) as running,
    ):
        for _ in range(5):
            assert (await consume(broker, running))["consumeResult"] == "CR_SUCCESS"
    assert before == [None] * 5
