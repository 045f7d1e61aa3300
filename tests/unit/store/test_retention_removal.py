"""Old segments are removed, and the process or the power dies meanwhile: no offset is given out
twice.
"""

import errno
import random
from collections import deque
from pathlib import Path

import pytest

from ogive.errors import StoreError
from ogive.store import MessageStore, StoreConfig
from ogive.store import checkpoint as checkpoints
from ogive.store.fs import Fs, OsFs
from ogive.store.writer import CommitGroup, CommitWriter, Job
from tests.chaos.faults import FailFrom, FaultyFs
from tests.chaos.recorder import MemoryFs, Operation, RecorderFs
from tests.stores import Clock, Driver, InlineWriter, crash, message, read_queue, run_now, small

ROOT = Path("/store")
QUIET, BUSY = 3, 16
SEGMENT, UNTIL = 4096, 8192
NEVER = 10**9


def config(root: Path = ROOT, flush_bytes: int = NEVER) -> StoreConfig:
    """No queue file and no checkpoint is written unless something asks for it."""
    return small(root, segment_bytes=SEGMENT, flush_bytes=flush_bytes, checkpoint_bytes=NEVER)


class EveryCall(RecorderFs):
    """Keeps what a process that dies leaves behind, at each change to the files."""

    def __init__(self, base: MemoryFs | None = None) -> None:
        super().__init__(base)
        self.armed = base is not None
        # operations before it came before arm()
        self.first = 0
        self.left: list[MemoryFs] = []

    def arm(self) -> None:
        self.armed, self.first = True, len(self.operations)

    def record(self, operation: Operation) -> None:
        super().record(operation)
        if self.armed:
            self.left.append(self.copy())

    def after_power_cuts(self, rng: random.Random) -> list[MemoryFs]:
        disk, found = self.disk(), []
        for number, operation in enumerate(self.operations):
            disk.apply(operation)
            if number >= self.first:
                found.append(disk.after_power_cut(rng))
        return found


class StepByStep(InlineWriter):
    """Carries groups out at once; jobs wait for step() while *held*."""

    def __init__(self, work: CommitWriter, _max_group_bytes: int = 0) -> None:
        super().__init__(work)
        self.held = False
        self.jobs: deque[Job] = deque()

    def post(self, job: CommitGroup | Job) -> None:
        if self.held and not isinstance(job, CommitGroup):
            self.jobs.append(job)
        else:
            super().post(job)

    def step(self) -> None:
        if self.jobs:
            super().post(self.jobs.popleft())

    def close(self) -> None:
        while self.jobs:
            self.step()
        super().close()


class Run:
    """A store with a queue that lies wholly in the oldest segments, and a long one; their entries
    are in memory alone.
    """

    def __init__(self, fs: Fs, config: StoreConfig) -> None:
        self.store = MessageStore.open(config, fs=fs, clock_ms=Clock())
        self.writers: list[StepByStep] = []
        self.store.start(run_now, writer=self._make)
        self.writer = self.writers[0]

    def _make(self, work: CommitWriter, most: int) -> StepByStep:
        self.writers.append(StepByStep(work, most))
        return self.writers[0]

    def put(self, topic: str, body: bytes) -> None:
        self.store.put([message(body, topic)], lambda _: None)
        self.store.submit()

    def fill(self, *, under_way: bool) -> None:
        """*under_way*: queue files are being written all the time, first from before the quiet
        queue had anything.
        """
        self.writer.held = under_way
        for n in range(BUSY):
            self.put("Busy", body_of(n))
            if n < QUIET:
                self.put("Quiet", body_of(n))
        assert len(self.writer.jobs) == under_way
        assert self.store.retention.full_segments[-1] >= UNTIL

    def expire(self, until: int) -> None:
        """Where queue files are written all the time, once more when it is settled what goes."""
        for _ in self.store.retention.expire(until):
            self.writer.step()
            if self.writer.held and self.store.stats().commitlog_start:
                self.put("Other", b"meanwhile")
                assert len(self.writer.jobs) == 1
        self.store.close()


def body_of(n: int) -> bytes:
    return b"%d " % n + bytes(500)


def keeps_what_was_given_out(image: MemoryFs) -> None:
    """A second start finds the same: what the first one mended is written down."""
    for more in range(2):
        with Driver(config(), image, threaded=False) as driver:
            store = driver.store
            assert store.max_offset("Quiet", 0) == QUIET + more
            assert store.max_offset("Busy", 0) == BUSY
            low = store.min_offset("Busy", 0)
            assert [(m.queue_offset, m.body) for m in read_queue(store, "Busy", 0)] == [
                (n, body_of(n)) for n in range(low, BUSY)
            ]
            if store.stats().commitlog_start:
                assert store.stats().commitlog_start == UNTIL
                assert store.min_offset("Quiet", 0) == QUIET
            else:
                assert (low, store.min_offset("Quiet", 0)) == (0, 0)
            assert driver.put(message("next", "Quiet"))[0].queue_offset == QUIET + more
            assert store.stats().damaged == 0


@pytest.mark.parametrize(
    "under_way", [False, True], ids=["nothing under way", "queue files being written all the time"]
)
def test_a_death_at_any_call_of_a_removal_gives_no_offset_out_again(under_way: bool) -> None:
    fs = EveryCall()
    run = Run(fs, config(flush_bytes=100 if under_way else NEVER))
    run.fill(under_way=under_way)
    fs.arm()
    run.expire(UNTIL)
    assert any(ROOT / "removing" in image.names for image in fs.left)
    for image in fs.left:
        keeps_what_was_given_out(image)


@pytest.mark.parametrize(
    "under_way", [False, True], ids=["nothing under way", "queue files being written all the time"]
)
def test_a_power_cut_at_any_call_of_a_removal_gives_no_offset_out_again(under_way: bool) -> None:
    fs = EveryCall()
    run = Run(fs, config(flush_bytes=100 if under_way else NEVER))
    run.fill(under_way=under_way)
    fs.arm()
    run.expire(UNTIL)
    for image in fs.after_power_cuts(random.Random(5)):
        keeps_what_was_given_out(image)


def noted_too_early() -> MemoryFs:
    """As a release left it that wrote the note before the queues were safe."""
    fs = MemoryFs()
    run = Run(fs, config())
    run.fill(under_way=False)
    image = fs.copy()
    checkpoints.note_removal(image, ROOT, UNTIL)
    return image


def test_a_removal_waits_until_the_queues_of_what_goes_are_safe() -> None:
    image = noted_too_early()
    with Driver(config(), image, threaded=False) as driver:
        assert driver.store.stats().commitlog_start == UNTIL
        assert (driver.store.min_offset("Quiet", 0), driver.store.max_offset("Quiet", 0)) == (
            QUIET,
            QUIET,
        )
        assert ROOT / "removing" not in image.names
    keeps_what_was_given_out(image)


def test_a_death_at_any_call_of_a_start_that_removes_gives_no_offset_out_again() -> None:
    fs = EveryCall(noted_too_early())
    MessageStore.open(config(), fs=fs)
    assert any(ROOT / "removing" not in image.names for image in fs.left)
    for image in (*fs.left, *fs.after_power_cuts(random.Random(6))):
        keeps_what_was_given_out(image)


def test_a_removal_without_a_list_of_queues_reads_the_log_first() -> None:
    image = noted_too_early()
    del image.names[ROOT / "queues.json"]
    keeps_what_was_given_out(image)


def test_a_note_behind_the_end_of_the_log_removes_nothing() -> None:
    """Where the next segment is there already, all zeros."""
    fs = MemoryFs()
    with Driver(config(), fs, threaded=False) as driver:
        driver.put(message("x"))
    checkpoints.note_removal(fs, ROOT, SEGMENT)
    assert ROOT / "commitlog" / f"{SEGMENT:020d}" in fs.names
    for _ in range(2):
        with Driver(config(), fs, threaded=False) as driver:
            assert driver.bodies() == [b"x"]
        assert ROOT / "removing" not in fs.names


def test_a_full_disk_removes_what_the_last_checkpoint_has_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no room for another one, and removal is what makes some."""
    failing = FailFrom("create", "queues.json.tmp", 0, NEVER, errno.ENOSPC)
    with Driver(config(tmp_path), FaultyFs(failing)) as driver:
        for n in range(10):
            driver.put(message(body_of(n), "Quiet"))
    driver = Driver(config(tmp_path), FaultyFs(failing))
    for n in range(BUSY):
        driver.put(message(body_of(n), "Busy"))
    failing.armed = True
    for _ in driver.store.retention.expire(UNTIL):
        pass
    assert driver.store.stats().commitlog_start == SEGMENT
    assert "no space for a checkpoint" in caplog.text
    before = failing.failures
    for _ in driver.store.retention.expire(UNTIL):
        pass
    # it was tried again
    assert failing.failures > before > 0
    assert driver.store.stats().commitlog_start == SEGMENT
    failing.armed = False
    for _ in driver.store.retention.expire(UNTIL):
        pass
    assert driver.store.stats().commitlog_start == UNTIL
    crash(driver)
    with Driver(config(tmp_path)) as driver:
        assert (driver.store.max_offset("Quiet", 0), driver.store.max_offset("Busy", 0)) == (
            10,
            BUSY,
        )


@pytest.mark.parametrize("checkpoint", ["of the stop", "from before a kill"])
def test_a_stop_in_the_middle_of_a_removal_leaves_no_lowest_offset_without_a_message(
    checkpoint: str, tmp_path: Path
) -> None:
    """Queues were not looked at yet for the log as it begins now: the next start does that."""
    with Driver(small(tmp_path), threaded=False) as driver:
        for n in range(90):
            driver.put(message(b"%d" % n + bytes(500), f"T{n % 3}"))
        store = driver.store
        removing = store.retention.expire(store.retention.full_segments[1])
        while not store.stats().commitlog_start:
            next(removing)
        begins = store.stats().commitlog_start
        left = b""
        if checkpoint != "of the stop":
            store._flushes.flush(checkpoint=True)
            left = (tmp_path / "queues.json").read_bytes()
            for _ in removing:
                pass
    if left:
        (tmp_path / "queues.json").write_bytes(left)
        (tmp_path / "abort").write_text("")
    for _ in range(2):
        with Driver(small(tmp_path), threaded=False) as again:
            assert again.store.stats().commitlog_start == begins
            for n in range(3):
                low = again.store.min_offset(f"T{n}", 0)
                assert low > 0
                assert again.read_all(f"T{n}")[0].queue_offset == low


def test_a_store_that_fails_meanwhile_removes_nothing(tmp_path: Path) -> None:
    failing = FailFrom("create", "queues.json.tmp", 0, NEVER)
    with Driver(config(tmp_path), FaultyFs(failing)) as driver:
        for n in range(BUSY):
            driver.put(message(body_of(n)))
        failing.armed = True
        for _ in driver.store.retention.expire(UNTIL):
            pass
        assert driver.store.failed is not None
        assert driver.store.stats().commitlog_start == 0
        assert not (tmp_path / "removing").exists()


class NoMoreFiles(OsFs):
    """Opens nothing in *part* while *on*: the process has too many files open."""

    part, on = "consumequeue", False

    def open(self, path: Path, *, create: bool = False) -> int:
        if self.on and self.part in path.parts:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, create=create)


def test_a_queue_that_cannot_be_read_now_leaves_everything_to_the_next_run(tmp_path: Path) -> None:
    """Nothing moves up before all queues are known to: with the log's start moved, the next run
    would find nothing to remove.
    """
    fs = NoMoreFiles()
    with Driver(
        small(tmp_path, segment_bytes=SEGMENT, hot_entries=1, max_open_files=1), fs
    ) as driver:
        for n in range(BUSY):
            driver.put(message(body_of(n), "Busy"))
            driver.put(message(body_of(n), "Quiet"))
        before = driver.bodies("Busy")
        fs.on = True
        with pytest.raises(StoreError, match="cannot be read"):
            for _ in driver.store.retention.expire(UNTIL):
                pass
        fs.on = False
        assert not (tmp_path / "removing").exists()
        assert (driver.store.stats().commitlog_start, driver.bodies("Busy")) == (0, before)
        for _ in driver.store.retention.expire(UNTIL):
            pass
        assert driver.store.stats().commitlog_start == UNTIL
    assert min(path.name for path in (tmp_path / "commitlog").iterdir()) == f"{UNTIL:020d}"


def settled(driver: Driver) -> None:
    """Return when the writer has carried everything out."""
    done: list[None] = []
    driver.store.sync(lambda: done.append(None))
    driver.wait(done)


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("unlink", "commitlog"),
        ("unlink", "consumequeue"),
        ("unlink", "index"),
        ("fsync_dir", "commitlog"),
    ],
)
def test_files_that_cannot_be_removed_are_tried_again(
    call: str, part: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailFrom(call, part, 0, 2, errno.EMFILE)
    with Driver(config(tmp_path, flush_bytes=100), FaultyFs(failing)) as driver:
        for n in range(100):
            driver.put(message(body_of(n), "Busy", properties=b"UNIQ_KEY\x01ID%d\x02" % n))
        driver.store.retention.remove_left()
        failing.armed = True
        until = driver.store.retention.full_segments[-1]
        for _ in driver.store.retention.expire(until):
            pass
        for _ in range(2):
            settled(driver)
            assert (tmp_path / "removing").exists()
            driver.store.retention.remove_left()
    assert failing.failures == 2
    assert caplog.text.count("could not remove the files of old messages") == 2
    low = driver.store.min_offset("Busy", 0)
    assert not (tmp_path / "removing").exists()
    assert min(path.name for path in (tmp_path / "commitlog").iterdir()) == f"{until:020d}"
    assert (
        min(int(path.name) for path in (tmp_path / "consumequeue" / "Busy" / "0").iterdir())
        == low // 16 * 320
    )
    with Driver(config(tmp_path)) as again:
        assert again.store.min_offset("Busy", 0) == low
        assert (again.store.max_offset("Busy", 0), again.store.stats().damaged) == (100, 0)


def test_files_of_a_topic_that_was_made_again_are_not_taken_for_old_ones(tmp_path: Path) -> None:
    failing = FailFrom("unlink", "commitlog", 0, 1)
    with Driver(
        small(tmp_path, segment_bytes=SEGMENT, flush_bytes=100, hot_entries=1), FaultyFs(failing)
    ) as driver:
        for n in range(100):
            driver.put(message(body_of(n), "Busy"))
        failing.armed = True
        for _ in driver.store.retention.expire(driver.store.retention.full_segments[-1]):
            pass
        driver.store.topics.delete("Busy")
        bodies = [body_of(n) for n in range(40)]
        for body in bodies:
            driver.put(message(body, "Busy"))
        driver.store.retention.remove_left()
        settled(driver)
        assert failing.failures == 1
        assert not (tmp_path / "removing").exists()
        assert driver.bodies("Busy") == bodies
        files = [path.name for path in (tmp_path / "consumequeue" / "Busy" / "0").iterdir()]
        assert sorted(files) == [f"{at:020d}" for at in range(0, 40 * 20, 320)]


def test_old_files_that_somebody_else_removed_hold_up_no_others(tmp_path: Path) -> None:
    failing = FailFrom("unlink", "commitlog", 0, 1)
    with Driver(config(tmp_path, flush_bytes=100), FaultyFs(failing)) as driver:
        for n in range(100):
            driver.put(message(body_of(n), "Busy"))
        until = driver.store.retention.full_segments[-1]
        failing.armed = True
        for _ in driver.store.retention.expire(until):
            pass
        settled(driver)
        (tmp_path / "commitlog" / f"{SEGMENT:020d}").unlink()
        # its directories go with it
        driver.store.topics.delete("Busy")
        driver.store.retention.remove_left()
        settled(driver)
        assert failing.failures == 1
        assert not (tmp_path / "removing").exists()
        assert min(path.name for path in (tmp_path / "commitlog").iterdir()) == f"{until:020d}"


def test_the_note_of_a_removal_outlives_the_segments_that_it_is_about() -> None:
    """After a power cut while it is finished: either all of them are gone, or the note is there, so
    that it is finished again.
    """
    segments, log = (
        ["00000000000000000000", "00000000000000004096", "00000000000000008192"],
        ROOT / "commitlog",
    )
    fs = RecorderFs(
        MemoryFs({log / name: bytearray(8) for name in segments}, {Path("/"), ROOT, log})
    )
    checkpoints.note_removal(fs, ROOT, UNTIL)
    until = checkpoints.pending_removal(fs, ROOT)
    assert until == UNTIL
    began = len(fs.operations)
    checkpoints.finish_removal(fs, ROOT, until)
    disk = fs.disk()
    for number, operation in enumerate(fs.operations):
        disk.apply(operation)
        for seed in range(20 if number >= began else 0):
            after = disk.after_power_cut(random.Random(seed))
            assert (
                after.list(log) == segments[2:] or checkpoints.pending_removal(after, ROOT) == UNTIL
            )
    assert checkpoints.pending_removal(fs, ROOT) is None
