"""Counters and rates, on clocks that the test moves."""

import time
from dataclasses import dataclass, field

import pytest

from ogive.broker.stats import SAMPLE_S, Counts, Traffic

DAY_MS = 86_400_000


@dataclass
class Clock:
    now: float = 1000.0
    day_ms: int = field(default_factory=lambda: int(time.mktime((2026, 1, 15, 12, 0, 0, 0, 0, -1)) * 1000))
    puts: int = 0

    def traffic(self) -> Traffic:
        return Traffic(puts=lambda: self.puts, now=lambda: self.now, now_ms=lambda: self.day_ms)

    async def run(self, traffic: Traffic, seconds: int, puts_per_s: int) -> None:
        """Time passes, and a sample is taken every SAMPLE_S."""
        for second in range(1, seconds + 1):
            self.now += 1.0
            self.puts += puts_per_s
            if second % SAMPLE_S == 0:
                await traffic.sample()


async def test_rates_are_those_of_the_last_ten_seconds_minute_and_ten_minutes() -> None:
    clock = Clock()
    traffic = clock.traffic()
    await clock.run(traffic, 540, 10)
    await clock.run(traffic, 60, 100)
    assert [rate.put for rate in traffic.rates()] == [100.0, 100.0, pytest.approx(19.0)]
    await clock.run(traffic, 30, 0)
    ten_seconds, minute, _ = traffic.rates()
    assert (ten_seconds.put, minute.put) == (0.0, 50.0)
    await clock.run(traffic, 6_000, 1)
    assert [rate.put for rate in traffic.rates()] == [1.0, 1.0, 1.0]


async def test_a_young_broker_shows_its_rates_since_the_start() -> None:
    clock = Clock()
    traffic = clock.traffic()
    assert traffic.rates()[0].put == 0.0
    await clock.run(traffic, 4, 10)
    assert [rate.put for rate in traffic.rates()] == [10.0, 10.0, 10.0]


async def test_pulls_count_for_their_group_and_as_found_or_missed() -> None:
    clock = Clock()
    traffic = clock.traffic()
    for _ in range(6):
        traffic.pulled("G", 20)
        traffic.pulled("G", 0)
    assert traffic.counts() == Counts(0, 120, 6, 6)
    await clock.run(traffic, 60, 0)
    assert traffic.group_rate("G") == 2.0
    assert traffic.group_rate("unknown") == 0.0
    await clock.run(traffic, 60, 0)
    assert traffic.group_rate("G") == 0.0
    traffic.pulled("G", 60)
    traffic.forget_group("G")
    traffic.forget_group("G")
    assert traffic.group_rate("G") == 0.0


async def test_the_day_s_totals_start_at_midnight() -> None:
    clock = Clock()
    traffic = clock.traffic()
    await clock.run(traffic, 10, 5)
    clock.day_ms += DAY_MS
    await clock.run(traffic, 10, 0)
    assert [morning.put for morning in traffic.mornings] == [50, 0]
    await clock.run(traffic, 10, 2)
    assert [morning.put for morning in traffic.mornings] == [50, 0]
    clock.day_ms += DAY_MS
    await clock.run(traffic, 10, 0)
    assert [morning.put for morning in traffic.mornings] == [70, 50]
