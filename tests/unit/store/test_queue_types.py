"""Topics of batches (queue.type=BatchCQ): a batch is one record and one entry, and its messages
have an offset each.
"""

import dataclasses
import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.errors import InvalidOption, StoreError
from ogive.store import GetResult, GetStatus, NewMessage
from ogive.store import checkpoint as checkpoints
from ogive.store.consumequeue import FILLER_SIZE, QueueFiles
from ogive.store.fs import OsFs
from ogive.store.queue_types import UNIT, UNIT_BYTES, BatchQueue, messages_in, topics_of_batches
from ogive.store.verify import repair, verify
from ogive.wire.codes import SysFlag
from ogive.wire.message import (
    WRAPPED,
    BatchItem,
    StoredMessage,
    decode_stored,
    encode_batch,
    encode_stored,
    java_hash,
    raw_property,
    unwrap,
)
from tests.chaos.recorder import MemoryFs
from tests.stores import HOST, Clock, Driver, batch, crash, message, small

PROPERTIES = (
    b"UNIQ_KEY\x01OUTER\x02CLUSTER\x01DefaultCluster\x02INNER_NUM\x013\x02INNER_BASE\x010\x02"
)
TOPIC = "Batches"


def whole(*bodies: bytes, topic: str = TOPIC, properties: bytes = b"") -> NewMessage:
    """A batch as the broker puts it: one record, without its first offset, which the store adds."""
    text = properties + b"UNIQ_KEY\x01OUTER\x02INNER_NUM\x01%d\x02" % len(bodies)
    return message(
        encode_batch([(0, body, b"") for body in bodies]), topic, properties=text, sys_flag=WRAPPED
    )


def numbered(first: int, count: int) -> NewMessage:
    return whole(*(b"%d" % n for n in range(first, first + count)))


def opened(
    root: Path, *, topic: str = TOPIC, clock: Clock | None = None, **changes: object
) -> Driver:
    """A store with one topic of batches, in its table of topics too."""
    write(root / "config" / "topics.json", table(topic))
    driver = Driver(small(root, **changes), clock=clock)
    driver.store.topics.make(topic, batches=True)
    return driver


def table(*batched: str) -> bytes:
    topics = {
        topic: {"topicName": topic, "attributes": {"queue.type": "BatchCQ"}} for topic in batched
    }
    return json.dumps(
        {"topicConfigTable": topics | {"Orders": {"topicName": "Orders", "attributes": {}}}}
    ).encode()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def contents(driver: Driver, topic: str = TOPIC) -> dict[int, bytes]:
    """Every message by its offset, batches taken apart."""
    return {
        each.queue_offset: each.body
        for record in driver.read_all(topic)
        for each in (unwrap(record) if record.sys_flag & WRAPPED == WRAPPED else (record,))
    }


def records_of(result: GetResult) -> list[StoredMessage]:
    raw, found = b"".join(result.parts), list[StoredMessage]()
    while raw:
        found.append(decode_stored(raw))
        raw = raw[found[-1].size :]
    return found


def expected(count: int, first: int = 0) -> dict[int, bytes]:
    return {n: b"%d" % n for n in range(first, count)}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Messages 0 to 2 in one record, 3 by itself, 4 to 8 in one."""
    made = opened(tmp_path)
    made.put(numbered(0, 3))
    made.put(message(b"3", TOPIC))
    made.put(numbered(4, 5))
    yield made
    made.close()


# --- the file -------------------------------------------------------------------------------------


def test_entry_is_apaches() -> None:
    """8 bytes offset, 4 size, 8 tags code, 8 store timestamp, 8 first offset, 2 messages, then -1
    and 0 in 4 bytes each.
    """
    entry = BatchQueue(("T", 0), Path("/T/0"), 4).entry(
        1048576, 189, 2598919, 1_700_000_000_000, 35, 10
    )
    assert (
        entry.hex()
        == "0000000000100000"
        + "000000bd"
        + "000000000027a807"
        + "0000018bcfe56800"
        + "0000000000000023"
        + "000a"
        + "ffffffff"
        + "00000000"
    )
    assert UNIT_BYTES == 46


def test_files_have_full_size_and_entries_side_by_side() -> None:
    fs = MemoryFs({}, {Path("/")})
    queue, files = BatchQueue(("T", 0), Path("/T/0"), 4, 7), QueueFiles(fs, 8)
    entries = [queue.entry(n * 100, 100, 0, 1, 7 + 5 * n, 5) for n in range(6)]
    for entry in entries:
        queue.append(entry, 5)
    assert (queue.min_offset, queue.max_offset, queue.first_index, queue.end) == (7, 37, 0, 6)
    written = queue.take_write()
    assert written is not None
    files.write([written])
    assert fs.list(Path("/T/0")) == [f"{0:020d}", f"{4 * 46:020d}"]
    assert fs.names[Path("/T/0") / f"{0:020d}"].data == b"".join(entries[:4])
    assert fs.names[Path("/T/0") / f"{4 * 46:020d}"].data == b"".join(entries[4:]) + bytes(2 * 46)
    files.close()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.data(),
)
def test_the_entry_of_an_offset_is_found_whatever_is_missing(
    runs: list[tuple[int, int]], file_entries: int, data: st.DataObject
) -> None:
    """It is the first that ends behind the offset: of gaps between batches, and of files that are
    not there, too.
    """
    queue = BatchQueue(("T", 0), Path("/T/0"), file_entries)
    ends: list[int] = []
    for gap, count in runs:
        queue.max_offset += gap
        queue.append(queue.entry(len(ends), 100, 0, 1, queue.max_offset, count), count)
        ends.append(queue.max_offset)
    missing = data.draw(st.sets(st.integers(0, len(ends) // file_entries)))

    def read(index: int) -> bytes:
        return b"" if index // file_entries in missing else queue.in_memory(index, 1) or b""

    there = [n for n in range(len(ends)) if n // file_entries not in missing]
    for offset in range(queue.max_offset + 1):
        index = queue.index_of(offset, read)
        right = next((n for n in there if ends[n] > offset), len(ends))
        assert index == right or all(n // file_entries in missing for n in range(index, right))
        first = ends[right] - runs[right][1] if right < len(ends) else queue.max_offset
        assert queue.offset_at(index, read) == first


# --- puts and pulls -------------------------------------------------------------------------------


def test_a_batch_is_one_record_with_an_offset_for_each_message(driver: Driver) -> None:
    (result,) = driver.put(numbered(9, 2))
    assert (result.queue_offset, driver.store.max_offset(TOPIC, 0)) == (9, 11)
    records = driver.read_all(TOPIC)
    assert [
        (record.queue_offset, raw_property(record.properties, b"INNER_BASE")) for record in records
    ] == [
        (0, b"0"),
        (3, None),
        (4, b"4"),
        (9, b"9"),
    ]
    assert contents(driver) == expected(11)
    assert driver.store.stats().puts == 11


@pytest.mark.parametrize(
    ("offset", "most", "next_offset", "firsts"),
    [
        (0, 32, 9, [0, 3, 4]),
        (1, 1, 3, [0]),
        (2, 4, 4, [0, 3]),
        (2, 8, 4, [0, 3]),
        (3, 32, 9, [3, 4]),
        (8, 1, 9, [4]),
    ],
)
def test_a_pull_inside_a_batch_gives_the_whole_record(
    driver: Driver, offset: int, most: int, next_offset: int, firsts: list[int]
) -> None:
    """A further record comes as long as there are no more messages than were asked for.

    Source: isTheBatchFull.
    """
    result = driver.store.get(TOPIC, 0, offset, most, 1 << 20)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (
        GetStatus.FOUND,
        next_offset,
        0,
        9,
    )
    sizes = {0: 3, 3: 1, 4: 5}
    assert (result.count, result.count + result.more) == (
        len(firsts),
        sum(sizes[first] for first in firsts),
    )


def test_bounds_are_those_of_messages(driver: Driver) -> None:
    found = [driver.store.get(TOPIC, 0, offset, 32, 1 << 20) for offset in (9, 10)]
    assert [(result.status, result.next_offset) for result in found] == [
        (GetStatus.OFFSET_OVERFLOW_ONE, 9),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 9),
    ]
    # bytes: the first record comes however large it is
    assert driver.store.get(TOPIC, 0, 0, 32, 10).next_offset == 3


def test_a_tag_is_that_of_the_batch_not_of_its_messages(driver: Driver) -> None:
    """So a filter passes over batches whose messages have the tag: Apache's clients give a batch
    none.
    """
    driver.put(message(b"9", TOPIC, tag="a"))
    driver.put(whole(b"10", b"11", properties=b"TAGS\x01a\x02"))
    wanted = frozenset({java_hash("a")})
    result = driver.store.get(TOPIC, 0, 1, 32, 1 << 20, wanted)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 2, 12)
    none = driver.store.get(TOPIC, 0, 1, 32, 1 << 20, frozenset({7}))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 12)


def test_messages_that_came_together_without_a_key_of_the_batch_are_single_records(
    driver: Driver,
) -> None:
    result = driver.put_batch(
        batch(message(topic=TOPIC), [BatchItem(0, b"9", b""), BatchItem(0, b"10", b"")])
    )
    assert (result.queue_offset, len(result.places)) == (9, 16)
    assert contents(driver) == expected(11)


def test_messages_for_several_topics_in_one_write(driver: Driver) -> None:
    """As the end of a transaction is, with its mark."""
    for n in (9, 10):
        results = driver.put(message(b"%d" % n, TOPIC), message(b"mark", "Orders"))
        assert [result.queue_offset for result in results] == [n, n - 9]
    assert contents(driver) == expected(11)
    assert driver.bodies("Orders") == [b"mark"] * 2


def test_times_and_entries_are_those_of_records(tmp_path: Path) -> None:
    clock = Clock(1000)
    driver = opened(tmp_path, clock=clock)
    for first in (0, 10, 20):
        driver.put(numbered(first, 10))
        clock.now_ms += 1000
    store = driver.store
    base = store.store_time(TOPIC, 0, 0)
    assert [store.store_time(TOPIC, 0, n) - base for n in (9, 10, 19, 29)] == [0, 1000, 1000, 2000]
    assert store.store_time(TOPIC, 0, 30) == -1
    assert [store.offset_by_time(TOPIC, 0, base + ms) for ms in (-5, 0, 1, 1000, 2000, 2001)] == [
        0,
        0,
        10,
        10,
        20,
        30,
    ]
    assert [
        store.offset_by_time(TOPIC, 0, base + ms, upper=True) for ms in (-5, 0, 1500, 5000)
    ] == [0, 9, 19, 29]
    found = [
        [entry.commitlog_offset for entry in store.entries(TOPIC, 0, *span)]
        for span in ((0, 100), (0, 3), (9, 2), (15, 100), (30, 9))
    ]
    assert found == [found[0], found[0][:1], found[0][:2], found[0][1:], []]
    assert len(found[0]) == 3
    driver.close()


def test_a_batch_is_found_by_its_own_key(driver: Driver) -> None:
    found = [
        record
        for record in driver.store.find_key(TOPIC, "OUTER", 0, 1 << 62)
        if isinstance(record, bytes)
    ]
    assert len(found) == 2


@pytest.mark.parametrize("count", [b"0", b"-1", b"32768", b"99999999", b"x", b""])
def test_a_count_that_apaches_broker_could_not_read_is_refused(
    driver: Driver, count: bytes
) -> None:
    """INNER_NUM is a short there: one that is none would end its log."""
    bad = message(b"", TOPIC, sys_flag=WRAPPED, properties=b"INNER_NUM\x01%b\x02" % count)
    with pytest.raises(InvalidOption, match="needs the property INNER_NUM, from 1 to 32767"):
        driver.put(bad)
    driver.put(message(b"9", TOPIC))
    assert contents(driver) == expected(10)


def test_a_batch_of_as_many_messages_as_a_short_can_say(driver: Driver) -> None:
    driver.put(message(b"", TOPIC, sys_flag=WRAPPED, properties=b"INNER_NUM\x0132767\x02"))
    assert driver.store.max_offset(TOPIC, 0) == 9 + 32767
    assert driver.store.get(TOPIC, 0, 20_000, 1, 1).next_offset == 9 + 32767


@pytest.mark.parametrize(
    ("flags", "properties", "count"),
    [
        (0, b"INNER_NUM\x017\x02INNER_BASE\x010\x02", 1),
        (WRAPPED, PROPERTIES, 3),
        (WRAPPED, b"INNER_NUM\x017\x02", 1),
        (SysFlag.INNER_BATCH, b"INNER_NUM\x0140000\x02INNER_BASE\x010\x02", 0),
    ],
)
def test_how_many_messages_a_record_counts_as(flags: int, properties: bytes, count: int) -> None:
    assert messages_in(flags, properties) == count


# --- starts ---------------------------------------------------------------------------------------


def fill(driver: Driver, until: int) -> None:
    first = driver.store.max_offset(TOPIC, 0)
    for sizes in itertools.cycle((1, 7, 20)):
        if first >= until:
            return
        count = min(sizes, until - first)
        driver.put(numbered(first, count) if count > 1 else message(b"%d" % first, TOPIC))
        first += count


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("lost", ["nothing", "list", "files", "a file", "spoiled", "torn", "cut"])
def test_everything_is_there_after_a_restart(clean: bool, lost: str, tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 2_000)
    if clean:
        driver.close()
    else:
        crash(driver)
    directory = tmp_path / "batchconsumequeue" / TOPIC / "0"
    files = sorted(directory.iterdir())
    assert len(files) > 5
    assert {file.stat().st_size for file in files} == {46 * 16}
    if lost == "list":
        (tmp_path / "queues.json").unlink()
    elif lost == "files":
        for file in files:
            file.unlink()
    elif lost == "a file":
        files[2].unlink()
    elif lost == "spoiled":
        spoiled = bytearray(files[1].read_bytes())
        spoiled[35] ^= 1
        files[1].write_bytes(spoiled)
    elif lost == "torn":
        raw = files[-1].read_bytes()
        files[-1].write_bytes(raw[:50] + bytes(len(raw) - 50))
    elif lost == "cut":
        files[-1].write_bytes(files[-1].read_bytes()[:100])
    for _ in range(2):
        again = Driver(small(tmp_path))
        assert again.store.stats().damaged == 0
        assert contents(again) == expected(2_000)
        assert [again.store.get(TOPIC, 0, n, 1, 1).next_offset > n for n in range(2_000)].count(
            False
        ) == 0
        again.close()
    assert verify(tmp_path).problems == []
    more = Driver(small(tmp_path))
    fill(more, 2_100)
    assert contents(more) == expected(2_100)
    more.close()


def test_no_queue_of_it_is_in_consumequeue(driver: Driver, tmp_path: Path) -> None:
    """Apache's broker would not start."""
    driver.close()
    assert [path.name for path in (tmp_path / "batchconsumequeue").iterdir()] == [TOPIC]
    assert not any((tmp_path / "consumequeue").iterdir())


def test_damage_between_batches_leaves_a_gap_and_nothing_else(tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 200)
    places = driver.store.entries(TOPIC, 0, 0, 1000)
    crash(driver)
    (tmp_path / "queues.json").unlink(missing_ok=True)
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        # 56 by itself, 57 to 63, 64 to 83: the record of 57 to 63
        file.seek(places[7].commitlog_offset + 100)
        file.write(b"\xff" * 20)
    again = Driver(small(tmp_path))
    assert again.store.stats().damaged == 1
    assert contents(again) == {n: body for n, body in expected(200).items() if not 57 <= n < 64}
    assert again.store.get(TOPIC, 0, 60, 1, 1).next_offset == 84
    again.close()
    fine = [problem for problem in verify(tmp_path).problems if "queue" in problem]
    assert fine == []


def test_offsets_whose_records_are_gone_are_not_given_out_again(tmp_path: Path) -> None:
    """The files are all that knows of them where there is no list of queues: an entry without a
    record says where the queue goes on.
    """
    directory = tmp_path / "batchconsumequeue" / TOPIC / "0"
    write(tmp_path / "config" / "topics.json", table(TOPIC))
    write(
        directory / f"{46 * 16:020d}", UNIT.pack(10, 100, 0, 1, 40, 10, -1, 0).ljust(46 * 16, b"\0")
    )
    driver = Driver(small(tmp_path))
    assert (driver.store.min_offset(TOPIC, 0), driver.store.max_offset(TOPIC, 0)) == (50, 50)
    assert UNIT.unpack((directory / f"{0:020d}").read_bytes()[:46]) == (
        0,
        FILLER_SIZE,
        0,
        0,
        49,
        1,
        -1,
        0,
    )
    driver.put(numbered(50, 3))
    assert [driver.store.offset_by_time(TOPIC, 0, 0, upper) for upper in (False, True)] == [50, 50]
    driver.close()
    for lost in (False, True):
        if lost:
            (tmp_path / "queues.json").unlink()
        again = Driver(small(tmp_path))
        assert contents(again) == {50: b"50", 51: b"51", 52: b"52"}
        again.close()


# --- retention and deletion -----------------------------------------------------------------------


def expire(driver: Driver, until: int) -> None:
    for _ in driver.store.retention.expire(until):
        driver.settle()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_old_records_go_with_their_entries(clean: bool, tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 3_000)
    store, directory = driver.store, tmp_path / "batchconsumequeue" / TOPIC / "0"
    before = len(list(directory.iterdir()))
    expire(driver, 3 * store.segment_bytes)
    low = store.min_offset(TOPIC, 0)
    assert 0 < low < 3_000
    assert contents(driver) == expected(3_000, low)
    assert (store.get(TOPIC, 0, low - 1, 1, 1).status, store.get(TOPIC, 0, low, 1, 1).status) == (
        GetStatus.OFFSET_TOO_SMALL,
        GetStatus.FOUND,
    )
    if clean:
        driver.close()
        assert len(list(directory.iterdir())) < before
        assert f"{0:020d}" not in {path.name for path in directory.iterdir()}
    else:
        crash(driver)
    for _ in range(2):
        again = Driver(small(tmp_path))
        assert contents(again) == expected(3_000, low)
        assert again.store.offset_by_time(TOPIC, 0, 0) == low
        again.close()
        assert verify(tmp_path).problems == []
        (tmp_path / "queues.json").unlink()


def test_a_queue_whose_records_all_went_goes_on_behind_them(tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 50)
    while driver.store.stats().commitlog_end < 3 * driver.store.segment_bytes:
        driver.put(message(bytes(1000), "Orders"))
    expire(driver, 2 * driver.store.segment_bytes)
    assert (driver.store.min_offset(TOPIC, 0), driver.store.max_offset(TOPIC, 0)) == (50, 50)
    driver.close()
    again = Driver(small(tmp_path))
    again.put(numbered(50, 4))
    assert contents(again) == expected(54, 50)
    again.close()


def test_a_topic_can_be_made_again_as_either_kind(tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 30)
    for batches in (False, True):
        driver.store.topics.delete(TOPIC)
        driver.settle()
        driver.store.topics.make(TOPIC, batches=batches)
        write(tmp_path / "config" / "topics.json", table(TOPIC) if batches else table())
        driver.put(message(b"0", TOPIC))
        if batches:
            driver.put(numbered(1, 3))
        wanted = expected(4 if batches else 1)
        assert contents(driver) == wanted
        driver.close()
        assert verify(tmp_path).problems == []
        (tmp_path / "queues.json").unlink(missing_ok=batches)
        driver = Driver(small(tmp_path))
        if not batches:
            assert driver.bodies(TOPIC)[-1] == b"0"
    driver.close()


def test_queues_of_the_other_kind_are_forgotten_where_a_topic_is_made(tmp_path: Path) -> None:
    """They are what is left of a topic whose table was lost."""
    driver = Driver(small(tmp_path))
    driver.put(message(b"old", TOPIC))
    driver.store.topics.make(TOPIC, batches=True)
    driver.put(numbered(0, 2))
    assert contents(driver) == expected(2)
    driver.store.topics.make(TOPIC, batches=True)
    assert contents(driver) == expected(2)
    driver.close()


# --- directories of Apache's broker ---------------------------------------------------------------


def record(
    topic: str,
    offset: int,
    at: int,
    *,
    body: bytes = b"plain",
    flags: int = 0,
    properties: bytes = b"UNIQ_KEY\x01A\x02",
) -> bytes:
    """As it stands at *at* in Apache's log."""
    stored = StoredMessage(
        topic,
        body,
        properties,
        queue_offset=offset,
        commitlog_offset=at,
        sys_flag=flags,
        born_host=HOST,
        store_host=HOST,
        born_timestamp_ms=1_700_000_000_000,
        store_timestamp_ms=1_700_000_000_000,
    )
    return encode_stored(stored)


def apaches_store(
    root: Path, *topics: str, name: str = "topics.json", inner: bytes = PROPERTIES
) -> Path:
    """Batches: three messages in one record, then one that was sent by itself.

    Orders: two messages, one before and one behind.
    """
    batch = encode_batch([(0, b"%d" % n, b"") for n in range(3)])
    log = record("Orders", 0, 0)
    log += record("Batches", 0, len(log), body=batch, flags=0xC0, properties=inner)
    log += record("Orders", 1, len(log))
    if topics:
        log += record("Batches", 3, len(log))
    write(root / "commitlog" / f"{0:020d}", log.ljust(16 * 1024, b"\0"))
    write(root / "batchconsumequeue" / "Batches" / "0" / f"{0:020d}", bytes(46 * 20))
    if name:
        write(root / "config" / name, table(*topics))
    return root


@pytest.mark.parametrize("name", ["topics.json", "topics.json.bak", ""])
def test_a_directory_of_apaches_opens(tmp_path: Path, name: str) -> None:
    """Its own file size counts.

    Where no table of topics can be read, batchconsumequeue/ tells which they are.
    """
    root = apaches_store(tmp_path, TOPIC, name=name)
    driver = Driver(small(root))
    assert contents(driver) == {0: b"0", 1: b"1", 2: b"2", 3: b"plain"}
    assert driver.bodies("Orders") == [b"plain", b"plain"]
    assert driver.store.file_sizes.batch_queue_file == 46 * 20
    driver.close()
    assert ["table of topics" in problem for problem in verify(root).problems] == (
        [] if name == "topics.json" else [True]
    )


def test_a_queue_in_the_wrong_place_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Apache's broker does not start where it finds one."""
    root = apaches_store(tmp_path, TOPIC)
    write(root / "consumequeue" / TOPIC / "0" / f"{0:020d}", bytes(20 * 16))
    write(root / "batchconsumequeue" / "Orders" / "3" / f"{0:020d}", bytes(46 * 20))
    with caplog.at_level(logging.WARNING):
        Driver(small(root)).close()
    assert caplog.text.count("the queues of its topic are stored elsewhere") == 2
    assert not any((root / "consumequeue" / TOPIC).iterdir())
    assert not any((root / "batchconsumequeue" / "Orders").iterdir())


def test_a_record_with_a_count_that_cannot_be_is_passed_over(tmp_path: Path) -> None:
    root = apaches_store(tmp_path, TOPIC, inner=b"INNER_NUM\x0140000\x02INNER_BASE\x010\x02")
    driver = Driver(small(root))
    assert contents(driver) == {3: b"plain"}
    assert driver.store.stats().damaged == 1
    driver.close()


def test_what_a_deleted_topic_of_batches_left_in_the_log_is_passed_over(tmp_path: Path) -> None:
    """An entry for it would be one message with the body of three.

    What is around it is served, and the name can be used again.
    """
    root = apaches_store(tmp_path)
    driver = Driver(small(root))
    assert driver.bodies("Orders") == [b"plain", b"plain"]
    assert driver.store.max_offset("Batches", 0) == 0
    driver.put(message("new", "Batches"))
    assert [(r.queue_offset, r.body) for r in driver.read_all("Batches")] == [(0, b"new")]
    driver.close()
    assert verify(root).problems == []
    before, after = repair(root)
    assert (before.problems, after.problems) == ([], [])
    again = Driver(small(root))
    assert (again.bodies("Orders"), again.bodies("Batches")) == ([b"plain", b"plain"], [b"new"])
    again.close()


@pytest.mark.parametrize(
    "text",
    [
        '{"topicConfigTable":{"B":{"attributes":{"queue.type":"SimpleCQ"}}}}',
        '{"topicConfigTable":{"B":{"attributes":["queue.type"]},"C":7}}',
        '{"topicConfigTable":[]}',
        "[]",
        "no JSON",
        "",
    ],
)
def test_other_tables_of_topics_name_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "config" / "topics.json", text.encode())
    assert (
        topics_of_batches(
            MemoryFs({tmp_path / "config" / "topics.json": bytearray(text.encode())}), tmp_path
        )
        == set()
    )
    Driver(small(tmp_path)).close()


def test_a_start_with_another_table_of_topics_loses_nothing(tmp_path: Path) -> None:
    """What it says in between is an ordinary topic's; with the right table all is there again, and
    no offset is given out twice.
    """
    driver = opened(tmp_path)
    fill(driver, 100)
    driver.put(message(b"o", "Orders"))
    driver.close()
    for batched in ((), ("Orders", TOPIC), (), (TOPIC,)):
        write(tmp_path / "config" / "topics.json", table(*batched))
        driver = Driver(small(tmp_path))
        assert driver.store.max_offset(TOPIC, 0) == 100
        assert driver.bodies("Orders") == [b"o"]
        driver.close()
    again = Driver(small(tmp_path))
    assert contents(again) == expected(100)
    fill(again, 110)
    assert contents(again) == expected(110)
    again.close()
    assert verify(tmp_path).problems == []


def test_a_queue_whose_kind_changed_takes_no_room_for_what_it_never_held(tmp_path: Path) -> None:
    """A batch's messages are smaller than records: entries for all of them might not fit into
    memory.
    """
    driver = opened(tmp_path)
    driver.put(message(b"0", TOPIC))
    for _ in range(10):
        driver.put(whole(*[b""] * 500))
    assert driver.store.max_offset(TOPIC, 0) == 5001
    driver.close()
    write(tmp_path / "config" / "topics.json", table())
    driver = Driver(small(tmp_path))
    assert (driver.store.min_offset(TOPIC, 0), driver.store.max_offset(TOPIC, 0)) == (5001, 5001)
    driver.close()


@pytest.mark.parametrize("size", [3, 30], ids=["small", "large"])
@pytest.mark.parametrize(
    "damage",
    [bytes(46), b"\xff" * 46, b"\0" * 28 + b"\x7f" * 10 + b"\0" * 8],
    ids=["zeros", "ones", "far"],
)
def test_a_file_that_is_damaged_while_the_store_runs_loses_its_own_entries_only(
    tmp_path: Path, damage: bytes, size: int
) -> None:
    driver = opened(tmp_path, hot_entries=0)
    for first in range(0, 30 * size, size):
        driver.put(numbered(first, size))
    driver.close()
    driver = Driver(small(tmp_path, hot_entries=0))
    file = min((tmp_path / "batchconsumequeue" / TOPIC / "0").iterdir())
    raw = file.read_bytes()
    file.write_bytes(raw[: 46 * 5] + damage + raw[46 * 6 :])
    lost = range(5 * size, 6 * size)
    for start in (0, 4 * size, 4 * size + 1, 5 * size, 6 * size, 20 * size):
        offset, found = start, []
        while offset < 30 * size:
            result = driver.store.get(TOPIC, 0, offset, 32, 1 << 20)
            assert result.next_offset > offset
            found += [m.queue_offset for r in records_of(result) for m in unwrap(r)]
            offset = result.next_offset
        assert sorted(set(found)) == [
            n for n in range(start - start % size, 30 * size) if n not in lost
        ]
    driver.close()


@pytest.mark.parametrize("topic", [TOPIC, "Usual"])
@pytest.mark.parametrize("odd", [0, 7])
def test_what_a_queue_file_lost_while_the_store_runs_is_not_passed_over(
    tmp_path: Path, topic: str, odd: int
) -> None:
    """Whoever passed over it would never see messages that the log has.

    After a start all are there.
    """
    driver = opened(tmp_path, hot_entries=0)
    for _ in range(12):
        driver.put(message(b"m", topic))
    driver.close()
    driver = Driver(small(tmp_path, hot_entries=0))
    (file,) = tmp_path.glob(f"*consumequeue/{topic}/0/*")
    with file.open("r+b") as cut:
        cut.truncate((46 if topic == TOPIC else 20) * 5 + odd)
    with pytest.raises(StoreError, match="was cut, the next start makes it again"):
        driver.store.get(topic, 0, 7, 32, 1 << 20)
    driver.close()
    again = Driver(small(tmp_path))
    assert again.bodies(topic) == [b"m"] * 12
    again.close()


# --- verify and repair ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("offset", "queue 0 of Batches does not say what the log says, from offset 57 on"),
        ("end", "queue 0 of Batches has no entries from offset 2688 on"),
        ("directory", "queue 0 of Batches has no entries from offset 0 on"),
    ],
)
def test_wrong_entries_are_told_and_mended(tmp_path: Path, wrong: str, told: str) -> None:
    driver = opened(tmp_path)
    fill(driver, 3_000)
    driver.close()
    directory = tmp_path / "batchconsumequeue" / TOPIC / "0"
    files = sorted(directory.iterdir())
    if wrong == "offset":
        raw = bytearray(files[0].read_bytes())
        raw[7 * 46 + 35] ^= 1
        files[0].write_bytes(raw)
    elif wrong == "end":
        for file in files[-3:]:
            file.unlink()
    else:
        for file in files:
            file.unlink()
    before, after = repair(tmp_path)
    assert (before.problems, before.wrong_queues, after.problems) == ([told], 1, [])
    again = Driver(small(tmp_path))
    assert contents(again) == expected(3_000)
    again.close()


def test_a_queue_that_the_list_does_not_know_is_told_and_mended(tmp_path: Path) -> None:
    driver = opened(tmp_path)
    fill(driver, 100)
    driver.put(message(b"o", "Orders"))
    driver.close()
    state = checkpoints.load(OsFs(), tmp_path)
    assert state is not None
    checkpoints.save(OsFs(), tmp_path, dataclasses.replace(state, queues=()))
    for topic in ("batchconsumequeue/" + TOPIC, "consumequeue/Orders"):
        shutil.rmtree(tmp_path / topic)
    before, after = repair(tmp_path)
    assert (len(before.problems), after.problems) == (2, [])
    again = Driver(small(tmp_path))
    assert (contents(again), again.bodies("Orders")) == (expected(100), [b"o"])
    again.close()
