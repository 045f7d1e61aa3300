"""What a listener's answer means."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ogive.client.consumer.listener_call import call, call_async
from ogive.client.consumer.outcome import Failure, judge
from ogive.client.listener import (
    DEAD_LETTER,
    LATER,
    AnyListener,
    decoded,
    later,
    listener,
    suspend,
)
from tests.unit.client.consumer.test_process_queue import message


def make(function: Callable[..., Any] = print, **settings: Any) -> AnyListener:
    return listener("Orders", group="billing", **settings)(function)


MESSAGES = [message(offset) for offset in range(4)]


@pytest.mark.feature(58)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, None),
        (LATER, Failure()),
        (later(3), Failure(delay_level=3)),
        (DEAD_LETTER, Failure(delay_level=-1)),
        (later(done=3), Failure(done=3)),
        (later(done=4), None),
    ],
)
def test_answers_of_a_concurrent_listener(answer: Any, expected: Failure | None) -> None:
    assert judge(make(), MESSAGES, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, None),
        (LATER, Failure()),
        (DEAD_LETTER, Failure(delay_level=-1)),
        (suspend(), Failure()),
        (suspend(0.5), Failure(suspend_s=0.5)),
        (suspend(2, done=1), Failure(done=1, suspend_s=2)),
    ],
)
def test_answers_of_an_orderly_listener(answer: Any, expected: Failure | None) -> None:
    assert judge(make(orderly=True), MESSAGES, answer) == expected


@pytest.mark.parametrize(
    ("orderly", "answer"),
    [
        (False, False),
        (False, True),
        (False, 0),
        (False, "ok"),
        (False, suspend(1)),
        (True, later(3)),
        (False, later(done=5)),
        (True, 42),
    ],
)
def test_any_other_answer_is_a_failure_that_the_log_explains(
    orderly: bool, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What looks false or true is no verdict."""
    assert judge(make(orderly=orderly), MESSAGES, answer) == Failure()
    assert "is not a result of" in caplog.text


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_raising_is_a_failure_whatever_is_raised(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def bill(_: Any) -> None:
        raise error

    assert call(make(bill), MESSAGES[:1]) == Failure()
    assert "bill failed on Orders/broker-a/1/0 (try 1" in caplog.text


class Stop(BaseException):
    """What test runners and timeout libraries raise so that nobody catches it by chance."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        SystemExit(3),
        asyncio.CancelledError(),
        GeneratorExit(),
        Stop(),
        BaseExceptionGroup("bad", [Stop()]),
    ],
    ids=repr,
)
async def test_an_async_listener_fails_alike(error: BaseException) -> None:
    """Also one that is cancelled by itself; ``sys.exit()`` ends neither the worker nor the
    program.
    """

    async def bill(_: Any) -> None:
        raise error

    assert await call_async(make(bill), MESSAGES[:1]) == Failure()


async def test_an_interrupt_is_the_programs_where_it_can_be_one_and_a_failure_elsewhere() -> None:
    """Python gives Ctrl-C to the main thread only."""

    async def bill(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await call_async(make(bill), MESSAGES[:1])
    assert (
        await asyncio.to_thread(lambda: asyncio.run(call_async(make(bill), MESSAGES[:1])))
        == Failure()
    )


async def test_a_call_that_is_left_behind_by_its_loop_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def bill(_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    calling = asyncio.create_task(call_async(make(bill), MESSAGES[:1]))
    await asyncio.sleep(0)
    left_behind: Any = calling.get_coro()
    # what the interpreter does with it in the end
    left_behind.close()
    assert not [record for record in caplog.records if record.name.startswith("ogive")]
    calling.cancel()
    with pytest.raises(RuntimeError, match="already awaited"):
        await calling


def test_the_traceback_is_logged_for_the_first_try_only(caplog: pytest.LogCaptureFixture) -> None:
    """A message that fails for ever must not fill the disk with tracebacks."""

    def bill(_: Any) -> None:
        raise ValueError("bad")

    from dataclasses import replace

    with caplog.at_level(logging.WARNING):
        call(make(bill), [MESSAGES[0]])
        assert "Traceback" in caplog.text
        caplog.clear()
        call(make(bill), [replace(MESSAGES[0], reconsume_times=1)])
        assert "try 2" in caplog.text
        assert "Traceback" not in caplog.text


def _read(body: bytes) -> int:
    return int(body)


@pytest.mark.parametrize(("as_", "logged"), [(dict, False), (_read, True)])
def test_a_body_that_cannot_be_read_needs_no_traceback_but_that_of_the_applications_function(
    as_: Any, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert call(decoded(make(lambda _: None, as_=as_)), [MESSAGES[0]]) is not None
    assert "cannot be read as" in caplog.text
    assert ("Traceback" in caplog.text) is logged


def test_a_batch_listener_gets_a_list() -> None:
    seen: list[Any] = []
    assert call(make(seen.append, batch=4), MESSAGES) is None
    assert call(make(seen.append), MESSAGES[:1]) is None
    assert seen == [MESSAGES, MESSAGES[0]]
