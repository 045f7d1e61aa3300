"""Rates and lag from running totals."""

import pytest

from examples.demo.timeline import Timeline


@pytest.fixture
def timeline() -> Timeline:
    """Ten a second are sent for four seconds; the consumer starts a second late and needs two
    seconds more.
    """
    timeline = Timeline()
    for second in range(5):
        timeline.record("sent", second, second * 10)
    timeline.record("consumed", 1, 0)
    timeline.record("consumed", 6, 40)
    return timeline


def test_a_total_between_two_samples_lies_on_their_line(timeline: Timeline) -> None:
    assert [timeline.total_at("consumed", at) for at in (0, 1, 3.5, 6, 9)] == [0, 0, 20, 40, 40]
    assert timeline.total_at("never recorded", 1) == 0


def test_rates_are_per_second_at_the_middle_of_each_step(timeline: Timeline) -> None:
    assert timeline.rates("sent", step_s=2) == [(1, 10), (3, 10)]
    assert timeline.rates("never recorded") == []


def test_lag_is_what_was_produced_and_not_yet_consumed(timeline: Timeline) -> None:
    assert timeline.lag("sent", "consumed", step_s=1)[:5] == [
        (0, 0),
        (1, 10),
        (2, 12),
        (3, 14),
        (4, 16),
    ]
    assert timeline.lag("sent", "consumed", step_s=1)[-1] == (6, 0)
    assert timeline.lag("sent", "never recorded") == []
