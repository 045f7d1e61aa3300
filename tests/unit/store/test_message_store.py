import errno
import itertools
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import (
    IllegalStateError,
    InvalidOption,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreUnusable,
)
from ogive.store import GetStatus, MessageStore, NewBatch, NewMessage, OsFs, PutResult, StoreConfig
from ogive.store.checkpoint import as_file
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.file_reader import Cold
from ogive.store.record import crc_property
from ogive.store.types import joined
from ogive.store.verify import verify
from ogive.store.writer import CommitWriter
from ogive.wire.message import BatchItem, decode_stored, java_hash
from tests.chaos.faults import FailFrom, FaultyFs
from tests.chaos.recorder import MemoryFs, Name, Operation, RecorderFs, Sync, images
from tests.stores import Clock, Driver, OneByOne, batch, crash, message, read_queue, run_now, small
from tests.unit.broker.cold_disk import ColdDisk

ROOT = Path("/store")


@pytest.fixture
def driver() -> Any:
    with Driver(small(ROOT), MemoryFs(), threaded=False) as driver:
        yield driver


def test_offsets_are_consecutive_per_queue_and_bytes_in_the_log(driver: Driver) -> None:
    results = [driver.put(message(f"{i}", queue_id=i % 2))[0] for i in range(6)]
    assert [result.queue_offset for result in results] == [0, 0, 1, 1, 2, 2]
    for before, after in itertools.pairwise(results):
        assert after.commitlog_offset == before.commitlog_offset + before.size
    assert driver.bodies(queue_id=1) == [b"1", b"3", b"5"]


def item(text: bytes, body: bytes = b"body", flag: int = 0) -> BatchItem:
    return BatchItem(flag, body, text)


def stored_by(
    put: Callable[[Driver], PutResult], **config: Any
) -> tuple[PutResult, dict[Path, bytes], list[bytes | Cold | None]]:
    """What *put* gives, and every byte that is stored then; the index of keys is asked too."""
    fs = MemoryFs()
    with Driver(small(ROOT, **config), fs, threaded=False) as driver:
        driver.put(message("before"), message("before", queue_id=3))
        result = put(driver)
        stored = len(result.places) // 8
        assert len(driver.read_all()) + len(driver.read_all(queue_id=3)) == 2 + stored
        driver.put(message("after", queue_id=3))
        stats = driver.store.stats()
        assert (stats.puts, stats.waiting_bytes) == (3 + stored, 0)
        found = list(driver.store.find_key("T", "one", 0, 2**62))
    return result, {path: bytes(inode.data) for path, inode in fs.names.items()}, found


V6 = bytes(range(16)) + b"\x00\x00\x2a\x9f"
BATCHES: dict[str, tuple[dict[str, Any], list[BatchItem]]] = {
    "plain": ({}, [item(b"UNIQ_KEY\x01%d\x02" % n) for n in range(5)]),
    "keys and tags": (
        {"sys_flag": 1, "born_timestamp_ms": 5, "reconsume_times": 2},
        [
            item(b"TAGS\x01a\x02KEYS\x01one two\x02UNIQ_KEY\x01A\x02", b"", 7),
            item(b"KEYS\x01one\x02", b"y", -1),
            item(b"TAGS\x01b", b"z"),
        ],
    ),
    "no properties": ({}, [item(b"", b"a" * 300), item(b"", b"b")]),
    "no last separator": ({}, [item(b"K\x01v"), item(b"K\x01v\x02")]),
    "checksum of another record": (
        {},
        [item(b"K\x01v\x02" + crc_property(77)), item(b"K\x01" + crc_property(78) + b"\x02")],
    ),
    "IPv6": ({"born_host": V6}, [item(b"A\x01b\x02")] * 3),
    "IPv6 both": ({"born_host": V6, "store_host": V6}, [item(b"A\x01b\x02")] * 3),
    "one": ({}, [item(b"UNIQ_KEY\x01one\x02")]),
    "over the end of a segment": ({}, [item(b"", bytes(1500)) for _ in range(10)]),
    "no room for a checksum": ({}, [item(b"K\x01v\x02"), item(b"K\x01" + b"v" * 32764 + b"\x02")]),
}


@pytest.mark.parametrize("record_crc", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_leaves_the_bytes_that_its_messages_would(name: str, record_crc: bool) -> None:
    """Built together or one by one: log, queues and index of keys are the same."""
    fields, items = BATCHES[name]
    together = batch(message("not looked at", queue_id=3, flag=9, **fields), items)
    config = {
        "record_crc": record_crc,
        "segment_bytes": 65536 if name == "no room for a checksum" else 16384,
    }
    stored = stored_by(lambda driver: driver.put_batch(together), **config)
    assert stored == stored_by(lambda driver: joined(driver.put(*together.each())), **config)
    assert (stored[0].queue_offset, len(stored[0].places)) == (1, 8 * len(items))


def test_a_batch_for_a_delay_level_is_placed_like_its_messages() -> None:
    """Entries of that topic hold delivery times; a prepared record has no place in a queue."""
    for topic, sys_flag in (("SCHEDULE_TOPIC_XXXX", 0), ("T", 4)):
        together = batch(
            message(topic=topic, queue_id=2, sys_flag=sys_flag),
            [item(b"DELAY\x013\x02"), item(b"DELAY\x014\x02")],
        )
        with (
            Driver(small(ROOT), MemoryFs(), threaded=False) as one,
            Driver(small(ROOT), MemoryFs(), threaded=False) as other,
        ):
            assert one.put_batch(together) == joined(other.put(*together.each()))
            assert one.store.entries(topic, 2, 0, 9) == other.store.entries(topic, 2, 0, 9)


@pytest.mark.parametrize(
    "refused",
    [
        batch(message(), []),
        batch(message(queue_id=2**40), [item(b"")]),
        batch(message(topic="a/b"), [item(b"")]),
        batch(message(), [item(b""), item(b"K\x01" + bytes(32767))]),
        batch(message(), [item(b"", bytes(4000)) for _ in range(5)]),
    ],
    ids=["empty", "queue id", "topic", "properties", "more than a segment"],
)
def test_a_batch_with_something_that_fits_no_record_is_refused_as_a_whole(
    driver: Driver, refused: NewBatch
) -> None:
    driver.put(message("before"))
    with pytest.raises(InvalidOption):
        driver.put_batch(refused)
    assert driver.put(message("after"))[0].queue_offset == 1
    assert driver.bodies() == [b"before", b"after"]


def test_batch_has_consecutive_offsets_in_one_segment(driver: Driver) -> None:
    driver.put(message(bytes(15000)))
    results = driver.put(*[message(bytes(500)) for _ in range(5)])
    assert [result.queue_offset for result in results] == [1, 2, 3, 4, 5]
    assert results[0].commitlog_offset == 16384
    assert len(driver.bodies()) == 6


def test_batch_is_stored_whole_or_not_at_all(driver: Driver) -> None:
    driver.put(message("before"))
    with pytest.raises(InvalidOption):
        driver.put(message("fine"), message("not", queue_id=2**40))
    with pytest.raises(InvalidOption):
        # more than a segment
        driver.put(*[message(bytes(4000)) for _ in range(5)])
    assert driver.put(message("after"))[0].queue_offset == 1
    assert driver.bodies() == [b"before", b"after"]


def test_empty_batch_and_oversized_properties_are_refused(driver: Driver) -> None:
    with pytest.raises(InvalidOption):
        driver.put()
    with pytest.raises(InvalidOption):
        driver.put(message("x", properties=bytes(32768)))


def test_properties_without_room_for_a_checksum_are_stored_without_one() -> None:
    with Driver(small(ROOT, segment_bytes=65536), MemoryFs(), threaded=False) as driver:
        properties = b"K\x01" + b"v" * 32764 + b"\x02"
        driver.put(message("x", properties=properties))
        assert driver.read_all()[0].properties == properties


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_status_of_an_offset(
    driver: Driver, offset: int, status: GetStatus, next_offset: int
) -> None:
    """Protocol text: broker, section 2."""
    for _ in range(3):
        driver.put(message())
    result = driver.store.get("T", 0, offset, 32, 10_000)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
        status,
        next_offset,
        0,
        3,
    )


def test_unknown_and_empty_queues_hold_nothing(driver: Driver) -> None:
    assert driver.store.get("nothing", 0, 0, 32, 1000).status is GetStatus.NO_MESSAGE_IN_QUEUE
    assert driver.store.max_offset("nothing", 0) == driver.store.min_offset("nothing", 0) == 0
    assert not list(driver.store.queues)


def test_first_message_comes_however_large_then_limits_hold(driver: Driver) -> None:
    for _ in range(10):
        driver.put(message(bytes(1000)))
    assert driver.store.get("T", 0, 0, 32, 10).count == 1
    assert driver.store.get("T", 0, 0, 4, 10**6).count == 4
    result = driver.store.get("T", 0, 0, 32, 3500)
    assert (result.count, result.next_offset) == (3, 3)
    assert result.size == sum(len(part) for part in result.parts) <= 3500


def test_tag_filter_moves_past_what_does_not_match(driver: Driver) -> None:
    for i in range(10):
        driver.put(message(f"{i}", tag="TagA" if i % 5 == 4 else "TagB"))
    wanted = frozenset({java_hash("TagA")})
    result = driver.store.get("T", 0, 0, 1, 10_000, wanted)
    assert (result.count, result.next_offset) == (1, 9)
    assert decode_stored(result.parts[0]).body == b"4"
    nothing = driver.store.get("T", 0, 5, 32, 10_000, frozenset({java_hash("TagC")}))
    assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)


def test_filter_looks_at_a_bounded_number_of_entries(driver: Driver) -> None:
    for _ in range(100):
        driver.put(*[message(tag="TagB") for _ in range(10)])
    result = driver.store.get("T", 0, 0, 32, 10_000, frozenset({1}))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


def test_transaction_records_are_in_the_log_but_in_no_queue(driver: Driver) -> None:
    prepared = driver.put(message("half", sys_flag=4))[0]
    committed = driver.put(message("whole", sys_flag=8))[0]
    driver.put(message("gone", sys_flag=12))
    assert (prepared.queue_offset, committed.queue_offset) == (0, 0)
    assert driver.bodies() == [b"whole"]
    record = driver.store.record_at(prepared.commitlog_offset)
    assert record is not None
    assert decode_stored(record).body == b"half"


def test_delayed_message_carries_its_delivery_time(driver: Driver) -> None:
    """In the entry, where the tag's hash stands otherwise; after a rebuild as well."""
    properties = b"TAGS\x01TagA\x02DELAY\x013\x02REAL_TOPIC\x01T\x02"
    result = driver.put(message("later", "SCHEDULE_TOPIC_XXXX", 2, properties=properties))[0]
    entry = driver.store.entries("SCHEDULE_TOPIC_XXXX", 2, 0, 1)[0]
    assert entry.tags_code == result.store_timestamp_ms + 10_000
    driver.close()
    fs = driver.fs
    assert isinstance(fs, MemoryFs)
    del fs.names[ROOT / "queues.json"]
    with Driver(small(ROOT), fs.copy(), threaded=False) as again:
        assert again.store.entries("SCHEDULE_TOPIC_XXXX", 2, 0, 1) == [entry]


def test_record_at_anything_but_a_record_is_none(driver: Driver) -> None:
    result = driver.put(message())[0]
    assert driver.store.record_at(result.commitlog_offset) is not None
    for offset in (1, result.size, 10**9, -5):
        assert driver.store.record_at(offset) is None


def test_offset_by_time(driver: Driver) -> None:
    clock = Clock()
    driver.store._appender._clock_ms = clock
    for _ in range(20):
        clock.now_ms += 10
        driver.put(message())
    start = clock.now_ms - 190

    def lower(timestamp_ms: int) -> int:
        return driver.store.offset_by_time("T", 0, timestamp_ms)

    def upper(timestamp_ms: int) -> int:
        return driver.store.offset_by_time("T", 0, timestamp_ms, upper=True)

    assert driver.store.store_time("T", 0, 4) == start + 40
    assert driver.store.store_time("T", 0, 99) == -1
    assert (lower(start - 5), lower(start + 40), lower(start + 41), lower(start + 999)) == (
        0,
        4,
        5,
        20,
    )
    assert (upper(start - 5), upper(start + 40), upper(start + 41), upper(start + 999)) == (
        0,
        4,
        4,
        19,
    )


def test_store_time_never_goes_back(driver: Driver) -> None:
    clock = Clock()
    driver.store._appender._clock_ms = clock
    first = driver.put(message())[0].store_timestamp_ms
    clock.now_ms -= 3_600_000
    assert driver.put(message())[0].store_timestamp_ms == first


def test_arrival_is_told_once_for_a_group_after_the_answers(driver: Driver) -> None:
    events: list[Any] = []
    driver.store.on_arrival = events.append
    for i in range(4):
        driver.store.put([message(queue_id=i % 2)], lambda answer: events.append("answered"))
    driver.store.submit()
    assert events == ["answered"] * 4 + [{("T", 0): 2, ("T", 1): 2}]


def test_answer_that_raises_does_not_cost_the_others_theirs(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = []

    def broken(answer: Any) -> None:
        raise RuntimeError("planted")

    driver.store.put([message()], broken)
    driver.store.put([message()], answers.append)
    driver.store.submit()
    assert len(answers) == 1
    assert "planted" in caplog.text


def test_too_many_waiting_bytes_are_refused() -> None:
    """Nothing is handed over here, so that everything waits."""
    with Driver(small(ROOT, max_waiting_bytes=5000), MemoryFs(), threaded=False) as driver:
        answers: list[Any] = []
        for _ in range(5):
            driver.store.put([message(bytes(1000))], answers.append)
        with pytest.raises(StoreBusy):
            driver.store.put([message(bytes(1000))], answers.append)
        driver.store.submit()
        driver.put(message("room again"))
        assert len(answers) == 5


def test_large_groups_hand_themselves_over(driver: Driver) -> None:
    answers: list[Any] = []
    for _ in range(9):
        driver.store.put([message(bytes(1000))], answers.append)
    assert len(answers) >= 7


def test_reads_come_from_memory_and_from_disk_alike(driver: Driver) -> None:
    bodies = [b"%d" % i + bytes(i * 7 % 900) for i in range(300)]
    for i, body in enumerate(bodies):
        driver.put(message(body, queue_id=i % 3))
    for queue_id in range(3):
        assert driver.bodies(queue_id=queue_id) == bodies[queue_id::3]
    assert len(driver.store.entries("T", 0, 0, 1000)) == 100


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_there_after_a_restart(clean: bool, tmp_path: Path) -> None:
    driver = Driver(small(tmp_path))
    bodies = [b"%d" % i + bytes(i * 7 % 900) for i in range(300)]
    for i, body in enumerate(bodies):
        driver.put(message(body, queue_id=i % 3))
    if clean:
        driver.close()
        assert not (tmp_path / "abort").exists()
    else:
        crash(driver)
        assert (tmp_path / "abort").exists()
    with Driver(small(tmp_path)) as again:
        for queue_id in range(3):
            assert again.bodies(queue_id=queue_id) == bodies[queue_id::3]
        assert again.put(message("next"))[0].queue_offset == 100


def test_clean_start_reads_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Driver(small(tmp_path)) as driver:
        for _ in range(200):
            driver.put(message(bytes(500)))
    monkeypatch.setattr("ogive.store.log_scan.native", None)
    monkeypatch.setattr("ogive.store.log_scan.read_record", lambda *_: pytest.fail("read a record"))
    with Driver(small(tmp_path)) as again:
        assert again.store.max_offset("T", 0) == 200


def test_sizes_of_an_existing_directory_count(tmp_path: Path) -> None:
    with Driver(small(tmp_path)) as driver:
        driver.put(message("a"))
    with Driver(small(tmp_path, segment_bytes=65536, consume_queue_file_bytes=2000)) as again:
        for i in range(100):
            again.put(message(bytes(500), queue_id=i % 2))
    sizes = {path.stat().st_size for path in (tmp_path / "commitlog").iterdir()}
    assert sizes == {small(tmp_path).segment_bytes}
    assert {
        path.stat().st_size for path in (tmp_path / "consumequeue").rglob("0*") if path.is_file()
    } == {320}


def test_apaches_extension_of_a_queue_goes_with_it(tmp_path: Path) -> None:
    """At the next start; that of queues that there are stays for Apache's broker."""
    with Driver(small(tmp_path)) as driver:
        for topic in ("T", "Deleted"):
            driver.put(message("a", topic))
        driver.store.topics.delete("Deleted")
    extension = tmp_path / "consumequeue_ext"
    for name in ("T/0", "T/1", "Deleted/0", "Unknown/7"):
        (extension / name).mkdir(parents=True)
        (extension / name / f"{0:020d}").write_bytes(bytes(100))
    with Driver(small(tmp_path)) as driver:
        assert driver.bodies() == [b"a"]
    assert [path.relative_to(extension) for path in extension.rglob("0*0")] == [
        Path(f"T/0/{0:020d}")
    ]
    assert [path.name for path in extension.iterdir()] == ["T"]


def test_a_file_in_the_place_of_an_extension_stops_no_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "consumequeue_ext").mkdir(parents=True)
    (tmp_path / "consumequeue_ext" / "notes").write_text("mine")
    with Driver(small(tmp_path)) as driver:
        driver.put(message("a"))
    assert "could not remove queue extension files without a queue" in caplog.text
    assert (tmp_path / "consumequeue_ext" / "notes").read_text() == "mine"


def test_deleted_topic_is_gone_and_starts_again_at_zero(tmp_path: Path) -> None:
    """Also when all derived files are made again later."""
    with Driver(small(tmp_path)) as driver:
        for i in range(40):
            driver.put(message(f"{i}", topic="Old"))
            driver.put(message(f"{i}", topic="Kept"))
        driver.store.topics.delete("Old")
        assert driver.store.max_offset("Old", 0) == 0
        assert driver.put(message("new", topic="Old"))[0].queue_offset == 0
    with Driver(small(tmp_path)) as again:
        assert again.bodies("Old") == [b"new"]
        assert len(again.bodies("Kept")) == 40
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            path.unlink()
    with Driver(small(tmp_path)) as rebuilt:
        assert rebuilt.bodies("Old") == [b"new"]
        assert len(rebuilt.bodies("Kept")) == 40


def delete(driver: Driver, topic: str) -> None:
    driver.store.topics.delete(topic)
    while not driver.store.topics.is_deletion_saved(topic):
        done: list[None] = []
        driver.store.sync(partial(done.append, None))
        driver.wait(done)


@pytest.mark.parametrize("table", ["whole", "damaged", "lost"])
@pytest.mark.parametrize("crashed", [False, True])
def test_a_deletion_outlives_the_list_of_queues(crashed: bool, table: str, tmp_path: Path) -> None:
    """The list can be made again, but the log does not know of deletions: they are in a table with
    a backup.
    """
    driver = Driver(small(tmp_path))
    driver.put(*[message(b"old", "T", queue) for queue in range(2)])
    delete(driver, "T")
    driver.put(message(b"new", "T"))
    driver.put(message(b"old", "Other"))
    delete(driver, "Other")
    if crashed:
        crash(driver)
    else:
        driver.close()
    file = tmp_path / "config" / "deletedTopics.json"
    if table == "damaged":
        file.write_bytes(file.read_bytes()[:-9])
    elif table == "lost":
        file.unlink()
    (tmp_path / "queues.json").unlink()
    assert verify(tmp_path).wrong_tables == (table == "damaged")
    for _ in range(2):
        with Driver(small(tmp_path)) as again:
            assert (again.bodies("T"), again.bodies("T", 1)) == ([b"new"], [])
            assert again.bodies("Other") == ([] if table == "whole" else [b"old"]), (
                "the backup is one version older"
            )


def test_deletions_in_another_log_count_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "deletedTopics.json").write_text('{"deleted":{"T":99999999,"U":"x"}}')
    with Driver(small(tmp_path)) as driver:
        driver.put(message(b"new"))
    (tmp_path / "queues.json").unlink()
    with Driver(small(tmp_path)) as again:
        assert again.bodies() == [b"new"]


def test_topic_that_is_made_again_shows_nothing_of_the_files_before(tmp_path: Path) -> None:
    """Whoever has read the old files has them open still, and the new ones have the same names."""
    with Driver(small(tmp_path)) as driver:
        for word in ("old", "new"):
            for i in range(40):
                driver.put(message(f"{word}{i}", topic="Again"))
            for i in range(200):
                # so that Again is not in memory any more
                driver.put(message(f"{i}", topic="Other"))
            assert driver.store._queues["Again", 0].tail_start == 40
            assert driver.bodies("Again") == [f"{word}{i}".encode() for i in range(40)]
            if word == "old":
                driver.store.topics.delete("Again")


def test_topic_that_is_made_again_while_old_messages_are_removed_keeps_its_files(
    tmp_path: Path,
) -> None:
    with Driver(small(tmp_path)) as driver:
        for i in range(40):
            driver.put(message(f"old{i}", topic="Again"))
        for i in range(200):
            driver.put(message(f"{i}", topic="Other"))
        removal = driver.store.retention.expire(driver.store.segment_bytes)
        while driver.store.min_offset("Again", 0) < 40:
            next(removal)
        driver.store.topics.delete("Again")
        for i in range(40):
            driver.put(message(f"new{i}", topic="Again"))
        for i in range(200):
            driver.put(message(f"{i}", topic="Other"))
        for _ in removal:
            pass
        for i in range(40):
            driver.put(message(f"more{i}", topic="Again"))
        assert driver.bodies("Again") == [
            f"{word}{i}".encode() for word in ("new", "more") for i in range(40)
        ]
    with Driver(small(tmp_path)) as again:
        assert len(again.bodies("Again")) == 80


def test_queues_whose_entries_are_on_disk_only_are_asked_for_together(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is never brought in is waited for in the end."""
    queues = range(5)
    for i in range(100):
        driver.put(*(message(f"{i}", queue_id=queue) for queue in queues))
    ends = [driver.store.max_offset("T", queue) for queue in queues]
    monkeypatch.setattr(ConsumeQueue, "in_memory", lambda queue, index, count: None)
    monkeypatch.setattr("ogive.store.retention.MAX_TRIES", 3)
    ColdDisk(driver.store).forget()
    steps = list(driver.store.retention.expire(driver.store.retention.full_segments[-1]))
    asked = [
        {place.path.parent.name for place in (step.place, *step.others)}
        for step in steps
        if step is not None
    ]
    assert asked == [{str(queue) for queue in queues}] * 3
    for queue in queues:
        assert (
            0
            < driver.store.min_offset("T", queue)
            < ends[queue]
            == driver.store.max_offset("T", queue)
        )


@pytest.mark.parametrize("name", ["../../out", "/out", "..", ".", "a\0b", "n" * 256])
def test_topic_that_names_no_directory_is_refused(driver: Driver, name: str) -> None:
    with pytest.raises(InvalidOption, match="cannot name a directory"):
        driver.put(message("x", topic=name))
    driver.put(message("y"))
    assert driver.bodies() == [b"y"]


@pytest.mark.parametrize("name", ["../../out", "a\0bcdefg"])
def test_record_whose_topic_names_no_directory_is_passed_over(tmp_path: Path, name: str) -> None:
    """As one that somebody put into a body may look behind damage: nothing is written or removed
    elsewhere.
    """
    root, outside = tmp_path / "a" / "store", tmp_path / "a" / "out" / "0"
    outside.mkdir(parents=True)
    (outside / "kept").touch()
    with Driver(small(root, record_crc=False)) as driver:
        driver.put(message("forged", topic="ZZZZZZZZZ"[: len(name)]))
        driver.put(message("fine"))
    log = root / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes().replace(b"ZZZZZZZZZ"[: len(name)], name.encode(), 1))
    (root / "queues.json").unlink()
    with Driver(small(root, record_crc=False)) as again:
        assert again.bodies() == [b"fine"]
        assert again.store.stats().damaged == 1
        assert name not in {topic for topic, _ in again.store.queues}
    assert (outside / "kept").exists()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["out", "store"]


def test_what_comes_after_a_deletion_is_kept_also_where_a_full_disk_had_taken_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(end: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with Driver(small(tmp_path)) as driver:
        driver.put(message("old", topic="T"))
        with monkeypatch.context() as full:
            full.setattr(driver.store._log_writer, "prepare", no_room)
            refused = driver.post(message("refused" * 20, topic="T"))
            driver.store.topics.delete("T")
            driver.wait(refused)
        assert isinstance(refused[0], StoreFull)
        driver.settle()
        monkeypatch.setattr(driver.store._full, "until_s", 0.0)
        driver.put(message("new", topic="T"))
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            path.unlink()
    with Driver(small(tmp_path)) as rebuilt:
        assert rebuilt.bodies("T") == [b"new"]


def test_ten_thousand_queues_need_few_open_files(tmp_path: Path) -> None:
    config = small(tmp_path, segment_bytes=1 << 20, flush_bytes=1 << 18, max_open_files=16)
    with Driver(config) as driver:
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        for i in range(1000):
            driver.put(
                message(topic=f"T{i}", queue_id=i % 4), message(topic=f"T{i}", queue_id=(i + 1) % 4)
            )
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 2 * 16 + 4
    with Driver(config) as again:
        assert len(list(again.store.queues)) == 2000


def test_queues_that_no_checkpoint_names_are_written_over_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill in the first life there may be forty thousand: to remove each directory and make
    it again costs seconds. What is no longer needed goes.
    """
    driver = Driver(small(tmp_path))
    for n in range(60):
        driver.put(message(b"%d" % n, queue_id=n % 3))
    crash(driver)
    (tmp_path / "queues.json").unlink(missing_ok=True)
    queue = tmp_path / "consumequeue" / "T" / "1"
    (queue / f"{320 * 7:020d}").write_bytes(b"x" * 320)
    with (queue / f"{320:020d}").open("r+b") as file:
        file.write(b"x" * 320)

    def refused(*_: object) -> None:
        raise AssertionError("a directory is removed")

    monkeypatch.setattr(OsFs, "remove_dir", refused)
    with Driver(small(tmp_path)) as again:
        assert again.bodies("T", 1) == [b"%d" % n for n in range(1, 60, 3)]
    assert [path.name for path in sorted(queue.iterdir())] == [f"{0:020d}", f"{320:020d}"]
    assert (queue / f"{320:020d}").read_bytes()[80:] == bytes(240)


BOOT = OsFs().boot_id()


@pytest.mark.parametrize(
    ("marker", "cut"),
    [
        ("1 async " + BOOT, False),
        ("1 async another-run", True),
        ("1 async ", True),
        ("1 sync another-run", False),
        ("1", True),
        ("", True),
        (None, False),
    ],
    ids=["killed", "power cut", "unknown", "power cut, sync", "as Apache's", "empty", "stopped"],
)
@pytest.mark.skipif(not BOOT, reason="no boot id")
def test_damage_ends_the_log_only_where_a_power_cut_may_have_come(
    marker: str | None, cut: bool, tmp_path: Path
) -> None:
    """With flush=async.

    The marker of the run before says how it synced and when; without that, this start's way counts.
    """
    driver = Driver(small(tmp_path, flush="async"))
    places = [driver.put(message(b"%d" % n))[0] for n in range(9)]
    crash(driver)
    (tmp_path / "queues.json").unlink(missing_ok=True)
    assert (tmp_path / "abort").read_text().split()[1:] == ["async", BOOT]
    if marker is None:
        (tmp_path / "abort").unlink()
    else:
        (tmp_path / "abort").write_text(marker)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(places[4].commitlog_offset + places[4].size - 30)
        file.write(b"\0")
    with Driver(small(tmp_path, flush="async")) as again:
        served = [b"0", b"1", b"2", b"3"]
        assert again.bodies() == (served if cut else [*served, b"5", b"6", b"7", b"8"])
        assert again.store.stats().damaged == (not cut)


def test_put_outside_start_and_close_is_refused() -> None:
    store = MessageStore.open(small(ROOT), fs=MemoryFs())
    with pytest.raises(IllegalStateError):
        store.put([message()], lambda answer: None)
    store.close()
    store.close()


def test_store_of_a_later_release_is_refused(driver: Driver) -> None:
    driver.close()
    fs = driver.fs
    assert isinstance(fs, MemoryFs)
    data = fs.names[ROOT / "queues.json"].data
    data[:] = as_file(bytes(data).partition(b',"body":')[2].rstrip()[:-1], 2)
    with pytest.raises(StoreCorrupt, match="later release"):
        MessageStore.open(small(ROOT), fs=fs.copy())


def test_a_damaged_format_number_is_no_later_release(driver: Driver) -> None:
    """The list of queues is derived from the log."""
    for i in range(3):
        driver.put(message(b"%d" % i))
    driver.close()
    fs = driver.fs
    assert isinstance(fs, MemoryFs)
    data = fs.names[ROOT / "queues.json"].data
    data[:] = data.replace(b'"format":1', b'"format":3')
    with Driver(small(ROOT), fs.copy()) as again:
        assert again.bodies() == [b"0", b"1", b"2"]


def test_no_checkpoint_is_written_after_a_sync_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system forgets what it could not write: the next sync succeeds, and a checkpoint behind
    it would tell of what is not there.
    """
    driver = Driver(small(tmp_path, flush="async"), threaded=False)
    driver.put(message("a"))
    checkpoint = tmp_path / "checkpoint"
    before = checkpoint.read_bytes() if checkpoint.exists() else b""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(driver.store._link, "post", waiting.append)
    driver.store._flushes.flush(checkpoint=True)
    driver.store._work.fail_by("syncing the commit log", OSError(errno.EIO, "input/output error"))
    for job in waiting:
        job()
    assert waiting
    assert (checkpoint.read_bytes() if checkpoint.exists() else b"") == before


def test_close_answers_what_waits(tmp_path: Path) -> None:
    driver = Driver(small(tmp_path))
    answers: list[Any] = []
    driver.store.put([message("last")], answers.append)
    driver.close()
    assert isinstance(answers[0][0], PutResult)
    with Driver(small(tmp_path)) as again:
        assert again.bodies() == [b"last"]


def test_directory_without_our_list_is_read_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that Apache's broker wrote: records without a checksum of their own, no
    queues.json.
    """
    with Driver(small(tmp_path, record_crc=False)) as driver:
        for i in range(100):
            driver.put(message(b"%d" % i + bytes(300)))
        bodies = driver.bodies()
    (tmp_path / "queues.json").unlink()
    with Driver(small(tmp_path)) as again:
        assert again.bodies() == bodies
        again.put(message("ours"))
    caplog.set_level(logging.ERROR)
    with Driver(small(tmp_path)) as third:
        assert third.bodies() == [*bodies, b"ours"]
        assert third.store.stats().damaged == 0
    assert not caplog.records


def test_configuration_is_checked() -> None:
    with pytest.raises(InvalidOption):
        StoreConfig(root=ROOT, segment_bytes=1000)
    with pytest.raises(InvalidOption):
        StoreConfig(root=ROOT, consume_queue_file_bytes=33)


def test_new_message_defaults() -> None:
    assert NewMessage("T", 0, b"x").born_host == bytes(8)


def test_sync_makes_everything_put_before_durable_also_in_async_mode() -> None:
    """The window of asynchronous flushing is far away; the sync is not waited for by anybody
    else.
    """
    fs = RecorderFs()
    with Driver(small(ROOT, flush="async", async_window_s=3600.0), fs, threaded=False) as driver:
        driver.put(message(b"kept"))
        syncs = sum(isinstance(operation, Sync) for operation in fs.operations)
        called: list[int] = []
        driver.store.sync(
            lambda: called.append(sum(isinstance(operation, Sync) for operation in fs.operations))
        )
        assert called == [syncs + 1]


def test_what_a_killed_run_left_unsynced_is_synced_before_a_checkpoint_says_so() -> None:
    """Else a power cut soon after the next start takes it away from before the checkpoint, and what
    is sent then stands behind a gap.
    """
    fs = RecorderFs()
    killed = Driver(small(ROOT, flush="async", async_window_s=3600.0), fs, threaded=False)
    sent = [b"%d" % n + bytes(700) for n in range(40)]
    for body in sent:
        killed.put(message(body))
    # as a killed process does; nothing is synced any more
    fs.close(killed.store._lock)
    with Driver(small(ROOT, flush="async", async_window_s=3600.0), fs, threaded=False) as started:
        assert started.bodies() == sent
        fs.ack("started")
        # power cuts are at random points of the history: most of them from here on
        fs.operations.extend([fs.operations[-1]] * 300)
        for disk, acked in images(fs, 100, random.Random(3)):
            if acked:
                with Driver(small(ROOT, flush="async"), disk, threaded=False) as again:
                    assert again.bodies() == sent


@pytest.mark.parametrize(
    ("call", "part"), [("create", "lock"), ("pwrite", "lock"), ("create", "abort")]
)
def test_a_disk_that_is_full_from_the_start_is_a_sentence_and_leaves_no_lock(
    call: str, part: str, tmp_path: Path
) -> None:
    full = FailFrom(call, part, nth=0, times=1, code=errno.ENOSPC)
    full.armed = True
    with pytest.raises(StoreUnusable, match=r"the store cannot be kept in .*: its disk is full"):
        MessageStore.open(small(tmp_path), fs=FaultyFs(full))
    assert full.failures == 1
    MessageStore.open(small(tmp_path)).close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EFBIG])
@pytest.mark.parametrize("part", ["commitlog", "consumequeue"])
def test_a_file_that_cannot_be_made_now_refuses_sends_and_ends_nothing(
    part: str, code: int, tmp_path: Path
) -> None:
    """Clients can use up a process's descriptors; what they connect with must not stop the store
    for good.
    """
    failing = FailFrom("create", part, nth=0, times=1, code=code)
    with Driver(
        small(tmp_path, segment_bytes=8 * 1024, ahead_bytes=1024), FaultyFs(failing)
    ) as driver:
        driver.put(message("before"))
        failing.armed = True
        kept = [b"before"]
        while not failing.failures:
            body = f"{len(kept)}" + "x" * 500
            answers = driver.post(message(body))
            driver.wait(answers)
            driver.settle()
            if not isinstance(answers[0], StoreFull):
                kept.append(body.encode())
        assert driver.store.failed is None
        # a second later
        driver.store._full.until_s = 1e-9
        driver.put(message("after"))
        assert driver.bodies() == [*kept, b"after"]
    with Driver(small(tmp_path)) as again:
        assert again.bodies() == [*kept, b"after"]


def test_a_flush_that_a_full_disk_refused_is_written_once_and_ends_no_other(tmp_path: Path) -> None:
    """Retention and a send both see that it is to be tried again; behind it comes the checkpoint
    that retention waits for.
    """
    full, now_s, writers = False, 0.0, list[OneByOne]()

    def fault(call: str, path: Path) -> None:
        if full and call in ("create", "pwrite") and "consumequeue" in path.parts:
            raise OSError(errno.ENOSPC, "no space")

    def writer(work: CommitWriter, most: int) -> OneByOne:
        writers.append(OneByOne(work, most))
        return writers[0]

    config = small(
        tmp_path,
        consume_queue_file_bytes=20 * 4096,
        hot_entries=16,
        hot_log_bytes=1024,
        checkpoint_bytes=1 << 30,
    )
    store = MessageStore.open(config, fs=FaultyFs(fault), clock_ms=Clock(), monotonic=lambda: now_s)
    store.start(run_now, writer=writer)
    stored: list[bytes] = []

    def put() -> None:
        body = b"%d." % len(stored) + bytes(100)
        store.put(
            [message(body)],
            lambda answer: None if isinstance(answer, StoreFull) else stored.append(body),
        )
        store.submit()

    def put_all(count: int) -> None:
        for _ in range(count):
            put()
            writers[0].run()

    put_all(100)
    full = True
    with pytest.raises(StoreFull):
        put_all(100)
    for _ in range(20):
        now_s += 1.1
        put_all(1)
    now_s += 1.1
    next(store.retention.expire(store.stats().commitlog_end), None)
    put()
    full = False
    # the flush is written, and the next one begins
    writers[0].step()
    writers[0].step()
    full = True
    writers[0].run()
    full = False
    now_s += 1.1
    put_all(200)
    assert store.failed is None
    assert [record.body for record in read_queue(store, "T", 0)] == stored
    store.close()


class DiesAfterUnlink(RecorderFs):
    """The process dies once it has removed a file of the log."""

    def record(self, operation: Operation) -> None:
        super().record(operation)
        if (
            isinstance(operation, Name)
            and operation.inode is None
            and operation.path.parent.name == "commitlog"
        ):
            raise KeyboardInterrupt


def test_a_death_while_segments_made_ahead_are_removed_does_not_stop_the_next_start() -> None:
    fs = MemoryFs()
    config = small(ROOT, segment_bytes=4096, ahead_bytes=16 * 1024)
    driver = Driver(config, fs, threaded=False)
    driver.put(message(b"kept"))
    crash(driver)
    dying = DiesAfterUnlink(fs)
    with pytest.raises(KeyboardInterrupt):
        MessageStore.open(config, fs=dying)
    with Driver(config, dying.copy(), threaded=False) as again:
        assert again.bodies() == [b"kept"]


class DiesAt(RecorderFs):
    """The process dies at its n-th change of a file."""

    def __init__(self, base: MemoryFs, nth: int) -> None:
        super().__init__(base)
        self._nth = nth

    def record(self, operation: Operation) -> None:
        super().record(operation)
        if len(self.operations) == self._nth:
            raise KeyboardInterrupt


def test_a_death_at_any_change_of_a_start_keeps_messages_and_sizes_of_files() -> None:
    """Of a log and a queue of one file each, where nothing else tells how large files are."""
    fs, config = MemoryFs(), small(ROOT)
    with Driver(config, fs, threaded=False) as driver:
        driver.put(message(b"first"))
    driver = Driver(config, fs, threaded=False)
    driver.put(message(b"second"))
    end, queue = driver.store.stats().commitlog_end, ROOT / "consumequeue/T/0" / f"{0:020d}"
    crash(driver)
    for path, at in ((ROOT / "commitlog" / f"{0:020d}", end), (queue, 2 * 20)):
        # what an unclean stop leaves
        fs.names[path].data[at : at + 30] = b"x" * 30
    deaths = 0
    for nth in itertools.count(1):
        dying = DiesAt(fs, nth)
        try:
            Driver(config, dying, threaded=False)
            break
        except KeyboardInterrupt:
            deaths += 1
        with Driver(config, dying.copy(), threaded=False) as again:
            assert again.bodies() == [b"first", b"second"]
            sizes = again.store.file_sizes
            assert (sizes.segment, sizes.queue_file) == (
                config.segment_bytes,
                config.consume_queue_file_bytes,
            )
    assert deaths > 5


def test_short_write_of_the_owner_is_answered_inside_submit(tmp_path: Path) -> None:
    """With flush=async, once the thread has opened the segment and written its zeros: nobody is
    woken for it.
    """
    with Driver(StoreConfig(root=tmp_path, flush="async")) as driver:
        give_up = time.monotonic() + 60.0
        while True:
            answers = driver.post(message())
            if answers and driver._reports.empty():
                break
            driver.wait(answers)
            driver.settle()
            assert time.monotonic() < give_up
        (result,) = answers
        assert isinstance(result, list)
        assert driver.store.max_offset("T", 0) == result[0].queue_offset + 1


def test_a_topic_has_queues_until_it_is_deleted(tmp_path: Path) -> None:
    """Asked without a look at all queues."""
    with Driver(small(tmp_path)) as driver:
        for queue_id in range(3):
            driver.put(message(b"x", "T", queue_id))
        driver.put(message(b"x", "U"))
        assert [driver.store.topics.has(topic) for topic in ("T", "U", "V")] == [True, True, False]
        driver.store.topics.delete("T")
        assert [driver.store.topics.has(topic) for topic in ("T", "U")] == [False, True]
        assert [driver.store.topics.was_deleted(topic) for topic in ("T", "U")] == [True, False]
    with Driver(small(tmp_path)) as driver:
        assert [driver.store.topics.has(topic) for topic in ("T", "U")] == [False, True]
        driver.put(message(b"x", "T"))
        assert driver.store.topics.has("T")


def test_what_just_fits_a_file_of_the_log_is_promised_room_and_stored(driver: Driver) -> None:
    """One byte more is refused, and so is as much if something is to come beside it."""

    def takes(check: Callable[[NewMessage], object], size: int) -> bool:
        try:
            check(message(b"x" * size))
        except InvalidOption:
            return False
        return True

    largest = next(size for size in range(16 * 1024, 0, -1) if takes(driver.put, size))
    assert takes(driver.store.check_fits, largest)
    assert not takes(driver.store.check_fits, largest + 1)
    for spare in (1, 100):
        assert takes(partial(driver.store.check_fits, spare_bytes=spare), largest - spare)
        assert not takes(partial(driver.store.check_fits, spare_bytes=spare), largest - spare + 1)
    assert driver.bodies() == [b"x" * largest]


def test_a_store_that_was_closed_takes_nothing() -> None:
    driver = Driver(small(ROOT), MemoryFs(), threaded=False)
    driver.close()
    with pytest.raises(IllegalStateError, match="the store is not running"):
        driver.put(message("late"))
