"""What a stop of the workers says while calls still run."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from ogive.client.consumer import workers
from ogive.client.consumer.workers import LoopWorkers, ThreadPool, ThreadWorkers


@pytest.mark.parametrize("kind", [ThreadWorkers, LoopWorkers])
async def test_a_stop_that_waits_says_for_what(
    kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A close that takes seconds looks like one that hangs."""
    begun, free = threading.Event(), asyncio.Event()
    blocked = threading.Event()

    def sleep(_: int) -> None:
        begun.set()
        blocked.wait(60)

    async def sleep_here(_: int) -> None:
        begun.set()
        await free.wait()

    monkeypatch.setattr(workers, "_NOTICE_S", 0.0)
    one = kind(
        sleep if kind is ThreadWorkers else sleep_here,
        lambda _: None,
        failed=None,
        count=1,
        name="test",
    )
    one.start()
    one.submit([1])
    while not begun.is_set():
        await asyncio.sleep(0.01)
    with caplog.at_level(logging.WARNING):
        stopping = asyncio.ensure_future(one.stop(60.0))
        while "waiting up to 60 s for 1 listener calls" not in caplog.text:
            assert not stopping.done()
            await asyncio.sleep(0.01)
    blocked.set()
    free.set()
    assert await stopping == 0


async def test_a_stop_without_calls_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workers, "_NOTICE_S", 0.0)
    one: ThreadWorkers[int, None] = ThreadWorkers(
        lambda _: None, lambda _: None, failed=None, count=2, name="test"
    )
    one.start()
    assert await one.stop(5.0) == 0
    assert caplog.text == ""


async def test_what_is_submitted_after_a_stop_starts_no_thread() -> None:
    """A last pull may come in while a consumer closes, and a message that no broker took back is
    given to its listener again.
    """
    calls: list[int] = []
    one: ThreadWorkers[int, None] = ThreadWorkers(
        calls.append, lambda _: None, failed=None, count=2, name="test", pool=ThreadPool()
    )
    one.start()
    await one.stop(5.0)
    before = threading.active_count()
    one.submit([1])
    # threads of earlier tests may end
    assert threading.active_count() <= before
    assert calls == []
