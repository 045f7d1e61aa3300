"""One request at a time on a connection that the asking thread reads itself."""

import socket
import threading
from collections.abc import Iterator

import pytest

from ogive.errors import ConnectionLost, RequestTimeout
from ogive.transport.line import Line
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand, encode_command

WAIT_S = 60.0


def answer(opaque: int, body: bytes = b"", flag: int = Flag.RESPONSE) -> bytes:
    return encode_command(RemotingCommand(0, {}, body, opaque, flag))


@pytest.fixture
def pair() -> Iterator[tuple[Line, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    line = Line(near, "broker:1")
    yield line, far
    line.close()
    far.close()


Pair = tuple[Line, socket.socket]


def test_the_answer_to_ones_own_request_is_returned(pair: Pair) -> None:
    line, far = pair
    far.sendall(answer(5, b"late") + answer(7, b"question", flag=0) + answer(7, b"mine"))
    assert line.ask(7, b"request", WAIT_S).body == b"mine"
    assert far.recv(100) == b"request"
    assert line.is_fit()


def test_long_requests_and_answers_pass_in_pieces(pair: Pair) -> None:
    line, far = pair
    request, body = bytes(3_000_000), bytes(2_000_000)
    got: list[bytes] = []

    def serve() -> None:
        while sum(map(len, got)) < len(request):
            got.append(far.recv(100_000))
        far.sendall(answer(1, body))

    serving = threading.Thread(target=serve)
    serving.start()
    assert line.ask(1, request, WAIT_S).body == body
    serving.join(WAIT_S)
    assert b"".join(got) == request


def test_a_request_without_answer_ends_in_time_and_its_line_with_it(pair: Pair) -> None:
    line, far = pair
    with pytest.raises(RequestTimeout, match=r"no answer from broker:1 within \d+\.\d s") as caught:
        line.ask(1, b"request", 0.01)
    assert caught.value.outcome_unknown
    assert far.recv(100) == b"request"
    assert far.recv(100) == b""
    assert not line.is_fit()


def test_a_request_that_does_not_get_through_ends_in_time(pair: Pair) -> None:
    line, _ = pair
    with pytest.raises(RequestTimeout):
        line.ask(1, bytes(5_000_000), 0.01)


def test_a_peer_that_hangs_up_or_talks_nonsense_ends_the_request(pair: Pair) -> None:
    line, far = pair
    far.sendall(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(ConnectionLost, match=r"broker:1 sent what is no frame: it speaks HTTP"):
        line.ask(1, b"request", WAIT_S)
    near, far = socket.socketpair()
    near.setblocking(False)
    with far:
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionLost, match=r"connection to broker:1 was lost: .*closed"):
            Line(near, "broker:1").ask(1, b"request", WAIT_S)


def test_a_line_that_was_closed_or_spoken_to_is_not_fit(pair: Pair) -> None:
    line, far = pair
    assert line.is_fit()
    far.sendall(b"?")
    assert not line.is_fit()
    near, far = socket.socketpair()
    other = Line(near, "broker:1")
    far.close()
    assert not other.is_fit()
    other.close()


def test_hanging_up_ends_the_request_of_another_thread(pair: Pair) -> None:
    line, far = pair
    errors: list[Exception] = []

    def ask() -> None:
        try:
            line.ask(1, b"request", WAIT_S)
        except ConnectionLost as exc:
            errors.append(exc)

    asking = threading.Thread(target=ask)
    asking.start()
    assert far.recv(100) == b"request"
    line.hang_up()
    asking.join(WAIT_S)
    assert len(errors) == 1
    line.hang_up()
