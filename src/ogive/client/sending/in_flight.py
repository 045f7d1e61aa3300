"""Limit of what a producer has in flight, and the end of each message's time.

Source: DefaultMQProducerImpl.java, backPressureForAsyncSendNum and -Size, 5.3.

A message that is only in flight is not watched: its connection ends it in time.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable

from ogive.client.sending.pending import PendingSend
from ogive.errors import OgiveError, SendFailed
from ogive.transport.event_loop import Deadlines


class InFlightLimit:
    """Limit of messages and bytes in flight. Callers over it wait, first come first served.

    A message larger than the whole limit still goes, alone. ``admits`` and ``acquire`` may be
    called on any thread; they never count too much, because ``acquire`` adds without a call in
    between, and so without another thread or a signal handler.
    """

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        # in flight, or admitted, of a caller that has not come back yet
        self.count = self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._loop = asyncio.get_running_loop()

    @property
    def is_contended(self) -> bool:
        """Return True if a caller waits for room."""
        return bool(self._waiting)

    def take(self, size: int) -> bool:
        """Acquire if ``admits``. Return False if not."""
        # admits and acquire without their calls: this is for each submitted message
        if (
            self._waiting
            or self.count >= self._max_count
            or (self._bytes + size > self._max_bytes and self.count)
        ):
            return False
        self.count += 1
        self._bytes += size
        return True

    def admits(self, size: int, before: int = 0) -> bool:
        """Return True if a message of *size* bytes may go at once, behind *before* others, without
        passing any that wait.
        """
        return not self._waiting and self._fits(size, before)

    def acquire(self, size: int) -> None:
        self.count += 1
        self._bytes += size

    def release(self, size: int, count: int = 1) -> None:
        self.count -= count
        self._bytes -= size
        if self._waiting:
            self._admit_next()

    async def wait(self, size: int, timeout_s: float) -> None:
        """Acquire when it is the caller's turn.

        Raises SendFailed if that takes too long; a cancelled wait acquires nothing.
        """
        turn: asyncio.Future[None] = self._loop.create_future()
        entry = (turn, size)
        self._waiting.append(entry)
        # the last message in flight may have ended since a thread found no room
        self._admit_next()
        came = False
        try:
            async with asyncio.timeout(timeout_s):
                await turn
            came = True
        except TimeoutError:
            raise SendFailed(
                f"not sent: {self.count} messages of {self._bytes} bytes were in flight for "
                f"{timeout_s:.1f} s, "
                f"and no more are allowed (max_in_flight, max_in_flight_bytes)"
            ) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._admit_next()
            elif not came and not turn.cancelled() and turn.exception() is None:
                # admitted, and cancelled in the same moment
                self.release(size)

    def close(self, error: OgiveError) -> None:
        """End every wait with *error*."""
        while self._waiting:
            turn, _ = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def _fits(self, size: int, before: int = 0) -> bool:
        return self.count + before < self._max_count and (
            self._bytes + size <= self._max_bytes or self.count == 0
        )

    def _admit_next(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1]):
            turn, size = self._waiting.popleft()
            if not turn.done():
                self.acquire(size)
                turn.set_result(None)


class DeadlineWatch:
    """Deadlines of messages: calls *expire* with those whose deadline has come."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expire: Callable[[list[PendingSend]], None]
    ) -> None:
        self._expire = expire
        self._deadlines = Deadlines(loop, self._due)
        self._numbers = itertools.count()
        self._watched: dict[int, PendingSend] = {}

    def add(self, pending: PendingSend) -> None:
        """Watch the message, unless it is watched."""
        if pending.number < 0:
            pending.number = next(self._numbers)
            self._watched[pending.number] = pending
            self._deadlines.add(pending.number, pending.deadline)

    def drop(self, pending: PendingSend) -> None:
        """Stop watching the message: it goes on, or has its outcome."""
        self._watched.pop(pending.number, None)
        pending.number = -1

    def clear(self) -> None:
        self._deadlines.clear()

    def _due(self, numbers: list[int]) -> None:
        due = [pending for number in numbers if (pending := self._watched.get(number)) is not None]
        if due:
            self._expire(due)
