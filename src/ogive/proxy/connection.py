"""A client's connection to the gRPC endpoint, and its calls."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Protocol, cast

from ogive.http2.connection import (
    Drained,
    Http2Connection,
    Http2Error,
    RequestData,
    RequestHeaders,
    RequestReset,
)
from ogive.http2.hpack import Headers
from ogive.proxy import framing
from ogive.proxy.calls import (
    BothStreams,
    CallContext,
    CallError,
    CallKind,
    GrpcStatus,
    Method,
    ServerStream,
    Unary,
    WireMessage,
)
from ogive.proxy.config import EndpointConfig
from ogive.transport.connection import join_address

log = logging.getLogger(__name__)

_ENCODINGS: Final = ("identity", "gzip")
# of memory: a header beside the bytes of its name and value, a message beside its own
_HEADER_BYTES: Final = 128
_MESSAGE_BYTES: Final = 128


class ConnectionOwner(Protocol):
    """The endpoint, as a connection sees it."""

    in_progress: int
    """Number of calls of all connections."""

    @property
    def config(self) -> EndpointConfig: ...

    @property
    def methods(self) -> Mapping[str, Method]: ...

    def opened(self, connection: "GrpcConnection") -> None: ...

    def closed(self, connection: "GrpcConnection") -> None: ...

    def finished(
        self, method: str, peer: tuple[str, int], code: GrpcStatus, message: str
    ) -> None: ...

    def held(self, more: int) -> None:
        """Count *more* bytes of responses that wait, or of requests that are not handled yet."""

    def report(self, peer: str, reason: str, level: int = logging.WARNING) -> None:
        """Log why a connection is closed here."""


class GrpcCall:
    """A call from its headers to its status."""

    __slots__ = (
        "_connection",
        "_drained",
        "_kept_bytes",
        "_loop",
        "_more",
        "_timer",
        "begun_at",
        "context",
        "ended",
        "head_sent",
        "held_bytes",
        "is_over",
        "messages",
        "method",
        "reader",
        "stream_id",
        "task",
    )

    def __init__(
        self,
        connection: "GrpcConnection",
        stream_id: int,
        method: Method,
        context: CallContext,
        reader: framing.MessageReader,
    ) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.stream_id = stream_id
        self.method = method
        self.context = context
        self.reader = reader
        self.begun_at = self._loop.time()
        # complete messages that the handler has not taken, and whether they are all
        self.messages: deque[framing.Received] = deque()
        self.ended = False
        # bytes of the request that are kept here
        self.held_bytes = 0
        # of its headers, and what its handler keeps
        self._kept_bytes = 0
        self.head_sent = False
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._more: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        if context.deadline is not None:
            self._timer = self._loop.call_at(context.deadline, self._expire)
        if method.kind is CallKind.BOTH_STREAMS:
            self._start()

    @property
    def is_incomplete(self) -> bool:
        """Return True while the only message of the request has not arrived."""
        return self.task is None and not self.is_over

    def keep(self, more: int) -> None:
        """Count *more* bytes until the end of the call."""
        self._kept_bytes += more
        self._connection.count(more)

    def feed(self, data: bytes, ended: bool) -> None:
        """Take data of the request."""
        try:
            messages = self.reader.feed(data) if data else []
        except CallError as exc:
            self.fail(exc.code, exc.message)
            return
        self.messages.extend(messages)
        self._count(len(data) + _MESSAGE_BYTES * len(messages))
        if self.is_over:
            # its connection was cut off for what it holds
            return
        self.ended = ended
        if self.method.kind is CallKind.BOTH_STREAMS:
            if ended and self.reader.buffered_bytes:
                self.fail(GrpcStatus.INTERNAL, "the request ends within a message")
            elif self._more is not None and not self._more.done():
                self._more.set_result(None)
        elif ended and (len(self.messages) != 1 or self.reader.buffered_bytes):
            self.fail(GrpcStatus.INTERNAL, "the request must be exactly one message")
        elif ended:
            self._start()
        elif len(self.messages) > 1:
            self.fail(GrpcStatus.INTERNAL, "the request must be exactly one message")

    def drained(self) -> None:
        """Go on sending: the client has room."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def fail(self, code: GrpcStatus, message: str) -> None:
        """End the call with an error, whatever its handler does."""
        if self.is_over:
            return
        self._connection.end(self, code, message)
        self.stop()

    def stop(self) -> None:
        """Cancel the handler. Nothing more is sent."""
        self._leave()
        if self.task is not None:
            self.task.cancel()

    def _leave(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.messages.clear()
        self._count(-self.held_bytes)
        self._connection.count(-self._kept_bytes)
        self._kept_bytes = 0

    def _expire(self) -> None:
        self.fail(GrpcStatus.DEADLINE_EXCEEDED, "the deadline of the call has passed")

    def _count(self, more: int) -> None:
        self.held_bytes += more
        self._connection.count(more)

    def _start(self) -> None:
        self.task = self._loop.create_task(self._run(), name=self.method.name)

    async def _run(self) -> None:
        code, message = GrpcStatus.OK, ""
        try:
            await self._handle()
        except CallError as exc:
            code, message = exc.code, exc.message
        except asyncio.CancelledError:
            if not self.is_over:
                # by nobody here: the loop ends
                self.fail(GrpcStatus.CANCELLED, "the server stops")
            raise
        # a boundary around the service: a fault in one call must not end the connection
        except Exception:
            log.exception("%s of %s failed", self.method.name, self.context.peer[0])
            code, message = GrpcStatus.INTERNAL, "internal error, see the log of the broker"
        if not self.is_over:
            self._connection.end(self, code, message)
            self._leave()

    async def _handle(self) -> None:
        method = self.method
        if method.kind is CallKind.UNARY:
            answer = await cast(Unary, method.handler)(self._only_message(), self.context)
            if not self.is_over:
                self._connection.send(self, answer)
            return
        if method.kind is CallKind.SERVER_STREAM:
            answers = cast(ServerStream, method.handler)(self._only_message(), self.context)
        else:
            self._connection.send_head(self)
            answers = cast(BothStreams, method.handler)(self._requests(), self.context)
        async with aclosing(cast(Any, answers)) as responses:
            async for response in responses:
                has_room = self._connection.send(self, response)
                # what waits is its bytes
                del response
                if not has_room:
                    self._drained = self._loop.create_future()
                    await self._drained

    def _only_message(self) -> WireMessage:
        request = self._parse(self.messages.popleft())
        self._count(-self.held_bytes)
        return request

    def _parse(self, received: framing.Received) -> WireMessage:
        message = self.reader.plain(received)
        try:
            return self.method.request.FromString(message)
        # each codec has its own error
        except Exception as exc:  # noqa: BLE001
            raise CallError(
                GrpcStatus.INTERNAL,
                f"the request is not a {self.method.request.__name__}: {exc}",
            ) from None

    async def _requests(self) -> AsyncIterator[WireMessage]:
        while True:
            while self.messages:
                received = self.messages.popleft()
                self._count(-min(received.size + _MESSAGE_BYTES, self.held_bytes))
                self._connection.consumed(self, received.size)
                yield self._parse(received)
            if self.ended:
                return
            self._more = self._loop.create_future()
            await self._more


class GrpcConnection(asyncio.Protocol):
    """HTTP/2 on one socket. What is sent in one iteration of the loop is one write."""

    def __init__(self, server: ConnectionOwner, proxied: tuple[str, int] | None = None) -> None:
        """*proxied*: the client's address if a load balancer named it."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        config = server.config
        self._http = Http2Connection(
            max_streams=config.max_streams,
            # the one message of a call needs no update of its window
            stream_window=max(config.max_request_bytes + 64 * 1024, 1024 * 1024),
        )
        self._transport: asyncio.Transport | None = None
        self._proxied = proxied
        self._flushing = False
        self._paused = False
        self.is_tls = False
        self._waiting = 0
        self._written_bytes = 0
        self.host = "?"
        self.peer = self._socket_peer = ("?", 0)
        self.calls: dict[int, GrpcCall] = {}
        self.held_bytes = 0
        self.opened_at = self.used_at = self._loop.time()
        self.is_leaving = False
        self.closed = False
        # done when the socket is closed
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @property
    def address(self) -> str:
        return join_address(*self.peer)

    @property
    def has_begun(self) -> bool:
        """Return True if the client has begun to speak HTTP/2."""
        return self._http.has_begun

    @property
    def taken_bytes(self) -> int:
        """Bytes of responses that the system has taken for the client."""
        return self._written_bytes - self._buffered()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that wait here for the client."""
        return self._http.waiting_bytes + self._buffered()

    @property
    def _waiting_bytes(self) -> int:
        return self.unsent_bytes + self._http.incomplete_bytes

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # --- events of the socket ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        socket_peer = self._transport.get_extra_info("peername") or ("?", 0)
        self.host = str(socket_peer[0])
        self._socket_peer = (self.host, int(socket_peer[1]))
        self.peer = self._proxied or self._socket_peer
        self.is_tls = self._transport.get_extra_info("ssl_object") is not None
        self._server.opened(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._drop()
        self.lost.set_result(None)
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._paused = True
        # a client that reads no answers gets no more calls
        self._reading(False)

    def resume_writing(self) -> None:
        self._paused = False
        self._reading(True)
        for call in list(self.calls.values()):
            call.drained()

    def _reading(self, wanted: bool) -> None:
        if self._transport is not None and not self.closed:
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    def data_received(self, data: bytes) -> None:
        self.used_at = self._loop.time()
        try:
            events = self._http.receive(data)
        except Http2Error as exc:
            self.leave(str(exc), logging.WARNING if self.has_begun else logging.INFO)
            return
        for event in events:
            if self.closed:
                # it was cut off for an event before this one
                return
            match event:
                case RequestHeaders(stream_id, headers, ended):
                    self._begin(stream_id, headers, ended)
                case RequestData(stream_id, body, ended):
                    if (call := self.calls.get(stream_id)) is not None:
                        call.feed(body, ended)
                case RequestReset(stream_id):
                    if (call := self.calls.get(stream_id)) is not None:
                        self._gone(call)
                case Drained(stream_id):
                    if (call := self.calls.get(stream_id)) is not None and not self._paused:
                        call.drained()
        self._flush()

    def _drop(self) -> None:
        """End all calls, and release what is held for them."""
        for call in list(self.calls.values()):
            self._gone(call)
        self._count_waiting(0)

    def _gone(self, call: GrpcCall) -> None:
        """End a call that nobody waits for."""
        self._finished(call, GrpcStatus.CANCELLED, "")
        call.stop()

    def _finished(self, call: GrpcCall, code: GrpcStatus, message: str) -> None:
        del self.calls[call.stream_id]
        self._server.in_progress -= 1
        self._server.finished(call.method.name, self.peer, code, message)

    # --- calls ------------------------------------------------------------------------------------

    def _begin(self, stream_id: int, headers: Headers, ended: bool) -> None:
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        path = fields[":path"]
        method = self._server.methods.get(path)
        try:
            if method is None:
                raise CallError(GrpcStatus.UNIMPLEMENTED, f"method {path[:200]} is not served here")
            call = self._accept(stream_id, method, fields)
        except CallError as exc:
            self._http.end(stream_id, framing.trailers(exc.code, exc.message, only=True))
            name = "unknown" if method is None else method.name
            self._server.finished(name, self.peer, exc.code, exc.message)
            return
        self.calls[stream_id] = call
        self._server.in_progress += 1
        call.keep(sum(len(name) + len(value) + _HEADER_BYTES for name, value in headers))
        if ended and not call.is_over:
            call.feed(b"", True)

    def _accept(self, stream_id: int, method: Method, fields: dict[str, str]) -> GrpcCall:
        """Return the call that headers begin. Raises CallError if it is refused."""
        content_type = fields.get("content-type", "")
        if fields[":method"] != "POST" or not content_type.startswith("application/grpc"):
            raise CallError(
                GrpcStatus.INVALID_ARGUMENT,
                "a call needs the method POST and the content-type application/grpc",
            )
        encoding = fields.get("grpc-encoding", "identity")
        if encoding not in _ENCODINGS:
            raise CallError(
                GrpcStatus.UNIMPLEMENTED,
                f"grpc-encoding {encoding[:40]} is not served: use identity or gzip",
            )
        config = self._server.config
        if self._server.in_progress >= config.max_calls:
            raise CallError(
                GrpcStatus.RESOURCE_EXHAUSTED,
                f"{config.max_calls} calls are in progress, try again later",
            )
        metadata = {name: value for name, value in fields.items() if name[0] != ":"}
        deadline = self._deadline(fields.get("grpc-timeout"))
        through = self._socket_peer if self._proxied else None
        keep = partial(self._keep, stream_id)
        context = CallContext(metadata, self.peer, self.is_tls, deadline, through, keep)
        reader = framing.MessageReader(encoding, config.max_request_bytes)
        return GrpcCall(self, stream_id, method, context, reader)

    def _deadline(self, timeout: str | None) -> float | None:
        """Return the time at which a call ends. Raises CallError."""
        if timeout is None:
            return None
        try:
            seconds = framing.parse_timeout(timeout)
        except ValueError as exc:
            raise CallError(GrpcStatus.INVALID_ARGUMENT, str(exc)) from None
        return self._loop.time() + min(seconds, self._server.config.max_deadline_s)

    def _keep(self, stream_id: int, more: int) -> None:
        """See CallContext.keep."""
        if (call := self.calls.get(stream_id)) is not None:
            call.keep(more)

    def consumed(self, call: GrpcCall, size: int) -> None:
        """Let the client send *size* bytes more of the request."""
        self._http.consumed(call.stream_id, size)
        self._flush_soon()

    def count(self, more: int) -> None:
        """Count *more* bytes that are held for this client."""
        self.held_bytes += more
        self._server.held(more)

    # --- responses --------------------------------------------------------------------------------

    def send_head(self, call: GrpcCall) -> None:
        """Begin the response before its first message."""
        if not call.head_sent:
            call.head_sent = True
            self._http.send_headers(call.stream_id, framing.RESPONSE_HEAD)
            self._flush_soon()

    def send(self, call: GrpcCall, message: WireMessage) -> bool:
        """Send a message of the response. Return False if the next one must wait."""
        self.send_head(call)
        frame = framing.message_frame(message.SerializeToString())
        sent = self._http.send_data(call.stream_id, frame)
        self._flush_soon()
        return sent and not self._paused

    def end(self, call: GrpcCall, code: GrpcStatus, message: str) -> None:
        """End the response with a status."""
        block = (
            framing.OK_TRAILERS
            if code == GrpcStatus.OK and call.head_sent
            else framing.trailers(code, message, only=not call.head_sent)
        )
        self._http.end(call.stream_id, block)
        self._flush_soon()
        self.used_at = self._loop.time()
        self._finished(call, code, message)

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None or self.closed:
            return
        if out := self._http.take_output():
            self._written_bytes += len(out)
            self._transport.write(out)
        if (waiting := self._waiting_bytes) != self._waiting:
            self._count_waiting(waiting)
        unsent = self.unsent_bytes
        if unsent > self._server.config.server.max_unsent_bytes:
            self.abort(f"{unsent} bytes wait for it to read")

    def _count_waiting(self, waiting: int) -> None:
        more, self._waiting = waiting - self._waiting, waiting
        self.count(more)

    # --- its end ----------------------------------------------------------------------------------

    def refill(self, frames: int) -> None:
        """See Http2Connection.refill."""
        self._http.refill(frames)
        if not self.closed:
            self._count_waiting(self._waiting_bytes)

    def go_away(self) -> None:
        """Tell the client to use another connection; calls in progress go on."""
        self.is_leaving = True
        self._http.go_away()
        self._flush()

    def leave(self, reason: str, level: int = logging.INFO) -> None:
        """Close, after what was sent. Calls in progress are cancelled."""
        if self.closed or self._transport is None:
            return
        self._server.report(self.peer[0], f"the connection is closed: {reason}", level)
        self._flush()
        self.is_leaving = True
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once."""
        if self.closed or self._transport is None:
            return
        self._server.report(self.peer[0], f"the connection is cut off: {reason}")
        self.closed = True
        self._transport.abort()
        # now, not when the socket is closed: others may need the memory
        self._drop()
