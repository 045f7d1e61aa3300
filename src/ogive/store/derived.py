"""Writes and removes the files beside the log while the store runs: consume queues, index of keys, checkpoint.

Writer thread only, except close(), after that thread has ended, and *saved_position*, which the owner reads.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from ogive.store import checkpoint as checkpoints
from ogive.store import removal
from ogive.store.consumequeue import QueueFiles
from ogive.store.flusher import Flush
from ogive.store.fs import Fs
from ogive.store.indexfile import IndexFiles

log = logging.getLogger(__name__)


class DerivedFiles:
    """Carries out flushes and removals."""

    def __init__(self, fs: Fs, root: Path, max_open_files: int, sync_log: Callable[[], None], position: int) -> None:
        self._fs, self._root, self._sync_log = fs, root, sync_log
        self._queues = QueueFiles(fs, max_open_files)
        self._index = IndexFiles(fs)
        self.saved_position = position  # of the checkpoint on the disk

    def write(self, flush: Flush) -> None:
        """May be repeated after an error. Raises OSError."""
        self._queues.write([write for _, write in flush.writes])
        self._index.write(flush.keys)
        if flush.checkpoint is not None:
            self._sync_log()
            checkpoints.save(self._fs, self._root, flush.checkpoint)
            self.saved_position = flush.checkpoint.position

    def remove_queues(self, directories: Sequence[Path]) -> None:
        """The directories of a deleted topic's queues, and that of the topic once it is empty."""
        try:
            for directory in directories:
                if self._fs.list(directory):
                    self._queues.remove(directory)
                    if not self._fs.list(directory.parent):
                        self._fs.remove_dir(directory.parent)
        except OSError as exc:
            log.warning("files of a deleted topic stay: %s", exc)

    def note_removal(self, until: int, noted: threading.Event) -> None:
        """Write down that the log goes up to *until*, then set *noted*."""
        try:
            removal.note(self._fs, self._root, until)
        except OSError as exc:  # a full disk is what removal is for
            log.warning("old messages are removed without a note: after a crash they may be there once more: %s", exc)
        finally:
            noted.set()

    def remove_expired(self, files: Sequence[Path], index_files: Sequence[Path]) -> None:
        """*files* are segments and queue files. After a crash halfway, the next start does not miss the rest, or removes it."""
        try:
            for path in files:
                self._queues.unlink(path)
            for path in index_files:
                self._index.remove(path)
            for directory in {path.parent for path in (*files, *index_files)}:
                self._fs.fsync_dir(directory)
            removal.done(self._fs, self._root)
        except OSError as exc:
            log.warning("files of old messages stay: %s", exc)

    def close(self) -> None:
        self._queues.close()
        self._index.close()
