"""Iterating over a push consumer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ogive.client.consumer.message_iterator import IncomingMessage
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.errors import IllegalStateError
from ogive.model import MessageExt
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from tests.unit.client.consumer.test_push_consumer import (
    QUICK,
    RETRY,
    SEND_BACK,
    Seen,
    consumer,
    eventually,
    progress,
    to,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        for i in range(10):
            broker.put("Orders", b"%d" % i, properties=b"KEYS\x01k%d\x02" % i)
        yield broker


def iterate(broker: FakeBroker, *, consume_timeout_s: float = 900.0) -> PushConsumer:
    return consumer(
        broker, "Orders", group="billing", start="earliest", consume_timeout_s=consume_timeout_s
    )


async def take(running: PushConsumer, count: int) -> list[IncomingMessage]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(running) for _ in range(count)]


@pytest.mark.feature(180)
async def test_a_message_is_finished_at_the_end_of_its_block(broker: FakeBroker) -> None:
    bodies = []
    async with iterate(broker) as running:
        async for message in running:
            async with message.process():
                bodies.append(message.body)
                assert message.keys == (f"k{len(bodies) - 1}",)
            if len(bodies) == 10:
                break
    assert bodies == [b"%d" % i for i in range(10)]
    assert progress(broker) == 10


async def test_an_exception_in_the_block_sends_the_message_back_and_ends_there(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with iterate(broker) as running:
        for message in await take(running, 10):
            async with message.process():
                if message.body == b"4":
                    raise ValueError("not this one")
        request = (await broker.received(SEND_BACK))[0]
        await broker.until(lambda: progress(broker) == 10)
    assert request.ext_fields["offset"] == str(broker.stored["Orders", 0][4].commitlog_offset)
    assert "processing Orders/broker-a/0/4 failed" in caplog.text


async def test_progress_stays_at_the_lowest_message_without_a_verdict(broker: FakeBroker) -> None:
    async with iterate(broker) as running:
        messages = await take(running, 10)
        for message in messages[3:]:
            message.done()
        messages[0].done()
        await broker.until(lambda: progress(broker) == 1)
        messages[1].later(5)
        messages[2].dead_letter()
        # the first verdict counts
        messages[1].done()
        levels = {r.ext_fields["delayLevel"] for r in await broker.received(SEND_BACK, 2)}
        await broker.until(lambda: progress(broker) == 10)
    assert levels == {"5", "-1"}


async def test_several_tasks_share_the_messages(broker: FakeBroker) -> None:
    bodies: list[bytes] = []

    async def work(running: PushConsumer) -> None:
        async for message in running:
            async with message.process():
                bodies.append(message.body)
                await asyncio.sleep(0)

    async with iterate(broker) as running:
        workers = [asyncio.create_task(work(running)) for _ in range(3)]
        await eventually(lambda: len(bodies) == 10)
        cancelled = workers.pop()
        cancelled.cancel()
        broker.put("Orders", b"10")
        await eventually(lambda: len(bodies) == 11)
    async with asyncio.timeout(WAIT_S):
        # closing ends the iteration
        await asyncio.gather(*workers)
    assert sorted(bodies) == sorted(b"%d" % i for i in range(11))


async def test_a_cancelled_block_leaves_its_message_to_the_next_member(broker: FakeBroker) -> None:
    async with iterate(broker) as running:
        message = (await take(running, 1))[0]

        async def work() -> None:
            async with message.process():
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        running._config = QUICK
        for member in running._members:
            member._config = type(QUICK)(await_termination_s=0.01)
    assert broker.of(SEND_BACK) == []
    assert progress(broker) in (None, 0)


async def test_what_gets_no_verdict_in_time_is_sent_back(broker: FakeBroker) -> None:
    async with iterate(broker, consume_timeout_s=0.05) as running:
        messages = await take(running, 10)
        for message in messages[1:]:
            message.done()
        request = (await broker.received(SEND_BACK))[0]
        await broker.until(lambda: progress(broker) == 10)
        # too late to count
        messages[0].later()
    assert request.ext_fields["delayLevel"] == "3"
    assert len(broker.of(SEND_BACK)) == 1


async def test_close_waits_for_the_verdicts(broker: FakeBroker) -> None:
    async with iterate(broker) as running:
        messages = await take(running, 2)
        asyncio.get_running_loop().call_later(0.05, messages[0].done)
        asyncio.get_running_loop().call_later(0.05, messages[1].done)
    assert progress(broker) == 2


async def test_a_failure_in_the_background_ends_the_iteration_with_its_reason(
    broker: FakeBroker,
) -> None:
    async with iterate(broker) as running:
        await take(running, 10)

        async def broken() -> None:
            raise ZeroDivisionError

        running._owner.client.spawn(broken(), "bug")
        with pytest.raises(IllegalStateError, match="unexpected error"):
            await take(running, 1)
        for member in running._members:
            member._config = type(QUICK)(await_termination_s=0.01)


async def test_a_consumer_with_listeners_is_not_iterated_over(broker: FakeBroker) -> None:
    async with consumer(broker, to(Seen())) as running:
        with pytest.raises(IllegalStateError, match="calls listeners"):
            async for _ in running:
                pass


def test_an_incoming_message_is_an_immutable_message() -> None:
    from tests.unit.client.consumer.test_process_queue import message

    incoming = IncomingMessage.of(message(3), lambda _verdict, _why: None)
    assert isinstance(incoming, MessageExt)
    assert (incoming.queue_offset, incoming.body) == (3, b"body")
    with pytest.raises(AttributeError):
        incoming.body = b"other"  # type: ignore[misc]
