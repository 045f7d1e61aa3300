"""Counters and rates, on clocks that the test moves."""

import itertools
import time
from dataclasses import dataclass, field

import pytest

from ogive.broker.traffic import (
    SAMPLE_S,
    SIZE_BOUNDS,
    ByTopic,
    Counts,
    Durations,
    Traffic,
    TrafficTotals,
)
from ogive.model import HALF_TOPIC, SYSTEM_TOPICS
from ogive.transport.monitoring import Values
from ogive.wire.codes import RequestCode

SEND = RequestCode.SEND_MESSAGE_V2
DAY_MS = 86_400_000


@dataclass
class Clock:
    now: float = 1000.0
    day_ms: int = field(
        default_factory=lambda: int(time.mktime((2026, 1, 15, 12, 0, 0, 0, 0, -1)) * 1000)
    )
    puts: int = 0

    def traffic(self) -> Traffic:
        return Traffic(
            puts=lambda: self.puts,
            is_system=SYSTEM_TOPICS.__contains__,
            now=lambda: self.now,
            now_ms=lambda: self.day_ms,
        )

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


async def test_rates_that_are_shown_together_are_of_one_moment() -> None:
    """Of a broker that is younger than ten seconds all three are the same: text is made of them,
    and compared.
    """
    clock, puts = Clock(), itertools.chain([0], itertools.repeat(10))
    # on a slow machine time passes between two looks at the clock
    times = itertools.count(1000.0, 1.5)
    traffic = Traffic(
        puts=lambda: next(puts),
        is_system=bool,
        now=lambda: next(times),
        now_ms=lambda: clock.day_ms,
    )
    assert len({rate.put for rate in traffic.rates()}) == 1


async def test_histograms_count_up_to_each_bound() -> None:
    traffic = Clock().traffic()
    for size, messages in ((1024, 1), (1025, 1), (3 * 4096, 3), (4 * 1024**2 + 1, 1)):
        traffic.stored("T", messages, size, 0.0, SEND)
    assert dict(traffic.sizes()) == {
        "T": (SIZE_BOUNDS, [1, 5, 5, 5, 5, 5], 6, 2049 + 3 * 4096 + 4 * 1024**2 + 1)
    }
    times = Durations()
    for ms in (0.5, 2.5, 99.5, 150, 1500, 2500, 20_000):
        times.add(ms / 1000)
    bounds, at_most, count, total = times.histogram()
    assert (list(bounds), at_most, count) == (
        [1, 3, 5, 7, 10, 100, 1000, 2000, 3000],
        [1, 2, 2, 2, 2, 3, 4, 5, 6],
        7,
    )
    assert total == pytest.approx(24252.5)
    values = Values((5, 60))
    for seconds in (0, 5, 6, 61):
        values.add(seconds)
    assert values.histogram() == ((5, 60), [2, 3], 4, 72)


def test_figures_of_topics_are_bounded_and_go_with_their_topic() -> None:
    values = ByTopic(lambda: Values((5,)), max_topics=2)
    for topic in ("A", "B", "C", "D"):
        values.of(topic).add(1)
    assert [topic for topic, _ in values.items()] == ["A", "B"]
    values.forget("A")
    values.of("C").add(1)
    assert {topic: of.histogram().all for topic, of in values.items()} == {"B": 1, "C": 1}


async def test_sends_count_by_their_request_and_answer() -> None:
    traffic = Clock().traffic()
    traffic.stored("T", 1, 100, 0.002, RequestCode.SEND_MESSAGE)
    traffic.stored_run(["T", "U"], [100, 100], 0.004, SEND)
    traffic.refused(SEND, 14, by_store=True, times=2)
    traffic.refused(SEND, 13, by_store=False)
    assert {code: sum(times.table().values()) for code, times in traffic.send_times.items()} == {
        10: 1,
        310: 2,
        320: 0,
    }
    assert {key: sum(times.table().values()) for key, times in traffic.refusal_times.items()} == {
        (310, 14): 2,
        (310, 13): 1,
    }
    assert (
        traffic.put_times.longest_s,
        sum(traffic.put_times.table().values()),
        traffic.failed,
    ) == (0.004, 3, 2)


async def test_where_pulls_have_come_to_is_known_by_queue() -> None:
    traffic = Clock().traffic()
    traffic.pulled("G", "T", 0, 20, 400, 20)
    traffic.pulled("G", "T", 3, 1, 20, 8)
    traffic.pulled("G", "T", 3, 0, 0, 9)
    assert traffic.gets.ends("G", "T") == {0: 20, 3: 8}
    traffic.forget_group("G")
    assert traffic.gets.ends("G", "T") == {}


async def test_pulls_count_for_their_group_and_as_found_or_missed() -> None:
    clock = Clock()
    traffic = clock.traffic()
    for _ in range(6):
        traffic.pulled("G", "T", 0, 20, 400, 20)
        traffic.pulled("G", "T", 0, 0, 0, 20)
    assert traffic.counts() == TrafficTotals(0, 120, 6, 6)
    await clock.run(traffic, 60, 0)
    assert traffic.group_rate("G") == 2.0
    assert traffic.group_rate("unknown") == 0.0
    await clock.run(traffic, 60, 0)
    assert traffic.group_rate("G") == 0.0
    traffic.pulled("G", "T", 0, 60, 60, 80)
    traffic.forget_group("G")
    traffic.forget_group("G")
    assert traffic.group_rate("G") == 0.0


async def test_the_day_s_totals_start_at_midnight_and_are_without_the_broker_s_own_topics() -> None:
    clock = Clock()
    traffic = clock.traffic()
    for topic in ("T", HALF_TOPIC):
        traffic.stored(topic, 50, 5000, 0.0, SEND)
        traffic.pulled("G", topic, 0, 7, 70, 7)
    clock.day_ms += DAY_MS
    await clock.run(traffic, 10, 0)
    assert traffic.mornings == ((50, 7), (0, 0))
    traffic.stored_run(["T", HALF_TOPIC] * 20, [100] * 40, 0.0, SEND)
    await clock.run(traffic, 10, 0)
    assert traffic.mornings == ((50, 7), (0, 0))
    clock.day_ms += DAY_MS
    await clock.run(traffic, 10, 0)
    assert traffic.mornings == ((70, 7), (50, 7))


def test_no_share_of_the_times_is_above_the_longest() -> None:
    """Beyond 100 ms they are known by steps only."""
    times = Durations()
    for ms in (3, 215):
        times.add(ms / 1000)
    assert (times.share_ms(0.5), times.share_ms(0.99)) == (3, 215)


async def test_figures_by_topic_are_those_of_the_last_minute_hour_and_day() -> None:
    """Ten a second for two hours, nothing for half an hour, then one message."""
    clock = Clock()
    traffic = clock.traffic()
    for _ in range(720):
        traffic.stored("T", 100, 5_000, 0.0, SEND)
        await clock.run(traffic, 10, 0)
    await clock.run(traffic, 1_800, 0)
    traffic.stored("T", 1, 7, 0.0, SEND)
    passed = traffic.puts.passed("T", "")
    assert passed is not None
    minute, hour, day = passed
    assert (minute.counts, minute.elapsed_s) == (Counts(1, 7, 1), 60.0)
    assert (hour.counts.messages, hour.elapsed_s) == (18_001, 3_600.0)
    assert (day.counts, day.elapsed_s) == (
        Counts(72_001, 3_600_007, 721),
        9_000.0,
    )
    assert traffic.puts.passed("U", "") is None


async def test_a_day_s_figures_end_a_day_later() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.stored("T", 5, 5, 0.0, SEND)
    await clock.run(traffic, 90_000, 0)
    passed = traffic.puts.passed("T", "")
    assert passed is not None
    assert passed[2].counts.messages == 0
    traffic.stored("T", 2, 2, 0.0, SEND)
    passed = traffic.puts.passed("T", "")
    assert passed is not None
    assert [part.counts.messages for part in passed] == [2, 2, 2]


async def test_figures_are_forgotten_with_their_topic_or_group() -> None:
    clock = Clock()
    traffic = clock.traffic()
    traffic.stored("T", 1, 1, 0.0, SEND)
    for group in ("G", "H"):
        for topic in ("T", "U"):
            traffic.pulled(group, topic, 0, 1, 1, 1)
    traffic.forget_topic("T")
    assert [
        traffic.puts.passed("T", ""),
        traffic.gets.passed("G", "T"),
        traffic.gets.passed("H", "T"),
    ] == [None] * 3
    traffic.forget_group("G")
    assert (traffic.gets.passed("G", "U"), len(traffic.gets), len(traffic.puts)) == (None, 1, 0)


async def test_a_full_table_takes_new_keys_when_old_ones_were_idle_for_a_day() -> None:
    clock = Clock()
    traffic = Traffic(
        puts=lambda: 0,
        is_system=bool,
        now=lambda: clock.now,
        now_ms=lambda: clock.day_ms,
        max_keys=2,
    )
    for topic in ("A", "B", "C"):
        traffic.stored(topic, 1, 1, 0.0, SEND)
    assert (len(traffic.puts), traffic.puts.passed("C", "")) == (2, None)
    for _ in range(26):
        traffic.stored("B", 1, 1, 0.0, SEND)
        await clock.run(traffic, 3_600, 0)
    traffic.stored("C", 1, 1, 0.0, SEND)
    assert traffic.puts.passed("A", "") is None
    assert traffic.puts.passed("C", "") is not None


def test_durations_are_shown_in_java_s_steps() -> None:
    times = Durations()
    assert times.share_ms(0.99) == 0
    for seconds in (
        0.0004,
        0.003,
        0.009,
        0.02,
        0.07,
        0.15,
        0.3,
        0.7,
        1.5,
        2.5,
        3.5,
        4.5,
        7.0,
        60.0,
    ):
        times.add(seconds)
    assert list(times.table().values()) == [1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert (times.share_ms(0.2), times.share_ms(1.0), times.longest_s) == (9, 60_000, 60.0)
