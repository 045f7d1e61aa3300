"""Queues that come and go, assigned queues, raw pulls, and the life of a pull consumer, against a
broker that does what a test wants.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.client.consumer.pull_consumer import PullConsumer
from ogive.client.instance import ClientInstance
from ogive.errors import (
    BrokerInternalError,
    IllegalStateError,
    InvalidOption,
    NoNameServer,
    NoRoute,
    ResponseCode,
)
from ogive.model import TOOLS_GROUP, MessageQueue, PullStatus
from ogive.testing.fake_broker import WAIT_S, FakeBroker, error
from ogive.wire.codes import PullSysFlag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import PullMessageResponse
from tests.unit.client.consumer.polling import (
    MEMBERS,
    PULL,
    Q0,
    Q1,
    QUERY,
    QUICK,
    SELDOM,
    UPDATE,
    collect,
    eventually,
    fill,
    member,
    offsets,
    progress,
    pulls_of,
    reader,
    rebalanced,
    with_others,
)

NO_ZONE = datetime(2026, 11, 1)  # noqa: DTZ001


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1}) as broker:
        yield broker


# --- members --------------------------------------------------------------------------------------


async def test_the_application_learns_of_its_queues_before_it_gets_their_messages(
    broker: FakeBroker,
) -> None:
    """So it may seek in them first. Async functions are awaited."""
    broker.topics["Orders"] = 4
    for queue_id in range(4):
        fill(broker, 5, queue_id)
    changes: list[tuple[list[int], list[int]]] = []

    async def on_change(gained: list[MessageQueue], lost: list[MessageQueue]) -> None:
        changes.append(([queue.queue_id for queue in gained], [queue.queue_id for queue in lost]))
        for queue in gained:
            await consumer.seek(queue, 4)

    async with member(broker, on_change=on_change) as consumer:
        assert offsets(await collect(consumer, 4)) == [4, 4, 4, 4]
        with_others(broker, "zzz")
        await rebalanced(broker, consumer, 2)
        while len(changes) < 2:
            assert await consumer.poll(0) == []
        broker.on(MEMBERS, None)
        await rebalanced(broker, consumer, 4)
        await collect(consumer, 2)
    assert changes == [([0, 1, 2, 3], []), ([], [2, 3]), ([2, 3], [])]


async def test_a_plain_function_learns_of_queues_in_a_thread_and_its_error_ends_the_poll(
    broker: FakeBroker,
) -> None:
    """It may not have set its place in them, so it is told again before it gets their messages."""
    threads: list[int] = []
    told: list[tuple[list[MessageQueue], list[MessageQueue]]] = []

    def on_change(gained: list[MessageQueue], lost: list[MessageQueue]) -> None:
        threads.append(threading.get_ident())
        told.append((gained, lost))
        if len(told) == 1:
            raise ZeroDivisionError

    async with member(broker, on_change=on_change) as consumer:
        fill(broker, 1)
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(WAIT_S)
        assert offsets(await collect(consumer, 1)) == [0]
    assert told == [([Q0], []), ([Q0], [])]
    assert threading.get_ident() not in threads


async def test_changes_during_a_call_that_fails_are_told_with_those_that_it_was_told(
    broker: FakeBroker,
) -> None:
    broker.topics["Orders"] = 4
    told: list[tuple[list[int], list[int]]] = []

    async def on_change(gained: list[MessageQueue], lost: list[MessageQueue]) -> None:
        told.append(([queue.queue_id for queue in gained], [queue.queue_id for queue in lost]))
        if len(told) == 1:
            with_others(broker, "zzz")
            await rebalanced(broker, consumer, 2)
            raise ZeroDivisionError

    async with member(broker, on_change=on_change) as consumer:
        with pytest.raises(ZeroDivisionError):
            await consumer.poll(WAIT_S)
        await consumer.poll(0)
    assert told == [([0, 1, 2, 3], []), ([0, 1], [])]


async def test_a_queue_that_goes_and_comes_back_unseen_is_told_as_both(broker: FakeBroker) -> None:
    changes: list[tuple[list[MessageQueue], list[MessageQueue]]] = []

    async def on_change(gained: list[MessageQueue], lost: list[MessageQueue]) -> None:
        changes.append((gained, lost))

    async with member(broker, on_change=on_change) as consumer:
        fill(broker, 1)
        await collect(consumer, 1)
        with_others(broker, "000")
        await rebalanced(broker, consumer, 0)
        broker.on(MEMBERS, None)
        await rebalanced(broker, consumer, 1)
        await collect(consumer, 1)
    assert changes == [([Q0], []), ([Q0], [Q0])]


async def test_what_is_in_hand_of_a_queue_that_was_given_away_does_not_count(
    broker: FakeBroker,
) -> None:
    """Its progress belongs to the next owner, who gets it again; the other queue keeps its own."""
    broker.topics["Orders"] = 2
    fill(broker, 5, queue_id=0)
    fill(broker, 5, queue_id=1)
    async with member(broker, config=SELDOM) as consumer:
        await broker.until(lambda: pulls_of(broker, 0) == pulls_of(broker, 1) == [0, 5])
        assert len(await consumer.poll()) == 10
        with_others(broker, "zzz")
        await rebalanced(broker, consumer, 1)
        # a round trip, behind what the hand-over tells the broker
        await consumer.lag()
        assert progress(broker, 1) in (None, 0)
        broker.offsets["replay", "Orders", 1] = 77
    assert (progress(broker, 0), progress(broker, 1)) == (5, 77)


async def test_no_message_is_lost_while_a_queue_goes_away_and_comes_back(
    broker: FakeBroker,
) -> None:
    """Also those that were pulled ahead, or on their way, when it went."""
    seen: Counter[int] = Counter()

    async def poll_all(consumer: PullConsumer) -> None:
        async for batch in consumer.batches(max_messages=7):
            seen.update(offsets(batch))

    async with member(broker) as consumer:
        polling = asyncio.create_task(poll_all(consumer))
        for _ in range(10):
            fill(broker, 50)
            with_others(broker, "000")
            await rebalanced(broker, consumer, 0)
            fill(broker, 50)
            broker.on(MEMBERS, None)
            await rebalanced(broker, consumer, 1)
        await eventually(lambda: len(seen) == 1000)
    await polling
    assert sorted(seen) == list(range(1000))
    assert progress(broker) == 1000


async def test_members_share_the_queues(broker: FakeBroker) -> None:
    broker.topics["Orders"] = 4
    for queue_id in range(4):
        fill(broker, 5, queue_id)
    async with member(broker) as first, member(broker) as second:
        broker.notify("replay")
        await eventually(lambda: len(first.assignment) == len(second.assignment) == 2)
        assert not set(first.assignment) & set(second.assignment)


# --- assigned queues ------------------------------------------------------------------------------


async def test_assigned_queues_are_read_without_being_a_member(broker: FakeBroker) -> None:
    """As a member it would be given queues by the others that it does not read."""
    broker.topics["Orders"] = 2
    fill(broker, 3)
    fill(broker, 3, queue_id=1)
    broker.offsets["replay", "Orders", 1] = 2
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        reader(broker, group="replay", client=client) as consumer,
    ):
        assert await consumer.queues("Orders") == [Q0, Q1]
        await consumer.assign([Q0, Q1])
        assert len(await collect(consumer, 4)) == 4
        await consumer.assign([Q1])
        assert consumer.assignment == [Q1]
        fill(broker, 1)
        fill(broker, 1, queue_id=1)
        assert [message.queue for message in await collect(consumer, 1)] == [Q1]
        await client.heartbeat_now()
    assert progress(broker, 1) == 4
    assert broker.of(RequestCode.HEART_BEAT) == broker.of(MEMBERS) == []


async def test_who_reads_without_a_group_leaves_no_trace(broker: FakeBroker) -> None:
    fill(broker, 3)
    async with reader(broker) as consumer:
        await consumer.assign([Q0])
        await collect(consumer, 2)
        assert await consumer.poll(0) != []
        assert await consumer.committed(Q0) is None
        with pytest.raises(IllegalStateError, match="without a group"):
            await consumer.commit()
    assert {request.ext_fields["consumerGroup"] for request in broker.of(PULL)} == {TOOLS_GROUP}
    assert broker.of(UPDATE) == broker.of(QUERY) == broker.of(RequestCode.HEART_BEAT) == []


async def test_what_was_committed_at_once_is_not_forgotten(broker: FakeBroker) -> None:
    """Before anything was pulled or persisted for the first time."""
    fill(broker, 5)
    async with reader(broker, group="replay", auto_commit=False) as consumer:
        await consumer.assign([Q0])
        await consumer.commit({Q0: 3})
        await consumer.assign([])
        await consumer.assign([Q0])
        assert offsets(await collect(consumer, 2)) == [3, 4]


async def test_groups_and_assignments_exclude_each_other(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        with pytest.raises(IllegalStateError, match="takes its queues from its group"):
            await consumer.assign([Q0])


# --- raw pulls ------------------------------------------------------------------------------------


async def test_a_pull_gives_the_brokers_answer(broker: FakeBroker) -> None:
    fill(broker, 5)
    async with reader(broker) as consumer:
        found = await consumer.pull(Q0, 1, max_messages=2)
        assert (
            found.status,
            offsets(list(found.messages)),
            found.next_offset,
            found.max_offset,
        ) == (PullStatus.FOUND, [1, 2], 3, 5)
        assert (await consumer.pull(Q0, 5)).status is PullStatus.NO_NEW_MSG
        assert int(broker.of(PULL)[-1].ext_fields["sysFlag"]) == PullSysFlag.SUBSCRIPTION
        assert consumer.assignment == []


@pytest.mark.feature(116)
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, PullStatus.FOUND),
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MSG),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MSG),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
async def test_each_answer_has_its_status(
    broker: FakeBroker, code: int, status: PullStatus
) -> None:
    answer = RemotingCommand(
        code, encode_header(PullMessageResponse(next_begin_offset=7, min_offset=3, max_offset=9))
    )
    broker.script(PULL, answer)
    async with reader(broker) as consumer:
        result = await consumer.pull(Q0, 5)
    assert (
        result.status,
        result.next_offset,
        result.min_offset,
        result.max_offset,
        result.messages,
    ) == (status, 7, 3, 9, ())


@pytest.mark.feature(114)
async def test_a_pull_may_wait_at_the_broker_without_stopping_anything_else(
    broker: FakeBroker,
) -> None:
    async with reader(broker) as consumer:
        waiting = asyncio.create_task(consumer.pull(Q0, 0, suspend_s=5))
        fields = (await broker.received(PULL))[0].ext_fields
        assert (fields["sysFlag"], fields["suspendTimeoutMillis"]) == (
            str(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
            "5000",
        )
        assert (await consumer.pull(Q0, 0)).status is PullStatus.NO_NEW_MSG
        fill(broker, 1)
        assert offsets(list((await waiting).messages)) == [0]


@pytest.mark.feature(112)
async def test_a_pull_has_exactly_one_outcome_and_its_errors_are_told_apart(
    broker: FakeBroker,
) -> None:
    async with reader(broker) as consumer:
        broker.script(PULL, error(ResponseCode.SYSTEM_ERROR, "broken disk"))
        with pytest.raises(
            BrokerInternalError, match=r"127\.0\.0\.1:\d+ answered 1 SYSTEM_ERROR: broken disk"
        ):
            await consumer.pull(Q0, 0)
        with pytest.raises(NoRoute, match="Similar topics: Orders"):
            await consumer.pull(MessageQueue("Ordres", "broker-a", 0), 0)
        with pytest.raises(InvalidOption, match="must be between 0"):
            await consumer.pull(Q0, -1)
        assert (await consumer.pull(Q0, 0)).status is PullStatus.NO_NEW_MSG


# --- life -----------------------------------------------------------------------------------------


async def test_one_task_polls_at_a_time(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        waiting = asyncio.create_task(consumer.poll(WAIT_S))
        await broker.received(PULL)
        with pytest.raises(IllegalStateError, match="one task polls"):
            await consumer.poll(0)
        fill(broker, 1)
        assert len(await waiting) == 1


async def test_a_cancelled_poll_takes_nothing(broker: FakeBroker) -> None:
    async with member(broker) as consumer:
        waiting = asyncio.create_task(consumer.poll(None))
        await broker.received(PULL)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        fill(broker, 1)
        assert offsets(await collect(consumer, 1)) == [0]


async def test_the_second_consumer_of_a_group_in_one_client_is_refused_and_the_first_goes_on(
    broker: FakeBroker,
) -> None:
    async with (
        ClientInstance(ClientConfig(name_server=broker.address)) as client,
        member(broker, client=client) as first,
    ):
        with pytest.raises(IllegalStateError, match="already"):
            await member(broker, client=client).start()
        fill(broker, 1)
        assert len(await collect(first, 1)) == 1
        assert client.consumer("replay") is not None


def at_most(threads: int, tasks: int) -> bool:
    return threading.active_count() <= threads and len(asyncio.all_tasks()) <= tasks


async def test_nothing_is_left_behind(broker: FakeBroker) -> None:
    """No thread, no task, no connection, over many lives and failed starts."""
    threads, tasks = threading.active_count(), len(asyncio.all_tasks())
    for _ in range(10):
        fill(broker, 1)
        consumer = member(broker, config=replace(QUICK, pull_suspend_s=0.05))
        async with consumer:
            await collect(consumer, 1)
        await consumer.close()
        await eventually(partial(at_most, threads, tasks))
        with pytest.raises(IllegalStateError, match="started before"):
            await consumer.start()
    with pytest.raises(NoNameServer):
        await PullConsumer(
            "Orders",
            group="replay",
            client=ClientConfig(name_server="127.0.0.1:1", request_timeout_s=0.2),
        ).start()
    await eventually(partial(at_most, threads, tasks))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PullConsumer("Orders"), "member of a group"),
        (lambda: PullConsumer("Orders", "Orders", group="replay"), "named twice"),
        (lambda: PullConsumer("no spaces", group="replay"), "topic"),
        (lambda: PullConsumer("Orders", group="no spaces"), "group"),
        (lambda: PullConsumer("Orders", group="replay", tags="* || paid"), "tags"),
        # the naive time is the fault
        (
            lambda: PullConsumer("Orders", group="replay", start=NO_ZONE),
            "time zone",
        ),
        (lambda: PullConsumer(group="replay", on_change=print), "on_change is for topics"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Callable[[], object], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        make()


def test_topics_are_arguments_and_no_list() -> None:
    topics: Any = ["Orders"]
    with pytest.raises(
        TypeError,
        match=r"topics are str, one argument each: PullConsumer\('Orders', 'Refunds', group=...\), "
        r"not list",
    ):
        PullConsumer(topics, group="replay")


async def test_a_poll_before_there_are_queues_is_refused(broker: FakeBroker) -> None:
    """It would wait for ever. That somebody assigned no queues at all is another thing."""
    async with reader(broker) as consumer:
        with pytest.raises(
            IllegalStateError, match=r"no queues yet: assign\(queues\), or name topics and a group"
        ):
            await consumer.poll(0)
        await consumer.assign([])
        assert await consumer.poll(0) == []


async def test_use_outside_the_lifetime_is_explained() -> None:
    consumer = PullConsumer("Orders", group="replay")
    assert consumer.assignment == []
    with pytest.raises(IllegalStateError, match="not started"):
        await consumer.poll()
    with pytest.raises(IllegalStateError, match="not started"):
        _ = consumer.client_id
    await consumer.close()


@pytest.mark.parametrize("settings", [{"timeout_s": -1}, {"max_messages": 0}])
async def test_a_poll_that_cannot_work_is_refused(broker: FakeBroker, settings: Any) -> None:
    async with member(broker) as consumer:
        with pytest.raises(InvalidOption):
            await consumer.poll(**settings)
