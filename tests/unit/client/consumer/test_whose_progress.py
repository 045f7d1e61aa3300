"""Whose progress in a queue counts: from where a member begins, and after it was cut off while
others went on.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ogive.aio import PullConsumer
from ogive.client.config import ClientConfig
from ogive.client.consumer.offset_store import read_offsets
from ogive.model import MessageExt, MessageQueue
from ogive.testing.fake_broker import HANG_UP, SILENT, WAIT_S, FakeBroker, Silent, ok
from ogive.wire.bodies.clients import consumer_ids_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import OffsetResponse
from tests.unit.client.consumer.test_push_consumer import (
    MEMBERS,
    PULL,
    QUICK,
    RETRY,
    UPDATE,
    Seen,
    consumer,
    eventually,
    of_orders,
    progress,
    rounds,
    to,
    with_others,
)

ORDERS = MessageQueue("Orders", "broker-a", 0)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


def put(broker: FakeBroker, numbers: range, queue_id: int = 0) -> None:
    for i in numbers:
        broker.put("Orders", b"%d" % i, queue_id=queue_id)


def pulls(broker: FakeBroker) -> list[RemotingCommand]:
    return [pull for pull in broker.of(PULL) if pull.ext_fields["topic"] == "Orders"]


# --- a new group ----------------------------------------------------------------------------------


async def test_where_a_new_group_begins_is_its_progress_before_it_pulls(broker: FakeBroker) -> None:
    """Else whoever comes next begins at the end of that time, and what was begun in between is
    lost.
    """
    put(broker, range(3))
    async with consumer(broker, to(Seen(), start="latest")):
        await broker.until(lambda: len(pulls(broker)) > 0)
        first = of_orders(broker)[0]
        assert first.ext_fields["commitOffset"] == "3"
        assert broker.requests.index(first) < broker.requests.index(pulls(broker)[0])
    assert progress(broker) == 3


@pytest.mark.parametrize("end", ["hand-over", "crash"])
async def test_what_a_new_group_has_begun_comes_again_wherever_it_ends(
    broker: FakeBroker, end: str
) -> None:
    free, begun, again = threading.Event(), Seen(), Seen()
    put(broker, range(3))

    def bill(message: MessageExt) -> None:
        begun(message)
        free.wait(WAIT_S)

    config = replace(QUICK, hand_over_wait_s=0.0)
    async with consumer(broker, to(bill, start="latest", threads=1), config=config) as running:
        await broker.until(lambda: len(pulls(broker)) > 0)
        put(broker, range(3, 6))
        await begun.wait(1)
        if end == "hand-over":
            with_others(broker, "000")
            broker.notify("billing")
            await eventually(lambda: not running.assignment["billing"])
        assert progress(broker) == 3
        free.set()
    broker.on(MEMBERS, None)
    # as it was when the process was gone
    broker.offsets["billing", "Orders", 0] = 3
    async with consumer(broker, to(again, start="latest", threads=1)):
        assert await again.wait(3) == [b"3", b"4", b"5"]


async def test_the_zero_that_a_broker_makes_up_for_a_young_queue_is_committed(
    broker: FakeBroker,
) -> None:
    """Later, when the queue is old, it would say that there is none."""
    broker.on(RequestCode.QUERY_CONSUMER_OFFSET, ok(OffsetResponse(offset=0)))
    async with consumer(broker, to(Seen(), start="latest")):
        await broker.until(lambda: len(pulls(broker)) > 0)
        assert progress(broker) == 0


async def test_a_broadcasting_member_keeps_where_it_begins(
    broker: FakeBroker, tmp_path: Path
) -> None:
    put(broker, range(3))
    async with consumer(
        broker,
        to(Seen(), start="latest", broadcast=True),
        config=replace(QUICK, offsets_dir=tmp_path),
    ):
        await broker.until(lambda: len(pulls(broker)) > 0)
        (file,) = tmp_path.glob("*/billing/offsets.json")
        assert read_offsets(file) == {ORDERS: 3}


async def test_assigned_queues_begin_with_a_commit_where_the_group_has_none(
    broker: FakeBroker,
) -> None:
    """A known offset is not told again, and without auto-commit only the application commits."""
    broker.topics["Orders"] = 2
    broker.offsets["billing", "Orders", 1] = 1
    put(broker, range(3))
    put(broker, range(3), queue_id=1)
    client = ClientConfig(name_server=broker.address)
    for auto_commit in (False, True):
        async with PullConsumer(
            group="billing", auto_commit=auto_commit, client=client, config=QUICK
        ) as pulling:
            await pulling.assign(await pulling.queues("Orders"))
            updates = [
                (update.ext_fields["queueId"], update.ext_fields["commitOffset"])
                for update in broker.of(UPDATE)
            ]
            assert updates == ([("0", "3")] if auto_commit else [])


# --- cut off --------------------------------------------------------------------------------------


async def test_what_others_finished_while_a_member_was_cut_off_does_not_come_again(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    put(broker, range(5))
    async with consumer(broker, to(seen)):
        await seen.wait(5)
        await broker.until(lambda: progress(broker) == 5)
        await broker.stop()
        put(broker, range(5, 105))
        broker.offsets["billing", "Orders", 0] = 105
        told = len(broker.of(UPDATE))
        await broker.start()
        broker.put("Orders", b"new")
        await seen.until(lambda: b"new" in seen.bodies)
        await broker.until(lambda: progress(broker) == 106)
    assert sorted(seen.bodies) == sorted([b"%d" % i for i in range(5)] + [b"new"])
    assert (
        min(
            int(update.ext_fields["commitOffset"])
            for update in broker.of(UPDATE)[told:]
            if update in of_orders(broker)
        )
        >= 105
    )
    assert "another member has moved the offset of billing from 5 to 105" in caplog.text


async def test_a_queue_that_was_lost_while_cut_off_is_given_up_without_stale_progress(
    broker: FakeBroker,
) -> None:
    """The member sees that it has to give the queue up before it has pulled again."""
    seen = Seen()
    put(broker, range(5))
    async with consumer(
        broker, to(seen), config=replace(QUICK, pull_retry_s=WAIT_S, rebalance_period_s=0.05)
    ) as running:
        await seen.wait(5)
        await broker.until(lambda: progress(broker) == 5)
        await broker.stop()
        await eventually(
            lambda: all(p.doubted for m in running._members for p in m.assignment.values())
        )
        broker.offsets["billing", "Orders", 0] = 105
        with_others(broker, "000")
        told = len(of_orders(broker))
        await broker.start()
        await eventually(lambda: not running.assignment["billing"])
        assert of_orders(broker)[told:] == []
    assert progress(broker) == 105


async def test_doubted_progress_is_not_told_before_the_broker_was_asked(broker: FakeBroker) -> None:
    seen, free = Seen(), threading.Event()
    put(broker, range(5))

    def bill(message: MessageExt) -> None:
        seen(message)
        if message.queue_offset == 4:
            free.wait(WAIT_S)

    config = replace(QUICK, pull_retry_s=WAIT_S, persist_again_s=0.02, rebalance_period_s=0.05)
    async with consumer(broker, to(bill, threads=1), config=config) as running:
        await seen.wait(5)
        await broker.until(lambda: progress(broker) == 4)
        await broker.stop()
        await eventually(
            lambda: all(p.doubted for m in running._members for p in m.assignment.values())
        )
        broker.offsets["billing", "Orders", 0] = 105
        told = len(of_orders(broker))
        broker.on(MEMBERS, lambda _: ok(body=consumer_ids_dumps([*broker.members["billing"]])))
        await broker.start()
        free.set()
        await rounds_of_persisting(broker)
        assert of_orders(broker)[told:] == []
    assert progress(broker) == 105


async def test_a_commit_that_waited_for_another_one_is_not_told_on_the_next_connection(
    broker: FakeBroker,
) -> None:
    """A process that stood still: all its timers are due at once, and its connection is gone."""
    seen, unanswered = Seen(), list[RemotingCommand]()
    put(broker, range(5))

    def one_without_answer(update: RemotingCommand) -> Silent | None:
        if (
            unanswered
            or update not in of_orders(broker)
            or update.ext_fields["commitOffset"] != "5"
        ):
            return None
        unanswered.append(update)
        return SILENT

    broker.on(UPDATE, one_without_answer)
    async with consumer(broker, to(seen), config=replace(QUICK, persist_again_s=0.02)):
        await seen.wait(5)
        await broker.until(lambda: bool(unanswered))
        await asyncio.sleep(0.1)
        told = len(of_orders(broker))
        put(broker, range(5, 105))
        broker.offsets["billing", "Orders", 0] = 105
        broker.script(MEMBERS, HANG_UP)
        broker.notify("billing")
        await broker.until(lambda: len(of_orders(broker)) > told)
    assert progress(broker) == 105
    assert [
        update.ext_fields["commitOffset"]
        for update in of_orders(broker)[told:]
        if update.ext_fields["commitOffset"] == "5"
    ] == []


async def rounds_of_persisting(broker: FakeBroker) -> None:
    """Until the member looked at its group often enough for its progress to have been told, too."""
    await broker.until(lambda: bool(broker.members["billing"]))
    for _ in range(5):
        await rounds(broker)


async def test_a_member_that_its_broker_had_forgotten_asks_where_the_group_is(
    broker: FakeBroker,
) -> None:
    """A machine that stood still: its links may work yet."""
    seen = Seen()
    put(broker, range(5))
    async with consumer(broker, to(seen)):
        await seen.wait(5)
        await broker.until(lambda: progress(broker) == 5)
        broker.offsets["billing", "Orders", 0] = 105
        broker.script(MEMBERS, ok(body=consumer_ids_dumps(["somebody else"])))
        broker.notify("billing")
        await broker.until(
            lambda: any(pull.ext_fields["queueOffset"] == "105" for pull in pulls(broker))
        )
    assert progress(broker) == 105


async def test_after_a_cut_a_member_goes_on_where_only_it_was(broker: FakeBroker) -> None:
    """Also where the broker has lost the last progress: that is this member's to tell again."""
    seen = Seen()
    put(broker, range(5))
    async with consumer(broker, to(seen), config=replace(QUICK, persist_again_s=0.05)):
        await seen.wait(5)
        await broker.until(lambda: progress(broker) == 5)
        await broker.stop()
        broker.offsets["billing", "Orders", 0] = 2
        await broker.start()
        put(broker, range(5, 7))
        await seen.wait(7)
        await broker.until(lambda: progress(broker) == 7)
    assert sorted(seen.bodies) == [b"%d" % i for i in range(7)]


# --- suspended ------------------------------------------------------------------------------------


async def test_a_suspended_member_gives_queues_up_and_is_silent_about_them(
    broker: FakeBroker,
) -> None:
    broker.topics["Orders"] = 2
    seen = Seen()
    put(broker, range(2))
    put(broker, range(2), queue_id=1)
    async with consumer(broker, to(seen), config=replace(QUICK, persist_again_s=0.02)) as running:
        await seen.wait(4)
        await running.suspend()
        with_others(broker, "zzz")
        broker.notify("billing")
        given_up = MessageQueue("Orders", "broker-a", 1)
        await eventually(lambda: given_up not in running.assignment["billing"])
        # its progress has gone out
        await rounds(broker)
        broker.offsets["billing", "Orders", 1] = 105
        await rounds(broker)
        await running.resume()
        await rounds(broker)
        assert progress(broker, 1) == 105
        assert ORDERS in running.assignment["billing"]
    assert progress(broker, 1) == 105
