"""The time in records and for delays: wall-clock time that never goes back."""

import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

_CATCH_UP: Final = 16
_ROUNDING_MS: Final = 2
"""Difference of the wall clock and the monotonic clock, in whole milliseconds, that does not count
as a step.
"""
_MEASURE_MS: Final = 1000
"""Time over which both clocks are compared, however many calls there are.

Over a fraction of a millisecond each tick would look like a step.
"""
_TOLD_MS: Final = 1000


def now_ms() -> int:
    """Return milliseconds since 1970 by the machine's clock."""
    return time.time_ns() // 1_000_000


class SteadyClock:
    """Clock that never goes back.

    If the wall clock is set back, this one continues a sixteenth slower until the wall clock has
    caught up. If it stood still instead, every message of that hour would have the same timestamp,
    and delays could not be measured. A step forward is followed at once, unless it only undoes a
    step back. Not thread-safe.
    """

    __slots__ = (
        "_ahead_ms",
        "_last_ms",
        "_monotonic",
        "_since_ms",
        "_since_s",
        "_wall",
        "_wall_ms",
    )

    def __init__(
        self, wall_ms: Callable[[], int], monotonic: Callable[[], float], at_least_ms: int = 0
    ) -> None:
        """Start at the machine's time, or at *at_least_ms*: the latest time of the previous clock,
        in an earlier process.
        """
        self._wall, self._monotonic = wall_ms, monotonic
        self._wall_ms = wall_ms()
        # How far this clock was ahead when the two others stood at _since_ms and _since_s.
        self._ahead_ms = float(max(0, at_least_ms - self._wall_ms))
        self._since_ms, self._since_s = self._wall_ms, monotonic()
        self._last_ms = 0
        if self._ahead_ms > _TOLD_MS:
            self._tell()

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        wall_ms, before_ms = self._wall(), self._wall_ms
        self._wall_ms = wall_ms
        if wall_ms >= before_ms and not self._ahead_ms:
            return wall_ms
        if wall_ms < before_ms:
            self._begin_at(
                wall_ms, self._ahead_after(before_ms - self._since_ms) + before_ms - wall_ms
            )
            if before_ms - wall_ms > _TOLD_MS:
                self._tell()
            return self._not_before(wall_ms + int(self._ahead_ms))
        passed_ms = wall_ms - self._since_ms
        stepped_ms = passed_ms - (self._monotonic() - self._since_s) * 1000
        if stepped_ms > _ROUNDING_MS:
            self._begin_at(
                wall_ms, max(0.0, self._ahead_after(passed_ms - stepped_ms) - stepped_ms)
            )
            return self._not_before(wall_ms + int(self._ahead_ms))
        ahead_ms = self._ahead_after(passed_ms)
        if passed_ms >= _MEASURE_MS or not ahead_ms:
            self._begin_at(wall_ms, ahead_ms)
        return self._not_before(wall_ms + int(ahead_ms))

    def _not_before(self, time_ms: int) -> int:
        """Return *time_ms*, or the last time if that is later.

        A wall clock that is made to run faster, or a thread that waits between reading the two
        clocks, looks like a step forward whose first milliseconds were already returned.
        """
        self._last_ms = max(time_ms, self._last_ms)
        return self._last_ms

    def _ahead_after(self, passed_ms: float) -> float:
        return max(0.0, self._ahead_ms - passed_ms / _CATCH_UP) if self._ahead_ms else 0.0

    def _begin_at(self, wall_ms: int, ahead_ms: float) -> None:
        self._ahead_ms, self._since_ms, self._since_s = ahead_ms, wall_ms, self._monotonic()

    def _tell(self) -> None:
        log.warning(
            "the machine's clock is %.0f s behind the newest stored message: the store's clock "
            "stays ahead and runs slower until they agree",
            self._ahead_ms / 1000,
        )
