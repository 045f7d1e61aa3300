"""What a start says of the last run and of the log, and how often."""

import logging
import struct
from pathlib import Path
from typing import Any

import pytest

from ogive.store import checkpoint as checkpoints
from ogive.store.recovery import recover
from ogive.store.segments import segment_path
from ogive.store.verify import repair, verify
from tests.stores import Clock, Driver, crash, message, small

LARGE = {"checkpoint_bytes": 1 << 20, "flush_bytes": 1 << 20}
"""No checkpoint while a test writes."""


def filled(root: Path, count: int = 6, **sizes: Any) -> Driver:
    driver = Driver(small(root, **LARGE | sizes))
    for n in range(count):
        driver.put(message(b"%d " % n + b"x" * 100))
    return driver


def flip(root: Path, driver: Driver, n: int) -> int:
    """A bit in the body of message *n*; returns the commit-log offset of its record."""
    offset = driver.read_all()[n].commitlog_offset
    path = segment_path(root / "commitlog", offset - offset % driver.store.segment_bytes)
    data = bytearray(path.read_bytes())
    data[offset % driver.store.segment_bytes + 120] ^= 1
    path.write_bytes(data)
    return offset


def at_level(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def scrub_all(driver: Driver) -> None:
    position, end = driver.store.stats().commitlog_start, driver.store.stats().commitlog_end
    while position < end:
        scrubbed = driver.store.scrub_step(position, 1 << 20)()
        for place in scrubbed.damaged:
            driver.store.report_damage(*place)
        position = scrubbed.position


# --- damage ---------------------------------------------------------------------------------------


def test_damage_that_a_start_found_is_not_counted_again_by_the_background_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    offset = flip(tmp_path, driver, 2)
    crash(driver)
    with Driver(small(tmp_path)) as driver:
        scrub_all(driver)
        assert len(driver.read_all()) == 5
        assert driver.store.stats().damaged == 1
    assert len(at_level(caplog, logging.ERROR)) == 1
    assert at_level(caplog, logging.ERROR)[0].endswith(f"damaged bytes at offset {offset}")


def test_damage_at_the_checkpoint_is_counted_once_where_queues_are_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is read up to the checkpoint for the queues, and from there on for what is new: the
    damage lies between.
    """
    filled(tmp_path, 3).close()
    driver = filled(tmp_path, 3)
    flip(tmp_path, driver, 3)
    crash(driver)
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    with Driver(small(tmp_path)) as driver:
        assert len(driver.read_all()) == 5
        assert driver.store.stats().damaged == 1
    assert len(at_level(caplog, logging.ERROR)) == 1


def test_several_places_are_summed_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    driver = filled(tmp_path)
    for n in (1, 3):
        flip(tmp_path, driver, n)
    crash(driver)
    recover(driver.fs, small(tmp_path), 0)
    assert len(at_level(caplog, logging.ERROR)) == 3
    assert "2 damaged places" in at_level(caplog, logging.ERROR)[2]


def test_a_check_and_a_repair_say_where_the_damage_is_in_their_report_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path)
    offsets = [flip(tmp_path, driver, n) for n in (1, 3)]
    driver.close()
    for report in (verify(tmp_path), *repair(tmp_path)):
        damage = [problem for problem in report.problems if "damaged" in problem]
        assert len(damage) == 1
        assert damage[0].startswith("the log has 2 damaged places, ")
        assert damage[0].endswith(
            f" bytes in all, at {offsets[0]} and {offsets[1]}: those records are lost"
        )
    assert not at_level(caplog, logging.ERROR)


# --- an unclean stop ------------------------------------------------------------------------------


def test_a_start_after_a_crash_says_what_was_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ogive.store")
    driver = filled(tmp_path)
    end = driver.store.stats().commitlog_end
    crash(driver)
    Driver(small(tmp_path)).close()
    assert caplog.text.count("did not stop cleanly") == 1
    assert (
        f"the last run on {tmp_path} did not stop cleanly: 6 records, {end:,} bytes of the log, "
        "were read again from offset 0; "
        f"1 queue and the key index were completed; the log ends at {end}, nothing was cut; "
        "this took " in caplog.text
    )
    assert not at_level(caplog, logging.WARNING)
    caplog.clear()
    Driver(small(tmp_path)).close()
    assert not caplog.records


def test_a_start_on_a_new_directory_and_one_after_a_stop_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ogive.store")
    filled(tmp_path).close()
    Driver(small(tmp_path)).close()
    assert not caplog.records


def test_what_was_made_again_and_cut_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ogive.store")
    filled(tmp_path, 3).close()
    driver = filled(tmp_path, 1)
    end = driver.store.stats().commitlog_end
    crash(driver)
    for path in [
        *(tmp_path / "consumequeue" / "T" / "0").iterdir(),
        *(tmp_path / "index").iterdir(),
    ]:
        path.unlink()
    with segment_path(tmp_path / "commitlog", 0).open("r+b") as file:
        file.seek(end + 4)
        file.write(b"torn")
    Driver(small(tmp_path)).close()
    (line,) = at_level(caplog, logging.INFO)
    assert "1 record, " in line
    assert "1 lost queue rebuilt; the key index was rebuilt from offset 0; " in line
    assert (
        f"8 bytes of an incomplete record cleared after the end of the log at {end}; this took "
        in line
    )
    warnings = "\n".join(at_level(caplog, logging.WARNING))
    assert "1 consume queues are missing or damaged" in warnings
    assert "rebuilding the key index from the commit log, from offset 0" in warnings
    assert f"cleared 8 bytes after offset {end}, an incomplete record" in warnings


def test_a_damaged_list_of_queues_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path).close()
    (tmp_path / "queues.json").write_bytes(b"{")
    with Driver(small(tmp_path)) as driver:
        assert len(driver.read_all()) == 6
    assert "queues.json, the list of queues, is damaged: reading the whole log" in caplog.text


def test_a_crash_in_a_removal_of_old_messages_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a start recovers twice: before the removal is finished, and after it."""
    caplog.set_level(logging.INFO, "ogive.store")
    driver = filled(tmp_path, 200)
    flip(tmp_path, driver, 199 - 10)
    crash(driver)
    checkpoints.note_removal(driver.fs, tmp_path, driver.store.segment_bytes)
    with Driver(small(tmp_path)) as driver:
        scrub_all(driver)
        assert driver.store.stats().damaged == 1
        assert driver.store.stats().commitlog_start == driver.store.segment_bytes
    assert len(at_level(caplog, logging.INFO)) == 1
    assert len(at_level(caplog, logging.ERROR)) == 1


# --- for Apache's broker --------------------------------------------------------------------------


def test_the_checkpoint_of_apaches_broker_has_the_time_of_the_newest_message(
    tmp_path: Path,
) -> None:
    """It reads its log from there: three times of milliseconds, in a page of 4 KiB."""
    clock = Clock()
    for _ in range(2):
        clock.now_ms += 60_000
        with Driver(small(tmp_path), clock=clock) as driver:
            driver.put(message("body"))
        page = (tmp_path / "checkpoint").read_bytes()
        assert struct.unpack_from(">qqq", page) == (clock.now_ms,) * 3
        assert len(page) == 4096
