"""Sectors that the disk cannot read any more (EIO): what is in them is lost, and nothing else."""

import errno
import logging
import os
import re
import shutil
from pathlib import Path

import pytest

from ogive.errors import StoreError, StoreUnusable
from ogive.model import SCHEDULE_TOPIC
from ogive.store import JsonTable, StoreConfig, bad_sectors
from ogive.store import verify as verification
from ogive.store.file_reader import Cold, Handles
from ogive.store.queue_types import UNIT, QueueKinds
from ogive.store.replay import end_of_files
from ogive.store.types import GetResult
from ogive.store.verify import repair, units_in_files, verify
from ogive.wire.message import decode_stored
from tests.chaos.faults import BadSectors
from tests.stores import Driver, crash, message, small

COUNT = 60
SEGMENT = small(Path()).segment_bytes
BLOCK = BadSectors.BLOCK


def settings(root: Path, **changes: object) -> StoreConfig:
    return small(root, **({"hot_log_bytes": 1024, "hot_entries": 4} | changes))


def filled(root: Path, fs: BadSectors, **changes: object) -> Driver:
    """Messages of some 600 bytes in two queues, hardly any of them in memory."""
    driver = Driver(settings(root, **changes), fs)
    for n in range(COUNT):
        driver.put(
            message(b"%d " % n + bytes(400), queue_id=n % 2, properties=b"KEYS\x01k%d\x02" % n)
        )
    return driver


def served_of(driver: Driver, queue_id: int) -> set[int]:
    return {int(body.split()[0]) for body in driver.bodies(queue_id=queue_id)}


def served(driver: Driver) -> set[int]:
    return served_of(driver, 0) | served_of(driver, 1)


def places(driver: Driver) -> dict[int, tuple[int, int]]:
    """Where each message stands in the log, and its size."""
    found = {}
    for queue_id in (0, 1):
        for entry in driver.store.entries("T", queue_id, 0, COUNT):
            record = driver.store.record_at(entry.commitlog_offset)
            assert record is not None
            found[int(decode_stored(record).body.split()[0])] = (entry.commitlog_offset, entry.size)
    return found


def spoil(fs: BadSectors, root: Path, at: int) -> range:
    """Make the block at commit-log offset *at* unreadable; the offsets in it."""
    fs.spoil(root / "commitlog" / f"{at - at % SEGMENT:020d}", at % SEGMENT)
    return range(at - at % BLOCK, at - at % BLOCK + BLOCK)


def those_in(stored: dict[int, tuple[int, int]], block: range) -> set[int]:
    return {n for n, (at, size) in stored.items() if at < block.stop and at + size > block.start}


def errors(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    return [
        r.message
        for r in caplog.records
        if r.levelno >= logging.ERROR and all(word in r.message for word in words)
    ]


@pytest.fixture
def fs() -> BadSectors:
    return BadSectors()


# --- the log, while the store runs ----------------------------------------------------------------


def test_an_unreadable_block_costs_the_records_in_it(
    tmp_path: Path, fs: BadSectors, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path, fs)
    stored = places(driver)
    driver.close()
    driver = Driver(settings(tmp_path), fs)
    lost = those_in(stored, spoil(fs, tmp_path, stored[20][0]))
    assert 2 <= len(lost) < 15
    for _ in range(2):
        assert served(driver) == set(range(COUNT)) - lost
    assert driver.store.stats().damaged == len(lost)
    assert driver.store.record_at(stored[20][0]) is None
    assert (
        len(
            errors(
                caplog,
                "could not read",
                str(tmp_path / "commitlog" / f"{stored[20][0] // SEGMENT * SEGMENT:020d}"),
            )
        )
        == 1
    )
    failures = fs.failures
    assert served(driver)
    # a disk takes seconds to say it
    assert fs.failures == failures
    driver.close()


def test_whoever_must_not_wait_passes_over_it_too(tmp_path: Path, fs: BadSectors) -> None:
    driver = filled(tmp_path, fs)
    stored = places(driver)
    lost = those_in(stored, spoil(fs, tmp_path, stored[20][0]))
    found, waits = served_without_waiting(driver)
    assert found == set(range(COUNT)) - lost
    assert 0 < waits <= 2 * COUNT // 4
    driver.close()


def served_without_waiting(driver: Driver) -> tuple[set[int], int]:
    """And how often something had to be brought in."""
    found: set[int] = set()
    waits = 0
    for queue_id in (0, 1):
        offset = 0
        while offset < driver.store.max_offset("T", queue_id):
            try:
                result = driver.store.get("T", queue_id, offset, 4, 1 << 20, wait=False)
            except Cold as cold:
                waits += 1
                driver.store.bring_in(cold.place)
            else:
                found |= numbers(result)
                offset = result.next_offset
    return found, waits


def numbers(result: GetResult) -> set[int]:
    buffer, at, found = b"".join(result.parts), 0, set()
    while at < len(buffer):
        record = decode_stored(buffer, at)
        found.add(int(record.body.split()[0]))
        at += record.size
    return found


def test_what_can_be_read_the_second_time_is_good(
    tmp_path: Path, fs: BadSectors, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path, fs)
    spoil(fs, tmp_path, 5000)
    fs.times = 1
    assert served(driver) == set(range(COUNT))
    assert (fs.failures, driver.store.stats().damaged, errors(caplog)) == (1, 0, [])
    driver.close()


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOMEM, errno.EINTR])
def test_any_other_error_is_one(tmp_path: Path, fs: BadSectors, code: int) -> None:
    driver = filled(tmp_path, fs)
    spoil(fs, tmp_path, 5000)
    fs.code = code
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be read"):
            served(driver)
    assert driver.store.stats().damaged == 0
    fs.bad.clear()
    assert served(driver) == set(range(COUNT))
    driver.close()


def test_a_disk_that_is_gone_is_no_damage(tmp_path: Path, fs: BadSectors) -> None:
    """Readers must not pass over everything, and a start must not clear it."""
    driver = filled(tmp_path, fs)
    fs.gone = ("commitlog",)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"its disk fails, .*commitlog/0{20}"):
            served(driver)
        with pytest.raises(StoreError, match="its disk fails"):
            served_without_waiting(driver)
    assert driver.store.stats().damaged == 0
    crash(driver)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    with pytest.raises(StoreUnusable, match="its disk fails"):
        Driver(settings(tmp_path), fs)
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before
    fs.gone = ()
    with Driver(settings(tmp_path), fs) as driver:
        assert served(driver) == set(range(COUNT))


def test_there_is_a_limit_to_what_counts_as_damage(
    tmp_path: Path, fs: BadSectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bad_sectors, "MAX_BLOCKS", 1)
    driver = filled(tmp_path, fs)
    spoil(fs, tmp_path, 100)
    spoil(fs, tmp_path, SEGMENT + 100)
    with pytest.raises(
        StoreError,
        match=r"1 blocks of the log cannot be read, and that at byte 0 is one more: its disk fails",
    ):
        served(driver)
    driver.close()


def test_the_background_reader_counts_it_once(
    tmp_path: Path, fs: BadSectors, caplog: pytest.LogCaptureFixture
) -> None:
    driver = filled(tmp_path, fs)
    spoil(fs, tmp_path, 5000)
    for _ in range(3):
        scrubbed = driver.store.scrub_step(0, 1 << 20)()
        assert len(scrubbed.damaged) == 1
        driver.store.report_damage(*scrubbed.damaged[0])
    assert driver.store.stats().damaged == 1
    assert len(errors(caplog, "count as damaged")) == 1
    driver.close()


# --- the log, at the start and for the tools ------------------------------------------------------


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_start_skips_it(tmp_path: Path, fs: BadSectors, flush: str, killed: bool) -> None:
    """Also in what a power cut may have torn: that can be read."""
    driver = filled(tmp_path, fs, flush=flush, checkpoint_bytes=1 << 30)
    stored = places(driver)
    crash(driver) if killed else driver.close()
    lost = those_in(stored, spoil(fs, tmp_path, stored[20][0]))
    with Driver(settings(tmp_path, flush=flush), fs) as driver:
        assert served(driver) == set(range(COUNT)) - lost
        assert driver.store.stats().damaged >= 1
        driver.put(message(b"99 "))
        assert 99 in served(driver)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("segment_bytes", [SEGMENT, 4 * SEGMENT])
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_the_end_of_the_log_can_be_written_again(
    tmp_path: Path, fs: BadSectors, flush: str, segment_bytes: int, killed: bool
) -> None:
    """A write to a part of a block has to read the rest of it.

    In the small segment nothing is behind it.
    """
    driver = filled(tmp_path, fs, flush=flush, segment_bytes=segment_bytes)
    stored = places(driver)
    end = driver.store.stats().commitlog_end
    crash(driver) if killed else driver.close()
    fs.spoil(tmp_path / "commitlog" / f"{end - end % segment_bytes:020d}", end % segment_bytes)
    lost = those_in(stored, range(end - end % BLOCK, end))
    for n in (98, 99):
        with Driver(settings(tmp_path, flush=flush), fs) as driver:
            driver.put(message(b"%d " % n))
            assert served(driver) == set(range(COUNT)) - lost | {98, n}


def test_a_block_behind_the_end_of_the_log_is_cleared_when_it_is_met(
    tmp_path: Path, fs: BadSectors
) -> None:
    """flush=async takes room without writing it: the first write to a part of the block ends the
    store, and the next start goes on.
    """
    driver = filled(tmp_path, fs, flush="async", segment_bytes=4 * SEGMENT)
    end = driver.store.stats().commitlog_end
    driver.close()
    fs.spoil(tmp_path / "commitlog" / f"{0:020d}", end + BLOCK)
    driver = Driver(settings(tmp_path, flush="async"), fs)
    with pytest.raises(StoreError, match="Input/output error"):
        put_one_by_one(driver, range(100, 120))
    driver.close()
    with Driver(settings(tmp_path, flush="async"), fs) as driver:
        put_one_by_one(driver, range(100, 120))
        assert served_of(driver, 1) >= set(range(1, COUNT, 2)) | set(range(100, 120))


def test_a_block_that_begins_where_the_log_ends_is_cleared_at_once(
    tmp_path: Path, fs: BadSectors
) -> None:
    driver = filled(tmp_path, fs, flush="async", segment_bytes=4 * SEGMENT)
    (result,) = driver.put(message(b""))
    bare = driver.store.stats().commitlog_end - result.commitlog_offset
    driver.put(message(bytes(-(driver.store.stats().commitlog_end + bare) % BLOCK)))
    end = driver.store.stats().commitlog_end
    assert end % BLOCK == 0
    driver.close()
    path = tmp_path / "commitlog" / f"{0:020d}"
    # a block that was never written is not read from the disk, whatever became of it
    with path.open("r+b") as log:
        log.seek(end)
        log.write(bytes(BLOCK))
    fs.spoil(path, end)
    with Driver(settings(tmp_path, flush="async"), fs) as driver:
        put_one_by_one(driver, range(100, 120))
        assert driver.store.max_offset("T", 1) == COUNT // 2 + 20


def put_one_by_one(driver: Driver, numbers: range) -> None:
    for n in numbers:
        driver.put(message(b"%d " % n + bytes(400), queue_id=1))


def test_verify_and_repair_tell_of_it(
    tmp_path: Path, fs: BadSectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = filled(tmp_path, fs)
    stored = places(driver)
    driver.close()
    lost = those_in(stored, spoil(fs, tmp_path, stored[20][0]))
    monkeypatch.setattr(verification, "ReadOnlyFs", lambda: fs)
    monkeypatch.setattr(verification, "OsFs", lambda: fs)
    report = verify(tmp_path)
    assert (report.records, report.damaged_places) == (COUNT - len(lost), 1)
    before, after = repair(tmp_path)
    assert (before.damaged_places, after.damaged_places, after.wrong_queues) == (1, 1, 0)
    with Driver(settings(tmp_path), fs) as driver:
        assert served(driver) == set(range(COUNT)) - lost
    fs.gone = ("commitlog",)
    for tool in (verify, repair):
        with pytest.raises(
            StoreUnusable,
            match=f"{tmp_path}/commitlog/0{{20}}: Input/output error, nothing near byte 0 can be "
            "read: its disk fails",
        ):
            tool(tmp_path)


def test_what_a_segment_has_too_much_is_cut_though_it_cannot_be_read(
    tmp_path: Path, fs: BadSectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, fs).close()
    path = tmp_path / "commitlog" / f"{SEGMENT:020d}"
    with path.open("ab") as file:
        file.write(b"extra")
    fs.spoil(path, SEGMENT)
    monkeypatch.setattr(verification, "ReadOnlyFs", lambda: fs)
    monkeypatch.setattr(verification, "OsFs", lambda: fs)
    assert "5 bytes too long" in repair(tmp_path)[0].problems[0]
    assert path.stat().st_size == SEGMENT


# --- what is made from the log --------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    "part",
    ["consumequeue/T/0/", "queues.json", "checkpoint", "index/", "apache-broker.conf", "lock"],
)
def test_a_file_that_is_made_again_is_lost_with_it(
    tmp_path: Path,
    part: str,
    killed: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = tmp_path / "store"
    driver = filled(root, BadSectors())
    (root / "apache-broker.conf").write_text("messageDelayLevel=1s 5s\n")
    crash(driver) if killed else driver.close()
    shutil.copytree(root, tmp_path / "copy")
    path = min(path for path in root.rglob("*") if path.is_file() and part in str(path))
    fs = BadSectors()
    spoil_all(fs, path)
    with Driver(settings(root), fs) as driver:
        assert errors(caplog, f"could not read {path}", "Input/output error")
        assert served(driver) == set(range(COUNT))
        assert len(list(driver.store.find_key("T", "k7", 0, 1 << 62))) >= 1
    # which is the broker's
    assert not fs.bad or part == "apache-broker.conf"
    fs = BadSectors()
    spoil_all(fs, tmp_path / "copy" / path.relative_to(root))
    monkeypatch.setattr(verification, "ReadOnlyFs", lambda: fs)
    monkeypatch.setattr(verification, "OsFs", lambda: fs)
    repair(tmp_path / "copy")
    with Driver(settings(tmp_path / "copy"), fs) as driver:
        assert served(driver) == set(range(COUNT))


def spoil_all(fs: BadSectors, path: Path) -> None:
    for at in range(0, path.stat().st_size, BLOCK):
        fs.spoil(path, at)


@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("listed", [True, False])
def test_a_queue_s_file_is_written_over_though_a_block_cannot_be_read(
    tmp_path: Path, fs: BadSectors, listed: bool, bad: int
) -> None:
    driver = Driver(settings(tmp_path, consume_queue_file_bytes=20 * 1000), fs)
    for first in range(0, 600, 10):
        driver.put(*[message(b"%d " % n) for n in range(first, first + 10)])
    driver.close()
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}"
    before = path.read_bytes()
    fs.spoil(path, bad * BLOCK)
    if not listed:
        (tmp_path / "queues.json").unlink()
    with Driver(settings(tmp_path), fs) as driver:
        assert served_of(driver, 0) == set(range(600))
    assert not fs.bad
    assert path.read_bytes() == before


def test_delayed_messages_are_due_by_the_table_where_their_queue_cannot_be_read(
    tmp_path: Path, fs: BadSectors, caplog: pytest.LogCaptureFixture
) -> None:
    with Driver(settings(tmp_path), fs) as driver:
        for _ in range(COUNT):
            driver.put(message(b"", SCHEDULE_TOPIC, 2, properties=b"DELAY\x013\x02"))
    path = min((tmp_path / "consumequeue" / SCHEDULE_TOPIC / "2").iterdir())
    spoil_all(fs, path)
    with Driver(settings(tmp_path), fs) as driver:
        delay_ms = driver.store.config.delay_levels.delay_ms(3)
        stored_ms = driver.store.store_time(SCHEDULE_TOPIC, 2, 0)
        found = [entry.tags_code for entry in driver.store.entries(SCHEDULE_TOPIC, 2, 0, COUNT)]
        assert found == [stored_ms + delay_ms] * COUNT
    # by the check, and for its old entries
    assert len(errors(caplog, f"could not read {path}")) == 2


def test_an_index_file_is_checked_to_its_end(tmp_path: Path, fs: BadSectors) -> None:
    filled(tmp_path, fs, index_slots=2000).close()
    (path,) = (tmp_path / "index").iterdir()
    # items; header and slots are before it
    fs.spoil(path, 2 * BLOCK)
    with Driver(settings(tmp_path), fs) as driver:
        assert not fs.bad
        assert len(list(driver.store.find_key("T", f"k{COUNT - 1}", 0, 1 << 62))) == 1


def test_where_queues_ended_is_read_from_the_files_that_can_be_read(
    tmp_path: Path, fs: BadSectors
) -> None:
    filled(tmp_path, fs).close()
    kind = QueueKinds.found(fs, settings(tmp_path)).usual
    end = end_of_files(fs, kind, ("T", 0))
    assert end == COUNT // 2 > kind.file_entries
    fs.gone = (f"consumequeue/T/0/{kind.file_bytes:020d}",)
    assert end_of_files(fs, kind, ("T", 0)) == kind.file_entries


def test_an_unreadable_queue_of_batches_holds_nothing(tmp_path: Path, fs: BadSectors) -> None:
    kind = QueueKinds.found(fs, settings(tmp_path)).batches
    path = kind.directory(("B", 0)) / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(UNIT.pack(0, 100, 0, 0, 0, 1, 0, 0))
    handles = Handles(fs, 1)
    assert len(list(units_in_files(fs, handles, kind, ("B", 0)))) == 1
    fs.gone = (str(path),)
    assert list(units_in_files(fs, handles, kind, ("B", 0))) == []
    handles.close()


def test_a_queue_file_that_becomes_unreadable_is_an_error_until_it_is_made_again(
    tmp_path: Path, fs: BadSectors
) -> None:
    """The log has its messages: to pass over them would lose them."""
    driver = filled(tmp_path, fs)
    driver.close()
    driver = Driver(settings(tmp_path), fs)
    fs.gone = ("consumequeue/T/0/",)
    for _ in range(2):
        with pytest.raises(
            StoreError, match=r"the next start makes it again: '.*/consumequeue/T/0/0{20}'"
        ):
            driver.bodies()
        with pytest.raises(Cold) as cold:
            driver.store.get("T", 0, 0, 4, 1 << 20, wait=False)
        with pytest.raises(
            StoreError, match=r"the next start makes it again: '.*/consumequeue/T/0/0{20}'"
        ):
            driver.store.bring_in(cold.value.place)
    driver.close()
    with Driver(settings(tmp_path), fs) as driver:
        fs.gone = ()
        assert served(driver) == set(range(COUNT))


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 20_000])
def test_an_unreadable_table_is_its_backup(
    tmp_path: Path, fs: BadSectors, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    def table() -> JsonTable:
        return JsonTable(fs, tmp_path / "topics.json", now=lambda: 1234.0)

    for version in (1, 2):
        table().save({"version": version, "filler": "x" * size})
    fs.spoil(tmp_path / "topics.json", size)
    fs.times = 1
    # the second time it could be read
    assert (table().load() or {})["version"] == 2
    assert not caplog.records
    fs.times = None
    again = table()
    assert (again.load() or {})["version"] == 1
    assert (tmp_path / "topics.json.corrupt-1234").exists()
    assert [r.message.split(":")[0] for r in caplog.records] == [
        f"could not read {tmp_path / 'topics.json'}, which counts as damaged",
        f"{tmp_path / 'topics.json'} is damaged",
    ]
    again.save({"version": 3})
    assert table().load() == {"version": 3}


def test_an_unreadable_table_without_a_backup_is_lost(tmp_path: Path, fs: BadSectors) -> None:
    JsonTable(fs, tmp_path / "topics.json").save({"version": 1})
    fs.gone = ("topics.json",)
    table = JsonTable(fs, tmp_path / "topics.json", now=lambda: 1234.0)
    assert table.load() is None
    assert table.is_lost
    fs.gone = ()
    assert JsonTable(fs, tmp_path / "topics.json.corrupt-1234").load() == {"version": 1}


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOMEM])
def test_a_table_that_cannot_be_read_for_another_reason_is_an_error(
    tmp_path: Path, fs: BadSectors, code: int
) -> None:
    JsonTable(fs, tmp_path / "topics.json").save({"version": 1})
    fs.gone, fs.code = ("topics.json",), code
    with pytest.raises(OSError, match=re.escape(os.strerror(code))):
        JsonTable(fs, tmp_path / "topics.json").load()
    assert [path.name for path in tmp_path.iterdir()] == ["topics.json"]
