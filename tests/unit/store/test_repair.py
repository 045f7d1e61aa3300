"""What a repair does where the log cannot even be read: files that are missing, too long, or in the
way.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.errors import StoreCorrupt, StoreUnusable
from ogive.store import JsonTable, MessageStore, OsFs
from ogive.store.repair import repair_files
from ogive.store.verify import repair, verify
from tests.chaos.unsynced import UnsyncedFs
from tests.stores import Driver, message, small

COUNT = 150
DERIVED = (("consumequeue",), ("index",))


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A log of five segments of 16 KiB, stopped cleanly."""
    with Driver(small(tmp_path / "store")) as driver:
        for n in range(COUNT):
            driver.put(message(b"%d " % n + bytes(300)))
        JsonTable(OsFs(), tmp_path / "store" / "config" / "topics.json").save(
            {"topicConfigTable": {"T": {}}}
        )
    return tmp_path / "store"


def numbers(root: Path) -> list[int]:
    with Driver(small(root)) as driver:
        return [int(body.split()[0]) for body in driver.bodies() if body]


def segments(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def test_a_missing_segment_costs_its_messages_only(root: Path) -> None:
    before = numbers(root)
    lost = segments(root)[2]
    size = lost.stat().st_size
    lost.unlink()
    for opening in (verify, lambda path: MessageStore.open(small(path))):
        with pytest.raises(StoreCorrupt, match=r"a file is missing between .*`ogive store repair"):
            opening(root)
    found, after = repair(root)
    assert found.problems[0].startswith(f"{lost.name} of the log was missing")
    assert lost.stat().st_size == size
    assert after.problems == [
        f"the log has 1 damaged place, {size} bytes in all, at {int(lost.name)}: those records are "
        "lost"
    ]
    left = numbers(root)
    assert COUNT / 2 < len(left) < COUNT
    assert left == [n for n in before if n in set(left)]
    assert (left[0], left[-1]) == (0, COUNT - 1)


@pytest.mark.parametrize("lost", [1, 2])
def test_the_first_file_that_is_missing_is_named(root: Path, lost: int) -> None:
    segments(root)[lost].unlink()
    places = [f"{16 * 1024 * number:020d}" for number in (lost - 1, lost + 1)]
    with pytest.raises(
        StoreCorrupt, match=f"a file is missing between {places[0]} and {places[1]}"
    ):
        verify(root)


def test_every_second_file_missing_makes_no_other_log(root: Path) -> None:
    """Their distances are equal, and not their size."""
    for path in segments(root)[1::2]:
        path.unlink()
    with pytest.raises(StoreCorrupt, match="a file is missing between"):
        MessageStore.open(small(root))
    assert {path.stat().st_size for path in segments(root)} == {16 * 1024}
    assert repair(root)[0].problems[0].startswith(f"{16 * 1024:020d} of the log was missing")
    assert 0 < len(numbers(root)) < COUNT


def test_a_segment_that_is_too_long_is_cut_and_loses_nothing(root: Path) -> None:
    before = numbers(root)
    with segments(root)[1].open("ab") as opened:
        opened.write(b"stray")
    with pytest.raises(StoreCorrupt, match=r"its neighbours 16384. `ogive store repair"):
        verify(root)
    found, after = repair(root)
    assert found.problems == [
        f"{segments(root)[1].name} of the log was 5 bytes too long: they are in set-aside/"
    ]
    assert after.is_sound
    assert (root / "set-aside" / "commitlog" / segments(root)[1].name).read_bytes() == b"stray"
    assert numbers(root) == before


def test_segments_of_two_sizes_are_left_as_they_are(root: Path) -> None:
    with segments(root)[-1].open("ab") as opened:
        opened.truncate(64 * 1024 * 1024)
    with pytest.raises(StoreCorrupt, match="its neighbours"):
        repair(root)
    assert segments(root)[-1].stat().st_size == 64 * 1024 * 1024


def test_files_of_two_stores_are_not_made_one(root: Path) -> None:
    far = root / "commitlog" / f"{16 * 1024 * 10_000:020d}"
    far.write_bytes(bytes(16 * 1024))
    with pytest.raises(StoreCorrupt, match="is one another store's"):
        repair(root)
    assert len(segments(root)) < 20


def _file_for_a_topic(root: Path) -> Path:
    return _emptied(root / "consumequeue" / "T")


def _file_for_a_queue(root: Path) -> Path:
    return _emptied(root / "consumequeue" / "T" / "0")


def _directory_in_a_queue(root: Path) -> Path:
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    path.unlink()
    path.mkdir()
    return path


def _directory_in_the_index(root: Path) -> Path:
    path = root / "index" / "20260101010101000"
    path.mkdir()
    return path


def _emptied(directory: Path) -> Path:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()
    directory.write_bytes(b"stray")
    return directory


@pytest.mark.parametrize(
    "spoil", [_file_for_a_topic, _file_for_a_queue, _directory_in_a_queue, _directory_in_the_index]
)
def test_what_is_in_the_way_of_a_derived_file_is_set_aside(
    root: Path, spoil: Callable[[Path], Path]
) -> None:
    before = numbers(root)
    path = spoil(root)
    found, after = repair(root)
    assert found.problems[0] == (
        f"{path.relative_to(root)} stood where the broker keeps files of its own: it is in "
        "set-aside/"
    )
    assert after.is_sound
    assert (root / "set-aside" / path.relative_to(root)).exists()
    assert numbers(root) == before


def test_two_strays_of_one_name_are_both_kept(root: Path) -> None:
    for content in (b"one", b"two"):
        (root / "consumequeue" / "stray").write_bytes(content)
        repair(root)
    kept = root / "set-aside" / "consumequeue"
    assert [path.read_bytes() for path in sorted(kept.iterdir())] == [b"one", b"two"]


def _without_a_segment(root: Path) -> None:
    segments(root)[2].unlink()


def _with_a_long_segment(root: Path) -> None:
    with segments(root)[1].open("ab") as opened:
        opened.write(b"stray")


def _with_an_end_that_is_no_record(root: Path) -> None:
    with segments(root)[-1].open("r+b") as opened:
        opened.seek(-4, os.SEEK_END)
        opened.write(b"torn")


def _with_damaged_tables(root: Path) -> None:
    for name in ("topics.json", "subscriptionGroup.json", "subscriptionGroup.json.bak"):
        (root / "config" / name).write_bytes(b"{")


def _with_a_damaged_backup(root: Path) -> None:
    (root / "config" / "topics.json.bak").write_bytes(b"{")


@pytest.mark.parametrize(
    "spoil",
    [
        _with_a_damaged_backup,
        _without_a_segment,
        _with_a_long_segment,
        _with_an_end_that_is_no_record,
        _with_damaged_tables,
        _file_for_a_topic,
        _directory_in_a_queue,
    ],
)
def test_a_power_cut_after_a_repair_takes_none_of_it_back(
    root: Path, spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Derived files need no sync: a start makes them anew."""
    spoil(root)
    fs = UnsyncedFs()
    monkeypatch.setattr("ogive.store.verify.OsFs", lambda: fs)
    for step in (lambda: repair_files(fs, root), lambda: repair(root)):
        step()
        left = {path.relative_to(root) for path in fs.unsynced}
        assert {path for path in left if path.parts[:1] not in DERIVED} == set()


def test_a_name_that_is_no_utf_8_is_passed_over(root: Path) -> None:
    before = numbers(root)
    (root / "queues.json").unlink()
    (root / "consumequeue" / os.fsdecode(b"\xff\xfe") / "0").mkdir(parents=True)
    assert numbers(root) == before
    assert repair(root)[1].is_sound


def test_a_directory_that_is_no_store_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_bytes(b"dear all")
    with pytest.raises(StoreUnusable, match="holds no store"):
        repair(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
