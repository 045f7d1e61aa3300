"""When a call is tried again, and when no more."""

import asyncio

import pytest

from ogive.spark.retry import Retry


async def test_pauses_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    retry = Retry(3600.0)
    for _ in range(8):
        await retry.pause()
    assert slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_attempts_end_with_their_number() -> None:
    retry, tries = Retry(3600.0, limit=3, pause_s=0.0), 1
    while not retry.over:
        await retry.pause()
        tries += 1
    assert tries == 4


async def test_no_attempt_begins_behind_the_window() -> None:
    assert not Retry(60.0, pause_s=59.0).over
    assert Retry(60.0, pause_s=61.0).over
    assert Retry(0.0).over
