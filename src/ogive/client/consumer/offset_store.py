"""How far a group got in each queue, on its way to the broker."""

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol

from ogive.errors import OgiveError
from ogive.model import MessageQueue

log = logging.getLogger(__name__)


class OffsetCalls(Protocol):
    """What the store asks of brokers."""

    async def query_offset(self, queue: MessageQueue) -> int | None: ...
    async def update_offset(self, queue: MessageQueue, offset: int, *, checked: bool) -> None: ...


class RemoteOffsetStore:
    """Offsets in memory, kept at the brokers. Source: RemoteBrokerOffsetStore.java, 5.3.

    An offset never moves back, but for a repair, which also freezes it: results of listeners that were still running then cannot overwrite
    it. Queues are independent of each other: persisting or forgetting one touches no other.
    """

    def __init__(self, calls: OffsetCalls) -> None:
        self._calls = calls
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    async def fetch(self, queue: MessageQueue) -> int | None:
        """The broker's record; None only where the broker says that there is none. Every failure raises: it must never pass for "none"."""
        return await self._calls.query_offset(queue)

    def read(self, queue: MessageQueue) -> int | None:
        """What is known here."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        if queue not in self._frozen and offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def repair(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also back, and keep it until the queue is forgotten."""
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    async def persist(self, queues: Collection[MessageQueue], *, checked: bool = False) -> None:
        """Send what is known of *queues* to their brokers, also where it has not changed: a broker may have lost it in a crash.

        *checked* waits for the answers. A broker that fails is logged, the others get theirs.
        """
        known = [(queue, offset) for queue in queues if (offset := self._offsets.get(queue)) is not None]
        await asyncio.gather(*(self._persist(queue, offset, checked) for queue, offset in known))

    async def _persist(self, queue: MessageQueue, offset: int, checked: bool) -> None:
        try:
            await self._calls.update_offset(queue, offset, checked=checked)
        except OgiveError as exc:
            log.warning("offset %d of %s was not persisted: %s", offset, queue, exc)
