"""What plots are drawn from."""

import pytest

from ogive.console.charts import DAY_S, DAY_STEP_S, GAP_S, STEP_S, WINDOW_S, Samples
from ogive.console.format import plot


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def filled(clock: Clock, *looks: tuple[float, float]) -> Samples:
    """*looks*: seconds since the one before, value."""
    samples = Samples(clock)
    for seconds, value in looks:
        clock.now += seconds
        samples.add(("lag", "billing"), value)
    return samples


def test_samples_are_so_many_minutes_old() -> None:
    samples = filled(Clock(), (0, 5), (30, 7))
    assert samples.curves(("lag", "billing")) == [[(-0.5, 5), (0, 7)]]
    assert samples.curves(("lag", "other")) == []


def test_a_time_without_a_look_breaks_the_curve() -> None:
    samples = filled(Clock(), (0, 5), (GAP_S + 1, 7), (10, 8))
    assert [[value for _, value in piece] for piece in samples.curves(("lag", "billing"))] == [
        [5],
        [7, 8],
    ]


def test_looks_at_the_same_moment_are_one_sample_and_old_ones_go() -> None:
    clock = Clock()
    samples = filled(clock, *[(STEP_S / 4, float(i)) for i in range(8000)])
    assert len(samples._series["lag", "billing"]) <= WINDOW_S / STEP_S + 1


def test_of_the_day_a_sample_in_five_minutes_is_kept() -> None:
    clock = Clock()
    samples = filled(clock, *[(60, float(i)) for i in range(3000)])
    (curve,) = samples.curves(("lag", "billing"), day=True)
    assert curve[0][0] >= -DAY_S / 60
    assert curve[0][0] < -23 * 60
    assert curve[-1] == (0, 2999)
    assert len(curve) <= DAY_S / DAY_STEP_S + WINDOW_S / 60 + 1
    (rates,) = samples.rates(("lag", "billing"), day=True)
    assert rates[0][1] == pytest.approx(1 / 60)
    assert ">−24 h<" in plot("t", [("x", [curve])])


def test_a_sample_that_nobody_asked_for_takes_no_room() -> None:
    samples = Samples(Clock(), limit=1)
    samples.add(("a",), 1)
    samples.add(("b",), 1, evict=False)
    assert samples.curves(("a",)) == [[(0, 1)]]
    assert samples.curves(("b",)) == []


def test_a_rate_is_how_fast_a_total_grows() -> None:
    samples = filled(Clock(), (0, 100), (10, 150), (10, 30), (GAP_S + 1, 1000))
    assert [[value for _, value in piece] for piece in samples.rates(("lag", "billing"))] == [
        [5, 0]
    ]


def test_the_number_of_series_is_bounded() -> None:
    samples = Samples(Clock(), limit=3)
    for name in ("a", "b", "c", "a", "d"):
        samples.add((name,), 1)
    assert [name for (name,) in samples._series] == ["c", "a", "d"]


def test_a_plot_reaches_as_far_back_as_its_samples() -> None:
    assert plot("t", [("x", [])]) == ""
    assert "−1 min" in plot("t", [("x", [[(-0.5, 1)]])])
    assert "−10 min" in plot("t", [("x", [[(-9, 1), (0, 2)]])])


def test_a_plot_escapes_what_it_names() -> None:
    assert "<b>" not in plot("<b>", [("<b>", [[(0, 1)]])])
