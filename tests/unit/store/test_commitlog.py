"""Files of the log that are made, and reading the log behind the part in memory."""

import errno
import os
from pathlib import Path

import pytest

from ogive.native import native
from ogive.store import GetStatus, OsFs, commitlog
from ogive.store.commitlog import LogWriter, ReadRuns, Run
from ogive.store.consumequeue import ENTRY, ENTRY_BYTES
from ogive.store.file_reader import Cold, Place
from ogive.store.fs import Data
from tests.chaos.faults import FailFrom, FaultyFs
from tests.stores import Driver, message, small

QUEUES = 4


class CountingFs(OsFs):
    """Counts the bytes that are read of the log."""

    def __init__(self) -> None:
        self.logs: set[int] = set()
        self.log_bytes = 0

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        (self.logs.add if path.parent.name == "commitlog" else self.logs.discard)(handle)
        return handle

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.log_bytes += size if handle in self.logs else 0
        return super().pread(handle, size, offset)


def filled(tmp_path: Path, fs: OsFs) -> Driver:
    """40 messages in each of four queues, mixed in the log; hardly any of them in memory."""
    driver = Driver(
        small(tmp_path, flush="async", segment_bytes=512 * 1024, hot_log_bytes=4 * 1024), fs
    )
    for n in range(40):
        for queue_id in range(QUEUES):
            driver.put(message(f"{queue_id}/{n} " + "x" * 300, queue_id=queue_id))
    return driver


def test_queues_that_stand_mixed_in_the_log_bring_it_in_once(tmp_path: Path) -> None:
    fs = CountingFs()
    driver = filled(tmp_path, fs)
    sizes = []
    for queue_id in range(QUEUES):
        before = fs.log_bytes
        result = driver.store.get("T", queue_id, 0, 20, 1 << 20)
        assert result.count == 20
        sizes.append(fs.log_bytes - before)
    assert sizes[0] > 19 * QUEUES * 300
    # the last record, behind what the first queue read
    assert max(sizes[1:]) < 4 * 1024
    for queue_id in range(QUEUES):
        assert driver.bodies(queue_id=queue_id) == [
            f"{queue_id}/{n} ".encode() + b"x" * 300 for n in range(40)
        ]
    driver.close()


@pytest.mark.parametrize("reader", [0, 1])
def test_what_was_read_with_damage_in_it_is_read_again(reader: int, tmp_path: Path) -> None:
    """Only the damaged record is missing, for its own queue; and once the disk gives the right
    bytes again, it is there.
    """
    driver = filled(tmp_path, OsFs())
    log = tmp_path / "commitlog" / f"{0:020d}"
    good = log.read_bytes()
    at = good.index(b"1/7 ")
    log.write_bytes(good[:at] + b"?" + good[at + 1 :])
    for queue_id in (reader, 1):
        found = driver.store.get("T", queue_id, 0, 20, 1 << 20)
        assert found.count == (19 if queue_id == 1 else 20)
        assert (b"1/6 " in b"".join(found.parts), b"1/7 " in b"".join(found.parts)) == (
            queue_id == 1,
            False,
        )
    assert driver.store.stats().damaged == 1
    log.write_bytes(good)
    assert driver.store.get("T", 1, 0, 20, 1 << 20).count == 20
    driver.close()


def test_the_name_of_a_segment_is_made_to_last_with_the_next_try(tmp_path: Path) -> None:
    """What was not synced when its disk was full, or no descriptor left, is not taken for synced
    afterwards: a power cut would take the whole segment. Nor does a try that failed hold a
    descriptor.
    """
    asked: list[str] = []
    failing = FailFrom("fsync_dir", "commitlog", nth=0, times=1, code=errno.EMFILE)
    failing.armed = True

    def fault(call: str, path: Path) -> None:
        asked.append(call)
        failing(call, path)

    (tmp_path / "commitlog").mkdir()
    writer = LogWriter(FaultyFs(fault), tmp_path / "commitlog", 4096, 0)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Too many open files"):
        writer.prepare(4096)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    writer.prepare(4096)
    assert (asked.count("fsync_dir"), failing.failures, writer.prepared) == (2, 1, 4096)
    writer.close()


STRETCH = 1024
TOPICS = ("T", "U")
MESSAGES = 40


class ReadsFs(OsFs):
    """Keeps what is read of the log: (segment, from, up to)."""

    def __init__(self) -> None:
        self.logs: dict[int, int] = {}
        self.reads: list[tuple[int, int, int]] = []

    def open(self, path: Path, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        self.logs.pop(handle, None)
        if path.parent.name == "commitlog":
            self.logs[handle] = int(path.name)
        return handle

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        if handle in self.logs:
            self.reads.append((self.logs[handle], offset, offset + size))
        return super().pread(handle, size, offset)

    @property
    def whole(self) -> list[bool]:
        """Of each read, whether it was of whole stretches."""
        return [start % STRETCH == 0 == end % STRETCH for _, start, end in self.reads]


def body(topic: str, queue_id: int, n: int) -> bytes:
    return f"{topic}/{queue_id}/{n:02d} ".encode() + b"x" * 300


def written(tmp_path: Path, fs: OsFs | None = None, **changes: int) -> Driver:
    """40 messages in each of two queues of two topics, of one size and mixed in the log; hardly any
    in memory, and no entry.
    """
    sizes = {
        "segment_bytes": 512 * 1024,
        "hot_log_bytes": 4 * 1024,
        "hot_entries": 0,
        "checksum_block_bytes": STRETCH,
    } | changes
    driver = Driver(small(tmp_path, flush="async", **sizes), fs)
    for n in range(MESSAGES):
        for topic in TOPICS:
            for queue_id in range(2):
                driver.put(message(body(topic, queue_id, n), topic, queue_id))
    # what stands before it leaves memory
    driver.put(message(bytes(3 * 1024), "Z"))
    driver.put(message(bytes(3 * 1024), "Z"))
    return driver


def all_of(topic: str, queue_id: int, without: int = -1) -> list[bytes]:
    return [body(topic, queue_id, n) for n in range(MESSAGES) if n != without]


def test_what_this_process_wrote_is_read_by_whole_stretches_and_what_a_start_found_is_not(
    tmp_path: Path,
) -> None:
    fs = ReadsFs()
    driver = written(tmp_path, fs)
    fs.reads.clear()
    for topic in TOPICS:
        for queue_id in range(2):
            assert driver.bodies(topic, queue_id) == all_of(topic, queue_id)
    assert len(fs.reads) > 0
    # the last stretch is not whole
    assert fs.whole.count(False) <= 2
    driver.close()
    again = written(tmp_path, fs)
    fs.reads.clear()
    assert again.bodies()[:MESSAGES] == all_of("T", 0)
    assert fs.whole[0] is False
    assert again.bodies()[MESSAGES:] == all_of("T", 0)
    assert True in fs.whole
    again.close()


PARTS = {
    "size": 3,
    "magic": 7,
    "body checksum": 11,
    "queue id": 15,
    "flag": 19,
    "queue offset": 27,
    "commit-log offset": 35,
    "sys flag": 39,
    "born": 47,
    "stored": 63,
    "body length": 87,
    "body": 120,
    "topic": 88 + 308,
    "properties": -30,
    "checksum": -5,
}
"""Where a byte stands in a record."""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("first", [("T", 1), ("U", 0)])
def test_a_record_that_is_damaged_behind_the_brokers_back_costs_itself_alone(
    first: tuple[str, int], part: str, tmp_path: Path
) -> None:
    """In a broker that has noted what it wrote: whichever queue comes upon the damage, only that
    one is missing.
    """
    fs = ReadsFs()
    driver = written(tmp_path, fs)
    at, size, _ = driver.store.entries("T", 1, 7, 1)[0]
    log = tmp_path / "commitlog" / f"{0:020d}"
    flip(log, at + PARTS[part] % size)
    fs.reads.clear()
    for topic, queue_id in (
        first,
        *((topic, queue_id) for topic in TOPICS for queue_id in range(2)),
        ("T", 1),
    ):
        assert driver.bodies(topic, queue_id) == all_of(
            topic, queue_id, 7 if (topic, queue_id) == ("T", 1) else -1
        )
    assert driver.store.stats().damaged == 1
    assert fs.whole.count(True) > 0
    flip(log, at + PARTS[part] % size)
    # the disk gives the right bytes again
    assert driver.bodies("T", 1) == all_of("T", 1)
    driver.close()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    [
        "into a record",
        "before it",
        "shorter",
        "longer",
        "the next",
        "another queue",
        "another topic",
        "far",
    ],
)
def test_a_damaged_entry_costs_its_message_alone(how: str, tmp_path: Path) -> None:
    """What it points at is as it was written, but is not this message."""
    fs = ReadsFs()
    driver = written(tmp_path, fs)
    at, size, code = driver.store.entries("T", 1, 7, 1)[0]
    wrong = {
        "into a record": (at + 1, size),
        "before it": (at - 1, size),
        "shorter": (at, size - 1),
        "longer": (at, size + 1),
        "the next": driver.store.entries("T", 1, 8, 1)[0][:2],
        "another queue": driver.store.entries("T", 0, 7, 1)[0][:2],
        "another topic": driver.store.entries("U", 1, 7, 1)[0][:2],
        "far": (at + 300 * 1024, size),
    }[how]
    file = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[7 * ENTRY_BYTES : 8 * ENTRY_BYTES] = ENTRY.pack(*wrong, code)
    file.write_bytes(data)
    fs.reads.clear()
    for _ in range(2):
        assert driver.bodies("T", 1) == all_of("T", 1, 7)
    assert driver.store.stats().damaged == 1
    assert driver.bodies("T", 0) == all_of("T", 0)
    assert fs.whole.count(True) > 0
    driver.close()


def test_a_segment_that_has_become_short_is_served_up_to_there(tmp_path: Path) -> None:
    driver = written(tmp_path)
    at, size, _ = driver.store.entries("T", 1, 7, 1)[0]
    log = tmp_path / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.truncate(at + size - 1)
    for _ in range(2):
        assert driver.bodies("T", 1)[:7] == all_of("T", 1)[:7]
        assert driver.bodies("T", 0)[:8] == all_of("T", 0)[:8]
        result = driver.store.get("T", 1, 7, 1, 1 << 20)
        assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 8)
    assert all(found in all_of("T", 0) for found in driver.bodies("T", 0))
    driver.close()


def test_segments_end_and_go_while_their_stretches_are_known(tmp_path: Path) -> None:
    """No stretch is of two segments, and none outlives its segment."""
    fs = ReadsFs()
    # four and a half stretches
    driver = written(tmp_path, fs, segment_bytes=4608)
    fs.reads.clear()
    for topic in TOPICS:
        for queue_id in range(2):
            assert driver.bodies(topic, queue_id) == all_of(topic, queue_id)
    assert fs.whole.count(True) > 0
    assert driver.store.stats().damaged == 0
    removal = driver.store.retention.expire(driver.store.retention.full_segments[5])
    while next(removal, "done") != "done":
        driver.settle()
    first = driver.store.min_offset("T", 1)
    assert first > 3
    fs.reads.clear()
    assert driver.bodies("T", 1) == all_of("T", 1)[first:]
    assert min(segment for segment, _, _ in fs.reads) >= driver.store.stats().commitlog_start
    assert driver.store._log._checksums.covering(0, 1024) == (0, 0)
    driver.close()


def test_a_few_messages_are_read_without_what_stands_around_them(tmp_path: Path) -> None:
    """Nor is a stretch read for its sum where few of its records are wanted, however large they
    are.
    """
    fs = ReadsFs()
    driver = written(tmp_path, fs, checksum_block_bytes=16 * 1024)
    size = driver.store.entries("T", 1, 0, 1)[0].size
    fs.reads.clear()
    assert driver.store.get("T", 1, 20, 1, 1 << 20).count == 1
    assert driver.store.get("T", 1, 22, 2, 1 << 20).count == 2
    assert [end - start for _, start, end in fs.reads] == [size, 5 * size]
    assert driver.store.get("T", 1, 20, 8, 1 << 20).count == 8
    assert fs.reads[2][1] % (16 * 1024) == 0 == fs.reads[2][2] % (16 * 1024)
    driver.close()


class ColdFs(OsFs):
    """Has in memory what was read once; else, what must not wait is not read."""

    def __init__(self) -> None:
        self.known: list[tuple[tuple[int, int], int, int]] = []

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self.known.append((file_of(handle), offset, offset + size))
        return super().pread(handle, size, offset)

    def pread_now(self, handle: int, size: int, offset: int) -> bytes | None:
        held = any(
            file == file_of(handle) and start <= offset and offset + size <= end
            for file, start, end in self.known
        )
        return super().pread(handle, size, offset) if held else None


def file_of(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def test_what_the_disk_must_be_waited_for_comes_whole_with_one_wait(tmp_path: Path) -> None:
    """The entries, then all of the log that the answer needs, in as many reads as it takes, to the
    end of the last one's stretch.
    """
    fs = ColdFs()
    driver = written(
        tmp_path,
        fs,
        consume_queue_file_bytes=20 * 100,
        segment_bytes=2 * 1024 * 1024,
        max_group_bytes=64 * 1024,
    )
    # too far from each other for one read
    for n in range(10):
        driver.put(message(body("T", 9, n), "T", 9))
        driver.put(message(bytes(40 * 1024), "Z"))
    fs.known.clear()
    waits: list[Place] = []
    found = 0
    while not found:
        try:
            found = driver.store.get("T", 9, 0, 10, 1 << 20, wait=False).count
        except Cold as cold:
            waits.append(cold.place)
            driver.store.bring_in(cold.place)
    assert found == 10
    assert [place.path.parent.name for place in waits] == ["9", "commitlog"]
    first, last = (driver.store.entries("T", 9, n, 1)[0].commitlog_offset for n in (0, 9))
    assert waits[1].offset == first - first % STRETCH
    assert last < waits[1].offset + waits[1].size <= last + 2 * STRETCH
    driver.close()


class WrittenFs(OsFs):
    """Counts the bytes that are written into the log."""

    log_bytes = 0

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        if len(data) > 4096:
            self.log_bytes += len(data)
        super().pwrite(handle, data, offset)


@pytest.mark.parametrize(("flush", "most"), [("async", 100 * 1024), ("sync", 600 * 1024)])
def test_room_ahead_is_written_only_where_answers_wait_for_a_sync(
    tmp_path: Path, flush: str, most: int
) -> None:
    fs = WrittenFs()
    sizes = {"segment_bytes": 512 * 1024, "ahead_bytes": 256 * 1024}
    with Driver(small(tmp_path, flush=flush, **sizes), fs, threaded=False) as driver:
        for _ in range(10):
            driver.put(message(bytes(8000)))
        assert (
            512 * (tmp_path / "commitlog" / f"{0:020d}").stat().st_blocks >= 80 * 1024 + 256 * 1024
        )
    assert most - 100 * 1024 < fs.log_bytes <= most


def test_what_was_read_takes_bounded_memory() -> None:
    runs = ReadRuns(1000)
    for n in range(5):
        runs.keep(Run(n * 1000, bytes(400), False))
    assert [runs.find(n * 1000, 400) is not None for n in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]
    runs.keep(Run(9000, bytes(2000), False))
    assert [runs.find(n * 1000, 1) for n in range(10)] == [None] * 10
    for n in range(100):
        runs.keep(Run(n, b"x", False))
    assert sum(runs.find(n, 1) is not None for n in range(100)) == 32


def test_a_run_is_found_for_what_it_holds_whole() -> None:
    runs = ReadRuns(1000)
    run = Run(100, bytes(50), False)
    runs.keep(run)
    assert runs.find(100, 50) is runs.find(149, 1) is run
    assert runs.find(99, 2) is runs.find(149, 2) is None
    longer = Run(100, bytes(60), True)
    runs.keep(longer)
    assert runs.find(149, 2) is longer
    runs.forget(100)
    runs.forget(100)
    assert runs.find(100, 1) is None


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("start", "size", "end"),
    [(100, 30, 3), (100, 29, 2), (100, 31, 3), (100, 10, 1), (100, 40, 4), (100, 41, 4)],
)
def test_a_piece_of_the_log_gives_the_records_that_are_in_it_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, start: int, size: int, end: int
) -> None:
    if not compiled:
        monkeypatch.setattr(commitlog, "native", None)
    elif native is None:
        pytest.skip("the compiled part was not built")
    wanted = [(100, 10, 0), (110, 10, 0), (120, 10, 0), (130, 10, 0)]
    assert commitlog._end_inside(wanted, 0, (start, bytes(size))) == end
    assert (
        commitlog._end_inside([*wanted[:2], (90, 10, 0), *wanted[2:]], 0, (start, bytes(40))) == 2
    )
