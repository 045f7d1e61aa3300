"""Create and delete topics, and remove the files of deleted ones.

A deletion is safe against a crash once a checkpoint has it, see checkpoint.DeletionTable.
"""

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from ogive.errors import InvalidOption, StoreFull
from ogive.store.appender import Appender
from ogive.store.commitlog import LogReader
from ogive.store.derived_files import DerivedFiles, FlushPolicy
from ogive.store.file_reader import Disk
from ogive.store.queue_types import QueueKinds
from ogive.store.writer import WriterLink

# removed by one job of the writer: a few milliseconds
PATHS_AT_ONCE: Final = 32


class StoredTopics:
    """Topics that have queues, or had them. Owner thread only."""

    def __init__(
        self,
        deleted: dict[str, int],
        kinds: QueueKinds,
        appender: Appender,
        log_reader: LogReader,
        disk: Disk,
        flushes: FlushPolicy,
        derived: DerivedFiles,
        link: WriterLink,
        hand_over: Callable[[], None],
    ) -> None:
        """Share *deleted*, see Checkpoint.deleted, with the flushes."""
        self._deleted, self._kinds, self._appender = deleted, kinds, appender
        self._log, self._disk = log_reader, disk
        self._flushes, self._derived, self._link = flushes, derived, link
        self._hand_over = hand_over
        # of queue files; the first is under way
        self._removals: deque[Iterator[None]] = deque()

    def has(self, topic: str) -> bool:
        """Return True if *topic* has queues."""
        return self._appender.has_topic(topic)

    def has_batches(self, topic: str) -> bool:
        """Return True if *topic* keeps its batches whole, and has queues."""
        return topic in self._kinds.batched and self.has(topic)

    def check(self, topic: str, *, batches: bool) -> None:
        """Raise InvalidOption if make() would lose messages: messages that were stored after a
        topic of the other kind was deleted, or its table was lost.
        """
        if batches == (topic in self._kinds.batched):
            return
        count = sum(
            [
                queue.next_offset - queue.min_offset
                for key, queue in self._appender.queues.items()
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

    def make(self, topic: str, *, batches: bool) -> None:
        """Create a new topic, before anything is put into it.

        *batches*: its batches are kept whole, each as one record with the flag INNER_BATCH. Queues
        of that name and of the other kind are forgotten, see check().
        """
        if batches == (topic in self._kinds.batched):
            return
        self.delete(topic)
        if batches:
            self._kinds.batched.add(topic)

    def delete(self, topic: str) -> None:
        """Forget every queue of *topic*.

        Its records stay in the log, but are not visible; once is_deletion_saved() is true, this
        also holds after a crash.
        """
        self._kinds.batched.discard(topic)
        directories = [queue.directory for queue in self._appender.forget_topic(topic)]
        self._disk.forget_under(directories)
        if directories and self._link.is_running:
            # not later: a full disk may take back what waits, with its offsets
            self._deleted[topic] = self._log.end
            self._flushes.forget(topic)
            self._hand_over()
            # a checkpoint would not tell of their files any more
            self._flushes.is_held = True
            self._flushes.flush(checkpoint=True)
            self._removals.append(self._derived.remove_queues(directories))
            if len(self._removals) == 1:
                self._post_removal()
        if not self._removals:
            # there may be room by now
            self._flushes.retry()

    def _post_removal(self) -> None:
        """Hand the next paths to the writer: not all at once, so that puts do not wait for them."""
        self._link.post(functools.partial(self._removal_job, self._removals[0]))

    def _removal_job(self, removal: Iterator[None]) -> None:
        """Remove a path, on the writer thread."""
        steps = sum(1 for _ in itertools.islice(removal, PATHS_AT_ONCE))
        self._link.call_owner(functools.partial(self._removed, ended=steps < PATHS_AT_ONCE))

    def _removed(self, *, ended: bool) -> None:
        if self._link.failed is not None:
            # the rest stays, as after a crash: no checkpoint tells of the deletion
            return
        if ended:
            self._removals.popleft()
        if self._removals:
            self._post_removal()
            return
        self._flushes.is_held = False
        # there may be room by now
        self._flushes.retry()
        self._flushes.flush()

    def remove_rest(self) -> None:
        """Remove all paths that are left, after the writer has ended."""
        for _ in itertools.chain.from_iterable(self._removals):
            pass

    def was_deleted(self, topic: str) -> bool:
        """Return True if the log may hold records of a deleted topic of that name."""
        return topic in self._deleted

    def deleted_before(self, topic: str) -> int:
        """Return the commit-log offset before which records of *topic* are deleted."""
        return self._deleted.get(topic, 0)

    def is_deletion_saved(self, topic: str) -> bool:
        """Return True if *topic* was not deleted, or a checkpoint on the disk has the deletion.

        Raises StoreFull if the disk has no space for a checkpoint.
        """
        position = self._deleted.get(topic)
        if position is None or self._derived.saved_deletions.get(topic) == position:
            return True
        if self._flushes.is_refused and not self._removals:
            raise StoreFull(str(self._link.full.error))
        return False

    def forget_before(self, commitlog_start: int) -> None:
        """Drop deletions that are older than *commitlog_start*, the beginning of the log: none of
        their records is left.
        """
        for topic in [topic for topic, at in self._deleted.items() if at <= commitlog_start]:
            del self._deleted[topic]
