"""Connections never take the last file descriptors of the process: a store that cannot open its
files stores nothing.
"""

import weakref
from typing import Final

try:
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
except ImportError:

    def _limit() -> int | None:
        """Return None: Windows has no limit."""
        return None

else:

    def _limit() -> int | None:
        """Return how many descriptors the process may have open, None if any number."""
        soft, _ = getrlimit(RLIMIT_NOFILE)
        return None if soft == RLIM_INFINITY else soft


FOR_FILES: Final = 512
"""Or half of all, where there are less than twice as many.

A store keeps some dozens open, and tables are saved through new ones.
"""

sockets: Final[weakref.WeakSet[object]] = weakref.WeakSet()
"""What of all servers of this process holds a descriptor: each adds and discards its own."""


def has_room(more: int = 0) -> bool:
    """Whether those that are open, and *more*, leave enough for files."""
    limit = _limit()
    return limit is None or len(sockets) + more <= limit - min(FOR_FILES, limit // 2)
