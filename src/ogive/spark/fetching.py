"""Reads a chunk of a queue, however the broker cuts its answers: each message once, in order, with
a notice of what is gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ogive.client.api import RawPull
from ogive.errors import DataLoss, OgiveError
from ogive.model import MessageQueue, PullStatus
from ogive.spark.losses import data_loss
from ogive.spark.ranges import Chunks, QueueRange

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 * 1024 * 1024
# how long a queue may be shorter than it was before: a broker that restarts shows its queues bit by
# bit
SETTLE_S: Final = 3.0

Pull = Callable[[QueueRange], Awaitable[RawPull]]

WhyGone = Callable[[QueueRange], Awaitable[DataLoss | None]]
"""Say what became of a queue that cannot be read; None if it is still there."""

# answers with the offsets that they cover, and the offset behind the last one
Fetched = tuple[list[tuple[QueueRange, bytes]], int]


class Reading:
    """One call of Cluster.read. *pull* asks once for a range, and brings up to all of it.

    *why_gone* is asked when that fails: a deleted queue is a loss like that of its messages.
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
        # the gap that was reported last, for each queue that has one
        self._reported: dict[MessageQueue, QueueRange] = {}
        self._chunks = chunks
        self._filtered = filtered
        self._fail_on_data_loss = fail_on_data_loss

    async def fetch(self, chunk: QueueRange) -> Fetched:
        """The messages of one chunk and where they end: at the chunk's end, unless CHUNK_BYTES are
        reached before.
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
                # the broker looked at these and the filter took none
                pass
            elif following > at and doubted != at:
                # asked once more: a broker that tells of a reset of the group's offsets does so
                # once
                doubted = following = at
            elif following > at:
                gone = self._chunks.rest_of(wanted)
                self._lost(QueueRange(gone.queue, gone.start, min(answer.next_offset, gone.end)))
            else:
                following = await self._settle(wanted)
            at = following
        return answers, at

    async def _settle(self, wanted: QueueRange) -> int:
        """The queue ends before *wanted*, although it was longer when the read was planned: give a
        starting broker a moment.

        Returns where to go on.
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
    """How many stored messages *body* holds."""
    at = count = 0
    while at < len(body):
        at += max(1, int.from_bytes(body[at : at + 4]))
        count += 1
    return count


def until(body: bytes, end: int) -> bytes:
    """The records before queue offset *end*."""
    at = 0
    while at < len(body) and int.from_bytes(body[at + 20 : at + 28]) < end:
        # never 0: the decoder reports damage, here it must only not loop
        at += max(1, int.from_bytes(body[at : at + 4]))
    return body[:at]
