"""Health of this process: the pages of --http-port, and notifications to a service manager.

The pages /health, /ready and /metrics are those of a process that is no broker. For notifications
to a service manager such as systemd see sd_notify(3). Without the variable NOTIFY_SOCKET, which the
manager sets, nothing is sent.
"""

import argparse
import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from ogive.cli.exits import TryLater
from ogive.errors import ConnectError, OgiveError
from ogive.transport.monitoring import CONTENT_TYPE, PageServer, Response


async def serve(
    options: argparse.Namespace,
    ready: Callable[[], Response],
    metrics: Callable[[], str],
    running: AsyncExitStack,
) -> str | None:
    """Serve the pages until *running* ends. Return the address of /metrics, or None without
    --http-port. Raises TryLater if the port is in use.
    """
    if options.http_port is None:
        return None
    server = PageServer(
        {
            "/health": lambda: Response(200, "ok\n"),
            "/ready": ready,
            "/metrics": lambda: Response(200, metrics(), CONTENT_TYPE),
        },
        host=options.http_host or "127.0.0.1",
        port=options.http_port,
    )
    try:
        await server.start()
    except ConnectError as exc:
        raise cannot_listen(exc, "--http-port") from None
    running.push_async_callback(server.stop)
    return f"http://{server.address}/metrics"


def cannot_listen(exc: ConnectError, option: str) -> OgiveError:
    """Return the error with the option that chooses another port."""
    cause = exc.__context__
    in_use = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
    return (TryLater if in_use else OgiveError)(f"{exc}; {option} chooses another (0: a free one)")


log = logging.getLogger(__name__)


class ServiceManager:
    """The socket that NOTIFY_SOCKET names, and the interval of the watchdog."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. A value that is no number counts as
        no watchdog.
        """
        path = environ.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte of an abstract address
        self._address = "\0" + path[1:] if path.startswith("@") else path
        usec = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 1e6 if usec.isdecimal() and is_ours else 0.0
        """The process counts as hung after so many seconds without a message; 0: never."""

    def notify(self, *lines: str) -> None:
        """Send assignments such as ``READY=1``. A failure is logged: the service goes on."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                # the manager reads it later; a full socket must not stop the event loop
                to.setblocking(False)
                to.sendto("\n".join(lines).encode(), self._address)
        except OSError as exc:
            log.warning("the service manager was not told %s: %s", " ".join(lines), exc)

    async def watch(self) -> None:
        """Send WATCHDOG=1 twice in each interval of the watchdog, as long as the loop turns."""
        while self._address and self.watchdog_s:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)
