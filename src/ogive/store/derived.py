"""Writes and removes the files beside the log while the store runs: consume queues, index of keys,
checkpoint, table of deleted topics.

Writer thread only, except close(), after that thread has ended, and *saved_position*,
*saved_deletions* and *has_left*, which the owner reads.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ogive.store import checkpoint as checkpoints
from ogive.store import removal
from ogive.store.consumequeue import QueueFiles
from ogive.store.deletions import DeletionTable
from ogive.store.flusher import Flush
from ogive.store.fs import Fs
from ogive.store.indexfile import IndexFiles

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
            removal.note(self._fs, self._root, until)
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
            removal.done(self._fs, self._root)
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
