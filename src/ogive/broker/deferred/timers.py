"""Timer messages: they wait in rmq_sys_wheel_timer and are stored again under their real topic when
they are due.

Source: TimerMessageStore.java, 5.5.

Behaviour
- Never early, to the millisecond. The times of all waiting messages are in memory, and one timer of
  the loop waits for the earliest.
- A time of day (TIMER_DELIVER_MS) is due by the machine's clock, also after that was set back; a
  delay is over by the store's clock, which is never set back.
- A message with TIMER_DEL_UNIQKEY cancels the one of its topic with that unique key and
  TIMER_OUT_MS, if it is still waiting.
- A start reads the part of the topic that may have waiting messages; overdue ones are delivered at
  once.

Differs from Java
- Nothing is rolled: messages wait for their whole time, up to timer_max_delay_s.
- At most timer_max_waiting messages wait; above that sends are answered SYSTEM_BUSY, except
  recalls. Java limits each second's slot instead.
- There is no wheel file and no timer log, see below.

The progress is in two files: Apache's config/timercheck, and config/timerProgress.json for data
that does not fit into it.

Apache's broker keeps waiting messages in timerwheel and timerlog; timercheck has the queue offset
up to which they are complete. Ours keeps them in memory: it writes a timercheck with which
everything since the oldest waiting message has to be read again, and removes the wheel and the log,
which would be out of date. Apache's broker then rebuilds both from the topic. It cannot know which
messages behind the oldest waiting one are already delivered or cancelled, and delivers those again.

In the other direction nothing is delivered twice: timercheck shows which messages Apache's broker
has delivered, and the topic has those that wait. Source: TimerCheckpoint.java,
TimerMessageStore.recover, 5.5.
"""

import asyncio
import heapq
import logging
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from ogive.broker.deferred.timer_properties import (
    DELETE_KEY,
    DELIVER_MS,
    OUT_MS,
    Name,
    RecallHandle,
    delivered_properties,
    exact_time,
    is_delay,
    is_time,
    name_of,
)
from ogive.broker.deferred.waiting import MAX_WAIT_S, Put, stored_again
from ogive.broker.off_loop_reads import Fetch, JobReads
from ogive.broker.replies import Rejected
from ogive.broker.traffic import ByTopic
from ogive.errors import InvalidOption, ResponseCode, StoreError
from ogive.model import HALF_TOPIC, TIMER_TOPIC, PropertyName
from ogive.store.consumequeue import FILLER_SIZE
from ogive.store.file_reader import Cold
from ogive.store.fs import Fs
from ogive.store.message_store import MessageStore
from ogive.store.tables import JsonTable, read_file, write_synced
from ogive.store.types import NewMessage, PutDone, PutResult
from ogive.transport.monitoring import Values
from ogive.wire.message import (
    decode_properties,
    decode_stored,
    real_place,
    stored_properties,
)

log = logging.getLogger(__name__)

TIMER_KEY: Final = (TIMER_TOPIC, 0)
# bounds of delay_message_latency, DefaultStoreMetricsManager.java
WAITS_S: Final = (60, 600, 3_600, 43_200, 86_400, 259_200)
# messages read and put in one turn of the loop
BATCH: Final = 128
# that were taken back, of which a turn clears the heap
PASSED: Final = 1024
# messages being stored
IN_FLIGHT: Final = 1024
RETRY_S: Final = 0.1
# queue entries at once
_READ: Final = 1024
# taken back, and still in the two heaps: at most as many as wait, and these
_TAKEN_BACK: Final = 1024


class TimerMessage(NamedTuple):
    """A message in the timer topic, by its queue offset."""

    deliver_ms: int
    offset: int
    commitlog_offset: int
    name: Name
    is_delay: bool
    """True if *deliver_ms* is a time of the store's clock."""


class TimerProgress(NamedTuple):
    """TimerProgress of delivery.

    Of the messages before *end*, those whose time is at most *settled_ms* are delivered; everything
    before *low* is settled. *settled_delays_ms*: the same for those with a delay, whose times are
    of the store's clock. *by_second*: *settled_ms* is in terms of TIMER_OUT_MS, as in Apache's
    broker, and a message may be there twice (rolled).
    """

    low: int = 0
    end: int = 0
    settled_ms: int = -1
    settled_delays_ms: int = -1
    by_second: bool = False


_FROM_HERE: Final = TimerProgress()


class _Line:
    """Messages whose times are of one clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        # (time, offset); holds offsets that were taken back, too
        self.heap: list[tuple[int, int]] = []

    def overdue(self) -> Iterator[int]:
        """Offsets in the heap that are due, without an order."""
        now_ms, looked_at = self.now_ms(), [0]
        for at in looked_at:
            # else nothing below it is, either
            if at < len(self.heap) and self.heap[at][0] <= now_ms:
                looked_at += (2 * at + 1, 2 * at + 2)
                yield self.heap[at][1]

    def settled_ms(self, waiting: Container[int], apart: Iterable[int]) -> int:
        """See TimerProgress. *apart*: times of waiting messages that may not be in the heap."""
        for _ in range(PASSED):
            if not self.heap or self.heap[0][1] in waiting:
                break
            heapq.heappop(self.heap)
        else:
            self.trim(waiting)
        return min([time for time, _ in self.heap[:1]] + [*apart], default=self.now_ms() + 1) - 1

    def trim(self, waiting: Container[int]) -> None:
        """Remove messages that were recalled."""
        self.heap = [one for one in self.heap if one[1] in waiting]
        heapq.heapify(self.heap)


class _Names:
    """The waiting messages by name.

    There is nearly always one of a name; a client can give all its messages the same.
    """

    def __init__(self) -> None:
        self._first: dict[Name, int] = {}
        self._others: dict[Name, set[int]] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._first

    def of(self, name: Name) -> list[int]:
        first = self._first.get(name)
        return [] if first is None else [first, *self._others.get(name, ())]

    def add(self, name: Name, offset: int) -> None:
        if self._first.setdefault(name, offset) != offset:
            self._others.setdefault(name, set()).add(offset)

    def remove(self, name: Name, offset: int) -> None:
        others = self._others.get(name, set())
        if self._first.get(name) != offset:
            others.discard(offset)
        elif others:
            self._first[name] = others.pop()
        else:
            del self._first[name]
        if not others:
            self._others.pop(name, None)

    def pop(self, name: Name) -> list[int]:
        offsets = self.of(name)
        self._first.pop(name, None)
        self._others.pop(name, None)
        return offsets


class TopicTimers:
    """Messages of a topic since the start: the number that arrived and were delivered, and the sum
    of their delays in seconds.
    """

    def __init__(self) -> None:
        self.taken_up = self.delivered = 0
        self.waits = Values(WAITS_S)


class Hold:
    """A hold on the messages of one name while they are being recalled."""

    def __init__(self) -> None:
        self.passed_over: set[int] = set()
        """Offsets of messages that became due, and are in no heap."""
        self.ended = asyncio.Event()


class Timers:
    """All messages that wait for their time, and their delivery. Event-loop only, from start()
    on.
    """

    def __init__(self, store: MessageStore, wall_ms: Callable[[], int], max_waiting: int) -> None:
        """*wall_ms*: the machine's clock."""
        self._store, self._max = store, max_waiting
        self._put: Put = _not_started
        self._reads: JobReads | None = None  # before start()
        self._store_host = b""
        self._times, self._delays = _Line(wall_ms), _Line(store.now_ms)
        # OrderedDict, not dict: its first key is the lowest offset, and is found at once however
        # many before it are gone
        self._waiting: OrderedDict[int, TimerMessage] = OrderedDict()
        self._names = _Names()
        # still in _waiting: until they are stored, a start has to find them
        self._on_the_way: dict[int, TimerMessage] = {}
        # names whose messages are being taken back; these are still in _waiting
        self._held: dict[Name, Hold] = {}
        # of the part of the queue that has been read
        self._end = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.Event | None = None
        self._stopping = False
        self.version = 0
        """Grows with every step of progress."""
        self.taken_up = self.delivered = 0
        """Messages since the start."""
        self.by_topic: ByTopic[TopicTimers] = ByTopic(TopicTimers)
        self.waiting_of: Counter[str] = Counter()
        """Number of waiting messages of each topic."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def unread(self) -> int:
        """Number of messages of the topic that are not read yet."""
        return self._store.max_offset(*TIMER_KEY) - self._end

    @property
    def behind_s(self) -> float:
        """Return the delay in seconds of the earliest due message that is not delivered; 0 without
        one.
        """
        progress = self.progress()
        behind_ms = (
            self._times.now_ms() - progress.settled_ms,
            self._delays.now_ms() - progress.settled_delays_ms,
        )
        return max(0, max(behind_ms) - 1) / 1000

    @property
    def overdue(self) -> int:
        """Return the number of due messages that are not yet safe under their own topic."""
        due = {
            offset
            for line in (self._times, self._delays)
            for offset in line.overdue()
            if offset in self._waiting
        }
        return len(
            self._on_the_way.keys()
            | {offset for offset in due if self._waiting[offset].name not in self._held}
        )

    def check_room(self) -> None:
        """Check that one more message may wait. Raises Rejected."""
        if len(self) >= self._max:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy: {self._max} timer messages wait already",
            )

    def waiting(self, topic: str) -> list[TimerMessage]:
        """Return the messages that wait for *topic*, as far as they have been read."""
        return [one for one in self._waiting.values() if one.name[0] == topic]

    def forget(self, name: Name) -> None:
        """Deliver nothing of this name; the caller takes it back in the log."""
        self._drop(name)

    def held(self, handle: RecallHandle) -> Hold | None:
        """Return the hold under which the messages of *handle* are being cancelled, or None."""
        return self._held.get(handle.name)

    def hold(self, handle: RecallHandle) -> Hold | None:
        """Keep the messages of *handle* from being delivered while they are being cancelled.

        Return None if none waits. held() must be None: only one holder may let them go on.
        """
        if handle.name not in self._names:
            return None
        hold = self._held[handle.name] = Hold()
        return hold

    def release(self, handle: RecallHandle, hold: Hold) -> None:
        """End the hold. Messages that are still waiting were not cancelled, and wait again, unless
        another request has recalled them meanwhile.
        """
        hold.ended.set()
        if self._held.get(handle.name) is not hold:
            return
        del self._held[handle.name]
        for offset in hold.passed_over:
            self._line_up(self._waiting[offset])
        self._wake()

    def recover(self, progress: TimerProgress) -> None:
        """Read messages that may wait. Blocking; before start(). Raises StoreError."""
        low, high = self._store.min_offset(*TIMER_KEY), self._store.max_offset(*TIMER_KEY)
        # a power cut may have taken what the progress speaks of
        self._end = min(max(progress.low, low), high)
        self._read(progress._replace(end=min(progress.end, high)))
        if self._waiting:
            log.info("%d timer messages wait", len(self._waiting))
        self.taken_up = 0

    def start(self, put: Put, fetch: Fetch, store_host: bytes) -> None:
        """Begin to deliver. *put* stores one message, *fetch* reads from disk."""
        self._put, self._store_host = put, store_host
        self._reads = JobReads(self._store, fetch, self._brought_in)
        self._loop = asyncio.get_running_loop()
        self._store.on_growth[TIMER_KEY] = self._wake
        self._wake()

    async def stop(self) -> None:
        """Begin no more deliveries, and wait for those in progress."""
        self._stopping = True
        self._cancel_timer()
        if self._on_the_way:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def progress(self) -> TimerProgress:
        """Return the offset at which the next start has to continue."""
        passed_over = (
            self._waiting[offset] for hold in self._held.values() for offset in hold.passed_over
        )
        apart = [*self._on_the_way.values(), *passed_over]
        settled_ms = self._times.settled_ms(
            self._waiting, [one.deliver_ms for one in apart if not one.is_delay]
        )
        settled_delays_ms = self._delays.settled_ms(
            self._waiting, [one.deliver_ms for one in apart if one.is_delay]
        )
        return TimerProgress(
            next(iter(self._waiting), self._end), self._end, settled_ms, settled_delays_ms
        )

    def needed_from(self) -> int:
        """Return the commit-log offset from which on the log must be kept: that of the oldest
        waiting message; all while there are unread ones.
        """
        if self._waiting:
            return next(iter(self._waiting.values())).commitlog_offset
        stats = self._store.stats()
        return (
            stats.commitlog_start
            if self._end < self._store.max_offset(*TIMER_KEY)
            else stats.commitlog_end
        )

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that builds the progress file.

        *readMs*: Apache's broker waits from there on; it never delivered messages that it got for
        an earlier time.
        """
        low, end, settled_ms, settled_delays_ms, _ = self.progress()
        read_ms = min(settled_ms, settled_delays_ms, self._times.now_ms())
        return lambda: {
            "low": low,
            "end": end,
            "settledMs": settled_ms,
            "settledDelaysMs": settled_delays_ms,
            "readMs": read_ms,
        }

    # --- reading the topic ------------------------------------------------------------------------

    def _read(self, progress: TimerProgress = _FROM_HERE) -> None:
        while entries := self._store.entries(*TIMER_KEY, self._end, _READ):
            self.version += 1
            for offset, entry in enumerate(entries, self._end):
                record = (
                    self._store.record_at(entry.commitlog_offset)
                    if entry.size != FILLER_SIZE
                    else None
                )
                if record is None:
                    log.warning("the log no longer has timer message %d", offset)
                else:
                    self._take_up(offset, entry.commitlog_offset, record, progress)
                # each by itself: where one cannot be read now, the next try begins with that one
                self._end = offset + 1

    def _take_up(
        self, offset: int, commitlog_offset: int, record: bytes, progress: TimerProgress
    ) -> None:
        properties = decode_properties(stored_properties(memoryview(record), 0)[2])
        out_ms = properties.get(OUT_MS, "")
        if not is_time(out_ms):
            log.warning("skipped timer message %d, which has no delivery time", offset)
            return
        if DELETE_KEY in properties:
            self._take_back(
                properties[DELETE_KEY], properties.get(PropertyName.REAL_TOPIC, ""), out_ms
            )
            return
        deliver_ms = exact_time(int(out_ms), properties.get(DELIVER_MS, ""))
        delay = is_delay(properties)
        if offset < progress.end:
            if progress.by_second:
                if int(out_ms) < progress.settled_ms:
                    return
            elif deliver_ms <= (progress.settled_delays_ms if delay else progress.settled_ms):
                return
        name = name_of(
            properties.get(PropertyName.REAL_TOPIC, ""),
            properties.get(PropertyName.UNIQ_KEY, ""),
            out_ms,
        )
        if "TIMER_ROLL_TIMES" in properties:
            # this is the same message again, which Apache's broker put farther on
            self._drop(name)
        one = self._waiting[offset] = TimerMessage(
            deliver_ms, offset, commitlog_offset, name, delay
        )
        self.waiting_of[name[0]] += 1
        # else it came before the start
        if self._loop is not None:
            clock, figures = self._delays if delay else self._times, self.by_topic.of(name[0])
            figures.waits.add(max(0, deliver_ms - clock.now_ms()) / 1000)
            figures.taken_up += 1
        self._names.add(name, offset)
        self._line_up(one)
        self.taken_up += 1

    def _line_up(self, one: TimerMessage) -> None:
        heapq.heappush(
            (self._delays if one.is_delay else self._times).heap, (one.deliver_ms, one.offset)
        )

    def _take_back(self, key: str, topic: str, out_ms: str) -> None:
        """Forget waiting messages. *key* is a unique key, or topic, plus sign and unique key
        (appendTopicForTimerDeleteKey).
        """
        name = name_of(topic, key, out_ms)
        if name not in self._names:
            name = name_of(topic, key.removeprefix(f"{topic}+"), out_ms)
        self._drop(name)
        self._held.pop(name, None)

    def _drop(self, name: Name) -> None:
        for offset in self._names.pop(name):
            self._leave(offset)
        if name in self._held:
            self._held[name].passed_over.clear()
        if len(self._times.heap) + len(self._delays.heap) > 2 * len(self._waiting) + _TAKEN_BACK:
            self._times.trim(self._waiting)
            self._delays.trim(self._waiting)

    # --- delivery ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Read new messages, deliver what is due, and set the timer for the next one."""
        if self._stopping or self._loop is None or self._reads is None:
            return
        self._cancel_timer()
        try:
            self._read()
            if self._reads.pending:
                # what is due first is being read from disk: that wakes
                return
            more = self._deliver(self._reads)
        except StoreError as exc:
            self._brought_in(exc)
            return
        except Cold as cold:
            self._reads.bring_in(cold)
            return
        if more:
            self._wake_in(0.0)
        elif len(self._on_the_way) < IN_FLIGHT:
            waits_ms = [
                line.heap[0][0] - line.now_ms() for line in (self._times, self._delays) if line.heap
            ]
            if waits_ms:
                self._wake_in(max(0.0, min(waits_ms) / 1000))

    def _brought_in(self, error: StoreError | None) -> None:
        """Continue after a read from disk, or stop with its error."""
        if error is None:
            self._wake()
        elif not self._stopping:
            log.warning("could not deliver timer messages, next try in %.1f s: %s", RETRY_S, error)
            self._cancel_timer()
            self._wake_in(RETRY_S)

    def _wake_in(self, wait_s: float) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(min(wait_s, MAX_WAIT_S), self._wake)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self, reads: JobReads) -> bool:
        """Deliver an iteration's share of the due messages, and return True if more are due.

        Raises StoreError and Cold, with the message at fault waiting again.
        """
        taken = passed = 0
        for line in (self._times, self._delays):
            now_ms = line.now_ms()
            while line.heap and line.heap[0][0] <= now_ms:
                if len(self._on_the_way) >= IN_FLIGHT:
                    # an answer of the store wakes again
                    return False
                if taken == BATCH or passed == PASSED:
                    return True
                offset = heapq.heappop(line.heap)[1]
                one = self._waiting.get(offset)
                hold = self._held.get(one.name) if one is not None and self._held else None
                if hold is not None:
                    hold.passed_over.add(offset)
                    passed += 1
                elif one is not None:
                    taken += 1
                    self._send(one, reads)
                else:
                    passed += 1
        return False

    def _send(self, one: TimerMessage, reads: JobReads) -> None:
        self._names.remove(one.name, one.offset)
        self._on_the_way[one.offset] = one
        try:
            message = self._message(one, reads)
            if message is None:
                self._settled(one)
            else:
                self._put((message,), partial(self._stored, one))
        except InvalidOption as exc:
            log.error(
                "skipped timer message %d, which does not fit into a record of its topic: %s",
                one.offset,
                exc,
            )
            self._settled(one)
        except (StoreError, Cold):
            self._wait_again(one)
            raise

    def _settled(self, one: TimerMessage) -> None:
        del self._on_the_way[one.offset]
        self._leave(one.offset)
        self.version += 1

    def _leave(self, offset: int) -> None:
        """Forget a message that does not wait any more."""
        topic = self._waiting.pop(offset).name[0]
        self.waiting_of[topic] -= 1
        if not self.waiting_of[topic]:
            del self.waiting_of[topic]

    def _wait_again(self, one: TimerMessage) -> None:
        del self._on_the_way[one.offset]
        self._names.add(one.name, one.offset)
        self._line_up(one)

    def _stored(self, one: TimerMessage, result: list[PutResult] | StoreError) -> None:
        if isinstance(result, StoreError):
            log.warning(
                "could not deliver timer message %d, next try in %.1f s: %s",
                one.offset,
                RETRY_S,
                result,
            )
            self._wait_again(one)
        else:
            self._settled(one)
            self.delivered += 1
            self.by_topic.of(one.name[0]).delivered += 1
        if self._idle is not None and not self._on_the_way:
            self._idle.set()
        if self._stopping or self._store.failed is not None:
            return
        if isinstance(result, StoreError):
            self._cancel_timer()
            self._wake_in(RETRY_S)
        elif self._timer is None and len(self._on_the_way) <= IN_FLIGHT // 2:
            self._wake_in(0.0)

    def _message(self, one: TimerMessage, reads: JobReads) -> NewMessage | None:
        """Return the message to store again, or None if the log no longer has it. Raises
        StoreError, Cold.
        """
        record = reads.record_at(one.commitlog_offset)
        if record is None:
            log.warning("the log no longer has timer message %d", one.offset)
            return None
        stored = decode_stored(record)
        place = real_place(decode_properties(stored.properties))
        if place is None or place[0] == HALF_TOPIC:
            log.warning("skipped timer message %d, which names no topic and queue", one.offset)
            return None
        return stored_again(
            stored, place, delivered_properties(stored, self._store.now_ms()), self._store_host
        )


def _not_started(_messages: tuple[NewMessage], _done: PutDone) -> None:
    raise AssertionError("timers deliver nothing before they are started")


_PAGE: Final = struct.Struct(">qqqq")
"""lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset; more follows
that may be zero
"""
_PAGE_BYTES: Final = 4096


class TimerProgressFile(JsonTable):
    """Both files as one table. *root*: the store's directory."""

    def __init__(self, fs: Fs, root: Path) -> None:
        super().__init__(fs, root / "config" / "timerProgress.json", valid=_is_ours)
        self._fs, self._root = fs, root
        self._check = root / "config" / "timercheck"

    def progress(self) -> TimerProgress:
        """Return the progress in the files.

        If Apache's broker ran here since, its own file applies. Raises OSError.
        """
        page = self._page()
        ours = self.load()
        if ours is not None and (
            page.hex() in (ours["timercheck"], ours.get("timercheckBefore"))
            or not self._apaches_files()
        ):
            settled_ms = ours["settledMs"]
            return TimerProgress(
                ours["low"], ours["end"], settled_ms, ours.get("settledDelaysMs", settled_ms)
            )
        if len(page) < _PAGE.size:
            return TimerProgress()
        read_ms, _, end, _ = _PAGE.unpack(page)
        return TimerProgress(0, end, read_ms, read_ms, by_second=True)

    def _apaches_files(self) -> list[Path]:
        """Return the paths of its wheel and log: without them it did not run since our last start,
        whatever timercheck says.
        """
        folder, wheel = self._root / "timerlog", "timerwheel"
        return [folder / name for name in self._fs.list(folder)] + (
            [self._root / wheel] if wheel in self._fs.list(self._root) else []
        )

    def _page(self) -> bytes:
        return (read_file(self._fs, self._check) or b"")[: _PAGE.size]

    def take_over(self, value: dict[str, Any]) -> None:
        """Take over from Apache's broker: its derived files are out of date from here on.

        *value* is saved first. Raises OSError.
        """
        theirs = self._apaches_files()
        if not theirs:
            return
        self.save(value)
        for path in theirs:
            self._fs.unlink(path)
            self._fs.fsync_dir(path.parent)

    def save(self, value: dict[str, Any]) -> None:
        """Save *value*, see Timers.snapshot.

        Raises OSError. After a kill between the two files, our own still applies.
        """
        page = _PAGE.pack(max(0, value["readMs"]), 0, value["low"], value["low"])
        super().save(value | {"timercheck": page.hex(), "timercheckBefore": self._page().hex()})
        with self.telling():
            write_synced(self._fs, self._check, page.ljust(_PAGE_BYTES, b"\0"), size=_PAGE_BYTES)
            self._fs.fsync_dir(self._check.parent)


def _is_ours(value: dict[str, Any]) -> bool:
    times = (
        value.get("low"),
        value.get("end"),
        value.get("settledMs"),
        value.get("settledDelaysMs", 0),
    )
    return isinstance(value.get("timercheck"), str) and all(type(time) is int for time in times)
