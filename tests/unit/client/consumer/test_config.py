"""Settings of a consumer: each limit itself is allowed, one step beyond it is refused by name."""

from typing import Any

import pytest

from ogive.client.consumer.config import ConsumerConfig
from ogive.errors import InvalidOption


def configured(fields: dict[str, Any]) -> ConsumerConfig:
    return ConsumerConfig(**fields)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("pull_batch_size", 1, 4096),
        ("pull_batch_bytes", 1024, 8 * 1024 * 1024),
        ("max_cached_messages", 1, 65_535),
        ("max_span", 1, 65_535),
        ("max_cached_bytes", 1, 2**40),
        ("max_topic_messages", 1, 6_553_500),
        ("max_topic_bytes", 1, 2**40),
        ("max_total_bytes", 1, 2**40),
    ],
)
def test_a_limit_itself_is_allowed_and_one_beyond_it_is_not(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(configured({name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidOption, match=f"{name} is {value}"):
            configured({name: value})


@pytest.mark.parametrize(
    "name",
    [
        "pull_suspend_s",
        "pull_retry_s",
        "rebalance_period_s",
        "rebalance_pause_s",
        "send_back_retry_s",
    ],
)
def test_a_period_must_be_above_zero(name: str) -> None:
    configured({name: 0.001})
    with pytest.raises(InvalidOption, match=name):
        configured({name: 0.0})


@pytest.mark.parametrize(
    ("good", "bad", "named"),
    [
        (
            {"persist_period_s": 5.0, "persist_again_s": 5.0},
            {"persist_period_s": 5.1, "persist_again_s": 5.0},
            "persist_period_s",
        ),
        ({"persist_period_s": 0.1}, {"persist_period_s": 0.0}, "persist_period_s"),
        (
            {"lock_renew_s": 9.9, "lock_lease_s": 10.0},
            {"lock_renew_s": 10.0, "lock_lease_s": 10.0},
            "lock_renew_s",
        ),
        ({"lock_renew_s": 0.1}, {"lock_renew_s": 0.0}, "lock_renew_s"),
        ({"await_termination_s": 0.0}, {"await_termination_s": -0.1}, "await_termination_s"),
    ],
)
def test_times_must_fit_each_other(good: dict[str, Any], bad: dict[str, Any], named: str) -> None:
    configured(good)
    with pytest.raises(InvalidOption, match=named):
        configured(bad)
