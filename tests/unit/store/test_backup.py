"""Copies of a store that is in use: what a start on them finds, and what goes on after an
interruption.
"""

import shutil
from pathlib import Path

import pytest

from ogive.errors import InvalidOption, StoreUnusable
from ogive.store.backup import back_up
from ogive.store.fs import OsFs, ReadOnlyFs
from ogive.store.log_scan import LogScan
from ogive.store.verify import verify
from tests.chaos.unsynced import UnsyncedFs
from tests.stores import Driver, message, read_queue, small


def bodies(root: Path) -> list[bytes]:
    """Return what a start on *root* serves."""
    driver = Driver(small(root))
    try:
        return [one.body for one in read_queue(driver.store, "T", 0)]
    finally:
        driver.close()


@pytest.fixture
def running(tmp_path: Path) -> Driver:
    """A store in use, with messages in several segments."""
    driver = Driver(small(tmp_path / "live"))
    for number in range(60):
        driver.put(message(f"{number}".encode() * 400))
    return driver


EXPECTED = [f"{number}".encode() * 400 for number in range(60)]


def test_a_copy_has_all_that_was_stored_before_and_nothing_of_later(
    running: Driver, tmp_path: Path
) -> None:
    done = back_up(tmp_path / "live", tmp_path / "copy")
    assert done.segments > 2
    running.put(message(b"later"))
    assert verify(tmp_path / "copy").damaged_places == 0
    assert bodies(tmp_path / "copy") == EXPECTED
    running.close()


class Renamed(UnsyncedFs):
    """Keeps what is not synced when a file or a directory gets its name."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[Path, set[Path]] = {}

    def rename(self, source: Path, target: Path) -> None:
        self.before[target] = set(self.unsynced)
        super().rename(source, target)


def test_a_power_cut_after_a_backup_takes_none_of_it(
    running: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has the name of the copy is whole: it is synced before, and the name after."""
    running.close()
    (tmp_path / "live" / "config").mkdir(exist_ok=True)
    (tmp_path / "live" / "config" / "topics.json").write_text("{}")
    fs = Renamed()
    monkeypatch.setattr("ogive.store.backup.OsFs", lambda: fs)
    back_up(tmp_path / "live", tmp_path / "copy")
    assert fs.before[tmp_path / "copy"] == set()
    assert fs.unsynced == set()


def test_a_copy_is_ours_and_can_be_copied(running: Driver, tmp_path: Path) -> None:
    back_up(tmp_path / "live", tmp_path / "copy")
    running.close()
    back_up(tmp_path / "copy", tmp_path / "again")
    assert bodies(tmp_path / "again") == EXPECTED


def test_an_interrupted_copy_goes_on_with_the_segments_that_it_has(
    running: Driver, tmp_path: Path
) -> None:
    back_up(tmp_path / "live", tmp_path / "copy")
    part = tmp_path / "copy.part"
    (tmp_path / "copy").rename(part)
    first, second, *_ = sorted((part / "commitlog").iterdir())
    # of another log
    second.write_bytes(b"x" * second.stat().st_size)
    (part / "queues.json").write_text("of the time before")
    inode = first.stat().st_ino
    done = back_up(tmp_path / "live", tmp_path / "copy")
    assert 0 < done.reused < done.segments - 1
    assert (tmp_path / "copy" / "commitlog" / first.name).stat().st_ino == inode
    assert not part.exists()
    assert bodies(tmp_path / "copy") == EXPECTED
    running.close()


def test_what_is_behind_the_end_at_the_backup_is_not_in_the_copy(
    running: Driver, tmp_path: Path
) -> None:
    """A record that is being written is left out."""
    done = back_up(tmp_path / "live", tmp_path / "one")
    used = done.log_end % (16 * 1024)
    with (tmp_path / "live" / "commitlog" / f"{done.log_end - used:020}").open("r+b") as file:
        file.seek(used)
        file.write(b"\0\0\1\0half of a record")
    again = back_up(tmp_path / "live", tmp_path / "two")
    assert again.log_end == done.log_end
    assert bodies(tmp_path / "two") == EXPECTED


@pytest.mark.parametrize(
    ("target", "said"),
    [("there", "exists: a backup is a new directory"), ("live/copy", "choose a place outside")],
)
def test_a_wrong_place_is_refused_and_nothing_is_made(
    target: str, said: str, running: Driver, tmp_path: Path
) -> None:
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.glob("**/*"))
    with pytest.raises(InvalidOption, match=said):
        back_up(tmp_path / "live", tmp_path / target)
    assert sorted(tmp_path.glob("**/*")) == before
    running.close()


def test_what_is_no_store_of_ours_is_refused(running: Driver, tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="holds no store"):
        back_up(tmp_path / "none", tmp_path / "copy")
    running.close()
    shutil.copytree(tmp_path / "live", tmp_path / "apache")
    (tmp_path / "apache" / "lock").write_text("lock")
    with pytest.raises(StoreUnusable, match="Apache's broker ran here last"):
        back_up(tmp_path / "apache", tmp_path / "copy")
    assert not (tmp_path / "copy.part").exists()


@pytest.mark.parametrize("at", ["zones.json", f"{6:020}"])
def test_a_journal_whose_files_are_replaced_meanwhile_is_copied_whole(
    at: str, running: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its lines, messages that are leased would be lost: the group's progress is behind
    them. With old ones, messages would come again that are acknowledged.
    """
    journal, config = tmp_path / "live" / "leases", tmp_path / "live" / "config"
    for folder in (journal, config):
        folder.mkdir(exist_ok=True)
    (config / "zones.json").write_text("{}")
    (journal / f"{5:020}").write_text("five")
    (journal / f"{6:020}").write_text("six")
    real = ReadOnlyFs.open

    def open_it(self: ReadOnlyFs, path: Path, *, create: bool = False) -> int:
        if path.name == at and (journal / f"{6:020}").exists():
            # a broker begins a new file, with all that counts, and removes the old ones
            (journal / f"{7:020}").write_text("all")
            for number in (5, 6):
                (journal / f"{number:020}").unlink()
        return real(self, path, create=create)

    monkeypatch.setattr(ReadOnlyFs, "open", open_it)
    back_up(tmp_path / "live", tmp_path / "copy")
    copied = {path.name: path.read_text() for path in (tmp_path / "copy" / "leases").iterdir()}
    assert copied == {f"{7:020}": "all"}
    running.close()


def test_a_segment_that_was_not_full_at_an_interrupted_backup_is_copied_again(
    tmp_path: Path,
) -> None:
    """Both ends of it may be as they were: the last message of a segment may end far before it."""
    size = 512 * 1024
    live = Driver(small(tmp_path / "live", segment_bytes=size))
    big = b"x" * (140 * 1024)
    live.put(message(big))
    back_up(tmp_path / "live", tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "copy.part")
    for _ in range(5):
        live.put(message(big))
    assert back_up(tmp_path / "live", tmp_path / "copy").segments == 2
    live.close()
    assert verify(tmp_path / "copy").damaged_places == 0
    assert bodies(tmp_path / "copy") == [big] * 6


def test_directories_on_other_disks_are_copied(running: Driver, tmp_path: Path) -> None:
    live, other = tmp_path / "live", tmp_path / "other"
    (live / "config").mkdir(exist_ok=True)
    (live / "config" / "topics.json").write_text("{}")
    (live / "config").rename(other)
    (live / "config").symlink_to(other)
    back_up(live, tmp_path / "copy")
    assert (tmp_path / "copy" / "config" / "topics.json").read_text() == "{}"
    running.close()


def test_what_another_left_under_the_name_of_the_part_stays(
    running: Driver, tmp_path: Path
) -> None:
    kept = tmp_path / "copy.part" / "mine" / "file"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    with pytest.raises(InvalidOption, match="no backup made it"):
        back_up(tmp_path / "live", tmp_path / "copy")
    assert kept.read_text() == "mine"
    running.close()


def test_a_second_backup_to_the_same_place_is_refused(running: Driver, tmp_path: Path) -> None:
    part = tmp_path / "copy.part"
    (part / "commitlog").mkdir(parents=True)
    (part / "topics.json").write_text("of the first")
    fs = OsFs()
    held = fs.lock(part / "lock")
    with pytest.raises(StoreUnusable, match="another backup is writing"):
        back_up(tmp_path / "live", tmp_path / "copy")
    assert (part / "topics.json").exists()
    fs.close(held)
    back_up(tmp_path / "live", tmp_path / "copy")
    assert bodies(tmp_path / "copy") == EXPECTED
    running.close()


def test_a_log_of_which_nothing_is_left_is_no_backup(
    running: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker on the copy would not start: its checkpoint knows messages."""
    running.close()
    real = LogScan.close

    def close(self: LogScan) -> None:
        real(self)
        # by retention, after the end of the log was found
        for path in (tmp_path / "live" / "commitlog").iterdir():
            path.unlink()

    monkeypatch.setattr(LogScan, "close", close)
    with pytest.raises(StoreUnusable, match="deleted by age during the backup"):
        back_up(tmp_path / "live", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
