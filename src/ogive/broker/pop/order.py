"""Orderly popping: of each queue one batch is out at a time, and the group's offset moves only by
acknowledgements.

Source: ConsumerOrderInfoManager.java, QueueLevelConsumerManager.java, 5.5. The file,
config/consumerOrderInfo.json, is Apache's.

Behaviour
- A queue is blocked while a message of its batch is neither acknowledged nor visible again.
- A request with the attemptId of the batch that is out gets that batch again, and no count rises:
  its client has not seen the answer.
- The next batch begins at the committed offset. What was in the batch before counts as another
  delivery.

Differs from Java: a batch is in the journal before it is given out. An acknowledgement of a queue
without a batch does nothing, where Java moves the offset past that message.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.store.clock import now_ms as wall_ms
from ogive.wire.command import whole_number
from ogive.wire.pop import MAX_POP_MESSAGES

log = logging.getLogger(__name__)

Place = tuple[str, str, int]
"""group, topic, queue id"""

# batches that nobody asked for since are forgotten
_KEEP_MS: Final = 24 * 3600 * 1000
_MAX_WAIT_S: Final = 60.0


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of a queue that are out, or were. Bit i of *acked* is for *offsets* [i].

    *visible* holds when single messages are visible again, *counts* how often they were delivered
    before. Times in ms are of the wall clock, for the file; those in s of the machine's clock
    count.
    """

    pop_time_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    due_s: float
    attempt_id: str = ""
    acked: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    visible: dict[int, tuple[int, float]] = field(default_factory=dict)
    used_ms: int = 0

    def bit(self, offset: int) -> int:
        """Return the bit of a message, 0 for one that is not here."""
        return 1 << self.offsets.index(offset) if offset in self.offsets else 0

    def open_until_s(self) -> float | None:
        """Return when the last message that is not acknowledged is visible; None: all are."""
        return max(
            [
                self.visible[offset][1] if offset in self.visible else self.due_s
                for at, offset in enumerate(self.offsets)
                if not self.acked >> at & 1
            ],
            default=None,
        )

    def open_count(self) -> int:
        """Return how many messages are not acknowledged."""
        return len(self.offsets) - self.acked.bit_count()

    def next_offset(self) -> int:
        """Return the first offset that is not acknowledged, or the one behind the last."""
        for at, offset in enumerate(self.offsets):
            if not self.acked >> at & 1:
                return offset
        return self.offsets[-1] + 1

    def to_json(self) -> dict[str, Any]:
        """Return the members as Apache's file has them."""
        first = self.offsets[0]
        value: dict[str, Any] = {
            "popTime": self.pop_time_ms,
            "i": self.invisible_ms,
            "o": [first, *[offset - first for offset in self.offsets[1:]]],
            "ot": {str(offset): ms for offset, (ms, _) in self.visible.items()},
            "oc": {str(offset): count for offset, count in self.counts.items()},
            "l": self.used_ms,
            "cm": self.acked,
        }
        return value | ({"a": self.attempt_id} if self.attempt_id else {})


class OrderBook:
    """The batches of all queues that are popped in order. Owner: the event loop."""

    def __init__(self, clock_s: Callable[[], float], now_ms: Callable[[], int] = wall_ms) -> None:
        """*clock_s*: the machine's clock."""
        self._clock_s, self._now_ms = clock_s, now_ms
        self._batches: dict[Place, Batch] = {}
        # grows with every change, see ProgressSaver
        self.version = 0

    def __len__(self) -> int:
        return len(self._batches)

    def get(self, place: Place) -> Batch | None:
        return self._batches.get(place)

    def places(self) -> list[Place]:
        return list(self._batches)

    def put(self, place: Place, batch: Batch | None) -> None:
        """Set the batch of a queue; None: there is none."""
        self.version += 1
        if batch is None:
            self._batches.pop(place, None)
        else:
            self._batches[place] = batch

    def blocked_until_s(self, place: Place, attempt_id: str = "") -> float | None:
        """Return until when a queue is blocked for a request, or None if it is not."""
        batch = self._batches.get(place)
        if batch is None or (attempt_id and attempt_id == batch.attempt_id):
            return None
        until_s = batch.open_until_s()
        return until_s if until_s is not None and until_s > self._clock_s() else None

    def open_batch(self, place: Place) -> Batch | None:
        """Return the batch of a queue if it blocks the queue."""
        return None if self.blocked_until_s(place) is None else self._batches[place]

    def counts_of(
        self, place: Place, offsets: Iterable[int], attempt_id: str = ""
    ) -> dict[int, int]:
        """Return how often each of *offsets* was delivered before, as far as it was."""
        before = self._batches.get(place)
        if before is None:
            return {}
        again = 0 if attempt_id and attempt_id == before.attempt_id else 1
        found = {
            offset: before.counts.get(offset, 0) + again
            for offset in offsets
            if offset in before.offsets
        }
        return {offset: count for offset, count in found.items() if count}

    def forget_old(self) -> list[Place]:
        """Return the queues whose batch is a day old and blocks nobody."""
        limit = self._now_ms() - _KEEP_MS
        return [
            place
            for place, batch in self._batches.items()
            if batch.used_ms < limit and self.blocked_until_s(place) is None
        ]

    # --- the journal and the file -----------------------------------------------------------------

    def record(self, place: Place) -> list[Any]:
        """Return what the journal holds of a queue."""
        batch = self._batches.get(place)
        if batch is None:
            return [*place, None]
        visible = {str(offset): seconds for offset, (_, seconds) in batch.visible.items()}
        return [*place, batch.to_json(), batch.due_s, visible]

    def take(self, same_boot: bool, *record: Any) -> None:
        """Take over a record. Raises ValueError, TypeError, KeyError for what is none."""
        group, topic, queue_id, value, *times = record
        batch = None if value is None else self._read(value)
        if batch is not None and same_boot and times:
            batch.due_s = float(times[0])
            batch.visible = {
                offset: (ms, float(times[1][str(offset)]))
                for offset, (ms, _) in batch.visible.items()
            }
        self.put((group, topic, queue_id), batch)

    def _read(self, value: Mapping[str, Any]) -> Batch:
        """Read Apache's members; times are of the wall clock, and at most as long as asked for."""
        pop_time_ms, invisible_ms = int(value["popTime"]), int(value.get("i") or 0)
        first, *rest = value["o"]
        offsets = (int(first), *[int(first) + int(distance) for distance in rest])
        if len(offsets) > MAX_POP_MESSAGES or min(offsets) < 0:
            raise ValueError("too many offsets")
        visible = {int(offset): int(ms) for offset, ms in (value.get("ot") or {}).items()}
        return Batch(
            pop_time_ms,
            invisible_ms,
            offsets,
            self._seconds(pop_time_ms + invisible_ms, invisible_ms),
            str(value.get("a") or ""),
            int(value.get("cm") or 0),
            {int(offset): int(count) for offset, count in (value.get("oc") or {}).items()},
            {offset: (ms, self._seconds(ms, ms)) for offset, ms in visible.items()},
            int(value.get("l") or 0),
        )

    def _seconds(self, at_ms: int, most_ms: int) -> float:
        return self._clock_s() + max(0, min(at_ms - self._now_ms(), most_ms)) / 1000

    def load(self, value: Mapping[str, Any]) -> None:
        """Take over what Apache's broker wrote since, and leave what the journal says better."""
        table = value.get("table")
        for key, queues in table.items() if isinstance(table, dict) else ():
            topic, _, group = str(key).partition("@")
            for text, record in queues.items() if isinstance(queues, dict) else ():
                queue_id = whole_number(str(text))
                try:
                    batch = self._read(record)
                except (ValueError, TypeError, KeyError, AttributeError):
                    log.warning("ignored an orderly batch of %.80r that makes no sense", key)
                    continue
                if queue_id is None or not group:
                    continue
                known = self._batches.get((group, topic, queue_id))
                if known is None or known.pop_time_ms < batch.pop_time_ms:
                    self._batches[group, topic, queue_id] = batch
                elif known.pop_time_ms == batch.pop_time_ms:
                    known.acked |= batch.acked

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that makes the file's content."""
        table: dict[str, dict[str, Any]] = {}
        for (group, topic, queue_id), batch in self._batches.items():
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = batch.to_json()
        return lambda: {"table": table}


class Unlocks:
    """One timer for each queue that is blocked, for requests that wait until it is not."""

    def __init__(
        self, orders: OrderBook, clock_s: Callable[[], float], free: Callable[[str, str, int], None]
    ) -> None:
        """*free* is called when the messages of a queue are visible again."""
        self._orders, self._clock_s, self._free = orders, clock_s, free
        self._timers: dict[Place, asyncio.TimerHandle] = {}
        self._timed = True

    def begin(self, *, timed: bool) -> None:
        """Watch all queues. *timed*: also the end of a batch's time wakes requests."""
        self._timed = timed
        for place in self._orders.places():
            self.watch(place)

    def watch(self, place: Place) -> None:
        """The batch of a queue has changed."""
        timer = self._timers.pop(place, None)
        if timer is not None:
            timer.cancel()
        until_s = self._orders.blocked_until_s(place)
        if until_s is None:
            self._free(*place)
        elif self._timed:
            wait_s = min(max(0.001, until_s - self._clock_s()), _MAX_WAIT_S)
            loop = asyncio.get_running_loop()
            self._timers[place] = loop.call_later(wait_s, self.watch, place)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
