"""Colours of the command line: where they are shown."""

import sys

import pytest

from ogive.cli.main import main


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_errors_and_headings_have_colours_on_terminals_only(
    *,
    terminal: bool,
    environment: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in ({"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": ""} | environment).items():
        monkeypatch.setenv(name, value)
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    assert main(["errors"]) == 0
    assert main(["errors", "NONE"]) == 1
    with pytest.raises(SystemExit):
        main(["errors", "--none"])
    out, err = capsys.readouterr()
    heading, row, *_ = out.splitlines()
    assert heading.startswith("\x1b[1mCODE") == coloured
    assert "\x1b" not in row
    assert [line.startswith("\x1b[1;31mogive:\x1b[0m ") for line in err.splitlines()] == (
        [coloured] * 2
    )
    assert ("\x1b" in out + err) == coloured
