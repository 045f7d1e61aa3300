"""Connections to the console that ask for nothing, or take no answer."""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from ogive.console import guard
from tests.browser import WAIT_S, Browser


@contextlib.contextmanager
def crowd(browser: Browser, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    host, _, port = browser.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        there = [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
            for _ in range(count)
        ]
        for one in there:
            # closed already, for one that came later
            with contextlib.suppress(ConnectionError):
                one.sendall(sent)
        yield there


@pytest.mark.parametrize(
    "sent",
    [b"", b"G", b"GET /messages HTTP/1.1\r\nHost: localhost\r\n\r\nG"],
    ids=["nothing", "a byte", "one more byte"],
)
def test_visitors_who_ask_for_nothing_keep_nobody_out(alone: Browser, sent: bytes) -> None:
    with crowd(alone, 2 * guard.MAX_VISITS, sent):
        assert [alone.get("/messages").status for _ in range(3)] == [200] * 3


def test_who_ends_no_request_is_closed_in_the_end(
    alone: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "PATIENCE_S", 0.2)
    with crowd(alone, 1, b"GET /messages HTTP/1.1\r\nHost: ") as [slow]:
        assert slow.recv(1) == b""


def test_who_comes_back_within_its_time_is_served_on_one_connection(
    alone: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "PATIENCE_S", WAIT_S)
    request = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with crowd(alone, 1, request * 3) as [visitor]:
        answers = b""
        while answers.count(b"</html>") < 3:
            answers += visitor.recv(65536)
    assert answers.count(b"HTTP/1.1 404") == 3
