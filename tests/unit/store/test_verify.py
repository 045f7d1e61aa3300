"""What a look at a directory finds, and what a repair mends."""

import errno
import json
import logging
import os
import random
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.errors import StoreCorrupt, StoreLocked, StoreUnusable
from ogive.model import SCHEDULE_TOPIC
from ogive.store import GetStatus, JsonTable, OsFs
from ogive.store.consumequeue import ENTRY
from ogive.store.fs import ReadOnlyFs
from ogive.store.repair import queue_counts
from ogive.store.verify import repair, verify
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.bodies.routes import MAX_QUEUES
from tests.raw_client import RawClient
from tests.stores import Driver, crash, message, small

COUNT = 120


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was stopped cleanly, with delayed messages and a table that has a version
    before.
    """
    rng = random.Random(1)
    with Driver(small(tmp_path / "store")) as driver:
        for n in range(COUNT):
            topic = "SCHEDULE_TOPIC_XXXX" if n % 5 == 0 else f"T{n % 2}"
            properties = f"UNIQ_KEY\x01ID{n}\x02DELAY\x013\x02TAGS\x01a\x02".encode()
            driver.put(
                message(b"%d " % n + rng.randbytes(300), topic, n % 3, properties=properties)
            )
        table = JsonTable(OsFs(), tmp_path / "store" / "config" / "topics.json")
        for version in (1, 2):
            table.save({"topicConfigTable": {"T0": {}, "T1": {}}, "version": version})
        JsonTable(OsFs(), tmp_path / "store" / "config" / "access" / "access.json").save(
            {"users": []}
        )
    return tmp_path / "store"


def bodies(root: Path) -> dict[tuple[str, int], list[bytes]]:
    with Driver(small(root)) as driver:
        return {key: driver.bodies(*key) for key in driver.store.queues}


def snapshot(root: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def a_file(root: Path, part: str) -> Path:
    return min(
        path for path in root.rglob("*") if path.is_file() and part in str(path.relative_to(root))
    )


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_nothing_is_wrong_with_a_sound_store_and_nothing_is_changed(root: Path) -> None:
    before = snapshot(root)
    report = verify(root)
    assert (report.problems, report.records, report.queues, report.clean) == ([], COUNT, 9, True)
    assert report.log_end > 0
    assert report.index_files == 2
    assert snapshot(root) == before


def test_queues_with_addresses_instead_of_tags_are_those_of_apache_s_extension(root: Path) -> None:
    """enableConsumeQueueExt of Apache's broker.

    Ours looks for tags, so it makes the queues again; a wrong place is wrong all the same.
    """
    before = bodies(root)
    for path in (root / "consumequeue").glob("*/*/*"):
        entries = [list(fields) for fields in ENTRY.iter_unpack(path.read_bytes())]
        for number, entry in enumerate(entries):
            entry[2] = -(2**63) + 30 * number if entry[1] else 0
        path.write_bytes(b"".join(ENTRY.pack(*entry) for entry in entries))
    # Apache's broker keeps none
    (root / "queues.json").unlink()
    assert verify(root).problems == []
    # in the first entry's offset
    flip(a_file(root, "consumequeue/T0"), 7)
    assert verify(root).wrong_queues == 1
    with Driver(small(root)) as driver:
        found = driver.store.get("T0", 0, 0, COUNT, 1 << 20, frozenset({ord("a")}))
        assert (found.status, found.count) == (GetStatus.FOUND, len(before["T0", 0]))
        assert driver.store.get("T0", 0, 0, COUNT, 1 << 20, frozenset({ord("b")})).count == 0
    assert bodies(root) == before
    assert verify(root).is_sound


def spoil_tables(root: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text('{"half":')


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "log": (lambda root: flip(a_file(root, "commitlog"), 3000), "1 damaged place,"),
    "queue": (
        lambda root: flip(a_file(root, "consumequeue/T0"), 7),
        "does not say what the log says, from offset 0 on",
    ),
    "queue file gone": (
        lambda root: a_file(root, "consumequeue/T0").unlink(),
        "has no entries from offset 0 on",
    ),
    "queue file cut": (
        lambda root: os.truncate(a_file(root, "consumequeue/T0"), 35),
        "has no entries from offset 1 on",
    ),
    "index": (lambda root: flip(a_file(root, "index"), 200), "index file .* is missing or damaged"),
    "list of queues": (
        lambda root: flip(root / "queues.json", 60),
        "queues.json, the list of queues, is damaged",
    ),
    "table and backup gone": (
        lambda root: shutil.rmtree(root / "config"),
        "the table of topics, config/topics.json, is lost, and its backup",
    ),
    "table and backup damaged": (spoil_tables, "nobody is served the messages of T0 and 1 more"),
    "users": (
        lambda root: (root / "config" / "access" / "access.json").write_text("garbage"),
        "access.json is not a table",
    ),
    "backup": (
        lambda root: (root / "config" / "topics.json.bak").write_text("garbage"),
        "topics.json.bak is not a table",
    ),
    "table": (
        lambda root: (root / "config" / "topics.json").write_text('{"half":'),
        "topics.json is not a table",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_damage_is_found_told_and_mended(root: Path, what: str) -> None:
    """All but a lost record can be made again; what checks is all there afterwards."""
    good = bodies(root)
    spoil, told = SPOILED[what]
    spoil(root)
    before = snapshot(root)
    report = verify(root)
    assert not report.is_sound
    assert any(re.search(told, problem) for problem in report.problems), report.problems
    assert snapshot(root) == before
    found, after = repair(root)
    assert found.problems == report.problems
    if what == "log":
        assert (after.damaged_places, after.records) == (1, COUNT - 1)
        assert after.wrong_queues == after.wrong_index_files == after.wrong_tables == 0
        assert sum(map(len, bodies(root).values())) == COUNT - 1
    else:
        assert after.is_sound, after.problems
        assert bodies(root) == good
        assert json.loads((root / "config" / "topics.json").read_text())[
            "topicConfigTable"
        ].keys() == {"T0", "T1"}


async def test_a_repair_makes_no_delayed_message_due_earlier(tmp_path: Path) -> None:
    """It knows the broker's own delay levels."""
    broker = Broker(
        BrokerConfig(data=tmp_path, port=0, delay_levels="1h 2h", segment_bytes=1024 * 1024)
    )
    await broker.start()
    async with await RawClient.open(broker.address) as client:
        await client.send("T", b"later", {"UNIQ_KEY": "A", "DELAY": "2"})
    await broker.stop()
    (queue,) = (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "1").iterdir()
    good = queue.read_bytes()
    flip(queue, 7)
    assert repair(tmp_path)[1].is_sound
    assert queue.read_bytes() == good


@pytest.mark.parametrize(
    ("conf", "delay_ms"),
    [("messageDelayLevel=1h\n", 3_600_000), ("messageDelayLevel=1x\n", 1000), ("", 1000)],
)
def test_after_a_kill_delayed_messages_are_due_by_the_levels_of_the_last_start(
    tmp_path: Path, conf: str, delay_ms: int
) -> None:
    """Their entries were not in files yet, and this start has shorter levels; without a usable word
    of the last one its own count.
    """
    (tmp_path / "apache-broker.conf").write_text(conf)
    first = Driver(small(tmp_path, flush_bytes=100_000, delay_levels=DelayLevels.parse("1h")))
    first.put(message(topic=SCHEDULE_TOPIC, properties=b"DELAY\x011\x02"))
    stored_ms = first.store.store_time(SCHEDULE_TOPIC, 0, 0)
    crash(first)
    with Driver(small(tmp_path, delay_levels=DelayLevels.parse("1s"))) as second:
        (entry,) = second.store.entries(SCHEDULE_TOPIC, 0, 0, 9)
        assert entry.tags_code == stored_ms + delay_ms


@pytest.mark.parametrize("listed", [True, False])
def test_a_damaged_page_makes_no_sound_record_a_damaged_one(listed: bool, tmp_path: Path) -> None:
    """It says from where on records have checksums of their own.

    Those before have none, such as those of Apache's broker.
    """
    for record_crc in (False, True):
        with Driver(small(tmp_path, record_crc=record_crc)) as driver:
            for n in range(50):
                driver.put(message(b"%d" % n))
    if not listed:
        (tmp_path / "queues.json").unlink()
    page = bytearray((tmp_path / "checkpoint").read_bytes())
    page[56:64] = bytes(8)
    (tmp_path / "checkpoint").write_bytes(page)
    assert verify(tmp_path).damaged_places == 0
    repair(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    with Driver(small(tmp_path)) as driver:
        assert len(driver.bodies()) == 100


def test_the_page_is_believed_where_the_list_is_lost(tmp_path: Path) -> None:
    """A record with a checksum of its own that does not hold is damaged, and not one without."""
    with Driver(small(tmp_path)) as driver:
        places = [driver.put(message(b"%d" % n))[0] for n in range(10)]
    (tmp_path / "queues.json").unlink()
    # in its properties
    flip(a_file(tmp_path, "commitlog"), places[4].commitlog_offset + places[4].size - 40)
    assert verify(tmp_path).damaged_places == 1


def test_store_of_a_killed_broker_is_behind_not_wrong(tmp_path: Path) -> None:
    JsonTable(OsFs(), tmp_path / "config" / "topics.json").save({"topicConfigTable": {"T": {}}})
    driver = Driver(small(tmp_path, flush_bytes=100_000))
    for n in range(30):
        driver.put(message(b"%d" % n))
    crash(driver)
    report = verify(tmp_path)
    assert (report.is_sound, report.clean, report.queues_behind, report.records) == (
        True,
        False,
        1,
        30,
    )
    assert repair(tmp_path)[1].clean
    assert len(bodies(tmp_path)[("T", 0)]) == 30


def test_deleted_topics_are_no_damage(root: Path) -> None:
    with Driver(small(root)) as driver:
        driver.store.topics.delete("T0")
    assert verify(root).problems == []
    (root / "queues.json").unlink()
    JsonTable(OsFs(), root / "config" / "topics.json").save({"topicConfigTable": {"T1": {}}})
    assert verify(root).problems == []
    assert repair(root)[1].problems == []


def test_a_record_with_a_forged_queue_offset_takes_no_memory_and_is_told(root: Path) -> None:
    """Fillers up to it would be 400 MB."""
    with Driver(small(root)) as driver:
        driver.store._queues["T0", 1].next_offset += 20_000_000
        driver.put(message("forged", "T0", 1))
    tracemalloc.start()
    try:
        report = verify(root)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()
    assert any(
        re.search(r"says that it is message 200000\d\d of queue 1 of T0", problem)
        for problem in report.problems
    ), report.problems


@pytest.mark.parametrize("buffered", [1, 2, 7])
def test_gaps_in_queues_are_compared_in_pieces(
    root: Path, buffered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(2000, 16_000, 500):
        flip(a_file(root, "commitlog"), at)
    a_file(root, "consumequeue/T1").unlink()
    whole = verify(root)
    assert whole.damaged_bytes > 10_000
    assert whole.wrong_queues == 1
    monkeypatch.setattr("ogive.store.verify._BUFFERED", buffered)
    assert verify(root) == whole


def test_running_store_is_refused(root: Path) -> None:
    with Driver(small(root)):
        for look in (verify, repair):
            with pytest.raises(
                StoreLocked, match=f"a broker runs on the store in {root}: stop it first"
            ):
                look(root)
    assert verify(root).is_sound


def test_a_repair_where_nothing_may_be_written_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fs: OsFs, path: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(OsFs, "lock", refuse)
    with pytest.raises(
        StoreUnusable,
        match=f"the store in {root} cannot be repaired: this user has no permission for",
    ):
        repair(root)


def test_a_repair_calls_nothing_missing_that_it_makes_again_itself(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert repair(root)[1].is_sound
    assert caplog.messages == []


def test_topics_are_made_again_as_their_messages_use_them(root: Path) -> None:
    """Those of the users; the broker has its own anyway."""
    shutil.rmtree(root / "config")
    repair(root)
    table = json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]
    assert {
        topic: (row["readQueueNums"], row["writeQueueNums"], row["perm"])
        for topic, row in table.items()
    } == {
        "T0": (3, 3, 6),
        "T1": (3, 3, 6),
    }


def test_a_forged_record_makes_no_topic_that_a_table_refuses() -> None:
    forged = [("T", 0), ("T", 2), ("a b", 0), ("Wide", MAX_QUEUES), ("rmq_sys_x", 1)]
    assert queue_counts(forged) == {"T": 3}


def test_an_empty_log_beside_full_queues_is_told_and_not_mended(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    (problem,) = verify(root).problems
    assert re.match(
        r"the log is empty, but the last checkpoint had seen a log of \d+ bytes: is the disk of "
        r"commitlog mounted\?",
        problem,
    )
    before = snapshot(root)
    with pytest.raises(StoreCorrupt, match="is its disk mounted"):
        repair(root)
    assert snapshot(root) == before


@pytest.mark.parametrize("cut", ["files", "bytes"])
def test_a_log_that_has_lost_its_end_is_told_and_no_offset_is_given_out_again(
    root: Path, cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As an incomplete copy has it, or one of a disk that was restored."""
    caplog.set_level(logging.ERROR)
    with Driver(small(root)) as driver:
        ends = {key: driver.store.max_offset(*key) for key in driver.store.queues}
    _first, *others = sorted((root / "commitlog").iterdir())
    if cut == "files":
        for path in others:
            path.unlink()
    else:
        for path in others[-2:]:
            path.write_bytes(path.read_bytes()[:100].ljust(path.stat().st_size, b"\0"))
    assert any("and had reached" in problem for problem in verify(root).problems)
    with Driver(small(root)) as driver:
        assert {key: driver.store.max_offset(*key) for key in driver.store.queues} == ends
        assert driver.put(message(b"new", "T0", 0))[0].queue_offset == ends["T0", 0]


def test_a_directory_where_a_file_is_needed_is_named(root: Path) -> None:
    place = root / "config" / "consumerOffset.json"
    place.mkdir()
    for look in (verify, repair):
        with pytest.raises(StoreUnusable, match=f"{place} is a directory where a file is needed"):
            look(root)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for look in (verify, repair):
        with pytest.raises(StoreUnusable, match="holds no store"):
            look(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_reading_file_system_refuses_every_change(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    fs = ReadOnlyFs()
    handle = fs.open(path)
    for change in (
        lambda: fs.pwrite(handle, b"y", 0),
        lambda: fs.truncate(handle, 0),
        lambda: fs.unlink(path),
        lambda: fs.rename(path, path),
        lambda: fs.make_dirs(tmp_path / "d"),
        lambda: fs.remove_dir(tmp_path),
        lambda: fs.open(tmp_path / "new", create=True),
    ):
        with pytest.raises(OSError, match=r"Read-only file system|No such file"):
            change()
    os.close(handle)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
