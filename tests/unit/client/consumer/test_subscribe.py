"""Listeners that come and go while the consumer runs, and what the application is told of its
queues.
"""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.instance import ClientInstance
from ogive.errors import IllegalStateError, InvalidOption
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from ogive.wire.bodies.clients import HeartbeatData, SubscriptionData
from ogive.wire.codes import RequestCode
from tests.unit.client.consumer.test_orderly import in_order
from tests.unit.client.consumer.test_push_consumer import (
    PULL,
    QUICK,
    RETRY,
    Seen,
    consumer,
    eventually,
    progress,
    to,
    with_others,
)

REFUNDS = MessageQueue("Refunds", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, "Refunds": 1, RETRY: 1}) as broker:
        yield broker


def subscribed(broker: FakeBroker) -> dict[str, SubscriptionData]:
    """As the last heartbeat says."""
    data = HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[-1].body)
    return {
        subscription.topic: subscription
        for group in data.consumers
        for subscription in group.subscriptions
    }


@pytest.mark.feature(13, 162, 176, 179, 180)
async def test_a_topic_is_taken_up_at_run_time(broker: FakeBroker) -> None:
    """The broker hears of it at once, by a newer version than that of the first topic."""
    orders, refunds = Seen(), Seen()
    async with consumer(broker, to(orders)) as running:
        broker.put("Orders", b"one")
        await orders.wait(1)
        broker.put("Refunds", b"two")
        await running.subscribe(to(refunds, topic="Refunds", tags="*"))
        assert await refunds.wait(1) == [b"two"]
        told = subscribed(broker)
        assert set(told) == {"Orders", "Refunds", RETRY}
        assert told["Refunds"].version >= told["Orders"].version
        broker.put("Orders", b"three")
        await orders.wait(2)
        await broker.until(lambda: progress(broker, topic="Refunds") == 1)


async def test_a_listener_of_another_group_joins_that(broker: FakeBroker) -> None:
    audit = Seen()
    broker.put("Orders", b"x")
    async with consumer(broker, to(Seen())) as running:
        await running.subscribe(to(audit, group="audit"))
        await audit.wait(1)
        assert set(running.assignment) == {"billing", "audit"}
    assert not broker.members["audit"]


@pytest.mark.feature(163)
async def test_a_topic_is_given_up_at_run_time(broker: FakeBroker) -> None:
    """The running call ends first and counts, the rest is left to others; the other topic does not
    notice.
    """
    orders, refunds, free = Seen(), Seen(), threading.Event()
    for i in range(5):
        broker.put("Refunds", b"%d" % i)

    def repay(message: MessageExt) -> None:
        refunds(message)
        free.wait(WAIT_S)

    listener = to(repay, topic="Refunds", threads=1)
    async with consumer(broker, to(orders), listener) as running:
        await refunds.wait(1)
        leaving = asyncio.create_task(running.unsubscribe(listener))
        await eventually(
            lambda: any(not p.active for m in running._members for p in m.assignment.values())
        )
        free.set()
        await leaving
        assert REFUNDS not in running.assignment["billing"]
        assert progress(broker, topic="Refunds") == 1
        assert set(subscribed(broker)) == {"Orders", RETRY}
        pulls = len([r for r in broker.of(PULL) if r.ext_fields["topic"] == "Refunds"])
        broker.put("Refunds", b"more")
        broker.put("Orders", b"more")
        await orders.wait(1)
        assert len([r for r in broker.of(PULL) if r.ext_fields["topic"] == "Refunds"]) == pulls
        await running.subscribe(listener)
        await refunds.wait(6)
    assert refunds.bodies == [b"0", b"1", b"2", b"3", b"4", b"more"]
    assert progress(broker, topic="Refunds") == 6


@pytest.mark.parametrize("listeners", [1, 2])
async def test_a_cancelled_unsubscribe_still_comes_to_its_end(
    broker: FakeBroker, listeners: int
) -> None:
    """Half of it would keep queues that nobody consumes."""
    begun, free = Seen(), threading.Event()
    broker.put("Refunds", b"slow")

    def repay(message: MessageExt) -> None:
        begun(message)
        free.wait(WAIT_S)

    one, other = (
        to(repay, topic="Refunds"),
        to(Seen(), group="billing" if listeners == 2 else "audit"),
    )
    async with consumer(broker, one, other) as running:
        await begun.wait(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await running.unsubscribe(one)
        free.set()
        await eventually(lambda: REFUNDS not in running.assignment.get("billing", []))
        await eventually(
            lambda: "Refunds" not in subscribed(broker) or not broker.members["billing"]
        )
        assert progress(broker, topic="Refunds") == 1
        await running.subscribe(one)
        broker.put("Refunds", b"next")
        await begun.wait(2)


async def test_a_cancelled_subscribe_still_comes_to_its_end(broker: FakeBroker) -> None:
    refunds = Seen()
    broker.put("Refunds", b"x")
    async with consumer(broker, to(Seen())) as running:
        broker.hold(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await running.subscribe(to(refunds, topic="Refunds"))
        broker.release(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await refunds.wait(1)


async def test_retries_of_a_topic_that_was_given_up_hold_nothing_back(broker: FakeBroker) -> None:
    """Those that had not begun go to another listener of the group."""
    orders, refunds, free = Seen(), Seen(), threading.Event()
    for i in range(3):
        broker.put(RETRY, b"%d" % i, properties=b"RETRY_TOPIC\x01Refunds\x02")

    def repay(message: MessageExt) -> None:
        refunds(message)
        free.wait(WAIT_S)

    listener = to(repay, topic="Refunds", threads=1)
    async with consumer(broker, to(orders), listener) as running:
        await refunds.wait(1)
        leaving = asyncio.create_task(running.unsubscribe(listener))
        await eventually(lambda: "Refunds" not in running._members[0].topics)
        free.set()
        await leaving
        await orders.wait(2)
        await broker.until(lambda: progress(broker, topic=RETRY) == 3)
    assert refunds.bodies == [b"0"]


async def test_the_last_listener_of_a_group_takes_the_group_with_it(broker: FakeBroker) -> None:
    listener = in_order(Seen())
    async with consumer(broker, listener, to(Seen(), group="audit")) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        await running.unsubscribe(listener)
        assert set(running.assignment) == {"audit"}
        assert not broker.members["billing"]
        assert broker.of(RequestCode.UNLOCK_BATCH_MQ)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_listener_may_unsubscribe_itself(broker: FakeBroker, kind: str) -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    broker.put("Refunds", b"last")

    async def repay_async(_: MessageExt) -> None:
        await running.unsubscribe(listener)
        done.set()

    def repay(_: MessageExt) -> None:
        asyncio.run_coroutine_threadsafe(
            running.unsubscribe_for(listener, threading.get_ident()), loop
        ).result(WAIT_S)
        loop.call_soon_threadsafe(done.set)

    listener = to(repay if kind == "plain" else repay_async, topic="Refunds")
    async with consumer(broker, to(Seen()), listener) as running:
        async with asyncio.timeout(WAIT_S):
            await done.wait()
        assert REFUNDS not in running.assignment["billing"]


async def test_what_cannot_be_is_refused_and_changes_nothing(broker: FakeBroker) -> None:
    seen = Seen()
    async with consumer(broker, to(seen)) as running:
        for wrong, says in [
            (to(print), "two listeners"),
            (in_order(print, topic="Refunds"), "orderly listener beside"),
        ]:
            with pytest.raises(InvalidOption, match=says):
                await running.subscribe(wrong)
        with pytest.raises(InvalidOption, match="no listener of Refunds"):
            await running.unsubscribe(to(print, topic="Refunds"))
        with pytest.raises(InvalidOption, match="is not a listener"):
            await running.subscribe(print)  # type: ignore[arg-type]
        broker.put("Orders", b"x")
        await seen.wait(1)
    with pytest.raises(IllegalStateError, match="closed"):
        await running.subscribe(to(print, topic="Refunds"))
    async with consumer(broker, "Orders", group="audit") as iterated:
        with pytest.raises(IllegalStateError, match="iterated"):
            await iterated.subscribe(to(print))


async def test_a_second_member_of_a_group_on_one_client_is_refused_and_the_first_goes_on(
    broker: FakeBroker,
) -> None:
    first, other = Seen(), Seen()
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        PushConsumer(to(first), client=client, config=QUICK),
        PushConsumer(to(other, group="x"), client=client, config=QUICK) as running,
    ):
        with pytest.raises(IllegalStateError, match='of group "billing" already'):
            async with PushConsumer(to(Seen()), client=client, config=QUICK):
                pass
        with pytest.raises(IllegalStateError, match='of group "billing" already'):
            await running.subscribe(to(Seen()))
        assert broker.members["billing"]
        broker.put("Orders", b"x")
        await first.wait(1)
        await other.wait(1)
        assert set(running.assignment) == {"x"}


# --- what the application is told -----------------------------------------------------------------


@pytest.mark.feature(17)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_the_application_is_told_which_queues_it_has(broker: FakeBroker, kind: str) -> None:
    """Its own topics' only; one call at a time, and an error in one ends nothing."""
    broker.topics["Orders"] = 4
    orders = [MessageQueue("Orders", "broker-a", i) for i in range(4)]
    told: list[tuple[list[MessageQueue], list[MessageQueue]]] = []
    bugs = itertools.cycle([ValueError("an application with a bug"), SystemExit(3)])

    def note(taken: list[MessageQueue], given_up: list[MessageQueue]) -> None:
        told.append((taken, given_up))
        raise next(bugs)

    async def note_async(taken: list[MessageQueue], given_up: list[MessageQueue]) -> None:
        note(taken, given_up)

    on_change: Any = note if kind == "plain" else note_async
    listener = to(Seen(), topic="Refunds")
    async with consumer(broker, to(Seen()), on_change=on_change) as running:
        await eventually(lambda: told == [(orders, [])])
        with_others(broker, "zzz")
        broker.notify("billing")
        await eventually(lambda: told[1:] == [([], orders[2:])])
        broker.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, None)
        broker.notify("billing")
        await eventually(lambda: told[2:] == [(orders[2:], [])])
        await running.subscribe(listener)
        await eventually(lambda: told[3:] == [([REFUNDS], [])])
        await running.unsubscribe(listener)
        await eventually(lambda: told[4:] == [([], [REFUNDS])])
        await running.subscribe(to(Seen(), group="audit"))
        await eventually(lambda: told[5:] == [(orders, [])])
