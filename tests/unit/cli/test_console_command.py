"""``ogive console`` and the console's options of ``ogive up``."""

import argparse
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ogive.cli.console_command import config_beside_broker, configs_for_clusters
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.console.config import ConsoleConfig
from ogive.errors import InvalidOption
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

ROOT = Credentials(access_key="root", secret_key="secret")


def options(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(words)


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "root.yml"
    path.write_text("accessKey: root\nsecretKey: secret\n")
    return str(path)


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("NAMESRV_ADDR", "OGIVE_CREDENTIALS", "OGIVE_CAFILE", "OGIVE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def config_for_cluster(options: argparse.Namespace) -> ConsoleConfig:
    (config,) = configs_for_clusters(options)
    return config


def test_a_console_goes_to_the_cluster_that_commands_go_to(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config_for_cluster(options("console"))
    assert (plain.client.name_server, plain.host, plain.port, plain.credentials) == (
        "127.0.0.1:9876",
        "127.0.0.1",
        8090,
        None,
    )
    assert (
        main(
            [
                "context",
                "add",
                "prod",
                "--name-server",
                "10.0.0.1:9876",
                "--credentials",
                root,
                "--use",
            ]
        )
        == 0
    )
    prod = config_for_cluster(options("console", "--port", "0"))
    assert (prod.client.name_server, prod.client.credentials) == ("10.0.0.1:9876", ROOT)
    # who may ask the cluster may look
    assert prod.credentials == ROOT
    assert config_for_cluster(options("console", "-n", "10.0.0.2:9876")).credentials is None


def test_a_console_shows_the_clusters_of_several_contexts(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ["context", "add", "--name-server"]
    assert main([*add, "10.0.0.1:9876", "eu", "--credentials", root]) == 0
    assert main([*add, "10.0.0.2:9876", "us"]) == 0
    assert main([*add, "10.0.0.3:9876", "bad", "--credentials", str(tmp_path / "none.yml")]) == 0
    # a context that is asked for wins over what is set for all commands
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.9:9876")
    eu, us = configs_for_clusters(options("console", "--context", "eu", "--context", "us"))
    assert [(one.context, one.client.name_server) for one in (eu, us)] == [
        ("eu", "10.0.0.1:9876"),
        ("us", "10.0.0.2:9876"),
    ]
    assert (eu.client.credentials, eu.credentials) == (ROOT, ROOT)
    assert (us.client.credentials, us.credentials) == (None, None)
    for words, text in (
        (("--context", "eu", "--context", "eu"), "a context of its own"),
        (("--context", "asia"), "there is no context 'asia'"),
        (("--context", "bad"), r"none\.yml.*\(of context bad\)"),
        (("--context", "eu", "-n", "10.0.0.4:9876"), "--name-server is for one cluster"),
        (("--context", "eu", "--cafile", "x"), "--cafile is for one cluster"),
    ):
        with pytest.raises(InvalidOption, match=text):
            configs_for_clusters(options("console", *words))


def test_browsers_can_be_asked_for_something_else(root: str, tmp_path: Path) -> None:
    (tmp_path / "viewers.yml").write_text("accessKey: viewer\nsecretKey: other\n")
    found = config_for_cluster(
        options(
            "console", "--credentials", root, "--console-credentials", str(tmp_path / "viewers.yml")
        )
    )
    assert found.client.credentials == ROOT
    assert found.credentials == Credentials(access_key="viewer", secret_key="other")


def test_beside_a_broker_its_own_credentials_are_asked_for_where_it_asks(root: str) -> None:
    internal = Credentials(access_key="*internal", secret_key="x")
    beside = config_beside_broker(
        options("up", "--acl", "--credentials", root, "--console-port", "8090"), internal, None
    )
    assert (beside.client.credentials, beside.credentials) == (internal, ROOT)
    with pytest.raises(InvalidOption, match="--console-credentials FILE"):
        config_beside_broker(options("up", "--acl", "--console-port", "8090"), internal, None)
    assert (
        config_beside_broker(options("up", "--console-port", "8090"), None, None).credentials
        is None
    )


def test_a_broker_that_wants_certificates_cannot_have_a_console_beside_it(tmp_path: Path) -> None:
    tls = TlsConfig(
        cert=tmp_path / "c", key=tmp_path / "k", client_ca=tmp_path / "ca", client_auth="required"
    )
    with pytest.raises(InvalidOption, match="--tls-client-auth optional"):
        config_beside_broker(options("up", "--console-port", "0"), None, tls)


def up_at(root: Path) -> list[str]:
    """At free ports: one that is taken would be told of first."""
    return ["--data", str(root / "data"), "--name-server-port", "0", "--broker-port", "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["console", "--port", "70000"], "--port 70000: must be between 0 and 65535"),
        (["console", "--tls-cert", "x"], "HTTPS needs both --tls-cert and --tls-key"),
        (
            ["console", "--console-host", "0.0.0.0"],
            "browsers must enter (--console-host IP, --console-credentials FILE)",
        ),
        (["up", "--console-port", "70000"], "--console-port 70000: must be between 0 and 65535"),
        (
            ["up", "--console-port", "0", "--console-host", "0.0.0.0"],
            "browsers must enter (--console-host IP, --console-credentials FILE)",
        ),
    ],
)
def test_what_cannot_work_is_said(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *(up_at(tmp_path) if words[0] == "up" else [])]) == 1
    assert said in capsys.readouterr().err


def test_without_the_extra_the_way_out_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for words in (["console"], ["up", "--console-port", "0", *up_at(tmp_path)]):
        assert main(words) == 1
        assert "pip install 'ogive[console]'" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_setting_of_the_file_has_the_same_name(tmp_path: Path) -> None:
    from ogive.cli import config_file

    (tmp_path / "ogive.toml").write_text('console-port = 8090\nconsole-name = "console.example"\n')
    found = config_file.read(str(tmp_path / "ogive.toml"), options("up").command_parser)
    assert found == {"console_port": 8090, "console_name": "console.example"}


@pytest.mark.parametrize(
    "statement",
    ["import ogive", "import ogive.cli.up, ogive.cli.parser; ogive.cli.parser.build_parser()"],
)
def test_who_does_not_ask_for_a_console_loads_nothing_of_it(statement: str) -> None:
    loaded = "{'starlette', 'uvicorn', 'jinja2', 'ogive.console'} & set(sys.modules)"
    command = [sys.executable, "-c", f"{statement}; import sys; print({loaded})"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_without_any_extra_no_command_ends_with_a_traceback(tmp_path: Path) -> None:
    """In a process of its own: here the extras are loaded."""
    program = """
        import importlib, pkgutil, sys
        import ogive.cli
        from ogive.cli.main import main
        from ogive.errors import InvalidOption
        for name in ("starlette", "uvicorn", "jinja2", "google", "cryptography", "pyspark",
                     "pyarrow", "opentelemetry", "uvloop", "isal", "orjson", "lz4", "zstandard"):
            sys.modules[name] = None
        for one in pkgutil.iter_modules(ogive.cli.__path__, "ogive.cli."):
            try:
                importlib.import_module(one.name)
            except InvalidOption as exc:
                assert "pip install 'ogive[" in str(exc), exc
        print(main(["console"]))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert "pip install 'ogive[console]'" in done.stderr
