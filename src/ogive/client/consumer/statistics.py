"""How fast a member pulls and consumes: figures of the last minute and hour.

Source: ConsumerStatsManager.java, 5.3.

Times are given by the caller, in seconds of any clock that only goes forward.
"""

from collections import deque
from typing import Final

from ogive.wire.running_info import ConsumeStatus

# so many slots of so many seconds
MINUTE_SLOTS: Final = (6, 10.0)
HOUR_SLOTS: Final = (6, 600.0)


class Window:
    """Sums of the current slot of time and the ones before it."""

    __slots__ = ("_begun", "_slot_s", "_slots")

    def __init__(self, slots: int, slot_s: float, begun: float) -> None:
        self._slot_s = slot_s
        self._begun = begun
        # [number of the slot, sum, count]
        self._slots: deque[list[float]] = deque(maxlen=slots)

    def add(self, now: float, value: float, count: int) -> None:
        number = now // self._slot_s
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append([number, 0.0, 0])
        self._slots[-1][1] += value
        self._slots[-1][2] += count

    def sums(self, now: float) -> tuple[float, int]:
        oldest = self._oldest(now)
        fresh = [slot for slot in self._slots if slot[0] >= oldest]
        return sum(slot[1] for slot in fresh), int(sum(slot[2] for slot in fresh))

    def seconds(self, now: float) -> float:
        """How much time the sums are of; never less than a second."""
        return max(1.0, now - max(self._begun, self._oldest(now) * self._slot_s))

    def _oldest(self, now: float) -> float:
        assert self._slots.maxlen is not None
        return now // self._slot_s - self._slots.maxlen + 1


class Meter:
    """A sum and a count, over the last minute and the last hour."""

    __slots__ = ("hour", "minute")

    def __init__(self, begun: float) -> None:
        self.minute = Window(*MINUTE_SLOTS, begun)
        self.hour = Window(*HOUR_SLOTS, begun)

    def add(self, now: float, value: float, count: int = 1) -> None:
        self.minute.add(now, value, count)
        self.hour.add(now, value, count)

    def per_second(self, now: float) -> float:
        return self.minute.sums(now)[0] / self.minute.seconds(now)

    def average(self, now: float) -> float:
        """Of the minute; of the hour if nothing came within the minute."""
        for window in (self.minute, self.hour):
            total, count = window.sums(now)
            if count:
                return total / count
        return 0.0


class TopicStatistics:
    """One topic of one member."""

    def __init__(self, begun: float) -> None:
        self._pull_ms = Meter(begun)
        self._pulled = Meter(begun)
        self._consume_ms = Meter(begun)
        self._done = Meter(begun)
        self._failed = Meter(begun)

    def pulled(self, now: float, seconds: float, messages: int) -> None:
        """A pull that found messages; *messages* of them were wanted."""
        self._pull_ms.add(now, seconds * 1000)
        self._pulled.add(now, messages)

    def consumed(self, now: float, seconds: float, *, calls: int, done: int, failed: int) -> None:
        """*calls* of the listener, which took *seconds* together."""
        self._consume_ms.add(now, seconds * 1000, calls)
        self._done.add(now, done)
        self._failed.add(now, failed)

    def status(self, now: float) -> ConsumeStatus:
        return ConsumeStatus(
            pull_rt=self._pull_ms.average(now),
            pull_tps=self._pulled.per_second(now),
            consume_rt=self._consume_ms.average(now),
            consume_ok_tps=self._done.per_second(now),
            consume_failed_tps=self._failed.per_second(now),
            consume_failed_count=int(self._failed.hour.sums(now)[0]),
        )


class Statistics:
    """One member. Retries count under the retry topic, as in Java."""

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._topics: dict[str, TopicStatistics] = {}
        self.left_behind = 0
        """Queues given up to another member while a listener call still ran in them."""

    def of(self, topic: str) -> TopicStatistics:
        """The figures of a subscribed topic: as many are kept as there are subscriptions."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicStatistics(self._begun)
        return found

    def forget(self, topic: str) -> None:
        self._topics.pop(topic, None)
