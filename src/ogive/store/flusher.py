"""When consume-queue entries go to their files, which stay in memory, and when a checkpoint is due. Owner thread, except *files*."""

from collections.abc import Iterable, Sequence

from ogive.store import checkpoint as checkpoints
from ogive.store.consumequeue import ConsumeQueue, QueueFiles, QueueWrite
from ogive.store.model import QueueKey, StoreConfig


class QueueFlusher:
    def __init__(
        self,
        config: StoreConfig,
        files: QueueFiles,
        queues: dict[QueueKey, ConsumeQueue],
        position: int,
        deleted: dict[str, int],
        crc_from: int,
    ) -> None:
        self._config, self._queues = config, queues
        self.files = files  # the writer thread's
        self._deleted, self._crc_from = deleted, crc_from
        self._dirty: dict[ConsumeQueue, None] = {}
        self._flushed_at = self._checkpoint_at = position  # commit-log offsets
        self._in_memory: dict[ConsumeQueue, None] = dict.fromkeys(q for q in queues.values() if q.tail)  # least recently written first

    def due(self, touched: Iterable[ConsumeQueue], position: int) -> bool:
        """Note the queues that got entries; whether they should be written now that the log reaches *position*."""
        self._dirty.update(dict.fromkeys(touched))
        return position - self._flushed_at >= self._config.flush_bytes

    def checkpoint_due(self, position: int) -> bool:
        return position - self._checkpoint_at >= self._config.checkpoint_bytes

    def take(
        self, position: int, store_timestamp_ms: int, *, checkpoint: bool
    ) -> tuple[list[tuple[ConsumeQueue, QueueWrite]], checkpoints.Checkpoint | None]:
        """Everything that no file holds, and the state that the files have then."""
        alive = [queue for queue in self._dirty if self._queues.get(queue.key) is queue]
        writes = [(queue, write) for queue in alive if (write := queue.take_write()) is not None]
        self._dirty.clear()
        self._flushed_at = position
        if not checkpoint:
            return writes, None
        self._checkpoint_at = position
        return writes, checkpoints.take(position, store_timestamp_ms, self._queues.values(), self._deleted, self._crc_from)

    def written(self, writes: Sequence[tuple[ConsumeQueue, QueueWrite]]) -> None:
        """The files hold *writes*: memory may forget the oldest of what they hold."""
        for queue, write in writes:
            queue.written = max(queue.written, write.end)
            self._in_memory.pop(queue, None)
            self._in_memory[queue] = None
        excess = sum([queue.max_offset - queue.tail_start for queue in self._in_memory]) - self._config.hot_entries
        for queue in list(self._in_memory):
            if excess <= 0:
                break
            excess -= queue.drop_written(excess)
            if not queue.tail or self._queues.get(queue.key) is not queue:
                del self._in_memory[queue]

    def forget(self, topic: str, position: int) -> None:
        """Records of *topic* before *position* belong to no queue any more."""
        self._deleted[topic] = position
