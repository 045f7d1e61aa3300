"""The consuming side of a channel: messages on a lease, within the prefetch limit.

Behaviour
- Each queue of kombu is a topic and a consumer group of the same name, whose messages are popped.
- A message is held, and its lease renewed, until it is acknowledged or rejected. When the process
  ends, nobody renews the leases, so the messages are delivered again when these end.
- All queues are asked at the same time. When one delivers messages, the requests for the others
  are cancelled, which loses nothing. They are sent again with the number of messages that still
  fit.
- An acknowledgement that fails is sent again until the lease ends.

All methods run on the event loop of the clients.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ogive import LeaseEnded, MessageExt, NoPermission, OgiveError
from ogive.aio import SimpleConsumer
from ogive_kombu.settings import Settings

log = logging.getLogger(__name__)

MAX_UNACKED: Final = 60_000
"""Limit of messages that a channel holds if it has no prefetch limit."""
MAX_POP: Final = 32
"""Limit of messages in the answer to one request."""
WAIT_S: Final = 20.0
RETRY_S: Final = 1.0
CLOSE_S: Final = 10.0
"""Time that ``close`` waits for acknowledgements in flight."""
RENEWALS: Final = 32
"""Limit of renewals in flight."""


class Received(NamedTuple):
    """A message on its way to the thread that drains events."""

    receiver: "Receiver"
    queue: str
    tag: str
    message: MessageExt


@dataclass(slots=True, eq=False)
class Held:
    """A message that is neither acknowledged nor rejected."""

    queue: str
    consumer: SimpleConsumer
    message: MessageExt
    renewed: bool = True
    """False when the lease has ended, or the message is being finished."""


class Receiver:
    """Messages of one channel. *put* is called with each message, and with the error that ends the
    receiving.
    """

    def __init__(self, settings: Settings, put: Callable[[Received | Exception], None]) -> None:
        self._settings = settings
        self._put = put
        self._prefetch = 0
        self._consumers: dict[str, SimpleConsumer] = {}
        # queues to receive from, and whether their messages need no acknowledgement
        self._queues: dict[str, bool] = {}
        self._held: dict[str, Held] = {}
        self._tags = itertools.count(1)
        self._changed = asyncio.Event()
        self._full = False
        self._renewals = asyncio.Semaphore(RENEWALS)
        self._loops: list[asyncio.Task[None]] = []
        self._finishing: set[asyncio.Task[None]] = set()

    # --- what the channel asks for ----------------------------------------------------------------

    async def consume(self, queue: str, *, no_ack: bool) -> None:
        """Receive messages of *queue* from now on. Raises OgiveError."""
        await self._consumer(queue)
        self._queues[queue] = no_ack
        self._changed.set()

    async def cancel(self, queue: str) -> None:
        """Receive no more messages of *queue*. Those that are held can still be acknowledged."""
        self._queues.pop(queue, None)
        self._changed.set()

    async def set_prefetch(self, count: int) -> None:
        """Hold at most *count* messages; 0 means MAX_UNACKED."""
        self._prefetch = count
        self._changed.set()

    async def get(self, queue: str, *, no_ack: bool) -> Received | None:
        """Receive one message of *queue* without waiting. The prefetch limit does not apply."""
        consumer = await self._consumer(queue)
        lease_s = self._settings.visibility_timeout_s
        for message in await consumer.receive(1, invisible_s=lease_s, wait_s=0):
            received = self._hold(queue, consumer, message)
            if no_ack:
                self.ack(received.tag)
            return received
        return None

    def ack(self, tag: str) -> None:
        """Acknowledge a message in the background. Do nothing if that was done before."""
        if (held := self._held.get(tag)) is not None:
            self._finish(tag, held, lambda: held.consumer.ack(held.message))

    def give_back(self, tag: str) -> None:
        """Have a message delivered again at once, to any consumer of its queue."""
        if (held := self._held.get(tag)) is not None:
            self._finish(tag, held, lambda: held.consumer.change_invisible(held.message, 0))

    async def close(self) -> None:
        """Give back the held messages, and leave the groups."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for tag, held in list(self._held.items()):
            if held.renewed:
                self.give_back(tag)
        if self._finishing:
            _, late = await asyncio.wait(self._finishing, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for consumer in self._consumers.values():
            await consumer.close()

    # --- the loops --------------------------------------------------------------------------------

    async def _consumer(self, queue: str) -> SimpleConsumer:
        """Return the consumer of *queue*. Start it on first use."""
        if queue not in self._consumers:
            # a new group also gets the messages that were sent before
            consumer = SimpleConsumer(
                queue, group=queue, start="earliest", client=self._settings.client
            )
            await consumer.start()
            self._consumers[queue] = consumer
        if not self._loops:
            self._loops = [
                asyncio.create_task(self._receive(), name="receive messages for kombu"),
                asyncio.create_task(self._renew(), name="renew leases for kombu"),
            ]
        return self._consumers[queue]

    async def _receive(self) -> None:
        while True:
            self._changed.clear()
            room = min(self._prefetch or MAX_UNACKED, MAX_UNACKED) - len(self._held)
            self._full = room <= 0
            if self._full or not self._queues:
                await self._changed.wait()
                continue
            tasks: list[asyncio.Task[object]] = [
                asyncio.create_task(self._changed.wait()),
                *(asyncio.create_task(self._receive_from(one, room)) for one in self._queues),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
            for error in results:
                if isinstance(error, Exception):
                    self._put(error)
                    return

    async def _receive_from(self, queue: str, room: int) -> None:
        """Put up to *room* messages. Return without one after WAIT_S.

        Raises NoPermission, because another try would fail, too.
        """
        consumer, lease_s = self._consumers[queue], self._settings.visibility_timeout_s
        try:
            messages = await consumer.receive(
                min(room, MAX_POP), invisible_s=lease_s, wait_s=WAIT_S
            )
        except NoPermission:
            raise
        except OgiveError as exc:
            log.warning("queue %s: cannot receive, next try in %g s: %s", queue, RETRY_S, exc)
            await asyncio.sleep(RETRY_S)
            return
        # no await from here on: a cancelled receive must not lose messages
        for message in messages:
            received = self._hold(queue, consumer, message)
            self._put(received)
            if self._queues.get(queue):
                self.ack(received.tag)

    def _hold(self, queue: str, consumer: SimpleConsumer, message: MessageExt) -> Received:
        tag = str(next(self._tags))
        self._held[tag] = Held(queue, consumer, message)
        return Received(self, queue, tag, message)

    async def _renew(self) -> None:
        while True:
            # so a lease ends only after two renewals have failed
            await asyncio.sleep(self._settings.visibility_timeout_s / 3)
            await asyncio.gather(
                *(self._renew_one(held) for held in list(self._held.values()) if held.renewed)
            )

    async def _renew_one(self, held: Held) -> None:
        async with self._renewals:
            if not held.renewed:
                return
            try:
                await held.consumer.change_invisible(
                    held.message, self._settings.visibility_timeout_s
                )
            except LeaseEnded as exc:
                held.renewed = False
                log.warning("queue %s: a message is delivered again: %s", held.queue, exc)
            except OgiveError as exc:
                log.warning("queue %s: cannot renew a lease: %s", held.queue, exc)

    def _finish(self, tag: str, held: Held, request: Callable[[], Awaitable[None]]) -> None:
        held.renewed = False
        task = asyncio.create_task(self._until_finished(tag, held, request))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _until_finished(
        self, tag: str, held: Held, request: Callable[[], Awaitable[None]]
    ) -> None:
        while tag in self._held:
            try:
                await request()
            except LeaseEnded as exc:
                log.warning("queue %s: a message is delivered again: %s", held.queue, exc)
            except OgiveError as exc:
                log.warning("queue %s: next try in %g s: %s", held.queue, RETRY_S, exc)
                await asyncio.sleep(RETRY_S)
                continue
            self._held.pop(tag, None)
            if self._full:
                self._changed.set()
