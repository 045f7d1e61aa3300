"""The durable store: commit log, consume queues, checkpoint and lock of one directory, in Apache's
byte layout.

Behaviour
- One owner thread calls everything here; one writer at a time changes the files: a thread, or with
  flush=async the owner itself for a short group while that thread is idle (see writer.py). They
  talk through groups: put() gives out offsets and builds records, submit() hands over what was
  formed, and the writer reports back through *call_owner*.
- flush=sync: a message is answered, and visible to get(), max_offset() and on_arrival, after the
  sync that made it durable. flush=async: after the write; a sync follows within half a second or 4
  MiB.
- A failed write or sync is final: everything waiting and everything later gets the error, nothing
  is tried again.
- A full disk refuses everything that waits and takes its offsets back; a put that comes a second
  later tries again.

Differs from Java
- No memory-mapped writes, so an I/O error is an error. No message is visible before it is durable.
- Consume queues are written behind, by the writer thread, and checked at the start.
"""

import functools
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Self

from ogive.errors import IllegalStateError, InvalidOption, StoreBusy, StoreError, StoreFull
from ogive.store import checkpoint as checkpoints
from ogive.store.appender import Appender
from ogive.store.clock import SteadyClock, now_ms
from ogive.store.commitlog import LogReader, LogWriter
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.derived_files import DerivedFiles, Flush, QueueFlusher
from ogive.store.directory import lock_directory, mark_ours, unusable
from ogive.store.file_reader import Cold, Disk, Place, all_of, bring_in
from ogive.store.fs import NO_SPACE, Fs, OsFs, reason
from ogive.store.log_scan import Scrubbed, scrub
from ogive.store.queue_reader import QueueReader
from ogive.store.record import has_key, store_timestamp
from ogive.store.recovery import Recovered, recover
from ogive.store.segments import segment_path
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
from ogive.store.writer import Group, GroupWriter, Job, MakeWriter, Outcome, Writer, WriterThread

log = logging.getLogger(__name__)

_RETRY_FULL_S = 1.0
_QUEUES_AT_ONCE = 200
# removed by one job of the writer: a few milliseconds
_PATHS_AT_ONCE = 32
# to look up some queues; beyond it the reads wait for the disk
_MAX_TRIES = 256


class MessageStore:
    """See the module. Made by open(), running between start() and close()."""

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
        self._fs, self._lock, self._monotonic = fs, lock, monotonic
        self._segment_bytes = recovered.segment_bytes
        self._crc_from = recovered.crc_from
        self._queues = recovered.queues
        self._kinds = recovered.kinds
        self._recovered_damage = recovered.damaged
        # whether a power cut may have taken the newest messages before this start
        self.may_be_torn = recovered.torn
        self._clock = SteadyClock(clock_ms, monotonic, recovered.store_timestamp_ms)
        self._visible_end = recovered.end
        self._appender = Appender(
            config,
            recovered.queues,
            segment_bytes=recovered.segment_bytes,
            kinds=recovered.kinds,
            end=recovered.end,
            store_timestamp_ms=recovered.store_timestamp_ms,
            clock_ms=self._clock.now_ms,
        )
        commitlog = self._log_directory = config.root / "commitlog"
        self._disk = Disk(fs, config.max_open_files)
        self._log = LogReader(
            self._disk,
            commitlog,
            recovered.segment_bytes,
            start=recovered.start,
            crc_from=recovered.crc_from,
            hot_bytes=config.hot_log_bytes,
            stretch_bytes=config.stretch_bytes,
            known_damage=recovered.damaged_places,
        )
        self._reader = QueueReader(self._log, self._disk, recovered.queues)
        self._index = recovered.index
        self._deleted = recovered.deleted
        # the lowest offset of every queue is that of a log which begins there, or later
        self._queues_start = recovered.start
        self._log_writer = LogWriter(
            fs, commitlog, recovered.segment_bytes, recovered.end, zeros=config.flush == "sync"
        )
        self._derived = DerivedFiles(
            fs,
            config.root,
            config.max_open_files,
            self._log_writer.sync,
            recovered.end,
            dict(recovered.deleted),
        )
        self._flusher = QueueFlusher(
            config,
            recovered.queues,
            recovered.index,
            recovered.end,
            recovered.deleted,
            recovered.crc_from,
            lambda: self._queues_start,
        )
        self._work = GroupWriter(
            self._log_writer,
            self._report,
            flush=config.flush,
            window_bytes=config.async_window_bytes,
            window_s=config.async_window_s,
            ahead_bytes=config.ahead_bytes,
            monotonic=monotonic,
        )
        self._writer: Writer | None = None
        self._call_owner: Callable[[Callable[[], None]], object] | None = None
        self._reports: deque[Callable[[], None]] = deque()
        self._in_submit = False
        self._full_until = 0.0
        # what was refused last
        self._full = StoreFull("no room in the store")
        # in the log, until writes are taken again
        self._told_full = False
        # of deleted topics, see remove_queues(); the first is under way
        self._removals: deque[Iterator[None]] = deque()
        # the current flush met a full disk, and waits to be tried again
        self._flush_refused = False
        self._closed = False
        self._stats = StoreStats()
        self.failed: StoreError | None = None
        self.on_failure: Callable[[StoreError], None] | None = None
        self.on_arrival: Callable[[dict[QueueKey, int]], None] | None = None

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

        Raises StoreLocked, StoreUnusable, StoreCorrupt: a plain sentence each.
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

        *call_owner*(fn) has fn() called on the owner thread soon; the writer thread calls it, until
        close() returns.

        *writer* makes what carries out the writes.
        """
        self._call_owner = call_owner
        self._writer = writer(self._work, self.config.max_group_bytes)
        # lets it make its first room ahead
        self._writer.post(lambda: None)

    def close(self) -> None:
        """Write and sync what was put, answer it, and release the directory.

        Blocks; a second call does nothing.
        """
        if self._closed:
            return
        if self._writer is not None:
            self._hand_over()
            self._writer.close()
            self._run_reports()
        self._closed = True
        if self.failed is None:
            self._flush_last()
        self._log_writer.close()
        self._derived.close()
        self._disk.close()
        self._fs.close(self._lock)

    # --- writing ----------------------------------------------------------------------------------

    def put(self, messages: Messages, done: PutDone) -> None:
        """Place *messages*, all or none, in one segment.

        *done* is called once, on the owner thread.

        Raises what refuses it at once, and then never calls *done*: StoreBusy, StoreFull, the error
        in *failed*, InvalidOption for a message that no record can hold, IllegalStateError outside
        start() .. close().
        """
        self._check_accepts()
        if not messages:
            raise InvalidOption("a batch of no messages")
        if self._appender.append(messages, done) >= self.config.max_group_bytes:
            self._hand_over()

    def _check_accepts(self) -> None:
        """Raises what refuses every message now."""
        self._check_running()
        if self._appender.waiting_bytes > self.config.max_waiting_bytes:
            raise StoreBusy(f"{self._appender.waiting_bytes} bytes wait to be written")
        if self._full_until:
            self._try_again()

    def _check_running(self) -> None:
        if self.failed is not None:
            raise self.failed
        if not self._is_running():
            raise IllegalStateError("the store is not running")

    def check_fits(self, message: NewMessage, spare_bytes: int = 0) -> None:
        """Raises InvalidOption for a message that put() would refuse whenever it came,
        *spare_bytes* added to it.
        """
        self._appender.check_fits(message, spare_bytes)

    def submit(self) -> None:
        """Hand what was put to the writer.

        Called once per turn of the owner; cheap when there is nothing.

        What the writer reports meanwhile, a group that it wrote at once too, is dealt with before
        this returns.
        """
        self._in_submit = True
        try:
            self._hand_over()
        finally:
            self._in_submit = False
        self._run_reports()

    def _hand_over(self) -> None:
        group = self._appender.take()
        if group is not None:
            self._post(group)

    def _post(self, job: Group | Job) -> None:
        """To the writer; nothing before start()."""
        if self._writer is not None:
            self._writer.post(job)

    def fail(self, doing: str, exc: OSError) -> None:
        """A file beside the log met an error after which nothing more may be acknowledged.

        On any thread; nothing before start().
        """
        if self._call_owner is not None:
            self._call_owner(
                functools.partial(self._post, functools.partial(self._work.fail_by, doing, exc))
            )

    def sync(self, done: Callable[[], None]) -> None:
        """Have everything that was put synced, also with flush=async; then *done* is called on the
        owner thread.

        It is called after a failure too: *failed* tells. Raises the error in *failed*, and
        IllegalStateError outside start() .. close().
        """
        self._check_running()
        self._hand_over()
        self._post(functools.partial(self._sync_job, done))

    def _sync_job(self, done: Callable[[], None]) -> None:
        """Writer thread."""
        self._work.sync_now()
        self._on_owner(done)

    def check_topic(self, topic: str, *, batches: bool) -> None:
        """Raises InvalidOption where make_topic() would lose messages: they came after a topic of
        the other kind was deleted, or its table was lost.
        """
        if batches == (topic in self._kinds.batched):
            return
        count = sum(
            [
                queue.next_offset - queue.min_offset
                for key, queue in self._queues.items()
                if key[0] == topic
            ]
        )
        if count:
            other = "without" if batches else "with"
            raise InvalidOption(
                f"topic {topic}: {count} messages are kept for it as a topic {other} "
                "queue.type=BatchCQ: make it so, or have them removed "
                "first (mqadmin cleanUnusedTopic)"
            )

    def make_topic(self, topic: str, *, batches: bool) -> None:
        """A new topic, before anything is put to it: whether its batches are kept whole, each as
        one record with the flag INNER_BATCH.

        Queues of that name that were made otherwise are forgotten, see check_topic().
        """
        if batches == (topic in self._kinds.batched):
            return
        self.delete_topic(topic)
        if batches:
            self._kinds.batched.add(topic)

    def has_batches(self, topic: str) -> bool:
        """Whether it is a topic of batches, and has queues."""
        return topic in self._kinds.batched and any(key[0] == topic for key in self._queues)

    def delete_topic(self, topic: str) -> None:
        """Forget every queue of *topic*.

        Its records stay in the log, unseen; after a crash too once is_deletion_saved() says so.
        """
        self._kinds.batched.discard(topic)
        directories = [queue.directory for queue in self._appender.forget_topic(topic)]
        self._disk.forget_under(directories)
        if directories and self.failed is None and self._writer is not None:
            # not later: a full disk may take back what waits, with its offsets
            self._flusher.forget(topic, self._visible_end)
            self._hand_over()
            self._flusher.held = True
            # once they are gone
            self._flush(checkpoint=True)
            self._removals.append(self._derived.remove_queues(directories))
            if len(self._removals) == 1:
                self._post_removal()
        if self._flush_refused and not self._removals and self._is_running():
            # there may be room by now
            self._post_flush()

    def _post_removal(self) -> None:
        """The next paths: not all at once, so that what is put meanwhile does not wait for them."""
        self._post(functools.partial(self._removal_job, self._removals[0]))

    def _removal_job(self, removal: Iterator[None]) -> None:
        """Writer thread."""
        steps = sum(1 for _ in itertools.islice(removal, _PATHS_AT_ONCE))
        self._on_owner(functools.partial(self._removed, ended=steps < _PATHS_AT_ONCE))

    def _removed(self, *, ended: bool) -> None:
        if self.failed is not None:
            # the rest stays, as after a crash: no checkpoint tells of the deletion
            return
        if ended:
            self._removals.popleft()
        if self._removals:
            self._post_removal()
            return
        self._flusher.held = False
        if self._flush_refused:
            # there may be room by now
            self._post_flush()
        self._flush()

    def has_topic(self, topic: str) -> bool:
        """Whether *topic* has queues."""
        return self._appender.has_topic(topic)

    def was_deleted(self, topic: str) -> bool:
        """Whether records of a topic of that name that was deleted may be in the log."""
        return topic in self._deleted

    def is_deletion_saved(self, topic: str) -> bool:
        """Whether a checkpoint on the disk says that *topic* was deleted, if it was.

        Raises StoreFull where there is no room for one.
        """
        position = self._deleted.get(topic)
        if position is None or self._derived.saved_deletions.get(topic) == position:
            return True
        if self._flush_refused and not self._removals:
            raise StoreFull(str(self._full))
        return False

    # --- retention --------------------------------------------------------------------------------

    @property
    def segment_bytes(self) -> int:
        return self._segment_bytes

    @property
    def file_sizes(self) -> FileSizes:
        return FileSizes(
            self._segment_bytes,
            self._kinds.usual.file_bytes,
            self._kinds.batches.file_bytes,
            self._index.sizes,
        )

    @property
    def full_segments(self) -> list[int]:
        """The start offsets of all segments but the one being written, oldest first."""
        newest = self._visible_end - self._visible_end % self._segment_bytes
        return list(range(self._log.start, newest, self._segment_bytes))

    def expire(self, until: int) -> Iterator[Cold | None]:
        """Remove the segments before *until*, and the queue and index files that refer only to
        them.

        Works while it is iterated over, so that others may run between two steps. A Cold is to be
        brought in before the next step. The lowest offsets of queues move up for good: before the
        first one does, a checkpoint records where each queue ends, and a note what is about to be
        removed. Files that cannot be removed then wait for remove_left(). Raises StoreError where a
        queue cannot be read: nothing has moved, and all waits for the next call.
        """
        start = self._log.start
        until = min(
            until - until % self._segment_bytes,
            self._visible_end - self._visible_end % self._segment_bytes,
        )
        if until > start and self._is_running():
            until = yield from self._checkpointed(until)
        if until <= start or not self._is_running():
            return
        lowest = yield from self._lowest_at(until)
        yield from self._noted(until)
        if not self._is_running():
            return
        gone = [
            segment_path(self._log_directory, at) for at in range(start, until, self._segment_bytes)
        ]
        self._log.begin_at(until)
        dropped: list[tuple[ConsumeQueue, list[Path]]] = []
        for number, (queue, index, low) in enumerate(lowest):
            if self._queues.get(queue.key) is queue:
                queue.begin_at(index, low)
                dropped.append((queue, queue.drop_files()))
            if number % _QUEUES_AT_ONCE == 0:
                yield None
        # not before: a stop in between leaves the rest to the next start
        self._queues_start = until
        for queue, files in dropped:
            # else its topic was deleted in between, and may have new files of these names
            if self._queues.get(queue.key) is queue:
                gone += files
        for topic in [topic for topic, before in self._deleted.items() if before <= until]:
            del self._deleted[topic]
        index_files = self._index.expire(until)
        if not self._is_running():
            return
        for path in (*gone, *index_files):
            self._disk.forget(path)
        self._flush(checkpoint=True)
        self._post(functools.partial(self._derived.remove_expired, gone, index_files))

    def remove_left(self) -> None:
        """Try again to remove files of old messages that expire() could not remove."""
        if self._derived.has_left and self._is_running():
            self._post(self._derived.remove_left)

    def _lowest_at(
        self, until: int
    ) -> Generator[Cold | None, None, list[tuple[ConsumeQueue, int, int]]]:
        """The lowest entry of each queue once the log begins at *until*, and its offset.

        Raises StoreError where a queue cannot be read.
        """
        found: list[tuple[ConsumeQueue, int, int]] = []
        queues = list(self._queues.values())
        for start in range(0, len(queues), _QUEUES_AT_ONCE):
            left, tries = queues[start : start + _QUEUES_AT_ONCE], 0
            while left and self._is_running():
                with self.without_waiting() if tries < _MAX_TRIES else nullcontext():
                    left, cold = self._look_up(left, until, found)
                tries += 1
                yield cold
        return found

    def _look_up(
        self, queues: list[ConsumeQueue], until: int, found: list[tuple[ConsumeQueue, int, int]]
    ) -> tuple[list[ConsumeQueue], Cold | None]:
        """Add to *found* what _lowest_at() wants of *queues*; returns those that need the disk for
        it, and what they need.
        """
        left: list[ConsumeQueue] = []
        missing: list[Cold] = []
        for queue in queues:
            if self._queues.get(queue.key) is queue:
                try:
                    found.append((queue, *self._reader.first_at(queue, until)))
                except Cold as cold:
                    left.append(queue)
                    # it would keep the frames of as many calls
                    missing.append(cold.with_traceback(None))
        return left, all_of(missing)

    def _noted(self, until: int) -> Generator[None, None, None]:
        """Make a removal safe against a crash."""
        if self._is_running():
            noted = threading.Event()
            self._post(functools.partial(self._derived.note_removal, until, noted))
            while not noted.is_set() and self._is_running():
                yield

    def _checkpointed(self, until: int) -> Generator[None, None, int]:
        """Wait for a checkpoint behind *until*; returns the segment border up to which there is
        one.

        Without a checkpoint the log alone knows which offsets were given out, so it must not be
        removed first. A full disk may have no room for a new checkpoint: what the last one covers
        can still be removed, and makes room.
        """
        if self._derived.saved_position < until:
            if self._flush_refused:
                self._post_flush()
            self._flush(checkpoint=True)
            while (
                self._derived.saved_position < until
                and not self._flush_refused
                and self._is_running()
            ):
                yield
                # that of a flush under way starts the next one
                self._run_reports()
        reached = self._derived.saved_position
        if reached < until and self._is_running():
            log.warning(
                "no room for a checkpoint: old messages behind commit-log offset %d stay for now",
                reached,
            )
        return min(until, reached - reached % self._segment_bytes)

    def _is_running(self) -> bool:
        return self.failed is None and self._writer is not None and not self._closed

    def scrub_step(self, position: int, most_bytes: int) -> Callable[[], Scrubbed]:
        """A function that checks about *most_bytes* of records from *position* on.

        It may run on any thread, and raises OSError.
        """
        unreadable = self._disk.unreadable
        return functools.partial(
            scrub,
            self._fs,
            self._log_directory,
            self._segment_bytes,
            self._crc_from,
            unreadable,
            position,
            self._visible_end,
            most_bytes,
        )

    def report_damage(self, commitlog_offset: int, size: int) -> None:
        """Count a damaged place of the log, and log it, unless it is known already."""
        if commitlog_offset >= self._log.start:
            self._log.report(commitlog_offset, size)

    # --- reading ----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The store time of a message put now: milliseconds since 1970 that never go back, whatever
        happens to the clock.
        """
        return self._clock.now_ms()

    def min_offset(self, topic: str, queue_id: int) -> int:
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """One past the last visible message."""
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
        """Messages from *offset* on, at least one if there is any, else why not.

        *tag_codes*: Java hashes of the wanted tags.

        Raises StoreError; Cold with wait=False, or within without_waiting().
        """
        before = self._disk.waits
        self._disk.waits = before and wait
        try:
            return self._reader.get(topic, queue_id, offset, max_messages, max_bytes, tag_codes)
        finally:
            self._disk.waits = before

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry]:
        """The visible consume-queue entries of *count* offsets from *offset* on; fillers have size
        2147483647.
        """
        queue = self._queues.get((topic, queue_id))
        found: list[Entry] = []
        if queue is not None and offset >= queue.min_offset:
            read = self._reader.reading(queue)
            index = queue.index_of(offset, read)
            end = queue.index_of(offset + count - 1, read) + 1
            while raw := self._reader.entries(queue, index + len(found), end - index - len(found)):
                found += [Entry(*fields[:3]) for fields in queue.layout.iter_unpack(raw)]
        return found

    def record_at(self, commitlog_offset: int) -> bytes | None:
        """The visible record that starts there."""
        return self._log.record_at(commitlog_offset, self._visible_end)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        """Store timestamp in ms; -1 where there is no message."""
        queue = self._queues.get((topic, queue_id))
        return self._reader.store_time(queue, offset) if queue is not None else -1

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, upper: bool = False
    ) -> int:
        """The first offset stored at or after *timestamp_ms* (max_offset if none); *upper*: the
        last at or before (min_offset if none).
        """
        queue = self._queues.get((topic, queue_id))
        return self._reader.offset_by_time(queue, timestamp_ms, upper) if queue is not None else 0

    def find_key(
        self, topic: str, key: str, begin_ms: int, end_ms: int
    ) -> Iterator[bytes | Cold | None]:
        """The visible records of *topic* with *key*, as a key or unique key, stored from *begin_ms*
        to *end_ms*; newest first.

        Yields None now and then, so that the caller may let others run, and Cold while reads do not
        wait: bring it in, then go on.
        """
        given: set[int] = set()
        last = -1
        deleted_before = self._deleted.get(topic, 0)
        for found in self._index.find(self._disk, topic, key, begin_ms, end_ms):
            if not isinstance(found, int):
                yield found
            elif (
                found != last
                and found not in given
                and found >= max(deleted_before, self._log.start)
            ):
                # a key may stand in a message more than once
                last = found
                record = yield from self._looked_up(found)
                if (
                    record is not None
                    and has_key(record, topic, key)
                    and begin_ms <= store_timestamp(record) <= end_ms
                ):
                    # others with the same hash may be millions
                    given.add(found)
                    yield record

    def _looked_up(self, commitlog_offset: int) -> Generator[Cold, None, bytes | None]:
        while True:
            try:
                return self.record_at(commitlog_offset)
            except Cold as cold:
                yield cold

    @property
    def indexed_up_to(self) -> tuple[int, int]:
        """Store time and commit-log offset of the newest message in the index of keys; zeros where
        it is empty.
        """
        self._index.build()
        return (
            (self._index.files[-1].end_ms, self._index.files[-1].end_offset)
            if self._index.files
            else (0, 0)
        )

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Inside, a read that would have to wait for the disk raises Cold, see bring_in()."""
        before, self._disk.waits = self._disk.waits, False
        try:
            yield
        finally:
            self._disk.waits = before

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, reads wait for the disk even within without_waiting(): for bytes that were
        evicted before they could be read.
        """
        self._disk.must_wait = True
        try:
            yield
        finally:
            self._disk.must_wait = False

    def bring_in(self, place: Place) -> bytes:
        """Any thread: read what was missing. Raises StoreError."""
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
        stats.damaged = self._recovered_damage + self._log.damaged
        stats.commitlog_start, stats.commitlog_end = self._log.start, self._visible_end
        stats.queues = len(self._queues)
        return stats

    # --- what the writer reports ------------------------------------------------------------------

    def _report(self, groups: Sequence[Group], outcome: Outcome) -> None:
        self._on_owner(functools.partial(self._finished, groups, outcome))

    def _on_owner(self, report: Callable[[], None]) -> None:
        """Have the owner run *report*, in order; called on whichever thread writes. close() runs
        those that are left.

        An owner in submit() runs reports itself before it returns: it need not be called.
        """
        self._reports.append(report)
        if self._call_owner is not None and not self._in_submit:
            self._call_owner(self._run_reports)

    def _run_reports(self) -> None:
        while self._reports:
            self._reports.popleft()()

    def _finished(self, groups: Sequence[Group], outcome: Outcome) -> None:
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

    def _dispatch(self, groups: Sequence[Group]) -> None:
        """Make *groups* visible, then say so."""
        self._appender.finish(groups)
        if self._told_full and not self._flush_refused:
            self._told_full = False
            log.warning("the store takes writes again")
        touched: dict[QueueKey, ConsumeQueue] = {}
        for group in groups:
            for queue, entries, count in group.entries:
                queue.tail += entries
                queue.max_offset += count
                self._stats.puts += count
                touched[queue.key] = queue
            self._index.add(group.keyed)
        self._stats.groups += len(groups)
        self._stats.put_bytes += groups[-1].end - self._visible_end
        self._visible_end = groups[-1].end
        for group in groups:
            for done, results in group.waiters:
                try:
                    done(results)
                except Exception:
                    # as in _call(), without the cost of a call per message
                    log.exception("a put callback failed")
        if self.on_arrival is not None and touched:
            self.on_arrival({key: queue.max_offset for key, queue in touched.items()})
        if self._flusher.note(touched.values(), self._visible_end):
            self._flush()

    @property
    def takes_writes(self) -> bool:
        """Whether the last write was taken: not while the disk is full, nor after a failure."""
        return self.failed is None and not self._told_full

    def _try_again(self) -> None:
        """The disk was full: raise StoreFull until it is time to ask it again."""
        if self._monotonic() < self._full_until:
            raise StoreFull(str(self._full))
        self._full_until = 0.0
        # else it is on its way: posted twice, its second report would end the next flush
        if self._flush_refused:
            self._post_flush()

    def _note_full(self, error: StoreFull) -> None:
        """Refuse writes for a second. Logged once, however often it is tried again."""
        self._full = error
        self._full_until = self._monotonic() + _RETRY_FULL_S
        if not self._told_full:
            self._told_full = True
            log.warning("the store refuses writes: %s", error)

    def _refuse(self, groups: Sequence[Group], error: StoreFull) -> None:
        # taken back already, with the group that met the full disk
        if not groups or groups[0] is not self._first_waiting():
            self._full_until = self._monotonic() + _RETRY_FULL_S
            return
        self._note_full(error)
        taken = self._appender.take_back()
        self._post(self._work.accept_again)
        for group in taken:
            for done, _ in group.waiters:
                _call(done, error)

    def _fail(self, error: StoreError) -> None:
        if self.failed is not None:
            return
        self.failed = error
        log.critical("the store stops: %s", error)
        for group in self._appender.take_back():
            for done, _ in group.waiters:
                _call(done, error)
        if self.on_failure is not None:
            self.on_failure(error)

    def _first_waiting(self) -> Group | None:
        return self._appender.waiting[0] if self._appender.waiting else None

    # --- derived files ----------------------------------------------------------------------------

    def _flush(self, *, checkpoint: bool = False) -> None:
        """Have the writer bring the queue files up to date, and write a checkpoint if one is due;
        once at a time.
        """
        if self._flusher.begin(
            self._visible_end, self._appender.store_timestamp_ms, checkpoint=checkpoint
        ):
            self._post_flush()

    def _post_flush(self) -> None:
        flush = self._flusher.current
        if flush is not None and self._writer is not None:
            self._flush_refused = False
            self._post(functools.partial(self._flush_job, flush))

    def _flush_job(self, flush: Flush) -> None:
        """Writer thread.

        A full disk leaves *flush* to be tried again; after a failed sync another one may say that
        all is well.
        """
        if self._work.has_failed:
            return
        try:
            self._derived.write(flush)
        except OSError as exc:
            if exc.errno in NO_SPACE:
                self._on_owner(functools.partial(self._refuse_flush, exc))
            else:
                self._work.fail_by("writing consume queues", exc)
        else:
            self._on_owner(self._flushed)

    def _flushed(self) -> None:
        if self._flusher.end():
            self._flush()

    def _refuse_flush(self, cause: OSError) -> None:
        self._flush_refused = True
        self._note_full(StoreFull(f"no room for consume queues: {reason(cause)}"))

    def _flush_last(self) -> None:
        for _ in itertools.chain.from_iterable(self._removals):
            pass
        try:
            # met a full disk
            if self._flusher.current is not None:
                self._derived.write(self._flusher.current)
                self._flusher.end()
            self._derived.write(
                self._flusher.last(self._visible_end, self._appender.store_timestamp_ms)
            )
            checkpoints.mark_stopped(self._fs, self.config.root)
        except OSError as exc:
            log.error(
                "the store in %s was not closed cleanly, the next start reads its log again: %s",
                self.config.root,
                reason(exc),
            )


def _call(done: PutDone, error: StoreError) -> None:
    try:
        done(error)
    except Exception:
        # the caller's code: the other puts of the group must still get their answers
        log.exception("a put callback failed")
