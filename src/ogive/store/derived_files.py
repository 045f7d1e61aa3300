"""Write and remove the files derived from the log while the store runs.

``DerivedFiles`` belongs to the writer thread, except close(), after that thread has ended, and
*saved_position*, *saved_deletions* and *has_left*, which the owner reads.

``QueueFlusher`` belongs to the owner thread. It decides when consume-queue entries are written to
files, which of them stay in memory, and when a checkpoint is due.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ogive.store import checkpoint as checkpoints
from ogive.store import retention
from ogive.store.checkpoint import Checkpoint
from ogive.store.consumequeue import ConsumeQueue, QueueFiles, QueueWrite
from ogive.store.deletions import DeletionTable
from ogive.store.fs import Fs
from ogive.store.index_file import IndexFiles, IndexWrite
from ogive.store.key_index import KeyIndex
from ogive.store.types import QueueKey, StoreConfig


@dataclass(frozen=True, slots=True)
class Flush:
    """Entries and keys for the files, and what to write down once they are there.

    Carrying it out twice does no harm.
    """

    writes: tuple[tuple[ConsumeQueue, QueueWrite], ...]
    keys: tuple[IndexWrite, ...]
    checkpoint: Checkpoint | None


class QueueFlusher:
    """One flush at a time: *current*, from begin() to end()."""

    def __init__(
        self,
        config: StoreConfig,
        queues: dict[QueueKey, ConsumeQueue],
        index: KeyIndex,
        position: int,
        deleted: dict[str, int],
        crc_from: int,
        log_start: Callable[[], int],
    ) -> None:
        self._config, self._queues = config, queues
        self._index, self._log_start = index, log_start
        self._deleted, self._crc_from = deleted, crc_from
        self._dirty: dict[ConsumeQueue, None] = {}
        self._flushed_at = self._checkpoint_at = position  # commit-log offsets
        self._checkpoint_wanted = False
        # least recently written first
        self._in_memory: dict[ConsumeQueue, None] = dict.fromkeys(
            q for q in queues.values() if q.tail
        )
        self.current: Flush | None = None
        # nothing begins: files of deleted topics are still there, which a checkpoint would not tell
        # of any more
        self.held = False

    def note(self, touched: Iterable[ConsumeQueue], position: int) -> bool:
        """*touched* got entries, and the log reaches *position*; whether a flush is due."""
        self._dirty.update(dict.fromkeys(touched))
        return position - self._flushed_at >= self._config.flush_bytes

    def begin(self, position: int, store_timestamp_ms: int, *, checkpoint: bool = False) -> bool:
        """Collect everything that no file holds as *current*; False if a flush is on its way or
        held, and this one must wait.
        """
        self._index.build()
        self._checkpoint_wanted |= (
            checkpoint
            or self._index.has_full
            or position - self._checkpoint_at >= self._config.checkpoint_bytes
        )
        if self.current is not None or self.held:
            return False
        self.current = self._collect(position, store_timestamp_ms)
        return True

    def end(self) -> bool:
        """*current* is in the files: memory may forget the oldest of what they hold.

        Whether a checkpoint waits for the next flush.
        """
        if self.current is not None:
            for queue, write in self.current.writes:
                queue.written = max(queue.written, write.end)
                self._in_memory.pop(queue, None)
                self._in_memory[queue] = None
            self._index.written(self.current.keys)
            self._drop_excess()
        self.current = None
        return self._checkpoint_wanted

    def last(self, position: int, store_timestamp_ms: int) -> Flush:
        """The flush of a store that closes: all the rest, and a checkpoint."""
        self._checkpoint_wanted = True
        return self._collect(position, store_timestamp_ms)

    def forget(self, topic: str, position: int) -> None:
        """Records of *topic* before *position* belong to no queue any more."""
        self._deleted[topic] = position
        if self.current is not None:
            kept = tuple(
                [(queue, write) for queue, write in self.current.writes if queue.key[0] != topic]
            )
            self.current = Flush(kept, self.current.keys, self.current.checkpoint)

    def _collect(self, position: int, store_timestamp_ms: int) -> Flush:
        alive = [queue for queue in self._dirty if self._queues.get(queue.key) is queue]
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
            store_timestamp_ms,
            self._queues.values(),
            self._deleted,
            self._crc_from,
            self._index.states(),
            self._log_start(),
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
            if not queue.tail or self._queues.get(queue.key) is not queue:
                del self._in_memory[queue]


log = logging.getLogger(__name__)


class DerivedFiles:
    """Carries out flushes and removals."""

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
        """May be repeated after an error. Raises OSError."""
        self._queues.write([write for _, write in flush.writes])
        self._index.write(flush.keys)
        if flush.checkpoint is not None:
            self._sync_log()
            self._deletions.save(flush.checkpoint.deleted)
            checkpoints.save(self._fs, self._root, flush.checkpoint)
            self.saved_position, self.saved_deletions = (
                flush.checkpoint.position,
                flush.checkpoint.deleted,
            )

    def remove_queues(self, directories: Sequence[Path]) -> Iterator[None]:
        """The directories of a deleted topic's queues, and then that of the topic if it is
        empty.

        Works while it is iterated over: each step is a path, so that other jobs may come between
        two of them.
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
            log.warning("files of a deleted topic stay: %s", exc)

    def note_removal(self, until: int, noted: threading.Event) -> None:
        """Write down that the log goes up to *until*, then set *noted*."""
        try:
            retention.note(self._fs, self._root, until)
        except OSError as exc:
            # a full disk is what removal is for
            log.warning(
                "old messages are removed without a note: after a crash they may be there once "
                "more: %s",
                exc,
            )
        finally:
            noted.set()

    @property
    def has_left(self) -> bool:
        """Whether there are files that could not be removed yet."""
        return bool(self._left or self._left_index or self._removed_in)

    def remove_expired(self, files: Sequence[Path], index_files: Sequence[Path]) -> None:
        """*files* are segments and queue files.

        A crash halfway does no harm: the next start removes the rest, or does not need it.
        """
        self._left.update(dict.fromkeys(files))
        self._left_index.update(dict.fromkeys(index_files))
        self._removed_in.update(dict.fromkeys(path.parent for path in (*files, *index_files)))
        self.remove_left()

    def remove_left(self) -> None:
        """Everything that is to be removed, in order: where one file stays, those behind it do too,
        so that the log gets no gap.
        """
        try:
            _each(self._left, self._queues.unlink)
            _each(self._left_index, self._index.remove)
            _each(self._removed_in, self._fs.fsync_dir)
            retention.done(self._fs, self._root)
        except OSError as exc:
            log.warning("files of old messages stay until the next try: %s", exc)

    def close(self) -> None:
        self._queues.close()
        self._index.close()


def _each(paths: dict[Path, None], do: Callable[[Path], None]) -> None:
    """Take out of *paths* what is done, or is not there any more."""
    for path in list(paths):
        with contextlib.suppress(FileNotFoundError):
            do(path)
        del paths[path]
