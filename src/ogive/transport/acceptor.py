"""A listening socket whose connections may speak TLS: the first bytes decide which protocol a
connection gets.

Connections that are silent, or in the middle of a handshake, count like others, and are closed
after a while.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from ogive.transport import limits
from ogive.transport.event_loop import cancel_all, watch
from ogive.transport.tls import HANDSHAKE

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
MAX_ACCEPTED_AT_ONCE: Final = 100
# pause after an accept without a free descriptor
PAUSE_S: Final = 0.1
_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def listening_socket(host: str, port: int, *, v6_only: bool = False) -> socket.socket:
    """Listen on an IP address, or on 127.0.0.1 for localhost. Raises OSError.

    uvloop would look up even an address in threads of libuv, see look_up().
    """
    host = "127.0.0.1" if host == "localhost" else host
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if v6_only and listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


async def stop_accepting(server: asyncio.Server) -> None:
    """Close *server* after the connections that the system has already accepted for it have
    arrived.

    asyncio takes two iterations of the loop to make a connection of a socket that it has accepted.
    It leaves the socket open if the server is closed, or the loop ends, before that
    (github.com/python/cpython/issues/109564).
    """
    try:
        for taken in server.sockets:
            asyncio.get_running_loop().remove_reader(taken.fileno())
        for _ in range(2):
            await asyncio.sleep(0)
    finally:
        server.close()


class Acceptor:
    """Acceptor of connections. Each new one gets the current ``context``."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        *,
        plain_too: bool,
        greeting_s: float,
        admit: Callable[[str, int, int], bool],
        no_tls_reason: str = "there is no certificate",
    ) -> None:
        """*admit*: returns True if one more connection of a host is allowed, given the number of
        its connections that wait here, and of all.

        Without *context* connections that speak TLS are closed, and the log says *no_tls_reason*.
        """
        self.context = context
        self._protocol = protocol
        self._plain_too = plain_too
        self._greeting_s = greeting_s
        self._admit = admit
        self._no_tls_reason = no_tls_reason
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._greeting: set[asyncio.Task[None]] = set()
        self._per_host: Counter[str] = Counter()
        self.failed = 0  # handshakes

    def listen(self, host: str, port: int) -> int:
        """Open the port. Raises OSError."""
        listener = listening_socket(host, port)
        self._socket = listener
        self._loop.add_reader(listener, self._accept)
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Accept no more connections; those that have not sent their first bytes are dropped."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        await cancel_all(self._greeting)

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTED_AT_ONCE):
            if self._socket is None:
                return
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno not in _NO_ROOM:
                    raise
                log.warning("accepting no more connections for now: %s", exc.strerror)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(PAUSE_S, self._accept_again)
                return
            self._greet(connection, str(address[0]))

    def _accept_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _greet(self, connection: socket.socket, host: str) -> None:
        if not self._admit(host, self._per_host[host], len(self._greeting)):
            connection.close()
            return
        connection.setblocking(False)
        limits.open_sockets.add(connection)
        self._per_host[host] += 1
        task = self._loop.create_task(self._greet_one(connection, host), name=f"greet {host}")
        self._greeting.add(task)
        watch(task)
        task.add_done_callback(lambda done: self._greeted(done, connection, host))

    def _greeted(self, task: asyncio.Task[None], connection: socket.socket, host: str) -> None:
        # a task that is cancelled before its first step runs none of its own code
        if task.cancelled() or task.exception() is not None:
            connection.close()
        # if it became a connection, it is counted there now
        limits.open_sockets.discard(connection)
        self._greeting.discard(task)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    async def _greet_one(self, connection: socket.socket, host: str) -> None:
        """Pass the connection to a protocol, or close it."""
        context: ssl.SSLContext | None = None
        try:
            async with asyncio.timeout(self._greeting_s):
                protocol, first = await self._begin(connection)
                if not first:
                    connection.close()
                    return
                if first[0] == HANDSHAKE:
                    context = self.context
                    if context is None:
                        raise ConnectionAbortedError(f"it speaks TLS: {self._no_tls_reason}")
                elif not self._plain_too:
                    raise ConnectionAbortedError("it does not speak TLS")
                await self._loop.connect_accepted_socket(
                    protocol,
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=self._greeting_s if context else None,
                )
        except OSError as exc:
            # so are TimeoutError, ssl.SSLError and its CertificateError
            self.failed += 1
            log.info(
                "closed a connection of %s during its handshake: %s (%d so far)",
                host,
                self._why(exc),
                self.failed,
            )
            connection.close()

    async def _begin(
        self, connection: socket.socket
    ) -> tuple[Callable[[], asyncio.Protocol], bytes]:
        """Return the protocol for a connection, and its first byte, which stays unread; no byte if
        it has ended. Raises OSError.
        """
        await self._readable(connection)
        return self._protocol, connection.recv(1, socket.MSG_PEEK)

    def _why(self, exc: OSError) -> str:
        if isinstance(exc, TimeoutError):
            return f"nothing came within {self._greeting_s:g} s"
        perhaps = "the client ended the TLS handshake, perhaps it does not trust the certificate"
        # asyncio has no error for an end within a handshake
        return getattr(exc, "reason", None) or str(exc) or perhaps

    async def _readable(self, connection: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(connection, _set, ready)
        try:
            await ready
        finally:
            self._loop.remove_reader(connection)


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)
