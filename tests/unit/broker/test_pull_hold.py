"""Held pulls whose connection ends while one of them is answered: a client that does not read is cut off by an answer too many.
And those that are costly to try, which let others have their turn."""

import asyncio
from typing import Any, cast

import pytest

from ogive.broker import pull_hold
from ogive.broker.pull_hold import PullHolds
from ogive.transport.connection import Connection


class Held:
    """A pull whose answer ends its connection, as an answer beyond the limit of unsent bytes does."""

    key = ("T", 0)
    offset = 0
    is_costly = False

    def __init__(self, holds: PullHolds, connection: Connection, *, fatal: bool) -> None:
        self._holds, self.connection, self._fatal = holds, connection, fatal
        self.answers = 0

    def try_answer(self) -> bool:
        self.answer()
        return True

    def answer(self) -> None:
        self.answers += 1
        if self._fatal:
            self._holds.drop(self.connection)


@pytest.mark.parametrize("wake", ["an arrival", "the queue is gone", "the broker closes"])
async def test_a_connection_that_ends_by_an_answer_stops_no_other_pull(wake: str) -> None:
    holds = PullHolds(max_held=10, max_per_connection=10)
    slow, fine = cast("list[Connection]", [cast("Any", object()), cast("Any", object())])
    cut, its_other, another = Held(holds, slow, fatal=True), Held(holds, slow, fatal=False), Held(holds, fine, fatal=False)
    for pull in (cut, its_other, another):
        assert holds.hold(pull, 60.0)
    if wake == "an arrival":
        holds.arrived({("T", 0): 1})
    elif wake == "the queue is gone":
        holds.answer_all(("T", 0))
    else:
        holds.close()
    assert (cut.answers, another.answers, len(holds)) == (1, 1, 0)


class Costly:
    """A pull with a filter that takes a look for each message, and is answered at *until*."""

    key = ("T", 0)
    is_costly = True

    def __init__(self, connection: Connection, until: int, tried: list["Costly"]) -> None:
        self.connection, self.offset = connection, 0
        self._until, self._tried = until, tried
        self.answered = False

    def try_answer(self) -> bool:
        self._tried.append(self)
        self.answered = self.offset == self._until
        self.offset += not self.answered
        return self.answered

    def answer(self) -> None:
        raise AssertionError("its time is not over")


async def test_costly_pulls_are_tried_in_slices_and_each_as_often_as_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 pulls with filters on one queue stopped the broker for a third of a second with each message."""
    monkeypatch.setattr(pull_hold, "COSTLY_SLICE_S", -1.0)  # one pull each
    holds = PullHolds(max_held=10, max_per_connection=10)
    here, gone = cast("list[Connection]", [cast("Any", object()), cast("Any", object())])
    tried: list[Costly] = []
    first, second, dropped, last = Costly(here, 2, tried), Costly(here, 9, tried), Costly(gone, 9, tried), Costly(here, 0, tried)
    usual = Held(holds, here, fatal=False)
    for pull in (first, second, dropped, last, usual):
        assert holds.hold(pull, 60.0)
    holds.arrived({("T", 0): 3})
    assert (tried, usual.answers) == ([first], 1)
    holds.drop(gone)
    for turn in range(2, 8):
        await asyncio.sleep(0)
        assert len(tried) == min(turn, 7)
    holds.arrived({("T", 0): 3})
    await asyncio.sleep(0)
    assert tried == [first, second, last, first, second, first, second]
    assert (first.answered, last.answered, second.answered, len(holds)) == (True, True, False, 1)
    holds.drop(here)
