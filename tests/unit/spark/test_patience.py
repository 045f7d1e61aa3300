"""How planning and reading repeat their questions, and when no more."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ogive.errors import ConnectError, NoNameServer, NotANameServer, OgiveError
from ogive.spark.patience import Patience, repeat


async def ask(failure: OgiveError, *, settled: bool) -> int:
    """A question that fails once: how often it was asked."""
    asked = 0

    async def call() -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise failure
        return asked

    return await Patience(pause_s=0.0, settled=settled).insist(call, lambda: None)


async def test_name_servers_that_are_away_are_waited_for_once_they_have_answered() -> None:
    """A process that begins while all of them restart, for a query that runs: it failed at once,
    and with it the query.
    """
    assert await ask(NoNameServer("connection lost"), settled=True) == 2


async def test_a_first_question_that_nobody_answers_is_an_error_at_once() -> None:
    """The address is likely wrong."""
    with pytest.raises(NoNameServer):
        await ask(NoNameServer("connection refused"), settled=False)


@pytest.mark.parametrize("settled", [True, False])
async def test_something_else_at_the_address_is_an_error_at_once(settled: bool) -> None:
    with pytest.raises(NotANameServer):
        await ask(NotANameServer("a broker"), settled=settled)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


async def attempts(window_s: float, **rule: Any) -> int:
    """How often a call is made that never succeeds."""
    made = 0

    async def call() -> None:
        nonlocal made
        made += 1
        raise ConnectError("refused")

    with pytest.raises(ConnectError):
        await repeat(call, lambda _: made < 9, window_s, **rule)
    return made


async def test_pauses_grow_up_to_the_longest(slept: list[float]) -> None:
    assert await attempts(3600.0) == 9
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_attempts_end_with_their_number(slept: list[float]) -> None:
    assert await attempts(3600.0, retries=3, pause_s=0.5) == 4
    assert slept == [0.5] * 3


@pytest.mark.usefixtures("slept")
async def test_no_attempt_begins_behind_the_window() -> None:
    assert await attempts(60.0, pause_s=59.0) == 9
    assert await attempts(60.0, pause_s=61.0) == 1
    assert await attempts(0.0) == 1
