"""One TCP or TLS connection between two peers, both of which may send requests and answers.

Source: NettyRemotingAbstract.java, 5.3.
"""

import asyncio
import ipaddress
import itertools
import logging
import os
import re
import ssl as tls
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, cast

from ogive.errors import (
    ConnectError,
    ConnectionLost,
    ProtocolError,
    RequestTimeout,
    TooManyRequests,
    TransportError,
)
from ogive.transport.event_loop import SLICE_S, Deadlines, look_up
from ogive.transport.limits import Limits
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

Answer = Callable[[RemotingCommand | TransportError], None]
"""Callback for the answer, or for the error if there is none.

It runs on the loop, inside the reading of the socket: it must be short and must not raise.
"""

RequestHandler = Callable[["Connection", RemotingCommand], None]
"""Callback for each request of the peer, in order.

It answers now or later through ``Connection.reply``; not at all if the request is one-way.
"""

NO_CERTIFICATE: Final = "does not take the client's certificate, or asks for one"
FramesHandler = Callable[["Connection", list[bytes], int], int]
"""Callback for the frames of one read, and the index to begin at: it handles one frame, or several
in one step, and returns how many.

It passes frames that it does not decode itself to ``Connection.take_frame``. It calls
``Connection.take_requests`` for other frames that need an answer, before it answers any.
"""
_RESPONSE: Final = int(Flag.RESPONSE)
_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^\s:;,/@?#\[\]\\]+))(?::([0-9]{1,5}))?")
"""An IPv6 address in brackets or another host, and a port."""
_ONEWAY: Final = int(Flag.ONEWAY)
# Apache's servers do not answer the end of TLS; asyncio waits 30 s for it
TLS_FAREWELL_S: Final = 1.0
_MAX_OPAQUE: Final = 0x7FFFFFFF
# more than that is not copied to be written in one piece
JOINED_BYTES: Final = 64 * 1024


def refuse_requests(connection: "Connection", command: RemotingCommand) -> None:
    """Answer a peer that its request is not supported."""
    if not command.flag & _ONEWAY:
        remark = f" request type {command.code} not supported"
        connection.reply(
            RemotingCommand(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=remark,
                opaque=command.opaque,
                flag=_RESPONSE,
            )
        )


def one_frame(connection: "Connection", frames: list[bytes], at: int) -> int:
    """The handler that handles frames one by one."""
    connection.take_frame(frames[at])
    return 1


def _pieces(frames: Iterable[bytes]) -> Iterator[bytes]:
    """Join small frames up to JOINED_BYTES; large ones are not copied."""
    small: list[bytes] = []
    size = 0
    for frame in frames:
        if small and size + len(frame) > JOINED_BYTES:
            yield b"".join(small)
            small, size = [], 0
        small.append(frame)
        size += len(frame)
    yield b"".join(small)


class Connection(asyncio.Protocol):
    """Frames in and out of one socket, on one event loop.

    Answers are matched by opaque. Writes of one loop iteration are sent as one. Requests of one
    read that take long are handled in slices, between which the loop runs other work; nothing more
    is read meanwhile. If calls time out and the peer has sent nothing at all for
    ``Limits.silence_s`` since the first of them, the connection counts as dead: it is closed, and
    the next call gets a new one. A peer that answers GO_AWAY is about to close; *on_go_away* is
    called before the caller gets the answer.
    """

    keeps_buffers = True
    """Large frames are put together in buffers that are used again. A server does without: it has
    thousands of connections, and whoever opens them would decide how much they keep."""

    def __init__(
        self,
        on_request: RequestHandler = refuse_requests,
        limits: Limits | None = None,
        credentials: Credentials | None = None,
        request_fields: Mapping[str, str] | None = None,
        on_frames: FramesHandler = one_frame,
    ) -> None:
        """Every command that is sent as a request gets *request_fields*, and *credentials* sign it;
        whole frames are sent unchanged.
        """
        self.credentials = credentials
        self._request_fields = request_fields
        self._loop = asyncio.get_running_loop()
        self._on_request = on_request
        self._on_frames = on_frames
        self.limits = limits or Limits()
        self._decoder = FrameDecoder(self.limits.max_frame_bytes, splits=self.keeps_buffers)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, tuple[Answer, float]] = {}
        self._deadlines = Deadlines(self._loop, self._expire)
        self._opaques = itertools.count(1)
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        # exists while the socket's buffer is over its limit
        self._writable: asyncio.Future[None] | None = None
        self._requests_in_flight = 0
        # frames for the next slice, and the error after them
        self._kept: list[bytes] = []
        self._kept_fault: ProtocolError | None = None
        # exists while drain() waits for the last answer
        self._idle: asyncio.Future[None] | None = None
        # why the connection ends once the requests in flight are answered
        self._closing_reason: str | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self.remote_address = "?"
        # its socket address, as the system reports it
        self.peer: tuple[Any, ...] | None = None
        self.closed = False
        # no new requests; closes when the last one is answered
        self.leaving = False
        # access control has let a request of the peer through
        self.trusted = False
        self.on_go_away: Callable[[Connection], None] | None = None
        self.opened_at = self.received_at = self.sent_at = self._loop.time()
        # start of the first call that timed out without a word; counts while it is later than
        # received_at
        self._silent_since = 0.0
        self.received_frames = 0
        self.on_close: list[Callable[[Connection], None]] = []

    def __repr__(self) -> str:
        return f"<connection to {self.remote_address}{', closed' if self.closed else ''}>"

    # --- asking -----------------------------------------------------------------------------------

    async def call(
        self, command: RemotingCommand, timeout_s: float, *, as_view: bool = False
    ) -> RemotingCommand:
        """Send a request, and return the peer's answer, whatever its code. *as_view*: with the
        *view* of a large body.

        Raises TransportError. A cancelled call ignores its late answer.
        """
        return await self.start_call(command, timeout_s, as_view=as_view)

    def start_call(
        self, command: RemotingCommand, timeout_s: float, *, as_view: bool = False
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request without waiting for its answer. Sets the command's opaque.

        Raises at once if the request cannot be sent at all.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()

        def answer(result: RemotingCommand | TransportError) -> None:
            if future.done():
                return
            if isinstance(result, RemotingCommand):
                if not as_view:
                    result.keep_body()
                future.set_result(result)
            else:
                future.set_exception(result)

        command.opaque = self.next_opaque()
        self._sign(command)
        self.start_frame(command.opaque, encode_command(command), answer, timeout_s)
        return future

    def next_opaque(self) -> int:
        """Return a number for one request on this connection."""
        return next(self._opaques) & _MAX_OPAQUE

    def start_frame(
        self, opaque: int, frame: bytes, answer: Answer, timeout_s: float, body: bytes = b""
    ) -> None:
        """Send a whole request frame with *opaque*; *answer* is called exactly once. A
        *body*, if it is not part of *frame*, follows.

        Raises if it cannot be sent at all.
        """
        if self.closed or self.leaving or self._closing_reason is not None:
            raise ConnectError(
                f"connection to {self.remote_address} is closed", self.remote_address
            )
        if len(self._calls) >= self.limits.max_calls_in_flight:
            raise TooManyRequests(
                f"{len(self._calls)} requests to {self.remote_address} wait for an answer already",
                self.remote_address,
            )
        now = self._loop.time()
        self._calls[opaque] = (answer, now)
        self._deadlines.add(opaque, now + timeout_s)
        alone = len(self._calls) == 1 and not self._unsent
        if alone:
            self._unsent, self._unsent_bytes = [frame], len(frame)
        else:
            self.write(frame)
        if body:
            self._unsent.append(body)
            self._unsent_bytes += len(body)
        if alone:
            # it has nothing to wait for
            self._flush()

    async def send(self, command: RemotingCommand) -> None:
        """Send a one-way request, waiting while the socket's buffer is over its limit.

        Raises TransportError.
        """
        await self.drain()
        self.send_nowait(command)

    def send_nowait(self, command: RemotingCommand) -> None:
        """Send a one-way request at once. Raises ConnectError."""
        if self.closed:
            raise ConnectError(
                f"connection to {self.remote_address} is closed", self.remote_address
            )
        command.opaque = self.next_opaque()
        command.flag |= _ONEWAY
        self._sign(command)
        self.write(encode_command(command))

    def _sign(self, command: RemotingCommand) -> None:
        if self._request_fields:
            command.ext_fields = {**command.ext_fields, **self._request_fields}
        if self.credentials is not None:
            command.ext_fields = self.credentials.sign(command.ext_fields, command.body)

    @property
    def calls_in_flight(self) -> int:
        return len(self._calls)

    def _expire(self, opaques: list[int]) -> None:
        for opaque in opaques:
            call = self._calls.pop(opaque, None)
            if call is not None:
                answer, started = call
                self._count_silence(started)
                waited = self._loop.time() - started
                answer(
                    RequestTimeout(
                        f"no answer from {self.remote_address} within {waited:.1f} s",
                        self.remote_address,
                    )
                )
        self._end_silence()
        self._leave_when_done()

    def _count_silence(self, started: float) -> None:
        if self._silent_since <= self.received_at < started:
            self._silent_since = started

    def _end_silence(self) -> None:
        if (
            self._silent_since > self.received_at
            and self._loop.time() - self._silent_since >= self.limits.silence_s
        ):
            self.abort(
                f"{self.remote_address} sent nothing while requests waited for their whole timeout"
            )

    # --- answering --------------------------------------------------------------------------------

    def reply(self, answer: RemotingCommand | bytes, requests: int = 1) -> None:
        """Answer one request: a command with its opaque and the response flag set, or the whole
        frame; or several with their frames. Never for one-way requests.
        """
        before = self._requests_in_flight
        self._requests_in_flight -= requests
        if self._requests_in_flight <= self.limits.max_requests_in_flight // 2 < before:
            self._read_on()
        if not self.closed:
            self.write(answer if isinstance(answer, bytes) else encode_command(answer))
        if self._requests_in_flight == 0 and not self._kept:
            self._all_answered()
            self._leave_when_done()

    def _read_on(self) -> None:
        """Resume reading, unless requests are still being finished, or frames of the last read are
        not handled yet.
        """
        if (
            self._transport is not None
            and not self.closed
            and self._idle is None
            and not self._kept
        ):
            self._transport.resume_reading()

    def _all_answered(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._closing_reason is not None:
            self._loop.call_soon(self._close, self._closing_reason)

    def trust(self) -> None:
        """Record that access control has allowed a request of the peer."""
        self.trusted = True

    async def finish_requests(self) -> None:
        """Stop reading; return when every request that was read has been answered."""
        if self._transport is not None and not self.closed:
            self._transport.pause_reading()
        while (self._requests_in_flight or self._kept) and not self.closed:
            self._idle = self._idle or self._loop.create_future()
            await asyncio.wait([self._idle])

    # --- writing ----------------------------------------------------------------------------------

    def write(self, frame: bytes) -> None:
        """Queue a whole frame; everything queued in one loop iteration is sent together."""
        if not self._unsent:
            self._at_end_of_turn(self._flush)
        self._unsent.append(frame)
        self._unsent_bytes += len(frame)

    def _at_end_of_turn(self, job: Callable[[], None]) -> None:
        self._loop.call_soon(job)

    def _flush(self) -> None:
        frames, size = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        if self._transport is not None and frames and not self.closed:
            self.sent_at = self._loop.time()
            if len(frames) == 1 or size < JOINED_BYTES:
                self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
            else:
                # writelines() of CPython before 3.12.9 and 3.13.2 does not pause the writer
                for piece in _pieces(frames):
                    self._transport.write(piece)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not read yet."""
        return self._unsent_bytes + (
            self._transport.get_write_buffer_size()
            if self._transport is not None and not self.closed
            else 0
        )

    @property
    def is_writable(self) -> bool:
        """Return True if the socket's buffer is below its limit."""
        return self._writable is None

    async def drain(self) -> None:
        """Wait until the socket's buffer is below its limit.

        Raises ConnectError once the connection is closed.
        """
        while self._writable is not None:
            await asyncio.shield(self._writable)
        if self.closed:
            raise ConnectError(
                f"connection to {self.remote_address} is closed", self.remote_address
            )

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # --- reading ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=self.limits.write_high_bytes)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = peer
            self.remote_address = join_address(peer[0], peer[1])

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the frame that is arriving."""
        return self._decoder.buffered

    def data_received(self, data: bytes) -> None:
        if self.closed or self._closing_reason is not None or self._kept_fault is not None:
            return
        self.received_at = self._loop.time()
        frames, fault = self._decoder.feed(data)
        # a transport may still pass data that it had before it was paused
        if self._kept:
            self._kept += frames
            self._kept_fault = fault
        else:
            self._carry_out(frames, fault)

    def _carry_out(self, frames: list[bytes], fault: ProtocolError | None) -> None:
        # not the loop's time: uvloop's stands still within a turn
        until = time.monotonic() + SLICE_S
        at = 0
        try:
            while at < len(frames):
                taken = self._on_frames(self, frames, at)
                self.received_frames += taken
                at += taken
                # closed by one of the requests: the others would get no answer
                if self.closed:
                    return
                if at < len(frames) and time.monotonic() > until:
                    self._keep(frames[at:], fault)
                    return
        except ProtocolError as exc:
            # its traceback would reference this call, and so the peer's megabytes
            fault = ProtocolError(str(exc))
        if fault is not None:
            self._close_after_answers(f"{self.remote_address} sent a malformed frame: {fault}")
        self._leave_when_done()

    def _keep(self, frames: list[bytes], fault: ProtocolError | None) -> None:
        self._kept, self._kept_fault = frames, fault
        if self._transport is not None:
            self._transport.pause_reading()
        self._go_on_later()

    def _go_on_later(self) -> None:
        self._loop.call_soon(self.go_on)

    def go_on(self) -> None:
        """Handle the next slice of what was read."""
        frames, fault = self._kept, self._kept_fault
        self._kept, self._kept_fault = [], None
        if not self.closed:
            try:
                self._carry_out(frames, fault)
            except BaseException:
                # as asyncio does when a read fails: no request of it would be answered
                self.abort("")
                raise
        if self._kept or self.closed or self._closing_reason is not None:
            return
        if self._requests_in_flight == 0:
            self._all_answered()
        if self._requests_in_flight < self.limits.max_requests_in_flight:
            self._read_on()

    def take_frame(self, frame: bytes) -> None:
        """Handle one frame: pass an answer to its call, a request to the RequestHandler.

        Raises ProtocolError.
        """
        command = decode_command(frame)
        if not command.flag & _RESPONSE:
            if not command.flag & _ONEWAY:
                self.take_requests(1)
            command.keep_body()
            self._on_request(self, command)
            return
        call = self._calls.pop(command.opaque, None)
        if command.code == _GO_AWAY and self.on_go_away is not None:
            self.on_go_away(self)
        # else it came after its timeout: normal
        if call is not None:
            call[0](command)

    def take_requests(self, count: int) -> None:
        """Count requests of the peer that have no answer yet."""
        before = self._requests_in_flight
        self._requests_in_flight += count
        if (
            before < self.limits.max_requests_in_flight <= self._requests_in_flight
            and self._transport is not None
        ):
            self._transport.pause_reading()

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close after all written data has been sent. Calls in flight end with ConnectionLost."""
        self._close(f"connection to {self.remote_address} was closed here")

    def leave(self) -> None:
        """Accept no new requests, and close when those in progress, ours and the peer's, are
        answered.
        """
        self.leaving = True
        self._loop.call_soon(self._leave_when_done)

    def _leave_when_done(self) -> None:
        if self.leaving and not self._calls and not self._requests_in_flight and not self._kept:
            self.close()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._lost)

    def _close_after_answers(self, reason: str) -> None:
        """Stop reading, answer the requests before the fault, then close: after a fault a stream is
        never continued.
        """
        self._closing_reason = reason
        log.warning("%s", reason[:300])
        if self._transport is not None:
            self._transport.pause_reading()
        if self._requests_in_flight == 0:
            self._close(reason)

    def _close(self, reason: str) -> None:
        if not self.closed and self._transport is not None:
            self._flush()
            self._transport.close()
            self._finish(reason)

    def abort(self, reason: str, *, level: int = logging.WARNING) -> None:
        """Close at once; data that is not sent yet is lost. A reason is logged."""
        if reason:
            log.log(level, "%s", reason[:300])
        if self._transport is not None:
            self._unsent, self._unsent_bytes = [], 0
            self._transport.abort()
            self._finish(reason)

    def connection_lost(self, exc: Exception | None) -> None:
        why = reason_of(exc) if exc else ""
        if self._calls and not self.received_frames:
            perhaps = NO_CERTIFICATE if self._is_secure() else "speaks TLS only"
            why = f"{why or 'closed'} before its first answer; perhaps it {perhaps}"
        self._finish(f"connection to {self.remote_address} was lost{f': {why}' if why else ''}")
        if not self._lost.done():
            self._lost.set_result(None)

    def _is_secure(self) -> bool:
        return (
            self._transport is not None and self._transport.get_extra_info("ssl_object") is not None
        )

    def _finish(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._deadlines.clear()
        self.resume_writing()
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        calls, self._calls = self._calls, {}
        for answer, _ in calls.values():
            answer(ConnectionLost(reason, self.remote_address))
        for callback in self.on_close:
            callback(self)


async def connect(
    host: str,
    port: int,
    *,
    timeout_s: float = 3.0,
    ssl: tls.SSLContext | None = None,
    on_request: RequestHandler = refuse_requests,
    limits: Limits | None = None,
    credentials: Credentials | None = None,
    request_fields: Mapping[str, str] | None = None,
) -> Connection:
    """Return a connection that is ready for calls. Raises ConnectError with the address and the
    reason.
    """
    loop = asyncio.get_running_loop()
    address = join_address(host, port)

    async def connect_to(ip: str) -> Connection:
        _, connection = await loop.create_connection(
            lambda: Connection(on_request, limits, credentials, request_fields),
            ip,
            port,
            ssl=ssl,
            server_hostname=host if ssl is not None else None,
            ssl_shutdown_timeout=TLS_FAREWELL_S if ssl is not None else None,
        )
        return connection

    try:
        async with asyncio.timeout(timeout_s):
            *others, last = await _resolve(host, port)
            for ip in others:
                try:
                    connection = await connect_to(ip)
                    break
                except OSError as exc:
                    log.debug("no connection to %s at %s: %s", address, ip, exc)
            else:
                connection = await connect_to(last)
    except TimeoutError:
        raise ConnectError(
            f"no connection to {address} within {timeout_s:.1f} s", address
        ) from None
    except tls.SSLError as exc:
        why = f": {exc.verify_message}" if isinstance(exc, tls.SSLCertVerificationError) else ""
        raise ConnectError(
            f"TLS with {address} failed: {exc.reason or exc}{why}", address
        ) from None
    except ValueError:
        # of the resolver: too long a name, no text, a null character in it
        raise ConnectError(
            f"no connection to {address}: {host[:80]!r} is not a host name", address
        ) from None
    except OSError as exc:
        # these exceptions have no text
        cut = ssl is not None and isinstance(exc, ConnectionResetError | ConnectionAbortedError)
        reason = (
            "it ended the TLS handshake; perhaps it does not speak TLS" if cut else reason_of(exc)
        )
        raise ConnectError(f"no connection to {address}: {reason}", address) from None
    connection.remote_address = address
    return connection


async def _resolve(host: str, port: int) -> list[str]:
    """Return the IP addresses of *host*.

    Raises OSError, and ValueError for an invalid name.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        # The C library would look up what is before it.
        if "\0" in host:
            raise
        return [str(address[0]) for *_, address in await look_up(host, port)]


def reason_of(exc: Exception) -> str:
    """Describe why a call on a socket failed."""
    if not isinstance(exc, OSError) or isinstance(exc, tls.SSLError):
        return str(exc)
    # below 0: a name, not a socket
    return (
        os.strerror(exc.errno).lower() if exc.errno and exc.errno > 0 else exc.strerror or str(exc)
    )


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, or ``[v6]:port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str, default_port: int | None = None) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``. Raises ConnectError.

    The port may be missing if there is a *default_port*.
    """
    parts = _ADDRESS.fullmatch(address)
    v6, name, digits = parts.groups() if parts is not None else (None, None, None)
    port = default_port if digits is None else int(digits)
    if v6 is not None and not is_ipv6(v6):
        raise ConnectError(
            f"{address!r} is not of the form host:port: {v6!r} is not an IPv6 address", address
        )
    # In URLs the zone of a link-local address is written after %25.
    host = v6.replace("%25", "%", 1) if v6 is not None else name
    if host is None or port is None or not 0 < port < 65536:
        bare = address.count(":") > 1 and "[" not in address
        hint = "; an IPv6 address needs brackets, as in [::1]:9876" if bare else ""
        raise ConnectError(
            f"{address!r} is not of the form host:port, with a port from 1 to 65535{hint}", address
        )
    return host, port


def split_listed_address(address: str) -> tuple[str, int]:
    """Split the address of a broker, as name servers list it. Raises ConnectError.

    Apache's broker lists an IPv6 address without brackets if its brokerIP1 has none. Then the last
    colon precedes the port, as in Java's clients.
    """
    host, _, port = address.rpartition(":")
    return split_address(
        join_address(host, int(port)) if is_ipv6(host) and port.isdecimal() else address
    )


def is_ipv6(host: str) -> bool:
    """Return True if *host* is an IPv6 address, without brackets."""
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def without_brackets(host: str) -> str:
    """Return *host*; if it is an IPv6 address in brackets, as in URLs, without them."""
    inside = host[1:-1]
    return inside if host == f"[{inside}]" and is_ipv6(inside) else host


def is_loopback(host: str) -> bool:
    """Return True if *host* is reachable from this machine only.

    Raises ValueError unless it is an IP address or localhost.
    """
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
