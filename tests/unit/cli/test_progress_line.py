"""Progress on standard error, in a terminal and elsewhere."""

import io

import pytest

from ogive.cli.pipeline_commands import REPORT_S, ProgressLine


class Figures:
    def __init__(self, rows: int, lag: int | None) -> None:
        self.rows, self.lag = rows, lag

    def __str__(self) -> str:
        return f"{self.rows} rows"


class Terminal(io.TextIOWrapper):
    def __init__(self, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_shows_one_line_with_the_lag_as_bars() -> None:
    out = Terminal()
    with ProgressLine(out) as line:
        line.say("starting")
        line.show(Figures(10, 8))
        line.show(Figures(20, 4))
        line.say("a note")
        line.show(Figures(30, None))
    clear = "\r\x1b[K"
    assert out.text() == (
        "ogive: starting\n"
        f"{clear}ogive: 10 rows"
        f"{clear}ogive: 20 rows  █▅"
        f"{clear}ogive: a note\n"
        f"{clear}ogive: 20 rows  █▅"
        f"{clear}ogive: 30 rows  █▅\n"
    )


def test_the_line_fits_into_the_terminal() -> None:
    out = Terminal()
    with ProgressLine(out) as line:
        for lag in range(60):
            line.show(Figures(10**18, lag))
        line.show(Figures(10**40, 0))
    shown = [text.removesuffix("\n") for text in out.text().split("\r\x1b[K")]
    assert max(map(len, shown)) == 29


def test_a_terminal_without_utf_8_has_no_bars() -> None:
    out = Terminal("ascii")
    with ProgressLine(out) as line:
        line.show(Figures(10, 8))
        line.show(Figures(20, 4))
    assert out.text().endswith("ogive: 20 rows\n")


@pytest.mark.parametrize("dumb", [False, True])
def test_elsewhere_there_is_one_line_a_minute_and_the_last_one(
    dumb: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    now = 0.0
    out = Terminal() if dumb else io.StringIO()
    with ProgressLine(out, lambda: now) as line:
        line.show(Figures(1, 9))
        line.show(Figures(2, 8))
        now += REPORT_S
        line.show(Figures(3, 7))
        line.show(Figures(4, 6))
    text = out.text() if isinstance(out, Terminal) else out.getvalue()
    assert text == "ogive: 1 rows\nogive: 3 rows\nogive: 4 rows\n"
