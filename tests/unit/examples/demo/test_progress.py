"""Plain progress: lines at most every five seconds, with rates."""

import io
import re

import pytest

from examples.demo.progress import PlainProgress, RichProgress, progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_after_five_seconds_with_what_moved_and_its_rate() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainProgress(out, clock) as show:
        show.expect("sent", 1000)
        show.expect("Spark", 1000)
        show.update("sent", 100)
        clock.now += 4.9
        show.update("sent", 400)
        assert out.getvalue() == ""
        clock.now += 0.1
        show.update("sent", 500)
        assert out.getvalue() == "  sent 500 of 1,000 (100/s)\n"
        clock.now += 1.0
        show.update("sent", 1000)
    assert out.getvalue().splitlines()[1:] == ["  sent 1,000 of 1,000 (500/s)"]


def test_what_is_being_done_is_shown_at_once_and_every_five_seconds_also_while_nothing_moves() -> (
    None
):
    out, clock = io.StringIO(), Clock()
    with PlainProgress(out, clock) as show:
        show.expect("Spark", 1000)
        show.doing("Spark", "starting Java")
        show.doing("Spark", "starting Java")
        assert out.getvalue() == "  Spark 0 of 1,000: starting Java\n"
        clock.now += 4.9
        show.tick()
        clock.now += 0.1
        show.tick()
        assert out.getvalue() == "  Spark 0 of 1,000: starting Java\n" * 2
        clock.now += 1.0
        show.update("Spark", 500)
        show.doing("Spark", "batch 2")
        assert out.getvalue().splitlines()[2:] == ["  Spark 500 of 1,000 (500/s): batch 2"]
        show.doing("Spark", "")
        clock.now += 10.0
        show.tick()
    assert len(out.getvalue().splitlines()) == 3


def test_a_name_that_nobody_expects_is_not_shown() -> None:
    out, clock = io.StringIO(), Clock()
    with PlainProgress(out, clock) as show:
        show.update("hidden", 5)
        clock.now += 10
        show.update("hidden", 6)
        show.doing("hidden", "something")
    assert out.getvalue() == ""


def test_what_is_no_terminal_gets_plain_lines() -> None:
    assert isinstance(progress(io.StringIO()), PlainProgress)


def test_bars_show_counts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    with RichProgress() as show:
        show.expect("sent", 10)
        show.expect("sent", 20)
        show.update("sent", 20)
        show.update("hidden", 1)
        show.say("[broker] is ready")
        show.doing("sent", "the last ones")
        show.doing("sent", "")
        show.tick()
    shown = capsys.readouterr().out
    assert "[broker] is ready" in shown
    assert "sent: the last ones" in shown
    assert re.search(r"sent.*20/20", shown)
