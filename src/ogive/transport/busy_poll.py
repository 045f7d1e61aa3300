"""Adaptive busy polling: spin briefly for an event that usually arrives within microseconds.

A processor without work sleeps, and an event 50 µs later waits until it wakes: 20 to 200 µs on a
virtual machine, as long as all other work for a send. If events follow each other that closely,
polling costs less than the wake-up.

Behaviour
- Polling begins after the expected event has arrived quickly several times in a row, and lasts no
  longer than the limit.
- Polls that find nothing are paid from a budget: 4 % of a processor, whatever the requests do.
  After each such poll, more events must arrive quickly in a row before the next one, twice as many
  each time.
- If other processes need the processor, it does not sleep, so polling saves nothing: if half of the
  polls lost the processor to others, there are none for a while.
- Between two polls other threads and processes may run: threads of this process, or a peer on the
  same processor. If they run for long, the polling ends; if this happens twice within a short time,
  there is none for a while.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

# for a longer wait polling saves nothing
MAX_BUSY_POLL_S: Final = 0.001
# events that must arrive quickly in a row before the first poll
SOON: Final = 4
# the largest such number
RARELY: Final = 256
# time that a wake-up may add before a sleeping thread sees the event
WAKING_S: Final = 0.0002
# share of a processor for polls that find nothing
SHARE: Final = 0.04
# largest unused budget
SAVED_S: Final = 0.01
# waits between two checks whether others need the processor
ROUND: Final = 16
# a yield that takes this long let others run: alone it takes 1 µs. Virtual machines stop rarely
HELD_UP_S: Final = 100e-6
# number of such yields in a round
HELD_UP: Final = 2
# time without polls while others need the processor
PAUSE_S: Final = 0.1


try:
    # Windows has no such module, macOS no figures of a thread.
    from resource import RUSAGE_THREAD, getrusage
except ImportError:

    def _taken_away() -> int:
        """Return 0: this system does not count it, and the budget alone ends the polling."""
        return 0

else:

    def _taken_away() -> int:
        """Number of times that this thread lost its processor to another one.

        The call takes 0.5 µs.
        """
        return getrusage(RUSAGE_THREAD).ru_nivcsw


# Windows has none
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Expectation:
    """Decides, each time that an event is expected, whether to poll for it or to sleep until it
    arrives.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        taken_away: Callable[[], int] = _taken_away,
        give_way: Callable[[], None] = _give_way,
    ) -> None:
        """*limit_s*: the longest time to poll."""
        self._limit_s = limit_s
        self._clock = clock
        self._taken_away = taken_away
        self._give_way = give_way
        self._since = self._filled_at = clock()
        self._until = 0.0  # while looking
        # events in a row that arrived quickly
        self._soon = 0
        self._needed = SOON
        self._budget_s = SAVED_S
        # waits in this round
        self._waits = 0
        # yields in this round that let others run
        self._held_up = 0
        self._taken_before = 0
        self._not_before = 0.0

    def begin(self) -> bool:
        """Begin to expect the event. Return True if the caller should poll for it."""
        now = self._since = self._clock()
        self._until = 0.0
        if self._soon < self._needed or now < self._not_before:
            return False
        self._budget_s = min(SAVED_S, self._budget_s + SHARE * (now - self._filled_at))
        self._filled_at = now
        if self._budget_s < self._limit_s or self._is_wanted(now):
            return False
        self._until = now + self._limit_s
        return True

    def goes_on(self) -> bool:
        """Report that the event has not arrived. Return True if the caller should poll again. Lets
        others run first.
        """
        now = self._clock()
        if now < self._until:
            self._give_way()
            if (back := self._clock()) - now < HELD_UP_S:
                return True
            self._held_up += 1
            if self._held_up >= HELD_UP:
                self._not_before = back + PAUSE_S
        elif self._until:
            self._needed = min(RARELY, 2 * self._needed)
        if self._until:
            self._in_vain(now)
        return False

    def came(self) -> None:
        """Report that the expected event arrived."""
        if self._until:
            self._until = 0.0
            self._needed = SOON
        elif self._clock() - self._since <= self._limit_s + WAKING_S:
            self._soon += 1
        else:
            self._soon = 0

    def disturb(self) -> None:
        """Report that something else happened."""
        if self._until:
            self._in_vain(self._clock())
        self._soon = 0

    def _in_vain(self, now: float) -> None:
        self._budget_s -= now - self._since
        self._until = 0.0
        self._soon = 0

    def _is_wanted(self, now: float) -> bool:
        """Return True if others need the processor."""
        if not self._waits:
            self._taken_before = self._taken_away()
            self._held_up = 0
        self._waits += 1
        if self._waits <= ROUND:
            return False
        self._waits = 0
        if self._taken_away() - self._taken_before < ROUND // 2:
            return False
        self._not_before = now + PAUSE_S
        return True


class Lookout:
    """Makes an event loop poll for the next request.

    All other work of the loop goes on meanwhile: the loop only does not sleep.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expectation: Expectation) -> None:
        self._loop, self._expectation = loop, expectation
        self._looking = False

    def answered(self) -> None:
        """Report that a request was answered whose client has no other in progress."""
        if self._expectation.begin() and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def asked(self, *, again: bool) -> None:
        """Report that data arrived; *again*: from the client that was answered last."""
        if again:
            self._expectation.came()
        else:
            self._expectation.disturb()

    def _look(self) -> None:
        if self._expectation.goes_on():
            self._loop.call_soon(self._look)
        else:
            self._looking = False
