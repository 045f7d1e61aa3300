"""The gRPC endpoint: a port for the official RocketMQ 5 SDKs, with and without TLS.

Behaviour
- The first byte of a connection decides between TLS and HTTP/2 with prior knowledge; HAProxy's
  PROXY header may come before it.
- A call ends when its client cancels it, goes away, or its deadline passes; its handler is
  cancelled then.
- A stop refuses new calls (GOAWAY), waits for those in progress, and ends the others with
  UNAVAILABLE; clients call another endpoint, or this one after its next start.

Differs from Apache's proxy
- Requests have at most 16 MiB, not 130.
- Pings are never answered with "too_many_pings"; only a client that does nothing else for a long
  time, or resets call after call, gets ENHANCE_YOUR_CALM.

Source: GrpcServer.java, ProxyAndTlsProtocolNegotiator.java, 5.5.
"""

import asyncio
import logging
import re
import ssl
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Final

from ogive.errors import ConnectError
from ogive.proxy.calls import GrpcStatus, Method
from ogive.proxy.config import EndpointConfig
from ogive.proxy.connection import GrpcConnection
from ogive.proxy.proxy_header import ProxyAcceptor
from ogive.transport.connection import join_address, reason_of
from ogive.transport.event_loop import cancel_all, watch
from ogive.transport.limits import has_descriptors_for, open_sockets
from ogive.transport.monitoring import MetricsText

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
# frames without a request that a connection may send a second, see Http2Connection.refill
_REFILL: Final = 100
LOGGED_AGAIN_S: Final = 60.0
# limit for events that are counted until they are logged again
MAX_KNOWN: Final = 1_000
_NUMBER: Final = re.compile(r"\d+")
_EXPECTED: Final = (GrpcStatus.OK, GrpcStatus.CANCELLED, GrpcStatus.DEADLINE_EXCEEDED)


class Endpoint:
    """Server of *methods*, by path, on one port."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        config: EndpointConfig | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        plain_too: bool = True,
        no_tls_reason: str = "",
    ) -> None:
        """*plain_too*: serve connections without TLS, too. *no_tls_reason*: without *tls*, what the
        log says of a client that uses it.
        """
        self.methods = methods
        self.config = config or EndpointConfig()
        self.port = self.config.port
        self.in_progress = 0
        # finished calls by method and status
        self.calls_total: Counter[tuple[str, GrpcStatus]] = Counter()
        self._tls = tls
        self._plain_too = plain_too
        self._no_tls_reason = no_tls_reason
        self._loop = asyncio.get_running_loop()
        self._acceptor: ProxyAcceptor | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[GrpcConnection] = set()
        self._per_host: Counter[str] = Counter()
        self._held_bytes = 0
        self._refused_connections = 0
        # refused calls and closed connections by host and reason: since when, and how many were
        # not logged
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        # connections with responses that wait: since when, and what they had taken
        self._slow: dict[GrpcConnection, tuple[float, int]] = {}

    @property
    def address(self) -> str:
        return join_address(self.config.host, self.port)

    @property
    def connections(self) -> frozenset[GrpcConnection]:
        return frozenset(self._connections)

    async def start(self) -> None:
        """Listen; port 0 becomes the assigned port. Raises ConnectError."""
        acceptor = ProxyAcceptor(
            partial(GrpcConnection, self),
            self._tls,
            plain_too=self._plain_too,
            greeting_s=self.config.server.first_frame_s,
            admit=self._admits,
            no_tls_reason=self._no_tls_reason,
        )
        try:
            self.port = acceptor.listen(self.config.host, self.port)
        except OSError as exc:
            raise ConnectError(
                f"cannot listen on {self.address}: {reason_of(exc)}", self.address
            ) from None
        self._acceptor = acceptor
        self._sweeper = asyncio.create_task(self._sweep(), name=f"sweep {self.address}")
        watch(self._sweeper)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for new connections."""
        self._tls = tls
        if self._acceptor is not None:
            self._acceptor.context = tls

    async def stop(self) -> None:
        """Finish the calls in progress, at most for ``stop_grace_s``, and close."""
        if self._acceptor is None:
            return
        acceptor, self._acceptor = self._acceptor, None
        await acceptor.close()
        for connection in list(self._connections):
            connection.go_away()
        tasks = self._tasks()
        if tasks:
            await asyncio.wait(tasks, timeout=self.config.stop_grace_s)
        tasks = self._tasks()
        for connection in list(self._connections):
            for call in list(connection.calls.values()):
                call.fail(GrpcStatus.UNAVAILABLE, "this endpoint stops")
            connection.leave("this endpoint stops", logging.DEBUG)
        # their handlers end
        await cancel_all(tasks)
        if self._sweeper is not None:
            await cancel_all([self._sweeper])
        if self._connections:
            lost = [connection.lost for connection in self._connections]
            await asyncio.wait(lost, timeout=self.config.stop_grace_s)
        for connection in list(self._connections):
            connection.abort("it does not take its last answers")

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [
            call.task
            for connection in self._connections
            for call in connection.calls.values()
            if call.task is not None
        ]

    # --- limits -----------------------------------------------------------------------------------

    def _admits(self, host: str, waiting_from_it: int, waiting: int) -> bool:
        """Return True if one more connection is allowed."""
        limits = self.config.server
        if (
            len(self._connections) + waiting < limits.max_connections
            and self._per_host[host] + waiting_from_it < limits.max_connections_per_address
            and has_descriptors_for(1)
        ):
            return True
        self._refused_connections += 1
        log.log(
            logging.WARNING if self._refused_connections == 1 else logging.DEBUG,
            "%s is refused at the gRPC port: too many connections (%d so far)",
            host,
            self._refused_connections,
        )
        return False

    def opened(self, connection: GrpcConnection) -> None:
        """Count a new connection."""
        self._connections.add(connection)
        open_sockets.add(connection)
        self._per_host[connection.host] += 1
        if self._acceptor is None:
            # it was accepted before the stop
            connection.abort("this endpoint stops")

    def closed(self, connection: GrpcConnection) -> None:
        """Forget a connection whose socket is closed."""
        self._connections.discard(connection)
        open_sockets.discard(connection)
        self._slow.pop(connection, None)
        self._per_host[connection.host] -= 1
        if self._per_host[connection.host] <= 0:
            del self._per_host[connection.host]

    def held(self, more: int) -> None:
        """Count *more* bytes that are held for clients. Above the limit those that hold most are
        cut off.
        """
        self._held_bytes += more
        while more > 0 and self._held_bytes > self.config.server.max_read_buffer_bytes:
            serving = [one for one in self._connections if not one.closed]
            if not serving:
                return
            largest = max(serving, key=lambda one: one.held_bytes)
            largest.abort(f"it holds {largest.held_bytes} bytes, the most of all clients")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = self._loop.time()
            self._log_again(now)
            for connection in list(self._connections):
                connection.refill(_REFILL)
                self._check_requests(connection, now)
                if reason := self._overdue(connection, now):
                    connection.abort(reason)
                elif not connection.calls and now - connection.used_at > self.config.idle_s:
                    connection.go_away()
                    connection.leave(f"idle for {self.config.idle_s:g} s")

    def _check_requests(self, connection: GrpcConnection, now: float) -> None:
        """End calls whose request arrives too slowly."""
        limits = self.config.server
        for call in list(connection.calls.values()):
            if call.is_incomplete and now - call.begun_at > (
                limits.first_frame_s + call.held_bytes / limits.frame_bytes_per_s
            ):
                call.fail(GrpcStatus.DEADLINE_EXCEEDED, "the request arrives too slowly")
                self.report(connection.peer[0], f"a request of {call.method.name} never came whole")

    def _overdue(self, connection: GrpcConnection, now: float) -> str | None:
        """Return the reason to cut a connection off, or None."""
        limits = self.config.server
        if not connection.has_begun and now - connection.opened_at > limits.first_frame_s:
            return f"it sent no HTTP/2 within {limits.first_frame_s:g} s"
        if not connection.unsent_bytes:
            self._slow.pop(connection, None)
            return None
        taken = connection.taken_bytes
        since, had = self._slow.setdefault(connection, (now, taken))
        if now - since <= limits.slow_reader_s:
            return None
        if taken - had >= limits.slow_reader_s * limits.slow_reader_bytes_per_s:
            self._slow[connection] = (now, taken)
            return None
        return f"it has left {connection.unsent_bytes} bytes unread for {limits.slow_reader_s:g} s"

    # --- figures and log --------------------------------------------------------------------------

    def finished(self, method: str, peer: tuple[str, int], code: GrpcStatus, message: str) -> None:
        """Count a call that is over; log it if it was refused.

        Equal refusals of a host are counted, and logged once a minute.
        """
        self.calls_total[method, code] += 1
        if code in _EXPECTED:
            return
        if self._is_new(peer[0], f"{method} was refused: {code.name}"):
            log.warning(
                "%s of %s was refused: %s: %s", method, peer[0], code.name, ascii(message)[1:-1]
            )

    def report(self, peer: str, reason: str, level: int = logging.WARNING) -> None:
        """Log what a client did to have its connection closed, or a call ended; equal reasons of a
        host once a minute.
        """
        if level < logging.WARNING or self._is_new(peer, _NUMBER.sub("n", reason)):
            log.log(level, "%s: %s", peer, reason)

    def _is_new(self, host: str, reason: str) -> bool:
        """Return True if this must be logged; count it otherwise."""
        key = (host, reason)
        if len(self._logged) >= MAX_KNOWN and key not in self._logged:
            key = ("others", reason)
        since, more = self._logged.get(key, (self._loop.time(), -1))
        self._logged[key] = (since, more + 1)
        return more < 0

    def _log_again(self, now: float) -> None:
        for key, (since, more) in list(self._logged.items()):
            if now - since < LOGGED_AGAIN_S:
                continue
            del self._logged[key]
            if more:
                log.warning("%s, %d more times: %s", key[0], more, key[1])

    def metrics(self) -> str:
        """Return the figures as lines for Prometheus."""
        text = MetricsText()
        text.add(
            "ogive_grpc_calls_total",
            "counter",
            "finished gRPC calls, by method and status",
            [
                ({"method": method, "status": code.name}, count)
                for (method, code), count in sorted(self.calls_total.items())
            ],
        )
        connections = [({"tls": str(tls).lower()}, self._count(tls)) for tls in (False, True)]
        text.add("ogive_grpc_connections", "gauge", "connections of gRPC clients", connections)
        return text.text()

    def _count(self, tls: bool) -> int:
        return sum(one.is_tls == tls for one in self._connections)
