"""`ogive up --config`: TOML under the names of the options, and Apache's broker.conf."""

import argparse
import logging
from pathlib import Path
from typing import Any

import pytest

from ogive.cli import config_file
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.errors import InvalidOption


def up(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *words])


def read(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    return config_file.read(str(path), up().config_of)


def test_every_option_of_the_command_line_can_stand_in_the_file(tmp_path: Path) -> None:
    command = up().config_of
    lines, expected = [], {}
    for action in command._actions:
        if action.dest in ("help", "config", "verbose"):
            continue
        name = action.option_strings[-1].removeprefix("--")
        value: Any = True if action.nargs == 0 else next(iter(action.choices)) if action.choices else 7
        lines.append(f"{name} = {'true' if value is True else repr(value)}".replace("'", '"'))
        expected[action.dest] = value if action.nargs == 0 or action.choices else action.type("7") if callable(action.type) else "7"
    assert len(lines) > 20
    assert read(tmp_path / "ogive.toml", "\n".join(lines)) == expected


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    values = read(tmp_path / "ogive.toml", 'cluster = "file"\nflush = "async"\nbroker-port = 5\nacl = true')
    parser = build_parser()
    options = parser.parse_args(["up"])
    options.config_of.set_defaults(**values)
    options = parser.parse_args(["up", "--cluster", "line"])
    assert (options.cluster, options.flush, options.broker_port, options.acl) == ("line", "async", 5, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fluhs = 'sync'", "fluhs is no setting; flush is"),
        ("zzz = 1", "there are acl"),
        ("flush = 'often'", "none of sync, async"),
        ("acl = 'yes'", "true or false"),
        ("broker-port = 'x'", "no number"),
        ("broker-port = true", "text or a number"),
        ("data = ['a']", "text or a number"),
        ("data = ", "no TOML"),
        ("[section]\nx = 1", "section is no setting"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        read(tmp_path / "ogive.toml", text)


def test_a_file_that_is_not_there_ends_the_command_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--config", str(tmp_path / "absent.toml")]) == 1
    assert "absent.toml cannot be read: No such file" in capsys.readouterr().err


BROKER_CONF = """
# Apache's own
brokerClusterName = C
brokerName=b : with = signs
flushDiskType=ASYNC_FLUSH
transactionTimeOut=9000
autoCreateTopicEnable=false
deleteWhen=04;16
authenticationEnabled=true
authorizationEnabled = true
initAuthenticationUser={"username":"root","password":"secret-0815"}
brokerRole=ASYNC_MASTER
namesrvAddr=10.0.0.1:9876
"""


def test_the_keys_of_broker_conf_that_we_have_are_taken_and_the_others_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    values = read(tmp_path / "broker.conf", BROKER_CONF)
    user = values.pop("first_user")
    assert (user.access_key, user.secret_key) == ("root", "secret-0815")
    assert values == {
        "cluster": "C",
        "broker_name": "b : with = signs",
        "flush": "async",
        "transaction_timeout": 9.0,
        "no_auto_create_topics": True,
        "delete_at": "04,16",
        "acl": True,
        "name_servers": "10.0.0.1:9876",
    }
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["not used here: brokerRole"]


def test_a_misspelt_key_of_broker_conf_comes_with_the_one_that_is_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert read(tmp_path / "broker.conf", "deleteWhn=04\nbrokerId=0\nbrokerIP2=10.0.0.1\n") == {}
    (record,) = caplog.records
    assert record.getMessage().endswith("not used here: brokerIP2, brokerId, deleteWhn (did you mean deleteWhen?)")


def test_every_key_leads_to_an_option() -> None:
    options = vars(up())
    assert {dest for dest, _ in config_file._KEYS.values()} <= options.keys()


@pytest.mark.parametrize(
    "line",
    [
        "flushDiskType=SOMETIMES",
        "transactionTimeOut=soon",
        "autoCreateTopicEnable=1",
        'initAuthenticationUser={"username":"u","password":7}',
        'initAuthenticationUser={"password":"secret-0815"',
        "authenticationEnabled=true",
        "authorizationEnabled=true",
    ],
)
def test_a_mistake_in_broker_conf_is_named_without_its_secrets(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidOption, match=r"broker\.conf: ") as refused:
        read(tmp_path / "broker.conf", line)
    assert "secret" not in str(refused.value)
