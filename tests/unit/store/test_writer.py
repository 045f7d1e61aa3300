import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ogive.errors import StoreFailed
from ogive.store.commitlog import LogWriter
from ogive.store.writer import CommitGroup, CommitWriter, Job, Outcome, WriterThread, join_extents
from tests.chaos.recorder import RecorderFs, Sync, Write

LOG = Path("/log")


class Recorded:
    """A CommitWriter over a recorder, and what it reported."""

    def __init__(self, flush: Any, **changes: Any) -> None:
        self.fs = RecorderFs()
        self.fs.make_dirs(LOG)
        self.now = 0.0
        self.outcomes: list[Outcome] = []
        self.log = LogWriter(self.fs, LOG, 4096, 0)
        settings: dict[str, Any] = {
            "window_bytes": 1000,
            "window_s": 0.5,
            "ahead_bytes": 0,
        } | changes
        self.work = CommitWriter(
            self.log, self._complete, flush=flush, monotonic=lambda: self.now, **settings
        )
        self.end = 0

    def _complete(self, groups: Sequence[CommitGroup], outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.fs.ack(len(self.outcomes))

    def commit(self, size: int) -> None:
        data = bytes([1]) * size
        group = CommitGroup(self.end, self.end + size, [(self.end, [data])], [data])
        self.end += size
        self.work.commit([group])

    @property
    def unsynced(self) -> int:
        """Bytes of records written since the last sync."""
        total = 0
        for operation in self.fs.operations:
            if isinstance(operation, Sync):
                total = 0
            elif isinstance(operation, Write) and any(operation.data):
                total += len(operation.data)
        return total


def test_sync_mode_answers_after_the_sync() -> None:
    recorded = Recorded("sync")
    for _ in range(3):
        recorded.commit(100)
        assert recorded.unsynced == 0
    kinds = [
        type(operation).__name__
        for operation in recorded.fs.operations
        if not isinstance(operation, Write) or any(operation.data)
    ]
    assert kinds[-3:] == ["Write", "Sync", "Ack"]
    assert len(recorded.outcomes) == 3


def test_async_mode_never_has_more_than_the_window_unsynced() -> None:
    recorded = Recorded("async")
    for _ in range(50):
        recorded.commit(300)
        assert recorded.unsynced <= 1000
    assert len(recorded.outcomes) == 50


def test_async_mode_answers_a_write_larger_than_the_window_after_its_sync() -> None:
    recorded = Recorded("async")
    recorded.commit(300)
    recorded.commit(2500)
    assert recorded.unsynced == 0
    assert len(recorded.outcomes) == 2


def test_async_mode_syncs_half_a_second_after_the_first_unsynced_byte() -> None:
    """Also on a topic that goes quiet."""
    recorded = Recorded("async")
    assert recorded.work.sync_in_s() > 1000
    recorded.commit(100)
    assert recorded.work.sync_in_s() == 0.5
    recorded.now = 0.4
    recorded.commit(100)
    assert recorded.work.sync_in_s() == pytest.approx(0.1)
    recorded.now = 0.6
    assert recorded.work.sync_in_s() == 0.0
    recorded.work.sync_now()
    assert recorded.unsynced == 0
    assert recorded.work.sync_in_s() > 1000


def test_async_mode_counts_anew_after_a_sync_of_a_full_window() -> None:
    """The next sync is due half a second after the first byte since that one."""
    recorded = Recorded("async")
    recorded.commit(600)
    recorded.now = 0.4
    recorded.commit(600)
    assert recorded.unsynced == 600
    assert recorded.work.sync_in_s() == 0.5
    recorded.now = 0.8
    recorded.commit(2500)
    assert recorded.work.sync_in_s() > 1000
    recorded.commit(1000)
    assert recorded.unsynced == 1000, "the whole window is free again"


def test_sync_mode_syncs_files_beside_the_log_at_once() -> None:
    recorded, synced = Recorded("sync"), list[float]()
    recorded.work.beside.append(lambda: synced.append(recorded.now))
    recorded.work.wrote_beside()
    assert synced == [0.0]


def test_async_mode_syncs_files_beside_the_log_with_it() -> None:
    """Half a second after the first of their bytes, also if nothing comes to the log."""
    recorded, synced = Recorded("async"), list[float]()
    recorded.work.beside.append(lambda: synced.append(recorded.now))
    recorded.work.wrote_beside()
    assert recorded.work.sync_in_s() == 0.5
    recorded.now = 0.2
    recorded.work.wrote_beside()
    assert recorded.work.sync_in_s() == pytest.approx(0.3)
    assert synced == []
    recorded.work.sync_now()
    assert synced == [0.2]
    assert recorded.work.sync_in_s() > 1000


def test_segment_is_synced_before_the_next_one_is_written() -> None:
    recorded = Recorded("async", window_bytes=100_000)
    recorded.commit(4000)
    pieces = [bytes([1]) * 100]
    recorded.work.commit([CommitGroup(4000, 4196, [(4000, [b"blank..."]), (4096, pieces)], pieces)])
    assert recorded.unsynced == 100


def test_zeros_are_written_ahead_so_that_a_record_extends_nothing() -> None:
    recorded = Recorded("sync", ahead_bytes=2048)
    recorded.work.idle()
    assert recorded.log.prepared >= 2048
    assert isinstance(recorded.fs.operations[-1], Sync)
    before = len(recorded.fs.operations)
    recorded.commit(500)
    assert [type(operation).__name__ for operation in recorded.fs.operations[before:]] == [
        "Write",
        "Sync",
        "Ack",
    ]


def test_failed_sync_is_never_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next sync would succeed, and lie."""
    recorded = Recorded("sync")
    recorded.commit(100)
    calls: list[int] = []

    def fail_once(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(recorded.fs, "fdatasync", fail_once)
    for _ in range(3):
        recorded.commit(100)
        recorded.work.sync_now()
        recorded.work.idle()
    assert len(calls) == 1
    assert [isinstance(outcome, StoreFailed) for outcome in recorded.outcomes] == [
        False,
        True,
        True,
        True,
    ]


def test_groups_that_wait_together_become_one_write() -> None:
    first = CommitGroup(0, 5, [(0, [b"ab", b"c"])], [])
    second = CommitGroup(5, 30, [(5, [b"blank"]), (20, [b"de"])], [])
    third = CommitGroup(30, 31, [(30, [b"f"])], [])
    assert join_extents([first, second]) == [(0, b"abcblank"), (20, b"de")]
    assert join_extents([second, third])[-1] == (20, b"def")


def wait_until(ready: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60.0
    while not ready():
        assert time.monotonic() < give_up
        time.sleep(0.001)


class Threaded:
    """A WriterThread over the same recorder; who wrote each group."""

    def __init__(self, flush: Any = "async", **changes: Any) -> None:
        self.recorded = Recorded(flush, **changes)
        self.outcomes: list[Outcome] = []
        self.writers: list[int] = []
        self.arrived = threading.Semaphore(0)
        self.work = self.recorded.work
        self.work._complete = self._complete
        self.sleeps = 0
        self.writer = WriterThread(
            self.work, 1 << 20, lambda: self.recorded.now, lambda: self.sleeps
        )
        # the first segment is open
        self.do(lambda: self.work._log.write([(0, b"")]))

    def _complete(self, groups: Sequence[CommitGroup], outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.writers += [threading.get_ident()] * len(groups)
        self.arrived.release()

    def do(self, job: Job) -> None:
        """On the thread, and the thread is through with it when this returns."""
        self.writer.post(job)
        wait_until(
            lambda: self.writer._posted == self.writer._done and not self.writer._working.locked()
        )

    def post(self, size: int, *, here: bool) -> None:
        """A group, answered when this returns, and written by the caller or not."""
        data = bytes([1]) * size
        start = self.recorded.end
        self.recorded.end += size
        self.writer.post(CommitGroup(start, start + size, [(start, [data])], [data]))
        if here:
            assert self.writers[-1:] == [threading.get_ident()], "written before post() returns"
        assert self.arrived.acquire(timeout=60.0)
        assert (self.writers[-1] == threading.get_ident()) is here
        self.do(lambda: None)


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    threaded = Threaded()
    threaded.do(lambda: threaded.recorded.log.prepare(4096))
    yield threaded
    threaded.writer.close()


def test_owner_writes_a_short_group_itself_while_the_thread_has_nothing_to_do(
    threaded: Threaded,
) -> None:
    for _ in range(3):
        threaded.post(100, here=True)
    assert threaded.recorded.unsynced == 300


def test_thread_syncs_in_time_what_the_owner_wrote() -> None:
    """It slept without a deadline when the owner wrote, and nothing else is posted."""
    threaded = Threaded(window_s=0.05)
    threaded.do(lambda: threaded.recorded.log.prepare(4096))
    data = [b"x" * 100]
    threaded.writer.post(CommitGroup(0, 100, [(0, data)], data))
    assert threaded.writers == [threading.get_ident()]
    threaded.recorded.now = 0.05
    wait_until(lambda: threaded.recorded.unsynced == 0)
    threaded.writer.close()


def test_nothing_overtakes_what_the_thread_has_not_carried_out(threaded: Threaded) -> None:
    go, order = threading.Event(), list[str]()
    threaded.writer.post(lambda: order.append("job") if go.wait(60.0) else None)
    data = [b"x" * 100]
    threaded.writer.post(CommitGroup(0, 100, [(0, data)], data))
    assert threaded.outcomes == []
    go.set()
    assert threaded.arrived.acquire(timeout=60.0)
    assert order == ["job"]
    assert threading.get_ident() not in threaded.writers
    threaded.recorded.end = 100
    threaded.do(lambda: None)
    threaded.post(100, here=True)


def test_owner_writes_nothing_between_the_moments_when_the_thread_takes_a_job_and_begins_it(
    threaded: Threaded,
) -> None:
    """The inbox is empty then, and nobody is at work."""
    threaded.post(100, here=True)
    # a job that the thread has taken
    threaded.writer._posted += 1
    data = [b"x" * 100]
    threaded.writer.post(CommitGroup(100, 200, [(100, data)], data))
    assert threaded.arrived.acquire(timeout=60.0)
    threaded.writer._posted -= 1
    assert threaded.writers.count(threading.get_ident()) == 1, "only the one before"


def test_with_sync_flush_the_owner_writes_nothing() -> None:
    threaded = Threaded("sync")
    threaded.do(lambda: threaded.recorded.log.prepare(4096))
    threaded.post(100, here=False)
    threaded.writer.close()


def test_owner_leaves_a_write_that_needs_more_than_memory_to_the_thread(threaded: Threaded) -> None:
    threaded.post(900, here=True)
    # over the window: a sync comes first
    threaded.post(200, here=False)
    threaded.post(100, here=True)
    threaded.recorded.end = 4096
    threaded.work._end = 4096
    # a new segment, and no zeros there
    threaded.post(100, here=False)


def post_slowly(threaded: Threaded, monkeypatch: pytest.MonkeyPatch, *, sleeps: int) -> None:
    pwrite = threaded.recorded.fs.pwrite

    def slow(handle: int, data: Any, offset: int) -> None:
        threaded.recorded.now += 0.2
        threaded.sleeps += sleeps
        pwrite(handle, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(threaded.recorded.fs, "pwrite", slow)
        threaded.post(100, here=True)


def test_owner_goes_on_writing_after_a_write_that_waited_for_a_processor(
    threaded: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It happens all the time where clients use up both cores."""
    post_slowly(threaded, monkeypatch, sleeps=0)
    threaded.post(100, here=True)


def test_owner_leaves_writing_to_the_thread_for_a_while_after_a_write_that_slept_long(
    threaded: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system that makes writers wait for the disk must not stop the broker's loop with every
    write.
    """
    post_slowly(threaded, monkeypatch, sleeps=1)
    threaded.post(100, here=False)
    threaded.recorded.now += 4.0
    threaded.post(100, here=False)
    threaded.recorded.now += 1.1
    threaded.post(100, here=True)


def test_failed_write_of_the_owner_is_final_too(
    threaded: Threaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int, data: Any, offset: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(threaded.recorded.fs, "pwrite", fail)
        threaded.post(100, here=True)
    threaded.post(100, here=False)
    assert [isinstance(outcome, StoreFailed) for outcome in threaded.outcomes] == [True, True]
    assert threaded.recorded.unsynced == 0
