"""Wrappers around listener calls."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.consumer.listener_call import Interceptor, ListenerCall, Outcome, intercepted
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.listener import DEAD_LETTER, LATER, AnyListener, later, suspend
from ogive.errors import InvalidOption
from ogive.model import MessageExt
from ogive.testing.fake_broker import FakeBroker
from tests.unit.client.consumer.test_orderly import in_order
from tests.unit.client.consumer.test_process_queue import QUEUE, message
from tests.unit.client.consumer.test_push_consumer import (
    QUICK,
    RETRY,
    SEND_BACK,
    Seen,
    consumer,
    progress,
    to,
)

ONE, TWO = message(1), message(2)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


class Notes:
    """An interceptor that notes when it is entered and left, and the calls."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.calls = name, log, list[ListenerCall]()

    @contextmanager
    def __call__(self, call: ListenerCall) -> Iterator[None]:
        self.calls.append(call)
        self.log.append(f"{self.name} in")
        try:
            yield
        finally:
            self.log.append(f"{self.name} out")


async def run(listener: AnyListener, argument: Any, *interceptors: Interceptor) -> Any:
    wrapped = intercepted(listener, interceptors)
    assert wrapped.is_async == listener.is_async
    return await wrapped.function(argument) if wrapped.is_async else wrapped.function(argument)


@pytest.mark.feature(18)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_first_is_the_outermost(kind: str) -> None:
    log: list[str] = []

    def bill(_: MessageExt) -> Any:
        log.append("listener")
        return LATER

    async def bill_async(one: MessageExt) -> Any:
        return bill(one)

    answer = await run(
        to(bill if kind == "plain" else bill_async), ONE, Notes("first", log), Notes("second", log)
    )
    assert log == ["first in", "second in", "listener", "second out", "first out"]
    assert answer is LATER


@pytest.mark.feature(76)
async def test_a_call_is_told_as_it_is() -> None:
    """The messages of this batch and no others; what one interceptor notes in it, the next one
    sees.
    """
    notes = Notes("", [])

    @contextmanager
    def marking(call: ListenerCall) -> Iterator[None]:
        call.properties["trace"] = "4711"
        yield

    await run(to(lambda messages: None, batch=8), [ONE, TWO], marking, notes)
    (call,) = notes.calls
    assert (call.group, call.topic, call.queue, call.messages) == (
        "billing",
        "Orders",
        QUEUE,
        (ONE, TWO),
    )
    assert (call.orderly, call.properties) == (False, {"trace": "4711"})
    assert "<lambda>" in call.listener


@pytest.mark.feature(78)
@pytest.mark.parametrize(
    ("answer", "settings", "outcome"),
    [
        (None, {}, Outcome.SUCCESS),
        (LATER, {}, Outcome.FAILED),
        (DEAD_LETTER, {}, Outcome.FAILED),
        (42, {}, Outcome.FAILED),
        (later(done=1), {}, Outcome.SUCCESS),
        (suspend(1.0), {}, Outcome.FAILED),
        (ValueError("boom"), {}, Outcome.RAISED),
        (None, {"consume_timeout_s": 1e-9}, Outcome.TIMED_OUT),
        (LATER, {"consume_timeout_s": 1e-9}, Outcome.TIMED_OUT),
    ],
)
async def test_an_interceptor_learns_how_the_call_ended(
    answer: Any, settings: dict[str, Any], outcome: Outcome
) -> None:
    notes = Notes("", [])

    def bill(_: MessageExt) -> Any:
        assert notes.calls[0].outcome is None
        if isinstance(answer, Exception):
            raise answer
        return answer

    with suppress(ValueError):
        await run(to(bill, **settings), ONE, notes)
    assert notes.calls[0].outcome is outcome


async def test_what_the_listener_raises_passes_through_them() -> None:
    log: list[str] = []

    def bill(_: MessageExt) -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await run(to(bill), ONE, Notes("first", log), Notes("second", log))
    assert log == ["first in", "second in", "second out", "first out"]
    assert await run(to(bill), ONE, lambda _: suppress(ValueError)) is None


def broken(_: ListenerCall) -> AbstractContextManager[None]:
    raise LookupError("no tracer")


@pytest.mark.feature(18)
@pytest.mark.parametrize("orderly", [False, True])
async def test_they_stand_around_every_call_of_a_consumer(
    broker: FakeBroker, orderly: bool
) -> None:
    """Retries too, with the topic that the application knows."""
    log: list[str] = []
    notes, seen = Notes("", log), Seen()
    broker.put("Orders", b"new")
    broker.put(RETRY, b"again", properties=b"RETRY_TOPIC\x01Orders\x02")
    listener = in_order(seen) if orderly else to(seen)
    async with consumer(broker, listener, config=replace(QUICK, interceptors=(notes,))):
        await seen.wait(2)
    assert {(call.topic, call.queue.topic, call.outcome) for call in notes.calls} == {
        ("Orders", "Orders", Outcome.SUCCESS),
        ("Orders", RETRY, Outcome.SUCCESS),
    }


async def test_one_that_fails_fails_the_call(broker: FakeBroker) -> None:
    """The listener is not called, and nothing is lost."""
    seen = Seen()
    broker.put("Orders", b"x")
    async with consumer(broker, to(seen), config=replace(QUICK, interceptors=(broken,))):
        await broker.received(SEND_BACK)
        await broker.until(lambda: progress(broker) == 1)
    assert seen.messages == []


def test_an_iterated_consumer_has_no_calls_to_stand_around() -> None:
    with pytest.raises(InvalidOption, match="listener calls"):
        PushConsumer("Orders", group="billing", config=replace(QUICK, interceptors=(broken,)))
