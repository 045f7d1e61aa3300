"""Who goes when what waits to be read by all connections together is too much."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from ogive.transport.limits import ServerLimits
from ogive.transport.server import COUNTED, Unread

MIB = 1024 * 1024


class Clock:
    """The loop of these tests: what is called later is called by look()."""

    def __init__(self) -> None:
        self.now = 100.0
        self.later: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> object:
        self.later.append(call)
        return call

    def look(self) -> None:
        due, self.later = self.later, []
        for call in due:
            call()


class Reader:
    """A connection. Its peer takes *rate* bytes a second."""

    def __init__(self, unread: Unread, name: str, held: int, rate: int = 0) -> None:
        self.remote_address, self.held_bytes, self.rate = name, held, rate
        self.taken_bytes, self.closed, self.reason = 0, False, ""
        unread.count(self)

    def abort(self, reason: str) -> None:
        self.closed, self.reason = True, reason


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def unread(clock: Clock) -> Unread:
    return Unread(
        cast("asyncio.AbstractEventLoop", cast("Any", clock)),
        ServerLimits(max_unread_bytes=64 * MIB, slow_reader_s=60.0),
    )


def pass_s(clock: Clock, unread: Unread, readers: list[Reader], seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1.0
        for reader in readers:
            reader.taken_bytes += reader.rate
        unread.sweep()


def test_who_takes_least_and_holds_most_goes_and_an_honest_one_on_a_slow_network_stays(
    clock: Clock, unread: Unread
) -> None:
    honest = Reader(unread, "honest", 4 * MIB, rate=100 * 1024)
    hogs = [Reader(unread, f"hog {i}", 4 * MIB, rate=1024) for i in range(13)]
    smaller = Reader(unread, "a smaller hog", MIB, rate=1024)
    pass_s(clock, unread, [honest, *hogs, smaller], 3)
    assert not clock.later
    new = Reader(unread, "new", 4 * MIB)
    assert unread.is_full
    clock.look()
    assert not unread.is_full
    assert sum(hog.closed for hog in hogs) == 1
    assert not any(one.closed for one in (honest, smaller, new))
    assert "more than allowed" in next(hog.reason for hog in hogs if hog.closed)


def test_of_those_of_whom_nothing_is_known_yet_the_largest_and_oldest_goes(
    clock: Clock, unread: Unread
) -> None:
    usual = Reader(unread, "usual", 256 * 1024)
    readers = []
    for i in range(16):
        clock.now += 0.001
        readers.append(Reader(unread, str(i), 4 * MIB))
    clock.look()
    assert [reader.remote_address for reader in readers if reader.closed] == ["0", "1"]
    assert not usual.closed


def test_while_all_take_their_answers_the_others_wait_and_nobody_is_cut(
    clock: Clock, unread: Unread
) -> None:
    readers = [Reader(unread, str(i), 4 * MIB, rate=MIB) for i in range(15)]
    pass_s(clock, unread, readers, 3)
    readers[0].held_bytes += 2 * MIB
    unread.count(readers[0])
    for _ in range(5):
        clock.look()
        assert unread.is_full
    assert not any(reader.closed for reader in readers)
    readers[0].held_bytes -= 3 * MIB
    clock.look()
    assert not unread.is_full
    assert not clock.later


def test_over_the_limit_one_goes_also_where_all_take_their_answers(
    clock: Clock, unread: Unread
) -> None:
    readers = [Reader(unread, str(i), 4 * MIB, rate=MIB) for i in range(15)]
    pass_s(clock, unread, readers, 3)
    readers[3].held_bytes += 5 * MIB
    unread.count(readers[3])
    clock.look()
    assert [reader.remote_address for reader in readers if reader.closed] == ["3"]


def test_what_was_taken_meanwhile_costs_nobody_the_connection(clock: Clock, unread: Unread) -> None:
    """What is counted is never less than what is held, and looked at once more before anybody
    goes.
    """
    readers = [Reader(unread, str(i), 4 * MIB) for i in range(40)]
    for reader in readers:
        reader.held_bytes = 0
    clock.look()
    assert (unread.total, unread.is_full, any(reader.closed for reader in readers)) == (
        0,
        False,
        False,
    )


async def test_who_waits_for_room_goes_on_when_there_is_some(clock: Clock, unread: Unread) -> None:
    reader = Reader(unread, "it", 63 * MIB)
    waiting = asyncio.create_task(unread.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.held_bytes = COUNTED - 1
    clock.look()
    await waiting
    assert unread.total == 0
