"""Read a range of a queue in order, and report lost messages.

Each message is returned once, however the broker divides its answers.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from ogive.client.rpc import RawPull
from ogive.errors import DataLoss, OgiveError
from ogive.model import MessageQueue, PullStatus
from ogive.spark.ranges import Chunks, QueueRange

log = logging.getLogger(__name__)


class Throttle:
    """Keeps a reader at *bytes_per_s* on average, or does nothing for None.

    Time that the reader spends elsewhere counts for at most a second of bytes.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._due = time.monotonic()

    def wait_for(self, size: int) -> None:
        """Sleep until *size* bytes more may have been read."""
        if self._bytes_per_s is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + size / self._bytes_per_s
        time.sleep(max(0.0, self._due - now))


def shrunk(queue: MessageQueue, end: int, position: int) -> DataLoss:
    return DataLoss(
        f"{queue} ends at offset {end}, but was read up to {position}: it lost messages, and new "
        "ones get the offsets of old ones. "
        f"With failOnDataLoss=false reading goes on at {end}."
    )


def data_loss(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{len(gone)} messages of {gone.queue} are gone: offsets {gone.start} to {gone.end - 1} "
        "were deleted before they were read. "
        "With failOnDataLoss=false the read goes on behind them."
    )


def removed(gone: QueueRange) -> DataLoss:
    return DataLoss(
        f"{gone.queue} is not a queue of its topic any more, and its offsets {gone.start} to "
        f"{gone.end - 1} were not read. Give the topic "
        "its queue back to read them; with failOnDataLoss=false reading goes on without them."
    )


def deleted(queue: MessageQueue, position: int, planned: int | None = None) -> DataLoss:
    """Return the error for a topic that was deleted from the queue's broker.

    *planned* is the end of an open batch.
    """
    missing = (
        "what came after that is" if planned is None else f"offsets {position} to {planned - 1} are"
    )
    return DataLoss(
        f"topic {queue.topic} was deleted from broker {queue.broker_name}: {queue} was read up to "
        f"offset {position}, and {missing} lost. "
        "With failOnDataLoss=false reading goes on without the queue, and begins with its first "
        "message if the topic is made again."
    )


def made_anew(
    queue: MessageQueue, position: int, first: int, stored_ms: int, was_ms: int
) -> DataLoss:
    """Return the error for a topic that was deleted and created again.

    *stored_ms* is the store time of the message found, *was_ms* that of the last message read.
    """
    # the messages may be of one second
    now, before = (
        f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{ms % 1000:03d}"
        for ms in (stored_ms, was_ms)
    )
    return DataLoss(
        f"{queue} was read up to offset {position}, and its topic was deleted and made again "
        f"since: it holds a message of {now} UTC "
        f"where one of {before} UTC was read. Its offsets {first} to {position - 1} hold messages "
        "that were not read. "
        "With failOnDataLoss=false reading goes on at its first message."
    )


CHUNK_BYTES: Final = 4 * 1024 * 1024
# how long a queue may be shorter than it was before: a broker that restarts shows its queues bit by
# bit
SETTLE_S: Final = 3.0

Pull = Callable[[QueueRange], Awaitable[RawPull]]

WhyGone = Callable[[QueueRange], Awaitable[DataLoss | None]]
"""Describe what happened to a queue that cannot be read; return None if it still exists."""

# answers with the offsets that they cover, and the offset after the last one
Fetched = tuple[list[tuple[QueueRange, bytes]], int]


class Reading:
    """One call of Cluster.read. *pull* requests a range once, and returns up to all of it.

    *why_gone* is called when that fails: a deleted queue is a loss, like that of its messages.
    """

    def __init__(
        self,
        pull: Pull,
        chunks: Chunks,
        *,
        filtered: bool,
        fail_on_data_loss: bool,
        why_gone: WhyGone | None = None,
    ) -> None:
        self._pull = pull
        self._why_gone = why_gone
        # the last reported gap of each queue
        self._reported: dict[MessageQueue, QueueRange] = {}
        self._chunks = chunks
        self._filtered = filtered
        self._fail_on_data_loss = fail_on_data_loss

    async def fetch(self, chunk: QueueRange) -> Fetched:
        """Return the messages of one chunk and their end: the end of the chunk, or after
        CHUNK_BYTES.
        """
        answers: list[tuple[QueueRange, bytes]] = []
        at, size, doubted = chunk.start, 0, -1
        while at < chunk.end and size < CHUNK_BYTES:
            wanted = QueueRange(chunk.queue, at, chunk.end)
            try:
                answer = await self._pull(wanted)
            except OgiveError:
                gone = self._chunks.rest_of(wanted)
                loss = None if self._why_gone is None else await self._why_gone(gone)
                if loss is None:
                    raise
                self._lost(gone, loss)
                return answers, chunk.end
            following = min(max(answer.next_offset, at), chunk.end)
            if at == chunk.start:
                self._chunks.learn(len(wanted), following - at, len(answer.body))
            if answer.status is PullStatus.FOUND and following > at:
                body = (
                    until(answer.body, chunk.end) if answer.next_offset > chunk.end else answer.body
                )
                answers.append((QueueRange(chunk.queue, at, following), body))
                size += len(body)
            elif answer.status is PullStatus.NO_MATCHED_MSG and self._filtered and following > at:
                # the broker checked these messages, and none matches the filter
                pass
            elif following > at and doubted != at:
                # ask once more: a broker reports a reset of the group's offsets only once
                doubted = following = at
            elif following > at:
                gone = self._chunks.rest_of(wanted)
                self._lost(QueueRange(gone.queue, gone.start, min(answer.next_offset, gone.end)))
            else:
                following = await self._settle(wanted)
            at = following
        return answers, at

    async def _settle(self, wanted: QueueRange) -> int:
        """Wait a moment for a starting broker if the queue ends before *wanted*, although it was
        longer when the read was planned. Return where to continue.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + SETTLE_S
        while clock.time() < deadline:
            await asyncio.sleep(0.1)
            answer = await self._pull(wanted)
            if answer.next_offset > wanted.start:
                return wanted.start
        self._lost(self._chunks.rest_of(wanted))
        return wanted.end

    def _lost(self, gone: QueueRange, loss: DataLoss | None = None) -> None:
        loss = loss or data_loss(gone)
        if self._fail_on_data_loss:
            raise loss
        self._chunks.skip(gone)
        # pulls that were on their way meanwhile find parts of the same gap
        told = self._reported.get(gone.queue)
        if told is None or gone.start < told.start or gone.end > told.end:
            self._reported[gone.queue] = gone
            log.warning("%s", loss)


def record_count(body: bytes) -> int:
    """Return the number of stored messages in *body*."""
    at = count = 0
    while at < len(body):
        at += max(1, int.from_bytes(body[at : at + 4]))
        count += 1
    return count


def until(body: bytes, end: int) -> bytes:
    """Return the records before queue offset *end*."""
    at = 0
    while at < len(body) and int.from_bytes(body[at + 20 : at + 28]) < end:
        # never 0: the decoder reports damage, here it must only not loop
        at += max(1, int.from_bytes(body[at : at + 4]))
    return body[:at]
