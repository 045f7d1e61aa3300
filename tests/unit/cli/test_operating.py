"""Commands of operators, without a broker: times, codes, confirmation, wrong usage."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

from ogive.cli.broker_commands import explain
from ogive.cli.group_commands import place
from ogive.cli.main import main
from ogive.cli.output import confirm
from ogive.errors import InvalidOption, ResponseCode


def test_a_place_is_an_end_or_a_time() -> None:
    assert [place("earliest"), place("latest")] == ["earliest", "latest"]
    assert place("2026-11-01T08:00+01:00") == datetime(2026, 11, 1, 7, tzinfo=UTC)
    local = place("2026-11-01T08:00")
    assert isinstance(local, datetime)
    assert local.astimezone().strftime("%Y-%m-%d %H:%M") == "2026-11-01 08:00"
    with pytest.raises(InvalidOption, match="--to tomorrow: earliest, latest, a time such as"):
        place("tomorrow")


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90s", timedelta(seconds=90)),
        ("15m", timedelta(minutes=15)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta(0)),
    ],
)
def test_a_place_may_be_so_long_ago(text: str, age: timedelta) -> None:
    earliest = datetime.now(UTC) - age
    found = place(text)
    assert isinstance(found, datetime)
    assert earliest <= found <= datetime.now(UTC) - age


@pytest.mark.parametrize("text", ["2w", "-2h", "1.5h", "h", "2 h", "999999999d", "\u0662h"])
def test_an_age_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="or 2h, is expected; an offset needs --queue"):
        place(text)


def test_every_code_is_explained() -> None:
    assert all(explain(code) for code in ResponseCode)


@pytest.mark.parametrize("word", ["17", "TOPIC_NOT_EXIST", "topic_not_exist"])
def test_a_code_is_explained_by_number_and_by_name(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["errors", word]) == 0
    said = capsys.readouterr().out
    assert said.startswith("17 TOPIC_NOT_EXIST: no such topic")
    assert "ogive.errors.TopicNotExist" in said
    assert main(["errors", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exception"] == "TopicNotExist"


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "--json"]) == 0
    assert [json.loads(line)["code"] for line in capsys.readouterr().out.splitlines()] == [
        code.value for code in ResponseCode
    ]


def test_nothing_is_deleted_where_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm("delete it?", yes=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    with pytest.raises(InvalidOption, match="add --yes"):
        confirm("delete it?", yes=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: "n")
    with pytest.raises(InvalidOption, match="nothing was changed"):
        confirm("delete it?", yes=False)
    monkeypatch.setattr("builtins.input", lambda: "y")
    confirm("delete it?", yes=False)


def test_the_first_ctrl_c_at_a_question_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside asyncio.run, whose own handler would only cancel a task that waits for the
    user.
    """
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    done = []

    def interrupted() -> str:
        done.append("asked")
        # as if the user pressed Ctrl-C now
        signal.raise_signal(signal.SIGINT)
        return "y"

    async def delete() -> None:
        confirm("delete it?", yes=False)
        done.append("deleted")

    monkeypatch.setattr("builtins.input", interrupted)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(delete())
    assert done == ["asked"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["message"], "say which message"),
        (["message", "--key", "k"], "add --topic"),
        (["message", "ID", "--key", "k"], "say which message"),
        (["message", "--topic", "T"], "or with --since and --until"),
        (["message", "--since", "2026-11-01"], "add --topic"),
        (
            ["message", "ID", "--since", "2026-11-01"],
            "leave them out, or give --topic alone, or with --key",
        ),
        (["message", "--topic", "T", "--offset", "1", "--limit", "1"], "leave them out"),
        (["message", "--topic", "T", "--since", "noon"], "--since noon: a time such as"),
        (["message", "--topic", "T", "--until", "noon"], "--until noon: a time such as"),
        (
            ["message", "--topic", "T", "--since", "2026-11-02", "--until", "2026-11-01"],
            "--until 2026-11-01 is not after --since 2026-11-02",
        ),
        (["dead-letter", "send", "g"], "or --all"),
        (["dead-letter", "send", "g", "ID", "--all"], "leave one of them out"),
        (["dead-letter", "send", "g", "--all", "ID"], "leave one of them out"),
        (["dead-letter", "redrive", "g", "ID", "--tag", "a"], "leave one of them out"),
        (["dead-letter", "redrive", "g", "--all", "--limit", "0"], "between 1 and 10000"),
        (["dead-letter", "redrive", "g", "--all", "--rate", "0"], "more than 0 messages a second"),
        (
            ["dead-letter", "redrive", "g", "--where", "a >"],
            "--where: expected a property, a value",
        ),
        (["dead-letter", "redrive", "g", "--tag", "a|b"], "several separated by ||"),
        (["check", "lag", "g", "--max", "-1"], "0 or more"),
        (["group", "reset", "g", "T", "--to", "noon"], "--to noon"),
        (["group", "reset", "g", "T", "--to", "12"], "an offset needs --queue"),
        (
            ["group", "reset", "g", "T", "--to", "earliest", "--queue", "0"],
            "with --queue it is an offset",
        ),
        (["group", "reset", "g", "T", "--to", "12", "--broker", "b"], "add --queue"),
        (["topic", "update", "T"], "nothing to change"),
        (["topic", "update", "T", "--queues", "8", "--read-queues", "8"], "give it alone"),
        (["group", "update", "g", "--dry-run"], "nothing to change"),
        (["up", "--busy-poll", "-1"], "--busy-poll -1: must be between 0 and 1000 microseconds"),
        (
            ["up", "--name-server-port", "80", "--broker-port", "80"],
            "--name-server-port and --broker-port are both 80",
        ),
        (["run", "app:bill", "--wait", "-1"], "--wait -1: must be 0 or more seconds"),
        (["send", "T", "--body", "x", "--delay", "-1"], "--delay -1: must be 0 or more seconds"),
        (["send", "T", "--body", "x", "--tag", "a||b"], "no consumer could select it"),
        (["errors", "0x11"], "not a response code; `ogive errors` lists them"),
        (["errors", "topic_not"], "not a response code: did you mean TOPIC_NOT_EXIST?"),
        (["errors", "TOPC_NOT_EXIST"], "did you mean TOPIC_NOT_EXIST"),
    ],
)
def test_wrong_usage_is_one_sentence_before_anybody_is_asked(
    words: list[str], advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    said = capsys.readouterr().err
    assert advice in said
    assert said.count("\n") == 1
