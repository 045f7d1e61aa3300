"""Objects of ogive.aio on another event loop than their own: an error, and no wait for ever."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from ogive import aio
from ogive.errors import IllegalStateError
from ogive.testing.fake_broker import FakeBroker
from tests.unit.client.serving import on_a_thread

Use = Callable[[Any], Awaitable[object]]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as fake:
        yield fake


def producer(broker: FakeBroker) -> aio.Producer:
    return aio.Producer(broker.address)


def puller(broker: FakeBroker) -> aio.PullConsumer:
    return aio.PullConsumer("Orders", group="billing", name_server=broker.address)


def popper(broker: FakeBroker) -> aio.SimpleConsumer:
    return aio.SimpleConsumer("Orders", group="billing", name_server=broker.address)


def iterated(broker: FakeBroker) -> aio.PushConsumer:
    return aio.PushConsumer("Orders", group="billing", name_server=broker.address)


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (producer, lambda made: made.send("Orders", b"2")),
        (producer, lambda made: made.submit("Orders", b"2")),
        (producer, lambda made: made.send_oneway("Orders", b"2")),
        (producer, lambda made: made.send_batch("Orders", [b"2"])),
        (producer, lambda made: made.request("Orders", b"2")),
        (producer, lambda made: made.flush()),
        (puller, lambda made: made.poll(0.1)),
        (puller, lambda made: made.commit()),
        (popper, lambda made: made.receive()),
        (iterated, anext),
        (iterated, lambda made: made.wait()),
    ],
    ids=[
        "send",
        "submit",
        "send_oneway",
        "send_batch",
        "request",
        "flush",
        "poll",
        "commit",
        "receive",
        "iteration",
        "wait",
    ],
)
def test_an_object_is_used_on_the_loop_that_started_it(
    broker: FakeBroker, make: Callable[[FakeBroker], Any], use: Use
) -> None:
    """As by a test or a web application that makes it in one loop, and uses it in the next."""

    async def elsewhere(made: Any) -> None:
        with pytest.raises(IllegalStateError, match="belong to one loop"):
            await asyncio.wait_for(use(made), 30)

    async def main() -> None:
        async with make(broker) as made:
            if isinstance(made, aio.Producer):
                # a connection and a route make nothing wait for the other loop
                await made.send("Orders", b"1")
            await asyncio.to_thread(asyncio.run, elsewhere(made))

    asyncio.run(main())
