"""Figures of the last minute and hour, at times that the test gives."""

import pytest

from ogive.client.consumer.running_info import Statistics, TopicStatistics
from ogive.wire.bodies.clients import ConsumeStatus


@pytest.mark.feature(42, 43, 59, 79)
def test_averages_and_rates_of_the_last_minute() -> None:
    statistics = TopicStatistics(begun=1000.0)
    for second in range(30):
        statistics.pulled(1000.0 + second, 0.2, messages=32)
        statistics.consumed(1000.0 + second, 0.5, calls=10, done=9, failed=1)
    status = statistics.status(1030.0)
    assert (status.pull_rt, status.pull_tps) == (200.0, 32.0)
    assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_tps) == (50.0, 9.0, 1.0)
    assert status.consume_failed_count == 30


def test_what_is_older_than_a_minute_no_longer_counts_in_rates() -> None:
    statistics = TopicStatistics(begun=0.0)
    statistics.consumed(5.0, 3.0, calls=1, done=600, failed=60)
    statistics.consumed(65.0, 1.0, calls=1, done=100, failed=0)
    status = statistics.status(69.0)
    assert status.consume_rt == 1000.0
    # six slots of ten seconds, the last one not full yet
    assert status.consume_ok_tps == 100 / 59
    assert status.consume_failed_tps == 0
    assert status.consume_failed_count == 60


@pytest.mark.feature(79)
def test_times_of_the_hour_stand_in_for_a_quiet_minute() -> None:
    statistics = TopicStatistics(begun=0.0)
    statistics.consumed(5.0, 3.0, calls=2, done=2, failed=0)
    assert statistics.status(600.0).consume_rt == 1500.0
    assert statistics.status(600.0).consume_ok_tps == 0
    assert statistics.status(8000.0).consume_rt == 0


def test_nothing_yet() -> None:
    assert Statistics(begun=7.0).of("Orders").status(7.0) == ConsumeStatus()


def test_topics_are_counted_apart() -> None:
    statistics = Statistics(begun=0.0)
    statistics.of("Orders").pulled(1.0, 0.1, messages=5)
    assert statistics.of("Orders").status(1.0).pull_tps == 5
    assert statistics.of("Refunds").status(1.0).pull_tps == 0
    statistics.forget("Orders")
    assert statistics.of("Orders").status(1.0).pull_tps == 0
