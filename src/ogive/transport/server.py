"""A listening socket and its connections, each within limits.

Source: NettyRemotingServer.java, 5.3; limits are our own.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ogive.errors import ConnectError
from ogive.transport.acceptor import BACKLOG, Acceptor, listening_socket, stop_accepting
from ogive.transport.connection import (
    Connection,
    FramesHandler,
    RequestHandler,
    join_address,
    one_frame,
    reason_of,
)
from ogive.transport.event_loop import Expectation, Lookout, Turn, cancel_all, watch
from ogive.transport.limits import ServerLimits, has_descriptors_for, open_sockets
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import TIOCOUTQ

log = logging.getLogger(__name__)

SWEEP_S = 1.0


class _Mark(NamedTuple):
    """Progress of something at a time of the loop's clock."""

    at: float
    bytes: int


class ServerConnection(Connection):
    """A connection of a client."""

    keeps_buffers = False

    def __init__(self, server: "Server") -> None:
        super().__init__(server.handle, server.limits.connection, on_frames=server.on_frames)
        self._server = server
        self._peer_host = "?"
        self._counted_bytes = 0
        self._frames_of_read = 0
        self.frame_started_at: float | None = None
        # of the incomplete frame, when its progress was last sufficient
        self.progress = _Mark(0.0, 0)
        # of the bytes read by the peer: since then it reads its answers too slowly
        self.slow_since: _Mark | None = None
        self._written_bytes = 0
        # since the socket's buffer was empty; what was written until then
        self._largest_write = self._written_before = 0
        self.closing_since: float | None = None

    @property
    def peer_host(self) -> str:
        return self._peer_host

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer_host = self.remote_address.rpartition(":")[0]
        self._server._opened(self)

    def data_received(self, data: bytes) -> None:
        turn = self._server.turn
        held = self._server._reads_again(self) and turn.hold()
        try:
            self._receive(data)
        finally:
            if held:
                turn.run()

    def _receive(self, data: bytes) -> None:
        frames_before = self.received_frames
        super().data_received(data)
        self._frames_of_read = self.received_frames - frames_before
        if self.closed:
            # its unread data does not count any more
            return
        buffered = self.buffered_bytes
        if not buffered:
            self.frame_started_at = None
        elif self.frame_started_at is None or self._frames_of_read:
            self.frame_started_at = self.received_at
        if buffered != self._counted_bytes:
            more, self._counted_bytes = buffered - self._counted_bytes, buffered
            self._server._buffered(more, trusted=self.trusted)

    @property
    def counted_bytes(self) -> int:
        """Bytes of the incomplete frame, as counted by its server."""
        return self._counted_bytes

    def trust(self) -> None:
        if not self.trusted:
            self._server._trusted(self)
            super().trust()

    def write(self, frame: bytes) -> None:
        super().write(frame)
        if len(frame) >= COUNTED:
            self._server.unread.count(self)
        if self._unsent_bytes > self._server.limits.max_unsent_bytes:
            self._check_unsent(self._unsent_bytes)

    def _go_on_later(self) -> None:
        self._server._go_on_later(self)

    def _at_end_of_turn(self, job: Callable[[], None]) -> None:
        self._server.turn.add(job)

    def _flush(self) -> None:
        size = self._unsent_bytes
        if not self._buffered_writes():
            self._largest_write, self._written_before = 0, self._written_bytes
        self._written_bytes += size
        self._largest_write = max(self._largest_write, size)
        super()._flush()
        unsent = self.unsent_bytes
        if unsent >= COUNTED:
            self._server.unread.count(self)
        self._check_unsent(unsent)
        if self._frames_of_read == 1 and not self._requests_in_flight and not self._kept:
            self._server._answered(self)

    def _buffered_writes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def held_bytes(self) -> int:
        """Memory of its unread answers, also after it is closed here: the memory of a write is
        freed when all of it is sent.
        """
        buffered = self._buffered_writes()
        held = (
            min(buffered + self._largest_write, self._written_bytes - self._written_before)
            if buffered
            else 0
        )
        return self._unsent_bytes + held

    @property
    def taken_bytes(self) -> int:
        """Return the bytes that the peer has read.

        Bytes in the system's buffer do not count: it holds megabytes, and moves in large steps.
        """
        return self._written_bytes - self._buffered_writes() - waiting_in_system(self._transport)

    def _check_unsent(self, unsent: int) -> None:
        if unsent > self._server.limits.max_unsent_bytes and not self.closed:
            self.abort(f"{self.remote_address} is cut off: {unsent} bytes wait for it to read")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server._closed(self)

    def _finish(self, reason: str) -> None:
        if not self.closed:
            freed, self._counted_bytes = self._counted_bytes, 0
            self._server._buffered(-freed, trusted=self.trusted)
            self.closing_since = self._loop.time()
        super()._finish(reason)


class Server:
    """``on_frames`` is called with the frames of a read of connections accepted from then on. By
    default it handles them one by one, and calls ``handler(connection, command)`` for each request.
    See FramesHandler, RequestHandler.

    The requests of one loop iteration are finished together (``turn``). If only one client sends
    requests, its requests are finished at the end of the read.
    """

    def __init__(
        self,
        handler: RequestHandler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsConfig | ssl.SSLContext | None = None,
        limits: ServerLimits | None = None,
        on_open: Callable[[ServerConnection], None] | None = None,
        busy_poll_s: float = 0.0,
        guarded: bool = False,
    ) -> None:
        """*busy_poll_s*: how long to poll for the next request of a client that sends one after
        another before sleeping, see Expectation.

        *guarded*: the handler reports with ``Connection.trust`` which connections access control
        has allowed a request; the others share little memory.
        """
        self.handle = handler
        self.on_frames: FramesHandler = one_frame
        self.host = host
        self.port = port
        self.limits = limits or ServerLimits()
        loop = asyncio.get_running_loop()
        self.turn = Turn(loop)
        self.unread = Unread(loop, self.limits)
        self._lookout = Lookout(loop, Expectation(busy_poll_s)) if busy_poll_s else None
        self._tls = tls
        self._on_open = on_open
        self._guarded = guarded
        self._listener: asyncio.Server | Acceptor | None = None
        self._stopped = False
        self._sweeper: asyncio.Task[None] | None = None
        self._connections: set[ServerConnection] = set()
        self._per_host: Counter[str] = Counter()
        self._last_reader: ServerConnection | None = None
        # connections with requests for a later slice, each once
        self._slices: deque[ServerConnection] = deque()
        self._read_buffer_bytes = 0
        # of these, those of connections that are not trusted
        self._stranger_bytes = 0
        self._refused = 0

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    @property
    def connections(self) -> frozenset[ServerConnection]:
        return frozenset(self._connections)

    async def start(self) -> None:
        """Listen; port 0 becomes the assigned port.

        Raises ConnectError if the address is in use, InvalidOption for bad certificates.
        """
        loop = asyncio.get_running_loop()
        self._stopped = False
        try:
            if self._tls is not None:
                acceptor = Acceptor(
                    lambda: ServerConnection(self),
                    await self._tls_context(self._tls),
                    plain_too=isinstance(self._tls, TlsConfig) and self._tls.mode == "permissive",
                    greeting_s=self.limits.first_frame_s,
                    admit=self._admits,
                )
                self.port = acceptor.listen(self.host, self.port)
                self._listener = acceptor
            else:
                listening = listening_socket(self.host, self.port, v6_only=True)
                self.port = listening.getsockname()[1]
                self._listener = await loop.create_server(
                    lambda: ServerConnection(self), sock=listening, backlog=BACKLOG
                )
        except OSError as exc:
            raise ConnectError(
                f"cannot listen on {self.address}: {reason_of(exc)}", self.address
            ) from None
        self._sweeper = asyncio.create_task(self._sweep(), name=f"sweep {self.address}")
        watch(self._sweeper)

    async def reload_certificates(self) -> None:
        """Use the current certificates in the files for new connections.

        Raises InvalidOption, and then keeps the old ones.
        """
        if self._tls is not None and isinstance(self._listener, Acceptor):
            self._listener.context = await self._tls_context(self._tls)

    @staticmethod
    async def _tls_context(tls: TlsConfig | ssl.SSLContext) -> ssl.SSLContext:
        return tls if isinstance(tls, ssl.SSLContext) else await asyncio.to_thread(tls.context)

    async def connect_here(self, credentials: Credentials | None = None) -> Connection:
        """Return a connection inside this process, which needs no TLS. Raises ConnectError."""
        loop = asyncio.get_running_loop()
        theirs, ours = socket.socketpair()
        try:
            await loop.connect_accepted_socket(lambda: ServerConnection(self), theirs)
            _, connection = await loop.create_connection(
                lambda: Connection(credentials=credentials), sock=ours
            )
        except OSError as exc:
            theirs.close()
            ours.close()
            raise ConnectError(f"no connection inside this process: {exc}", self.address) from None
        connection.remote_address = self.address
        return connection

    def _admits(self, host: str, waiting_from_it: int, waiting: int) -> bool:
        """Return True if one more connection without any data yet is allowed."""
        in_all, from_it = len(self._connections) + waiting, self._per_host[host] + waiting_from_it
        fits = (
            in_all < self.limits.max_connections
            and from_it < self.limits.max_connections_per_address
        )
        if fits and has_descriptors_for(1):
            return True
        self._refused += 1
        log.log(
            logging.WARNING if self._refused == 1 else logging.DEBUG,
            "%s is refused: too many connections (%d so far)",
            host,
            self._refused,
        )
        return False

    async def stop(self, grace_s: float = 1.0) -> None:
        """Accept no new connections, wait up to *grace_s* until requests in flight are answered,
        and as long until the answers are read, then close.
        """
        if self._listener is None:
            return
        listener, self._listener, self._stopped = self._listener, None, True
        if isinstance(listener, Acceptor):
            await listener.close()
        else:
            await stop_accepting(listener)
        if self._sweeper is not None:
            await cancel_all([self._sweeper])
        connections = list(self._connections)
        if not connections:
            return
        await asyncio.wait(
            [asyncio.ensure_future(connection.finish_requests()) for connection in connections],
            timeout=grace_s,
        )
        for connection in connections:
            connection.close()
        _, unread = await asyncio.wait(
            [asyncio.ensure_future(connection.wait_closed()) for connection in connections],
            timeout=grace_s,
        )
        if unread:
            log.warning(
                "%d connections did not read their last answers within %.1f s", len(unread), grace_s
            )
            for connection in connections:
                connection.abort("")
            await asyncio.wait(unread, timeout=grace_s)

    def _reads_again(self, reader: ServerConnection) -> bool:
        """Return True if *reader*, which has data, was also the last one that had: then there are
        probably no others to wait for.
        """
        again = self._last_reader is reader
        self._last_reader = reader
        if self._lookout is not None:
            self._lookout.asked(again=again)
        return again

    def _go_on_later(self, connection: ServerConnection) -> None:
        """Handle one slice an iteration, of any connection: many busy connections delay other work
        no more than one.
        """
        if not self._slices:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._slices.append(connection)

    def _go_on(self) -> None:
        connection = self._slices.popleft()
        if self._slices:
            asyncio.get_running_loop().call_soon(self._go_on)
        connection.go_on()

    def _answered(self, connection: ServerConnection) -> None:
        """Record that the only request in progress on *connection* is answered."""
        if self._lookout is not None and self._last_reader is connection:
            self._lookout.answered()

    def _opened(self, connection: ServerConnection) -> None:
        host = connection.peer_host
        self._connections.add(connection)
        open_sockets.add(connection)
        self._per_host[host] += 1
        # it was accepted before the stop, but not registered yet
        if self._stopped:
            connection.abort("")
        elif (
            len(self._connections) > self.limits.max_connections
            or self._per_host[host] > self.limits.max_connections_per_address
        ):
            self._refused += 1
            connection.abort(
                f"{connection.remote_address} is refused: too many connections ({self._refused} so "
                "far)"
            )
        elif connection.peer is not None and not has_descriptors_for():
            # a connection inside this process was requested
            self._refused += 1
            why = "no more file descriptors for connections; raise the limit (ulimit -n)"
            connection.abort(
                f"{connection.remote_address} is refused: {why} ({self._refused} so far)"
            )
        elif self._on_open is not None:
            self._on_open(connection)

    def _closed(self, connection: ServerConnection) -> None:
        """Forget a connection whose socket is closed.

        Until then the connection counts, even if it is closed here and the peer does not read its
        last answers.
        """
        self._connections.discard(connection)
        open_sockets.discard(connection)
        self.unread.forget(connection)
        if self._last_reader is connection:
            self._last_reader = None
        host = connection.peer_host
        self._per_host[host] -= 1
        if self._per_host[host] <= 0:
            del self._per_host[host]

    def _buffered(self, more: int, *, trusted: bool) -> None:
        """Count *more* bytes of incomplete frames.

        Above the limit, the connections with the oldest incomplete frames are closed, not the one
        that reached it: otherwise a peer that holds memory could shut out all peers whose frames
        need more than one read.
        """
        self._read_buffer_bytes += more
        if not trusted:
            self._stranger_bytes += more
        if more > 0:
            while self._guarded and self._stranger_bytes > self.limits.max_stranger_bytes:
                self._cut_oldest_frame(
                    [one for one in self._connections if one.counted_bytes and not one.trusted]
                )
            while self._read_buffer_bytes > self.limits.max_read_buffer_bytes:
                self._cut_oldest_frame([one for one in self._connections if one.counted_bytes])

    def _trusted(self, connection: ServerConnection) -> None:
        """Stop counting *connection* among the untrusted ones."""
        self._stranger_bytes -= connection.counted_bytes

    @staticmethod
    def _cut_oldest_frame(connections: list[ServerConnection]) -> None:
        oldest = min(connections, key=lambda one: (one.trusted, one.frame_started_at or 0.0))
        oldest.abort(
            f"{oldest.remote_address} is cut off: frames that are not complete hold more memory "
            "than allowed"
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = asyncio.get_running_loop().time()
            self.unread.sweep()
            for connection in list(self._connections):
                idle_s = self.limits.connection.idle_s
                if reason := self._overdue(connection, now):
                    connection.abort(f"{connection.remote_address} is cut off: {reason}")
                elif now - max(connection.received_at, connection.sent_at) > idle_s:
                    # as is usual for idle clients
                    connection.abort(
                        f"{connection.remote_address} is closed: idle for {idle_s:g} s",
                        level=logging.INFO,
                    )

    def _overdue(self, connection: ServerConnection, now: float) -> str | None:
        """Return the reason to close the connection, or None."""
        limits = self.limits
        if connection.closing_since is not None:
            return (
                "it does not take its last answers"
                if now - connection.closing_since > limits.linger_s
                else None
            )
        if not connection.received_frames and now - connection.opened_at > limits.first_frame_s:
            return f"no whole frame within {limits.first_frame_s:g} s"
        if connection.frame_started_at is not None:
            since, had = max(connection.progress, _Mark(connection.frame_started_at, 0))
            if connection.buffered_bytes - had >= limits.first_frame_s * limits.frame_bytes_per_s:
                connection.progress = _Mark(now, connection.buffered_bytes)
            elif now - since > limits.first_frame_s:
                return "its frame arrives too slowly"
        unsent, held = connection.unsent_bytes, connection.held_bytes
        if held <= min(limits.connection.write_high_bytes, limits.max_write_buffer_bytes):
            connection.slow_since = None
            return None
        taken = connection.taken_bytes
        if connection.slow_since is None:
            connection.slow_since = _Mark(now, taken)
            return None
        since, had = connection.slow_since
        if (
            unsent <= limits.max_write_buffer_bytes
            and taken - had >= limits.slow_reader_s * limits.slow_reader_bytes_per_s
        ):
            connection.slow_since = _Mark(now, taken)
        elif now - since > limits.slow_reader_s:
            return (
                f"it has left {unsent} bytes, and with them {held} of memory, unread for "
                f"{limits.slow_reader_s:g} s"
            )
        return None


# --- unread answers -------------------------------------------------------------------------------
# Unread answers of all connections of a server, within one limit.
#
# Above half of the limit, pulls of clients with much unread data wait sooner. Near the limit all
# pulls wait (broker/pulls/long_polling.py), and then the connection that would need longest to
# read its answers is closed. A client that reads its answers, however slow its network is, is not
# closed because of others that do not.


# smaller amounts of a connection are not counted, so that usual answers cost nothing; for 10,000
# connections this is 160 MiB
COUNTED: Final = 16 * 1024
# time for the sockets to take as much of the written data as they can
LOOK_S: Final = 0.005
# the part of the limit that is freed at a time; otherwise each answer would search all connections
_FREED: Final = 16
# weight of the last second in a peer's rate
_SMOOTH: Final = 0.2


def waiting_in_system(transport: asyncio.Transport | None) -> int:
    """Return the bytes in the system's buffer that the peer has not acknowledged, if the system
    reports them.
    """
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is None or sys.platform == "win32":
        return 0
    try:
        return int.from_bytes(ioctl(connected.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):
        # closed meanwhile
        return 0


class Holder(Protocol):
    """A connection with unread answers."""

    remote_address: str

    @property
    def closed(self) -> bool: ...
    @property
    def held_bytes(self) -> int:
        """Memory that its unread answers take."""

    @property
    def taken_bytes(self) -> int:
        """Return the bytes that the peer has read since the connection was opened."""

    def abort(self, reason: str) -> None: ...


@dataclass(slots=True)
class _Held:
    size: int
    since: float
    # bytes that its peer had read then
    had: int
    # bytes read at the last measurement; below 0: none yet
    taken: int = -1
    # bytes a second; below 0: not known yet
    rate: float = -1.0

    def look(self, taken: int, passed_s: float) -> None:
        if self.taken >= 0:
            rate = (taken - self.taken) / passed_s
            self.rate = rate if self.rate < 0 else self.rate + _SMOOTH * (rate - self.rate)
        self.taken = taken

    @property
    def lasts_s(self) -> float:
        """Return the seconds that the peer needs to read its unread answers."""
        return self.size / max(self.rate, 1.0)

    def rank(self, slow_s: float, now: float, taken: int) -> tuple[int, float, float]:
        """Return a sort key for the order of closing: first peers that are known to be slow, then
        new ones by the amount that they have read, last those that read their answers.
        """
        if self.rate < 0:
            return (
                1,
                self.size * max(now - self.since, 0.001) / max(taken - self.had, 1),
                -self.since,
            )
        return 2 if self.lasts_s > slow_s else 0, self.lasts_s, -self.since


class Unread:
    """Unread answers of all connections of a server. Event-loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ServerLimits) -> None:
        self._loop, self._limit, self._slow_s = loop, limits.max_unread_bytes, limits.slow_reader_s
        self._full = self._limit - self._limit // _FREED
        self._held: dict[Holder, _Held] = {}
        self._look: asyncio.TimerHandle | None = None
        self._swept_at = loop.time()
        self._room: asyncio.Event = asyncio.Event()
        self.total = 0

    @property
    def is_tight(self) -> bool:
        """Return True if clients with much unread data must wait for now."""
        return self.total > self._limit // 2

    @property
    def is_full(self) -> bool:
        """Return True if no client gets large answers for now; this ends after the next
        measurement, or sooner if all clients read their answers.
        """
        return self.total > self._full

    async def room(self) -> None:
        """Return when there has been room again. Other waiters may have taken it."""
        if self.is_full:
            await self._room.wait()

    def count(self, connection: Holder) -> None:
        """Count bytes that were written to the connection, or read by the peer."""
        size, known = connection.held_bytes, self._held.get(connection)
        if size < COUNTED:
            if known is not None:
                self.forget(connection)
            return
        if known is None:
            known = self._held[connection] = _Held(0, self._loop.time(), connection.taken_bytes)
        self.total += size - known.size
        known.size = size
        if self.is_full and self._look is None:
            self._room.clear()
            self._look = self._loop.call_later(LOOK_S, self._make_room)

    def forget(self, connection: Holder) -> None:
        """Forget a connection without unread answers."""
        known = self._held.pop(connection, None)
        if known is not None:
            self.total -= known.size

    def sweep(self) -> None:
        """Measure how much each peer reads. Call this about every second."""
        now = self._loop.time()
        passed_s, self._swept_at = max(now - self._swept_at, 0.001), now
        for connection, held in list(self._held.items()):
            self.count(connection)
            held.look(connection.taken_bytes, passed_s)

    def _make_room(self) -> None:
        for connection in list(self._held):
            self.count(connection)
        if self.is_full:
            self._cut()
        if self.is_full:
            self._look = self._loop.call_later(LOOK_S, self._make_room)
        else:
            self._look = None
            self._room.set()

    def _cut(self) -> None:
        now, each = self._loop.time(), enumerate(self._held.items())
        ranks = sorted(
            ((held.rank(self._slow_s, now, one.taken_bytes), i, one) for i, (one, held) in each),
            reverse=True,
        )
        for (kind, _, _), _, connection in ranks:
            if self.total <= (self._limit if kind == 0 else self._full):
                return
            if connection not in self._held:
                continue
            size = self._held[connection].size
            self.forget(connection)
            what = (
                f"{size} bytes wait for it to read, and {self.total} for others: more than allowed"
            )
            connection.abort(
                "" if connection.closed else f"{connection.remote_address} is cut off: {what}"
            )
