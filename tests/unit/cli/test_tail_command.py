"""``ogive tail`` without a broker: what it refuses before it asks anybody."""

import pytest

from ogive.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "%x"], "--format: there is no '%x'; known: %t topic, %p queue, %o offset,"),
        (["--format", "50 %"], "--format: there is no '%'; known: %t topic"),
        (["--format", r"%s\q"], r"--format: there is no '\q'; known: \n, \t"),
        (["--format", r"\xg0"], r"--format: there is no '\x'; known: \n, \t"),
        (["--grep", "("], "--grep (: missing ), unterminated subpattern at position 0; a regular"),
        (["--sql", "price >"], "--sql: a property, a value"),
        (["--sql", "price > 1", "--tag", "paid"], "filters by tags or in SQL, not by both"),
        (
            ["--from", "latest", "--since", "2026-11-02"],
            "--from and --since exclude each other: leave one of them out",
        ),
        (["--json", "--format", ""], "--json and --format exclude each other"),
        (["--since", "noon"], "--since noon: a time such as 2026-11-01T08:00 is expected"),
        (
            ["--since", "2026-11-02", "--until", "2026-11-01"],
            "--until 2026-11-01 is not after --since 2026-11-02",
        ),
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
