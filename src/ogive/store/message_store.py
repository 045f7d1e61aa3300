"""The durable store: commit log, consume queues, checkpoint and lock of one directory, in Apache's
byte layout.

Behaviour
- One owner thread calls everything here; one writer at a time changes the files: a thread, or with
  flush=async the owner itself for a short group while that thread is idle (see writer.py). They
  communicate through groups: put() assigns offsets and builds records, submit() hands the current
  group over, and the writer reports back through *call_owner*.
- flush=sync: a message is acknowledged, and visible to get(), max_offset() and on_arrival, after
  the sync that made it durable. flush=async: after the write; a sync follows within half a second
  or 4 MiB.
- A failed write or sync is final: all waiting and all later messages get the error, and nothing is
  tried again.
- A full disk refuses all waiting messages and takes their offsets back; a put a second later tries
  again.

Differs from Java
- No memory-mapped writes, so an I/O error is an exception. No message is visible before it is
  durable.
- Consume queues are written later, by the writer thread, and checked at the start.
"""

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Self

from ogive.errors import InvalidOption, StoreBusy, StoreError, StoreFull
from ogive.store import checkpoint as checkpoints
from ogive.store.appender import Appender
from ogive.store.clock import SteadyClock, now_ms
from ogive.store.commitlog import LogReader, LogWriter
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.deletions import StoredTopics
from ogive.store.derived_files import DerivedFiles, FlushPolicy
from ogive.store.directory import lock_directory, mark_ours, unusable
from ogive.store.file_reader import Cold, Disk, Place, bring_in
from ogive.store.fs import Fs, OsFs, reason
from ogive.store.journal import Journal
from ogive.store.log_scan import Scrubbed, scrub
from ogive.store.queue_reader import QueueReader
from ogive.store.recovery import Recovered, recover
from ogive.store.retention import LogRetention
from ogive.store.tables import make_lasting_dirs
from ogive.store.types import (
    Entry,
    FileSizes,
    GetResult,
    Messages,
    NewMessage,
    PutDone,
    QueueKey,
    StoreConfig,
    StoreStats,
)
from ogive.store.writer import (
    CommitGroup,
    CommitWriter,
    FullDisk,
    MakeWriter,
    Outcome,
    WriterLink,
    WriterThread,
)

log = logging.getLogger(__name__)


class MessageStore:
    """Durable store, see the module. Create it with open(); it runs between start() and close()."""

    def __init__(
        self,
        fs: Fs,
        config: StoreConfig,
        lock: int,
        recovered: Recovered,
        clock_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.config = config
        self._fs, self._lock = fs, lock
        self._queues = recovered.queues
        self._kinds = recovered.kinds
        self._index = recovered.index
        # a power cut may have taken the newest messages before this start
        self.may_be_torn = recovered.torn
        self._clock = SteadyClock(clock_ms, monotonic, recovered.store_timestamp_ms)
        self._appender = Appender(
            config,
            recovered.queues,
            segment_bytes=recovered.segment_bytes,
            kinds=recovered.kinds,
            end=recovered.end,
            store_timestamp_ms=recovered.store_timestamp_ms,
            clock_ms=self._clock.now_ms,
        )
        commitlog = config.root / "commitlog"
        self._disk = Disk(fs, config.max_open_files)
        self._log = LogReader(
            self._disk,
            commitlog,
            recovered.segment_bytes,
            start=recovered.start,
            end=recovered.end,
            crc_from=recovered.crc_from,
            hot_bytes=config.hot_log_bytes,
            checksum_block_bytes=config.checksum_block_bytes,
            known_damage=recovered.damaged_places,
        )
        self._reader = QueueReader(self._log, self._disk, recovered.queues)
        self._log_writer = LogWriter(
            fs, commitlog, recovered.segment_bytes, recovered.end, zeros=config.flush == "sync"
        )
        self._work = CommitWriter(
            self._log_writer,
            self._report,
            flush=config.flush,
            window_bytes=config.async_window_bytes,
            window_s=config.async_window_s,
            ahead_bytes=config.ahead_bytes,
            monotonic=monotonic,
        )
        self._full = FullDisk(monotonic)
        self._link = WriterLink(self._work, self._full)
        self._derived = DerivedFiles(
            fs,
            config.root,
            config.max_open_files,
            self._log_writer.sync,
            recovered.end,
            dict(recovered.deleted),
        )
        self._flushes = FlushPolicy(
            config,
            self._log,
            self._appender,
            self._index,
            recovered.deleted,
            self._derived,
            self._link,
        )
        self.topics = StoredTopics(
            recovered.deleted,
            self._kinds,
            self._appender,
            self._log,
            self._disk,
            self._flushes,
            self._derived,
            self._link,
            self._hand_over,
        )
        self.retention = LogRetention(
            self._log,
            self._disk,
            self._reader,
            self._index,
            self.topics,
            self._flushes,
            self._derived,
            self._link,
        )
        self.journal = Journal(fs, config.root / "leases", self._work, self._link)
        self._damaged_before = recovered.damaged
        self._stats = StoreStats()
        self.on_failure: Callable[[StoreError], None] | None = None
        self.on_arrival: Callable[[dict[QueueKey, int]], None] | None = None
        # what to call when a queue has grown, after on_arrival
        self.on_growth: dict[QueueKey, Callable[[], None]] = {}

    # --- life -------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        fs: Fs | None = None,
        clock_ms: Callable[[], int] = now_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Lock the directory, recover it and mark it as in use.

        Raises StoreLocked, StoreUnusable, StoreCorrupt, with one plain sentence each.
        """
        fs = fs or OsFs()
        lock = lock_directory(fs, config.root)
        try:
            # batchconsumequeue where there is need of it
            for name in ("commitlog", "consumequeue", "index", "config"):
                make_lasting_dirs(fs, config.root / name)
            recovered = recover(fs, config, clock_ms())
            mark_ours(fs, lock)
            checkpoints.mark_running(fs, config.root, config.flush)
        except BaseException as exc:
            fs.close(lock)
            if isinstance(exc, OSError):
                raise unusable(config.root, exc) from exc
            raise
        return cls(fs, config, lock, recovered, clock_ms, monotonic)

    def start(
        self,
        call_owner: Callable[[Callable[[], None]], object],
        *,
        writer: MakeWriter = WriterThread,
    ) -> None:
        """Accept puts.

        *call_owner*(fn) must call fn() on the owner thread soon; the writer thread calls it, until
        close() returns.

        *writer* creates the object that does the writes.
        """
        self._link.start(call_owner, writer(self._work, self.config.max_group_bytes))

    @property
    def failed(self) -> StoreError | None:
        """The error that ended all storing, or None."""
        return self._link.failed

    def close(self) -> None:
        """Write, sync and acknowledge all messages that were put, and release the directory.

        Blocks; a second call does nothing.
        """
        if self._link.is_closed:
            return
        self._hand_over()
        self.journal.submit()
        self._link.close()
        self.journal.close()
        if self.failed is None:
            self._write_last()
        self._log_writer.close()
        self._derived.close()
        self._disk.close()
        self._fs.close(self._lock)

    def _write_last(self) -> None:
        self.topics.remove_rest()
        try:
            self._flushes.write_last()
            checkpoints.mark_stopped(self._fs, self.config.root)
        except OSError as exc:
            log.error(
                "the store in %s was not closed cleanly, the next start will read its log again: "
                "%s",
                self.config.root,
                reason(exc),
            )

    # --- writing ----------------------------------------------------------------------------------

    def put(self, messages: Messages, done: PutDone) -> None:
        """Place *messages*, all or none, in one segment.

        *done* is called once, on the owner thread. If the messages are refused at once, this
        raises, and never calls *done*: StoreBusy, StoreFull, the error in *failed*, InvalidOption
        for a message that no record can hold, IllegalStateError outside start() .. close().
        """
        self._check_accepts()
        if not messages:
            raise InvalidOption("a batch of no messages")
        if self._appender.append(messages, done) >= self.config.max_group_bytes:
            self._hand_over()

    def _check_accepts(self) -> None:
        """Raise the error that currently refuses every message, if any."""
        self._link.check_running()
        if self._appender.waiting_bytes > self.config.max_waiting_bytes:
            raise StoreBusy(f"{self._appender.waiting_bytes} bytes wait to be written")
        if self._full.until_s:
            self._full.check()
            self._flushes.retry()

    def check_fits(
        self, message: NewMessage, spare_bytes: int = 0, topic: str | None = None
    ) -> None:
        """Raise InvalidOption for a message that put() would always refuse with *spare_bytes*
        added to it, in *topic* instead of its own.
        """
        self._appender.check_fits(message, spare_bytes, topic or message.topic)

    def submit(self) -> None:
        """Hand the messages that were put to the writer. Call this once per iteration of the owner;
        it is cheap if there are none.

        Reports of the writer meanwhile, also about a group that it wrote at once, are handled
        before this returns.
        """
        self._link.submit(self._hand_over)

    def _hand_over(self) -> None:
        group = self._appender.take()
        if group is not None:
            self._link.post(group)

    def fail(self, doing: str, exc: OSError) -> None:
        """Acknowledge nothing any more: a file beside the log met an error. Any thread may call
        this; it does nothing before start().
        """
        self._link.post_from_any_thread(functools.partial(self._work.fail_by, doing, exc))

    def sync(self, done: Callable[[], None]) -> None:
        """Sync all messages that were put, also with flush=async; then *done* is called on the
        owner thread.

        It is called after a failure too: check *failed*. Raises the error in *failed*, and
        IllegalStateError outside start() .. close().
        """
        self._link.check_running()
        self._hand_over()
        self._link.post(functools.partial(self._sync_job, done))

    def _sync_job(self, done: Callable[[], None]) -> None:
        """Sync the log, on the writer thread."""
        self._work.sync_now()
        self._link.call_owner(done)

    # --- files ------------------------------------------------------------------------------------

    @property
    def segment_bytes(self) -> int:
        return self._log.segment_bytes

    @property
    def file_sizes(self) -> FileSizes:
        return FileSizes(
            self._log.segment_bytes,
            self._kinds.usual.file_bytes,
            self._kinds.batches.file_bytes,
            self._index.sizes,
        )

    def scrub_step(self, position: int, most_bytes: int) -> Callable[[], Scrubbed]:
        """Return a function that checks about *most_bytes* of records from *position* on.

        It may run on any thread, and raises OSError.
        """
        return functools.partial(
            scrub,
            self._fs,
            self._log.directory,
            self._log.segment_bytes,
            self._log.crc_from,
            self._disk.unreadable,
            position,
            self._log.end,
            most_bytes,
        )

    def report_damage(self, commitlog_offset: int, size: int) -> None:
        """Count a damaged place of the log, and log it, unless it is known already."""
        if commitlog_offset >= self._log.start:
            self._log.report(commitlog_offset, size)

    # --- reading ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the store time of a message put now, in ms since 1970. It never goes back, however
        the clock is set.
        """
        return self._clock.now_ms()

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return one past the last visible message."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_codes: frozenset[int] | None = None,
        *,
        wait: bool = True,
    ) -> GetResult:
        """Return messages from *offset* on, at least one if there is any, or else the reason why
        there is none.

        *tag_codes*: Java hashes of the wanted tags. Raises StoreError; Cold with wait=False, or
        within without_waiting().
        """
        before = self._disk.waits
        self._disk.waits = before and wait
        try:
            return self._reader.get(topic, queue_id, offset, max_messages, max_bytes, tag_codes)
        finally:
            self._disk.waits = before

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry]:
        """Return the visible consume-queue entries of *count* offsets from *offset* on. Fillers
        have size 2147483647.
        """
        queue = self._queues.get((topic, queue_id))
        return self._reader.visible_entries(queue, offset, count) if queue is not None else []

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """Return the visible record at a commit-log offset, or None."""
        return self._log.record_at(commitlog_offset)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store timestamp in ms; -1 if there is no message."""
        queue = self._queues.get((topic, queue_id))
        return self._reader.store_time(queue, offset) if queue is not None else -1

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """Return the first offset stored at or after *timestamp_ms* (max_offset if none), or
        with *upper* the last at or before it (min_offset if none).
        """
        queue = self._queues.get((topic, queue_id))
        return self._reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def find_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[bytes | Cold | None]:
        """Yield the visible records of *topic* with *key*, as a key or unique key, stored from
        *begin_ms* to *end_ms*, the newest first.

        Yields None now and then, so that the caller may let other work run, and Cold while reads do
        not wait: bring it in, then continue.
        """
        deleted_before = self.topics.deleted_before(topic)
        return self._reader.find_key(self._index, deleted_before, topic, key, begin_ms, end_ms)

    @property
    def indexed_up_to(self) -> tuple[int, int]:
        """Store time and commit-log offset of the newest message in the index of keys; zeros if it
        is empty.
        """
        self._index.build()
        return (
            (self._index.files[-1].end_ms, self._index.files[-1].end_offset)
            if self._index.files
            else (0, 0)
        )

    def without_waiting(self) -> AbstractContextManager[None]:
        """See Disk.without_waiting()."""
        return self._disk.without_waiting()

    def waiting(self) -> AbstractContextManager[None]:
        """See Disk.waiting()."""
        return self._disk.waiting()

    def bring_in(self, place: Place) -> bytes:
        """Read the missing data, on any thread. Raises StoreError."""
        try:
            return bring_in(self._fs, place)
        except OSError as exc:
            raise StoreError(f"{place.path} cannot be read at {place.offset}: {exc}") from exc

    def keep(self, place: Place, data: bytes) -> None:
        """See Disk.keep."""
        self._disk.keep(place, data)

    def keep_nothing(self) -> None:
        """See Disk.keep."""
        self._disk.keep_nothing()

    @property
    def queues(self) -> Iterable[QueueKey]:
        return self._queues.keys()

    def stats(self) -> StoreStats:
        stats = self._stats
        stats.waiting_bytes = self._appender.waiting_bytes
        stats.damaged = self._damaged_before + self._log.damaged
        stats.commitlog_start, stats.commitlog_end = self._log.start, self._log.end
        stats.queues = len(self._queues)
        return stats

    # --- what the writer reports ------------------------------------------------------------------

    def _report(self, groups: Sequence[CommitGroup], outcome: Outcome) -> None:
        self._link.call_owner(functools.partial(self._finished, groups, outcome))

    def _finished(self, groups: Sequence[CommitGroup], outcome: Outcome) -> None:
        if isinstance(outcome, StoreFull):
            self._refuse(groups, outcome)
        elif isinstance(outcome, StoreError):
            self._fail(outcome)
        elif groups[0] is not self._first_waiting():
            raise AssertionError("the writer reported a group that nobody waits for")
        else:
            for offset, data in outcome:
                self._log.add(offset, data)
            self._dispatch(groups)

    def _dispatch(self, groups: Sequence[CommitGroup]) -> None:
        """Make *groups* visible, then call their *done*."""
        self._appender.finish(groups)
        if not self._flushes.is_refused:
            self._full.end()
        touched: dict[QueueKey, ConsumeQueue] = {}
        for group in groups:
            for queue, entries, count in group.entries:
                queue.tail += entries
                queue.max_offset += count
                self._stats.puts += count
                touched[queue.key] = queue
            self._index.add(group.keyed)
        self._stats.groups += len(groups)
        self._stats.put_bytes += groups[-1].end - self._log.end
        self._log.end = groups[-1].end
        for group in groups:
            for done, results in group.waiters:
                try:
                    done(results)
                except Exception:
                    # as in _call(), without the cost of a call per message
                    log.exception("a put callback failed")
        if self.on_arrival is not None and touched:
            self.on_arrival({key: queue.max_offset for key, queue in touched.items()})
        for key in touched.keys() & self.on_growth.keys():
            self.on_growth[key]()
        self._flushes.add(touched.values())

    @property
    def takes_writes(self) -> bool:
        """Return False while the disk is full, and after a failure."""
        return self.failed is None and not self._full.is_logged

    def _refuse(self, groups: Sequence[CommitGroup], error: StoreFull) -> None:
        # taken back already, with the group that met the full disk
        if not groups or groups[0] is not self._first_waiting():
            self._full.extend()
            return
        self._full.refuse(error)
        taken = self._appender.take_back()
        self._link.post(self._work.accept_again)
        for group in taken:
            for done, _ in group.waiters:
                _call(done, error)

    def _fail(self, error: StoreError) -> None:
        if self.failed is not None:
            return
        self._link.failed = error
        log.critical("the store stops: %s", error)
        for group in self._appender.take_back():
            for done, _ in group.waiters:
                _call(done, error)
        if self.on_failure is not None:
            self.on_failure(error)

    def _first_waiting(self) -> CommitGroup | None:
        return self._appender.waiting[0] if self._appender.waiting else None


def _call(done: PutDone, error: StoreError) -> None:
    try:
        done(error)
    except Exception:
        # the caller's code: the other puts of the group must still get their answers
        log.exception("a put callback failed")
