"""Messages for ``async for``: handed out one by one, finished when the application says so.

Behaviour
- A message counts as finished at the end of its ``process()`` block; an exception there is logged
  and sends the message back.
- Several tasks (or threads) may iterate over one consumer: each message goes to one of them.
- A message that is handed out and never finished holds back the progress of its queue; after the
  consume timeout it is sent back.
- A block that is cancelled leaves its message unfinished: the group gets it again when this
  consumer closes, or after the timeout.
"""

import asyncio
import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Final, Self

from ogive.client.consumer.concurrent import EXPIRED_LEVEL
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.listener_call import around_message
from ogive.client.consumer.outcome import ASKED, GIVEN_UP, shown
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.send_back import returns
from ogive.client.consumer.subscription import MemberContext
from ogive.client.consumer.workers import Callers
from ogive.client.listener import AnyListener, Later
from ogive.client.trace import CallEnd
from ogive.errors import IllegalStateError
from ogive.keywords import explained
from ogive.model import MessageExt
from ogive.transport.event_loop import every

log = logging.getLogger(__name__)

_FIELDS: Final = tuple(field.name for field in dataclasses.fields(MessageExt))


class IncomingMessage(MessageExt):
    """Message to be settled by ``process()``, ``done()``, ``later()`` or ``dead_letter()``; the
    first one counts.
    """

    __slots__ = ("_around", "_settle")
    _settle: Callable[[Later | None, str], None]
    _around: Callable[[MessageExt], AbstractContextManager[object]]

    @classmethod
    def of(
        cls,
        message: MessageExt,
        settle: Callable[[Later | None, str], None],
        around: Callable[[MessageExt], AbstractContextManager[object]] = nullcontext,
    ) -> Self:
        """Return a copy of *message* that calls *settle* with its outcome. Its ``process()`` enters
        what *around* makes.
        """
        incoming = cls(*[getattr(message, name) for name in _FIELDS])
        # past the guard of the frozen record
        object.__setattr__(incoming, "_settle", settle)
        object.__setattr__(incoming, "_around", around)
        return incoming

    def process(self) -> "Processing":
        """Open a block that settles the message: ``async with message.process():``, or ``with`` in
        threads.

        An exception means "again, later".
        """
        return Processing(self)

    def done(self) -> None:
        """Mark the message as finished."""
        self._settle(None, "")

    @explained
    def later(self, delay_level: int = 0) -> None:
        """Have the message delivered again later; *delay_level* as in ``ogive.later``."""
        self._settle(Later(delay_level), GIVEN_UP if delay_level < 0 else ASKED)

    def dead_letter(self) -> None:
        """Move it to the group's dead-letter topic."""
        self._settle(Later(-1), GIVEN_UP)


class Processing:
    """Block in which a message is worked on: finished at its end, delivered again later after an
    exception, which ends here.
    """

    __slots__ = ("_around", "_message")

    def __init__(self, message: IncomingMessage) -> None:
        self._message = message
        self._around = message._around(message)

    def __enter__(self) -> IncomingMessage:
        self._around.__enter__()
        return self._message

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        message = self._message
        self._around.__exit__(kind, error, trace)
        if error is None:
            message.done()
            return False
        if not isinstance(error, Exception):
            # cancelled or interrupted: no verdict
            return False
        log.warning(
            "processing %s/%d failed (try %d, id %s): %s",
            message.queue,
            message.queue_offset,
            message.reconsume_times + 1,
            message.id,
            shown(error),
            exc_info=error if message.reconsume_times == 0 else None,
        )
        message._settle(Later(), shown(error))
        return True

    async def __aenter__(self) -> IncomingMessage:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self.__exit__(kind, error, trace)


class IteratorService:
    """Service that hands messages to an iterator instead of a listener."""

    def __init__(self, group: MemberContext, listener: AnyListener, config: ConsumerConfig) -> None:
        self._group = group
        self._timeout_s = listener.config.consume_timeout_s
        self._around = around_message(listener, group.instance.namespace)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ready: deque[tuple[ProcessQueue, MessageExt]] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Handed out, and without a verdict, by queue and offset: since when, the message, and what
        # the observer made of its beginning.
        self._out: dict[tuple[ProcessQueue, int], tuple[float, MessageExt, Any]] = {}
        self._all_settled: asyncio.Future[None] | None = None
        self._closed = False
        self._expiry: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._failed_messages = returns(group, listener, config, self.submit)

    def start(self) -> None:
        period = min(1.0, self._timeout_s / 4)
        self._expiry = self._group.spawn(
            every(period, self.expire, name="consume timeouts", first_after_s=period),
            "consume timeouts",
        )

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        self._ready.extend((process_queue, message) for message in messages)
        self._wake(len(messages))

    async def next(self) -> IncomingMessage:
        """Return the next message.

        Raises StopAsyncIteration once the consumer is closed, IllegalStateError if it failed.
        """
        while True:
            if self._failure is not None:
                raise IllegalStateError(
                    "the consumer stopped after an unexpected error"
                ) from self._failure
            if self._closed:
                raise StopAsyncIteration
            while self._ready:
                process_queue, message = self._ready.popleft()
                if process_queue.active:
                    return self._hand_out(process_queue, message)
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    # it settled a message that another member may have now
                    self._wake(1)
                raise

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Return True while a message of the queue that was handed out is not settled."""
        return any(one is process_queue for one, _ in self._out) or self._failed_messages.is_busy(
            process_queue
        )

    async def stop(self, timeout_s: float, callers: Callers | None) -> None:
        """Hand out nothing more; wait for the verdicts on what is out."""
        deadline = self._loop.time() + timeout_s
        self._end(None)
        if self._out:
            self._all_settled = self._loop.create_future()
            await asyncio.wait((self._all_settled,), timeout=timeout_s)
        if self._expiry is not None:
            self._expiry.cancel()
        await self._failed_messages.close(max(0.0, deadline - self._loop.time()))

    def fail(self, error: BaseException) -> None:
        """Make everybody who waits for a message see *error*."""
        self._end(error)

    async def expire(self) -> None:
        """Send back what has been out for too long."""
        before = self._loop.time() - self._timeout_s
        for (process_queue, offset), (since, message, _) in list(self._out.items()):
            if since < before:
                log.warning(
                    "%s/%d was not acknowledged within %.0f s: it counts as failed",
                    message.queue,
                    offset,
                    self._timeout_s,
                )
                self._settle(
                    process_queue,
                    message,
                    Later(EXPIRED_LEVEL),
                    f"no verdict within {self._timeout_s:.0f} s",
                )

    # --- inside -----------------------------------------------------------------------------------

    def _hand_out(self, process_queue: ProcessQueue, message: MessageExt) -> IncomingMessage:
        observer = self._group.observer
        seen = None if observer is None else observer.begun([message])
        self._out[process_queue, message.queue_offset] = (self._loop.time(), message, seen)

        def settle(verdict: Later | None, why: str) -> None:
            if threading.get_ident() == self._thread:
                self._settle(process_queue, message, verdict, why)
            else:
                self._loop.call_soon_threadsafe(self._settle, process_queue, message, verdict, why)

        bare = self._group.instance.namespace.strip_message(message)
        return IncomingMessage.of(bare, settle, self._around)

    def _settle(
        self, process_queue: ProcessQueue, message: MessageExt, verdict: Later | None, why: str
    ) -> None:
        out = self._out.pop((process_queue, message.queue_offset), None)
        if out is None:
            return
        now, done = self._loop.time(), verdict is None
        self._group.statistics.of(message.queue.topic).consumed(
            now, now - out[0], calls=1, done=done, failed=not done
        )
        if self._group.observer is not None:
            self._group.observer.ended(
                out[2], [message], CallEnd.SUCCESS if done else CallEnd.LATER, int(done), why
            )
        if verdict is None:
            self._group.finish_message(process_queue, message)
        elif not process_queue.dropped:
            self._failed_messages.give(process_queue, message, verdict.delay_level, why)
        if not self._out and self._all_settled is not None and not self._all_settled.done():
            self._all_settled.set_result(None)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _end(self, failure: BaseException | None) -> None:
        self._closed = True
        self._failure = self._failure or failure
        self._ready.clear()
        self._wake(len(self._waiting))
