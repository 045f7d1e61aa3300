"""The end of the time that messages have.

In flight alone a message needs no watch: its connection sees to that.
"""

import asyncio
import itertools
from collections.abc import Callable

from ogive.client.sending.outgoing import Outgoing
from ogive.transport.deadlines import Deadlines


class Watch:
    """Calls *expire* with the watched messages whose deadline has come."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expire: Callable[[list[Outgoing]], None]
    ) -> None:
        self._expire = expire
        self._deadlines = Deadlines(loop, self._due)
        self._numbers = itertools.count()
        self._watched: dict[int, Outgoing] = {}

    def add(self, outgoing: Outgoing) -> None:
        """Harmless when repeated."""
        if outgoing.number < 0:
            outgoing.number = next(self._numbers)
            self._watched[outgoing.number] = outgoing
            self._deadlines.add(outgoing.number, outgoing.deadline)

    def drop(self, outgoing: Outgoing) -> None:
        """It goes on, or has its outcome. Harmless for one that is not watched."""
        self._watched.pop(outgoing.number, None)
        outgoing.number = -1

    def clear(self) -> None:
        self._deadlines.clear()

    def _due(self, numbers: list[int]) -> None:
        due = [
            outgoing for number in numbers if (outgoing := self._watched.get(number)) is not None
        ]
        if due:
            self._expire(due)
