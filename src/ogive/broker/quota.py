"""How much memory requests that wait may hold, and filters that pulls bring along; how many replies
may wait for those that they are for.

Requests that wait are those that are carried out in their turn, read the disk, or wait for another
to be done.

Their number is limited by the connection; each may be as large as a frame. Sends that wait for the
log have a limit of their own.
"""

from collections import Counter
from typing import Final

from ogive.broker.replies import Rejected
from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand

MAX_BYTES: Final = 128 * 1024 * 1024
# two of the largest frames
MAX_BYTES_PER_CONNECTION: Final = 32 * 1024 * 1024
# one client may have one of them
REPLY_SHARES: Final = 8
# a connection that holds no more is not refused on account of others
FREE_BYTES: Final = 256 * 1024
MAX_FILTER_BYTES: Final = 64 * 1024 * 1024
MAX_FILTER_BYTES_PER_CONNECTION: Final = 4 * 1024 * 1024
FREE_FILTER_BYTES: Final = 8 * 1024
# bytes; filters that take no more do not count
SMALL_FILTER: Final = 256


class RequestRoom:
    """Owner: the event loop."""

    def __init__(self) -> None:
        self._held: Counter[Connection] = Counter()
        self._bytes = 0

    def take(self, connection: Connection, size: int) -> bool:
        """Whether there is room; then *size* has to be given back."""
        mine = self._held[connection] + size
        if mine > MAX_BYTES_PER_CONNECTION or (
            mine > FREE_BYTES and self._bytes + size > MAX_BYTES
        ):
            return False
        self._held[connection] = mine
        self._bytes += size
        return True

    def give_back(self, connection: Connection, size: int) -> None:
        self._bytes -= size
        self._held[connection] -= size
        # nothing that has a size
        if not self._held[connection]:
            del self._held[connection]


class FilterRoom:
    """What filters take that pulls bring along, as long as those pulls are there.

    Owner: the event loop.
    """

    def __init__(self) -> None:
        self._held: Counter[Connection] = Counter()
        self._bytes = 0

    def take(self, connection: Connection, size: int) -> "FilterShare | None":
        """To be kept as long as the filter is; None for one that does not count.

        Raises Rejected where there is no room.
        """
        if size <= SMALL_FILTER:
            return None
        mine = self._held[connection] + size
        if mine > MAX_FILTER_BYTES_PER_CONNECTION:
            limit = f"{MAX_FILTER_BYTES_PER_CONNECTION} are allowed for one connection"
        elif mine > FREE_FILTER_BYTES and self._bytes + size > MAX_FILTER_BYTES:
            limit = f"{MAX_FILTER_BYTES} are allowed for all together"
        else:
            self._held[connection] = mine
            self._bytes += size
            return FilterShare(self, connection, size)
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"[REJECTREQUEST]system busy: the filters of pulls that wait take {mine} bytes: "
            f"{limit}",
        )

    def give_back(self, connection: Connection, size: int) -> None:
        self._bytes -= size
        self._held[connection] -= size
        if not self._held[connection]:
            del self._held[connection]


class FilterShare:
    """Of a filter's room: given back when nothing holds this any more, whichever way the pull that
    did came to its end.
    """

    __slots__ = ("_connection", "_room", "_size")

    def __init__(self, room: FilterRoom, connection: Connection, size: int) -> None:
        self._room, self._connection, self._size = room, connection, size

    def __del__(self) -> None:
        self._room.give_back(self._connection, self._size)


class ReplyRoom:
    """How many replies wait for the clients that they are for. Owner: the event loop."""

    def __init__(self) -> None:
        self._waiting: Counter[Connection] = Counter()
        self._count = 0

    def take(self, client: Connection, most: int) -> bool:
        """Whether one more may wait for *client*, where *most* may wait in all; then it has to be
        given back.

        A client has an eighth of them at most, so that one that takes no replies does not hold up
        those to others.
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
    return len(command.body) + sum(
        [len(name) + len(value) for name, value in command.ext_fields.items()]
    )
