"""Unread answers of all connections of a server, within one limit.

Above half of the limit, pulls of clients with much unread data wait sooner. Near the limit all
pulls wait (broker/pulls/long_polling.py), and then the connection that would need longest to read
its answers is closed. A client that reads its answers, however slow its network is, is not closed
because of others that do not.
"""

import asyncio
import sys
from dataclasses import dataclass
from typing import Final, Protocol

from ogive.transport.limits import ServerLimits

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import TIOCOUTQ

# smaller amounts of a connection are not counted, so that usual answers cost nothing; for 10,000
# connections this is 160 MiB
COUNTED: Final = 16 * 1024
# time for the sockets to take as much of the written data as they can
LOOK_S: Final = 0.005
# the part of the limit that is freed at a time; otherwise each answer would search all connections
_FREED: Final = 16
# weight of the last second in a peer's rate
_SMOOTH: Final = 0.2


def waiting_in_system(transport: asyncio.Transport | None) -> int:
    """Return the bytes in the system's buffer that the peer has not acknowledged, if the system
    reports them.
    """
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is None or sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(ioctl(connected.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # closed meanwhile
        return 0


class Holder(Protocol):
    """A connection with unread answers."""

    remote_address: str

    @property
    def closed(self) -> bool: ...
    @property
    def held_bytes(self) -> int:
        """Memory that its unread answers take."""

    @property
    def taken_bytes(self) -> int:
        """Return the bytes that the peer has read since the connection was opened."""

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Held:
    size: int
    since: float
    # bytes that its peer had read then
    had: int
    # bytes read at the last measurement; below 0: none yet
    taken: int = -1
    # bytes a second; below 0: not known yet
    rate: float = -1.0

    def look(self, taken: int, passed_s: float) -> None:
        if self.taken >= 0:
            rate = (taken - self.taken) / passed_s
            self.rate = rate if self.rate < 0 else self.rate + _SMOOTH * (rate - self.rate)
        self.taken = taken

    @property
    def lasts_s(self) -> float:
        """Return the seconds that the peer needs to read its unread answers."""
        return self.size / max(self.rate, 1.0)

    def rank(self, slow_s: float, now: float, taken: int) -> tuple[int, float, float]:
        """Return a sort key for the order of closing: first peers that are known to be slow, then
        new ones by the amount that they have read, last those that read their answers.
        """
        if self.rate < 0:
            return (
                1,
                self.size * max(now - self.since, 0.001) / max(taken - self.had, 1),
                -self.since,
            )
        return 2 if self.lasts_s > slow_s else 0, self.lasts_s, -self.since


class Unread:
    """Unread answers of all connections of a server. Event-loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ServerLimits) -> None:
        self._loop, self._limit, self._slow_s = loop, limits.max_unread_bytes, limits.slow_reader_s
        self._full = self._limit - self._limit // _FREED
        self._held: dict[Holder, _Held] = {}
        self._look: asyncio.TimerHandle | None = None
        self._swept_at = loop.time()
        self._room: asyncio.Event = asyncio.Event()
        self.total = 0

    @property
    def is_tight(self) -> bool:
        """Return True if clients with much unread data must wait for now."""
        return self.total > self._limit // 2

    @property
    def is_full(self) -> bool:
        """Return True if no client gets large answers for now; this ends after the next
        measurement, or sooner if all clients read their answers.
        """
        return self.total > self._full

    async def room(self) -> None:
        """Return when there has been room again. Other waiters may have taken it."""
        if self.is_full:
            await self._room.wait()

    def count(self, connection: Holder) -> None:
        """Count bytes that were written to the connection, or read by the peer."""
        size, known = connection.held_bytes, self._held.get(connection)
        if size < COUNTED:
            if known is not None:
                self.forget(connection)
            return
        if known is None:
            known = self._held[connection] = _Held(0, self._loop.time(), connection.taken_bytes)
        self.total += size - known.size
        known.size = size
        if self.is_full and self._look is None:
            self._room.clear()
            self._look = self._loop.call_later(LOOK_S, self._make_room)

    def forget(self, connection: Holder) -> None:
        """Forget a connection without unread answers."""
        known = self._held.pop(connection, None)
        if known is not None:
            self.total -= known.size

    def sweep(self) -> None:
        """Measure how much each peer reads. Call this about every second."""
        now = self._loop.time()
        passed_s, self._swept_at = max(now - self._swept_at, 0.001), now
        for connection, held in list(self._held.items()):
            self.count(connection)
            held.look(connection.taken_bytes, passed_s)

    def _make_room(self) -> None:
        for connection in list(self._held):
            self.count(connection)
        if self.is_full:
            self._cut()
        if self.is_full:
            self._look = self._loop.call_later(LOOK_S, self._make_room)
        else:
            self._look = None
            self._room.set()

    def _cut(self) -> None:
        now, each = self._loop.time(), enumerate(self._held.items())
        ranks = sorted(
            ((held.rank(self._slow_s, now, one.taken_bytes), i, one) for i, (one, held) in each),
            reverse=True,
        )
        for (kind, _, _), _, connection in ranks:
            if self.total <= (self._limit if kind == 0 else self._full):
                return
            if connection not in self._held:
                continue
            size = self._held[connection].size
            self.forget(connection)
            what = (
                f"{size} bytes wait for it to read, and {self.total} for others: more than allowed"
            )
            connection.abort(
                "" if connection.closed else f"{connection.remote_address} is cut off: {what}"
            )
