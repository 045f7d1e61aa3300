"""``ogive bench`` against a broker that shows what came."""

import pytest

from ogive.cli import bench
from ogive.cli.parser import build_parser
from ogive.testing import FakeBroker
from ogive.wire.codes import RequestCode


async def test_bench_sends_as_many_bytes_as_it_counts() -> None:
    """Bodies of zeros would be compressed to nothing."""
    async with FakeBroker({"OgiveBench": 1}) as broker:
        words = ["bench", "produce", "-n", broker.address, "--count", "1", "--size", "8192"]
        assert await bench.produce(build_parser(words).parse_args(words)) == 0
        (request,) = broker.of(RequestCode.SEND_MESSAGE_V2)
    assert len(request.body) == 8192


def test_sends_that_fail_are_in_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    measured = bench.Measured()
    measured.done(1024)
    bench._show(measured.line(), "sent", as_json=False, last=False)
    assert "failed" not in capsys.readouterr().out
    measured.failed = 1200
    bench._show(measured.line(), "sent", as_json=False, last=False)
    assert "0 s: 1 sent, 1,200 failed, 0.0 messages/s" in capsys.readouterr().out


def test_the_total_says_how_long_the_messages_took(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They came within a part of the first second, whose line has a lower rate."""
    clock = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)
    measured = bench.Measured(bench.Figures(started=clock), bench.Figures(started=clock))
    clock += 0.5
    measured.done(2**20)
    clock += 0.5
    for last in (False, True):
        bench._show(
            measured.total() if last else measured.line(), "received", as_json=False, last=last
        )
    assert capsys.readouterr().out.splitlines() == [
        "1 s: 1 received, 1.0 messages/s, 1.0 MiB/s",
        "total: 1 received in 0.50 s, 2.0 messages/s, 2.0 MiB/s",
    ]


def test_a_line_tells_the_rate_since_the_line_before_and_the_total_that_until_the_last_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: clock)
    measured = bench.Measured(bench.Figures(started=clock), bench.Figures(started=clock))
    for took_s in (0.010, 0.030):
        measured.done(2**20, took_s)
    clock += 1
    first = measured.line()
    assert (first["seconds"], first["messages"], first["messages_per_s"], first["max_ms"]) == (
        1.0,
        2,
        2.0,
        30.0,
    )
    measured.done(2**20, 0.020)
    clock += 1
    second = measured.line()
    assert (
        second["seconds"],
        second["messages"],
        second["messages_per_s"],
        second["mib_per_s"],
        second["max_ms"],
    ) == (
        2.0,
        3,
        1.0,
        1.0,
        20.0,
    )
    clock += 1
    nothing = measured.line()
    assert (nothing["messages"], nothing["messages_per_s"], nothing["p50_ms"]) == (3, 0.0, None)
    total = measured.total()
    assert (total["seconds"], total["messages"], total["messages_per_s"], total["max_ms"]) == (
        1.0,
        3,
        3.0,
        30.0,
    )
