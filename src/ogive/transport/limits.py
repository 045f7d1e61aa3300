"""The limits of one connection, and of all connections of a server together.

Connections never take the last file descriptors of the process: a store that cannot open its files
cannot store messages.
"""

import weakref
from dataclasses import dataclass
from typing import Final

from ogive.errors import InvalidOption
from ogive.wire.command import MAX_FRAME_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one connection. Times in seconds."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_calls_in_flight: int = 65_535
    """clientAsyncSemaphoreValue; our requests that wait for the peer's answers."""
    max_requests_in_flight: int = 4_096
    """The peer's requests that wait for our answers; above it nothing more is read."""
    write_high_bytes: int = 1024 * 1024
    """Above it writers must wait."""
    idle_s: float = 120.0  # serverChannelMaxIdleTimeSeconds
    silence_s: float = 1.0
    """After timeouts, a connection without a received byte for this long counts as dead."""

    def __post_init__(self) -> None:
        counts = (
            self.max_frame_bytes,
            self.max_calls_in_flight,
            self.max_requests_in_flight,
            self.write_high_bytes,
        )
        if min(*counts, self.idle_s, self.silence_s) <= 0:
            raise InvalidOption("every limit of a connection must be above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of all connections of one server together. Times in seconds."""

    connection: Limits = Limits()
    max_connections: int = 10_000
    max_connections_per_address: int = 1_000
    max_read_buffer_bytes: int = 256 * 1024 * 1024
    """Frames that are not complete yet; above it the oldest incomplete frame's connection is
    closed.
    """
    max_stranger_bytes: int = 32 * 1024 * 1024
    """The same for connections on which access control has not allowed any request yet."""
    first_frame_s: float = 10.0
    """A connection that has not sent one whole frame by then is closed."""
    frame_bytes_per_s: int = 1024
    """An incomplete frame must grow at least this fast, in each first_frame_s."""
    max_write_buffer_bytes: int = 8 * 1024 * 1024
    """A peer with more unread data, or with more than write_high_bytes and ..."""
    slow_reader_bytes_per_s: int = 8 * 1024
    """... that reads less than this (a MiB in over two minutes: no client needs that) ..."""
    slow_reader_s: float = 60.0
    """... for this long, counts as slow and is closed."""
    max_unsent_bytes: int = 64 * 1024 * 1024
    """A peer with more unread data is closed at once."""
    max_unread_bytes: int = 256 * 1024 * 1024
    """Unread bytes of all connections together; above it the slowest are closed, see
    Unread in server.py.
    """
    linger_s: float = 10.0
    """Time for a peer to read its last answers after its connection is closed here."""

    def __post_init__(self) -> None:
        counts = (self.max_connections, self.max_connections_per_address)
        sizes = (
            self.max_read_buffer_bytes,
            self.max_stranger_bytes,
            self.max_write_buffer_bytes,
            self.max_unread_bytes,
        )
        if min(*counts, *sizes, self.slow_reader_bytes_per_s) <= 0:
            raise InvalidOption("every limit of a server must be above zero")


try:
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
except ImportError:

    def _limit() -> int | None:
        """Return None: Windows has no limit."""
        return None

else:

    def _limit() -> int | None:
        """Return the number of descriptors that the process may open, None if there is no limit."""
        soft, _ = getrlimit(RLIMIT_NOFILE)
        return None if soft == RLIM_INFINITY else soft


FOR_FILES: Final = 512
"""Descriptors that are kept free for files; or half of all, if there are less than twice as many.

A store keeps some dozens open, and tables are saved through new ones.
"""

open_sockets: Final[weakref.WeakSet[object]] = weakref.WeakSet()
"""All objects of this process's servers that hold a descriptor: each adds and discards its own."""


def has_descriptors_for(more: int = 0) -> bool:
    """Return True if the open descriptors, and *more*, leave enough for files."""
    limit = _limit()
    return limit is None or len(open_sockets) + more <= limit - min(FOR_FILES, limit // 2)
