"""How members of groups begin, share and go on: small promises that users build on."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.orderly import pause_s
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import WAIT_S, FakeBroker, error, ok
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import OffsetResponse, PullMessageResponse
from tests.unit.client.consumer.test_orderly import in_order
from tests.unit.client.consumer.test_push_consumer import (
    MEMBERS,
    PULL,
    QUICK,
    RETRY,
    Seen,
    consumer,
    eventually,
    of_orders,
    progress,
    to,
    with_others,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1, "%RETRY%audit": 1, "%RETRY%fraud": 1}) as broker:
        yield broker


@pytest.mark.feature(12, 183)
@pytest.mark.parametrize(
    ("start", "where", "first"),
    [
        ("earliest", "CONSUME_FROM_FIRST_OFFSET", b"0"),
        ("latest", "CONSUME_FROM_LAST_OFFSET", b"new"),
        (datetime(2026, 11, 1, tzinfo=UTC), "CONSUME_FROM_TIMESTAMP", b"3"),
    ],
    ids=["earliest", "latest", "time"],
)
async def test_where_a_new_group_begins(
    broker: FakeBroker, start: str | datetime, where: str, first: bytes
) -> None:
    """By time: at the message that the broker names for it. The heartbeat says which rule it is."""
    seen = Seen()
    for i in range(5):
        broker.put("Orders", b"%d" % i)
    broker.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ok(OffsetResponse(offset=3)))
    async with consumer(broker, to(seen, start=start, threads=1)):
        await broker.until(lambda: any(r.ext_fields["topic"] == "Orders" for r in broker.of(PULL)))
        broker.put("Orders", b"new")
        await seen.until(lambda: b"new" in seen.bodies)
    assert seen.bodies[0] == first
    assert (
        HeartbeatData.decode(broker.of(RequestCode.HEART_BEAT)[0].body)
        .consumers[0]
        .consume_from_where
        == where
    )
    if isinstance(start, datetime):
        (asked,) = broker.of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert asked.ext_fields["timestamp"] == str(int(start.timestamp() * 1000))


@pytest.mark.feature(29)
async def test_consumption_begins_with_the_start(broker: FakeBroker) -> None:
    """And not with the first periodic rebalance, twenty seconds later."""
    seen = Seen()
    broker.put("Orders", b"x")
    async with consumer(broker, to(seen), config=ConsumerConfig()):
        assert await seen.wait(1) == [b"x"]


@pytest.mark.feature(167, 178)
async def test_members_that_nobody_told_of_are_found_by_the_periodic_pass(
    broker: FakeBroker,
) -> None:
    config = replace(QUICK, rebalance_period_s=0.05)
    async with consumer(broker, to(Seen()), config=config) as running:
        await eventually(lambda: len(running.assignment["billing"]) == 2)
        with_others(broker, "000")
        await eventually(lambda: not running.assignment["billing"])
        broker.on(MEMBERS, None)
        await eventually(lambda: len(running.assignment["billing"]) == 2)


@pytest.mark.feature(167)
async def test_a_member_that_is_listed_twice_counts_once(broker: FakeBroker) -> None:
    """Apache's broker lists a client once for each of its connections. By position in such a list
    the second entry's queues would belong to nobody.
    """
    told: list[Sequence[str]] = []

    def all_of_them(
        queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> list[MessageQueue]:
        told.append(members)
        return list(queues)

    with_others(broker, "zzz", "zzz")
    async with consumer(broker, to(Seen()), config=replace(QUICK, strategy=all_of_them)) as running:
        await eventually(lambda: bool(told))
        assert {tuple(members) for members in told} == {(running.client_id, "zzz")}


@pytest.mark.feature(172)
async def test_the_instance_name_is_what_the_strategy_sees(broker: FakeBroker) -> None:
    told: list[tuple[Sequence[str], str]] = []

    def mine(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
        told.append((members, me))
        return list(queues) if me == members[0] else []

    def member(name: str) -> PushConsumer:
        client = ClientConfig(name_server=broker.address, instance_name=name)
        return PushConsumer(to(Seen()), client=client, config=replace(QUICK, strategy=mine))

    async with member("left") as left, member("right") as right:
        broker.notify("billing")
        await eventually(
            lambda: len(left.assignment["billing"]) == 2 and not right.assignment["billing"]
        )
        address = left.client_id.removesuffix("@left")
        assert right.client_id == f"{address}@right"
        await eventually(
            lambda: ([f"{address}@left", f"{address}@right"], f"{address}@right") in told
        )


@pytest.mark.feature(156)
async def test_several_groups_of_one_process_each_get_everything(broker: FakeBroker) -> None:
    groups = {group: Seen() for group in ("billing", "audit", "fraud")}
    for i in range(10):
        broker.put("Orders", b"%d" % i)
    async with consumer(broker, *(to(seen, group=group) for group, seen in groups.items())):
        for seen in groups.values():
            assert sorted(await seen.wait(10)) == [b"%d" % i for i in range(10)]
    assert {group: broker.offsets[group, "Orders", 0] for group in groups} == dict.fromkeys(
        groups, 10
    )


@pytest.mark.feature(73, 183)
async def test_messages_of_one_queue_are_worked_on_at_the_same_time(broker: FakeBroker) -> None:
    """Twenty calls wait for each other: one after the other they would never end."""
    meeting, seen = threading.Barrier(20), Seen()
    for i in range(20):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        meeting.wait(WAIT_S)
        seen(message)

    async with consumer(broker, to(bill)):
        await seen.wait(20)


@pytest.mark.feature(41)
async def test_a_broker_that_goes_back_is_reported_and_followed(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The group's progress does not go back with it."""
    seen = Seen()
    for i in range(5):
        broker.put("Orders", b"%d" % i)
    broker.offsets["billing", "Orders", 0] = 3
    back = error(19, "no new message")
    back.ext_fields = encode_header(
        PullMessageResponse(next_begin_offset=1, min_offset=0, max_offset=5)
    )
    answers = [back]
    broker.on(
        PULL,
        lambda request: (
            answers.pop() if request.ext_fields["topic"] == "Orders" and answers else None
        ),
    )
    async with consumer(broker, to(seen, threads=1)):
        assert await seen.wait(4) == [b"1", b"2", b"3", b"4"]
        await broker.until(lambda: progress(broker) == 5)
    assert "Orders/broker-a/0: the broker moved back from offset 3 to 1" in caplog.text
    offsets = [int(r.ext_fields["commitOffset"]) for r in of_orders(broker)]
    assert offsets == sorted(offsets)


# --- in order -------------------------------------------------------------------------------------


@pytest.mark.feature(84)
async def test_a_busy_queue_lets_the_others_have_their_turn(broker: FakeBroker) -> None:
    """One worker for two queues: a long backlog in one does not keep the other waiting until it is
    done.
    """
    broker.topics["Orders"] = 2
    seen, free = Seen(), threading.Event()
    for i in range(1000):
        broker.put("Orders", b"%d" % i)

    def bill(message: MessageExt) -> None:
        if message.queue_offset == 0 and message.queue.queue_id == 0:
            free.wait(WAIT_S)
        seen(message)

    async with consumer(broker, in_order(bill, threads=1)) as running:
        await eventually(
            lambda: sum(p.busy for m in running._members for p in m.assignment.values()) == 1
        )
        broker.put("Orders", b"other", queue_id=1)
        await eventually(
            lambda: sum(p.busy for m in running._members for p in m.assignment.values()) == 2
        )
        free.set()
        await seen.wait(1001)
    assert seen.bodies.index(b"other") < 1000 / 2
    assert [body for body in seen.bodies if body != b"other"] == [b"%d" % i for i in range(1000)]


@pytest.mark.feature(86)
@pytest.mark.parametrize(("asked", "pause"), [(0.5, 0.5), (0.0, 0.01), (60.0, 30.0), (None, 2.0)])
def test_how_long_a_queue_waits_before_its_next_try(asked: float | None, pause: float) -> None:
    assert pause_s(asked, 2.0) == pause


@pytest.mark.feature(83)
async def test_an_orderly_group_that_gets_its_lock_back_goes_on(broker: FakeBroker) -> None:
    """Within seconds of the grant, where it was."""
    seen = Seen()
    config = replace(QUICK, lock_renew_s=0.05, lock_lease_s=0.3)
    async with consumer(broker, in_order(seen), config=config) as running:
        broker.put("Orders", b"0")
        await seen.wait(1)
        await eventually(lambda: progress(broker) == 1)
        broker.on(RequestCode.LOCK_BATCH_MQ, error(1))
        await eventually(
            lambda: all(
                p.leased_until < time.monotonic()
                for m in running._members
                for p in m.assignment.values()
            )
        )
        broker.put("Orders", b"1")
        await asyncio.sleep(0.05)
        assert seen.bodies == [b"0"]
        broker.on(RequestCode.LOCK_BATCH_MQ, None)
        assert await seen.wait(2) == [b"0", b"1"]
