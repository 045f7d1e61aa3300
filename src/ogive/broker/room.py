"""How much memory requests that wait may hold, and how many replies may wait for those that they are for.

Requests that wait are those that are carried out in their turn, read the disk, or wait for another to be done.

Their number is limited by the connection; each may be as large as a frame. Sends that wait for the log have a limit of their own.
"""

from collections import Counter
from typing import Final

from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand

MAX_BYTES: Final = 128 * 1024 * 1024
MAX_BYTES_PER_CONNECTION: Final = 32 * 1024 * 1024  # two of the largest frames
REPLY_SHARES: Final = 8  # one client may have one of them
FREE_BYTES: Final = 256 * 1024  # a connection that holds no more is not refused on account of others


class RequestRoom:
    """Owner: the event loop."""

    def __init__(self) -> None:
        self._held: Counter[Connection] = Counter()
        self._bytes = 0

    def take(self, connection: Connection, size: int) -> bool:
        """Whether there is room; then *size* has to be given back."""
        mine = self._held[connection] + size
        if mine > MAX_BYTES_PER_CONNECTION or (mine > FREE_BYTES and self._bytes + size > MAX_BYTES):
            return False
        self._held[connection] = mine
        self._bytes += size
        return True

    def give_back(self, connection: Connection, size: int) -> None:
        self._bytes -= size
        self._held[connection] -= size
        if not self._held[connection]:  # nothing that has a size
            del self._held[connection]


class ReplyRoom:
    """How many replies wait for the clients that they are for. Owner: the event loop."""

    def __init__(self) -> None:
        self._waiting: Counter[Connection] = Counter()
        self._count = 0

    def take(self, client: Connection, most: int) -> bool:
        """Whether one more may wait for *client*, where *most* may wait in all; then it has to be given back.

        A client has an eighth of them at most, so that one that takes no replies does not hold up those to others.
        """
        if self._count >= most or self._waiting[client] * REPLY_SHARES >= most:
            return False
        self._waiting[client] += 1
        self._count += 1
        return True

    def give_back(self, client: Connection) -> None:
        self._count -= 1
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]


def size_of(command: RemotingCommand) -> int:
    return len(command.body) + sum([len(name) + len(value) for name, value in command.ext_fields.items()])
