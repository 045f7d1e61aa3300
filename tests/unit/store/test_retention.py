"""Which segments may go, and what goes with them."""

import errno
from pathlib import Path

import pytest

from ogive.errors import InvalidOption
from ogive.store import GetStatus
from ogive.store import checkpoint as checkpoints
from ogive.store.retention import MAX_PER_RUN, Ages, RetentionConfig, due
from ogive.store.tables import write_synced
from tests.chaos.faults import FailFrom, FaultyFs
from tests.chaos.recorder import MemoryFs
from tests.stores import Driver, crash, message, small

HOUR = 3600.0
CONFIG = RetentionConfig()
FULL = [0, 100, 200]


def aged(*hours: float) -> Ages:
    """Segments that have been full for so many hours each."""
    ages = Ages("boot", 0.0)
    ages.load(
        {
            "boot": "boot",
            "at": 0,
            "elapsed": 1000 * HOUR,
            "fullAt": {str(s): (1000 - h) * HOUR for s, h in zip(FULL, hours, strict=True)},
        }
    )
    ages.see(FULL, 0.0)
    return ages


@pytest.mark.parametrize(
    ("hours", "hour", "disk", "expected"),
    [
        ((80, 73, 1), 4, 0.1, 2),
        ((80, 73, 1), 5, 0.1, 0),
        ((80, 73, 1), 5, 0.76, 2),
        # nothing young goes, and nothing behind it
        ((71, 80, 80), 4, 0.9, 0),
        ((1, 1, 1), 4, 0.99, 0),
    ],
)
def test_what_is_old_enough_goes_at_its_hour_or_while_the_disk_fills(
    hours: tuple[float, ...], hour: int, disk: float, expected: int
) -> None:
    assert due(FULL, aged(*hours), CONFIG, hour=hour, disk_used=disk) == expected


def test_young_segments_go_only_where_that_was_asked_for() -> None:
    config = RetentionConfig(force_share=0.85)
    assert due(FULL, aged(1, 1, 1), config, hour=5, disk_used=0.86) == 3
    assert due(FULL, aged(1, 1, 1), config, hour=5, disk_used=0.85) == 0
    many = list(range(0, 10_000, 100))
    assert due(many, Ages("b", 0), config, hour=5, disk_used=0.9) == MAX_PER_RUN


def test_operator_can_have_it_done_at_once() -> None:
    assert due(FULL, aged(80, 73, 1), CONFIG, hour=5, disk_used=0.1, at_once=True) == 2


def test_age_is_time_that_passed_also_while_the_broker_was_down() -> None:
    ages = Ages("boot 1", 1000.0)
    ages.see([0], 1000.0)
    ages.see([0], 1010.0)
    # a later process, the same run of the machine
    after = Ages("boot 1", 5000.0)
    after.load(ages.save())
    assert after.of(0) == 4000.0
    # the machine was started again: nobody can tell how long that took
    other = Ages("boot 2", 3.0)
    other.load(after.save())
    other.see([0], 5.0)
    assert other.of(0) == 4002.0


@pytest.mark.parametrize("step_s", [-HOUR, -0.001, -10 * 365 * 24 * HOUR])
def test_clock_that_goes_back_makes_nothing_older_or_younger(step_s: float) -> None:
    ages = Ages("boot", 50.0)
    ages.see([0], 50.0)
    ages.see([0], 60.0)
    ages.see([0], 60.0 + step_s)
    assert ages.of(0) == 10.0


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"elapsed": "x"},
        {"elapsed": 1e9, "at": 0, "fullAt": [1]},
        {"elapsed": 1e9, "at": 0, "fullAt": {"x": 1}},
    ],
)
def test_ages_that_make_no_sense_count_as_young(value: dict[str, object]) -> None:
    ages = Ages("boot", 0.0)
    ages.load(value)
    ages.see([0], 0.0)
    assert ages.of(0) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [{"keep_s": 0}, {"hours": ()}, {"hours": (24,)}, {"disk_share": 0}, {"force_share": 1.1}],
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidOption):
        RetentionConfig(**wrong)  # type: ignore[arg-type]  # the test is about that


# --- what goes ------------------------------------------------------------------------------------


def filled(driver: Driver, count: int = 300) -> None:
    for n in range(count):
        driver.put(
            message(
                b"%d " % n + bytes(300), f"T{n % 2}", properties=f"UNIQ_KEY\x01ID{n}\x02".encode()
            )
        )
    driver.put(message(b"only one", "Early"))


def expire(driver: Driver, segments: int) -> int:
    until = driver.store.retention.full_segments[segments]
    for _ in driver.store.retention.expire(until):
        pass
    driver.store.sync(lambda: None)
    return until


def test_segments_go_with_all_that_speaks_of_them(tmp_path: Path) -> None:
    config = small(tmp_path)
    with Driver(config) as driver:
        driver.put(message(b"first of all", "Early"))
        filled(driver)
        everything = {topic: driver.bodies(topic) for topic in ("T0", "T1", "Early")}
        until = expire(driver, 5)
        assert driver.store.stats().commitlog_start == until == 5 * config.segment_bytes
        low = driver.store.min_offset("T0", 0)
        assert 0 < low < 150
        gone = driver.store.get("T0", 0, 0, 32, 100_000)
        assert (gone.status, gone.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        assert driver.bodies("T0") == everything["T0"][low:]
        assert driver.bodies("Early") == [b"only one"]
        assert (driver.store.min_offset("Early", 0), driver.store.max_offset("Early", 0)) == (1, 2)
        assert list(driver.store.find_key("T0", "ID0", 0, 2**63)) == []
        assert len(list(driver.store.find_key("T0", "ID298", 0, 2**63))) == 1
    kept = sorted(int(path.name) for path in (tmp_path / "commitlog").iterdir())
    assert kept[0] == until
    assert (
        min(int(path.name) for path in (tmp_path / "consumequeue" / "T0" / "0").iterdir())
        == low // 16 * 320
    )
    with Driver(config) as driver:
        assert driver.bodies("T0") == everything["T0"][low:]
        assert driver.store.min_offset("T0", 0) == low
        assert driver.put(message(b"next", "T0"))[0].queue_offset == 150
        assert driver.store.stats().damaged == 0


def test_queue_whose_messages_all_went_goes_on_behind_them(tmp_path: Path) -> None:
    """Also where the list of queues was lost, so that only its own file tells."""
    with Driver(small(tmp_path)) as driver:
        for _ in range(20):
            driver.put(message(b"x", "Early"))
        filled(driver)
        driver.store.topics.delete("Early")
        for _ in range(3):
            driver.put(message(b"again", "Early"))
        for _ in range(100):
            driver.put(message(bytes(400), "T0"))
        expire(driver, len(driver.store.retention.full_segments) - 1)
        assert driver.store.min_offset("Early", 0) == driver.store.max_offset("Early", 0) == 3
    for lose in (False, True):
        if lose:
            (tmp_path / "queues.json").unlink()
        with Driver(small(tmp_path)) as driver:
            assert driver.store.max_offset("Early", 0) == 3 + lose
            assert driver.store.get("Early", 0, 0, 32, 1000).status is GetStatus.OFFSET_TOO_SMALL
            assert driver.put(message(b"x", "Early"))[0].queue_offset == 3 + lose
        # what was put just now is in the log again: the queue's file is not the only witness any
        # more


def test_crash_between_removal_and_checkpoint_is_made_up_for(tmp_path: Path) -> None:
    with Driver(small(tmp_path)) as driver:
        filled(driver)
        everything = driver.bodies("T0")
    config = small(tmp_path)
    for number in range(4):
        (tmp_path / "commitlog" / f"{number * config.segment_bytes:020d}").unlink()
    with Driver(config) as driver:
        low = driver.store.min_offset("T0", 0)
        assert low > 0
        assert driver.bodies("T0") == everything[low:]
        assert driver.store.entries("T0", 0, low, 1)[0].commitlog_offset >= 4 * config.segment_bytes
    with Driver(config) as driver:
        assert driver.store.min_offset("T0", 0) == low


def test_newest_segment_stays_whatever_is_asked(tmp_path: Path) -> None:
    fs = MemoryFs()
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        filled(driver, 100)
        end = driver.store.stats().commitlog_end
        for _ in driver.store.retention.expire(end + 10**9):
            pass
        assert driver.store.stats().commitlog_start == end - end % driver.store.segment_bytes
        driver.put(message(b"goes on"))
        assert driver.bodies() == [b"goes on"]


def test_what_a_reader_was_told_is_gone_stays_gone_after_a_crash(tmp_path: Path) -> None:
    """The crash comes after the lowest offsets moved up, and before a file was removed."""
    fs = MemoryFs()
    driver = Driver(small(tmp_path), fs, threaded=False)
    filled(driver)
    until = 3 * driver.store.segment_bytes
    under_way = driver.store.retention.expire(until)
    while not driver.store.min_offset("T0", 0):
        next(under_way)
    low = driver.store.min_offset("T0", 0)
    crash(driver)
    assert tmp_path / "commitlog" / f"{0:020d}" in fs.names
    with Driver(small(tmp_path), fs, threaded=False) as again:
        assert (again.store.min_offset("T0", 0), again.store.stats().commitlog_start) == (
            low,
            until,
        )
        assert tmp_path / "removing" not in fs.names


def test_a_removal_is_noted_while_it_lasts(tmp_path: Path) -> None:
    fs = MemoryFs()
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        filled(driver, 100)
        under_way = driver.store.retention.expire(driver.store.segment_bytes)
        while not driver.store.min_offset("T0", 0):
            next(under_way)
        assert fs.names[tmp_path / "removing"].data.split()[0] == b"%d" % driver.store.segment_bytes
        for _ in under_way:
            pass
        assert tmp_path / "removing" not in fs.names


@pytest.mark.parametrize(
    "text", ["", "all", "-1", "16384", "16384 1", "16385 4187206478", "9" * 21, "²"]
)
def test_a_damaged_note_removes_nothing(tmp_path: Path, text: str) -> None:
    fs = MemoryFs()
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        filled(driver, 100)
    write_synced(fs, tmp_path / "removing", text.encode())
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        assert driver.store.stats().commitlog_start == 0
        assert len(driver.bodies("T0")) == 50
    assert tmp_path / "removing" not in fs.names


def test_a_note_of_another_log_removes_nothing(tmp_path: Path) -> None:
    fs = MemoryFs()
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        filled(driver, 100)
    checkpoints.note_removal(fs, tmp_path, 2**40)
    with Driver(small(tmp_path), fs, threaded=False) as driver:
        assert driver.store.stats().commitlog_start == 0


def test_a_full_disk_does_not_keep_old_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no room for the note either, and removal is what makes some."""
    failing = FailFrom("create", "removing", 0, 1, errno.ENOSPC)
    with Driver(small(tmp_path), FaultyFs(failing)) as driver:
        filled(driver, 100)
        failing.armed = True
        for _ in driver.store.retention.expire(driver.store.segment_bytes):
            pass
        assert driver.store.stats().commitlog_start == driver.store.segment_bytes
    assert failing.failures == 1
    assert "could not record the removal of old messages" in caplog.text
