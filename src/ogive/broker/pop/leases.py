"""Leases of messages that were given out by POP and are not acknowledged yet.

A lease holds the messages of one read of one queue: what Apache's broker calls a checkpoint.

Behaviour
- A lease counts once it is in the journal; then the group's offset moves past its messages. Where
  the journal refuses it, it is as if the messages had not been read.
- An acknowledgement counts once it is in the journal.
- Times are of the machine's clock, which nobody can set; after a restart of the machine, of the
  wall clock, and a lease is at most as long as it was asked for.
- After a crash, offsets go on behind what was given out: the journal holds them as well.
"""

import heapq
import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ogive.broker.pop.order import Batch, OrderBook
from ogive.broker.state.offset_table import OffsetTable
from ogive.errors import OgiveError, StoreError
from ogive.store.journal import Journal
from ogive.wire.bodies.json_fields import dumps

log = logging.getLogger(__name__)

Place = tuple[str, str, int]
"""group, topic that was read, queue id"""
End = Callable[[OgiveError | None], None]

# the journal is not shortened before
_MIN_JOURNAL_BYTES: Final = 4 * 1024 * 1024
# lines that are copied to a new file at once
_COPIED_AT_ONCE: Final = 256
_VERSION: Final = 1
# all leases are searched for the oldest ones at most so often
_OLDEST_S: Final = 1.0


class LeaseKey(NamedTuple):
    """Key of a lease, as in its messages' handles. *start*: the offset at which the read began."""

    group: str
    topic: str
    queue_id: int
    start: int
    pop_time_ms: int

    @property
    def place(self) -> Place:
        return self.group, self.topic, self.queue_id


@dataclass(slots=True, eq=False)
class Lease:
    """Messages of one read. *open* has bit i set while *offsets* [i] is not acknowledged.

    *due_s* is when the invisible time is over, on the machine's clock. *suspend*: the next delivery
    does not count as another try. *stored* has the bits of messages that are stored again, the last
    of them at *stored_at*, which the journal does not say yet.
    """

    key: LeaseKey
    offsets: tuple[int, ...]
    invisible_ms: int
    due_s: float
    revive_queue: int
    suspend: bool
    open: int
    serial: int
    reviving: bool = False
    stored: int = 0
    stored_at: int = 0

    def bits(self, offsets: Iterable[int]) -> int:
        """Return the bits of those of *offsets* that are here and not acknowledged."""
        wanted = set(offsets)
        found = sum([1 << at for at, offset in enumerate(self.offsets) if offset in wanted])
        return found & self.open


class Read(NamedTuple):
    """One read of a queue: *offsets* are taken, none where it only passed over messages.

    *after*: the offset that the next read begins at.
    """

    place: Place
    start: int
    offsets: tuple[int, ...]
    after: int


@dataclass(slots=True)
class _Ahead:
    """Position of a queue while it is on its way to the journal, and how many reads are."""

    offset: int = 0
    count: int = 0


@dataclass(slots=True)
class _Step:
    """A new position of a queue on its way to the journal. *before*: the one before it."""

    place: Place
    offset: int
    ahead: _Ahead | None
    before: int | None


class LeaseBook:
    """The leases of a broker, and their journal. Owner: the event loop."""

    def __init__(
        self,
        journal: Journal,
        offsets: OffsetTable,
        *,
        boot: str,
        clock_s: Callable[[], float],
        now_ms: Callable[[], int],
        max_leases: int,
        revive_queues: int = 8,
    ) -> None:
        """*clock_s*: the machine's clock; *boot* names its run."""
        self._journal, self._offsets, self._boot = journal, offsets, boot
        self._clock_s, self._now_ms, self._max = clock_s, now_ms, max_leases
        self._leases: dict[LeaseKey, Lease] = {}
        # those with open messages
        self._heap: list[tuple[float, int, Lease]] = []
        self._pushes = itertools.count()
        # open messages
        self.out: Counter[Place] = Counter()
        # the times of the oldest leases, and until when they are good enough
        self._oldest: dict[Place, int] = {}
        self._oldest_until_s = 0.0
        self._ahead: dict[Place, _Ahead] = {}
        # of the newest lease or position
        self._serial = 0
        # the newest position of each queue that was popped since the start, and its number
        self._positions: dict[Place, tuple[int, int]] = {}
        # the last that the journal says: all leases were written as checkpoints
        self._exported = False
        # another broker has had the directory since the journal was written
        self._was_away = False
        # no broker of ours has had it
        self._is_new = True
        self._copying: Iterator[list[bytes]] | None = None
        self.next_revive_queue = itertools.cycle(range(revive_queues)).__next__
        self.orders = OrderBook(clock_s, now_ms)
        # the batch of a queue that is popped in order has changed
        self.on_order: Callable[[Place], None] = lambda place: None
        # the earliest time has changed
        self.on_due: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def is_full(self) -> bool:
        return len(self._leases) + len(self.orders) >= self._max

    def get(self, key: LeaseKey) -> Lease | None:
        return self._leases.get(key)

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    def position(self, place: Place) -> int | None:
        """Return where the next read of a queue begins; None: the group has no progress there."""
        ahead = self._ahead.get(place)
        return self._offsets.get(*place) if ahead is None else ahead.offset

    # --- changes ----------------------------------------------------------------------------------

    def take(self, reads: Iterable[Read], invisible_ms: int, revive_queue: int, end: End) -> int:
        """Lease what was read. Return the time of these leases, in ms.

        *end* is called once they are safe and the offsets have moved, or with the error, and then
        nothing was taken. Raises StoreError, and then nothing was taken either.
        """
        pop_time_ms, due_s = self._now_ms(), self._clock_s() + invisible_ms / 1000
        reads = list(reads)
        while any((*read.place, read.start, pop_time_ms) in self._leases for read in reads):
            pop_time_ms += 1
        leases = [
            Lease(
                LeaseKey(*read.place, read.start, pop_time_ms), read.offsets, invisible_ms, due_s,
                revive_queue, False, (1 << len(read.offsets)) - 1, self._serial + at,
            )
            for at, read in enumerate(reads, 1)
            if read.offsets
        ]  # fmt: skip

        def done(error: OgiveError | None) -> None:
            for lease in leases:
                if error is None:
                    self._push(lease)
                else:
                    self._remove(lease)
            end(error)

        moves = [(read.place, read.after) for read in reads]
        self._move(moves, list(map(self._lease_line, leases)), done)
        for lease in leases:
            self._add(lease)
        return pop_time_ms

    def _move(self, moves: Iterable[tuple[Place, int]], lines: list[bytes], done: End) -> None:
        """Write *lines* and the new positions of queues; then the groups' offsets move, and *done*
        is called. Raises StoreError.
        """
        steps = []
        for place, offset in moves:
            self._serial += 1
            lines.append(_line("p", self._serial, *place, offset))
            steps.append(_Step(place, offset, self._ahead.get(place), self.position(place)))
        serial = self._serial

        def written(error: StoreError | None) -> None:
            for step in steps:
                self._moved(step, serial, error)
            if error is None:
                self._offsets.popped = serial
            done(error)
            self._shorten()

        self._append(lines, written)
        for step in steps:
            if step.ahead is None:
                step.ahead = self._ahead[step.place] = _Ahead()
            step.ahead.offset = step.offset
            step.ahead.count += 1

    def _moved(self, step: "_Step", serial: int, error: StoreError | None) -> None:
        """A position is in the journal, or was refused."""
        place, ahead = step.place, step.ahead
        assert ahead is not None
        ahead.count -= 1
        if self._ahead.get(place) is not ahead:
            # the group was put elsewhere meanwhile
            return
        if error is None:
            self._offsets.note(*place, step.offset)
            self._positions[place] = (serial, step.offset)
        elif step.before is not None:
            ahead.offset = step.before
        if not ahead.count:
            del self._ahead[place]

    def acknowledge(self, ended: Iterable[tuple[Lease, int]], end: End) -> None:
        """End leases of messages, by their bits; *end* is called once that is safe, or with the
        error, and then nothing has ended. Raises StoreError.
        """
        # a request may name a message twice
        wanted: dict[Lease, int] = {}
        for lease, bits in ended:
            wanted[lease] = wanted.get(lease, 0) | bits & lease.open
        pairs = [(lease, bits) for lease, bits in wanted.items() if bits]
        if not pairs:
            end(None)
            return
        lines = [_line("a", *lease.key, bits) for lease, bits in pairs]

        def done(error: StoreError | None) -> None:
            for lease, bits in pairs:
                if error is None:
                    self._settle(lease)
                else:
                    self._open(lease, bits)
            end(error)
            self._shorten()

        self._append(lines, done)
        for lease, bits in pairs:
            self._close(lease, bits)

    def change(
        self, lease: Lease, offset: int, invisible_ms: int, suspend: bool, end: End
    ) -> tuple[int, Lease]:
        """Begin a new lease of one message, and end the old one. Return the new one's time in ms,
        and the new one. *end*, and what is raised, as of acknowledge().
        """
        pop_time_ms = self._now_ms()
        while (*lease.key.place, offset, pop_time_ms) in self._leases:
            pop_time_ms += 1
        self._serial += 1
        changed = Lease(
            LeaseKey(*lease.key.place, offset, pop_time_ms), (offset,), invisible_ms,
            self._clock_s() + invisible_ms / 1000, lease.revive_queue, suspend, 1, self._serial,
        )  # fmt: skip
        bits = lease.bits((offset,))

        def done(error: StoreError | None) -> None:
            if error is None:
                self._push(changed)
                self._settle(lease)
            else:
                self._remove(changed)
                self._open(lease, bits)
            end(error)
            self._shorten()

        self._append([self._lease_line(changed), _line("a", *lease.key, bits)], done)
        self._close(lease, bits)
        self._add(changed)
        return pop_time_ms, changed

    def revived(self, lease: Lease, bits: int, commitlog_offset: int, end: End) -> None:
        """Messages are stored again, the last of them at *commitlog_offset*: their leases end.

        Should a power cut take that from the log, they have not ended. Raises StoreError. If the
        journal refuses it, the caller says so again, and stores nothing again.
        """
        lease.stored |= bits
        lease.stored_at = max(lease.stored_at, commitlog_offset)

        def done(error: StoreError | None) -> None:
            if error is None:
                self._close(lease, bits & lease.open)
                self._settle(lease)
            end(error)
            self._shorten()

        self._append([_line("r", *lease.key, bits, commitlog_offset)], done)

    # --- orderly popping --------------------------------------------------------------------------

    def take_ordered(
        self, reads: Iterable[Read], invisible_ms: int, attempt_id: str, end: End
    ) -> int:
        """Give out a batch of each queue; the group's offset stays where the read began.

        Return the time of the batches, in ms. *end*, and what is raised, as of take().
        """
        orders, reads = self.orders, list(reads)
        before = {read.place: orders.get(read.place) for read in reads}
        pop_time_ms = max(
            [self._now_ms(), *(one.pop_time_ms + 1 for one in before.values() if one is not None)]
        )
        for read in reads:
            batch = Batch(
                pop_time_ms, invisible_ms, read.offsets,
                self._clock_s() + invisible_ms / 1000, attempt_id,
                counts=orders.counts_of(read.place, read.offsets, attempt_id),
                used_ms=pop_time_ms,
            )  # fmt: skip
            orders.put(read.place, batch)

        def done(error: OgiveError | None) -> None:
            for place, batch in before.items():
                if error is not None:
                    orders.put(place, batch)
                self.on_order(place)
            end(error)

        moves = [(read.place, read.start) for read in reads]
        try:
            self._move(moves, [_line("o", *orders.record(place)) for place in before], done)
        except StoreError:
            for place, old in before.items():
                orders.put(place, old)
            raise
        return pop_time_ms

    def acknowledge_ordered(self, place: Place, pop_time_ms: int, bits: int, end: End) -> None:
        """Acknowledge messages of the batch that is out; one of another time says nothing.

        *end*, and what is raised, as of acknowledge().
        """
        batch = self.orders.get(place)
        if batch is None or batch.pop_time_ms != pop_time_ms or not bits & ~batch.acked:
            end(None)
            return
        before, batch.acked = batch.acked, batch.acked | bits
        self.orders.version += 1

        def done(error: OgiveError | None) -> None:
            if error is not None:
                batch.acked &= ~(bits & ~before)
            end(error)
            self.on_order(place)

        line = _line("o", *self.orders.record(place))
        try:
            self._move([(place, batch.next_offset())], [line], done)
        except StoreError:
            batch.acked = before
            raise

    def change_ordered(self, place: Place, offset: int, invisible_ms: int, end: End) -> int:
        """Show a message of the batch that is out again after *invisible_ms*.

        Return when, in ms. *end*, and what is raised, as of acknowledge().
        """
        batch = self.orders.get(place)
        assert batch is not None
        before, visible_ms = dict(batch.visible), self._now_ms() + invisible_ms
        batch.visible[offset] = (visible_ms, self._clock_s() + invisible_ms / 1000)
        self.orders.version += 1

        def done(error: StoreError | None) -> None:
            if error is not None:
                batch.visible = before
            end(error)
            self.on_order(place)
            self._shorten()

        try:
            self._append([_line("o", *self.orders.record(place))], done)
        except StoreError:
            batch.visible = before
            raise
        return visible_ms

    # --- what ends otherwise ----------------------------------------------------------------------

    def forget(self, wanted: Callable[[str, str], bool]) -> int:
        """End the leases of what is deleted; *wanted* gets group and topic. Return how many.

        Raises StoreError.
        """
        # reads on their way to the journal move nothing any more
        for place in [place for place in self._ahead if wanted(*place[:2])]:
            del self._ahead[place]
        for place in [place for place in self.orders.places() if wanted(*place[:2])]:
            self._forget_order(place)
        found = [lease for lease in self._leases.values() if wanted(*lease.key[:2])]
        if found:
            self.acknowledge([(lease, lease.open) for lease in found], lambda error: None)
        return len(found)

    def lowest(self) -> dict[Place, int]:
        """Return the lowest offset that is not acknowledged in each queue that has any."""
        found: dict[Place, int] = {}
        for lease in self._leases.values():
            if lease.open:
                place, first = lease.key.place, (lease.open & -lease.open).bit_length() - 1
                at = lease.offsets[first]
                if found.get(place, at) >= at:
                    found[place] = at
        return found

    def oldest_ms(self, place: Place) -> int:
        """Return when the oldest lease of a queue was given out, 0 if there is none; of a queue
        that is popped in order, when its batch was.

        A lease that has ended while others are open counts for up to _OLDEST_S.
        """
        batch = self.orders.open_batch(place)
        if batch is not None:
            return batch.pop_time_ms
        if place not in self.out:
            return 0
        if place not in self._oldest or self._clock_s() >= self._oldest_until_s:
            oldest: dict[Place, int] = {}
            for lease in self._leases.values():
                if lease.open:
                    at_ms = lease.key.pop_time_ms
                    oldest[lease.key.place] = min(oldest.get(lease.key.place, at_ms), at_ms)
            self._oldest, self._oldest_until_s = oldest, self._clock_s() + _OLDEST_S
        return self._oldest.get(place, 0)

    def put_elsewhere(self, place: Place, offset: int) -> None:
        """The group's offset was set: reads on their way to the journal do not move it any more.

        Raises StoreError.
        """
        on_its_way = self._ahead.pop(place, None) is not None
        if self.orders.get(place) is not None:
            self._forget_order(place)
        if on_its_way or place in self._positions:
            self._serial += 1
            serial = self._serial
            self._positions[place] = (serial, offset)

            def written(error: StoreError | None) -> None:
                # not before: the file of offsets does not have the positions before this one yet
                if error is None:
                    self._offsets.popped = serial

            self._append([_line("p", serial, *place, offset)], written)

    def forget_old_orders(self) -> None:
        """Forget batches that nobody has asked for since a day. Raises StoreError."""
        for place in self.orders.forget_old():
            self._forget_order(place)

    def _forget_order(self, place: Place) -> None:
        self.orders.put(place, None)
        self._append([_line("o", *self.orders.record(place))], lambda error: None)

    # --- times ------------------------------------------------------------------------------------

    def next_due_s(self) -> float | None:
        """Return the machine's time at which the next lease ends."""
        while self._heap and not _waits(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self) -> Lease | None:
        """Return a lease whose time is over, for the caller to revive; retry() takes it back."""
        due_s = self.next_due_s()
        if due_s is None or due_s > self._clock_s():
            return None
        lease = heapq.heappop(self._heap)[2]
        lease.reviving = True
        return lease

    def retry(self, lease: Lease, after_s: float) -> None:
        """Look at a lease again later that could not be revived."""
        lease.reviving = False
        lease.due_s = self._clock_s() + after_s
        self._push(lease)

    def late_s(self) -> list[float]:
        """Return for how long the leases are over whose messages are not stored again yet."""
        now_s = self._clock_s()
        return [
            now_s - lease.due_s
            for lease in self._leases.values()
            if lease.open and lease.due_s <= now_s
        ]

    def wait_s(self) -> float | None:
        """Return how long it is until the next lease ends."""
        due_s = self.next_due_s()
        return None if due_s is None else max(0.0, due_s - self._clock_s())

    # --- the table --------------------------------------------------------------------------------

    def _add(self, lease: Lease) -> None:
        self._leases[lease.key] = lease
        self.out[lease.key.place] += lease.open.bit_count()

    def _push(self, lease: Lease) -> None:
        """Look at the lease when its time is over."""
        if lease.open:
            heapq.heappush(self._heap, (lease.due_s, next(self._pushes), lease))
            if self._heap[0][2] is lease:
                self.on_due()
        if len(self._heap) > 2 * len(self._leases) + 1024:
            self._heap = [one for one in self._heap if _waits(*one)]
            heapq.heapify(self._heap)

    def _close(self, lease: Lease, bits: int) -> None:
        lease.open &= ~bits
        self._count(lease.key.place, -bits.bit_count())

    def _open(self, lease: Lease, bits: int) -> None:
        lease.open |= bits
        self._count(lease.key.place, bits.bit_count())
        if not lease.reviving:
            self._push(lease)

    def _count(self, place: Place, change: int) -> None:
        self.out[place] += change
        if self.out[place] <= 0:
            del self.out[place]

    def _settle(self, lease: Lease) -> None:
        """Forget a lease without open messages."""
        if not lease.open:
            self._leases.pop(lease.key, None)

    def _remove(self, lease: Lease) -> None:
        self._close(lease, lease.open)
        self._leases.pop(lease.key, None)

    # --- the journal ------------------------------------------------------------------------------

    def _append(self, lines: list[bytes], done: Callable[[StoreError | None], None]) -> None:
        self._journal.append(lines, done)

    def _lease_line(self, lease: Lease) -> bytes:
        return _line(
            "l", lease.serial, *lease.key, lease.invisible_ms, lease.due_s, lease.revive_queue,
            lease.suspend, [offset - lease.key.start for offset in lease.offsets], lease.open,
        )  # fmt: skip

    def _head(self) -> bytes:
        return _line("h", _VERSION, self._boot)

    def _shorten(self) -> None:
        """Begin a new file of the journal when the old ones are mostly of what is over, and copy
        what is not.
        """
        if self._copying is not None or self._journal.size < max(
            _MIN_JOURNAL_BYTES, 1024 * (len(self._leases) + len(self._positions))
        ):
            return
        self._journal.roll()
        self._copying = self._copies()
        self._copy(None)

    def _copy(self, error: StoreError | None) -> None:
        assert self._copying is not None
        lines = next(self._copying, None) if error is None else None
        if error is None and lines is not None:
            try:
                self._append(lines, self._copy)
                return
            except StoreError as exc:
                error = exc
        self._copying = None
        if error is None:
            self._journal.drop_old()

    def _copies(self) -> Iterator[list[bytes]]:
        yield [self._head()]
        positions, leases = list(self._positions), list(self._leases)
        ordered = self.orders.places()
        for at in range(0, len(ordered), _COPIED_AT_ONCE):
            some = ordered[at : at + _COPIED_AT_ONCE]
            yield [_line("o", *self.orders.record(place)) for place in some]
        for at in range(0, len(positions), _COPIED_AT_ONCE):
            places = positions[at : at + _COPIED_AT_ONCE]
            yield [
                _line("p", self._positions[one][0], *one, self._positions[one][1]) for one in places
            ]
        for at in range(0, len(leases), _COPIED_AT_ONCE):
            found = [self._leases.get(key) for key in leases[at : at + _COPIED_AT_ONCE]]
            yield [self._lease_line(lease) for lease in found if lease is not None]

    def recover(
        self,
        lines: Iterable[bytes],
        log_end: int,
        end_of: Callable[[str, int], int],
        saved: int | None,
    ) -> None:
        """Take over the lines of a journal.

        begin() must follow. *log_end*: of the commit log; *end_of* gives that of a queue. *saved*:
        the number of the newest position that the file of offsets knows; None: another broker wrote
        it, whose positions count.

        An empty line stands for damage. Behind it positions do not count: a lease before them may
        be lost, and its messages have to be given out again.
        """
        boot, is_whole = "", True
        for line in lines:
            self._is_new = False
            if not line:
                is_whole = False
                continue
            try:
                kind, *values = json.loads(line)
                self._exported = kind == "x"
                if kind == "h":
                    boot = values[1]
                elif kind == "x" or (kind == "p" and not is_whole):
                    continue
                else:
                    _TAKERS[kind](self, boot == self._boot, log_end, *values)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                log.error("a line of the journal of leases makes no sense: %.80r", line)
        self._was_away = saved is None
        for place, (serial, offset) in list(self._positions.items()):
            if saved is not None and serial > saved:
                self._offsets.note(*place, offset)
            else:
                del self._positions[place]
        self._offsets.popped = self._serial = max(saved or 0, self._serial)
        for lease in list(self._leases.values()):
            end = end_of(lease.key.topic, lease.key.queue_id)
            lost = lease.bits(offset for offset in lease.offsets if offset >= end)
            self._close(lease, lost)
            self._settle(lease)
            self._push(lease)

    def begin(self) -> None:
        """Begin a new journal with what there is. Blocking. Raises OSError."""
        self._journal.begin([line for group in self._copies() for line in group])

    def take_over(self, found: Mapping[LeaseKey, Lease]) -> None:
        """Add leases that came as checkpoints.

        Those that have none any more are over, if a stop wrote all leases as checkpoints and
        another broker has dealt with them. After a crash without another broker the journal
        alone counts: a checkpoint is of a lease that may be over.
        """
        if not (self._exported or self._was_away or self._is_new):
            return
        if self._exported and self._was_away:
            for key in self._leases.keys() - found.keys():
                self._remove(self._leases[key])
        for key, lease in found.items():
            known = self._leases.get(key)
            if known is not None:
                self._close(known, known.open & ~lease.open)
                self._settle(known)
            elif lease.open:
                left_ms = key.pop_time_ms + lease.invisible_ms - self._now_ms()
                lease.due_s = self._clock_s() + max(0, min(left_ms, lease.invisible_ms)) / 1000
                self._serial += 1
                lease.serial = self._serial
                self._add(lease)
                self._push(lease)

    def note_export(self, end: End) -> None:
        """All leases are checkpoints now, see take_over(). Raises StoreError."""
        self._append([_line("x")], end)

    def _take_lease(self, same_boot: bool, log_end: int, *values: Any) -> None:
        (serial, group, topic, queue_id, start, pop_time_ms, invisible_ms, due_s, revive_queue,
         suspend, distances, bits) = values  # fmt: skip
        key = LeaseKey(group, topic, queue_id, start, pop_time_ms)
        if not same_boot:
            left_ms = pop_time_ms + invisible_ms - self._now_ms()
            due_s = self._clock_s() + max(0, min(left_ms, invisible_ms)) / 1000
        offsets = tuple(start + distance for distance in distances)
        lease = Lease(key, offsets, invisible_ms, due_s, revive_queue, suspend, bits, serial)
        if (before := self._leases.get(key)) is not None:
            self._remove(before)
        self._serial = max(self._serial, serial)
        self._add(lease)
        self._settle(lease)

    def _take_ack(self, same_boot: bool, log_end: int, *values: Any) -> None:
        *key, bits = values
        lease = self._leases.get(LeaseKey(*key))
        if lease is not None:
            self._close(lease, bits & lease.open)
            self._settle(lease)

    def _take_revival(self, same_boot: bool, log_end: int, *values: Any) -> None:
        *key, commitlog_offset = values
        if commitlog_offset < log_end:
            self._take_ack(same_boot, log_end, *key)

    def _take_order(self, same_boot: bool, log_end: int, *values: Any) -> None:
        self.orders.take(same_boot, *values)

    def _take_position(self, same_boot: bool, log_end: int, *values: Any) -> None:
        serial, group, topic, queue_id, offset = values
        self._serial = max(self._serial, serial)
        if self._positions.get((group, topic, queue_id), (0, 0))[0] <= serial:
            self._positions[group, topic, queue_id] = (serial, offset)


_TAKERS: Final = {
    "l": LeaseBook._take_lease,
    "a": LeaseBook._take_ack,
    "r": LeaseBook._take_revival,
    "o": LeaseBook._take_order,
    "p": LeaseBook._take_position,
}


def _waits(due_s: float, push: int, lease: Lease) -> bool:
    """Return True unless an entry of the heap is out of date."""
    return bool(lease.open) and not lease.reviving and due_s == lease.due_s


def _line(*values: Any) -> bytes:
    return dumps(values)
