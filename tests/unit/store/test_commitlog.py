"""Files of the log that are made, and reading the log behind the part in memory."""

import errno
from pathlib import Path

import pytest

from ogive.store import OsFs
from ogive.store.commitlog import LogWriter, ReadRuns
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
    driver = Driver(small(tmp_path, flush="async", segment_bytes=512 * 1024, hot_log_bytes=4 * 1024), fs)
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
    assert max(sizes[1:]) < 1000  # the last record, behind what the first queue read
    for queue_id in range(QUEUES):
        assert driver.bodies(queue_id=queue_id) == [f"{queue_id}/{n} ".encode() + b"x" * 300 for n in range(40)]
    driver.close()


@pytest.mark.parametrize("reader", [0, 1])
def test_what_was_read_with_damage_in_it_is_read_again(reader: int, tmp_path: Path) -> None:
    """Only the damaged record is missing, for its own queue; and once the disk gives the right bytes again, it is there."""
    driver = filled(tmp_path, OsFs())
    log = tmp_path / "commitlog" / f"{0:020d}"
    good = log.read_bytes()
    at = good.index(b"1/7 ")
    log.write_bytes(good[:at] + b"?" + good[at + 1 :])
    for queue_id in (reader, 1):
        found = driver.store.get("T", queue_id, 0, 20, 1 << 20)
        assert found.count == (19 if queue_id == 1 else 20)
        assert (b"1/6 " in b"".join(found.parts), b"1/7 " in b"".join(found.parts)) == (queue_id == 1, False)
    assert driver.store.stats().damaged == 1
    log.write_bytes(good)
    assert driver.store.get("T", 1, 0, 20, 1 << 20).count == 20
    driver.close()


def test_the_name_of_a_segment_is_made_to_last_with_the_next_try(tmp_path: Path) -> None:
    """What was not synced when its disk was full, or no descriptor left, is not taken for synced afterwards: a power cut would take the
    whole segment. Nor does a try that failed hold a descriptor."""
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


class WrittenFs(OsFs):
    """Counts the bytes that are written into the log."""

    log_bytes = 0

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        if len(data) > 4096:
            self.log_bytes += len(data)
        super().pwrite(handle, data, offset)


@pytest.mark.parametrize(("flush", "most"), [("async", 100 * 1024), ("sync", 600 * 1024)])
def test_room_ahead_is_written_only_where_answers_wait_for_a_sync(tmp_path: Path, flush: str, most: int) -> None:
    fs = WrittenFs()
    sizes = {"segment_bytes": 512 * 1024, "ahead_bytes": 256 * 1024}
    with Driver(small(tmp_path, flush=flush, **sizes), fs, threaded=False) as driver:
        for _ in range(10):
            driver.put(message(bytes(8000)))
        assert 512 * (tmp_path / "commitlog" / f"{0:020d}").stat().st_blocks >= 80 * 1024 + 256 * 1024
    assert most - 100 * 1024 < fs.log_bytes <= most


def test_stretches_that_were_read_take_bounded_memory() -> None:
    runs = ReadRuns(1000)
    for n in range(5):
        runs.keep(n * 1000, bytes(400))
    assert [runs.find(n * 1000, 400) is not None for n in range(5)] == [False, False, False, True, True]
    runs.keep(9000, bytes(2000))
    assert [runs.find(n * 1000, 1) for n in range(10)] == [None] * 10
    for n in range(100):
        runs.keep(n, b"x")
    assert sum(runs.find(n, 1) is not None for n in range(100)) == 32


def test_a_stretch_is_found_for_what_it_holds_whole() -> None:
    runs = ReadRuns(1000)
    runs.keep(100, bytes(50))
    assert runs.find(100, 50) == runs.find(149, 1) == (100, bytes(50))
    assert runs.find(99, 2) is runs.find(149, 2) is None
    runs.keep(100, bytes(60))
    assert runs.find(149, 2) == (100, bytes(60))
    runs.forget(100)
    runs.forget(100)
    assert runs.find(100, 1) is None
