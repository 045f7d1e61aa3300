"""Time that never goes back."""

import pytest

from ogive.store.clock import SteadyClock


class Times:
    """A wall clock that can be set, and a monotonic one that cannot."""

    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.passed_s = 50.0

    def passes(self, ms: int) -> None:
        self.wall_ms += ms
        self.passed_s += ms / 1000

    def clock(self, at_least_ms: int = 0) -> SteadyClock:
        return SteadyClock(lambda: self.wall_ms, lambda: self.passed_s, at_least_ms)


def test_it_is_the_wall_clock() -> None:
    times = Times()
    clock = times.clock()
    assert clock.now_ms() == 1_000_000
    times.passes(1234)
    assert clock.now_ms() == 1_001_234


def test_a_step_forward_is_followed_at_once() -> None:
    times = Times()
    clock = times.clock()
    times.wall_ms += 3_600_000
    assert clock.now_ms() == 4_600_000


def test_after_a_step_back_time_goes_on_and_is_never_faster_than_time() -> None:
    times = Times()
    clock = times.clock()
    times.wall_ms -= 3_600_000
    assert (now := clock.now_ms()) == 1_000_000
    for _ in range(1000):
        times.passes(16)
        assert now <= clock.now_ms() <= now + 16
        now = clock.now_ms()
    # 16 s, a sixteenth slower
    assert 1_014_900 <= now <= 1_015_100


@pytest.mark.parametrize("calls_per_s", [1, 30, 999, 4_500, 100_000])
def test_it_is_a_sixteenth_slower_at_any_rate_of_calls(calls_per_s: int) -> None:
    """Where calls are less than a millisecond apart, each tick of the wall clock looked like a step
    forward.
    """
    passed_s, set_back_ms, start_ms = 0.0, 0, 1_000_000_000
    clock = SteadyClock(
        lambda: start_ms + int(passed_s * 1000) - set_back_ms, lambda: 50.0 + passed_s
    )
    passed_s = 0.25
    now = clock.now_ms()
    assert now == start_ms + 250
    set_back_ms = 3_600_000
    for call in range(calls_per_s * 2 + 1):
        passed_s = 0.25 + call / calls_per_s
        assert now <= (now := clock.now_ms())
    assert abs(now - (start_ms + 250 + 2000 * 15 / 16)) <= 2


@pytest.mark.parametrize("gap_ms", [0, 300, 5_000])
def test_a_step_forward_among_many_calls_only_takes_back_what_it_is_ahead(gap_ms: int) -> None:
    times = Times()
    clock = times.clock()
    times.wall_ms -= 3_600_000
    clock.now_ms()
    for _ in range(gap_ms):
        times.passes(1)
        clock.now_ms()
    before = clock.now_ms()
    times.wall_ms += 1_800_000
    assert before <= clock.now_ms() <= before + 1
    times.wall_ms += 7_200_000
    assert clock.now_ms() == times.wall_ms


def test_a_wall_clock_that_catches_up_bit_by_bit_makes_it_no_faster() -> None:
    """Calls between two ticks of the wall clock do not begin the comparison of both clocks anew:
    each bit alone is too small to be seen.
    """
    times = Times()
    clock = times.clock()
    times.wall_ms -= 3_600_000
    before = clock.now_ms()
    for _ in range(1_000):
        times.wall_ms += 1
        for _ in range(2):
            clock.now_ms()
            times.passed_s += 0.00025
    assert 0 <= clock.now_ms() - before <= 510


def test_it_meets_the_wall_clock_again() -> None:
    times = Times()
    clock = times.clock()
    times.wall_ms -= 1000
    for _ in range(200):
        times.passes(100)
        clock.now_ms()
    assert clock.now_ms() == times.wall_ms


def test_a_step_that_is_taken_back_moves_nothing() -> None:
    times = Times()
    clock = times.clock()
    times.wall_ms -= 60_000
    clock.now_ms()
    times.wall_ms += 60_000
    assert clock.now_ms() == 1_000_000


def test_it_goes_on_where_an_earlier_process_left_off() -> None:
    times = Times()
    clock = times.clock(at_least_ms=1_005_000)
    assert clock.now_ms() == 1_005_000
    times.passes(1600)
    assert clock.now_ms() == 1_006_500


def test_how_far_it_is_ahead_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    times = Times()
    clock = times.clock(at_least_ms=1_005_000)
    assert [record.getMessage() for record in caplog.records] == [
        "the machine's clock is 5 s behind the newest stored message: the store's clock stays "
        "ahead and runs slower until they agree"
    ]
    times.wall_ms -= 3_600_000
    for _ in range(3):
        clock.now_ms()
    times.wall_ms -= 500
    clock.now_ms()
    assert len(caplog.records) == 2


@pytest.mark.parametrize("calls_per_s", [1_000, 4_500])
def test_a_wall_clock_that_runs_a_little_fast_never_takes_it_back(calls_per_s: int) -> None:
    """A daemon that corrects the clock by making it run 8% faster sets it on by a millisecond many
    times.
    """
    passed_s, set_back_ms = 0.0, 0
    clock = SteadyClock(
        lambda: 1_000_000_000 + int(passed_s * 1080) - set_back_ms, lambda: 50.0 + passed_s
    )
    set_back_ms = 3_600_000
    now = clock.now_ms()
    for call in range(calls_per_s * 2):
        passed_s = call / calls_per_s
        assert now <= (now := clock.now_ms())
    assert 2000 * 15 / 16 - 5 <= now - 1_000_000_000 <= 2005
