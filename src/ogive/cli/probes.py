"""Pages of --http-port: /health, /ready and /metrics of a process that is no broker."""

import argparse
import errno
from collections.abc import Callable
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
