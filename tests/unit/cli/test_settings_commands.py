"""What ``ogive apply`` says of a file that it does not take."""

from pathlib import Path

import pytest

from ogive.cli.main import main


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[topics", "is not TOML"),
        ("[topic.Orders]", "there is no topic; a file has topics, groups and rules"),
        (
            "[topics.Orders]\nqueues = 4",
            "topics.Orders: there is no queues; there are: read_queues",
        ),
        ("[topics.Orders]\nread_queues = true", "topics.Orders: read_queues must be of type int"),
        ("[groups]\nbilling = 3", "groups.billing: a table is expected"),
        ("[rules]\nuser = 'ann'", "rules begin with [[rules]]"),
        ("[[rules]]\nuser = 'ann'", "rules, number 0: actions, allowed, resource is missing"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    # nothing is connected before the file is read
    assert main(["apply", str(file), "-n", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert f"{file}" in err
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "no-such.toml", "-n", "127.0.0.1:1"]) == 1
    assert "no-such.toml cannot be read: " in capsys.readouterr().err
