"""Connections of browsers, which may be many and silent: how many there are at a time, and for how
long one may keep its place.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MAX_VISITS: Final = 64
# from one answer to the next, or to the end
PATIENCE_S: Final = 60.0


class Visit(H11Protocol):
    """One connection.

    uvicorn's own limit refuses requests and counts connections that never send one, so that some
    silent ones keep everybody out for as long as they like. Here a new connection takes the place
    of the one that has gone without an answer for longest, of those that wait for no page if there
    are any; and none goes without for longer than PATIENCE_S, whether it sends too little or reads
    too little.
    """

    _patience: asyncio.TimerHandle
    # the last answer, or its coming
    since = 0.0

    # as uvicorn has it
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()
        others = [
            visit for visit in self.connections if isinstance(visit, Visit) and visit is not self
        ]
        if len(others) >= MAX_VISITS:
            min(others, key=lambda visit: (visit.waits, visit.since)).end()

    def on_response_complete(self) -> None:
        self._patience.cancel()
        self._begin()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """For a page, or for its own reading of one."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def end(self) -> None:
        self._patience.cancel()
        # at once: it is lost in a later turn of the loop only
        self.connections.discard(self)
        self.transport.abort()

    def _begin(self) -> None:
        self.since = self.loop.time()
        self._patience = self.loop.call_later(PATIENCE_S, self.end)
