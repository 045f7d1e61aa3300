"""The broker that tests start: it comes back where it was, and leaves nothing behind."""

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

import ogive
from ogive.errors import IllegalStateError
from ogive.testing import Broker
from ogive.testing.broker import LAST_LINES, Ready, _LastLines


def test_a_killed_broker_comes_back_on_its_ports_with_its_messages_and_leaves_nothing() -> None:
    with Broker() as broker:
        address, folder = broker.address, broker.data
        with ogive.Producer(broker.name_server) as producer:
            place = producer.send("Orders", b"one")
        broker.kill()
        broker.start()
        assert broker.address == address
        with ogive.Admin(broker.name_server) as admin:
            held = {row.queue: row.max_offset for row in admin.offsets("Orders")}
        assert held[place.queue] == 1
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no second process may bind a port")
def test_nobody_else_is_given_the_ports_of_a_killed_broker() -> None:
    with Broker() as broker:
        ports = [
            int(address.rpartition(":")[2]) for address in (broker.name_server, broker.address)
        ]
        broker.kill()
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
    for port in ports:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(IllegalStateError, match="not loopback"),
        Broker(options=("--host", "192.0.2.1")),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_does_not_run_has_no_process() -> None:
    with pytest.raises(IllegalStateError, match="start it"):
        _ = Broker().pid


def test_a_broker_that_dies_says_so_with_its_last_words_when_it_is_stopped() -> None:
    broker = Broker(options=("-v",))
    broker.start()
    folder = broker.data
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(
        IllegalStateError,
        match=r"(?s)the broker ended with code -9; its last words:\n.*broker-a serves on",
    ):
        broker.stop()
    assert not folder.exists()
    broker.stop()


def test_a_test_that_fails_because_its_broker_died_keeps_its_error_and_learns_of_it() -> None:
    def test() -> None:
        with Broker(options=("-v",)) as broker:
            os.kill(broker.pid, signal.SIGKILL)
            raise KeyError("the test's own")

    with pytest.raises(KeyError, match="the test's own") as caught:
        test()
    (note,) = caught.value.__notes__
    assert "the broker ended with code -9; its last words:" in note


def test_only_the_end_of_what_a_broker_says_is_kept() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        kept = _LastLines(os.fdopen(reader))
        pipe.writelines(f"line {number}\n" for number in range(1000))
        pipe.write("x" * 100_000)
    kept.close()
    lines = kept.text().splitlines()
    assert len(lines) == LAST_LINES
    assert max(map(len, lines)) <= 2000


@pytest.mark.parametrize(
    ("line", "addresses"),
    [
        (
            "ready name-server=127.0.0.1:9876 broker=[::1]:10911\n",
            ("127.0.0.1:9876", "[::1]:10911", ""),
        ),
        ("ready name-server=a:1 broker=b:2 grpc=c:3\n", ("a:1", "b:2", "c:3")),
        ("ready name-server=a:1 broker=b:2 grpc=c:3 (without TLS)\n", ("a:1", "b:2", "c:3")),
        ("ready name-server=a:1 broker=b:2 grpc: off (port 8081 is in use)\n", ("a:1", "b:2", "")),
        ("ready", None),
        ("", None),
        ("Traceback (most recent call last):", None),
    ],
)
def test_the_ready_line_is_read_or_is_none(
    line: str, addresses: tuple[str, str, str] | None
) -> None:
    assert Ready.parse(line) == addresses
