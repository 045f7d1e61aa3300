"""Timeouts for a great many short calls: adding one costs a list append, and none needs to be
cancelled.
"""

import asyncio
import heapq
from collections.abc import Callable

TICK_S = 0.02
"""Longest delay of a timeout.

The number of an answered call stays until its deadline: eight bytes.
"""


class Deadlines:
    """Calls *expire* with the numbers whose deadline has passed; the owner knows which of them
    still wait.
    """

    __slots__ = ("_buckets", "_expire", "_loop", "_order", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expire: Callable[[list[int]], None]
    ) -> None:
        self._loop = loop
        self._expire = expire
        self._buckets: dict[int, list[int]] = {}
        # heap of the buckets' ticks
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, deadline: float) -> None:
        """Add a deadline, a time of the loop's clock."""
        tick = int(deadline / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.append(number)
            return
        self._buckets[tick] = [number]
        heapq.heappush(self._order, tick)
        if self._order[0] == tick:
            self._arm()

    def clear(self) -> None:
        """Drop all deadlines and the owner; nothing may be added afterwards.

        In a reference cycle with this object the owner would stay in memory until a garbage
        collection.
        """
        self._expire = _nothing
        self._buckets.clear()
        self._order.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = (
            self._loop.call_at(self._order[0] * TICK_S, self._fire) if self._order else None
        )

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        due: list[int] = []
        while self._order and self._order[0] * TICK_S <= now:
            due += self._buckets.pop(heapq.heappop(self._order))
        self._arm()
        if due:
            self._expire(due)


def _nothing(due: list[int]) -> None:
    pass
