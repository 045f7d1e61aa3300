"""Names that must be unique: clients and messages.

Source: ClientConfig.java, MessageClientIDSetter.java, 5.3.
"""

import os
import secrets
import socket
from datetime import datetime


def local_ip() -> str:
    """Return the address of the interface for the default route, or the loopback address.

    Sends nothing.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # a documentation network: only the routing table is asked
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError:
        # also where no more files may be opened: messages need a name then, too
        return "127.0.0.1"


def make_client_id(instance_name: str | None = None) -> str:
    """Return ``ip@instance``.

    Without a name the instance is pid#random: equal addresses and small pids of containers do not
    collide.
    """
    return f"{local_ip()}@{instance_name or f'{os.getpid()}#{secrets.randbits(64)}'}"


class UniqueKeys:
    """Generator of UNIQ_KEY values for messages: 32 upper-case hex digits that strictly grow.

    Layout: address (4 bytes), pid (2), random per generator (4), milliseconds since the local month
    began (4), counter (2). Tools read the time back from it. A clock that steps back only makes the
    counter run on; a new month draws a new random part.
    """

    __slots__ = ("_last", "_month_ends_ms", "_month_start_ms", "_prefix")

    def __init__(self) -> None:
        self._last = 0
        self._month_start_ms = 0
        self._month_ends_ms = 0
        self._prefix = ""

    def next(self, now_ms: int) -> str:
        """Return the next key. *now_ms*: the time since 1970, which the caller has at hand."""
        prefix, number = self.take(now_ms, 1)
        return f"{prefix}{number:012X}"

    def take(self, now_ms: int, count: int) -> tuple[str, int]:
        """Return what *count* keys begin with, and the number of the first: 12 more digits."""
        if now_ms >= self._month_ends_ms:
            self._begin_month(now_ms)
        number = (now_ms - self._month_start_ms) << 16
        if number <= self._last:
            number = self._last + 1
        self._last = number + count - 1
        return self._prefix, number

    def _begin_month(self, now_ms: int) -> None:
        # a local time without an offset: that of the 1st may differ from today's
        day = datetime.fromtimestamp(now_ms / 1000)  # noqa: DTZ006
        self._month_start_ms = _midnight_ms(day.year, day.month)
        self._month_ends_ms = max(
            _midnight_ms(day.year + day.month // 12, day.month % 12 + 1), now_ms + 1
        )
        self._last = 0
        address = socket.inet_aton(local_ip())
        self._prefix = (
            (address + (os.getpid() & 0xFFFF).to_bytes(2) + secrets.token_bytes(4)).hex().upper()
        )


def _midnight_ms(year: int, month: int) -> int:
    """Return the time since 1970 at which a month begins in the local time zone.

    Where the clocks change at that midnight, it is the second of two midnights, and 01:00 where
    there is none. Both as java.util.Calendar has it.
    """
    midnight = datetime(year, month, 1)  # noqa: DTZ001
    return int(max(midnight.timestamp(), midnight.replace(fold=1).timestamp()) * 1000)
