"""The writer: the only place that changes the log and the consume queues while the store runs.

Groups of records and other jobs arrive in an inbox and are carried out in order. Groups that wait
together become one write and one sync. The first error of a write or sync is final: after a failed
sync the kernel forgets which pages were dirty, so a second try would succeed without having written
them.

With flush=async a short group is written on the owner's own thread while the writer's is idle. Such
a write only copies into the page cache, which costs less than waking a thread and being woken by
it: 71 µs of processor time for one put with its answer, 234 µs by the thread alone (1 KiB, one
after the other, median of seven turns on a busy machine). Syncs, allocation, new segments and
derived files stay with the thread.

If such a write takes long because the thread slept, the system makes writers wait for the disk: for
a while all groups are written by the writer's thread. A write that only waited for a processor says
nothing about the disk, and on a busy machine there is one every few seconds.
"""

import functools
import itertools
import logging
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from ogive.errors import IllegalStateError, StoreError, StoreFailed, StoreFull
from ogive.store.commitlog import Chunk, LogWriter
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.fs import NO_SPACE, reason
from ogive.store.key_index import Keyed, PackedKeys
from ogive.store.types import PutDone, PutResult

log = logging.getLogger(__name__)

_RETRY_FULL_S: Final = 1.0
_MAX_SYNC_GAP_S: Final = 3600.0
_SHORT_BYTES: Final = 256 * 1024
# no write of so few bytes takes so long unless it waits, for the disk or for a processor
_LONG_S: Final = 0.01
_AFTER_A_LONG_ONE_S: Final = 5.0


if sys.platform == "linux":
    import resource

    def _sleeps() -> int:
        """Return how often this thread has given up its processor to wait for something.

        The call takes half a microsecond.
        """
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw

else:
    # unknown: whatever took long counts as a wait for the disk
    _sleeps = itertools.count().__next__


@dataclass(slots=True)
class CommitGroup:
    """Records of one iteration of the owner, with the callbacks for the time when they are safe.

    Built by the owner, then only read.
    """

    start: int
    end: int
    # (commit-log offset, pieces); a new one for each segment
    extents: list[tuple[int, list[bytes]]]
    # of the last extent
    pieces: list[bytes]
    # and how many they are
    entries: list[tuple[ConsumeQueue, bytes, int]] = field(default_factory=list)
    keyed: list[Keyed | PackedKeys] = field(default_factory=list)
    waiters: list[tuple[PutDone, list[PutResult]]] = field(default_factory=list)


Outcome = Sequence[Chunk] | StoreError
Complete = Callable[[Sequence[CommitGroup], Outcome], None]
Job = Callable[[], None]


class CommitWriter:
    """Writing and syncing of groups, without the thread.

    *complete* is called for every group, in order, exactly once.
    """

    def __init__(
        self,
        log: LogWriter,
        complete: Complete,
        *,
        flush: Literal["sync", "async"],
        window_bytes: int,
        window_s: float,
        ahead_bytes: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._complete, self._monotonic = log, complete, monotonic
        self._sync_each = flush == "sync"
        self._window_bytes, self._window_s, self._ahead_bytes = window_bytes, window_s, ahead_bytes
        self._end = log.prepared
        self._unsynced = 0
        # when _unsynced > 0
        self._sync_due = 0.0
        # the last commit set _sync_due
        self._just_begun = False
        self._failed: StoreError | None = None
        self._refusing: StoreFull | None = None
        # syncs of files beside the log, each after the log's own
        self.beside: list[Callable[[], None]] = []

    def commit(self, groups: Sequence[CommitGroup]) -> None:
        """Write and report *groups*, which are consecutive in the log; with flush=sync the report
        comes after the sync.
        """
        refused = self._failed or self._refusing
        if refused is not None:
            self._complete(groups, refused)
            return
        try:
            self._log.prepare(groups[-1].end)
        except OSError as exc:
            if exc.errno in NO_SPACE:
                self._refusing = StoreFull(f"no room for the commit log: {reason(exc)}")
                self._complete(groups, self._refusing)
            else:
                self._fail("making room in the commit log", exc, groups)
            return
        chunks = join_extents(groups)
        size = sum([len(data) for _, data in chunks])
        try:
            self._write(chunks, size)
        except OSError as exc:
            self._fail("writing the commit log", exc, groups)
            return
        self._end = groups[-1].end
        self._complete(groups, chunks)

    def is_short(self, group: CommitGroup) -> bool:
        """Return True if commit() would be one short write into memory, which needs neither the
        disk nor a new file.
        """
        size = group.end - group.start
        return (
            not self._sync_each
            and size <= _SHORT_BYTES
            and self._failed is None
            and self._refusing is None
            and self._unsynced + size <= self._window_bytes
            and len(group.extents) == 1
            and self._log.is_ready(group.start, group.end)
        )

    @property
    def has_work_ahead(self) -> bool:
        """Return True, after a commit, if sync_in_s() has just begun to count, or the allocated
        space is nearly used up.
        """
        return self._just_begun or self._log.prepared < self._end + self._ahead_bytes // 2

    @property
    def has_failed(self) -> bool:
        """Return True if nothing more is written."""
        return self._failed is not None

    def accept_again(self) -> None:
        """Continue at the end of the log, after the owner has taken back every refused group."""
        self._refusing = None

    def sync_in_s(self) -> float:
        """Return the seconds until sync_now() is due."""
        return max(0.0, self._sync_due - self._monotonic()) if self._unsynced else _MAX_SYNC_GAP_S

    def sync_now(self) -> None:
        if self._failed is not None:
            return
        try:
            self._sync()
        except OSError as exc:
            self._fail("syncing the commit log", exc, ())
        self._unsynced = 0

    def wrote_beside(self) -> None:
        """Sync files that were written beside the log in the same way as the log.

        Raises OSError.
        """
        if self._sync_each:
            self._sync()
        elif not self._unsynced:
            self._unsynced = 1
            self._sync_due = self._monotonic() + self._window_s

    def _sync(self) -> None:
        self._log.sync()
        for sync in self.beside:
            sync()

    def idle(self) -> None:
        """Allocate space for the near future while nothing waits, rather than between a send and
        its answer.
        """
        if self._failed is None and self._log.prepared < self._end + self._ahead_bytes:
            try:
                self._log.prepare(self._end + self._ahead_bytes)
                if self._sync_each:
                    self._log.sync()
            except OSError as exc:
                # the next group will report a full disk
                if exc.errno not in NO_SPACE:
                    self._fail("making room in the commit log", exc, ())

    def fail_by(self, doing: str, exc: Exception) -> None:
        """Fail because a job beside the groups met an error that must not be ignored."""
        if self._failed is None:
            self._fail(doing, exc, ())

    def _write(self, chunks: Sequence[Chunk], size: int) -> None:
        if self._sync_each:
            self._log.write(chunks)
            self._log.sync()
            return
        if self._unsynced + size > self._window_bytes:
            self._sync()
            self._unsynced = 0
        self._just_begun = not self._unsynced
        if self._just_begun:
            self._sync_due = self._monotonic() + self._window_s
        self._log.write(chunks)
        self._unsynced += size
        # more than may be at risk in one write: safe before it is answered
        if size > self._window_bytes:
            self._sync()
            self._unsynced = 0

    def _fail(self, doing: str, exc: Exception, groups: Sequence[CommitGroup]) -> None:
        self._failed = StoreFailed(f"{doing} failed: {exc}; nothing more is written")
        self._complete(groups, self._failed)


def join_extents(groups: Sequence[CommitGroup]) -> list[Chunk]:
    """Return one chunk for each segment that the groups touch."""
    runs: list[tuple[int, list[bytes]]] = []
    end = -1
    for group in groups:
        for at, (offset, pieces) in enumerate(group.extents):
            if at == 0 and offset == end:
                runs[-1][1].extend(pieces)
            else:
                runs.append((offset, list(pieces)))
        end = group.end
    return [(offset, b"".join(pieces)) for offset, pieces in runs if pieces]


class Writer(Protocol):
    """Worker that runs posted jobs, in order."""

    def post(self, job: CommitGroup | Job) -> None: ...

    def close(self) -> None:
        """Return when all posted jobs are done and synced."""


MakeWriter = Callable[[CommitWriter, int], Writer]
"""Called with the work, and the most bytes of groups that become one write."""


def _look_again() -> None:
    """Let the thread check for work to do ahead."""


class WriterThread:
    """Inbox and the thread that empties it.

    *_working* protects the work: the thread that holds it, this one or the owner's, is the writer
    at that moment. The owner only tries to take it, and only when the thread has carried out all
    posted jobs: so the order is always kept.
    """

    def __init__(
        self,
        work: CommitWriter,
        max_group_bytes: int,
        monotonic: Callable[[], float] = time.monotonic,
        sleeps: Callable[[], int] = _sleeps,
    ) -> None:
        self.work = work
        self._max_group_bytes = max_group_bytes
        self._monotonic, self._sleeps = monotonic, sleeps
        self._working = threading.Lock()
        # changed by the owner
        self._posted = 0
        # changed by the thread: so many of them
        self._done = 0
        # before it the owner writes nothing itself
        self._here_from = 0.0
        # bounded by the owner: max_waiting_bytes, one flush job
        self._inbox: queue.SimpleQueue[CommitGroup | Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ogive-store-writer", daemon=True)
        self._thread.start()

    def post(self, job: CommitGroup | Job) -> None:
        if (
            isinstance(job, CommitGroup)
            and self._posted == self._done
            and self._working.acquire(blocking=False)
        ):
            try:
                written = self._written_here(job)
                if written and not self.work.has_work_ahead:
                    return
            finally:
                self._working.release()
            if written:
                job = _look_again
        self._posted += 1
        self._inbox.put(job)

    def _written_here(self, group: CommitGroup) -> bool:
        """Write on the owner's thread, which has taken the work."""
        started = self._monotonic()
        if started < self._here_from or not self.work.is_short(group):
            return False
        sleeps = self._sleeps()
        try:
            self.work.commit([group])
        except Exception as exc:
            # a bug: without this, every put from here on would wait for ever
            self.work.fail_by("the store's writer", exc)
            raise
        now = self._monotonic()
        if now - started > _LONG_S and self._sleeps() != sleeps:
            self._here_from = now + _AFTER_A_LONG_ONE_S
        return True

    def close(self) -> None:
        """Carry out all posted jobs, sync, and end the thread."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._empty_inbox()
        except Exception as exc:
            # a bug: without this, every put from here on would wait for ever
            self.work.fail_by("the store's writer", exc)
            raise

    def _empty_inbox(self) -> None:
        work, inbox = self.work, self._inbox
        while True:
            try:
                job = inbox.get(timeout=work.sync_in_s())
            except queue.Empty:
                with self._working:
                    if work.sync_in_s() == 0.0:
                        work.sync_now()
                continue
            with self._working:
                if not self._carry_out(job):
                    return

    def _carry_out(self, job: CommitGroup | Job | None) -> bool:
        """Run *job*, and the groups that wait after it. Return False at the end."""
        work, inbox = self.work, self._inbox
        groups: list[CommitGroup] = []
        size = 0
        while isinstance(job, CommitGroup):
            groups.append(job)
            size += job.end - job.start
            if size >= self._max_group_bytes or inbox.empty():
                break
            job = inbox.get()
        if groups:
            work.commit(groups)
        if job is None:
            work.sync_now()
            return False
        if not isinstance(job, CommitGroup):
            job()
        self._done += len(groups) + (not isinstance(job, CommitGroup))
        if work.sync_in_s() == 0.0:
            work.sync_now()
        if inbox.empty():
            work.idle()
        return True


class FullDisk:
    """Rule that refuses writes for a second after the disk was full. Owner thread only."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # no write before; 0: the disk took the last one
        self.until_s = 0.0
        # the last refusal
        self.error = StoreFull("no room in the store")
        # in the log, until writes are taken again
        self.is_logged = False

    def check(self) -> None:
        """Raise StoreFull until it is time to try the disk again."""
        if self._monotonic() < self.until_s:
            raise StoreFull(str(self.error))
        self.until_s = 0.0

    def extend(self) -> None:
        self.until_s = self._monotonic() + _RETRY_FULL_S

    def refuse(self, error: StoreFull) -> None:
        """Refuse writes for a second. Logged once, however often this is repeated."""
        self.error = error
        self.extend()
        if not self.is_logged:
            self.is_logged = True
            log.warning("the store refuses writes: %s", error)

    def end(self) -> None:
        """Record that a write succeeded."""
        if self.is_logged:
            self.is_logged = False
            log.warning("the store accepts writes again")


class WriterLink:
    """Jobs from the owner thread to the writer, and reports back to the owner, in order.

    *failed* is the error after which nothing more is written.
    """

    def __init__(self, work: CommitWriter, full: FullDisk) -> None:
        self.work, self.full = work, full
        self.failed: StoreError | None = None
        self.is_closed = False
        self._writer: Writer | None = None
        self._wake_owner: Callable[[Job], object] | None = None
        self._reports: deque[Job] = deque()
        self._in_submit = False

    def start(self, wake_owner: Callable[[Job], object], writer: Writer) -> None:
        self._wake_owner = wake_owner
        self._writer = writer
        # lets it make its first room ahead
        self.post(lambda: None)

    @property
    def is_running(self) -> bool:
        return self.failed is None and self._writer is not None and not self.is_closed

    def check_running(self) -> None:
        """Raise the error in *failed*, and IllegalStateError outside start() .. close()."""
        if self.failed is not None:
            raise self.failed
        if not self.is_running:
            raise IllegalStateError("the store is not running")

    def post(self, job: CommitGroup | Job) -> None:
        """Hand *job* to the writer; do nothing before start()."""
        if self._writer is not None:
            self._writer.post(job)

    def post_from_any_thread(self, job: Job) -> None:
        """Let the owner post *job*; do nothing before start()."""
        if self._wake_owner is not None:
            self._wake_owner(functools.partial(self.post, job))

    def call_owner(self, report: Job) -> None:
        """Let the owner run *report*, in order; called on the thread that writes.

        close() runs those that are left. An owner in submit() runs reports itself before it
        returns, so it need not be woken.
        """
        self._reports.append(report)
        if self._wake_owner is not None and not self._in_submit:
            self._wake_owner(self.run_reports)

    def submit(self, hand_over: Callable[[], None]) -> None:
        """Run *hand_over*, then all reports."""
        self._in_submit = True
        try:
            hand_over()
        finally:
            self._in_submit = False
        self.run_reports()

    def run_reports(self) -> None:
        while self._reports:
            self._reports.popleft()()

    def close(self) -> None:
        """Return when all posted jobs are done and reported."""
        if self._writer is not None:
            self._writer.close()
            self.run_reports()
        self.is_closed = True
