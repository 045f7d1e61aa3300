"""How much goes in and out: counters since the start, and rates. Source: StoreStatsService.java, BrokerStatsManager.java, 5.3.

Differs from Java: a broker that is younger than a rate's window shows the rate since its start, where Java shows nothing.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

SAMPLE_S: Final = 10.0
WINDOWS_S: Final = (10.0, 60.0, 600.0)
GROUP_WINDOW_S: Final = 60.0
_JITTER_S: Final = SAMPLE_S / 2  # a sample that is this much too young for a window still counts for it


class Counts(NamedTuple):
    """Messages stored, messages handed out, pulls that found some, pulls that found none."""

    put: int = 0
    transferred: int = 0
    found: int = 0
    missed: int = 0


class Rates(NamedTuple):
    """The same, per second."""

    put: float
    transferred: float
    found: float
    missed: float


class Traffic:
    """Pulls count here; sends are counted by the store. Event-loop only; ``sample`` is called every SAMPLE_S."""

    __slots__ = ("_by_group", "_found", "_group_samples", "_missed", "_mornings", "_now", "_now_ms", "_puts", "_samples", "_transferred")

    def __init__(self, *, puts: Callable[[], int], now: Callable[[], float], now_ms: Callable[[], int]) -> None:
        """*puts*: messages stored so far. *now*: seconds, monotonic. *now_ms*: the time of day, for the day's totals."""
        self._puts, self._now, self._now_ms = puts, now, now_ms
        self._transferred = self._found = self._missed = 0
        self._by_group: dict[str, int] = {}
        self._samples = deque([(now(), self.counts())], maxlen=round(WINDOWS_S[-1] / SAMPLE_S) + 1)
        self._group_samples: deque[tuple[float, dict[str, int]]] = deque([(now(), {})], maxlen=round(GROUP_WINDOW_S / SAMPLE_S) + 1)
        self._mornings = (self._today(), Counts(), Counts())  # the day, the counts at its beginning and at that of the day before

    def pulled(self, group: str, count: int) -> None:
        """One pull was answered with *count* messages."""
        if count:
            self._found += 1
            self._transferred += count
            self._by_group[group] = self._by_group.get(group, 0) + count
        else:
            self._missed += 1

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        self._by_group.pop(group, None)
        for _, then in self._group_samples:
            then.pop(group, None)

    def counts(self) -> Counts:
        return Counts(self._puts(), self._transferred, self._found, self._missed)

    async def sample(self) -> None:
        """Remember where the counters stand."""
        now, counts, today = self._now(), self.counts(), self._today()
        self._samples.append((now, counts))
        self._group_samples.append((now, dict(self._by_group)))
        day, this_morning, _ = self._mornings
        if today != day:
            self._mornings = (today, counts, this_morning)

    def _today(self) -> tuple[int, ...]:
        return time.localtime(self._now_ms() / 1000)[:3]

    @property
    def mornings(self) -> tuple[Counts, Counts]:
        """The counters at the beginning of this day and of the day before."""
        return self._mornings[1:]

    def rates(self) -> tuple[Rates, ...]:
        """One for each of WINDOWS_S."""
        return tuple(self._rate(window_s) for window_s in WINDOWS_S)

    def _rate(self, window_s: float) -> Rates:
        now, counts = self._now(), self.counts()
        at, then = next((sample for sample in reversed(self._samples) if now - sample[0] >= window_s - _JITTER_S), self._samples[0])
        elapsed_s = max(now - at, 1.0)
        return Rates(*((count - before) / elapsed_s for count, before in zip(counts, then, strict=True)))

    def group_rate(self, group: str) -> float:
        """Messages a second that the group took during the last minute."""
        at, then = self._group_samples[0]
        return (self._by_group.get(group, 0) - then.get(group, 0)) / max(self._now() - at, 1.0)
