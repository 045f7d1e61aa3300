"""The server side of HTTP/2, with h2 from PyPI as the client."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.http2 import connection as http2
from ogive.http2.connection import (
    Drained,
    ErrorCode,
    Http2Connection,
    Http2Error,
    RequestData,
    RequestHeaders,
    RequestReset,
    frame,
)
from ogive.http2.hpack import encode

REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "b")]
RAW_REQUEST = [(name.encode(), value.encode()) for name, value in REQUEST]
OK = encode([(b":status", b"200")])
END = encode([(b"grpc-status", b"0")])
BEGIN = http2.PREFACE + frame(http2.SETTINGS, 0, 0)


class Pair:
    """A server, and a client that speaks to it. Bytes pass in pieces of *piece*."""

    def __init__(self, piece: int = 100_000, **settings: int) -> None:
        self.server = Http2Connection(**settings)
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.client = h2.connection.H2Connection(config)
        self.client.initiate_connection()
        self.piece = piece
        self.seen: list[http2.Event] = []

    def to_server(self) -> list[http2.Event]:
        data, events = self.client.data_to_send(), []
        for at in range(0, len(data), self.piece):
            events += self.server.receive(data[at : at + self.piece])
        self.seen += events
        return events

    def to_client(self) -> list[h2.events.Event]:
        data = self.server.take_output()
        return [
            event
            for at in range(0, len(data), self.piece)
            for event in self.client.receive_data(data[at : at + self.piece])
        ]

    def settle(self) -> list[h2.events.Event]:
        """Pass bytes both ways until there are none."""
        events = []
        for _ in range(3):
            self.to_server()
            events += self.to_client()
        return events

    def open(self, *, ended: bool = True) -> int:
        stream_id: int = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, REQUEST, end_stream=ended)
        return stream_id


def raised(server: Http2Connection, data: bytes) -> Http2Error:
    with pytest.raises(Http2Error) as caught:
        server.receive(data)
    assert frame(http2.GOAWAY, 0, 0)[3:5] in server.take_output()
    return caught.value


def data_of(events: Sequence[Any], kind: type[Any]) -> bytes:
    return b"".join([one.data for one in events if isinstance(one, kind)])


@given(
    st.lists(st.binary(max_size=40_000), min_size=1, max_size=4),
    st.sampled_from([1, 9, 10, 1000, 100_000]),
)
def test_a_call_in_any_pieces(bodies: list[bytes], piece: int) -> None:
    """Request and response arrive whole, whatever their sizes and the pieces of the stream."""
    if piece < 1000:
        bodies = [body[:200] for body in bodies]
    pair = Pair(piece)
    pair.settle()
    for body in bodies:
        stream_id = pair.open(ended=False)
        for at in range(0, len(body), 16_000):
            pair.client.send_data(stream_id, body[at : at + 16_000])
        pair.client.end_stream(stream_id)
        pair.seen.clear()
        pair.to_server()
        assert pair.seen[0] == RequestHeaders(stream_id, RAW_REQUEST, False)
        assert data_of(pair.seen, RequestData) == body
        assert isinstance(pair.seen[-1], RequestData)
        assert pair.seen[-1].ended
        pair.server.send_headers(stream_id, OK)
        pair.server.send_data(stream_id, body)
        pair.server.end(stream_id, END)
        events = pair.to_client()
        for event in events:
            if isinstance(event, h2.events.DataReceived):
                pair.client.acknowledge_received_data(event.flow_controlled_length, stream_id)
        events += pair.settle()
        assert data_of(events, h2.events.DataReceived) == body
        trailers = [event for event in events if isinstance(event, h2.events.TrailersReceived)]
        assert [one.headers for one in trailers] == [[(b"grpc-status", b"0")]]
    assert pair.server.streams == 0
    assert pair.server.waiting_bytes == 0


def test_a_tiny_window_lets_a_response_trickle() -> None:
    """Data waits until the client takes it, and Drained says when more can be sent."""
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 3})
    stream_id = pair.open()
    pair.settle()
    pair.server.send_headers(stream_id, OK)
    assert not pair.server.send_data(stream_id, b"0123456789")
    got = b""
    while len(got) < 10:
        assert pair.server.waiting_bytes == 7 - len(got)
        piece = data_of(pair.to_client(), h2.events.DataReceived)
        assert len(piece) == 3 if len(got) < 9 else 1
        got += piece
        pair.client.increment_flow_control_window(3, stream_id)
        events = pair.to_server()
        assert (Drained(stream_id) in events) == (len(got) + 3 >= 10)
        if len(got) + 3 >= 10:
            got += data_of(pair.to_client(), h2.events.DataReceived)
    assert got == b"0123456789"
    assert pair.server.waiting_bytes == 0
    assert pair.server.send_data(stream_id, b"x")


def test_a_reset_stream_gives_up_what_waits() -> None:
    pair = Pair()
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    stream_id = pair.open()
    pair.settle()
    assert not pair.server.send_data(stream_id, bytes(1000))
    assert pair.server.waiting_bytes == 1000
    pair.client.reset_stream(stream_id, 8)
    assert pair.to_server() == [RequestReset(stream_id, 8)]
    assert pair.server.waiting_bytes == 0
    pair.server.end(stream_id, END)
    assert pair.settle() == []


def test_a_request_beyond_its_window_is_reset() -> None:
    server = Http2Connection(stream_window=1000)
    server.receive(BEGIN)
    server.take_output()
    server.receive(frame(http2.HEADERS, http2.END_HEADERS, 1, encode(RAW_REQUEST)))
    assert server.receive(frame(http2.DATA, 0, 1, bytes(1000)))
    server.consumed(1, 600)
    assert server.take_output() == frame(http2.WINDOW_UPDATE, 0, 1, (600).to_bytes(4, "big"))
    assert server.receive(frame(http2.DATA, 0, 1, bytes(601)))[-1] == RequestReset(
        1, ErrorCode.FLOW_CONTROL_ERROR
    )


def test_more_streams_than_allowed_are_refused() -> None:
    pair = Pair(max_streams=2)
    pair.to_server()
    server = pair.server
    for stream_id in (1, 3, 5):
        block = encode(RAW_REQUEST)
        server.receive(frame(http2.HEADERS, http2.END_HEADERS, stream_id, block))
    assert server.streams == 2
    assert server.take_output().endswith(
        frame(http2.RST_STREAM, 0, 5, bytes([0, 0, 0, ErrorCode.REFUSED_STREAM]))
    )


def test_go_away_ends_new_streams_and_not_those_in_progress() -> None:
    pair = Pair()
    first = pair.open(ended=False)
    pair.settle()
    pair.server.go_away()
    second = frame(http2.HEADERS, http2.END_HEADERS, 3, encode(RAW_REQUEST))
    assert pair.server.receive(second) == []
    pair.client.send_data(first, b"more", end_stream=True)
    assert pair.to_server() == [RequestData(first, b"more", True)]
    pair.server.send_headers(first, OK)
    pair.server.end(first, END)
    assert frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, first, END) in (
        pair.server.take_output()
    )


def test_a_ping_and_settings_are_answered() -> None:
    pair = Pair()
    pair.client.ping(b"12345678")
    events = pair.settle()
    assert any(isinstance(event, h2.events.PingAckReceived) for event in events)
    assert any(isinstance(event, h2.events.SettingsAcknowledged) for event in events)


def test_padding_and_priority_are_taken_away() -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    flags = http2.END_HEADERS | http2.PADDED | http2.PRIORITY_FIELDS
    block = encode(RAW_REQUEST)
    [event] = server.receive(frame(http2.HEADERS, flags, 1, b"\x03" + bytes(5) + block + b"\0\0\0"))
    assert event == RequestHeaders(1, RAW_REQUEST, False)
    [event] = server.receive(frame(http2.DATA, http2.PADDED, 1, b"\x02abc\0\0"))
    assert event == RequestData(1, b"abc", False)


def test_a_header_block_in_pieces() -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    block = encode(RAW_REQUEST)
    assert server.receive(frame(http2.HEADERS, http2.END_STREAM, 1, block[:5])) == []
    assert server.receive(frame(http2.CONTINUATION, 0, 1, block[5:9])) == []
    [event] = server.receive(frame(http2.CONTINUATION, http2.END_HEADERS, 1, block[9:]))
    assert event == RequestHeaders(1, RAW_REQUEST, True)


@pytest.mark.parametrize(
    "headers",
    [
        RAW_REQUEST[1:],
        [*RAW_REQUEST, (b":path", b"/b")],
        [(b"te", b"trailers"), *RAW_REQUEST],
        [*RAW_REQUEST, (b"Upper", b"x")],
        [*RAW_REQUEST, (b"connection", b"close")],
        [*RAW_REQUEST, (b":status", b"200")],
    ],
)
def test_a_malformed_request_is_reset(headers: list[tuple[bytes, bytes]]) -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    assert server.receive(frame(http2.HEADERS, http2.END_HEADERS, 1, encode(headers))) == []
    reset = frame(http2.RST_STREAM, 0, 1, bytes([0, 0, 0, ErrorCode.PROTOCOL_ERROR]))
    assert server.take_output().endswith(reset)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(http2.HEADERS, 4, 2, encode(RAW_REQUEST)), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.HEADERS, 4, 1, b"\xbf"), ErrorCode.COMPRESSION_ERROR),
        (frame(http2.HEADERS, 0, 1) + frame(http2.DATA, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.CONTINUATION, 4, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(http2.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(http2.SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(http2.SETTINGS, 0, 0, b"\0\5\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(http2.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), ErrorCode.FLOW_CONTROL_ERROR),
        (frame(http2.PUSH_PROMISE, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (b"\x01\x00\x00\x00\x00\x00\x00\x00\x00", ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it(data: bytes, code: ErrorCode) -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    assert raised(server, data).code == code


def test_what_is_not_http2_is_refused() -> None:
    assert "does not begin" in str(raised(Http2Connection(), b"GET / HTTP/1.1\r\n\r\n"))
    assert "not SETTINGS" in str(raised(Http2Connection(), http2.PREFACE + bytes(9)))


def _rapid_resets(server: Http2Connection) -> None:
    for number in range(http2.ALLOWANCE):
        stream_id = 2 * number + 1
        server.receive(frame(http2.HEADERS, 5, stream_id, encode(RAW_REQUEST)))
        server.receive(frame(http2.RST_STREAM, 0, stream_id, bytes(4)))


def _pings(server: Http2Connection) -> None:
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.PING, 0, 0, bytes(8)))
        server.take_output()


def _settings(server: Http2Connection) -> None:
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.SETTINGS, 0, 0))
        server.take_output()


def _empty_data(server: Http2Connection) -> None:
    server.receive(frame(http2.HEADERS, 4, 1, encode(RAW_REQUEST)))
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.DATA, 0, 1))


def _long_settings(server: Http2Connection) -> None:
    for _ in range(10):
        server.receive(frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\0\x01" * 2_000))


def _tiny_data(server: Http2Connection) -> None:
    server.receive(frame(http2.HEADERS, 4, 1, encode(RAW_REQUEST)))
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.DATA, 0, 1, b"x"))


def _useless_windows(server: Http2Connection) -> None:
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))


def _windows_of_many_streams(server: Http2Connection) -> None:
    """Each frame changes the windows of all streams."""
    for number in range(1000):
        server.receive(frame(http2.HEADERS, 5, 2 * number + 1, encode(RAW_REQUEST)))
    for number in range(300):
        server.receive(frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\0" + bytes([number & 1])))


def _tiny_windows(server: Http2Connection) -> None:
    server.receive(frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\0\1"))
    server.receive(frame(http2.HEADERS, 5, 1, encode(RAW_REQUEST)))
    server.send_data(1, bytes(2 * http2.ALLOWANCE))
    for _ in range(2 * http2.ALLOWANCE):
        server.receive(frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"))
        server.take_output()


def _resets_by_the_server(server: Http2Connection) -> None:
    """The client makes the server reset what it began."""
    for number in range(http2.ALLOWANCE):
        server.receive(frame(http2.HEADERS, 5, 2 * number + 1, encode(RAW_REQUEST)))
        server.receive(frame(http2.WINDOW_UPDATE, 0, 2 * number + 1, bytes(4)))


def _endless_headers(server: Http2Connection) -> None:
    server.receive(frame(http2.HEADERS, 0, 1, b"\x00\x7f\xff\xff\x03"))
    for _ in range(1000):
        server.receive(frame(http2.CONTINUATION, 0, 1, bytes(10_000)))


def _empty_continuations(server: Http2Connection) -> None:
    server.receive(frame(http2.HEADERS, 0, 1))
    for _ in range(1000):
        server.receive(frame(http2.CONTINUATION, 0, 1))


def _header_bomb(server: Http2Connection) -> None:
    entry = encode(RAW_REQUEST) + b"\x40\x01x\x7f\xa1\x1e" + bytes(4000)
    server.receive(frame(http2.HEADERS, 5, 1, entry))
    server.receive(frame(http2.HEADERS, 5, 3, b"\xbe" * 10_000))


@pytest.mark.parametrize(
    ("attack", "reason"),
    [
        (_rapid_resets, "too many resets"),
        (_pings, "too many resets, pings"),
        (_settings, "too many resets, pings"),
        (_long_settings, "too many resets, pings"),
        (_empty_data, "tiny frames"),
        (_tiny_data, "tiny frames"),
        (_useless_windows, "tiny frames"),
        (_windows_of_many_streams, "tiny frames"),
        (_tiny_windows, "tiny frames"),
        (_resets_by_the_server, "too many resets"),
        (_endless_headers, "without end"),
        (_empty_continuations, "without end"),
        (_header_bomb, "headers of more than"),
    ],
)
def test_an_attack_ends_the_connection(
    attack: Callable[[Http2Connection], None], reason: str
) -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    with pytest.raises(Http2Error, match=reason):
        attack(server)


def test_a_client_that_finishes_calls_may_reset_others_for_ever() -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    block = encode(RAW_REQUEST)
    for number in range(http2.ALLOWANCE):
        stream_id = 4 * number + 1
        server.receive(frame(http2.HEADERS, 5, stream_id, block))
        server.receive(frame(http2.RST_STREAM, 0, stream_id, bytes(4)))
        server.receive(frame(http2.HEADERS, 5, stream_id + 2, block))
        server.end(stream_id + 2, END)
        server.take_output()


def test_time_gives_back_what_pings_cost() -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    for _ in range(3 * http2.ALLOWANCE):
        server.receive(frame(http2.PING, 0, 0, bytes(8)))
        server.refill(1)
        server.take_output()


@pytest.mark.parametrize("window", [63, 1000])
def test_a_client_with_small_windows_may_read_for_ever(window: int) -> None:
    """It gives both windows back after each frame."""
    server = Http2Connection()
    server.receive(BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\x04" + window.to_bytes(4, "big")))
    server.receive(frame(http2.HEADERS, 5, 1, encode(RAW_REQUEST)))
    server.take_output()
    server.send_data(1, bytes(window * 2 * http2.ALLOWANCE))
    while server.waiting_bytes:
        size = len(server.take_output()) - 9
        assert size == window
        for stream_id in (0, 1):
            server.receive(frame(http2.WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big")))


def test_a_window_is_looked_at_only_for_who_waits_for_it() -> None:
    """A thousand answers wait for their own windows, and the connection's grows again and again."""
    server = Http2Connection()
    server.receive(BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\0\0"))
    for number in range(1000):
        server.receive(frame(http2.HEADERS, 5, 2 * number + 1, encode(RAW_REQUEST)))
        server.send_data(2 * number + 1, b"0123456789")
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        for _ in range(100):
            server.receive(frame(http2.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"))
    finally:
        sys.setprofile(None)
    assert calls < 100 * 100
    # each goes on with its own
    server.receive(frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\x0a"))
    assert server.waiting_bytes == 9990
    server.receive(frame(http2.SETTINGS, 0, 0, b"\0\x04\0\0\0\x0a"))
    assert server.waiting_bytes == 0


def test_answers_wait_in_turn_for_the_window_of_the_connection() -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    for stream_id in (1, 3, 5):
        server.receive(frame(http2.HEADERS, 5, stream_id, encode(RAW_REQUEST)))
    server.take_output()
    assert server.send_data(1, bytes(65_000))
    assert not server.send_data(3, bytes(1000))
    assert not server.send_data(5, bytes(1000))
    assert server.waiting_bytes == 65_000 + 2000 - 65_535
    server.take_output()
    update = frame(http2.WINDOW_UPDATE, 0, 0, (465 + 1).to_bytes(4, "big"))
    assert server.receive(update) == [Drained(3)]
    assert server.take_output() == (
        frame(http2.DATA, 0, 3, bytes(465)) + frame(http2.DATA, 0, 5, bytes(1))
    )
    server.receive(frame(http2.RST_STREAM, 0, 5, bytes(4)))
    assert server.waiting_bytes == 0
    assert server.receive(update) == []


@given(st.binary(max_size=400))
def test_garbage_raises_nothing_but_an_http2_error(data: bytes) -> None:
    server = Http2Connection()
    server.receive(BEGIN)
    try:
        server.receive(data)
    except Http2Error:
        return


FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.integers(0, 6),
    st.binary(max_size=30) | st.just(encode(RAW_REQUEST)),
)


@given(st.lists(FRAMES, max_size=20), st.lists(st.integers(1, 6), max_size=6))
def test_frames_in_any_order_keep_the_books(frames: list[bytes], answered: list[int]) -> None:
    """Whatever comes, what waits is never negative, and nothing waits once no stream is open."""
    server = Http2Connection()
    server.receive(BEGIN + frame(http2.SETTINGS, 0, 0, b"\0\4\0\0\0\x05"))
    try:
        for one in frames:
            server.receive(one)
            for stream_id in answered:
                server.send_data(stream_id, b"0123456789")
            assert server.waiting_bytes >= 0
    except Http2Error:
        return
    for stream_id in range(7):
        server.reset(stream_id, ErrorCode.CANCEL)
    assert server.streams == 0
    assert server.waiting_bytes == 0
