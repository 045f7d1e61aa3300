"""Ctrl-C and signal handlers while a thread waits for the handle of a submitted message."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import ogive
from ogive.client.config import ProducerConfig
from ogive.client.sending.handle import SendHandle
from ogive.testing.fake_broker import WAIT_S, After, FakeBroker
from ogive.wire.codes import RequestCode
from tests.unit.client.interrupting import ROUNDS, Sweep, interrupting
from tests.unit.client.serving import on_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
# answers take three milliseconds
STEP_S = 40e-6

Future = SendHandle
Wait = Callable[[Future], object]

WAITS: dict[str, Wait] = {
    "result": lambda future: future.result(),
    "result with a timeout": lambda future: future.result(WAIT_S),
    "exception": lambda future: future.exception(),
    "add_done_callback": lambda future: future.add_done_callback(lambda _: None),
    "done": lambda future: (
        future.done() or future.running() or future.cancelled() or future.cancel()
    ),
    "wait": lambda future: concurrent.futures.wait([future.future()], WAIT_S),
    "as_completed": lambda future: list(concurrent.futures.as_completed([future.future()], WAIT_S)),
}

# calls that last a microsecond, which a signal may never hit
AT_ONCE = (WAITS["add_done_callback"], WAITS["done"])


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as broker:
        yield broker


class Submissions:
    """Messages that a broker answers a moment later, one after another."""

    def __init__(self, broker: FakeBroker, producer: "ogive.Producer[bytes]") -> None:
        self._broker, self._producer = broker, producer

    def submit(self) -> Future:
        self._broker.script(SEND, After(0.003))
        return self._producer.submit("Orders", b"submitted")

    def blocking_call(self) -> None:
        """Send from another thread, which comes back when all before it have their outcome."""
        over = threading.Event()

        def call() -> None:
            self._producer.send("Orders", b"alive")
            over.set()

        threading.Thread(target=call, daemon=True).start()
        assert over.wait(WAIT_S), "the loop is stuck"


@pytest.fixture
def submissions(broker: FakeBroker) -> Iterator[Submissions]:
    with ogive.Producer(broker.address, config=ProducerConfig(max_requests=1)) as producer:
        producer.send("Orders", b"")
        yield Submissions(broker, producer)


@interrupting
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_control_c_at_any_moment_of_waiting_for_a_future_leaves_the_loop_to_the_others(
    submissions: Submissions, wait: Wait
) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    sweep = Sweep(STEP_S)
    for _ in range(ROUNDS):
        future = submissions.submit()
        # In some moments threading.Condition turns the first into the second.
        with contextlib.suppress(KeyboardInterrupt, RuntimeError):
            sweep.strike(partial(wait, future), press)
        submissions.blocking_call()
        assert future.result(WAIT_S).queue_offset > 0
    assert sweep.struck or wait in AT_ONCE


@interrupting
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_signal_handler_may_make_a_blocking_call_at_any_moment_of_waiting_for_a_future(
    submissions: Submissions, wait: Wait
) -> None:
    sweep = Sweep(STEP_S)
    for _ in range(ROUNDS):
        future = submissions.submit()
        sweep.strike(partial(wait, future), submissions.blocking_call)
        assert future.result(WAIT_S).queue_offset > 0
    assert sweep.struck or wait in AT_ONCE


def test_all_ways_to_wait_for_futures_see_outcomes_that_come_meanwhile(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"")
        for _ in range(5):
            futures = [producer.submit("Orders", b"%d" % i).future() for i in range(300)]
            seen = threading.Thread(target=concurrent.futures.wait, args=(futures,))
            seen.start()
            assert set(concurrent.futures.as_completed(futures, WAIT_S)) == set(futures)
            seen.join(WAIT_S)
            assert not seen.is_alive()
            first = producer.submit("Orders", b"").future()
            done, _ = concurrent.futures.wait([first], WAIT_S, concurrent.futures.FIRST_COMPLETED)
            assert done == {first}


def test_outcomes_come_also_where_the_system_starts_no_more_threads(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "ogive-futures":
            raise RuntimeError("can't start new thread")
        start(thread)

    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"")
        monkeypatch.setattr(threading.Thread, "start", limited)
        for _ in range(2):
            broker.script(SEND, After(0.05))
            futures = [producer.submit("Orders", b"%d" % i).future() for i in range(30)]
            assert concurrent.futures.wait(futures, WAIT_S).not_done == set()
        producer.send("Orders", b"alive")


def test_errors_reach_all_ways_to_wait_for_a_future(broker: FakeBroker) -> None:
    async def awaited(handle: SendHandle) -> None:
        with pytest.raises(ogive.errors.NoRoute):
            await asyncio.wrap_future(handle.future())
        with pytest.raises(ogive.errors.NoRoute):
            await handle

    called: list[Any] = []
    with ogive.Producer(broker.address) as producer:
        future = producer.submit("Ordres", b"")
        with pytest.raises(TimeoutError):
            future.result(0)
        future.add_done_callback(called.append)
        real = future.future()
        done, _ = concurrent.futures.wait([real], WAIT_S, concurrent.futures.FIRST_EXCEPTION)
        assert done == {real}
        assert isinstance(future.exception(), ogive.errors.NoRoute)
        future.add_done_callback(called.append)
        asyncio.run(awaited(future))
    assert called == [future, future]
