"""Decide which segments of the log are old enough, and remove them.

Behaviour
- A segment's age is the time since it was full, by the machine's uptime, which no user can set.
  Ages are saved, and grow on after a restart. A wall clock that jumps deletes nothing.
- Segments that are old enough are removed at the hours of the configuration, and at any hour while
  the disk is fuller than disk_share. While it is fuller than force_share, the oldest are removed at
  any age; by default nothing young is ever deleted.

Differs from Java
- Age is not the file's modification time. The files of a directory from another machine are as old
  as their time here.
- The newest segment is never removed, and force_share is off by default (85 % there): a disk that
  other programs fill is no reason to lose messages. Source:
  DefaultMessageStore.CleanCommitLogService, 5.3.
"""

import functools
import logging
import math
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption
from ogive.store.commitlog import LogReader
from ogive.store.consumequeue import ConsumeQueue
from ogive.store.deletions import StoredTopics
from ogive.store.derived_files import DerivedFiles, FlushPolicy
from ogive.store.file_reader import Cold, Disk, all_of
from ogive.store.key_index import KeyIndex
from ogive.store.queue_reader import QueueReader
from ogive.store.segments import segment_path
from ogive.store.writer import WriterLink

log = logging.getLogger(__name__)

MAX_PER_RUN: Final = 10
_QUEUES_AT_ONCE: Final = 200
# lookups of some queues; beyond it the reads wait for the disk
MAX_TRIES: Final = 256
_MOST_S: Final = 1e10  # three centuries
_OFFSET_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """Rules for the removal of segments.

    "Java:" names a setting in Apache's broker.conf, and the default there where it differs.
    """

    keep_s: float = 72 * 3600.0
    """Age at which messages are removed. Java: fileReservedTime, in hours."""
    hours: tuple[int, ...] = (4,)
    """Hours of the day at which old messages are removed, in local time. Java: deleteWhen."""
    disk_share: float = 0.75
    """Used share of the disk above which old messages are removed at any hour. Java:
    diskMaxUsedSpaceRatio."""
    force_share: float = 1.0
    """Used share of the disk above which the oldest messages are removed whatever their age; 1:
    never. Java: diskSpaceCleanForciblyRatio, 0.85."""

    def __post_init__(self) -> None:
        if not 0 < self.keep_s <= _MOST_S:
            raise InvalidOption(
                f"keep_s={self.keep_s:g}: must be more than 0 and at most {_MOST_S:g}"
            )
        if not self.hours or not all(0 <= hour < 24 for hour in self.hours):
            raise InvalidOption(f"hours={self.hours}: must be one or more of 0 to 23")
        for name in ("disk_share", "force_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidOption(
                    f"{name}={getattr(self, name)}: must be a share of the disk, more than 0 and "
                    "at most 1"
                )


class Ages:
    """Ages of segments: the time since each was full.

    *boot* is the id of a run of the machine, whose clock *at_s* belongs to.
    """

    def __init__(self, boot: str, at_s: float) -> None:
        self._boot, self._at_s = boot, at_s
        self._elapsed_s = 0.0
        # start of a segment -> _elapsed_s when it was seen to be full
        self._full_at_s: dict[int, float] = {}

    def load(self, value: Mapping[str, Any]) -> None:
        """Load the result of save().

        Time between two runs of the machine is not counted; invalid ages count as young.
        """
        elapsed = _seconds(value.get("elapsed"))
        full_at = value.get("fullAt")
        at_s = _seconds(value.get("at"))
        if elapsed is None or not isinstance(full_at, dict) or at_s is None:
            return
        self._elapsed_s = elapsed
        if value.get("boot") == self._boot:
            self._elapsed_s += max(0.0, self._at_s - at_s)
        for start, seen in full_at.items():
            seen_s = _seconds(seen)
            if (
                isinstance(start, str)
                and start.isdecimal()
                and len(start) <= _OFFSET_DIGITS
                and seen_s is not None
            ):
                self._full_at_s[int(start)] = seen_s

    def save(self) -> dict[str, Any]:
        return {
            "boot": self._boot,
            "at": self._at_s,
            "elapsed": self._elapsed_s,
            "fullAt": {str(s): at for s, at in self._full_at_s.items()},
        }

    def see(self, full: Sequence[int], at_s: float) -> None:
        """Record that these segments are full at *at_s*."""
        self._elapsed_s += max(0.0, at_s - self._at_s)
        self._at_s = at_s
        self._full_at_s = {start: self._full_at_s.get(start, self._elapsed_s) for start in full}

    def of(self, start: int) -> float:
        """Return ages in seconds."""
        return self._elapsed_s - self._full_at_s.get(start, self._elapsed_s)


def _seconds(value: object) -> float | None:
    """Return a time, or None for an invalid one."""
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def due(
    full: Sequence[int],
    ages: Ages,
    config: RetentionConfig,
    *,
    hour: int,
    disk_used: float,
    at_once: bool = False,
) -> int:
    """Return how many of the oldest full segments are removed now.

    *at_once*: an operator requested it, so the hour does not matter.
    """
    forced = disk_used > config.force_share
    now = at_once or hour in config.hours or disk_used > config.disk_share
    count = 0
    for start in full[:MAX_PER_RUN]:
        if not forced and not (now and ages.of(start) >= config.keep_s):
            break
        count += 1
    return count


class LogRetention:
    """Removal of the oldest segments, and of files that refer only to them. Owner thread only."""

    def __init__(
        self,
        log_reader: LogReader,
        disk: Disk,
        reader: QueueReader,
        index: KeyIndex,
        topics: StoredTopics,
        flushes: FlushPolicy,
        derived: DerivedFiles,
        link: WriterLink,
    ) -> None:
        self._log = log_reader
        self._disk = disk
        self._reader = reader
        self._index = index
        self._topics, self._flushes, self._derived = topics, flushes, derived
        self._link = link

    @property
    def full_segments(self) -> list[int]:
        """The start offsets of all segments but the one being written, oldest first."""
        return list(range(self._log.start, self._log.newest_segment, self._log.segment_bytes))

    def expire(self, until: int) -> Iterator[Cold | None]:
        """Remove the segments before *until*, and the queue and index files that refer only to
        them.

        It works during the iteration, so that other work may run between two steps. A Cold must be
        brought in before the next step. The lowest offsets of queues move up for good: before the
        first one does, a checkpoint records where each queue ends, and the removal is recorded.
        Files that cannot be removed then wait for remove_left(). Raises StoreError if a queue
        cannot be read: nothing has moved, and the next call tries again.
        """
        start = self._log.start
        until = min(until - until % self._log.segment_bytes, self._log.newest_segment)
        if until > start and self._link.is_running:
            until = yield from self._checkpointed(until)
        if until <= start or not self._link.is_running:
            return
        lowest = yield from self._lowest_at(until)
        yield from self._noted(until)
        if not self._link.is_running:
            return
        gone = [
            segment_path(self._log.directory, at)
            for at in range(start, until, self._log.segment_bytes)
        ]
        self._log.begin_at(until)
        dropped: list[tuple[ConsumeQueue, list[Path]]] = []
        for number, (queue, index, low) in enumerate(lowest):
            if self._reader.has(queue):
                queue.begin_at(index, low)
                dropped.append((queue, queue.drop_files()))
            if number % _QUEUES_AT_ONCE == 0:
                yield None
        # not before: a stop in between leaves the rest to the next start
        self._flushes.log_start = until
        for queue, files in dropped:
            # else its topic was deleted in between, and may have new files of these names
            if self._reader.has(queue):
                gone += files
        self._topics.forget_before(until)
        index_files = self._index.expire(until)
        if not self._link.is_running:
            return
        for path in (*gone, *index_files):
            self._disk.forget(path)
        self._flushes.flush(checkpoint=True)
        self._link.post(functools.partial(self._derived.remove_expired, gone, index_files))

    def remove_left(self) -> None:
        """Try again to remove files of old messages that expire() could not remove."""
        if self._derived.has_left and self._link.is_running:
            self._link.post(self._derived.remove_left)

    def _lowest_at(
        self, until: int
    ) -> Generator[Cold | None, None, list[tuple[ConsumeQueue, int, int]]]:
        """Return each queue, with index and offset of its lowest entry once the log begins at
        *until*.

        Raises StoreError if a queue cannot be read.
        """
        found: list[tuple[ConsumeQueue, int, int]] = []
        queues = self._reader.queues
        for start in range(0, len(queues), _QUEUES_AT_ONCE):
            left, tries = queues[start : start + _QUEUES_AT_ONCE], 0
            while left and self._link.is_running:
                with self._disk.without_waiting() if tries < MAX_TRIES else nullcontext():
                    left, cold = self._look_up(left, until, found)
                tries += 1
                yield cold
        return found

    def _look_up(
        self, queues: list[ConsumeQueue], until: int, found: list[tuple[ConsumeQueue, int, int]]
    ) -> tuple[list[ConsumeQueue], Cold | None]:
        """Add the lowest entries of *queues* to *found*.

        Return the queues that need the disk for it, and the data that they need.
        """
        left: list[ConsumeQueue] = []
        missing: list[Cold] = []
        for queue in filter(self._reader.has, queues):
            try:
                found.append((queue, *self._reader.first_at(queue, until)))
            except Cold as cold:
                left.append(queue)
                # it would keep the frames of as many calls
                missing.append(cold.with_traceback(None))
        return left, all_of(missing)

    def _noted(self, until: int) -> Generator[None, None, None]:
        """Make a removal safe against a crash."""
        if self._link.is_running:
            noted = threading.Event()
            self._link.post(functools.partial(self._derived.note_removal, until, noted))
            while not noted.is_set() and self._link.is_running:
                yield

    def _checkpointed(self, until: int) -> Generator[None, None, int]:
        """Wait for a checkpoint behind *until*; return the segment border up to which there is one.

        Without a checkpoint only the log has the offsets that were assigned, so it must not be
        removed first. A full disk may have no space for a new checkpoint: the segments that the
        last one covers can still be removed, and make space.
        """
        if self._derived.saved_position < until:
            self._flushes.retry()
            self._flushes.flush(checkpoint=True)
            while (
                self._derived.saved_position < until
                and not self._flushes.is_refused
                and self._link.is_running
            ):
                yield
                # that of a flush under way starts the next one
                self._link.run_reports()
        reached = self._derived.saved_position
        if reached < until and self._link.is_running:
            log.warning(
                "no space for a checkpoint: old messages after commit-log offset %d are kept for "
                "now",
                reached,
            )
        return min(until, reached - reached % self._log.segment_bytes)
