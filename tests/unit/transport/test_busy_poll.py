"""When it is worth to look again instead of sleeping, with a clock that the tests move."""

import pytest

from ogive.transport.event_loop import (
    HELD_UP,
    HELD_UP_S,
    PAUSE_S,
    RARELY,
    ROUND,
    SAVED_S,
    SHARE,
    SOON,
    WAKING_S,
    Expectation,
)
from tests.unit.transport.machine import LIMIT_S, Machine


def wait(machine: Machine, expectation: Expectation, gap_s: float) -> float:
    """Expect something that comes after *gap_s*; for how long it was looked for."""
    looking, started = expectation.begin(), machine.now
    looked_s = 0.0
    while machine.now < started + gap_s:
        machine.now += 5e-6
        if looking and expectation.goes_on():
            looked_s = machine.now - started
        else:
            looking = False
    expectation.came()
    return looked_s


def test_looking_begins_when_requests_have_followed_answers_soon() -> None:
    machine = Machine()
    expectation = machine.expectation()
    assert [wait(machine, expectation, 60e-6) > 0 for _ in range(SOON + 2)] == [False] * SOON + [
        True
    ] * 2


def test_a_sleeper_is_allowed_for_its_own_waking() -> None:
    """Else nobody who sleeps would ever find out that waiting would have been shorter."""
    machine = Machine()
    expectation = machine.expectation()
    for _ in range(SOON):
        assert not wait(machine, expectation, LIMIT_S + WAKING_S - 10e-6)
    assert wait(machine, expectation, 50e-6) > 0


def test_requests_that_come_late_are_never_looked_for() -> None:
    machine = Machine()
    expectation = machine.expectation()
    assert not any(wait(machine, expectation, LIMIT_S + WAKING_S + 10e-6) for _ in range(1000))


def test_looking_ends_at_the_limit_and_is_then_rarer_each_time() -> None:
    machine = Machine()
    expectation = machine.expectation()
    asleep = 0
    pauses: list[int] = []
    while len(pauses) < 10:
        looked_s = wait(machine, expectation, LIMIT_S + 50e-6)
        assert looked_s <= LIMIT_S
        if looked_s:
            pauses.append(asleep)
            asleep = 0
        asleep += 1
    assert pauses == [SOON, *(min(RARELY, SOON * 2**n) for n in range(1, 10))]


def test_a_request_that_was_looked_for_and_came_makes_up_for_those_that_did_not() -> None:
    machine = Machine()
    expectation = machine.expectation()
    for _ in range(3):
        while not wait(machine, expectation, LIMIT_S + 50e-6):
            pass
    while not wait(machine, expectation, 50e-6):
        pass
    assert wait(machine, expectation, LIMIT_S + 50e-6)
    assert [wait(machine, expectation, 50e-6) > 0 for _ in range(2 * SOON)] == [False] * (
        2 * SOON - 1
    ) + [True]


@pytest.mark.parametrize(
    "pattern", [[50e-6, 150e-6], [50e-6] * 3 + [0.001], [10e-6] * SOON + [101e-6], [20e-6, 500e-6]]
)
def test_looking_in_vain_costs_no_more_than_its_share_of_the_time_whatever_the_requests_do(
    pattern: list[float],
) -> None:
    machine = Machine()
    expectation = machine.expectation()
    started, in_vain_s = machine.now, 0.0
    for number in range(20_000):
        gap_s = pattern[number % len(pattern)]
        looked_s = wait(machine, expectation, gap_s)
        if looked_s and gap_s > LIMIT_S:
            in_vain_s += LIMIT_S
    assert in_vain_s <= SHARE * (machine.now - started) + SAVED_S + LIMIT_S


def test_looking_that_something_else_ends_is_paid_for_too() -> None:
    machine = Machine()
    expectation = machine.expectation()
    started, in_vain_s = machine.now, 0.0
    for _ in range(5_000):
        for _ in range(SOON):
            wait(machine, expectation, 50e-6)
        in_vain_s += 90e-6 * expectation.begin()
        machine.now += 90e-6
        expectation.disturb()
    assert in_vain_s <= SHARE * (machine.now - started) + SAVED_S + LIMIT_S


def test_there_is_no_looking_while_others_want_the_processor() -> None:
    machine = Machine()
    expectation = machine.expectation()
    while not wait(machine, expectation, 50e-6):
        pass
    looked, started = 0, machine.now
    for _ in range(10_000):
        looked += wait(machine, expectation, 50e-6) > 0
        machine.taken_away += 1
    assert looked <= (ROUND + 1) * (1 + (machine.now - started) / PAUSE_S)
    machine.now += PAUSE_S
    assert sum(wait(machine, expectation, 50e-6) > 0 for _ in range(1000)) > 900


def test_something_else_that_comes_ends_it_without_blame() -> None:
    machine = Machine()
    expectation = machine.expectation()
    while not wait(machine, expectation, 50e-6):
        pass
    assert expectation.begin()
    expectation.disturb()
    assert not expectation.goes_on()
    assert [wait(machine, expectation, 50e-6) > 0 for _ in range(SOON + 1)] == [False] * SOON + [
        True
    ]


def hold_up(machine: Machine, expectation: Expectation, keeps_s: float) -> bool:
    """Look as soon as it is allowed, and have somebody keep the processor; whether the looking went
    on.
    """
    while not expectation.begin():
        machine.now += 50e-6
        expectation.came()
    machine.keeps_s = keeps_s
    goes_on = expectation.goes_on()
    assert goes_on or not expectation.goes_on()
    machine.keeps_s = 0.0
    expectation.came()
    return goes_on


def test_whoever_looks_gives_way_and_sleeps_for_a_while_if_somebody_wanted_that() -> None:
    """A thread that waits for the interpreter, or a peer that needs this very processor."""
    machine = Machine()
    expectation = machine.expectation()
    assert hold_up(machine, expectation, HELD_UP_S * 0.9)
    for _ in range(HELD_UP):
        assert machine.now < 1000.0 + PAUSE_S
        assert not hold_up(machine, expectation, HELD_UP_S * 1.1)
    held_up_at = machine.now
    while not wait(machine, expectation, 50e-6):
        pass
    assert machine.now - held_up_at >= PAUSE_S
    assert wait(machine, expectation, 50e-6)


def test_a_machine_that_stops_now_and_then_is_looked_on() -> None:
    machine = Machine()
    expectation = machine.expectation()
    for _ in range(100):
        looked = [wait(machine, expectation, 50e-6) > 0 for _ in range(ROUND + SOON)]
        assert sum(looked) >= ROUND - 1
        assert not hold_up(machine, expectation, HELD_UP_S * 1.1)


def test_being_held_up_is_no_looking_in_vain() -> None:
    """Only what it looked for before that is paid for."""
    machine = Machine()
    expectation = machine.expectation()
    for _ in range(int(2 * SAVED_S / LIMIT_S)):
        machine.now += 2 * PAUSE_S
        for _ in range(SOON):
            assert not wait(machine, expectation, 50e-6)
        assert expectation.begin()
        machine.keeps_s = SAVED_S
        assert not expectation.goes_on()
        machine.keeps_s = 0.0
