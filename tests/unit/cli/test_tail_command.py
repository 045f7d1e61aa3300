"""``ogive tail``: what it refuses before it asks anybody, and where it ends."""

import asyncio
import threading
from datetime import timedelta

import pytest

from ogive.cli import tail_command
from ogive.cli.main import main
from ogive.errors import ResponseCode
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.stats import kv_table_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "%x"], "--format: there is no '%x'; known: %t topic, %p queue, %o offset,"),
        (["--format", "50 %"], "--format: there is no '%'; known: %t topic"),
        (["--format", r"%s\q"], r"--format: there is no '\q'; known: \n, \t"),
        (["--format", r"\xg0"], r"--format: there is no '\x'; known: \n, \t"),
        (["--grep", "("], "--grep (: missing ), unterminated subpattern at position 0; a regular"),
        (["--sql", "price >"], "--sql: expected a property, a value"),
        (["--sql", "price > 1", "--tag", "paid"], "filters by tags or in SQL, not by both"),
        (
            ["--from", "latest", "--since", "2026-11-02"],
            "--from and --since exclude each other: leave one of them out",
        ),
        (["--json", "--format", ""], "--json and --format exclude each other"),
        (["--since", "noon"], "--since noon: a time such as 2026-11-01T08:00, or 2h, is expected"),
        (
            ["--since", "2026-11-02", "--until", "2026-11-01"],
            "--until 2026-11-01 is not after --since 2026-11-02",
        ),
        (["--since", "1h", "--until", "2h"], "--until 2h is not after --since 1h"),
        (["--count", "0"], "--count 0: must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tail", "Orders", *words, "-n", "127.0.0.1:1"]) == 1
    text = capsys.readouterr().err
    assert text.startswith("ogive: ")
    assert said in text
    assert text.count("\n") == 1


async def test_a_broker_that_answers_no_more_ends_it_with_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail_command, "STALLED_S", 0.0)
    async with FakeBroker({"Orders": 1}) as broker:
        broker.put("Orders", b"one")
        gone = error(ResponseCode.SYSTEM_ERROR, "the disk is gone")
        # after the pull that checks the permission
        broker.script(RequestCode.PULL_MESSAGE, None, *[gone] * 20)
        words = ["tail", "Orders", "--no-follow", "-n", broker.address]
        assert await asyncio.to_thread(main, words) == 1
    shown = capsys.readouterr()
    assert (shown.out, "the disk is gone" in shown.err) == ("", True)


async def test_a_clock_that_is_behind_loses_no_message_before_until(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker stores in 2023, and --until is over by the clock of this machine."""
    monkeypatch.setattr(tail_command, "MAX_SKEW", timedelta(days=100_000))
    async with FakeBroker({"Orders": 1}) as broker:
        until = ["--until", "2024-01-01", "--format", "%s"]
        words = ["tail", "Orders", *until, "-n", broker.address]
        tail = asyncio.create_task(asyncio.to_thread(main, words))
        # the second one is its first look at the queue
        await broker.received(RequestCode.PULL_MESSAGE, 2)
        broker.put("Orders", b"late")
        monkeypatch.setattr(tail_command, "MAX_SKEW", timedelta())
        assert await tail == 0
    assert capsys.readouterr().out == "late"


async def test_a_clock_that_says_so_may_be_far_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail_command, "MAX_SKEW", timedelta())
    behind = threading.Event()

    def figures(_: RemotingCommand) -> RemotingCommand:
        behind.set()
        table = {
            # a minute before --until, for as long as this test takes
            "bootTimestamp": str(1_704_067_140_000),
            "runtime": "[ 0 days, 0 hours, 0 minutes, 0 seconds ]",
        }
        return ok(body=kv_table_dumps(table))

    async with FakeBroker({"Orders": 1}) as broker:
        broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, figures)
        until = ["--until", "2024-01-01T00:00:00Z", "--count", "1", "--format", "%s"]
        words = ["tail", "Orders", *until, "-n", broker.address]
        tail = asyncio.create_task(asyncio.to_thread(main, words))
        await asyncio.to_thread(behind.wait, 30)
        broker.put("Orders", b"late")
        assert await tail == 0
    assert capsys.readouterr().out == "late"
