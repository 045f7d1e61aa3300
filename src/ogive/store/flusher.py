"""Decides when consume-queue entries are written to files, which of them stay in memory, and when a
checkpoint is due.

Owner thread only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ogive.store import checkpoint as checkpoints
from ogive.store.checkpoint import Checkpoint
from ogive.store.consumequeue import ConsumeQueue, QueueWrite
from ogive.store.index import KeyIndex
from ogive.store.indexfile import IndexWrite
from ogive.store.model import QueueKey, StoreConfig


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
