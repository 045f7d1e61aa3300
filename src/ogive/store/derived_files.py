"""Write and remove the files derived from the log while the store runs.

``DerivedFiles`` belongs to the writer thread, except close(), after that thread has ended, and
*saved_position*, *saved_deletions* and *has_left*, which the owner reads.

``FlushPolicy`` belongs to the owner thread. It decides when consume-queue entries are written to
files, which of them stay in memory, and when a checkpoint is due.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ogive.errors import StoreFull
from ogive.store import checkpoint as checkpoints
from ogive.store.appender import Appender
from ogive.store.checkpoint import Checkpoint, DeletionTable
from ogive.store.commitlog import LogReader
from ogive.store.consumequeue import ConsumeQueue, QueueFiles, QueueWrite
from ogive.store.fs import NO_SPACE, Fs, reason
from ogive.store.index_file import IndexFiles, IndexWrite
from ogive.store.key_index import KeyIndex
from ogive.store.types import StoreConfig
from ogive.store.writer import WriterLink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flush:
    """Entries and keys for the files, and the position to record after they are written.

    Writing them twice does no harm.
    """

    writes: tuple[tuple[ConsumeQueue, QueueWrite], ...]
    keys: tuple[IndexWrite, ...]
    checkpoint: Checkpoint | None


class FlushPolicy:
    """Rule for the times at which derived files and checkpoints are written. Owner thread only.

    At most one flush is handed to the writer. One that met a full disk is refused, and waits for
    another try.
    """

    def __init__(
        self,
        config: StoreConfig,
        log_reader: LogReader,
        appender: Appender,
        index: KeyIndex,
        deleted: dict[str, int],
        derived: "DerivedFiles",
        link: WriterLink,
    ) -> None:
        self._config = config
        self._log = log_reader
        self._appender = appender
        self._index = index
        self._deleted, self._derived, self._link = deleted, derived, link
        # the lowest offset of every queue is that of a log which begins there, or later
        self.log_start = log_reader.start
        self._dirty: dict[ConsumeQueue, None] = {}
        # commit-log offsets
        self._flushed_at = self._checkpoint_at = log_reader.end
        self._checkpoint_wanted = False
        # least recently written first
        self._in_memory: dict[ConsumeQueue, None] = dict.fromkeys(
            queue for queue in appender.queues.values() if queue.tail
        )
        self._current: Flush | None = None
        self.is_refused = False
        # no flush begins
        self.is_held = False

    def add(self, touched: Iterable[ConsumeQueue]) -> None:
        """Record that *touched* got entries; begin a flush if it is due."""
        self._dirty.update(dict.fromkeys(touched))
        if self._log.end - self._flushed_at >= self._config.flush_bytes:
            self.flush()

    def flush(self, *, checkpoint: bool = False) -> None:
        """Let the writer bring the files up to date, and write a checkpoint if one is due.

        If another flush is in progress, or held, this waits for it.
        """
        self._index.build()
        self._checkpoint_wanted |= (
            checkpoint
            or self._index.has_full
            or self._log.end - self._checkpoint_at >= self._config.checkpoint_bytes
        )
        if self._current is None and not self.is_held:
            self._current = self._collect()
            self._post()

    def retry(self) -> None:
        """Try a refused flush again."""
        # else it is on its way: posted twice, its second report would end the next flush
        if self.is_refused and self._link.is_running:
            self._post()

    def forget(self, topic: str) -> None:
        """Leave the queues of a deleted topic out of the current flush."""
        if self._current is not None:
            kept = tuple(
                [(queue, write) for queue, write in self._current.writes if queue.key[0] != topic]
            )
            self._current = Flush(kept, self._current.keys, self._current.checkpoint)

    def write_last(self) -> None:
        """Write everything else and a checkpoint, after the writer has ended. Raises OSError."""
        # met a full disk
        if self._current is not None:
            self._derived.write(self._current)
            self._end()
        self._checkpoint_wanted = True
        self._derived.write(self._collect())

    def _post(self) -> None:
        if self._current is not None:
            self.is_refused = False
            self._link.post(functools.partial(self._job, self._current))

    def _job(self, flush: Flush) -> None:
        """Write and sync a flush, on the writer thread.

        A full disk keeps *flush* for another try. After a failed sync there is none, because it
        could succeed without the bytes on the disk.
        """
        if self._link.work.has_failed:
            return
        try:
            self._derived.write(flush)
        except OSError as exc:
            if exc.errno in NO_SPACE:
                self._link.call_owner(functools.partial(self._refuse, exc))
            else:
                self._link.work.fail_by("writing consume queues", exc)
        else:
            self._link.call_owner(self._written)

    def _written(self) -> None:
        self._end()
        if self._checkpoint_wanted:
            self.flush()

    def _refuse(self, cause: OSError) -> None:
        self.is_refused = True
        self._link.full.refuse(StoreFull(f"no room for consume queues: {reason(cause)}"))

    def _end(self) -> None:
        """Drop from memory the oldest entries that are in the files of the current flush."""
        if self._current is not None:
            for queue, write in self._current.writes:
                queue.written = max(queue.written, write.end)
                self._in_memory.pop(queue, None)
                self._in_memory[queue] = None
            self._index.written(self._current.keys)
            self._drop_excess()
        self._current = None

    def _collect(self) -> Flush:
        """Collect everything that is in no file yet."""
        queues, position = self._appender.queues, self._log.end
        alive = [queue for queue in self._dirty if queues.get(queue.key) is queue]
        writes = tuple(
            [(queue, write) for queue in alive if (write := queue.take_write()) is not None]
        )
        self._dirty.clear()
        self._flushed_at = position
        keys = self._index.collect(checkpoint=self._checkpoint_wanted)
        if not self._checkpoint_wanted:
            return Flush(writes, keys, None)
        self._checkpoint_wanted = False
        self._checkpoint_at = position
        checkpoint = checkpoints.take(
            position,
            self._appender.store_timestamp_ms,
            queues.values(),
            self._deleted,
            self._log.crc_from,
            self._index.states(),
            self.log_start,
        )
        return Flush(writes, keys, checkpoint)

    def _drop_excess(self) -> None:
        excess = (
            sum([queue.end - queue.tail_start for queue in self._in_memory])
            - self._config.hot_entries
        )
        for queue in list(self._in_memory):
            if excess <= 0:
                break
            excess -= queue.drop_written(excess)
            if not queue.tail or self._appender.queues.get(queue.key) is not queue:
                del self._in_memory[queue]


class DerivedFiles:
    """Files derived from the log: flushes and removals."""

    def __init__(
        self,
        fs: Fs,
        root: Path,
        max_open_files: int,
        sync_log: Callable[[], None],
        position: int,
        deleted: Mapping[str, int],
    ) -> None:
        self._fs, self._root, self._sync_log = fs, root, sync_log
        self._queues = QueueFiles(fs, max_open_files)
        self._index = IndexFiles(fs)
        self._deletions = DeletionTable(fs, root)
        # of the checkpoint on the disk
        self.saved_position = position
        # in it: see Checkpoint.deleted
        self.saved_deletions = deleted
        # segments and queue files that are still to be removed, in this order
        self._left: dict[Path, None] = {}
        self._left_index: dict[Path, None] = {}
        # directories that are still to be synced
        self._removed_in: dict[Path, None] = {}

    def write(self, flush: Flush) -> None:
        """Write a flush. It may be repeated after an error. Raises OSError."""
        self._queues.write([write for _, write in flush.writes])
        self._index.write(flush.keys)
        if flush.checkpoint is not None:
            self._sync_log()
            self._deletions.save(flush.checkpoint.deleted)
            checkpoints.save(self._fs, self._root, flush.checkpoint)
            self.saved_position = flush.checkpoint.position
            self.saved_deletions = flush.checkpoint.deleted

    def remove_queues(self, directories: Sequence[Path]) -> Iterator[None]:
        """Remove the directories of a deleted topic's queues, and then that of the topic if it is
        empty.

        Each step of the iteration removes one path, so that other jobs may run between two of them.
        """
        every = set(directories)
        for path in [path for path in self._left if path.parent in every]:
            # the topic may be made again, with files of these names
            del self._left[path]
        topics: dict[Path, None] = {}
        try:
            for directory in directories:
                names = self._fs.list(directory)
                for name in names:
                    self._queues.unlink(directory / name)
                    yield
                if names:
                    self._fs.remove_dir(directory)
                    topics[directory.parent] = None
                yield
            for topic in topics:
                if not self._fs.list(topic):
                    self._fs.remove_dir(topic)
        except OSError as exc:
            log.warning("could not remove the files of a deleted topic: %s", exc)

    def note_removal(self, until: int, noted: threading.Event) -> None:
        """Record that the log goes up to *until*, then set *noted*."""
        try:
            checkpoints.note_removal(self._fs, self._root, until)
        except OSError as exc:
            # a full disk is what removal is for
            log.warning(
                "could not record the removal of old messages, which may reappear after a crash: "
                "%s",
                exc,
            )
        finally:
            noted.set()

    @property
    def has_left(self) -> bool:
        """Return True if there are files that could not be removed yet."""
        return bool(self._left or self._left_index or self._removed_in)

    def remove_expired(self, files: Sequence[Path], index_files: Sequence[Path]) -> None:
        """Remove *files*, segments and queue files.

        A crash halfway does no harm: the next start removes the rest, or does not need it.
        """
        self._left.update(dict.fromkeys(files))
        self._left_index.update(dict.fromkeys(index_files))
        self._removed_in.update(dict.fromkeys(path.parent for path in (*files, *index_files)))
        self.remove_left()

    def remove_left(self) -> None:
        """Remove everything that is left to remove, in order. If a file stays, those after it stay
        too, so that the log gets no gap.
        """
        try:
            _each(self._left, self._queues.unlink)
            _each(self._left_index, self._index.remove)
            _each(self._removed_in, self._fs.fsync_dir)
            checkpoints.end_removal(self._fs, self._root)
        except OSError as exc:
            log.warning("could not remove the files of old messages, next try later: %s", exc)

    def close(self) -> None:
        self._queues.close()
        self._index.close()


def _each(paths: dict[Path, None], do: Callable[[Path], None]) -> None:
    """Remove from *paths* those that are done, or do not exist any more."""
    for path in list(paths):
        with contextlib.suppress(FileNotFoundError):
            do(path)
        del paths[path]
