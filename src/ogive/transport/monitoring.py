"""Minimal HTTP server for monitoring pages, and Prometheus's text format for metrics.

The server answers GET and HEAD, one request per connection, with limits for everything.

On loopback the Host header, if there is one, must be an address or ``localhost``. A web page of
another site whose name points to this machine (DNS rebinding) sends its own name, and could
otherwise read these pages.
"""

import asyncio
import ipaddress
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from ogive.errors import ConnectError
from ogive.transport.acceptor import listening_socket, stop_accepting
from ogive.transport.connection import is_loopback, join_address, reason_of

log = logging.getLogger(__name__)

MAX_HEAD_BYTES: Final = 8 * 1024
MAX_CONNECTIONS: Final = 64
# time limit for the request to arrive, and again for the answer to be read
TIMEOUT_S: Final = 10.0
# time limit for requests in progress at a stop
STOP_S: Final = 1.0
LOCAL_NAMES: Final = frozenset({"localhost"})
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Response:
    """Answer to a request."""

    status: int
    text: str
    content_type: str = "text/plain; charset=utf-8"


Make = Callable[[], Response | Awaitable[Response]]
"""Function that returns the answer for a page, on the loop."""


def names_this_server(host: str, names: Collection[str] = LOCAL_NAMES) -> bool:
    """Return True if a Host header is an address, or one of *names*, in any case."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if name in names:
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class PageServer:
    """Server of *pages*, by path. A page must be ready within TIMEOUT_S."""

    def __init__(self, pages: Mapping[str, Make], *, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._pages = pages
        self._server: asyncio.Server | None = None
        # connections, the oldest first, each with its task
        self._busy: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Listen. Raises ConnectError if the address is in use."""
        try:
            listening = listening_socket(self.host, self.port, v6_only=True)
        except OSError as exc:
            raise ConnectError(
                f"cannot listen on {self.address}: {reason_of(exc)}", self.address
            ) from None
        self.port = listening.getsockname()[1]
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=MAX_HEAD_BYTES)

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await stop_accepting(server)
            # so that the task of a new connection begins
            await asyncio.sleep(0)
        tasks = [task for task in self._busy.values() if task is not None]
        for writer in list(self._busy):
            writer.transport.abort()
        if tasks:
            # not cancelled: asyncio's streams would log that
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # close the oldest: idle clients must not shut out monitoring
        if len(self._busy) >= MAX_CONNECTIONS:
            oldest = next(iter(self._busy))
            del self._busy[oldest]
            oldest.transport.abort()
        self._busy[writer] = asyncio.current_task()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._answer(head)
            writer.write(answer)
            async with asyncio.timeout(TIMEOUT_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as exc:
            log.debug("a request for a page came to nothing: %r", exc)
            writer.transport.abort()
        finally:
            self._busy.pop(writer, None)

    async def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        answer, body = Response(400, "this is not an HTTP request\n"), True
        if len(words) == 3 and words[2].startswith(b"HTTP/1."):
            body = words[0] != b"HEAD"
            make = self._pages.get(words[1].partition(b"?")[0].decode("latin-1"))
            if is_loopback(self.host) and not all(map(names_this_server, _hosts(head))):
                answer = Response(421, "ask for this page by the server's address\n")
            elif words[0] not in (b"GET", b"HEAD"):
                answer = Response(405, "use GET or HEAD\n")
            elif make is None:
                answer = Response(404, f"no such page; there are {' '.join(self._pages)}\n")
            else:
                made = make()
                answer = made if isinstance(made, Response) else await made
        raw = answer.text.encode()
        top = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\nContent-Type: "
            f"{answer.content_type}\r\nContent-Length: {len(raw)}\r\n"
            "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        return top.encode() + (raw if body else b"")


def _hosts(head: bytes) -> list[str]:
    """Return the values of all Host headers; probes in HTTP/1.0 send none."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [
        value.strip().decode("latin-1")
        for name, _, value in lines
        if name.strip().lower() == b"host"
    ]


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Rows = Iterable[tuple[Labels, float]]


class Histogram(NamedTuple):
    """Histogram of values, with their number and their sum.

    *at_most*: for each of *bounds* the number of values up to it, so that each value also counts in
    the following ones.
    """

    bounds: Sequence[float]
    at_most: Sequence[int]
    all: int
    total: float


class Values:
    """Values, counted by *bounds*: those up to the first, those above it up to the second, and so
    on.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._total += times * value

    def histogram(self) -> Histogram:
        *at_most, count = accumulate(self._counts)
        return Histogram(self._bounds, at_most, count, self._total)


class MetricsText:
    """Text of metrics, one after the other. *common*: labels of every line."""

    def __init__(self, common: Labels | None = None) -> None:
        self._common = common or {}
        self._lines: list[str] = []

    def add(self, name: str, kind: str, help_text: str, rows: Rows) -> None:
        """Add a counter or a gauge, as *kind* says. A row is a line's labels and its value."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        for labels, value in rows:
            self._line(name, labels, value)

    def histogram(
        self, name: str, help_text: str, rows: Iterable[tuple[Labels, Histogram]]
    ) -> None:
        """Add a histogram. A row is its labels and its figures."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} histogram")
        for labels, (bounds, at_most, count, total) in rows:
            for bound, below in zip(bounds, at_most, strict=True):
                self._line(f"{name}_bucket", {**labels, "le": float(bound)}, below)
            self._line(f"{name}_bucket", {**labels, "le": "+Inf"}, count)
            self._line(f"{name}_sum", labels, total)
            self._line(f"{name}_count", labels, count)

    def _line(self, name: str, labels: Labels, value: float) -> None:
        shown = ",".join(
            f'{label}="{_escaped(str(text))}"' for label, text in {**self._common, **labels}.items()
        )
        self._lines.append(f"{name}{{{shown}}} {int(value) if value % 1 == 0 else value}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
