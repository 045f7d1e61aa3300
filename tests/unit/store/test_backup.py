"""Copies of a store that is in use: what a start on them finds, and what goes on after an
interruption.
"""

import shutil
from pathlib import Path

import pytest

from ogive.errors import InvalidOption, StoreUnusable
from ogive.store.backup import back_up
from ogive.store.verify import verify
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
