"""Listeners that pop, against a broker that does what a test wants."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.consumer import pop_member
from ogive.client.consumer.pop_member import DELAYS_S, delay_s
from ogive.errors import InvalidOption, ResponseCode
from ogive.testing.fake_broker import WAIT_S, FakeBroker, error, message, ok
from ogive.wire.codes import RequestCode

POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
BATCH = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2, "Refunds": 1}) as broker:
        yield broker


def config(invisible_s: float = 60.0, **settings: Any) -> ogive.ConsumerConfig:
    made = ogive.ConsumerConfig(
        pull_suspend_s=0.2, pull_retry_s=0.01, rebalance_pause_s=0.05, **settings
    )
    # below what an application may set
    object.__setattr__(made, "pop_invisible_s", invisible_s)
    return made


def listener(
    function: Callable[[ogive.MessageExt], Any], topic: str = "Orders", **settings: Any
) -> ogive.Listener:
    given = {"group": "billing", "start": "earliest", "mode": "pop", **settings}
    made: ogive.Listener = ogive.listener(topic, **given)(function)
    return made


def consumer(broker: FakeBroker, *listeners: ogive.Listener, **settings: Any) -> aio.PushConsumer:
    return aio.PushConsumer(*listeners, name_server=broker.address, config=config(**settings))


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def fill(broker: FakeBroker, count: int, topic: str = "Orders") -> None:
    for i in range(count):
        broker.put(topic, b"%d" % i, queue_id=i % broker.topics[topic])


def changes(broker: FakeBroker) -> list[tuple[int, int]]:
    """Offsets, and the times that they got."""
    return [
        (int(one.ext_fields["offset"]), int(one.ext_fields["invisibleTime"]))
        for one in broker.of(CHANGE)
    ]


@pytest.mark.parametrize("is_async", [False, True])
async def test_each_message_reaches_a_listener_once_and_is_acknowledged(
    broker: FakeBroker, is_async: bool
) -> None:
    """Acknowledgements share requests."""
    fill(broker, 500)
    seen: list[bytes] = []

    async def bill_async(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    async with consumer(broker, listener(bill_async if is_async else bill)) as running:
        await eventually(lambda: len(seen) == 500 and not broker.pops.leases)
        assert await running.lag() == dict.fromkeys(await running_queues(running), 0)
    assert sorted(seen, key=int) == [b"%d" % i for i in range(500)]
    assert len(broker.of(ACK)) + len(broker.of(BATCH)) < 400


async def running_queues(running: aio.PushConsumer) -> list[ogive.MessageQueue]:
    (places,) = running.assignment.values()
    assert [place.queue_id for place in places] == [-1]
    return [ogive.MessageQueue("Orders", "broker-a", i) for i in range(2)]


def test_a_failed_message_waits_as_long_as_javas() -> None:
    waits = [delay_s(message("T", b"", reconsume_times=i), 0) for i in range(20)]
    assert waits == [*DELAYS_S, 7200, 7200, 7200, 7200]
    assert delay_s(message("T", b"", reconsume_times=9), 3) == 120
    assert delay_s(message("T", b""), 100) == 7200


async def test_a_failed_message_comes_again_later_and_is_not_acknowledged(
    broker: FakeBroker,
) -> None:
    fill(broker, 2)

    def bill(message: ogive.MessageExt) -> ogive.ConsumeResult:
        if message.body == b"0":
            raise ValueError("declined")
        return ogive.later(delay_level=3)

    async with consumer(broker, listener(bill)):
        await broker.received(CHANGE, 2)
        assert sorted(time_ms for _, time_ms in changes(broker)) == [10_000, 120_000]
    assert not broker.of(ACK) + broker.of(BATCH)
    assert len(broker.pops.leases) == 2


async def test_a_failure_after_the_end_of_the_lease_changes_nothing(broker: FakeBroker) -> None:
    """The message is delivered again already: a change would have it delivered once more."""
    fill(broker, 1)
    broker.on(CHANGE, error(ResponseCode.SYSTEM_ERROR))
    begun = 0
    again = asyncio.Event()

    async def bill(message: ogive.MessageExt) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            await again.wait()
            raise ValueError("declined")
        again.set()

    async with consumer(broker, listener(bill), invisible_s=0.3):
        await eventually(lambda: begun >= 2 and not broker.pops.leases)
        await asyncio.sleep(0.05)
    assert 10_000 not in {time_ms for _, time_ms in changes(broker)}


async def test_after_its_last_retry_a_message_is_a_dead_letter(broker: FakeBroker) -> None:
    fill(broker, 2)
    seen: list[bytes] = []

    def bill(message: ogive.MessageExt) -> ogive.ConsumeResult:
        seen.append(message.body)
        if message.body == b"0":
            return ogive.DEAD_LETTER
        raise ValueError("declined")

    async with consumer(broker, listener(bill, max_retries=0)):
        sent = await broker.received(BACK, 2)
        await eventually(lambda: not broker.pops.leases)
    assert {one.ext_fields["delayLevel"] for one in sent} == {"-1"}
    assert sorted(seen) == [b"0", b"1"]
    assert not broker.of(CHANGE)


async def test_a_message_tried_too_often_becomes_a_dead_letter_before_a_call(
    broker: FakeBroker,
) -> None:
    """Its calls may have ended their process each time."""
    seen: list[bytes] = []
    retries = broker.stored["%RETRY%billing_Orders", 0]
    for tries in 3, 4:
        stored = broker.put("%RETRY%billing_Orders", b"%d" % tries)
        stored.reconsume_times = tries
    assert len(retries) == 2

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    async with consumer(broker, listener(bill, max_retries=3)):
        (sent,) = await broker.received(BACK)
        await eventually(lambda: not broker.pops.leases)
    assert (sent.ext_fields["delayLevel"], sent.ext_fields["originTopic"]) == ("-1", "Orders")
    assert seen == [b"3"]


async def test_a_dead_letter_that_no_broker_takes_comes_again(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on(BACK, error(ResponseCode.SYSTEM_ERROR))
    broker.put("%RETRY%billing_Orders", b"lost").reconsume_times = 4
    async with consumer(broker, listener(print, max_retries=3)):
        await eventually(lambda: "it comes again" in caplog.text)
    assert len(broker.pops.leases) == 1
    assert not broker.of(ACK)


async def test_a_lease_is_renewed_while_its_call_runs(broker: FakeBroker) -> None:
    fill(broker, 1)
    calls: list[int] = []

    def bill(message: ogive.MessageExt) -> None:
        calls.append(message.reconsume_times)
        time.sleep(2.0)

    async with consumer(broker, listener(bill), invisible_s=1.0):
        await eventually(lambda: calls and not broker.pops.leases)
    assert calls == [0]
    assert len(broker.of(CHANGE)) >= 2


async def test_a_broker_that_does_not_answer_holds_up_no_renewal_at_another(
    broker: FakeBroker,
) -> None:
    end = asyncio.Event()

    async def bill(message: ogive.MessageExt) -> None:
        await end.wait()

    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        broker.peers.append(other)
        for one in broker, other:
            one.hold(CHANGE)
            fill(one, 40)
        client = ogive.ClientConfig(name_server=broker.address, request_timeout_s=60.0)
        to = listener(bill)
        async with aio.PushConsumer(to, client=client, config=config(invisible_s=2.0)):
            await broker.received(CHANGE)
            await other.received(CHANGE)
            for one in broker, other:
                one.release(CHANGE)
            end.set()


async def test_one_renewal_at_a_time(broker: FakeBroker) -> None:
    """Another one could reach the broker behind the acknowledgement, and undo it."""
    end = asyncio.Event()

    async def bill(message: ogive.MessageExt) -> None:
        await end.wait()

    fill(broker, 1)
    orders, refunds = listener(bill), listener(bill, "Refunds")
    async with consumer(broker, orders, refunds, invisible_s=2.0) as running:
        broker.hold(CHANGE)
        await broker.received(CHANGE)
        leaving = asyncio.create_task(running.unsubscribe(refunds))
        await asyncio.sleep(0.05)
        end.set()
        broker.release(CHANGE)
        await leaving
        await eventually(lambda: not broker.pops.leases)
    assert len(broker.of(CHANGE)) == 1


async def test_what_no_call_begins_with_in_time_goes_to_others(broker: FakeBroker) -> None:
    """The one call that may run hangs."""
    fill(broker, 6)
    seen: list[bytes] = []

    async def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)
        await asyncio.sleep(1.0)

    hanging = listener(bill, threads=1, consume_timeout_s=0.2)
    async with consumer(broker, hanging, invisible_s=2.0, max_popped_messages=8):
        await eventually(
            lambda: sum(one.ext_fields["suspend"] == "true" for one in broker.of(CHANGE)) >= 3
        )


async def test_the_close_gives_back_what_was_not_begun(broker: FakeBroker) -> None:
    fill(broker, 10)
    begun, end = asyncio.Event(), asyncio.Event()
    seen: list[bytes] = []

    async def bill(message: ogive.MessageExt) -> None:
        begun.set()
        await end.wait()
        seen.append(message.body)

    running = consumer(broker, listener(bill, threads=1))
    await running.start()
    async with asyncio.timeout(WAIT_S):
        await begun.wait()
        closing = asyncio.create_task(running.close())
        await asyncio.sleep(0.02)
        end.set()
        await closing
    returned = [one for one in broker.of(CHANGE) if one.ext_fields["suspend"] == "true"]
    assert len(seen) == 1
    assert len(returned) == 9
    async with aio.SimpleConsumer("Orders", group="billing", name_server=broker.address) as other:
        messages = await other.receive()
        assert {message.reconsume_times for message in messages} == {0}
        assert len({message.body for message in messages} | set(seen)) == 10


async def test_a_broker_that_does_not_answer_does_not_hold_up_the_close(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for as long as running calls are waited for."""
    monkeypatch.setattr(pop_member, "LEAVE_TIMEOUT_S", 0.1, raising=False)
    fill(broker, 1)
    broker.hold(ACK)
    running = consumer(broker, listener(lambda _: None), await_termination_s=600.0)
    await running.start()
    await broker.received(ACK)
    async with asyncio.timeout(WAIT_S):
        await running.close()


async def test_what_is_finished_is_acknowledged_also_by_a_close_that_waits_for_no_call(
    broker: FakeBroker,
) -> None:
    seen: list[bytes] = []

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    broker.hold(ACK)
    running = consumer(broker, listener(bill), await_termination_s=0.0)
    await running.start()
    for count in 1, 2:
        broker.put("Orders", b"")
        await eventually(lambda count=count: len(seen) == count)  # type: ignore[misc]
    await broker.received(ACK)
    closing = asyncio.create_task(running.close())
    await asyncio.sleep(0.05)
    broker.release(ACK)
    await closing
    assert not broker.pops.leases


async def test_a_client_may_fail_before_it_pops(broker: FakeBroker) -> None:
    broker.hold(RequestCode.HEART_BEAT)
    running = consumer(broker, listener(print))
    starting = asyncio.create_task(running.start())
    await broker.received(RequestCode.HEART_BEAT)
    for member in running._members:
        member.abandon()
    broker.release(RequestCode.HEART_BEAT)
    await starting
    await running.close()


async def test_a_failed_acknowledgement_is_sent_again(broker: FakeBroker) -> None:
    fill(broker, 1)
    broker.script(ACK, error(ResponseCode.SYSTEM_BUSY), error(ResponseCode.SYSTEM_BUSY))
    seen: list[bytes] = []

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    async with consumer(broker, listener(bill)):
        await eventually(lambda: not broker.pops.leases and seen)
    assert (len(seen), len(broker.of(ACK))) == (1, 3)


async def test_orderly_listeners_get_each_queue_in_order_and_wait_at_a_failure(
    broker: FakeBroker,
) -> None:
    fill(broker, 200)
    seen: dict[int, list[int]] = {0: [], 1: []}
    failed: set[bytes] = set()

    def bill(message: ogive.MessageExt) -> None:
        if message.queue_offset % 20 == 7 and message.body not in failed:
            failed.add(message.body)
            raise ValueError("not yet")
        seen[message.queue.queue_id].append(message.queue_offset)

    orderly = listener(bill, orderly=True, suspend_s=0.01)
    async with consumer(broker, orderly):
        await eventually(lambda: sum(map(len, seen.values())) == 200 and not broker.pops.leases)
    assert seen == {0: list(range(100)), 1: list(range(100))}
    assert len(failed) == 10
    pops = broker.of(POP)
    assert {one.ext_fields["order"] for one in pops} == {"true"}
    assert len({one.ext_fields["attemptId"] for one in pops}) == len(pops)


async def test_an_orderly_queue_goes_on_behind_a_lease_that_is_over(broker: FakeBroker) -> None:
    """The renewal of a message that was finished then had failed."""
    for _ in range(2):
        broker.put("Orders", b"")
    begun, end = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def bill(message: ogive.MessageExt) -> None:
        begun.set()
        await end.wait()
        seen.append(message.queue_offset)

    orderly = listener(bill, orderly=True)
    async with consumer(broker, orderly, invisible_s=6.0) as running:
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
        (member,) = running._members
        assert isinstance(member, pop_member.PopMember)
        (source,) = member._pops.sources.values()
        for held in source.held:
            held.leased_until = 0.0
        end.set()
        await eventually(lambda: seen == [0, 1])


async def test_an_orderly_pop_whose_answer_was_lost_is_the_same_attempt(
    broker: FakeBroker,
) -> None:
    broker.script(POP, error(ResponseCode.SYSTEM_ERROR), error(ResponseCode.SYSTEM_ERROR))
    async with consumer(broker, listener(print, orderly=True)):
        pops = await broker.received(POP, 3)
    assert len({one.ext_fields["attemptId"] for one in pops[:3]}) == 1


async def test_a_broker_may_assign_single_queues(broker: FakeBroker) -> None:
    fill(broker, 20)
    body = (
        b'{"messageQueueAssignments":[{"messageQueue":{"topic":"Orders","brokerName":"broker-a",'
        b'"queueId":1},"mode":"POP"}]}'
    )
    broker.on(RequestCode.QUERY_ASSIGNMENT, ok(body=body))
    seen: list[int] = []

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.queue.queue_id)

    async with consumer(broker, listener(bill)) as running:
        await eventually(lambda: len(seen) == 10)
        assert running.assignment == {"billing": [ogive.MessageQueue("Orders", "broker-a", 1)]}
    assert set(seen) == {1}


async def test_topics_come_and_go(broker: FakeBroker) -> None:
    seen: list[str] = []

    def note(message: ogive.MessageExt) -> None:
        seen.append(message.topic)

    orders, refunds = listener(note), listener(note, "Refunds")
    async with consumer(broker, orders) as running:
        await running.subscribe(refunds)
        broker.put("Refunds", b"")
        await eventually(lambda: seen == ["Refunds"])
        await running.unsubscribe(refunds)
        broker.put("Refunds", b"")
        broker.put("Orders", b"")
        await eventually(lambda: seen == ["Refunds", "Orders"])


async def test_a_topic_that_is_being_left_is_popped_no_more(broker: FakeBroker) -> None:
    """Though its listener still works, and a member has just come. What comes of the topic is for
    another member, not for this one's other listener.
    """
    seen: list[str] = []
    begun, end = asyncio.Event(), asyncio.Event()

    async def refund(message: ogive.MessageExt) -> None:
        begun.set()
        await end.wait()

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.topic)

    orders, refunds = listener(bill), listener(refund, "Refunds")
    async with consumer(broker, orders, refunds) as running:
        broker.put("Refunds", b"")
        async with asyncio.timeout(WAIT_S):
            await begun.wait()
        leaving = asyncio.create_task(running.unsubscribe(refunds))
        await asyncio.sleep(0)
        for _ in range(3):
            broker.notify("billing")
            await asyncio.sleep(0.05)
        broker.put("Refunds", b"")
        await asyncio.sleep(0.1)
        end.set()
        await leaving
        broker.put("Orders", b"")
        await eventually(lambda: "Orders" in seen)
        await asyncio.sleep(0.3)
        assert seen == ["Orders"]
        broker.put("Orders", b"")
        await eventually(lambda: seen == ["Orders", "Orders"])


async def test_a_topic_may_be_left_while_the_consumer_is_suspended(broker: FakeBroker) -> None:
    seen: list[str] = []

    def note(message: ogive.MessageExt) -> None:
        seen.append(message.topic)

    orders, refunds = listener(note), listener(note, "Refunds")
    async with consumer(broker, orders, refunds) as running:
        await broker.received(POP, 2)
        await running.suspend()
        # the brokers have answered that there is nothing
        await asyncio.sleep(0.3)
        await running.unsubscribe(refunds)
        await running.resume()
        broker.put("Refunds", b"")
        broker.put("Orders", b"")
        await eventually(lambda: seen == ["Orders"])


async def test_a_suspended_consumer_pops_nothing(broker: FakeBroker) -> None:
    seen: list[bytes] = []

    def bill(message: ogive.MessageExt) -> None:
        seen.append(message.body)

    async with consumer(broker, listener(bill)) as running:
        await broker.received(POP)
        await running.suspend()
        await asyncio.sleep(0.05)
        count = len(broker.of(POP))
        fill(broker, 3)
        await asyncio.sleep(0.3)
        assert (len(broker.of(POP)), seen) == (count, [])
        await running.resume()
        await eventually(lambda: len(seen) == 3)


async def test_a_broker_that_does_not_pop_is_an_error_in_the_log(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on(POP, error(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "pop is not supported"))
    async with consumer(broker, listener(print)):
        await broker.received(POP, 3)
    found = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [("does not serve" in one.message) for one in found] == [True]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"broadcast": True}, "broadcast has no meaning"),
        ({"orderly": True, "auto_commit": False}, "auto_commit=False is for"),
        ({"start": datetime(2026, 1, 1, tzinfo=UTC)}, "start is a time"),
        ({"mode": "push"}, "mode is 'push': must be"),
    ],
)
def test_what_a_listener_that_pops_cannot_have(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        listener(print, **settings)


async def test_a_group_pops_or_pulls(broker: FakeBroker) -> None:
    with pytest.raises(InvalidOption, match="pops beside one that pulls"):
        await consumer(broker, listener(print), listener(print, "Refunds", mode="pull")).start()


@pytest.mark.parametrize("seconds", [1.0, 301.0])
def test_the_lease_of_a_listener_has_javas_limits(seconds: float) -> None:
    with pytest.raises(InvalidOption, match=r"must be between 5 and 300"):
        ogive.ConsumerConfig(pop_invisible_s=seconds)
