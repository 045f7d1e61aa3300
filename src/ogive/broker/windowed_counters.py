"""Counters of messages, bytes and calls by key, with their values in the last minute, hour and day.

Source: StatsItem.java, StatsItemSet.java, 5.5.

Differs from Java: a window ends now, not at the last sample. A key that is younger than the window
has its count since it began; Java shows nothing for hour and day until it has two samples.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Window(NamedTuple):
    """Length of a window, and the interval at which counters are sampled for it."""

    span_s: float
    step_s: float


# minute, hour, day
WINDOWS: Final = (Window(60, 10), Window(3600, 600), Window(86_400, 3600))
_NONE: Final[Mapping[int, int]] = MappingProxyType({})
# a note that comes this much too early counts for its step
_JITTER_S: Final = 5.0


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
            if now - starts[-1] < window.step_s - _JITTER_S:
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
        at = bisect_right(starts, now - WINDOWS[index].span_s + _JITTER_S) - 1
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
