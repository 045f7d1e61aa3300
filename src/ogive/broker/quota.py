"""Memory quotas for queued requests and pull filters, and the limit of replies per client.

Queued requests wait for their turn, for the disk, or for another request. Each may be as large
as a frame, and the connection limits their number. Sends that wait for the log have a limit of
their own.
"""

from collections import Counter
from typing import Final

from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand

MAX_BYTES: Final = 128 * 1024 * 1024
# two of the largest frames
MAX_BYTES_PER_CONNECTION: Final = 32 * 1024 * 1024
# a connection that holds no more is not refused on account of others
FREE_BYTES: Final = 256 * 1024
MAX_FILTER_BYTES: Final = 64 * 1024 * 1024
MAX_FILTER_BYTES_PER_CONNECTION: Final = 4 * 1024 * 1024
FREE_FILTER_BYTES: Final = 8 * 1024
# bytes; smaller filters do not count
SMALL_FILTER: Final = 256
# one client may have one of them
REPLY_SHARES: Final = 8


class Quota:
    """An amount that connections share, with a limit for each. Owner: the event loop.

    A connection with at most *free* is not refused because of others.
    """

    def __init__(self, total: int, per_connection: int, free: int) -> None:
        self.total, self.per_connection, self.free = total, per_connection, free
        self.used = 0
        self._held: Counter[Connection] = Counter()

    def acquire(self, connection: Connection, size: int) -> bool:
        """Reserve *size* until release(), or return False if a limit would be exceeded."""
        held = self._held[connection] + size
        if held > self.per_connection or (held > self.free and self.used + size > self.total):
            return False
        if size:
            self._held[connection] = held
            self.used += size
        return True

    def excess(self, connection: Connection, size: int) -> str:
        """Return the amount of *connection* with *size* more, and the limit that forbids it."""
        held = self._held[connection] + size
        if held > self.per_connection:
            return f"{held} bytes: {self.per_connection} are allowed for one connection"
        return f"{held} bytes: {self.total} are allowed for all together"

    def release(self, connection: Connection, size: int) -> None:
        """Release *size*. Do nothing after drop()."""
        held = self._held.get(connection)
        if held is None:
            return
        self.used -= size
        if held > size:
            self._held[connection] = held - size
        else:
            del self._held[connection]

    def drop(self, connection: Connection) -> None:
        """Release the whole amount of a closed connection."""
        self.used -= self._held.pop(connection, 0)


class RequestQuota(Quota):
    """Memory quota for queued requests."""

    def __init__(self) -> None:
        super().__init__(MAX_BYTES, MAX_BYTES_PER_CONNECTION, FREE_BYTES)


class FilterQuota(Quota):
    """Memory quota for the filters in pull requests."""

    def __init__(self) -> None:
        super().__init__(MAX_FILTER_BYTES, MAX_FILTER_BYTES_PER_CONNECTION, FREE_FILTER_BYTES)


class ReplyQuota(Quota):
    """Limit of replies that wait for their clients.

    A client that accepts no replies blocks an eighth of them at most.
    """

    def __init__(self) -> None:
        super().__init__(0, 0, 0)

    def acquire_one(self, client: Connection, total: int) -> bool:
        """Reserve one reply of *total*, or return False if a limit would be exceeded."""
        self.total, self.per_connection = total, -(-total // REPLY_SHARES)
        return self.acquire(client, 1)


def size_of(command: RemotingCommand) -> int:
    """Return the bytes of a request's body and fields."""
    return len(command.body) + sum(
        [len(name) + len(value) for name, value in command.ext_fields.items()]
    )
