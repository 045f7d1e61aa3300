"""One request at a time on a connection that the asking thread reads itself."""

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ogive.errors import ConnectionLost, RequestTimeout
from ogive.transport import line as lines
from ogive.transport.busy_poll import Expectation
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


def test_numbers_of_requests_begin_again_before_they_fit_no_frame(pair: Pair) -> None:
    line, far = pair
    line._opaques = itertools.count(0x7FFFFFFF)
    for expected in (0x7FFFFFFF, 0):
        opaque = line.next_opaque()
        far.sendall(answer(opaque, b"mine"))
        assert (opaque, line.ask(opaque, b"request", WAIT_S).body) == (expected, b"mine")


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
    with pytest.raises(ConnectionLost, match=r"broker:1 sent a malformed frame: it speaks HTTP"):
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


# --- looking before sleeping ----------------------------------------------------------------------


class Looks(Expectation):
    """Has it looked until a step is no; notes what it was told."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__(1.0)
        self.told: list[str] = []
        self._steps = iter(steps)

    def begin(self) -> bool:
        self.told.append("begin")
        return True

    def goes_on(self) -> bool:
        self.told.append("looked")
        return bool(next(self._steps)())

    def came(self) -> None:
        self.told.append("came")


@contextmanager
def looking(
    monkeypatch: pytest.MonkeyPatch, *steps: Callable[[socket.socket], object]
) -> Iterator[tuple[Line, Looks]]:
    """A line whose peer does the *steps*, one after each look that found nothing: whether to look
    again.
    """
    near, far = socket.socketpair()
    near.setblocking(False)
    looks = Looks(*((lambda step=step: step(far)) for step in steps))
    wait = lines._wait

    def sleep(*args: object) -> None:
        looks.told.append("slept")
        wait(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(lines, "_wait", sleep)
    line = Line(near, "broker:1", looks)
    with far:
        yield line, looks
    line.close()


def nothing(far: socket.socket) -> bool:
    return True


def test_an_answer_that_comes_while_it_is_looked_for_is_had_without_sleeping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer_it(far: socket.socket) -> bool:
        far.sendall(answer(1, b"mine"))
        return True

    with looking(monkeypatch, nothing, nothing, answer_it) as (line, looks):
        assert line.ask(1, b"request", WAIT_S).body == b"mine"
        assert looks.told == ["begin", "looked", "looked", "looked", "came"]
        assert line.is_fit()


def test_whoever_has_looked_for_long_enough_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer_it_late(far: socket.socket) -> bool:
        far.sendall(answer(1, b"mine"))
        return False

    with looking(monkeypatch, nothing, answer_it_late) as (line, looks):
        assert line.ask(1, b"request", WAIT_S).body == b"mine"
        assert looks.told == ["begin", "looked", "looked", "slept", "came"]


def test_only_the_first_bytes_of_an_answer_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = answer(1, b"mine")

    def answer_half(far: socket.socket) -> bool:
        far.sendall(frame[:10])
        later = threading.Timer(0.01, far.sendall, (frame[10:],))
        later.start()
        return True

    with looking(monkeypatch, answer_half) as (line, looks):
        assert line.ask(1, b"request", WAIT_S).body == b"mine"
        assert looks.told == ["begin", "looked", "came", "slept"]


def test_a_request_without_answer_ends_in_time_after_looking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with looking(monkeypatch, nothing, lambda far: False) as (line, looks):
        with pytest.raises(RequestTimeout):
            line.ask(1, b"request", 0.01)
        assert looks.told == ["begin", "looked", "looked", "slept"]
        assert not line.is_fit()


def test_a_peer_that_hangs_up_is_noticed_while_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang_up(far: socket.socket) -> bool:
        far.shutdown(socket.SHUT_RDWR)
        return True

    with looking(monkeypatch, nothing, hang_up) as (line, looks):
        with pytest.raises(ConnectionLost, match="the peer closed it"):
            line.ask(1, b"request", WAIT_S)
        assert looks.told == ["begin", "looked", "looked", "came"]


def test_an_interrupt_while_looking_ends_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def press(far: socket.socket) -> bool:
        raise KeyboardInterrupt

    with looking(monkeypatch, nothing, press) as (line, looks):
        with pytest.raises(KeyboardInterrupt):
            line.ask(1, b"request", WAIT_S)
        assert looks.told == ["begin", "looked", "looked"]
        assert not line.is_fit()
