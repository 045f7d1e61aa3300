"""The table of leases and what its journal says of it after a crash.

The clock is the test's, and the journal is a list that is written when the test says so.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from ogive.broker.pop import leases as module
from ogive.broker.pop.leases import LeaseBook, LeaseKey, Read
from ogive.broker.state.offset_table import OffsetTable
from ogive.errors import OgiveError, StoreError, StoreFull
from tests.pop import open_offsets

PLACE = ("G", "T", 0)
MINUTE_MS = 60_000


class Lines:
    """A journal: lines wait until write() or refuse()."""

    def __init__(self) -> None:
        self.files: list[list[bytes]] = [[]]
        self.waiting: list[tuple[list[bytes], Callable[[StoreError | None], None]]] = []
        self.size = 0

    def append(self, lines: Iterable[bytes], done: Callable[[StoreError | None], None]) -> None:
        self.waiting.append((list(lines), done))

    def write(self) -> None:
        while self.waiting:
            lines, done = self.waiting.pop(0)
            self.files[-1] += lines
            self.size += sum(map(len, lines))
            done(None)

    def refuse(self) -> None:
        told, self.waiting = self.waiting, []
        for _, done in reversed(told):
            done(StoreFull("full"))

    def roll(self) -> None:
        self.size = 0
        self.files.append([])

    def drop_old(self) -> None:
        del self.files[:-1]

    def begin(self, lines: Iterable[bytes]) -> None:
        self.files = [list(lines)]

    @property
    def all(self) -> list[bytes]:
        return [line for file in self.files for line in file]


class Bench:
    def __init__(self, before: "Bench | None" = None, *, boot: str = "boot", log_end: int = 0):
        self.lines = Lines()
        self.offsets = OffsetTable(1000)
        self.now_s: float = before.now_s if before else 1000.0
        self.wall_ms: int = before.wall_ms if before else 10**12
        self.ends: list[OgiveError | None] = []
        self.book = LeaseBook(
            self.lines,  # type: ignore[arg-type]
            self.offsets,
            boot=boot,
            clock_s=lambda: self.now_s,
            now_ms=lambda: self.wall_ms,
            max_leases=100,
        )
        if before is not None:
            self.offsets.load(before.saved)
        self.book.recover(
            before.lines.all if before else [],
            log_end,
            lambda topic, queue_id: 1000,
            before.saved.get("popped") if before else 0,
        )
        self.book.begin()
        self.offsets.lowest_leased = self.book.lowest
        self.saved: dict[str, Any] = self.offsets.snapshot()()

    def after(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ms += round(seconds * 1000)

    def take(self, *offsets: int, after: int | None = None, ms: int = MINUTE_MS) -> LeaseKey:
        read = Read(PLACE, offsets[0], offsets, offsets[-1] + 1 if after is None else after)
        pop_time_ms = self.book.take([read], ms, 0, self.ends.append)
        return LeaseKey(*PLACE, offsets[0], pop_time_ms)

    def ack(self, key: LeaseKey, *offsets: int) -> None:
        lease = self.book.get(key)
        assert lease is not None
        self.book.acknowledge([(lease, lease.bits(offsets))], self.ends.append)

    @property
    def out(self) -> list[int]:
        return sorted(o for lease in self.book.all() for o in open_offsets(lease))

    def due(self) -> list[int]:
        """The messages whose time is over."""
        found: list[int] = []
        while (lease := self.book.pop_due()) is not None:
            found += open_offsets(lease)
        return found


def test_the_offset_moves_when_the_lease_is_safe() -> None:
    bench = Bench()
    bench.take(0, 1, 2)
    assert (bench.offsets.get(*PLACE), bench.book.position(PLACE)) == (None, 3)
    bench.lines.write()
    assert (bench.offsets.get(*PLACE), bench.ends) == (3, [None])
    assert bench.book.out[PLACE] == 3


def test_what_the_journal_refuses_was_not_taken() -> None:
    bench = Bench()
    bench.take(0, 1)
    bench.lines.write()
    bench.take(2, 3)
    bench.take(4)
    assert bench.book.position(PLACE) == 5
    bench.lines.refuse()
    assert (bench.book.position(PLACE), bench.out) == (2, [0, 1])
    assert [type(error) for error in bench.ends] == [type(None), StoreFull, StoreFull]


def test_a_refused_acknowledgement_leaves_the_lease() -> None:
    bench = Bench()
    key = bench.take(0, 1)
    bench.lines.write()
    bench.ack(key, 0)
    assert bench.out == [1]
    bench.lines.refuse()
    assert bench.out == [0, 1]
    bench.after(60)
    assert bench.due() == [0, 1]


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    bench = Bench()
    bench.take(0, 1)
    second = bench.take(2)
    bench.lines.write()
    bench.ack(second, 2)
    bench.lines.write()
    bench.after(59.999)
    assert bench.due() == []
    # a step of the wall clock says nothing
    bench.wall_ms += 3_600_000
    assert bench.due() == []
    bench.after(0.001)
    assert bench.due() == [0, 1]
    assert bench.due() == []


def test_a_change_begins_another_lease() -> None:
    bench = Bench()
    key = bench.take(0, 1)
    bench.lines.write()
    lease = bench.book.get(key)
    assert lease is not None
    pop_time_ms, changed = bench.book.change(lease, 0, 5_000, True, bench.ends.append)
    # in the same millisecond as the read, whose key begins at the same offset
    assert pop_time_ms != key.pop_time_ms
    bench.lines.write()
    assert (open_offsets(lease), open_offsets(changed), changed.suspend) == ([1], [0], True)
    bench.after(5)
    assert bench.due() == [0]


@pytest.mark.parametrize("boot", ["boot", "another"])
def test_a_crash_ends_no_lease(boot: str) -> None:
    bench = Bench()
    key = bench.take(0, 1, 2)
    bench.take(3, ms=1000)
    bench.lines.write()
    bench.ack(key, 1)
    bench.lines.write()
    # answered to nobody
    bench.take(4)
    bench.after(10)
    again = Bench(bench, boot=boot)
    assert (again.out, again.offsets.get(*PLACE)) == ([0, 2, 3], 4)
    assert again.due() == [3]
    again.after(49.9)
    assert again.due() == []
    again.after(0.2)
    assert again.due() == [0, 2]


def test_a_lease_is_no_longer_than_asked_for_when_the_clock_was_set_back() -> None:
    bench = Bench()
    bench.take(0)
    bench.lines.write()
    bench.wall_ms -= 10**10
    again = Bench(bench, boot="another")
    again.after(60)
    assert again.due() == [0]


def test_a_copy_that_a_power_cut_took_leaves_the_lease() -> None:
    bench = Bench()
    bench.take(0, 1)
    bench.lines.write()
    (lease,) = bench.book.all()
    bench.book.revived(lease, 0b01, 500, bench.ends.append)
    bench.book.revived(lease, 0b10, 700, bench.ends.append)
    bench.lines.write()
    assert bench.out == []
    assert Bench(bench, log_end=600).out == [1]
    assert Bench(bench, log_end=701).out == []


def test_an_offset_that_was_set_outlives_a_crash() -> None:
    bench = Bench()
    bench.take(0, 1)
    bench.lines.write()
    bench.take(2)
    bench.book.put_elsewhere(PLACE, 0)
    bench.offsets.note(*PLACE, 0)
    bench.lines.write()
    # the read that was on its way does not move it
    assert bench.book.position(PLACE) == 0
    assert Bench(bench).offsets.get(*PLACE) == 0


def test_another_broker_gives_leased_messages_again() -> None:
    """Its file of offsets shows the lowest message that is out; ours knows better."""
    bench = Bench()
    key = bench.take(0, 1, 2)
    bench.lines.write()
    bench.ack(key, 0)
    bench.lines.write()
    bench.saved = bench.offsets.snapshot()()
    assert bench.saved["offsetTable"] == {"T@G": {"0": 1}}
    assert Bench(bench).offsets.get(*PLACE) == 3
    # another broker has run, and has moved on
    del bench.saved["popped"]
    bench.saved["offsetTable"] = {"T@G": {"0": 2}}
    assert Bench(bench).offsets.get(*PLACE) == 2


def test_what_another_broker_has_done_with_is_over() -> None:
    """After a stop that wrote checkpoints, only what has one is still out; its time is exact."""
    bench = Bench()
    first, second = bench.take(0, 1), bench.take(2)
    bench.lines.write()
    bench.book.note_export(bench.ends.append)
    bench.lines.write()
    bench.wall_ms += 10_000
    # as the other broker's file of offsets
    del bench.saved["popped"]
    again = Bench(bench)
    found = {one.key: one for one in again.book.all() if one.key == first}
    found[first] = replace(found[first], open=0b10)
    again.book.take_over(found)
    again.book.begin()
    assert (again.out, again.book.get(second)) == ([1], None)
    again.after(59.9)
    assert again.due() == []
    again.after(0.1)
    assert again.due() == [1]
    # a crash: the journal counts, whatever the revive topic holds
    later = Bench(again)
    later.book.take_over({})
    assert later.out == [1]
    last = Bench(later)
    last.book.take_over({second: replace(found[first], key=second, open=1, offsets=(2,))})
    assert last.out == [1]


def test_checkpoints_that_nobody_else_has_seen_are_not_missed() -> None:
    """A stop wrote checkpoints, and this broker is the next that starts: the journal counts."""
    bench = Bench()
    bench.take(0, 1)
    bench.lines.write()
    bench.book.note_export(bench.ends.append)
    bench.lines.write()
    again = Bench(bench)
    again.book.take_over({})
    assert again.out == [0, 1]


def test_checkpoints_of_a_directory_without_a_journal_are_leases() -> None:
    bench = Bench()
    key = LeaseKey(*PLACE, 0, bench.wall_ms)
    lease = module.Lease(key, (0, 1), MINUTE_MS, 0.0, 0, False, 0b11, 0)
    bench.book.take_over({key: lease})
    assert bench.out == [0, 1]


def test_positions_behind_damage_do_not_count() -> None:
    """A power cut left the line of a lease unwritten, and a later one written."""
    bench = Bench()
    bench.take(0, 1)
    bench.lines.write()
    bench.saved = bench.offsets.snapshot()()
    bench.take(2, 3)
    bench.take(4)
    bench.lines.write()
    assert Bench(bench).offsets.get(*PLACE) == 5
    lines = bench.lines.files[-1]
    (at,) = [at for at, line in enumerate(lines) if line.startswith(b'["l"') and b",[0,1]" in line][
        1:
    ]
    lines[at] = b""
    again = Bench(bench)
    # all of them are given out again
    assert again.offsets.get(*PLACE) == 2
    assert again.out == [0, 1, 4]


def test_a_message_that_is_named_twice_is_acknowledged_once() -> None:
    bench = Bench()
    key = bench.take(0, 1, 2)
    bench.lines.write()
    lease = bench.book.get(key)
    assert lease is not None
    bench.book.acknowledge([(lease, 0b011), (lease, 0b001)], bench.ends.append)
    assert bench.book.out[PLACE] == 1
    bench.lines.refuse()
    assert (bench.book.out[PLACE], bench.out) == (3, [0, 1, 2])


def test_an_offset_set_during_the_first_read_outlives_a_crash() -> None:
    bench = Bench()
    bench.take(0, 1)
    bench.book.put_elsewhere(PLACE, 0)
    bench.offsets.note(*PLACE, 0)
    bench.lines.write()
    assert Bench(bench).offsets.get(*PLACE) == 0


def test_the_file_of_offsets_does_not_claim_what_it_does_not_have() -> None:
    bench = Bench()
    bench.take(0)
    bench.lines.write()
    other = ("G", "U", 0)
    bench.book.take([Read(other, 0, (0,), 1)], MINUTE_MS, 0, bench.ends.append)
    bench.book.put_elsewhere(PLACE, 0)
    bench.offsets.note(*PLACE, 0)
    bench.saved = bench.offsets.snapshot()()
    bench.lines.write()
    assert Bench(bench).offsets.get(*other) == 1


def test_a_read_moves_nothing_after_its_topic_was_deleted() -> None:
    bench = Bench()
    bench.take(0, 1)
    bench.book.forget(lambda group, topic: topic == "T")
    bench.offsets.remove_topic("T")
    bench.lines.write()
    assert (bench.offsets.get(*PLACE), bench.out) == (None, [])


def test_a_line_that_makes_no_sense_costs_no_other() -> None:
    bench = Bench()
    bench.take(0)
    bench.lines.write()
    bench.lines.files[0] += [b"[]", b'["l",1]', b'["?"]', b"x", b'["a","G","T",0,0,1,"1"]']
    assert Bench(bench).out == [0]


def test_the_journal_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_JOURNAL_BYTES", 20_000)
    monkeypatch.setattr(module, "_COPIED_AT_ONCE", 2)
    bench = Bench()
    for at in range(0, 2000, 10):
        key = bench.take(*range(at, at + 10))
        bench.lines.write()
        bench.ack(key, *range(at, at + (10 if at % 500 else 9)))
        bench.lines.write()
        assert bench.book._copying is None
    assert len(bench.lines.files) == 1
    assert sum(map(len, bench.lines.all)) < 30_000
    assert bench.out == [9, 509, 1009, 1509]
    again = Bench(bench)
    assert again.out == [9, 509]  # the queue of the test ends at 1000


@pytest.mark.parametrize("seed", range(30))
def test_every_message_is_in_one_state_whatever_happens(seed: int) -> None:
    """Not given out, leased, acknowledged or stored again; a crash loses none of them."""
    chance, bench = random.Random(seed), Bench()
    done: set[int] = set()
    for _ in range(120):
        step = chance.randrange(7)
        leases = bench.book.all()
        if step <= 1:
            at = bench.book.position(PLACE) or 0
            if at < 900:
                bench.take(*range(at, at + chance.randrange(1, 5)), ms=chance.randrange(1, 9000))
        elif step == 2 and leases:
            lease = chance.choice(leases)
            wanted = chance.sample(lease.offsets, chance.randrange(1, len(lease.offsets) + 1))
            before = set(open_offsets(lease)) & set(wanted)

            def acked(error: OgiveError | None, before: set[int] = before) -> None:
                done.update(before if error is None else ())

            bench.book.acknowledge([(lease, lease.bits(wanted))], acked)
        elif step == 3 and leases and (lease := chance.choice(leases)).open:
            bench.book.change(
                lease, chance.choice(open_offsets(lease)), 4000, False, lambda _: None
            )
        elif step == 4:
            bench.after(chance.random() * 3)
            while (lease_due := bench.book.pop_due()) is not None:
                done.update(open_offsets(lease_due))
                bench.book.revived(lease_due, lease_due.open, 1, lambda _: None)
                bench.lines.write()
        elif step == 5:
            bench.lines.refuse() if chance.random() < 0.3 else bench.lines.write()
        elif chance.random() < 0.3:
            if chance.random() < 0.5:
                bench.saved = bench.offsets.snapshot()()
            bench = Bench(bench, log_end=2)
            leased, end = set(bench.out), bench.offsets.get(*PLACE) or 0
            assert leased | done >= set(range(end))
            assert not {offset for offset in leased if offset >= end}
    bench.lines.write()
    end = bench.offsets.get(*PLACE) or 0
    assert set(bench.out) | done == set(range(end))
    assert not set(bench.out) & done
