"""``ogive pipeline`` without Spark and without a broker: options, and what is refused."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.cli.pipeline import _server
from ogive.errors import InvalidOption


def test_a_redrive_only_shows_unless_it_is_told_yes() -> None:
    plain = build_parser().parse_args(["pipeline", "redrive", "billing", "--state", "s"])
    assert not plain.yes
    assert build_parser().parse_args(["pipeline", "redrive", "billing", "--state", "s", "--yes"]).yes


@pytest.mark.parametrize("rate", ["0", "-1", "many"])
def test_a_rate_is_a_number_above_zero(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["pipeline", "replay", "--from", "T", "--state", "s", "--rate", rate])
    assert "above zero" in capsys.readouterr().err


def test_the_name_server_is_that_of_the_options() -> None:
    options = build_parser().parse_args(["pipeline", "archive", "--topic", "T", "--to", "lake", "-n", "127.0.0.1:19876"])
    assert _server(options) == "127.0.0.1:19876"


def test_credentials_are_refused_with_the_way_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret"
    file.write_text("accessKey: a\nsecretKey: b\n")
    file.chmod(0o600)
    words = ["pipeline", "archive", "--topic", "T", "--to", "lake", "-n", "127.0.0.1:1", "--credentials", str(file)]
    options = build_parser().parse_args(words)
    with pytest.raises(InvalidOption, match="copy the module"):
        _server(options)
    assert main(words) == 1
    assert "copy the module" in capsys.readouterr().err
