"""Workers take several messages at a time: what that must not change."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.push_consumer import PushConsumer
from ogive.client.listener import COMMIT, LATER, listener
from ogive.model import MessageExt
from ogive.testing.fake_broker import WAIT_S, FakeBroker, ok
from ogive.wire.bodies.clients import consumer_ids_dumps
from ogive.wire.codes import RequestCode

FAST = 600
"""Messages whose calls return at once: behind them slices are long."""
QUICK = ConsumerConfig(
    rebalance_pause_s=0.01,
    hand_over_pause_s=0.01,
    hand_over_wait_s=0.05,
    persist_period_s=0.02,
    pull_suspend_s=5.0,
    await_termination_s=WAIT_S,
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, "%RETRY%billing": 1}) as broker:
        yield broker


class Work:
    """A listener that hangs in the messages "hang", and notes what it has begun."""

    def __init__(self, *, is_async: bool) -> None:
        self.begun: list[bytes] = []
        self.places: set[int] = set()
        self.may_return = threading.Event()
        self.function: Any = self._run_async if is_async else self._run

    def _run(self, message: MessageExt) -> Any:
        self.begun.append(message.body)
        self.places.add(message.queue_offset)
        if message.body == b"hang":
            self.may_return.wait(WAIT_S)
        return LATER if message.body == b"fail" else None

    async def _run_async(self, message: MessageExt) -> Any:
        self.begun.append(message.body)
        self.places.add(message.queue_offset)
        while message.body == b"hang" and not self.may_return.is_set():
            await asyncio.sleep(0.01)
        return LATER if message.body == b"fail" else None

    def consumer(
        self, broker: FakeBroker, threads: int, config: ConsumerConfig = QUICK, **settings: Any
    ) -> PushConsumer:
        to = listener("Orders", group="billing", start="earliest", threads=threads, **settings)
        return PushConsumer(to(self.function), name_server=broker.address, config=config)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def progress(broker: FakeBroker) -> int | None:
    return broker.offsets.get(("billing", "Orders", 0))


async def warm_up(broker: FakeBroker) -> None:
    for at in range(FAST):
        broker.put("Orders", b"%d" % at)
    await eventually(lambda: progress(broker) == FAST)


@pytest.fixture(params=["plain", "async"])
def work(request: pytest.FixtureRequest) -> Work:
    return Work(is_async=request.param == "async")


async def test_what_is_behind_a_call_that_hangs_goes_to_other_workers(
    broker: FakeBroker, work: Work
) -> None:
    async with work.consumer(broker, threads=3):
        await warm_up(broker)
        for body in [b"hang", *[b"%d" % at for at in range(50)]]:
            broker.put("Orders", body)
        await eventually(lambda: len(work.begun) == FAST + 51)
        assert progress(broker) == FAST
        work.may_return.set()
        await eventually(lambda: progress(broker) == FAST + 51)
    assert len(work.begun) == FAST + 51


async def test_calls_that_hang_are_made_by_all_workers_at_once(
    broker: FakeBroker, work: Work
) -> None:
    async with work.consumer(broker, threads=10):
        await warm_up(broker)
        for _ in range(10):
            broker.put("Orders", b"hang")
        await eventually(lambda: len(work.begun) == FAST + 10)
        work.may_return.set()
        await eventually(lambda: progress(broker) == FAST + 10)


async def test_one_worker_keeps_the_order(broker: FakeBroker, work: Work) -> None:
    """Also behind a call that took long, whose slice was divided."""
    bodies = [b"%d" % at for at in range(FAST)]
    more = [b"a", b"hang", *[b"b%d" % at for at in range(100)], b"hang", b"c"]
    async with work.consumer(broker, threads=1):
        await warm_up(broker)
        for body in more:
            broker.put("Orders", body)
        await eventually(lambda: len(work.begun) == FAST + 2)
        asyncio.get_running_loop().call_later(0.1, work.may_return.set)
        await eventually(lambda: progress(broker) == FAST + len(more))
    assert work.begun == bodies + more


async def test_what_a_worker_finished_before_a_call_that_hangs_counts(
    broker: FakeBroker, work: Work
) -> None:
    """While the call runs, and if the consumer is closed without waiting for it."""
    async with work.consumer(broker, threads=1) as consumer:
        await warm_up(broker)
        for body in (b"a", b"b", b"hang", b"c"):
            broker.put("Orders", body)
        await eventually(lambda: progress(broker) == FAST + 2)
        assert work.begun[FAST:] == [b"a", b"b", b"hang"]
        work.may_return.set()
        await eventually(lambda: progress(broker) == FAST + 4)
        assert consumer.assignment["billing"]


async def test_what_was_finished_before_a_last_call_that_hangs_counts(
    broker: FakeBroker, work: Work
) -> None:
    """Nothing waits behind that call, so no other worker gets anything."""
    async with work.consumer(broker, threads=1):
        await warm_up(broker)
        for body in (b"a", b"b", b"hang"):
            broker.put("Orders", body)
        await eventually(lambda: progress(broker) == FAST + 2)
        assert work.begun[FAST:] == [b"a", b"b", b"hang"]
        work.may_return.set()
        await eventually(lambda: progress(broker) == FAST + 3)


async def test_what_an_orderly_worker_finished_before_a_call_that_hangs_counts(
    broker: FakeBroker, work: Work
) -> None:
    async with work.consumer(broker, threads=1, orderly=True) as consumer:
        await warm_up(broker)
        for body in (b"a", b"b", b"hang", b"c"):
            broker.put("Orders", body)
        await eventually(lambda: progress(broker) == FAST + 2)
        assert work.begun[FAST:] == [b"a", b"b", b"hang"]
        (member,) = consumer._members
        held = {one.queue_offset for queue in member.assignment.values() for one in queue.taken}
        assert held <= {FAST + 2, FAST + 3}
        work.may_return.set()
        await eventually(lambda: progress(broker) == FAST + 4)
    assert work.begun[FAST:] == [b"a", b"b", b"hang", b"c"]


async def test_of_a_long_orderly_turn_only_what_is_committed_counts(
    broker: FakeBroker, work: Work
) -> None:
    """The rest stays with the turn, and is committed with it."""
    function = work.function

    async def commit_b(message: MessageExt) -> Any:
        answer = function(message)
        if asyncio.iscoroutine(answer):
            await answer
        return COMMIT if message.body in (b"b", b"d") else None

    def commit_b_plain(message: MessageExt) -> Any:
        function(message)
        return COMMIT if message.body in (b"b", b"d") else None

    work.function = commit_b if asyncio.iscoroutinefunction(function) else commit_b_plain
    for body in (b"a", b"b", b"c", b"hang", b"d"):
        broker.put("Orders", body)
    async with work.consumer(broker, threads=1, orderly=True, auto_commit=False):
        await eventually(lambda: progress(broker) == 2)
        assert work.begun == [b"a", b"b", b"c", b"hang"]
        work.may_return.set()
        await eventually(lambda: progress(broker) == 5)
    assert work.begun == [b"a", b"b", b"c", b"hang", b"d"]


async def test_of_a_slice_only_what_failed_comes_back(broker: FakeBroker, work: Work) -> None:
    async with work.consumer(broker, threads=1):
        await warm_up(broker)
        for body in (b"a", b"fail", b"b", b"fail", b"c"):
            broker.put("Orders", body)
        await eventually(lambda: progress(broker) == FAST + 5)
    sent = broker.of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert len(sent) == 2
    assert work.begun[FAST:] == [b"a", b"fail", b"b", b"fail", b"c"]


async def test_nothing_of_a_slice_is_begun_once_its_queue_is_given_away(
    broker: FakeBroker, work: Work
) -> None:
    async with work.consumer(broker, threads=1) as consumer:
        await warm_up(broker)
        for body in (b"a", b"hang", b"b", b"c"):
            broker.put("Orders", body)
        await eventually(lambda: len(work.begun) == FAST + 2)
        broker.on(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            lambda _: ok(body=consumer_ids_dumps(["000", *broker.members["billing"]])),
        )
        broker.notify("billing")
        await eventually(lambda: not consumer.assignment["billing"])
        assert progress(broker) == FAST + 1
        work.may_return.set()
    assert work.begun[FAST:] == [b"a", b"hang"]
    assert progress(broker) == FAST + 1


@pytest.mark.parametrize("how", ["closed", "given up"])
async def test_no_message_is_done_behind_one_that_is_left_to_the_next_owner(
    broker: FakeBroker, work: Work, how: str
) -> None:
    """Several workers have slices of the queue when it is given up: each finishes its own."""
    patient = replace(QUICK, hand_over_wait_s=WAIT_S)
    async with work.consumer(broker, threads=4, config=patient) as consumer:
        await warm_up(broker)
        more = [body for _ in range(8) for body in (b"hang", *([b"x"] * 100))]
        for body in more:
            broker.put("Orders", body)
        await eventually(lambda: work.begun.count(b"hang") >= 2)
        if how == "closed":
            ended = asyncio.create_task(consumer.close())
        else:
            broker.on(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                lambda _: ok(body=consumer_ids_dumps(["000", *broker.members["billing"]])),
            )
            broker.notify("billing")
            ended = asyncio.create_task(eventually(lambda: not consumer.assignment["billing"]))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, work.may_return.set)
        await ended
        assert progress(broker) == max(work.places) + 1
        assert len(work.begun) == len(work.places)


async def test_a_shutdown_does_not_make_slow_calls_for_long(
    broker: FakeBroker, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker has behind a slow call is left to the next owner."""
    monkeypatch.setattr("ogive.client.consumer.concurrent.FINISH_S", 0.0)
    async with work.consumer(broker, threads=1) as consumer:
        await warm_up(broker)
        for body in (b"a", b"hang", b"b", b"c"):
            broker.put("Orders", body)
        await eventually(lambda: work.begun[FAST:] == [b"a", b"hang"])
        asyncio.get_running_loop().call_later(0.1, work.may_return.set)
        await consumer.close()
    assert work.begun[FAST:] == [b"a", b"hang"]
    assert progress(broker) == FAST + 2
