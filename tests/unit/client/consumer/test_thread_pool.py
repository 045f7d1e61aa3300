"""The threads that call plain listeners: made when there is work, shared by all listeners of the
process.
"""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import ogive
from ogive.client.consumer.workers import Callers, ThreadPool, ThreadWorkers
from ogive.model import MessageExt
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from ogive.wire.codes import RequestCode
from tests.unit.client.serving import on_a_thread

MANY = 300


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as broker:
        yield broker


def test_many_listeners_need_few_threads_until_there_is_work(broker: FakeBroker) -> None:
    called = threading.Semaphore(0)
    topics = [f"Topic{i}" for i in range(MANY)]
    broker.topics |= dict.fromkeys(topics, 1)

    def work(message: MessageExt) -> None:
        called.release()

    before = threading.active_count()
    listeners = [
        ogive.listener(topic, group="billing", start="earliest", threads=20)(work)
        for topic in topics
    ]
    with (
        ogive.PushConsumer(*listeners, name_server=broker.address),
        ogive.Producer(broker.address) as producer,
    ):
        assert threading.active_count() < before + 5
        for topic in topics:
            producer.submit(topic, b"")
        for _ in topics:
            assert called.acquire(timeout=WAIT_S)
        assert threading.active_count() < before + MANY


def test_many_groups_of_one_consumer_join_together(broker: FakeBroker) -> None:
    called = threading.Semaphore(0)
    groups = [f"group{i}" for i in range(100)]

    def work(message: MessageExt) -> None:
        called.release()

    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"")
    listeners = [ogive.listener("Orders", group=group, start="earliest")(work) for group in groups]
    with ogive.PushConsumer(*listeners, name_server=broker.address):
        for _ in groups:
            assert called.acquire(timeout=WAIT_S)
        assert len(broker.of(RequestCode.HEART_BEAT)) < len(groups) / 2


def test_a_listener_that_runs_names_its_thread(broker: FakeBroker) -> None:
    names: list[str] = []
    called = threading.Event()

    @ogive.listener("Orders", group="billing", start="earliest")
    def work(message: MessageExt) -> None:
        names.append(threading.current_thread().name)
        called.set()

    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"")
    with ogive.PushConsumer(work, name_server=broker.address):
        assert called.wait(WAIT_S)
    assert names == ["billing Orders-0"]


class Calls:
    """Tasks that block until they are let go, of listeners that share a pool."""

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self.running: list[str] = []
        self.ended: list[str] = []
        self._allowed = 0

    def listener(self, count: int) -> ThreadWorkers[str, None]:
        return ThreadWorkers(
            self._run, lambda _: None, failed=None, count=count, name="test", pool=self._pool
        )

    def _run(self, task: str) -> None:
        with self._changed:
            self.running.append(task)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._allowed > len(self.ended), WAIT_S)
            self.running.remove(task)
            self.ended.append(task)
            self._changed.notify_all()

    def end(self, count: int) -> None:
        with self._changed:
            self._allowed += count
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self.ended) == self._allowed, WAIT_S)

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.running) == count, WAIT_S), self.running
            return sorted(self.running)


async def test_no_listener_has_more_calls_at_a_time_than_it_may() -> None:
    calls = Calls(ThreadPool())
    one = calls.listener(2)
    one.submit(["a", "b", "c", "d"])
    assert calls.wait_for(2) == ["a", "b"]
    calls.end(1)
    assert "c" in calls.wait_for(2)
    calls.end(3)
    assert await one.stop(WAIT_S) == 0


async def test_beyond_the_limit_each_listener_still_has_one_thread_and_gets_its_turn() -> None:
    calls = Calls(ThreadPool(max_threads=2))
    busy, other, third = calls.listener(5), calls.listener(5), calls.listener(5)
    busy.submit([f"busy{i}" for i in range(6)])
    assert calls.wait_for(2) == ["busy0", "busy1"]
    other.submit(["other0", "other1"])
    third.submit(["third0"])
    assert calls.wait_for(4) == ["busy0", "busy1", "other0", "third0"]
    calls.end(9)
    assert sorted(calls.ended) == sorted(
        [*(f"busy{i}" for i in range(6)), "other0", "other1", "third0"]
    )
    for one in (busy, other, third):
        assert await one.stop(WAIT_S) == 0


async def test_listeners_whose_calls_hang_do_not_get_the_last_thread_of_another() -> None:
    pool, done = ThreadPool(max_threads=2), list[int]()
    calls = Calls(pool)
    hung = calls.listener(5)
    hung.submit([f"hung{i}" for i in range(5)])
    assert calls.wait_for(2) == ["hung0", "hung1"]
    other = ThreadWorkers(done.append, lambda _: None, failed=None, count=5, name="test", pool=pool)
    other.submit(range(100))
    async with asyncio.timeout(WAIT_S):
        while len(done) < 100:
            await asyncio.sleep(0.001)
    calls.end(5)
    assert await hung.stop(WAIT_S) == await other.stop(WAIT_S) == 0


async def test_a_system_without_threads_makes_calls_wait_and_loses_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls(ThreadPool())
    one, other = calls.listener(3), calls.listener(3)
    one.submit(["one0"])
    calls.wait_for(1)

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fails)
        one.submit(["one1"])
        other.submit(["other0"])
    assert calls.wait_for(1) == ["one0"]
    assert "no more can be started" in caplog.text
    calls.end(3)
    assert calls.ended == ["one0", "other0", "one1"]
    assert await one.stop(WAIT_S) == await other.stop(WAIT_S) == 0


async def test_a_stop_from_within_a_call_does_not_wait_for_it() -> None:
    loop, calls = asyncio.get_running_loop(), Calls(ThreadPool())
    left: list[int] = []
    callers = Callers()

    def stop_here(_: int) -> None:
        with callers.waiting(threading.get_ident()):
            stopping = asyncio.run_coroutine_threadsafe(one.stop(WAIT_S, callers), loop)
            left.append(stopping.result(WAIT_S))

    one: ThreadWorkers[int, None] = ThreadWorkers(
        stop_here, lambda _: None, failed=None, count=2, name="test"
    )
    one.submit([1])
    while not left:
        await asyncio.sleep(0.001)
    assert left == [0]
    assert calls.ended == []


async def test_idle_threads_end() -> None:
    calls = Calls(ThreadPool(idle_s=0.001))
    before = set(threading.enumerate())
    one = calls.listener(4)
    one.submit(["a", "b", "c"])
    calls.wait_for(3)
    calls.end(3)
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    one.submit(["d"])
    calls.wait_for(1)
    calls.end(1)
    assert await one.stop(WAIT_S) == 0
