"""Throughput: counters since the start, and rates.

Source: StoreStatsService.java, BrokerStatsManager.java, 5.3; StatsItem.java, StatsItemSet.java,
5.5.

Windowed counters have messages, bytes and calls by key, in the last minute, hour and day.

Differs from Java
- Until a rate's window has passed once, the rate is that since the start; Java shows nothing.
- Send times are of all sends since the start.
- A window ends now, not at the last sample.
- A key that is younger than the window has its count since it began; Java shows nothing for hour
  and day until it has two samples.
"""

import time
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Generic, Literal, NamedTuple, Self, TypeVar

from ogive.errors import OgiveError
from ogive.store.types import NewMessage, PutDone, PutResult
from ogive.transport.monitoring import Histogram
from ogive.wire.codes import RequestCode


class Window(NamedTuple):
    """Length of a window, and the interval at which counters are sampled for it."""

    span_s: float
    step_s: float


# minute, hour, day
WINDOWS: Final = (Window(60, 10), Window(3600, 600), Window(86_400, 3600))
_NONE: Final[Mapping[int, int]] = MappingProxyType({})
# a note that comes this much too early counts for its step
_EARLY_S: Final = 5.0


class Counts(NamedTuple):
    """Totals: *messages* and *size* (bytes) of *calls* sends or pulls."""

    messages: int = 0
    size: int = 0
    calls: int = 0


class WindowDelta(NamedTuple):
    """Counts within a window, and the length of the window."""

    counts: Counts
    elapsed_s: float


class WindowedCounter:
    """The counters of one key. Callers add to the fields directly."""

    __slots__ = ("_born", "_notes", "calls", "ends", "messages", "sent_bytes", "sent_sizes", "size")

    def __init__(self, born: float) -> None:
        self.messages = self.size = self.calls = 0
        self.ends: dict[int, int] = {}
        """Queue id to the offset up to which it was delivered, if that is counted."""
        self.sent_sizes: defaultdict[int, int] = defaultdict(int)
        """Number of messages that clients sent, by the bits of their size - 1.

        Counted like *sent_bytes* if the key is a topic.
        """
        self.sent_bytes = 0
        self._born = born
        self._notes: tuple[deque[tuple[float, Counts]], ...] = tuple(
            deque(maxlen=round(window.span_s / window.step_s) + 2) for window in WINDOWS
        )

    def counts(self) -> Counts:
        return Counts(self.messages, self.size, self.calls)

    def note(self, window: int, now: float) -> None:
        """Take a sample if the counter has changed: the many idle keys cost nothing."""
        notes = self._notes[window]
        if self.calls != (notes[-1][1].calls if notes else 0):
            notes.append((now, self.counts()))

    def passed(self, window: int, start: float, now: float) -> WindowDelta:
        """*start*: beginning of the window; a sample was taken then, if anything had changed."""
        now_counts, then = self.counts(), Counts()
        for at, counts in reversed(self._notes[window]):
            if at <= start:
                then = counts
                break
        passed = Counts(*(after - before for after, before in zip(now_counts, then, strict=True)))
        return WindowDelta(passed, max(now - max(start, self._born), 1.0))


class WindowedCounters:
    """Counters by two words, such as group and topic; the second may be empty.

    ``sample`` is called every 10 s.

    At most *max_keys*: further keys are not counted until others have been idle for a day or are
    removed.
    """

    def __init__(self, now: Callable[[], float], max_keys: int) -> None:
        """*now*: seconds, monotonic."""
        self._now, self._max = now, max_keys
        self._tables: dict[str, dict[str, WindowedCounter]] = {}
        self._count = 0
        self._nowhere = WindowedCounter(now())
        self._starts = tuple(
            deque([now()], maxlen=round(window.span_s / window.step_s) + 2) for window in WINDOWS
        )

    def __len__(self) -> int:
        return self._count

    def count(
        self, first: str, second: str, messages: int, size: int, calls: int = 1
    ) -> WindowedCounter:
        """Count one send or pull of so many messages and bytes, or several."""
        table = self._tables.get(first)
        tally = table.get(second) if table is not None else None
        if tally is None:
            tally = self._begin(first, second)
        tally.messages += messages
        tally.size += size
        tally.calls += calls
        return tally

    def ends(self, first: str, second: str) -> Mapping[int, int]:
        """See WindowedCounter."""
        tally = self._tables.get(first, {}).get(second)
        return _NONE if tally is None else tally.ends

    def set(self, first: str, second: str, counts: Counts) -> None:
        """Set it to a total that is counted in another place."""
        table = self._tables.get(first, {})
        tally = table.get(second) or self._begin(first, second)
        tally.messages, tally.size, tally.calls = counts

    def _begin(self, first: str, second: str) -> WindowedCounter:
        if self._count >= self._max:
            return self._nowhere
        self._count += 1
        tally = self._tables.setdefault(first, {})[second] = WindowedCounter(self._now())
        return tally

    def sample(self) -> None:
        """Take a sample of the counters for each window whose step has passed."""
        now = self._now()
        for index, window in enumerate(WINDOWS):
            starts = self._starts[index]
            if now - starts[-1] < window.step_s - _EARLY_S:
                continue
            starts.append(now)
            for tally in self._all():
                tally.note(index, now)
            if index == len(WINDOWS) - 1 and self._count >= self._max:
                self._drop_idle(now - window.span_s)

    def _drop_idle(self, since: float) -> None:
        for first, table in list(self._tables.items()):
            for second in [
                word
                for word, tally in table.items()
                if not tally.passed(len(WINDOWS) - 1, since, since).counts.calls
            ]:
                self._remove(first, second)

    def _all(self) -> Iterator[WindowedCounter]:
        for table in self._tables.values():
            yield from table.values()

    def items(self) -> Iterator[tuple[str, str, WindowedCounter]]:
        """Return every key's two words, and its totals since it began."""
        for first, table in self._tables.items():
            for second, tally in table.items():
                yield first, second, tally

    def passed(self, first: str, second: str) -> tuple[WindowDelta, ...] | None:
        """Return the values for each of WINDOWS; None for a key without counts."""
        tally = self._tables.get(first, {}).get(second)
        if tally is None:
            return None
        now = self._now()
        return tuple(
            tally.passed(index, self._start(index, now), now) for index in range(len(WINDOWS))
        )

    def rate(self, first: str, second: str | None = None) -> float:
        """Return the messages a second in the last minute; without a second word, of all keys with
        the first one.
        """
        table = self._tables.get(first, {})
        tallies = table.values() if second is None else filter(None, (table.get(second),))
        now = self._now()
        return sum(
            passed.counts.messages / passed.elapsed_s
            for passed in (tally.passed(0, self._start(0, now), now) for tally in tallies)
        )

    def _start(self, index: int, now: float) -> float:
        """Return when the window begins: a sample was taken then."""
        starts = self._starts[index]
        at = bisect_right(starts, now - WINDOWS[index].span_s + _EARLY_S) - 1
        return starts[max(at, 0)]

    def forget(self, first: str) -> None:
        """Remove all keys with that first word."""
        for second in list(self._tables.get(first, ())):
            self._remove(first, second)

    def forget_second(self, second: str) -> None:
        for first in [word for word, table in self._tables.items() if second in table]:
            self._remove(first, second)

    def _remove(self, first: str, second: str) -> None:
        table = self._tables[first]
        del table[second]
        self._count -= 1
        if not table:
            del self._tables[first]


# BrokerMetricsManager.java
SIZE_BOUNDS: Final = (1024, 4096, 512 * 1024, 1024**2, 2 * 1024**2, 4 * 1024**2)
SAMPLE_S: Final = 10.0
WINDOWS_S: Final = (10.0, 60.0, 600.0)
# of each table
MAX_KEYS: Final = 20_000
_SENDS: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
)
# a sample that is this much too young for a window still counts for it
_JITTER_S: Final = SAMPLE_S / 2


T = TypeVar("T")


class ByTopic(Generic[T]):
    """Figures of each topic; above *max_topics*, the others share one that is not shown."""

    def __init__(self, new: Callable[[], T], max_topics: int = MAX_KEYS) -> None:
        self._new, self._max = new, max_topics
        self._of: dict[str, T] = {}
        self._nowhere = new()

    def of(self, topic: str) -> T:
        found = self._of.get(topic)
        if found is None:
            if len(self._of) >= self._max:
                return self._nowhere
            found = self._of[topic] = self._new()
        return found

    def items(self) -> Iterable[tuple[str, T]]:
        return self._of.items()

    def forget(self, topic: str) -> None:
        """Forget a deleted topic."""
        self._of.pop(topic, None)


class TrafficTotals(NamedTuple):
    """Messages stored, messages delivered, pulls with messages, pulls without."""

    put: int = 0
    transferred: int = 0
    found: int = 0
    missed: int = 0


class UsersTotals(NamedTuple):
    """Messages stored and delivered, without the broker's own topics: a waiting message counts when
    it is stored under its real topic.
    """

    put: int = 0
    transferred: int = 0


class Rates(NamedTuple):
    """The same, per second."""

    put: float
    transferred: float
    found: float
    missed: float


class Durations:
    """Distribution of durations: by the millisecond up to FINE_MS, in Java's steps beyond.

    *longest_s* is the longest.
    """

    FINE_MS: Final = 100
    STEPS_MS: Final = (100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
    NAMES: Final = (
        "<=0ms",
        "0~10ms",
        "10~50ms",
        "50~100ms",
        "100~200ms",
        "200~500ms",
        "500ms~1s",
        "1~2s",
        "2~3s",
        "3~4s",
        "4~5s",
        "5~10s",
        "10s~",
    )

    # of rpc_latency, RemotingMetricsManager.java
    BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)

    __slots__ = ("_coarse", "_fine", "_total_s", "longest_s")

    def __init__(self) -> None:
        self._fine = [0] * self.FINE_MS
        self._coarse = [0] * len(self.STEPS_MS)
        self.longest_s = self._total_s = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        ms = int(seconds * 1000)
        self._total_s += times * seconds
        if ms < self.FINE_MS:
            self._fine[ms] += times
        else:
            self._coarse[bisect_right(self.STEPS_MS, ms) - 1] += times
        if seconds > self.longest_s:
            self.longest_s = seconds

    @classmethod
    def of_all(cls, parts: Iterable["Durations"]) -> Self:
        """Return the sum of *parts*."""
        whole = cls()
        for part in parts:
            whole._fine = [a + b for a, b in zip(whole._fine, part._fine, strict=True)]
            whole._coarse = [a + b for a, b in zip(whole._coarse, part._coarse, strict=True)]
            whole._total_s += part._total_s
            whole.longest_s = max(whole.longest_s, part.longest_s)
        return whole

    @property
    def is_empty(self) -> bool:
        return not (any(self._fine) or any(self._coarse))

    def table(self) -> dict[str, int]:
        """Return the name of each step, and its count."""
        fine = self._fine
        return dict(
            zip(
                self.NAMES,
                (fine[0], sum(fine[1:10]), sum(fine[10:50]), sum(fine[50:]), *self._coarse),
                strict=True,
            )
        )

    def histogram(self) -> Histogram:
        """In milliseconds."""
        fine, coarse = [0, *accumulate(self._fine)], [0, *accumulate(self._coarse)]
        below = [
            fine[ms] if ms <= self.FINE_MS else fine[-1] + coarse[self.STEPS_MS.index(ms)]
            for ms in self.BOUNDS_MS
        ]
        return Histogram(self.BOUNDS_MS, below, fine[-1] + coarse[-1], self._total_s * 1000)

    def share_ms(self, share: float) -> int:
        """Return the duration that *share* of all did not exceed, or 0 without any."""
        wanted = share * (sum(self._fine) + sum(self._coarse))
        if not wanted:
            return 0
        seen = 0
        longest_ms = int(self.longest_s * 1000)
        for ms, count in (
            *enumerate(self._fine),
            *zip((*self.STEPS_MS[1:], longest_ms), self._coarse, strict=True),
        ):
            seen += count
            if seen >= wanted:
                return min(ms, longest_ms)
        raise AssertionError("a share is 1 at most")


class Traffic:
    """Pulls count here, and stored messages by topic; the store counts all puts.

    Event-loop only; ``sample`` is called every SAMPLE_S.

    puts: by topic. gets and sent_back: by group and topic. send_times and get_times: durations of
    storing and reading.
    """

    __slots__ = (
        "_found",
        "_is_system",
        "_missed",
        "_mornings",
        "_now",
        "_now_ms",
        "_puts",
        "_samples",
        "_timers",
        "_totals",
        "_transferred",
        "_users_put",
        "_users_transferred",
        "failed",
        "get_times",
        "gets",
        "puts",
        "refusal_times",
        "send_times",
        "sent_back",
    )

    def __init__(
        self,
        *,
        puts: Callable[[], int],
        is_system: Callable[[str], bool],
        now: Callable[[], float],
        now_ms: Callable[[], int],
        timers: Callable[[], tuple[int, int]] = lambda: (0, 0),
        max_keys: int = MAX_KEYS,
    ) -> None:
        """*puts*: returns the number of stored messages.

        *is_system*: returns True for a topic of the broker's own. *now*: seconds, monotonic.
        *now_ms*: the time of day, for the day's totals. *timers*: returns the numbers of timer
        messages that arrived and were delivered.
        """
        self._puts = puts
        self._now = now
        self._now_ms = now_ms
        self._timers = timers
        self._is_system = is_system
        self._transferred = self._found = self._missed = self._users_put = (
            self._users_transferred
        ) = 0
        self.puts, self.gets, self.sent_back = (WindowedCounters(now, max_keys) for _ in range(3))
        self._totals = WindowedCounters(now, 4)
        self.get_times = Durations()
        self.send_times: dict[int, Durations] = {int(code): Durations() for code in _SENDS}
        """Durations of sends that were stored, by request code."""
        self.refusal_times: defaultdict[tuple[int, int], Durations] = defaultdict(Durations)
        """Durations of sends that were refused, by request code and answer code."""
        self.failed = 0
        """Sends that the store refused, at once or later."""
        self._samples = deque([(now(), self.counts())], maxlen=round(WINDOWS_S[-1] / SAMPLE_S) + 1)
        # the day, and what counted at its beginning and at that of the day before
        self._mornings = (self._today(), UsersTotals(), UsersTotals())

    def stored(self, topic: str, messages: int, size: int, seconds: float, code: int) -> None:
        """A send, a request with this *code* that took *seconds*, has put so many messages and
        bytes into a topic.
        """
        tally = self.count_put(topic, messages, size)
        self.send_times[code].add(seconds)
        tally.sent_sizes[(size // messages - 1).bit_length()] += messages
        tally.sent_bytes += size

    def stored_run(
        self, topics: Sequence[str], sizes: Sequence[int], seconds: float, code: int
    ) -> None:
        """stored() of sends that were stored together; topic and size of each."""
        for (topic, size), sends in Counter(zip(topics, sizes, strict=True)).items():
            tally = self.count_put(topic, sends, sends * size, sends)
            tally.sent_sizes[(size - 1).bit_length()] += sends
            tally.sent_bytes += sends * size
        self.send_times[code].add(seconds, len(sizes))

    def refused(
        self, code: int, answer: int, seconds: float = 0.0, *, by_store: bool, times: int = 1
    ) -> None:
        """A send, or several, that got this *answer*; *by_store*: because the store took
        nothing.
        """
        self.refusal_times[code, answer].add(seconds, times)
        if by_store:
            self.failed += times

    @property
    def put_times(self) -> Durations:
        """Durations of all sends that were stored."""
        return Durations.of_all(self.send_times.values())

    def count_put(self, topic: str, messages: int, size: int, calls: int = 1) -> WindowedCounter:
        """So many messages and bytes are stored in a topic."""
        if not self._is_system(topic):
            self._users_put += messages
        return self.puts.count(topic, "", messages, size, calls)

    def sizes(self) -> Iterator[tuple[str, Histogram]]:
        """By topic, of messages that clients sent, as stored; those of a batch count with their
        average, as in Java.
        """
        for topic, _, tally in self.puts.items():
            if tally.sent_sizes:
                at_most = [
                    sum(n for bits, n in tally.sent_sizes.items() if 1 << bits <= bound)
                    for bound in SIZE_BOUNDS
                ]
                yield (
                    topic,
                    Histogram(
                        SIZE_BOUNDS, at_most, sum(tally.sent_sizes.values()), tally.sent_bytes
                    ),
                )

    def counted(self, messages: Sequence[NewMessage], done: PutDone) -> PutDone:
        """*done* for messages that the broker itself stores; they count for their topics."""
        return partial(self._count, messages, done)

    def _count(
        self, messages: Sequence[NewMessage], done: PutDone, result: list[PutResult] | OgiveError
    ) -> None:
        if not isinstance(result, OgiveError):
            for message, stored in zip(messages, result, strict=True):
                self.count_put(message.topic, 1, stored.size)
        done(result)

    def pulled(
        self, group: str, topic: str, queue_id: int, count: int, size: int, end: int
    ) -> None:
        """Count a pull that was answered with *count* messages of *size* bytes; *end* is the next
        offset.
        """
        if count:
            self._found += 1
            self._transferred += count
            if not self._is_system(topic):
                self._users_transferred += count
            self.gets.count(group, topic, count, size).ends[queue_id] = end
        else:
            self._missed += 1

    def forget_group(self, group: str) -> None:
        """Forget a deleted group."""
        self.gets.forget(group)
        self.sent_back.forget(group)

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        self.puts.forget(topic)
        self.gets.forget_second(topic)
        self.sent_back.forget_second(topic)

    def counts(self) -> TrafficTotals:
        return TrafficTotals(self._puts(), self._transferred, self._found, self._missed)

    def users_counts(self) -> UsersTotals:
        return UsersTotals(self._users_put, self._users_transferred)

    async def sample(self) -> None:
        """Take a sample of the counters."""
        now, counts, today = self._now(), self.counts(), self._today()
        self._samples.append((now, counts))
        self._set_totals(counts)
        for table in (self.puts, self.gets, self.sent_back, self._totals):
            table.sample()
        day, this_morning, _ = self._mornings
        if today != day:
            self._mornings = (today, self.users_counts(), this_morning)

    def _set_totals(self, counts: TrafficTotals) -> None:
        self._totals.set("put", "", Counts(counts.put, 0, counts.put))
        self._totals.set("got", "", Counts(counts.transferred, 0, counts.found))
        for way, count in zip(("timer in", "timer out"), self._timers(), strict=True):
            self._totals.set(way, "", Counts(count, 0, count))

    def total(self, way: Literal["put", "got"]) -> tuple[WindowDelta, ...]:
        """All messages that came in or went out in the last minute, hour and day."""
        self._set_totals(self.counts())
        passed = self._totals.passed(way, "")
        assert passed is not None
        return passed

    def timer_rates(self) -> tuple[float, float]:
        """Messages for a time that came, and that were delivered, per second of the last minute."""
        self._set_totals(self.counts())
        return self._totals.rate("timer in"), self._totals.rate("timer out")

    def _today(self) -> tuple[int, ...]:
        return time.localtime(self._now_ms() / 1000)[:3]

    @property
    def mornings(self) -> tuple[UsersTotals, UsersTotals]:
        """users_counts() at the beginning of this day and of the day before."""
        return self._mornings[1:]

    def rates(self) -> tuple[Rates, ...]:
        """One for each of WINDOWS_S, all of this moment."""
        now, counts = self._now(), self.counts()
        return tuple(self._rate(window_s, now, counts) for window_s in WINDOWS_S)

    def _rate(self, window_s: float, now: float, counts: TrafficTotals) -> Rates:
        at, then = next(
            (
                sample
                for sample in reversed(self._samples)
                if now - sample[0] >= window_s - _JITTER_S
            ),
            self._samples[0],
        )
        elapsed_s = max(now - at, 1.0)
        return Rates(
            *((count - before) / elapsed_s for count, before in zip(counts, then, strict=True))
        )

    def group_rate(self, group: str, topic: str | None = None) -> float:
        """Return the messages a second that the group consumed during the last minute, of one topic
        or all.
        """
        return self.gets.rate(group, topic)
