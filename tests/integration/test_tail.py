"""``ogive tail``: where it starts and ends, what it leaves out, how it prints."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

import ogive
from ogive.cli import tail_command
from ogive.cli.main import main
from ogive.testing import Broker

LIMIT_S = 60.0
# Ctrl-C works as in a terminal, also where the tests run in the background of a shell
RUN = """
import signal, sys
from ogive.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
Tail = Callable[..., bytes]


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def stored(running: Broker) -> Sequence[ogive.MessageExt]:
    """Five messages in three queues, the oldest first."""
    with (
        ogive.Admin(running.name_server) as admin,
        ogive.Producer(name_server=running.name_server) as producer,
    ):
        admin.create_topic("Orders", queues=3)
        for number in range(5):
            producer.send(
                ogive.Message(
                    "Orders",
                    f"order {number}".encode(),
                    tag="paid" if number % 2 else "open",
                    keys=(f"k{number}", "all"),
                    properties={"price": str(number)},
                )
            )
        return admin.messages("Orders")


@pytest.fixture
def tail(
    running: Broker,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Tail:
    """Run the command to its end, and return what it prints."""
    # the broker's clock is the one of this machine
    monkeypatch.setattr(tail_command, "MAX_SKEW", timedelta())

    def run(*words: str) -> bytes:
        assert main(["tail", "Orders", "-n", running.name_server, *words]) == 0
        return capsysbinary.readouterr().out

    return run


def bodies(output: bytes) -> list[str]:
    return sorted(json.loads(line)["body"] for line in output.splitlines())


def test_without_follow_it_ends_after_what_is_stored(
    stored: Sequence[ogive.MessageExt], tail: Tail
) -> None:
    everything = sorted(one.text for one in stored)
    assert bodies(tail("--no-follow", "--json")) == everything
    assert tail("--no-follow", "--from", "latest", "--json") == b""
    assert bodies(tail("--no-follow", "--queue", "1", "--json")) == sorted(
        one.text for one in stored if one.queue.queue_id == 1
    )
    assert len(bodies(tail("--no-follow", "--count", "2", "--json"))) == 2


def test_times_limit_it_on_both_sides(stored: Sequence[ogive.MessageExt], tail: Tail) -> None:
    since, until = stored[1].stored_at, stored[3].stored_at + timedelta(milliseconds=1)
    within = ("--since", since.isoformat(), "--until", until.isoformat())
    expected = sorted(one.text for one in stored if since <= one.stored_at < until)
    assert len(expected) >= 3
    assert bodies(tail(*within, "--json")) == expected
    assert bodies(tail(*within, "--no-follow", "--json")) == expected


def test_it_waits_for_an_end_that_is_yet_to_come(
    stored: Sequence[ogive.MessageExt], tail: Tail
) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    assert bodies(tail("--until", soon, "--json")) == sorted(one.text for one in stored)


def test_filters_leave_messages_out(stored: Sequence[ogive.MessageExt], tail: Tail) -> None:
    ends = ("--no-follow", "--json")
    assert bodies(tail("--tag", "paid", *ends)) == ["order 1", "order 3"]
    assert bodies(tail("--sql", "price > 2", *ends)) == ["order 3", "order 4"]
    assert bodies(tail("--grep", "[02]$", *ends)) == ["order 0", "order 2"]
    assert bodies(tail("--sql", "price > 2", "--grep", "4", *ends)) == ["order 4"]


def test_letters_of_a_format_stand_for_what_the_help_says(
    stored: Sequence[ogive.MessageExt], tail: Tail
) -> None:
    one = stored[3]
    output = tail(
        "--no-follow", "--sql", "price = 3", "--format", r"%t %p/%o\t%k|%s|%S %T %%\x00\\%h\n"
    )
    properties = ",".join(f"{name}={text}" for name, text in one.properties.items())
    assert "price=3" in properties
    assert output.decode() == (
        f"Orders {one.queue.queue_id}/{one.queue_offset}\tk3 all|order 3|7 "
        f"{one.store_timestamp_ms} %\0\\{properties}\n"
    )


def test_a_format_leaves_bytes_and_adds_no_end_of_line(
    running: Broker, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with ogive.Producer(name_server=running.name_server) as producer:
        producer.send("Bytes", b"\xff\x00\n")
    words = ["tail", "Bytes", "--no-follow", "--format", "%s", "-n", running.name_server]
    assert main(words) == 0
    assert capsysbinary.readouterr().out == b"\xff\x00\n"


def test_a_queue_that_does_not_exist_is_refused(
    running: Broker, stored: Sequence[ogive.MessageExt], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", "Orders", "--queue", "3", "-n", running.name_server]) == 1
    assert capsys.readouterr().err == "ogive: --queue 3: Orders has 0, 1, 2\n"


@contextlib.contextmanager
def process(running: Broker, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", RUN, "tail", *words, "-n", running.name_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as one:
        try:
            yield one
        finally:
            one.kill()


@pytest.mark.parametrize(("limit", "code"), [((), 0), (("--count", "9"), 130)])
def test_ctrl_c_is_the_good_end_of_what_has_no_other(
    running: Broker, stored: Sequence[ogive.MessageExt], limit: Sequence[str], code: int
) -> None:
    with process(running, "Orders", "--from", "earliest", *limit) as one:
        assert one.stdout is not None
        for _ in stored:
            one.stdout.readline()
        one.send_signal(signal.SIGINT)
        assert (one.communicate(timeout=LIMIT_S), one.returncode) == ((b"", b""), code)


def test_it_starts_with_new_messages(running: Broker) -> None:
    with ogive.Producer(name_server=running.name_server) as producer:
        producer.send("New", b"old")
        with process(running, "New", "--count", "1", "--format", "%s") as one:
            ends_at = time.monotonic() + LIMIT_S
            while one.poll() is None and time.monotonic() < ends_at:
                # it does not say when it has begun
                producer.send("New", b"new")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.wait(0.2)
            assert one.communicate(timeout=LIMIT_S) == (b"new", b"")
