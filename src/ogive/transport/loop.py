"""Makes the event loop for everything in ogive."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ogive.transport.names import look_up

log = logging.getLogger(__name__)

REPORT_S: Final = 10.0
_NO_DESCRIPTOR: Final = "socket.accept() out of system resource"  # asyncio's words


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (the extra ``fast``), else the standard one.

    It saves about a seventh of a broker's work.
    """
    uvloop = _uvloop()
    if uvloop is not None:
        return uvloop()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_Reports())
    return loop


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None

    class Loop(uvloop.Loop):
        """Looks names up as ``names.py`` does, in ``sock_connect``, too.

        ``create_connection`` with a name and ``create_server`` with a host still use libuv's
        threads: they are called with addresses and sockets only.
        """

        async def getaddrinfo(
            self,
            host: Any,
            port: Any,
            *,
            family: int = 0,
            type: int = 0,
            proto: int = 0,
            flags: int = 0,
        ) -> list[Any]:
            return await look_up(host, port, family=family, proto=proto, flags=flags)

    return Loop


class _Reports:
    """A process without a free descriptor would log a thousand tracebacks a second while clients
    wait to be accepted, and fill the disk.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _NO_DESCRIPTOR:
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + REPORT_S
            log.error(
                "clients wait to be accepted: %s; raise the limit (ulimit -n)",
                context.get("exception"),
            )
