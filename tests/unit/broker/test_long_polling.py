"""Held pulls whose connection ends while one of them is answered: a client that does not read is
cut off by an answer too many. Many of them, or costly ones, which let others have their turn. And
how many are held for whom.
"""

import asyncio
from typing import cast

import pytest

from ogive.broker.pulls import long_polling
from ogive.broker.pulls.long_polling import PullHolds
from ogive.transport.connection import Connection


def a_connection() -> Connection:
    return cast("Connection", object())


class Held:
    """A pull whose answer ends its connection, as an answer beyond the limit of unsent bytes
    does.
    """

    key = ("T", 0)
    offset = 0
    is_costly = False

    def __init__(self, holds: PullHolds, connection: Connection, *, fatal: bool) -> None:
        self._holds, self.connection, self._fatal = holds, connection, fatal
        self.answers = 0

    def try_answer(self, *, final: bool = False) -> bool:
        self.answers += 1
        if self._fatal:
            self._holds.drop(self.connection)
        return True


@pytest.mark.parametrize("wake", ["an arrival", "the queue is gone", "the broker closes"])
async def test_a_connection_that_ends_by_an_answer_stops_no_other_pull(wake: str) -> None:
    holds = PullHolds(max_held=10, max_per_connection=10)
    slow, fine = a_connection(), a_connection()
    cut, its_other, another = (
        Held(holds, slow, fatal=True),
        Held(holds, slow, fatal=False),
        Held(holds, fine, fatal=False),
    )
    for pull in (cut, its_other, another):
        assert holds.hold(pull, 60.0)
    if wake == "an arrival":
        holds.arrived({("T", 0): 1})
    elif wake == "the queue is gone":
        holds.answer_all(("T", 0))
        await asyncio.sleep(0)
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

    def try_answer(self, *, final: bool = False) -> bool:
        assert not final, "its time is not over"
        self._tried.append(self)
        self.answered = self.offset == self._until
        self.offset += not self.answered
        return self.answered


async def test_costly_pulls_are_tried_in_slices_and_each_as_often_as_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2,000 pulls with filters on one queue stopped the broker for a third of a second with each
    message.
    """
    # one pull each
    monkeypatch.setattr(long_polling, "SLICE_S", -1.0)
    holds = PullHolds(max_held=10, max_per_connection=10)
    here, gone = a_connection(), a_connection()
    tried: list[Costly] = []
    first, second, dropped, last = (
        Costly(here, 2, tried),
        Costly(here, 9, tried),
        Costly(gone, 9, tried),
        Costly(here, 0, tried),
    )
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


async def test_a_usual_pull_does_not_wait_for_costly_ones_of_its_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_polling, "SLICE_S", -1.0)
    holds = PullHolds(max_held=100, max_per_connection=100)
    connection, tried = a_connection(), list[Costly]()
    for _ in range(70):
        assert holds.hold(Costly(connection, 9, tried), 60.0)
    usual = Passing(connection)
    assert holds.hold(usual, 60.0)
    for end, costly in ((1, 3), (2, 5)):
        usual.end = end
        holds.arrived({("T", 0): end})
        for _ in range(3):
            await asyncio.sleep(0)
        assert (usual.tries, len(tried)) == (end, costly)
    holds.drop(connection)


class Passing:
    """A pull that nothing matches: it passes over what has come, to the end that the test says."""

    is_costly = False

    def __init__(self, connection: Connection, queue_id: int = 0) -> None:
        self.connection, self.key, self.offset = connection, ("T", queue_id), 0
        self.tries = self.answers = 0
        self.end = 1

    def try_answer(self, *, final: bool = False) -> bool:
        if final:
            self.answers += 1
            return True
        self.tries += 1
        self.offset = self.end
        return False


def tries(pulls: list[Passing]) -> int:
    return sum(pull.tries for pull in pulls)


async def test_many_pulls_of_one_queue_are_tried_in_slices_and_others_do_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """50,000 pulls of one host, with a tag that never comes, stopped the broker for a quarter of a
    second with each message.
    """
    # 64 pulls each
    monkeypatch.setattr(long_polling, "SLICE_S", -1.0)
    holds = PullHolds(max_held=1000, max_per_connection=1000)
    connection = a_connection()
    many, few, other = (
        [Passing(connection) for _ in range(200)],
        Passing(connection, 1),
        [Passing(connection, 2) for _ in range(65)],
    )
    for pull in (*many, few, *other):
        assert holds.hold(pull, 60.0)
    holds.arrived({("T", 0): 1})
    assert tries(many) == 64
    holds.arrived({("T", 1): 1, ("T", 2): 1})
    assert (few.tries, tries(many), tries(other)) == (1, 64, 0)
    await asyncio.sleep(0)
    assert (tries(many), tries(other)) == (128, 0)
    await asyncio.sleep(0)
    assert (tries(many), tries(other)) == (128, 64)
    for _ in range(2):
        await asyncio.sleep(0)
    assert [pull.tries for pull in many] == [1] * 200
    for _ in range(3):
        await asyncio.sleep(0)
    assert [pull.tries for pull in many] == [1] * 200
    holds.drop(connection)


async def test_what_arrives_while_many_pulls_are_tried_is_tried_with_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(long_polling, "SLICE_S", -1.0)
    holds = PullHolds(max_held=1000, max_per_connection=1000)
    staying, leaving = a_connection(), a_connection()
    many, gone = [Passing(staying) for _ in range(100)], [Passing(leaving) for _ in range(100)]
    for pull in (*many, *gone):
        assert holds.hold(pull, 60.0)
    holds.arrived({("T", 0): 1})
    holds.drop(leaving)
    for pull in many:
        pull.end = 3
    holds.arrived({("T", 0): 2})
    holds.arrived({("T", 0): 3})
    for _ in range(10):
        await asyncio.sleep(0)
    assert [pull.tries for pull in many] == [2] * 64 + [1] * 36
    assert (tries(gone), len(holds)) == (0, 100)
    holds.drop(staying)


@pytest.mark.parametrize("wake", ["the queue is gone", "their time is over"])
async def test_many_pulls_are_answered_in_slices(
    wake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset of 50,000 held pulls, or the end of their time, stopped the broker for a quarter of a
    second.
    """
    monkeypatch.setattr(long_polling, "SLICE_S", -1.0)
    holds = PullHolds(max_held=1000, max_per_connection=1000)
    connection = a_connection()
    many, later = [Passing(connection) for _ in range(200)], Passing(connection)
    for pull in many:
        assert holds.hold(pull, 60.0 if wake == "the queue is gone" else 0.0)
    if wake == "the queue is gone":
        holds.answer_all(("T", 0))
    assert holds.hold(later, 60.0)
    seen = set()
    async with asyncio.timeout(60):
        while len(holds) > 1:
            await asyncio.sleep(0)
            seen.add(len(holds))
    assert {201 - 64, 201 - 128, 201 - 192} <= seen
    assert [pull.answers for pull in many] == [1] * 200
    assert later.answers == 0
    holds.arrived({("T", 0): 1})
    assert later.tries == 1
    holds.drop(connection)


async def test_pulls_that_are_to_be_answered_are_answered_at_the_close() -> None:
    holds = PullHolds(max_held=10, max_per_connection=10)
    pull = Passing(a_connection())
    assert holds.hold(pull, 60.0)
    holds.answer_all(("T", 0))
    holds.close()
    await asyncio.sleep(0)
    assert (pull.answers, len(holds)) == (1, 0)


async def test_who_holds_many_pulls_leaves_others_room_for_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """25 connections took the room of all, and the only pull of another client was refused."""
    monkeypatch.setattr(long_polling, "FEW", 2)
    holds = PullHolds(max_held=5, max_per_connection=4)
    greedy, another, modest = a_connection(), a_connection(), a_connection()
    assert [holds.hold(Passing(greedy), 60.0) for _ in range(5)] == [True] * 4 + [False]
    assert [holds.hold(Passing(another), 60.0) for _ in range(3)] == [True, True, False]
    assert [holds.hold(Passing(modest), 60.0) for _ in range(3)] == [True, True, False]
    holds.drop(greedy)
    assert [holds.hold(Passing(another), 60.0) for _ in range(2)] == [True, False]
    for connection in (another, modest):
        holds.drop(connection)
    assert len(holds) == 0
