"""Whose turn it is to have a listing made: an answer that grows with what the broker holds."""

import asyncio
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from ogive.transport.connection import Connection

# tries; beyond them, what is read for a listing is kept in memory: the system seems to forget it at
# once
KEEP_AFTER: Final = 4
# of one listing; beyond them, it waits for what is missing then
MAX_TRIES: Final = 64


class Listings:
    """One listing is made at a time.

    Hosts take turns, and so do the connections of a host; the listings of one connection are made
    in order. Of each host only one waits for a turn, and of each connection only the first for that
    of its host.
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        """Held while a listing is made.

        First come, first served: that is the round of the hosts.
        """
        self.cold = asyncio.Lock()
        """Held by the one listing whose bytes are brought in from the disk: it may need some of
        each queue. Meanwhile others are made.
        """
        self._of: WeakKeyDictionary[Connection, asyncio.Lock] = WeakKeyDictionary()
        self._of_host: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, connection: Connection) -> asyncio.Lock:
        """Held by the first listing of *connection*."""
        return self._of.setdefault(connection, asyncio.Lock())

    def of_host(self, connection: Connection) -> asyncio.Lock:
        """Held while *connection*, among those of its host, waits for a turn and has it."""
        return self._of_host.setdefault(
            connection.remote_address.rpartition(":")[0], asyncio.Lock()
        )
