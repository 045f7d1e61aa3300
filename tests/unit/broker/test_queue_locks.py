"""Who holds which queue: leases, their limits and their file, with time in the test's hand."""

import errno
from pathlib import Path

import pytest

from ogive.broker.replies import Rejected
from ogive.broker.state.queue_locks import QueueLocks
from ogive.errors import StoreError
from ogive.model import MessageQueue
from ogive.store.fs import OsFs
from ogive.store.tables import JsonTable

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def locks_in(folder: Path, max_locks: int, clock: Clock) -> QueueLocks:
    table = JsonTable(OsFs(), folder / "queueLocks.json")
    locks = QueueLocks(60.0, max_locks, clock, table, "b")
    locks.load(table.load() or {})
    return locks


@pytest.mark.feature(96)
def test_a_lease_ends_and_its_owner_renews_it(tmp_path: Path) -> None:
    clock = Clock()
    locks = locks_in(tmp_path, 10, clock)
    assert locks.lock("G", "c1", [Q0, Q1]) == [Q0, Q1]
    clock.now = 59.0
    assert locks.lock("G", "c2", [Q0]) == []
    assert locks.lock("G", "c1", [Q0]) == [Q0]
    clock.now = 60.0
    assert locks.lock("G", "c2", [Q0, Q1]) == [Q1]
    clock.now = 119.0
    assert locks.lock("G", "c2", [Q0]) == [Q0]


@pytest.mark.feature(96)
def test_only_the_owner_gives_a_lock_back(tmp_path: Path) -> None:
    locks = locks_in(tmp_path, 10, Clock())
    locks.lock("G", "c1", [Q0])
    locks.unlock("G", "c2", [Q0])
    locks.unlock("H", "c1", [Q0])
    assert locks.holds_any("G")
    locks.unlock("G", "c1", [Q0, Q1])
    assert not locks.holds_any("G")
    assert len(locks) == 0


def test_a_group_holds_nothing_when_its_leases_are_over(tmp_path: Path) -> None:
    clock = Clock()
    locks = locks_in(tmp_path, 10, clock)
    locks.lock("G", "c1", [Q0])
    clock.now = 60.0
    assert not locks.holds_any("G")
    locks.expire()
    assert len(locks) == 0


def test_a_full_table_of_locks_makes_room_by_what_is_over(tmp_path: Path) -> None:
    clock = Clock()
    locks = locks_in(tmp_path, 2, clock)
    locks.lock("G", "c1", [Q0, Q1])
    with pytest.raises(Rejected, match="2 queue locks"):
        locks.lock("H", "c1", [Q0])
    clock.now = 60.0
    assert locks.lock("H", "c1", [Q0]) == [Q0]
    assert len(locks) == 1
    assert locks.lock("H", "c2", [Q0]) == []


async def test_locks_outlive_a_restart_with_a_whole_lease(tmp_path: Path) -> None:
    clock = Clock()
    locks = locks_in(tmp_path, 10, clock)
    locks.lock("G", "c1", [Q0, Q1])
    locks.lock("H", "c3", [Q0])
    locks.unlock("G", "c1", [Q1])
    await locks.saved()
    # a new process has a clock of its own
    clock.now = 1000.0
    again = locks_in(tmp_path, 10, clock)
    assert again.lock("G", "c2", [Q0, Q1]) == [Q1]
    assert again.lock("G", "c1", [Q0, Q1]) == [Q0]
    assert again.lock("H", "c1", [Q0]) == []
    clock.now = 1060.0
    assert again.lock("G", "c2", [Q0]) == [Q0]


async def test_a_file_of_locks_is_written_only_when_a_queue_changes_hands(tmp_path: Path) -> None:
    clock = Clock()
    locks = locks_in(tmp_path, 10, clock)
    locks.lock("G", "c1", [Q0])
    await locks.saved()
    written = (tmp_path / "queueLocks.json").stat()
    clock.now = 20.0
    locks.lock("G", "c1", [Q0])
    locks.lock("G", "c2", [Q0])
    locks.save_soon()
    await locks.saved()
    assert (tmp_path / "queueLocks.json").stat().st_ino == written.st_ino
    clock.now = 100.0
    locks.expire()
    await locks.saved()
    assert locks_in(tmp_path, 10, clock).lock("G", "c2", [Q0]) == [Q0]


async def test_a_full_disk_gives_no_new_lock_and_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    clock = Clock()
    locks = locks_in(tmp_path, 10, clock)
    await locks.safe("G", locks.lock("G", "c1", [Q0]))
    await locks.safe("H", locks.lock("H", "c2", [Q1]))
    with monkeypatch.context() as disk:
        disk.setattr(JsonTable, "save", full)
        locks.unlock("H", "c2", [Q1])
        await locks.safe("G", locks.lock("G", "c1", [Q0]))
        # also when it asks again: nobody has been told that it holds the queue
        for _ in range(2):
            with pytest.raises(StoreError, match="queue locks"):
                await locks.safe("H", locks.lock("H", "c3", [Q1]))
    await locks.safe("H", locks.lock("H", "c3", [Q1]))
    assert locks_in(tmp_path, 10, clock).lock("H", "c4", [Q1]) == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"lockTable": 7}',
        '{"lockTable": {"G": 7, "H": {"c": 7, "d": [7, ["T"], ["T", "0"]]}}}',
        "null",
        "{",
    ],
)
def test_a_file_of_locks_that_is_none_holds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "queueLocks.json").write_text(text)
    assert len(locks_in(tmp_path, 10, Clock())) == 0
