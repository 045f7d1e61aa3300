"""The pauses between the attempts of one call, and the time after which no other is begun."""

import asyncio
from typing import Final

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


class Retry:
    """One call that is tried again within *window_s* from now, at most *limit* times.

    Its pauses grow from FIRST_PAUSE_S to LONGEST_PAUSE_S, or are all of *pause_s*.
    """

    def __init__(
        self, window_s: float, *, limit: int | None = None, pause_s: float | None = None
    ) -> None:
        self._clock = asyncio.get_running_loop()
        self._deadline = self._clock.time() + window_s
        self._left = limit
        self._longest_s = LONGEST_PAUSE_S if pause_s is None else pause_s
        self.pause_s = FIRST_PAUSE_S if pause_s is None else pause_s

    @property
    def over(self) -> bool:
        """Return whether no attempt is left, or the window ends before the next pause does."""
        return self._left == 0 or self._clock.time() + self.pause_s > self._deadline

    async def pause(self) -> None:
        """Sleep until the next attempt."""
        await asyncio.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, self._longest_s)
        if self._left is not None:
            self._left -= 1
