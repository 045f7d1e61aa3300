"""Driving a store from a test: no event loop, one message after the other."""

import queue
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ogive.errors import OgiveError
from ogive.store import (
    Fs,
    GetStatus,
    MessageStore,
    NewBatch,
    NewMessage,
    OsFs,
    PutResult,
    StoreConfig,
)
from ogive.store.types import Messages
from ogive.store.writer import CommitGroup, CommitWriter, Job, WriterThread
from ogive.wire.message import BatchItem, StoredMessage, decode_stored, encode_batch

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


def small(root: Path, **changes: Any) -> StoreConfig:
    """A configuration whose files are a few KiB, so that a test crosses their borders."""
    sizes: dict[str, Any] = {
        "segment_bytes": 16 * 1024,
        "consume_queue_file_bytes": 20 * 16,
        "batch_queue_file_bytes": 46 * 16,
        "index_slots": 16,
        "ahead_bytes": 8 * 1024,
        "hot_log_bytes": 8 * 1024,
        "checksum_block_bytes": 1024,
        "hot_entries": 64,
        "flush_bytes": 2 * 1024,
        "checkpoint_bytes": 10 * 1024,
        "max_group_bytes": 8 * 1024,
        "max_open_files": 8,
    }
    return StoreConfig(root=root, **(sizes | changes))


def message(
    body: bytes | str = b"body",
    topic: str = "T",
    queue_id: int = 0,
    *,
    tag: str = "",
    **fields: Any,
) -> NewMessage:
    properties = f"UNIQ_KEY\x01ABC\x02TAGS\x01{tag}\x02".encode() if tag else b"UNIQ_KEY\x01ABC\x02"
    fields = {"properties": properties, "born_host": HOST, "store_host": HOST} | fields
    return NewMessage(topic, queue_id, body.encode() if isinstance(body, str) else body, **fields)


def batch(shared: NewMessage, items: Sequence[BatchItem]) -> NewBatch:
    """As it comes, behind a header."""
    return NewBatch(shared, b"header" + encode_batch(items), 6, len(items))


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class InlineWriter:
    """Carries everything out at once, on the caller's thread: one order of events."""

    def __init__(self, work: CommitWriter, _max_group_bytes: int = 0) -> None:
        self.work = work

    def post(self, job: CommitGroup | Job) -> None:
        if isinstance(job, CommitGroup):
            self.work.commit([job])
        else:
            job()
        if self.work.sync_in_s() == 0.0:
            self.work.sync_now()
        self.work.idle()

    def close(self) -> None:
        self.work.sync_now()


class OneByOne:
    """A writer that carries out what was posted, in order, when the test says so."""

    def __init__(self, work: CommitWriter, _max_group_bytes: int = 0) -> None:
        self.work = work
        self.posted: deque[CommitGroup | Job] = deque()

    def post(self, job: CommitGroup | Job) -> None:
        self.posted.append(job)

    def step(self) -> None:
        job = self.posted.popleft()
        if isinstance(job, CommitGroup):
            self.work.commit([job])
        else:
            job()

    def run(self) -> None:
        while self.posted:
            self.step()

    def close(self) -> None:
        """As the thread does it: nothing that is posted meanwhile."""
        for _ in range(len(self.posted)):
            self.step()
        self.work.sync_now()


class Driver:
    """A running store whose owner is the test: reports of the writer run in wait() and settle()."""

    def __init__(
        self,
        config: StoreConfig,
        fs: Fs | None = None,
        *,
        clock: Callable[[], int] | None = None,
        threaded: bool = True,
    ) -> None:
        self.fs = fs or OsFs()
        self.store = MessageStore.open(config, fs=self.fs, clock_ms=clock or Clock())
        self._reports: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.store.start(
            self._reports.put if threaded else run_now,
            writer=WriterThread if threaded else InlineWriter,
        )

    def put(self, *messages: NewMessage) -> list[PutResult]:
        """Store one message or several and wait for the answer.

        Raises the error that the answer is.
        """
        return self._answer(self.post(*messages))

    def put_batch(self, batch: NewBatch) -> PutResult:
        """The same for what came as a batch."""
        (result,) = self._answer(self._post((batch,)))
        return result

    def _answer(self, answers: list[list[PutResult] | OgiveError]) -> list[PutResult]:
        self.wait(answers)
        answer = answers[0]
        if isinstance(answer, OgiveError):
            raise answer
        return answer

    def post(self, *messages: NewMessage) -> list[list[PutResult] | OgiveError]:
        """Store without waiting; the answer appears in the list."""
        return self._post(messages)

    def _post(self, messages: Messages) -> list[list[PutResult] | OgiveError]:
        answers: list[list[PutResult] | OgiveError] = []
        self.store.put(messages, answers.append)
        self.store.submit()
        return answers

    def wait(self, answers: Sequence[object], count: int = 1, timeout_s: float = 10.0) -> None:
        while len(answers) < count:
            self._reports.get(timeout=timeout_s)()

    def settle(self) -> None:
        """Run the reports that are there."""
        while not self._reports.empty():
            self._reports.get()()

    def read_all(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        return read_queue(self.store, topic, queue_id)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.read_all(topic, queue_id)]

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_now(report: Callable[[], None]) -> None:
    report()


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    """Everything that a consumer would get, from the first offset to the last."""
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32, 256 * 1024)
        if result.status is GetStatus.FOUND:
            buffer = b"".join(result.parts)
            at = 0
            while at < len(buffer):
                found.append(decode_stored(buffer, at))
                at += found[-1].size
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def crash(driver: Driver) -> None:
    """Leave the directory as a killed process would: nothing more is written, the lock is gone."""
    driver.store._link.close()
    driver.settle()
    driver.fs.close(driver.store._lock)
