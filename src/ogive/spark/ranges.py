"""Offsets to read, and their Spark partitions. Pure."""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ogive.model import MessageQueue

ROWS_PER_PARTITION: Final = 5_000
"""Rows for which another task is planned while cores are free: a task costs 20 to 28 ms of a
core, and its neighbours run meanwhile.
"""

ROWS_PER_EXTRA_PARTITION: Final = 100_000
"""Rows for which another task is planned where the number of cores is unknown: tasks that wait for
a core then cost a fifth more.
"""

ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Most bytes of messages in the answer to one pull.

Twice as many bring no more rows a second; half of it adds 0.4 µs to decode a row of 1 KiB.
"""

# sizes differ: an answer that is cut short costs a second pull, during which nothing is decoded
_AIM_BYTES: Final = ANSWER_BYTES * 3 // 4
_FIRST_STEP: Final = 256
_LARGEST_STEP: Final = 4096
_SMALLEST_STEP: Final = 8
_EVIDENCE: Final = 8
_LONG_RECORD: Final = 16 * 1024


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Messages of one queue with start <= queue offset < end."""

    queue: MessageQueue
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def offsets(self) -> range:
        return range(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Filter:
    """Broker-side filter of a queue: an expression of tags, compared by hash code, or of SQL92."""

    expression: str = "*"
    kind: Literal["TAG", "SQL92"] = "TAG"

    @property
    def takes_all(self) -> bool:
        return self.expression == "*"


EVERYTHING: Final = Filter()


@dataclass(frozen=True, slots=True)
class Pace:
    """The share of one task in the limits of a query: *pulls* in flight and *bytes_per_s* read, or
    None for no limit.
    """

    pulls: int
    bytes_per_s: float | None = None


def share(
    groups: Sequence[Sequence[QueueRange]],
    at_once: int,
    pulls_per_broker: int,
    bytes_per_s: int | None,
) -> list[Pace]:
    """Divide the limits of a query by the tasks that share them, *at_once* of which run at the same
    time. Each task has at least one pull.
    """
    readers = Counter(name for group in groups for name in {r.queue.broker_name for r in group})
    at_once = min(at_once, len(groups))
    return [
        Pace(
            max(
                1,
                pulls_per_broker
                // max(min(at_once, readers[item.queue.broker_name]) for item in group),
            ),
            None if bytes_per_s is None else bytes_per_s / at_once,
        )
        for group in groups
    ]


def spread_partitions(total_rows: int, cores: int) -> int:
    """Return how many tasks may read *total_rows* if the driver has *cores*, and the cluster
    perhaps more.
    """
    return max(cores, total_rows // ROWS_PER_EXTRA_PARTITION)


def pack(
    ranges: Iterable[QueueRange],
    max_partitions: int,
    *,
    preserve_order: bool,
    min_partitions: int = 1,
    max_rows: int | None = None,
) -> list[list[QueueRange]]:
    """Return groups of about equal size, without empty ranges, in which each queue's are in order.

    There are at most *max_partitions*, unless *max_rows* needs more. Groups begin with different
    brokers, in turns, so that tasks that start together do not meet at one.

    With *preserve_order* a range stays whole, so the rows of a queue are in order and in one
    partition. Otherwise long ranges are split: there are *min_partitions* groups if there are so
    many rows, and none has more than *max_rows*.
    """
    wanted = sorted(item for item in ranges if item.start < item.end)
    total = sum(len(item) for item in wanted)
    count = max(min(max_partitions, -(-total // ROWS_PER_PARTITION)), min(min_partitions, total))
    if not preserve_order:
        count = max(count, -(-total // (max_rows or total))) if total else 0
        return _take_turns(_cut(wanted, total, count))
    groups: list[list[QueueRange]] = [[] for _ in range(min(count, len(wanted)))]
    sizes = [(0, number) for number in range(len(groups))]
    for item in sorted(
        wanted, key=lambda item: (-len(item), item.queue.queue_id, item.queue.broker_name, item)
    ):
        size, number = heapq.heappop(sizes)
        groups[number].append(item)
        heapq.heappush(sizes, (size + len(item), number))
    return _take_turns([sorted(group) for group in groups])


def _take_turns(groups: list[list[QueueRange]]) -> list[list[QueueRange]]:
    """Rotate each group to the broker with which the fewest groups before it begin."""
    begun: Counter[str] = Counter()
    for number, group in enumerate(groups):
        first = min(range(len(group)), key=lambda at: begun[group[at].queue.broker_name])
        begun[group[first].queue.broker_name] += 1
        groups[number] = group[first:] + group[:first]
    return groups


def _cut(ranges: Sequence[QueueRange], total: int, count: int) -> list[list[QueueRange]]:
    """Divide the sequence of all rows into *count* parts that differ by one row at most."""
    ends = [total * number // count for number in range(1, count + 1)]
    groups: list[list[QueueRange]] = [[] for _ in ends]
    at = number = 0
    for item in ranges:
        start = item.start
        while start < item.end:
            end = min(item.end, start + ends[number] - at)
            groups[number].append(QueueRange(item.queue, start, end))
            at, start = at + end - start, end
            if at == ends[number]:
                number += 1
    return groups


def admit(
    start: Mapping[MessageQueue, int],
    latest: Mapping[MessageQueue, int],
    max_rows: int | None,
    served: Mapping[MessageQueue, int] | None = None,
) -> dict[MessageQueue, int]:
    """Return the end of one trigger: *latest*, or *max_rows* of the backlog, shared by the queues.

    Each queue with a backlog gets one row, then its share of the rest. If there are more such
    queues than rows, those served longest ago go first: *served* has the number of the trigger that
    did so. Among equals the number of rows read so far decides, so that a restart continues with
    the next one.
    """
    behind = {queue: max(0, end - start.get(queue, 0)) for queue, end in latest.items()}
    total = sum(behind.values())
    if max_rows is None or total <= max_rows:
        return dict(latest)
    waiting = sorted(queue for queue, rows in behind.items() if rows)
    turn = sum(start.values()) % len(waiting)
    waiting = sorted(
        waiting[turn:] + waiting[:turn], key=lambda queue: (served or {}).get(queue, 0)
    )[:max_rows]
    shared, over = max_rows - len(waiting), total - len(waiting)
    rows = {queue: 1 + ((behind[queue] - 1) * shared // over if shared else 0) for queue in waiting}
    left = max_rows - sum(rows.values())
    for queue in sorted(waiting, key=lambda queue: -behind[queue]):
        more = min(left, behind[queue] - rows[queue])
        rows[queue] += more
        left -= more
    return {
        queue: start.get(queue, 0) + rows.get(queue, 0) if behind[queue] else end
        for queue, end in latest.items()
    }


def admit_bytes(
    start: Mapping[MessageQueue, int],
    end: Mapping[MessageQueue, int],
    record_bytes: Mapping[MessageQueue, float],
    max_bytes: int,
    served: Mapping[MessageQueue, int] | None = None,
) -> dict[MessageQueue, int]:
    """Return a position before *end* that is about *max_bytes* away, shared by the queues as in
    `admit`. *record_bytes* is the mean length of a queue's messages.

    At least one row is admitted, however long it is.
    """
    behind = {queue: max(0, position - start.get(queue, 0)) for queue, position in end.items()}
    total = sum(rows * record_bytes.get(queue, 0.0) for queue, rows in behind.items())
    if total <= max_bytes:
        return dict(end)
    rows = int(sum(behind.values()) * max_bytes / total)
    return admit(start, end, max(1, rows), served)


class Chunks:
    """Ranges, in order, divided into chunks that one pull can probably return.

    Brokers limit an answer by count (32 at Apache's) and by bytes; the answers show the limit. A
    chunk within it needs one pull, and many pulls can be in flight at once. *record_bytes* is the
    length of messages by the last answer; before the first one, a large value.
    """

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        self._ranges = ranges
        self._range = 0
        self._at = ranges[0].start if ranges else 0
        # where messages begin again, for each queue that has a gap
        self._resume: dict[MessageQueue, int] = {}
        self.record_bytes = _LONG_RECORD
        self._step = _FIRST_STEP
        # answers that were cut; one alone may be the end of a file
        self._short: deque[int] = deque(maxlen=_EVIDENCE)
        # answers since then that were not
        self._full = 0
        # how many of those before a larger step is tried
        self._patience = 1

    def __iter__(self) -> Iterator[QueueRange]:
        return self

    def __next__(self) -> QueueRange:
        while True:
            if self._range == len(self._ranges):
                raise StopIteration
            current = self._ranges[self._range]
            self._at = max(self._at, self._resume.get(current.queue, 0))
            if self._at < current.end:
                break
            self._range += 1
            self._at = self._ranges[self._range].start if self._range < len(self._ranges) else 0
        step = min(self._step, max(_SMALLEST_STEP, _AIM_BYTES // self.record_bytes))
        start, end = self._at, min(self._at + step, current.end)
        self._at = end
        return QueueRange(current.queue, start, end)

    def rest_of(self, part: QueueRange) -> QueueRange:
        """Return *part* and the rest of its range."""
        end = next(
            item.end
            for item in self._ranges
            if item.queue == part.queue and item.start <= part.start < item.end
        )
        return QueueRange(part.queue, part.start, end)

    def skip(self, gone: QueueRange) -> None:
        """Plan no chunks of *gone*: a deleted section is skipped in one step, however long it
        is.
        """
        self._resume[gone.queue] = max(gone.end, self._resume.get(gone.queue, 0))

    def learn(self, asked: int, answered: int, answer_bytes: int) -> None:
        """Record a pull that requested *asked* offsets and got *answered* of them, in
        *answer_bytes*.
        """
        if answered:
            self.record_bytes = max(1, answer_bytes // answered)
        if answered < asked:
            self._short.append(answered)
            self._full = 0
            if len(self._short) == _EVIDENCE:
                self._step = max(_SMALLEST_STEP, *self._short)
                self._patience = 8 * _EVIDENCE
        else:
            self._full += 1
            if self._full >= self._patience:
                self._short.clear()
                self._step = min(2 * self._step, _LARGEST_STEP)
                self._full = 0
