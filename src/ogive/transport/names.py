"""Looks host names up in Python's threads, on any loop.

uvloop uses threads of libuv for that. When a forked child exits, libuv joins them, although the
child does not have them, and crashes.
"""

import asyncio

# Otherwise the first thread that looks a name up imports it, and a child that is forked in this
# moment waits for ever for the lock of the import.
import encodings.idna  # noqa: F401
import socket
from functools import partial
from typing import Any


async def look_up(
    host: Any, port: Any, *, family: int = 0, proto: int = 0, flags: int = 0
) -> list[Any]:
    """Return what ``socket.getaddrinfo`` returns for TCP.

    Raises what it raises: OSError, ValueError.
    """
    ask = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, proto)
    try:
        return ask(flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().run_in_executor(None, ask, flags)
