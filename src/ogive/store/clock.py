"""The time in records and for delays: wall-clock time that never goes back."""

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_CATCH_UP: Final = 16
_TOLD_MS: Final = 1000


def now_ms() -> int:
    """Milliseconds since 1970 by the machine's clock."""
    return time.time_ns() // 1_000_000


class SteadyClock:
    """When the wall clock is set back, this one continues from where it was, a sixteenth slower, until the wall clock has caught up.

    If it stood still instead, every message of that hour would be stored with one timestamp, and delays could not be measured. A step
    forward is followed at once, unless it only undoes a step back. Not thread-safe.
    """

    __slots__ = ("_ahead_ms", "_at_s", "_monotonic", "_wall", "_wall_ms")

    def __init__(self, wall_ms: Callable[[], int], monotonic: Callable[[], float], at_least_ms: int = 0) -> None:
        """*at_least_ms*: the latest time that was given out by the clock before this one, in an earlier process."""
        self._wall, self._monotonic = wall_ms, monotonic
        self._wall_ms = wall_ms()
        self._ahead_ms = float(max(0, at_least_ms - self._wall_ms))
        self._at_s = monotonic()
        if self._ahead_ms > _TOLD_MS:
            self._tell()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        wall_ms, before_ms = self._wall(), self._wall_ms
        self._wall_ms = wall_ms
        if wall_ms >= before_ms and not self._ahead_ms:
            return wall_ms
        if wall_ms < before_ms:
            self._ahead_ms += before_ms - wall_ms
            self._at_s = self._monotonic()
            if before_ms - wall_ms > _TOLD_MS:
                self._tell()
        elif self._ahead_ms:
            passed_ms, self._at_s = (self._monotonic() - self._at_s) * 1000, self._monotonic()
            stepped_ms = max(0.0, wall_ms - before_ms - passed_ms)
            self._ahead_ms = max(0.0, self._ahead_ms - stepped_ms - (wall_ms - before_ms - stepped_ms) / _CATCH_UP)
        return wall_ms + int(self._ahead_ms)

    def _tell(self) -> None:
        log.warning(
            "the machine's clock is %.0f s behind the time of what is stored: the store's clock is ahead of it, and slower until they meet",
            self._ahead_ms / 1000,
        )
