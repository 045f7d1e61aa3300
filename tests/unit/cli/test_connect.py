"""Named clusters: where commands go to."""

import argparse
import errno
import json
import os
import stat
from pathlib import Path

import pytest

from ogive.cli import connect
from ogive.cli.connect import client_config, place
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.errors import InvalidOption


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty configuration directory, and no word from the environment."""
    for name in (
        "NAMESRV_ADDR",
        "OGIVE_CREDENTIALS",
        "OGIVE_CAFILE",
        "OGIVE_CERTFILE",
        "OGIVE_KEYFILE",
        "OGIVE_CONTEXT",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["topic", "list", *words])


def name_servers(*words: str) -> object:
    return client_config(options(*words)).name_server


def test_an_address_is_looked_for_in_options_environment_context_and_then_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert name_servers() == "127.0.0.1:9876"
    assert main(["context", "add", "prod", "-n", "prod:9876"]) == 0
    assert main(["context", "add", "test", "-n", "test:9876"]) == 0
    # the first one is in use
    assert name_servers() == "prod:9876"
    assert main(["context", "use", "test"]) == 0
    assert name_servers() == "test:9876"
    monkeypatch.setenv("OGIVE_CONTEXT", "prod")
    assert name_servers() == "prod:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "env:9876")
    assert name_servers() == "env:9876"
    assert name_servers("-n", "given:9876") == "given:9876"


def test_a_file_that_is_not_there_yet_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, missing = folder / "ca.pem", folder / "mine.pem"
    there.write_text("")
    assert (
        main(
            [
                "context",
                "add",
                "prod",
                "-n",
                "prod:9876",
                "--cafile",
                str(there),
                "--certfile",
                str(missing),
            ]
        )
        == 0
    )
    said = capsys.readouterr().err
    assert f"no file {missing} yet" in said
    assert str(there) not in said
    assert connect.load().contexts["prod"].certfile == str(missing)


def test_a_context_s_secrets_go_to_no_other_cluster(folder: Path) -> None:
    secrets = folder / "tools.yml"
    secrets.write_text("accessKey: me\nsecretKey: secret\n")
    assert main(["context", "add", "prod", "-n", "prod:9876", "--credentials", str(secrets)]) == 0
    mine = client_config(options()).credentials
    assert mine is not None
    assert mine.access_key == "me"
    assert client_config(options("-n", "other:9876")).credentials is None
    stored = connect.file().read_text()
    assert "secret\n" not in stored
    assert str(secrets) in stored
    assert not stat.S_IMODE(connect.file().stat().st_mode) & 0o077


def test_contexts_are_synced_and_a_full_disk_leaves_the_old_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_disk(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert main(["context", "add", "prod", "-n", "prod:9876"]) == 0
    before = connect.file().read_bytes()
    monkeypatch.setattr(os, "fsync", full_disk)
    assert main(["context", "add", "test", "-n", "test:9876"]) == 1
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    assert connect.file().read_bytes() == before
    assert [path.name for path in connect.file().parent.iterdir()] == ["contexts.json"]


def test_a_certificate_and_its_key_are_of_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*words: str) -> tuple[str | None, str | None]:
        found = place(options(*words))
        return found.certfile, found.keyfile

    assert shown() == (None, None)
    assert (
        main(
            [
                "context",
                "add",
                "prod",
                "-n",
                "prod:9876",
                "--certfile",
                "/prod.pem",
                "--keyfile",
                "/prod.key",
            ]
        )
        == 0
    )
    assert shown() == ("/prod.pem", "/prod.key")
    assert shown("-n", "other:9876") == (None, None)
    monkeypatch.setenv("OGIVE_KEYFILE", "/env.key")
    assert shown() == ("/prod.pem", "/prod.key")
    monkeypatch.setenv("OGIVE_CERTFILE", "/env.pem")
    assert shown() == ("/env.pem", "/env.key")
    assert shown("--certfile", "/mine.pem") == ("/mine.pem", None)
    with pytest.raises(InvalidOption, match=r"/mine\.key"):
        client_config(options("--keyfile", "/mine.key"))


def test_the_file_of_an_earlier_release_is_read(folder: Path) -> None:
    """As commit 4d913277 writes it."""
    stored = {
        "name_server": "prod:9876",
        "credentials": "/prod.yml",
        "cafile": "/ca.pem",
        "certfile": None,
        "keyfile": None,
    }
    (folder / "ogive").mkdir()
    file = folder / "ogive" / "contexts.json"
    file.write_text(json.dumps({"contexts": {"prod": stored}, "current": "prod"}, indent=2))
    found = place(options())
    assert (found.name_server, found.credentials, found.cafile) == (
        "prod:9876",
        "/prod.yml",
        "/ca.pem",
    )


def test_an_error_names_the_context_that_it_comes_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = folder / "prod.yml"
    assert main(["context", "add", "prod", "-n", "127.0.0.1:1", "--credentials", str(missing)]) == 0
    capsys.readouterr()
    assert main(["topic", "list"]) == 1
    assert capsys.readouterr().err == (
        f"ogive: credentials file {missing} cannot be read: No such file or directory (of "
        "context prod)\n"
    )
    assert main(["topic", "list", "--credentials", str(folder / "mine.yml")]) == 1
    assert "of context" not in capsys.readouterr().err
    missing.write_text("accessKey: me\nsecretKey: secret\n")
    missing.chmod(0o600)
    assert main(["topic", "list"]) == 1
    assert "-n HOST:PORT (this address is from context prod)" in capsys.readouterr().err
    assert main(["topic", "list", "-n", "127.0.0.1:1"]) == 1
    assert "context" not in capsys.readouterr().err
    monkeypatch.setenv("OGIVE_CONTEXT", "nope")
    assert main(["topic", "list"]) == 1
    assert capsys.readouterr().err.startswith(
        "ogive: there is no context 'nope' (from OGIVE_CONTEXT); known: prod. "
    )


def test_contexts_are_listed_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "list"]) == 0
    assert "no contexts" in capsys.readouterr().out
    for name in ("b", "a"):
        assert main(["context", "add", name, "-n", f"{name}:9876"]) == 0
    capsys.readouterr()
    assert main(["context", "list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["context"], row["current"], row["name_server"]) for row in rows] == [
        ("a", False, "a:9876"),
        ("b", True, "b:9876"),
    ]
    assert main(["context", "remove", "b"]) == 0
    assert name_servers() == "127.0.0.1:9876"


@pytest.mark.parametrize(
    "words", [["use", "none"], ["remove", "none"], ["add", "two words", "-n", "x:1"]]
)
def test_a_name_that_is_none_is_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", *words]) == 1
    assert "context" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"contexts":{"a":{"no":1}}}', '{"contexts":{"a":7}}', "{}"]
)
def test_a_file_that_is_no_such_file_is_named(text: str) -> None:
    connect.file().parent.mkdir()
    connect.file().write_text(text)
    with pytest.raises(InvalidOption, match=r"contexts\.json cannot be used"):
        name_servers()


def test_an_address_that_is_none_is_said_at_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "add", "prod", "-n", "foo:bar"]) == 1
    assert "name server 'foo:bar' is not of the form host:port" in capsys.readouterr().err
    assert main(["context", "add", "prod", "-n", "http://names.example/rocketmq/nsaddr"]) == 0
    assert main(["topic", "list", "-n", ""]) == 1
    assert "-n is empty" in capsys.readouterr().err
