"""Adaptive busy polling: spin briefly for an event that usually arrives within microseconds.

A processor with nothing to do sleeps, and what comes 50 us later waits for it to wake: 20 to 200 us
on a virtual machine, as much as all else that is done for a send. Where one thing follows another
that closely, looking again until it is there costs less than that.

Behaviour
- It begins where what was expected came soon several times in a row, and looks for no longer than
  the limit.
- What was looked for in vain is paid out of a budget: 4 % of a processor, whatever the requests do.
  Where it was in vain, more of them have to follow each other closely before the next time, twice
  as many each time.
- A processor that others want too does not sleep, so that there is nothing to win: where half of
  the waits met with somebody who took it away, there are none for a while.
- Between two looks everybody else may have the processor and the interpreter: threads of this
  process, a peer on the same processor. Where somebody takes them for long, the looking ends; the
  second time soon after another there is none for a while.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

# who waits for longer may as well sleep
MAX_BUSY_POLL_S: Final = 0.001
# so many in a row, to begin with
SOON: Final = 4
# and at most
RARELY: Final = 256
# what a sleeper's wake-up may add to the time after which something was found
WAKING_S: Final = 0.0002
# of a processor, for looking in vain
SHARE: Final = 0.04
# of that, at most
SAVED_S: Final = 0.01
# waits, after which it is looked whether others want the processor
ROUND: Final = 16
# who gives way for so long was wanted to: alone it takes 1 us. Virtual machines stop rarely
HELD_UP_S: Final = 100e-6
# so often in a round
HELD_UP: Final = 2
# while others want the processor
PAUSE_S: Final = 0.1


try:
    # Windows has no such module, macOS no figures of a thread.
    from resource import RUSAGE_THREAD, getrusage
except ImportError:

    def _taken_away() -> int:
        """Return 0: this system does not count it, and the budget alone ends the wait."""
        return 0

else:

    def _taken_away() -> int:
        """Number of times that this thread had to leave its processor to another one.

        Takes 0.5 µs.
        """
        return getrusage(RUSAGE_THREAD).ru_nivcsw


# Windows has none
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Expectation:
    """Decides, each time that something is expected, whether to look for it or to sleep until it
    comes.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        taken_away: Callable[[], int] = _taken_away,
        give_way: Callable[[], None] = _give_way,
    ) -> None:
        """*limit_s*: how long to look at most."""
        self._limit_s, self._clock, self._taken_away, self._give_way = (
            limit_s,
            clock,
            taken_away,
            give_way,
        )
        self._since = self._filled_at = clock()
        self._until = 0.0  # while looking
        # how many in a row came soon
        self._soon = 0
        self._needed = SOON
        self._budget_s = SAVED_S
        # in this round
        self._waits = 0
        # how often, in this round
        self._held_up = 0
        self._taken_before = 0
        self._not_before = 0.0

    def begin(self) -> bool:
        """It is expected from now on. Whether to look for it."""
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
        """Nothing has come; whether to go on looking. Gives way to others first."""
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
        """Something else is there."""
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
    """Has an event loop look for the next request.

    Everything else has its turn meanwhile: the loop only does not sleep.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expectation: Expectation) -> None:
        self._loop, self._expectation = loop, expectation
        self._looking = False

    def answered(self) -> None:
        """A request has been answered, and its client has no other under way."""
        if self._expectation.begin() and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def asked(self, *, again: bool) -> None:
        """Something has arrived; *again*: from the client that was answered last."""
        if again:
            self._expectation.came()
        else:
            self._expectation.disturb()

    def _look(self) -> None:
        if self._expectation.goes_on():
            self._loop.call_soon(self._look)
        else:
            self._looking = False
