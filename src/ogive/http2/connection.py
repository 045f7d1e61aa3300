"""The server side of an HTTP/2 connection, without I/O. Source: RFC 9113.

``receive`` takes bytes and returns events; ``take_output`` returns the bytes to send. Settings,
pings and flow control are answered here. Responses wait here for the peer's windows; ``Drained``
says when a stream has none left.

Everything is bounded: header blocks and frames by fixed limits, streams by *max_streams*, frames
that ask for work without a request (rapid resets, pings, settings, windows that grow by little) by
an allowance, which finished requests, sent data and time refill. The memory of what waits is the
caller's to limit: ``waiting_bytes`` to be sent, and ``incomplete_bytes`` of frames and headers.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from ogive.http2.hpack import Headers, HpackDecoder, HpackError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# SETTINGS_MAX_FRAME_SIZE's default: no peer may send more
MAX_FRAME_BYTES: Final = 16_384
# frames that we send, if the peer allows more
MAX_SENT_BYTES: Final = 1024 * 1024
# gRPC's libraries allow half of this, unless they are told otherwise
MAX_HEADER_BYTES: Final = 16 * 1024
MAX_CONTINUATIONS: Final = 16
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_WINDOW: Final = 65_535
# of a connection: most bytes that may be on their way to us
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
# frames that ask for work without a request
ALLOWANCE: Final = 10_000
_RESET_COST: Final = 4
_FINISHED_EARNS: Final = 8
# of the data that is sent: a frame, and a KiB; clients answer both with larger windows
_FRAME_EARNS: Final = 2
# smaller frames of data earn nothing, and cost something unless they end a request
_TINY_BYTES: Final = 32
# streams whose windows one unit of the allowance may change
_STREAMS_CHANGED: Final = 16

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FIELDS: Final = 0x20

_HEAD: Final = struct.Struct(">HBBBI")
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")
_OF_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)


class ErrorCode(IntEnum):
    """Code of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Number of a setting."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2Error(Exception):
    """The peer broke the protocol or a limit: the connection must be closed once its output, with a
    GOAWAY, is sent.
    """

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class RequestHeaders(NamedTuple):
    """A request has begun. *ended*: it has no body."""

    stream_id: int
    headers: Headers
    ended: bool


class RequestData(NamedTuple):
    """More of a request's body, and perhaps its end. ``consumed`` must be called for its bytes."""

    stream_id: int
    data: bytes
    ended: bool


class RequestReset(NamedTuple):
    """The peer wants no answer any more, or the stream was reset here for its fault."""

    stream_id: int
    code: int


class Drained(NamedTuple):
    """All data of a response has left; its stream is open for more."""

    stream_id: int


Event = RequestHeaders | RequestData | RequestReset | Drained


class _Stream:
    """A stream that is not closed on both sides."""

    __slots__ = ("consumed", "ended", "receive_window", "send_window", "trailers", "waiting")

    def __init__(self, send_window: int, receive_window: int) -> None:
        self.send_window = send_window
        self.receive_window = receive_window
        # given back to the peer with the next WINDOW_UPDATE
        self.consumed = 0
        # the peer has sent all
        self.ended = False
        # data that waits for windows, and the frame after it, which ends the stream
        self.waiting = memoryview(b"")
        self.trailers: bytes | None = None


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def _settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


class Http2Connection:
    """The server's end of a connection."""

    def __init__(self, *, max_streams: int = 1024, stream_window: int = DEFAULT_WINDOW) -> None:
        """*stream_window*: bytes of a request that the peer may send before any is consumed."""
        self._max_streams = max_streams
        self._stream_window = stream_window
        self._hpack = HpackDecoder(MAX_HEADER_BYTES)
        self._buffer = b""
        self._preface_left = PREFACE
        self._streams: dict[int, _Stream] = {}
        # streams whose data waits for the connection's window, the oldest first
        self._blocked: dict[int, None] = {}
        self._last_id = 0
        # header block that continues: stream, flags, fragments
        self._block: tuple[int, int, list[bytes]] | None = None
        self._send_window = DEFAULT_WINDOW
        self._receive_window = CONNECTION_WINDOW
        self._peer_window = DEFAULT_WINDOW
        self._peer_frame_bytes = MAX_FRAME_BYTES
        self._has_settings = False
        self._allowance = ALLOWANCE
        self._events: list[Event] = []
        self._leaving = False
        self.waiting_bytes = 0
        self._out = [
            _settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: max_streams,
                    Setting.INITIAL_WINDOW_SIZE: stream_window,
                    Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
                }
            ),
            frame(WINDOW_UPDATE, 0, 0, _WORD.pack(CONNECTION_WINDOW - DEFAULT_WINDOW)),
        ]

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    @property
    def has_begun(self) -> bool:
        """Return True if the peer's first frame has arrived."""
        return self._has_settings

    @property
    def incomplete_bytes(self) -> int:
        """Bytes of a frame and of a header block that have not arrived whole."""
        return len(self._buffer) + (sum(map(len, self._block[2])) if self._block else 0)

    def take_output(self) -> bytes:
        """Return what is to be sent now."""
        out, self._out = b"".join(self._out), []
        return out

    def refill(self, frames: int) -> None:
        """Allow the peer *frames* more that ask for work without a request."""
        self._allowance = min(ALLOWANCE, self._allowance + frames)

    # --- from the peer ----------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the peer, in any pieces.

        Raises Http2Error; then the events before the fault are lost, and the output holds a GOAWAY.
        """
        try:
            self._receive(self._buffer + data if self._buffer else data)
        except HpackError as exc:
            raise self._fail(ErrorCode.COMPRESSION_ERROR, str(exc)) from None
        except Http2Error as exc:
            raise self._fail(exc.code, str(exc)) from None
        events, self._events = self._events, []
        return events

    def _fail(self, code: ErrorCode, reason: str) -> Http2Error:
        self.go_away(code, reason)
        return Http2Error(code, reason)

    def _receive(self, data: bytes) -> None:
        at, end = 0, len(data)
        if self._preface_left:
            at = min(end, len(self._preface_left))
            if data[:at] != self._preface_left[:at]:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "it does not begin as HTTP/2 does")
            self._preface_left = self._preface_left[at:]
        while end - at >= _HEAD.size:
            high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > MAX_FRAME_BYTES:
                raise Http2Error(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes, above {MAX_FRAME_BYTES}"
                )
            begin = at + _HEAD.size
            if end - begin < size:
                break
            at = begin + size
            self._frame(kind, flags, stream_id & MAX_WINDOW, data[begin:at])
        self._buffer = data[at:]

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a frame within a header block")
        if not self._has_settings and kind != SETTINGS:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        match kind:
            case 0:
                self._on_data(flags, stream_id, payload)
            case 1:
                self._on_headers(flags, stream_id, payload)
            case 3:
                self._on_reset(stream_id, payload)
            case 4:
                self._on_settings(flags, stream_id, payload)
            case 6:
                self._on_ping(flags, stream_id, payload)
            case 7 if stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
            case 8:
                self._on_window_update(stream_id, payload)
            case 9:
                self._on_continuation(flags, payload)
            case 5:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client pushes")
            case _:
                # PRIORITY, GOAWAY and unknown frames say nothing that matters here
                self._on_other(kind, stream_id, payload)

    def _on_other(self, kind: int, stream_id: int, payload: bytes) -> None:
        self._spend(1)
        if kind == PRIORITY:
            _expect_size(payload, 5)
            if not stream_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")

    def _spend(self, cost: int) -> None:
        self._allowance -= cost
        if self._allowance < 0:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM, "too many resets, pings or tiny frames for its calls"
            )

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream_id}")
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITY_FIELDS:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without its fields")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(flags, stream_id, payload)
        else:
            self._block = (stream_id, flags, [payload])

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        stream_id, first_flags, fragments = self._block
        fragments.append(payload)
        size = sum(map(len, fragments))
        if size > MAX_HEADER_BYTES or len(fragments) > MAX_CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block without end")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(first_flags, stream_id, b"".join(fragments))

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        # also for streams that are refused: the block may change the table
        headers = self._hpack.decode(block)
        ended = bool(flags & END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None:
            if stream.ended or not ended:
                self._reset_for(stream_id, ErrorCode.PROTOCOL_ERROR)
            else:
                # trailers, which gRPC's clients do not send
                stream.ended = True
                self._events.append(RequestData(stream_id, b"", True))
            return
        if stream_id <= self._last_id:
            # it was reset here while they were on their way
            self._spend(1)
            return
        self._last_id = stream_id
        if self._leaving or len(self._streams) >= self._max_streams:
            self._spend(1)
            self._send_reset(stream_id, ErrorCode.REFUSED_STREAM)
        elif not _is_request(headers):
            self._spend(_RESET_COST)
            self._send_reset(stream_id, ErrorCode.PROTOCOL_ERROR)
        else:
            stream = self._streams[stream_id] = _Stream(self._peer_window, self._stream_window)
            stream.ended = ended
            self._events.append(RequestHeaders(stream_id, headers, ended))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size, ended = len(payload), bool(flags & END_STREAM)
        self._receive_window -= size
        if self._receive_window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        if self._receive_window < CONNECTION_WINDOW // 2:
            more = CONNECTION_WINDOW - self._receive_window
            self._receive_window = CONNECTION_WINDOW
            self._out.append(frame(WINDOW_UPDATE, 0, 0, _WORD.pack(more)))
        stream = self._streams.get(stream_id)
        if stream is None:
            if not stream_id & 1 or stream_id > self._last_id:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"data for stream {stream_id}, not open")
            # it was reset here while they were on their way
            self._spend(1)
            return
        stream.receive_window -= size
        if stream.ended:
            self._reset_for(stream_id, ErrorCode.STREAM_CLOSED)
            return
        if stream.receive_window < 0:
            self._reset_for(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if flags & PADDED:
            payload = _without_padding(payload)
            self.consumed(stream_id, size - len(payload))
        stream.ended = ended
        if len(payload) < _TINY_BYTES and not ended:
            self._spend(1)
        if payload or ended:
            self._events.append(RequestData(stream_id, payload, ended))

    def _on_reset(self, stream_id: int, payload: bytes) -> None:
        _expect_size(payload, 4)
        if not stream_id or stream_id > self._last_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"reset of stream {stream_id}, not open")
        self._spend(_RESET_COST)
        if stream_id in self._streams:
            self._forget(stream_id)
            self._events.append(RequestReset(stream_id, _WORD.unpack(payload)[0]))

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            _expect_size(payload, 0)
            return
        if len(payload) % _SETTING.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of an impossible size")
        self._spend(max(1, len(payload) // _SETTING.size))
        self._has_settings = True
        window = self._peer_window
        for number, value in _SETTING.iter_unpack(payload):
            if number == Setting.INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                window = value
            elif number == Setting.MAX_FRAME_SIZE:
                if not MAX_FRAME_BYTES <= value < 2**24:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._peer_frame_bytes = min(value, MAX_SENT_BYTES)
            elif number == Setting.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH {value}")
        if window != self._peer_window:
            self._change_windows(window)
        self._out.append(frame(SETTINGS, ACK, 0))

    def _change_windows(self, size: int) -> None:
        self._spend(len(self._streams) // _STREAMS_CHANGED)
        more, self._peer_window = size - self._peer_window, size
        for stream_id, stream in list(self._streams.items()):
            stream.send_window += more
            if stream.send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window grows too large")
            if stream.waiting:
                self._send_waiting(stream_id, stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _expect_size(payload, 8)
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if not flags & ACK:
            self._spend(1)
            self._out.append(frame(PING, ACK, 0, payload))

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        _expect_size(payload, 4)
        more = _WORD.unpack(payload)[0] & MAX_WINDOW
        if stream_id > self._last_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a window for stream {stream_id}, not open")
        self._spend(1)
        if not stream_id:
            self._send_window += more
            if not more or self._send_window > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"a window grows by {more} bytes")
            self._send_blocked()
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.send_window += more
        if not more or stream.send_window > MAX_WINDOW:
            self._reset_for(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        elif stream.waiting:
            self._send_waiting(stream_id, stream)

    def _reset_for(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream for the peer's fault."""
        self._spend(_RESET_COST)
        self.reset(stream_id, code)
        self._events.append(RequestReset(stream_id, code))

    # --- to the peer ------------------------------------------------------------------------------

    def consumed(self, stream_id: int, size: int) -> None:
        """Let the peer send *size* bytes more of a request."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            return
        stream.consumed += size
        if stream.consumed >= self._stream_window // 2:
            self._out.append(frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(stream.consumed)))
            stream.receive_window += stream.consumed
            stream.consumed = 0

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Begin a response. *block* is encoded, and fits into a frame."""
        if stream_id in self._streams:
            self._out.append(frame(HEADERS, END_HEADERS, stream_id, block))

    def send_data(self, stream_id: int, data: bytes) -> bool:
        """Send more of a response. Return False if some of it waits for the peer: a Drained event
        follows.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return True
        if stream.waiting:
            self.waiting_bytes += len(data)
            stream.waiting = memoryview(bytes(stream.waiting) + data)
            return False
        size = len(data)
        if size <= min(stream.send_window, self._send_window, self._peer_frame_bytes):
            stream.send_window -= size
            self._send_window -= size
            self._send_piece(stream_id, data)
            return True
        self.waiting_bytes += size
        stream.waiting = memoryview(data)
        self._send_waiting(stream_id, stream, tell=False)
        return not stream.waiting

    def end(self, stream_id: int, trailers: bytes) -> None:
        """End a response, after its data. *trailers* is an encoded block that fits into a frame."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream_id, trailers)
            if not stream.waiting:
                self._finish(stream_id, stream)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once, without the data that waits."""
        if stream_id in self._streams:
            self._forget(stream_id)
            self._send_reset(stream_id, code)

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """Tell the peer to use another connection; later streams are refused."""
        self._leaving = True
        payload = _TWO_WORDS.pack(self._last_id, code) + reason.encode()[:128]
        self._out.append(frame(GOAWAY, 0, 0, payload))

    def _finish(self, stream_id: int, stream: _Stream) -> None:
        assert stream.trailers is not None, "what ends it"
        self._out.append(stream.trailers)
        if not stream.ended:
            # the peer need not send the rest
            self._send_reset(stream_id, ErrorCode.NO_ERROR)
        self._forget(stream_id)
        self.refill(_FINISHED_EARNS)

    def _forget(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id)
        self._blocked.pop(stream_id, None)
        self.waiting_bytes -= len(stream.waiting)

    def _send_reset(self, stream_id: int, code: ErrorCode) -> None:
        self._out.append(frame(RST_STREAM, 0, stream_id, _WORD.pack(code)))

    def _send_piece(self, stream_id: int, piece: bytes) -> None:
        self._out.append(frame(DATA, 0, stream_id, piece))
        if len(piece) >= _TINY_BYTES:
            self.refill(_FRAME_EARNS + len(piece) // 1024)

    def _send_blocked(self) -> None:
        for stream_id in list(self._blocked):
            if self._send_window <= 0:
                return
            self._send_waiting(stream_id, self._streams[stream_id])

    def _send_waiting(self, stream_id: int, stream: _Stream, *, tell: bool = True) -> None:
        """Send of the data that waits as much as the windows allow."""
        while stream.waiting:
            room = min(stream.send_window, self._send_window, self._peer_frame_bytes)
            if room <= 0:
                # the connection's window is of no use to who waits for its own
                if stream.send_window > 0:
                    self._blocked[stream_id] = None
                else:
                    self._blocked.pop(stream_id, None)
                return
            piece = bytes(stream.waiting[:room])
            stream.waiting = stream.waiting[room:]
            size = len(piece)
            stream.send_window -= size
            self._send_window -= size
            self.waiting_bytes -= size
            self._send_piece(stream_id, piece)
        self._blocked.pop(stream_id, None)
        if stream.trailers is not None:
            self._finish(stream_id, stream)
        elif tell:
            self._events.append(Drained(stream_id))


def _expect_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {len(payload)} bytes, not {size}")


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than data")
    return payload[1 : len(payload) - payload[0]]


def _is_request(headers: Headers) -> bool:
    """Return True if the headers are those of a request: pseudo-headers first, each once."""
    pseudo: set[bytes] = set()
    regular = False
    for name, _ in headers:
        if name[:1] == b":":
            if regular or name in pseudo:
                return False
            pseudo.add(name)
        else:
            regular = True
            if not name or name in _OF_CONNECTION or name != name.lower():
                return False
    return (
        {b":method", b":path", b":scheme"}
        <= pseudo
        <= {
            b":method",
            b":path",
            b":scheme",
            b":authority",
        }
    )
