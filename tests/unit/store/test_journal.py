"""The journal beside the log: what was written is read again, and what was not is taken back."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.errors import StoreError, StoreFailed, StoreFull
from ogive.store.fs import Data
from ogive.store.journal import Journal, read_journal
from ogive.store.message_store import MessageStore
from tests.chaos.unsynced import UnsyncedFs
from tests.stores import InlineWriter, run_now, small


class Disk(UnsyncedFs):
    """A disk that is full when the test says so."""

    full = False
    written = 0

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        if self.full:
            super().pwrite(handle, bytes(data)[: len(data) // 2], offset)
            raise OSError(errno.ENOSPC, "full")
        super().pwrite(handle, data, offset)


class Bench:
    """A store's journal; what is appended together is one group."""

    def __init__(self, root: Path, flush: str = "sync") -> None:
        self.fs, self.folder = Disk(), root / "leases"
        self.store = MessageStore.open(small(root, flush=flush), fs=self.fs)
        self.journal: Journal = self.store.journal
        self.lines = read_journal(self.fs, self.folder)
        self.journal.begin(self.lines)
        self.store.start(run_now, writer=InlineWriter)
        self.due: list[Callable[[], None]] = []
        self.journal.start(self.due.append)
        self.told: list[tuple[str, StoreError | None]] = []

    def append(self, *lines: str) -> None:
        self.journal.append(
            [line.encode() for line in lines],
            lambda error: self.told.append((lines[0], error)),
        )

    def turn(self) -> None:
        while self.due:
            self.due.pop()()

    def left(self) -> set[str]:
        """Return what of the journal a power cut could take."""
        paths = self.fs.unsynced
        return {path.name for path in paths if self.folder in (path, path.parent)}

    def read(self) -> list[bytes]:
        return read_journal(self.fs, self.folder)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_lines_are_read_again_after_a_stop(tmp_path: Path, flush: str) -> None:
    bench = Bench(tmp_path, flush)
    bench.append("a", "b")
    bench.append("c")
    assert bench.read() == []
    bench.turn()
    assert bench.told == [("a", None), ("c", None)]
    assert bench.read() == [b"a", b"b", b"c"]
    bench.store.close()
    again = Bench(tmp_path, flush)
    assert again.lines == again.read() == [b"a", b"b", b"c"]
    assert len(list((tmp_path / "leases").iterdir())) == 1
    again.store.close()


def test_a_damaged_line_costs_no_other(bench: Bench) -> None:
    bench.append("one", "two", "three")
    bench.turn()
    bench.store.close()
    (path,) = bench.folder.iterdir()
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"two", b"tow") + b"0000")
    # where it was, nothing that builds on it counts
    assert bench.read() == [b"one", b"", b"three"]


def test_what_a_full_disk_refused_is_taken_back_newest_first(bench: Bench) -> None:
    bench.append("a")
    bench.turn()
    bench.fs.full = True
    bench.append("b", "bb")
    bench.append("c")
    bench.turn()
    assert [line for line, error in bench.told if isinstance(error, StoreFull)] == ["c", "b"]
    bench.fs.full = False
    bench.append("d")
    bench.turn()
    assert bench.read() == [b"a", b"d"]
    assert bench.store.failed is None
    bench.store.close()


def test_a_new_file_takes_the_place_of_the_old_ones(bench: Bench) -> None:
    bench.append("old")
    bench.turn()
    bench.journal.roll()
    bench.append("copied")
    bench.turn()
    assert bench.read() == [b"old", b"copied"]
    bench.journal.drop_old()
    assert bench.read() == [b"copied"]
    bench.store.close()


def roll_over(bench: Bench) -> None:
    """Begin a new file, drop the old one, and close; after each step nothing is left to sync."""
    bench.journal.roll()
    assert bench.left() == set()
    bench.append("copied")
    bench.turn()
    bench.journal.drop_old()
    assert bench.left() == set()
    bench.store.close()


def test_a_power_cut_takes_no_line_and_brings_none_back(bench: Bench) -> None:
    """With flush=sync, and after each change of the files."""
    assert bench.left() == set()
    bench.append("old")
    bench.turn()
    assert bench.left() == set()
    roll_over(bench)
    assert Bench(bench.folder.parent).left() == set()


def test_lines_of_the_new_file_do_not_outlive_those_of_the_old_one(tmp_path: Path) -> None:
    """Also where the log is synced later."""
    bench = Bench(tmp_path, "async")
    bench.append("old")
    bench.turn()
    assert bench.left() == {f"{1:020}"}
    roll_over(bench)


def test_a_sync_that_meets_a_full_disk_ends_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is written: to refuse it would say that it is not."""

    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(bench.fs, "fdatasync", fail)
    bench.append("a")
    bench.turn()
    ((_, error),) = bench.told
    assert isinstance(error, StoreFailed)
    assert bench.store.failed is not None


def test_an_error_of_one_caller_costs_no_other(bench: Bench) -> None:
    def bug(error: StoreError | None) -> None:
        raise RuntimeError("a bug")

    bench.journal.append([b"a"], bug)
    bench.append("b")
    with pytest.raises(RuntimeError):
        bench.turn()
    assert bench.told == [("b", None)]
    bench.append("c")
    bench.turn()
    assert bench.told == [("b", None), ("c", None)]
    bench.store.close()


def test_a_disk_that_fails_ends_the_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(bench.fs, "fdatasync", fail)
    bench.append("a")
    bench.turn()
    ((_, error),) = bench.told
    assert error is bench.store.failed is not None
    bench.store.close()
