"""A start that Ctrl-C or a cancellation interrupts leaves nothing behind: no thread, task,
connection or member.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import ogive
from ogive import aio
from ogive.client.portal import portal
from ogive.model import MessageExt
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from tests.unit.client.interrupting import ROUNDS, Sweep, interrupting
from tests.unit.client.serving import on_a_thread

STEP_S = 30e-6


@ogive.listener("Orders", group="interrupted", start="earliest")
def bill(message: MessageExt) -> None:
    """Never called: there are no messages."""


def check(message: MessageExt) -> None:
    return None


BLOCKING: dict[str, Callable[[str], Any]] = {
    "PushConsumer": lambda address: ogive.PushConsumer(bill, name_server=address),
    "PullConsumer": lambda address: ogive.PullConsumer(
        "Orders", group="interrupted", name_server=address
    ),
    "SimpleConsumer": lambda address: ogive.SimpleConsumer(
        "Orders", group="interrupted", name_server=address
    ),
    "Producer": ogive.Producer,
    "transactions": lambda address: ogive.Producer(address, group="ordering", check=check),
    "Admin": ogive.Admin,
}
ASYNC: dict[str, Callable[[str], Any]] = {
    "PushConsumer": lambda address: aio.PushConsumer(bill, name_server=address),
    "PullConsumer": lambda address: aio.PullConsumer(
        "Orders", group="interrupted", name_server=address
    ),
    "SimpleConsumer": lambda address: aio.SimpleConsumer(
        "Orders", group="interrupted", name_server=address
    ),
    "Producer": lambda address: aio.Producer(address, group="ordering", check=check),
    "Admin": aio.Admin,
}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as broker:
        yield broker


def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(int(WAIT_S / 0.002)):
        if condition():
            return
        threading.Event().wait(0.002)
    raise AssertionError(f"in vain waited for: {what}")


@interrupting
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("make", BLOCKING.values(), ids=BLOCKING)
def test_control_c_at_any_moment_of_entering_the_block_leaves_nothing(
    broker: FakeBroker, make: Callable[[str], Any]
) -> None:
    loop = portal().loop
    threads = {thread for thread in threading.enumerate() if thread.name.startswith("interrupted")}

    def press() -> None:
        if not entered:
            raise KeyboardInterrupt

    def enter(block: Any) -> None:
        with block:
            entered.append(block)

    entered, interrupted, sweep = list[Any](), 0, Sweep(STEP_S)
    for number in range(ROUNDS):
        entered.clear()
        with contextlib.suppress(KeyboardInterrupt):
            sweep.strike(partial(enter, make(broker.address)), press)
        interrupted += not entered
        until(
            lambda: not asyncio.all_tasks(loop),
            f"the end of tasks after interrupt {number}: {asyncio.all_tasks(loop)}",
        )
        assert not broker.members["interrupted"]
    assert interrupted > 10
    assert {
        thread for thread in threading.enumerate() if thread.name.startswith("interrupted")
    } == threads


@pytest.mark.parametrize("make", ASYNC.values(), ids=ASYNC)
async def test_a_cancelled_entry_of_an_async_block_leaves_nothing(
    make: Callable[[str], Any],
) -> None:
    """Cancelled after each number of turns of the loop in turn."""
    async with FakeBroker({"Orders": 1}) as broker:
        before, turns, entered = asyncio.all_tasks(), 0, False

        async def enter() -> None:
            nonlocal entered
            async with make(broker.address):
                entered = True

        while not entered:
            entering = asyncio.create_task(enter())
            for _ in range(turns):
                await asyncio.sleep(0)
            entering.cancel()
            await asyncio.wait({entering})
            async with asyncio.timeout(WAIT_S):
                while {
                    task for task in asyncio.all_tasks() - before if "FakeBroker" not in repr(task)
                } or broker.members["interrupted"]:
                    await asyncio.sleep(0)
            turns += 1
        assert turns > 1
