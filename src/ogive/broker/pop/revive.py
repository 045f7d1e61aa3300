"""Store messages again whose invisible time is over: in the retry topic of their group.

Source: PopReviveService.java, 5.5.

Behaviour
- A copy keeps body, properties, tags and times; it counts one try more, unless the lease says that
  it should not.
- A lease ends once the copy is stored and that is in the journal. Where a message cannot be read or
  stored now, it is tried again. Only a message that the log no longer has ends its lease as well.

Differs from Java: a message is there again at the moment its time is over, not 2 to 4 s later.
"""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from ogive.broker.deferred.waiting import MAX_WAIT_S
from ogive.broker.pop.leases import Lease
from ogive.broker.pop.topics import ensure_retry_topic
from ogive.broker.replies import refusal
from ogive.broker.services import Context
from ogive.errors import OgiveError, StoreBusy, StoreError, StoreFull
from ogive.model import PropertyName
from ogive.store.types import GetStatus, NewMessage
from ogive.wire.fitting import fit_properties
from ogive.wire.message import (
    StoredMessage,
    decode_properties,
    decode_stored,
    encode_properties,
)
from ogive.wire.sends import MAX_INT

log = logging.getLogger(__name__)

# leases that are revived at the same time
_MAX_REVIVING: Final = 64
_RETRY_S: Final = 1.0
# if one message is at fault, or its place on the disk
_RETRY_LATER_S: Final = 10.0
# messages of a lease that are stored at the same time: each may have 4 MiB
_AT_ONCE: Final = 8


class Reviver:
    """Owner: the event loop."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._book = ctx, ctx.leases
        self._timer: asyncio.TimerHandle | None = None
        self._reviving = 0
        # after an error of the store; a full disk can keep many leases waiting
        self._pause_until_s = 0.0
        self._stopped = False

    def start(self) -> None:
        self._book.on_due = self.wake
        self.wake()

    def stop(self) -> None:
        """Begin nothing more. What was begun is a task of the broker."""
        self._stopped = True
        self._book.on_due = lambda: None
        if self._timer is not None:
            self._timer.cancel()

    def wake(self) -> None:
        """Revive what is due, and set the timer for the next lease."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stopped or self._ctx.store.failed is not None:
            return
        pause_s = self._pause_until_s - self._ctx.loop.time()
        if pause_s > 0:
            self._timer = self._ctx.loop.call_later(pause_s, self.wake)
            return
        while self._reviving < _MAX_REVIVING and (lease := self._book.pop_due()) is not None:
            self._reviving += 1
            self._ctx.spawn(self._revive(lease), f"revive messages of {lease.key.topic}")
        wait_s = self._book.wait_s()
        if wait_s is not None and self._reviving < _MAX_REVIVING:
            self._timer = self._ctx.loop.call_later(min(wait_s, MAX_WAIT_S), self.wake)

    async def _revive(self, lease: Lease) -> None:
        try:
            await self._store_again(lease)
            # some of it may have been acknowledged, and that could not be written
            lease.reviving = False
            if lease.open:
                self._book.retry(lease, 0.0)
        except Exception as exc:  # noqa: BLE001  whatever it is, the message must come again
            self._failed(lease, refusal(exc))
        finally:
            self._reviving -= 1
            self.wake()

    def _failed(self, lease: Lease, error: OgiveError) -> None:
        """Try a lease again later; if the store is at fault, no other before."""
        now_s = self._ctx.loop.time()
        is_store = isinstance(error, StoreError)
        if not is_store or now_s >= self._pause_until_s:
            log.warning(
                "could not give messages of %s to %s again, tried again until it succeeds: %s",
                lease.key.topic,
                lease.key.group,
                error,
            )
        if is_store:
            self._pause_until_s = now_s + _RETRY_S
        passes = isinstance(error, StoreBusy | StoreFull)
        self._book.retry(lease, _RETRY_S if passes else _RETRY_LATER_S)

    async def _store_again(self, lease: Lease) -> None:
        """Raises OgiveError."""
        ctx, key = self._ctx, lease.key
        gone = 0
        if stored := lease.stored & lease.open:
            # the journal had no room to say so
            await self._end(lease, stored, lease.stored_at)
        for part in _parts(lease.open):
            found = await self._read(lease, part)
            # others were acknowledged meanwhile, or their topic or group is deleted
            still = part & lease.open
            messages = {at: message for at, message in found.items() if still >> at & 1}
            gone += still.bit_count() - len(messages)
            await self._put(lease, still, messages)
        if gone:
            ctx.pop_figures.gone += gone
            log.warning(
                "the log no longer has %d messages of %s/%d that were given to %s",
                gone,
                key.topic,
                key.queue_id,
                key.group,
            )

    async def _read(self, lease: Lease, bits: int) -> dict[int, StoredMessage]:
        """Return the messages of *bits* that the log still has. Raises StoreError."""
        found: dict[int, StoredMessage] = {}
        for at, offset in enumerate(lease.offsets):
            if bits >> at & 1:
                get = partial(
                    self._ctx.store.get, lease.key.topic, lease.key.queue_id, offset, 1, 1
                )
                result = await self._ctx.cold_reads.read(self._ctx.store, get)
                if result.status is GetStatus.FOUND:
                    message = decode_stored(result.parts[0])
                    if message.queue_offset == offset:
                        found[at] = message
        return found

    async def _put(self, lease: Lease, bits: int, messages: dict[int, StoredMessage]) -> None:
        """Store *messages* again, and end their leases, and those of *bits* that are gone.

        Raises OgiveError, when the leases of those that were stored have ended.
        """
        ctx = self._ctx
        topic, queue_id = "", 0
        if messages:
            retry = ensure_retry_topic(ctx, lease.key.group, lease.key.topic)
            topic = retry.name
            if ctx.config.pop.separate_retry_queues and lease.key.queue_id < retry.write_queues:
                queue_id = lease.key.queue_id
        copies = {at: self._copy(one, lease, topic, queue_id) for at, one in messages.items()}
        results = await asyncio.gather(
            *(ctx.stored((copy,), topic) for copy in copies.values()), return_exceptions=True
        )
        last, failure = 0, None
        for at, result in zip(copies, results, strict=True):
            if isinstance(result, BaseException):
                bits &= ~(1 << at)
                failure = result
                continue
            last = max(last, result[0].commitlog_offset)
            ctx.traffic.count_put(topic, 1, result[0].size)
            ctx.pop_figures.revived += 1
        if bits:
            await self._end(lease, bits, last)
        if failure is not None:
            raise failure

    async def _end(self, lease: Lease, bits: int, commitlog_offset: int) -> None:
        """Raises StoreError."""
        ended: asyncio.Future[None] = self._ctx.loop.create_future()

        def done(error: OgiveError | None) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self._book.revived(lease, bits, commitlog_offset, done)
        await ended

    def _copy(self, message: StoredMessage, lease: Lease, topic: str, queue_id: int) -> NewMessage:
        properties = decode_properties(message.properties)
        for name in (PropertyName.RECORD_CRC, "POP_CK", "POP_CK_OFFSET"):
            properties.pop(name, None)
        if not message.reconsume_times or "1ST_POP_TIME" not in properties:
            properties["1ST_POP_TIME"] = str(lease.key.pop_time_ms)
        properties["ORIGIN_GROUP"] = lease.key.group
        return NewMessage(
            topic,
            queue_id,
            message.body,
            encode_properties(fit_properties(properties)),
            message.sys_flag,
            message.flag,
            message.born_timestamp_ms,
            self._ctx.store_host,
            self._ctx.store_host,
            min(message.reconsume_times + (not lease.suspend), MAX_INT),
        )


def _parts(bits: int) -> Iterator[int]:
    """Yield *bits* in groups of at most _AT_ONCE."""
    while bits:
        part = 0
        while bits and part.bit_count() < _AT_ONCE:
            lowest = bits & -bits
            part |= lowest
            bits ^= lowest
        yield part
