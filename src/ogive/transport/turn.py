"""Work done once per turn of the event loop for everything in it: one write to the log, one write
to each socket; and work in slices.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

Job = Callable[[], None]

# what came together is carried out for so long before others have their turn
SLICE_S: Final = 0.01
# tasks that are woken for a slice
AT_ONCE: Final = 64


class Turn:
    """Jobs for the end of the turn, in order; what they bring along follows in the same turn.

    The loop runs them when it has read every socket that had something, unless whoever brings them
    has taken that upon itself with hold().
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        # somebody runs what is added: the loop need not
        self._held = False

    def add(self, job: Job) -> None:
        if not self._jobs and not self._held:
            self._loop.call_soon(self.run)
        self._jobs.append(job)

    def hold(self) -> bool:
        """Whether the caller is the first to bring anything; it then has to call run() when it is
        through.
        """
        if self._jobs or self._held:
            return False
        self._held = True
        return True

    def run(self) -> None:
        jobs = self._jobs
        self._held = True
        try:
            while jobs:
                jobs.popleft()()
        finally:
            self._held = False
            # one of them failed: that is not the others' fault
            if jobs:
                self._loop.call_soon(self.run)

    def call_from_thread(self, job: Job) -> None:
        """Any thread: have *job* called on the loop soon, and then what it brings along."""
        self._loop.call_soon_threadsafe(self._run_with, job)

    def _run_with(self, job: Job) -> None:
        self._jobs.append(job)
        self.run()


class Slices:
    """Has tasks that came together go on in slices, between which the loop turns, and in order; at
    least one in each slice.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # the end of this turn's slice, once somebody has gone on
        self._until: float | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        # those that were woken too late in the slice
        self._again: list[asyncio.Future[None]] = []
        self._turning = False

    async def mine(self) -> None:
        """Return when the slice has time left."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._next)
        if not self._waiting and self._has_time():
            return
        line: deque[asyncio.Future[None]] | list[asyncio.Future[None]] = self._waiting
        while True:
            woken = loop.create_future()
            line.append(woken)
            await woken
            if self._has_time():
                return
            line = self._again

    def _has_time(self) -> bool:
        now = self._now()
        if self._until is None:
            self._until = now + SLICE_S
            return True
        return now < self._until

    def _next(self) -> None:
        self._until = None
        self._waiting.extendleft(reversed(self._again))
        self._again.clear()
        self._turning = bool(self._waiting)
        if self._turning:
            for _ in range(min(AT_ONCE, len(self._waiting))):
                woken = self._waiting.popleft()
                # else its task was cancelled
                if not woken.done():
                    woken.set_result(None)
            asyncio.get_running_loop().call_soon(self._next)
