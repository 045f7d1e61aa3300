"""Connections never take the last file descriptors of the process: a store that cannot open its files stores nothing."""

import sys
import weakref
from typing import Final

if sys.platform != "win32":
    import resource

FOR_FILES: Final = 512
"""Or half of all, where there are less than twice as many. A store keeps some dozens open, and tables are saved through new ones."""

sockets: Final[weakref.WeakSet[object]] = weakref.WeakSet()
"""What of all servers of this process holds a descriptor: each adds and discards its own."""


def has_room(more: int = 0) -> bool:
    """Whether those that are open, and *more*, leave enough for files."""
    if sys.platform == "win32":
        return True
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or len(sockets) + more <= soft - min(FOR_FILES, soft // 2)
