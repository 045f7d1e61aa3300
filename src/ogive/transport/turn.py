"""Work done once per turn of the event loop for everything in it: one write to the log, one write to each socket."""

import asyncio
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]


class Turn:
    """Jobs for the end of the turn, in order; what they bring along follows in the same turn.

    The loop runs them when it has read every socket that had something, unless whoever brings them has taken that upon itself with hold().
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        self._held = False  # somebody runs what is added: the loop need not

    def add(self, job: Job) -> None:
        if not self._jobs and not self._held:
            self._loop.call_soon(self.run)
        self._jobs.append(job)

    def hold(self) -> bool:
        """Whether the caller is the first to bring anything; it then has to call run() when it is through."""
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
            if jobs:  # one of them failed: that is not the others' fault
                self._loop.call_soon(self.run)

    def call_from_thread(self, job: Job) -> None:
        """Any thread: have *job* called on the loop soon, and then what it brings along."""
        self._loop.call_soon_threadsafe(self._run_with, job)

    def _run_with(self, job: Job) -> None:
        self._jobs.append(job)
        self.run()
