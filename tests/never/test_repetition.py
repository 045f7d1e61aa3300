"""Repetition that nobody asked for: cases 12 to 14."""

import asyncio
import threading
from collections import Counter
from functools import partial
from typing import Any

import pytest

from ogive import aio
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.testing.fake_broker import error
from tests.never.scene import GROUP, SEND, SEND_BACK, TOPIC, Scene, rounds, until

ROUNDS, CACHED, PULLED = 6, 20, 10


def holds(member: aio.PushConsumer, count: int) -> bool:
    return sum(queue.topic == TOPIC for queue in member.assignment[GROUP]) == count


async def flow(scene: Scene, stop: asyncio.Event) -> None:
    """A steady stream into two queues."""
    while not stop.is_set():
        scene.put(4, queues=2)
        await asyncio.sleep(0.005)


@pytest.mark.kills("case 12: queues are not given up at the end", param="async")
@pytest.mark.parametrize("thread", [False, True], ids=["async", "plain"])
async def test_case_12_a_clean_shutdown_leaves_no_repetition(scene: Scene, thread: bool) -> None:
    """Messages flow all the time: what was begun ends, its progress is told after it, and the next
    member gets nothing twice.
    """
    scene.broker.topics[TOPIC] = 2
    stop = asyncio.Event()
    flowing = asyncio.create_task(flow(scene, stop))
    pause = threading.Event()

    def work(_: MessageExt) -> Any:
        return pause.wait(0.002) or None if thread else asyncio.sleep(0.002)

    def grown(before: int) -> bool:
        return scene.received >= before + 100

    for generation in range(4):
        listener = scene.listener(work, member=str(generation), thread=thread)
        # only the end of a member tells its progress
        async with scene.consumer(listener, persist_period_s=60.0, persist_again_s=60.0):
            await until(partial(grown, scene.received), "a hundred messages")
    stop.set()
    await flowing
    async with scene.consumer(scene.listener(member="last")):
        await until(lambda: not scene.ledger.lost, "the rest")
    scene.check()
    assert scene.ledger.duplicates == 0


async def test_case_12_with_no_wait_at_most_the_running_calls_repeat(scene: Scene) -> None:
    scene.put(100)
    free = asyncio.Event()

    async def hang(message: MessageExt) -> None:
        if message.queue_offset >= 50:
            await free.wait()

    listener = scene.listener(hang, member="first", threads=4)
    async with scene.consumer(listener, await_termination_s=0.0):
        await until(lambda: scene.received == 54, "four calls hang")
    running = {delivery.offset for delivery in scene.ledger.deliveries if delivery.offset >= 50}
    free.set()
    async with scene.consumer(scene.listener(member="second")):
        await until(lambda: not scene.ledger.lost, "the rest")
    scene.check()
    repeated = {int(body.rpartition(b"/")[2]) for body in scene.ledger.more_than_once}
    assert repeated == running


async def test_case_13_repetition_by_rebalances_is_bounded_and_one_loop_pulls_a_queue(
    scene: Scene,
) -> None:
    """A member comes and goes all the time. Threads and tasks stay as many as they are."""
    scene.broker.topics[TOPIC] = 4
    stop = asyncio.Event()
    most: Counter[str] = Counter()

    async def watch() -> None:
        while not stop.is_set():
            pulling = Counter(
                name
                for task in asyncio.all_tasks()
                if ": pull Orders" in (name := task.get_name()) and not task.cancelling()
            )
            for name, count in pulling.items():
                most[name] = max(most[name], count)
            await asyncio.sleep(0)

    async def feed() -> None:
        while not stop.is_set():
            # pulls of the others wait for long: a loop that is not ended is seen beside the next
            # one
            scene.put(8, queues=4, every=2)
            await asyncio.sleep(0.01)

    def member(name: str) -> aio.PushConsumer:
        listener = scene.listener(lambda _: asyncio.sleep(0.001), member=name, threads=2)
        return scene.consumer(listener, max_cached_messages=CACHED, pull_batch_size=PULLED)

    async with member("stays") as stays:
        await until(
            lambda: len(stays.assignment[GROUP]) == scene.queues_pulled == 5,
            "all queues, each with its loop",
        )
        tasks = len(asyncio.all_tasks())
        background = [asyncio.create_task(watch()), asyncio.create_task(feed())]
        for _ in range(ROUNDS):
            async with member("comes") as comes:
                await until(partial(holds, comes, 2), "half of the queues")
            await until(lambda: len(stays.assignment[GROUP]) == 5, "all queues again")
        stop.set()
        await asyncio.gather(*background)
        await until(lambda: not scene.ledger.lost, "the rest")
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "no more tasks than before")
    assert set(most.values()) == {1}
    assert len(most) >= 4
    scene.check()
    # two queues come and go; what a member holds of one is no more
    assert scene.ledger.duplicates <= 4 * ROUNDS * (CACHED + PULLED)


@pytest.mark.kills("case 13: the pulls of a queue that leaves go on")
async def test_case_13_a_queue_that_goes_and_comes_back_has_one_loop(scene: Scene) -> None:
    """Its pull waits at the broker for longer than the test: a loop that is not ended is seen,
    alone or beside the next one.
    """
    scene.broker.topics[TOPIC] = 4

    def loops() -> list[int]:
        return sorted(
            Counter(
                task.get_name()
                for task in asyncio.all_tasks()
                if ": pull Orders" in task.get_name()
            ).values()
        )

    async with scene.consumer(pull_suspend_s=600.0) as running:
        await until(
            lambda: holds(running, 4) and scene.queues_pulled == 5, "all queues, each with its loop"
        )
        for _ in range(3):
            scene.others("000")
            await until(
                lambda: holds(running, 2) and loops() == [1, 1],
                "half of the queues, and no loop of the others",
            )
            scene.others()
            await until(
                lambda: holds(running, 4) and loops() == [1, 1, 1, 1],
                "all queues again, each with one loop",
            )


@pytest.mark.kills("case 14: a finished message is sent back", param="plain")
@pytest.mark.parametrize("thread", [False, True], ids=["async", "plain"])
async def test_case_14_a_call_over_the_consume_timeout_is_sent_back_once_its_late_result_ignored(
    scene: Scene, thread: bool
) -> None:
    """The queue's progress moves on without it; a send-back that fails does not end the looking for
    others.
    """
    scene.put(6)
    free = threading.Event()
    waiting: list[int] = []
    first = [True]

    def work(message: MessageExt) -> Any:
        if (
            message.queue_offset not in (1, 4)
            or message.reconsume_times
            or message.queue_offset in waiting
        ):
            return None
        waiting.append(message.queue_offset)
        if thread:
            free.wait(120)
            raise ValueError("late")
        return late()

    async def late() -> None:
        await asyncio.to_thread(free.wait, 120)
        raise ValueError("late")

    def refuse_once(_: Any) -> Any:
        refused, first[0] = first[0], False
        return error(ResponseCode.SYSTEM_ERROR) if refused else None

    scene.broker.on(SEND_BACK, refuse_once)
    scene.broker.on(SEND, None)
    async with scene.consumer(
        scene.listener(work, thread=thread, consume_timeout_s=0.2, threads=4)
    ):
        await until(lambda: scene.progress() == 6, "progress past both")
        free.set()
        await rounds(scene)
        await until(lambda: scene.received == 6)
    commitlog = {
        message.commitlog_offset: message.queue_offset for message in scene.broker.stored[TOPIC, 0]
    }
    by_broker = Counter(
        commitlog[int(request.ext_fields["offset"])] for request in scene.broker.of(SEND_BACK)
    )
    assert sorted(by_broker) == [1, 4]
    assert by_broker.total() == 2
    # the way round for the one that was refused
    assert len(scene.broker.of(SEND)) == 1
    assert {request.ext_fields["delayLevel"] for request in scene.broker.of(SEND_BACK)} == {"3"}
    scene.check()
