"""The command line without a broker: help, wrong usage, output."""

import argparse
import contextlib
import errno
import importlib.util
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import pytest
import trustme

from ogive.access.user_table import AccessTable
from ogive.aio import Admin
from ogive.cli.admin_options import MESSAGE_TYPES, PERMISSIONS
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_INTERRUPTED, EXIT_TRY_LATER, EXIT_USAGE
from ogive.cli.group_commands import refuse_unknown
from ogive.cli.main import main
from ogive.cli.message_commands import _property
from ogive.cli.output import confirm, print_json, print_message, print_message_whole, print_table
from ogive.cli.parser import build_parser, parse
from ogive.cli.up import (
    OPEN_FILES,
    _reload,
    broker_config,
    make_first_user,
    raise_open_files,
)
from ogive.cli.up_checks import (
    check_host,
    check_place,
    warn_of_addresses,
    warn_of_certificate,
    warn_of_users,
)
from ogive.cli.up_grpc import GrpcPort
from ogive.client.admin.records import Permission
from ogive.errors import GroupNotExist, InvalidOption, NoPermission
from ogive.model import MessageType
from ogive.store.fs import OsFs
from ogive.testing import message
from ogive.transport.tls import TlsConfig


def whole_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    groups = [
        action for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    ]
    if not groups:
        yield parser
    for group in groups:
        for command in group.choices.values():
            yield from whole_commands(command)


def test_every_command_names_a_function_that_carries_it_out() -> None:
    gone = []
    for command in whole_commands(build_parser()):
        module, function = command.get_default("module"), command.get_default("function")
        if not importlib.util.find_spec(module) or not hasattr(
            importlib.import_module(module), function
        ):
            gone.append(f"{command.prog}: there is no {function} in {module}")
    assert gone == []


@pytest.mark.parametrize(
    "words", [[], ["topic"], ["group"], ["check"], ["dead-letter"], ["pipeline"]]
)
def test_a_command_that_is_not_whole_shows_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == EXIT_USAGE
    assert "usage: ogive" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command",
    [
        "up",
        "console",
        "topic list",
        "topic create",
        "topic show",
        "topic update",
        "topic delete",
        "group list",
        "group show",
        "group create",
        "group update",
        "group reset",
        "group delete",
        "lag",
        "check lag",
        "run",
        "send",
        "tail",
        "message",
        "dead-letter list",
        "dead-letter redrive",
        "pipeline archive",
        "pipeline replay",
        "pipeline redrive",
        "pipeline mirror",
        "pipeline trace-report",
        "pipeline reconcile",
        "errors",
    ],
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: ogive {command}" in text
    assert "options:" in text


def test_the_demo_that_moved_is_refused_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "--events", "1000"])
    assert stopped.value.code == EXIT_USAGE
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "python -m examples.demo, in a clone of the repository" in said.err


def up(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *words])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    check_host(up("--host", host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_any_other_address_is_refused_unless_asked_for_in_so_many_words(host: str) -> None:
    with pytest.raises(InvalidOption, match="--insecure-listen"):
        check_host(up("--host", host))
    check_host(up("--host", host, "--insecure-listen", "--advertised-host", "192.168.1.5"))


TLS = ("--tls-cert", "server.pem", "--tls-key", "server.key")


@pytest.mark.parametrize(
    ("words", "ways_out"),
    [
        ((), ("--acl", "--insecure-listen")),
        (TLS, ("--acl", "--insecure-listen")),
        (("--acl",), ("--tls-cert and --tls-key", "--insecure-listen")),
        (
            ("--acl", *TLS, "--tls-mode", "permissive"),
            ("--tls-mode enforcing", "--insecure-listen"),
        ),
        (("--no-broker",), ("--tls-client-ca", "--insecure-listen")),
        (("--no-broker", *TLS), ("--tls-client-ca", "--insecure-listen")),
        (
            ("--no-broker", *TLS, "--tls-client-ca", "ca.pem", "--tls-client-auth", "optional"),
            ("--insecure-listen",),
        ),
    ],
)
def test_an_open_address_needs_credentials_and_tls_or_the_word(
    words: tuple[str, ...], ways_out: tuple[str, ...]
) -> None:
    """Signatures hold no time: who can read a connection can repeat what was sent on it."""
    with pytest.raises(InvalidOption, match=r"^--host 192\.168\.1\.5 is not loopback") as refused:
        check_host(up("--host", "192.168.1.5", *words))
    assert all(way in str(refused.value) for way in ways_out)
    check_host(up("--host", "192.168.1.5", *words, "--insecure-listen"))
    check_host(up("--host", "127.0.0.1", *words))


@pytest.mark.parametrize(
    "words", [("--acl", *TLS), ("--no-broker", *TLS, "--tls-client-ca", "ca.pem")]
)
def test_an_open_address_that_is_guarded_needs_no_further_word(words: tuple[str, ...]) -> None:
    check_host(up("--host", "192.168.1.5", *words))


def test_access_control_on_an_open_address_without_tls_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "store"
    assert (
        main(
            [
                "up",
                "--data",
                str(data),
                "--host",
                "0.0.0.0",
                "--advertised-host",
                "192.0.2.1",
                "--acl",
            ]
        )
        == 1
    )
    assert "without TLS can repeat its signed requests" in capsys.readouterr().err
    assert not data.exists()


def test_a_host_name_is_refused_with_a_reason() -> None:
    with pytest.raises(InvalidOption, match="an IP address or localhost is expected"):
        check_host(up("--host", "broker.example", "--insecure-listen"))


def test_every_address_is_refused_without_the_one_that_clients_use() -> None:
    with pytest.raises(InvalidOption, match="--advertised-host"):
        check_host(up("--host", "0.0.0.0", "--insecure-listen"))
    check_host(up("--host", "0.0.0.0", "--insecure-listen", "--advertised-host", "192.0.2.1"))


def test_a_command_is_read_as_if_there_were_no_other() -> None:
    arguments = ["topic", "create", "Orders", "--queues", "3"]
    one, every = build_parser(arguments), build_parser()
    assert "dead-letter" not in one.format_help()
    assert "dead-letter" in every.format_help()
    names = ["topic", "queues", "module", "function"]
    assert {name: vars(one.parse_args(arguments))[name] for name in names} == {
        name: vars(every.parse_args(arguments))[name] for name in names
    }


def test_what_a_topic_can_be_is_what_the_admin_takes() -> None:
    """The help must not load it: the lists stand twice."""
    assert (get_args(Permission), get_args(MessageType)) == (PERMISSIONS, MESSAGE_TYPES)


def test_options_reach_the_broker() -> None:
    options = build_parser().parse_args(
        [
            "up",
            "--data",
            "d",
            "--flush",
            "async",
            "--delay-levels",
            "1s 2s",
            "--broker-name",
            "b",
            "--transaction-check-max",
            "3",
            "--no-auto-create-topics",
            "--advertised-host",
            "192.0.2.1",
            "--busy-poll",
            "50",
        ]
    )
    config = broker_config(options, ("127.0.0.1:1",))
    assert (str(config.data), config.flush, config.name, config.auto_create_topics) == (
        "d",
        "async",
        "b",
        False,
    )
    assert config.levels.delays_ms == (1000, 2000)
    assert (config.advertised_host, config.transaction_check_max) == ("192.0.2.1", 3)
    assert (config.name_servers, config.busy_poll_s) == (("127.0.0.1:1",), 50e-6)


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, 4096), (4096, 4096)),
        ((1024, resource.RLIM_INFINITY), (OPEN_FILES, resource.RLIM_INFINITY)),
        ((1024, 1 << 20), (OPEN_FILES, 1 << 20)),
        ((4096, 4096), None),
        ((1 << 20, 1 << 20), None),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None),
    ],
)
def test_a_broker_opens_as_many_files_as_its_user_may(
    limits: tuple[int, int], raised: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: asked.append(wanted))
    raise_open_files()
    assert asked == ([] if raised is None else [raised])


def test_bad_delay_levels_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--name-server-port", "0", "--delay-levels", "soon"]) == 1
    assert "delay levels 'soon'" in capsys.readouterr().err


def up_with(data: Path | str, capsys: pytest.CaptureFixture[str]) -> str:
    """What `ogive up` says about a directory that it cannot use."""
    assert main(["up", "--name-server-port", "0", "--broker-port", "0", "--data", str(data)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "Errno" not in said.err
    return said.err


def test_a_data_directory_that_cannot_be_one_is_a_sentence_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    way_out = "; fix that, or choose another directory with --data\n"
    assert up_with(file, capsys) == (
        f"ogive: the store cannot be kept in {file}: {file} is a file where a directory is "
        f"needed{way_out}"
    )
    inside = file / "inside"
    assert up_with(inside, capsys) == (
        f"ogive: the store cannot be kept in {inside}: a part of the path {inside} is a "
        f"file{way_out}"
    )
    assert up_with("", capsys) == "ogive: --data is empty: the directory for messages is expected\n"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_place_where_nothing_can_be_made_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert up_with("/proc/x", capsys).startswith(
        "ogive: the store cannot be kept in /proc/x: it is not there and cannot be made; "
    )


@pytest.mark.parametrize("inner", ["commitlog", "config"])
def test_a_file_where_the_store_has_a_directory_is_named(
    inner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / inner).touch()
    assert f"{tmp_path / inner} is a file where a directory is needed; fix that" in up_with(
        tmp_path, capsys
    )


@pytest.mark.parametrize("name", ["topics.json", "kvConfig.json"])
def test_a_directory_where_there_should_be_a_table_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config" / name).mkdir(parents=True)
    assert (
        f"{tmp_path / 'config' / name} is a directory where a file is needed; fix that"
        in up_with(tmp_path, capsys)
    )


def test_properties_are_name_and_value() -> None:
    assert _property("a=b=c") == ("a", "b=c")
    for wrong in ("a", "=b", "a="):
        with pytest.raises(InvalidOption):
            _property(wrong)


def test_one_body_or_many_lines_but_not_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["send", "Orders", "--body", "x", "--lines"])
    assert "--lines: not allowed with argument --body" in capsys.readouterr().err


def test_a_standard_input_that_is_closed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As from a daemon, or with <&- in a shell."""
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["send", "Orders", "-n", "127.0.0.1:1"]) == 1
    assert (
        capsys.readouterr().err == "ogive: standard input is closed: say with --body what to send\n"
    )


def test_a_malformed_tag_expression_is_refused_before_anybody_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tail", "Orders", "--tag", "|| paid", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.startswith(
        "ogive: tags '|| paid': expected a tag, several separated by ||"
    )


def test_no_name_server_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "-n", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("ogive: ")
    assert "127.0.0.1:1" in error
    assert "refused" in error
    assert error.count("\n") == 1


def test_a_port_of_something_else_is_one_line() -> None:
    def answer(listening: socket.socket) -> None:
        # the end of the test
        with contextlib.suppress(OSError):
            while True:
                with listening.accept()[0] as client:
                    client.recv(1024)
                    client.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        words = [
            sys.executable,
            "-m",
            "ogive",
            "topic",
            "list",
            "-n",
            f"127.0.0.1:{listening.getsockname()[1]}",
        ]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("ogive: no name server answered at ")
    assert "is that the right port? Start one with `ogive up`" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_table_lines_up_and_separates_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("queue", "lag"), [("a/b/0", 1234567), ("a/b/10", 5)])
    assert capsys.readouterr().out.splitlines() == [
        "QUEUE         LAG",
        "a/b/0   1,234,567",
        "a/b/10          5",
    ]
    print_table(("broker", "in/s", "today"), [("a", 1234.56, None), ("b", 0.0, 12)])
    assert capsys.readouterr().out.splitlines() == [
        "BROKER     IN/S  TODAY",
        "a       1,234.6",
        "b           0.0     12",
    ]
    print_table(("queue", "lag"), [])
    assert capsys.readouterr().out == "QUEUE  LAG\n"


# clears the screen, changes colours, turns the text around
EVIL = "\x1b[2J\x9b1m\u202e"


@pytest.mark.parametrize("on_a_terminal", [True, False])
def test_a_message_does_not_command_the_terminal(
    on_a_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body of one goes to a pipe as it is."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_a_terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    sent = message(
        "Orders",
        f"one\ntwo{EVIL}".encode(),
        tag=f"t\n{EVIL}",
        keys=(f"k{EVIL}",),
        properties={f"p{EVIL}": f"v\n{EVIL}"},
    )
    print_message(sent, as_json=False, dead_letter=True)
    print_message_whole(sent)
    print_table(("client",), [(f"c\n{EVIL}",)])
    shown = capsys.readouterr().out
    # properties show tag and keys, too
    assert shown.count("\\x1b[2J\\x9b1m\\u202e") == (11 if on_a_terminal else 9)
    assert shown.count("\x1b") == (0 if on_a_terminal else 2)
    assert "two" in shown.splitlines()[1]


def test_json_holds_no_control_characters_and_the_same_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_message(message("Orders", EVIL.encode(), tag=f"é{EVIL}"), as_json=True)
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert "é" in shown
    assert (json.loads(shown)["body"], json.loads(shown)["tag"]) == (EVIL, f"é{EVIL}")


def test_ctrl_c_ends_the_line_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ogive.cli.broker_commands.explain_errors", interrupted)
    assert (main(["errors"]), capsys.readouterr().err) == (EXIT_INTERRUPTED, "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert (main(["errors"]), capsys.readouterr().err) == (EXIT_INTERRUPTED, "\n")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("words", "redirection", "code", "said"),
    [
        ("errors 17", ">&-", 0, ""),
        ("errors 17", ">&- 2>&-", 0, ""),
        ("topic list -n 127.0.0.1:no", ">&-", 1, "ogive: name server"),
        (
            "errors",
            "> /dev/full",
            1,
            "ogive: the output cannot be written: No space left on device\n",
        ),
        (
            "errors --json",
            "> /dev/full",
            1,
            "ogive: the output cannot be written: No space left on device\n",
        ),
    ],
)
def test_an_output_that_is_closed_or_full_is_no_traceback(
    words: str, redirection: str, code: int, said: str, buffered: str
) -> None:
    command = f"{sys.executable} -m ogive {words} {redirection}"
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": buffered},
    )
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)


def test_ctrl_c_while_the_command_is_loaded_ends_it_as_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that takes long is imported by then: nothing of ours stands before main() but the package
    itself.
    """
    loaded = (
        "import sys, ogive.cli.main; print(*sorted(name for name in sys.modules if "
        "name.startswith('ogive')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["ogive", "ogive.cli", "ogive.cli.main", "ogive.version"]

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ogive.cli.command.build_parser", interrupted)
    assert main(["errors"]) == EXIT_INTERRUPTED


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"body": "a\nb é"})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"body": "a\nb é"}


@pytest.mark.feature(31)
def test_name_server_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2:9876")
    options: argparse.Namespace = build_parser().parse_args(["topic", "list"])
    assert client_config(options).name_server == "10.0.0.1:9876;10.0.0.2:9876"


@pytest.mark.parametrize(
    ("words", "command", "said"),
    [
        (["up", "--flsh", "sync"], "ogive up", "--flsh (did you mean --flush?) sync"),
        (["topic", "list", "--jsn=1"], "ogive topic list", "--jsn=1 (did you mean --json?)"),
        (["errors", "--xyz"], "ogive errors", "unrecognized arguments: --xyz. `"),
        (
            ["up", "--port", "9000"],
            "ogive up",
            "--port (did you mean --name-server-port or --broker-port",
        ),
        (["lag", "billing", "Orders"], "ogive lag", "Orders (did you mean --topic Orders?)"),
        (["lag", "billing", "--zzz", "7"], "ogive lag", "unrecognized arguments: --zzz 7. `"),
        (["send", "Orders", "hello"], "ogive send", "hello (did you mean --body hello?)"),
        (["tail", "Orders", "earliest"], "ogive tail", "earliest (did you mean --from earliest?)"),
        (
            ["topic", "list", "--port", "9876"],
            "ogive topic list",
            "--port (did you mean -n HOST:PORT?) 9876. `",
        ),
        (
            ["bench", "produce", "--seconds", "1"],
            "ogive bench produce",
            "unrecognized arguments: --seconds 1. `",
        ),
        (
            ["--context", "prod", "topic", "list"],
            "ogive",
            "no option --context: OGIVE_CONTEXT=NAME before the command, or `ogive context use`",
        ),
        (
            ["topic", "list", "--context", "prod"],
            "ogive topic list",
            "--context (did you mean OGIVE_CONTEXT=NAME before the command?)",
        ),
        (["-n", "h:1", "errors"], "ogive errors", "ogive: `ogive errors` takes no -n. `"),
        (["-nh:1", "up"], "ogive up", "ogive: `ogive up` takes no -n. `"),
        (
            ["-n", "h:1", "store", "verify", "store"],
            "ogive store verify",
            "ogive: `ogive store verify` takes no -n. `",
        ),
        (
            ["store", "verify", "d", "--json", "e"],
            "ogive store verify",
            "unrecognized arguments: e",
        ),
        (
            ["errors", "--cafile=ca", "17"],
            "ogive errors",
            "ogive: `ogive errors` takes no --cafile. `",
        ),
        (["lag", "billing", "-y"], "ogive lag", "ogive: `ogive lag` takes no -y. `"),
    ],
)
def test_a_misspelt_option_is_shown_with_the_nearest_one(
    words: list[str], command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == EXIT_USAGE
    text = capsys.readouterr().err
    assert text.startswith("ogive: ")
    assert said in text
    assert text.endswith(f"`{command} --help` shows what there is\n")
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["help"],
        ["help", "topic", "create"],
        ["topic", "help"],
        ["topic", "help", "create"],
        ["dead-letter", "help", "list"],
        ["help", "help"],
    ],
)
def test_help_is_a_command_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 0
    command = [word for word in words if word != "help"]
    assert capsys.readouterr().out.startswith(f"usage: {' '.join(['ogive', *command])} [-h]")


def test_help_for_a_command_that_does_not_exist_suggests_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["help", "tpoic"])
    assert stopped.value.code == EXIT_USAGE
    assert "did you mean topic?" in capsys.readouterr().err


# refused without a wait
NOBODY = "nobody:x"


def test_shared_options_may_stand_before_and_behind_the_first_word_of_every_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A first word without its second shows the commands that it has."""
    assert main([]) == EXIT_USAGE
    words = re.findall(r"^    ([a-z-]+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert {"up", "topic", "errors"} <= set(words)
    for word in words:
        with pytest.raises(SystemExit):
            main([word, "--help"])
        if "COMMAND ..." in capsys.readouterr().out:
            assert main(["--json", word, "-n", NOBODY]) == EXIT_USAGE
            assert capsys.readouterr().out.startswith(f"usage: ogive {word} [-h] COMMAND ...")


@pytest.mark.parametrize(
    "words",
    [
        ["-n", NOBODY, "topic", "list"],
        [f"-n{NOBODY}", "topic", "list"],
        ["topic", "-n", NOBODY, "list"],
        [f"--name-server={NOBODY}", "--json", "lag", "g"],
        ["--json", "topic", "--name-server", NOBODY, "show", "Orders"],
        ["-y", "-n", NOBODY, "topic", "delete", "Orders"],
        ["message", "-n", NOBODY, "--topic", "Orders", "--key", "k"],
    ],
)
def test_shared_options_may_stand_before_the_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert f"name server '{NOBODY}' is not of the form host:port" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["-n", NOBODY], ["-n", NOBODY, "topic"], ["topic", "-n", NOBODY], ["--json"]]
)
def test_shared_options_without_a_command_show_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == EXIT_USAGE
    assert capsys.readouterr().out.startswith("usage: ogive")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["up", "--keep-hours", "abc"],
            "--keep-hours abc: a number is expected. `ogive up --help`",
        ),
        (
            ["up", "--default-queues", "many"],
            "--default-queues many: a whole number is expected. `ogive up --help`",
        ),
        (
            ["up", "--max-message-size", "10MB"],
            "--max-message-size 10MB: a number of bytes is expected. `ogive up --help`",
        ),
        (["up", "--flush", "foo"], "--flush foo: sync or async is expected. `ogive up --help`"),
        (
            ["up", "--fluhs", "sync"],
            "unrecognized arguments: --fluhs (did you mean --flush?) sync. `ogive up --help`",
        ),
        (
            ["topic", "create"],
            "the following arguments are required: topic. `ogive topic create --help`",
        ),
    ],
)
def test_a_wrong_value_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == EXIT_USAGE
    assert capsys.readouterr().err == f"ogive: {said} shows what there is\n"


def test_words_behind_an_option_belong_to_the_argument_that_takes_several() -> None:
    def parsed(*words: str) -> argparse.Namespace:
        return parse(build_parser(words), words)

    assert parsed("run", "app:bill", "-n", "h:1", "app:ship").targets == ["app:bill", "app:ship"]
    assert parsed("dead-letter", "send", "billing", "--yes", "one", "--json", "two").ids == [
        "one",
        "two",
    ]
    assert (
        parsed("acl", "delete", "billing", "-n", "h:1", "Topic:Orders").resource == "Topic:Orders"
    )


def test_too_few_files_that_may_be_opened_are_one_sentence() -> None:
    program = (
        "import asyncio, resource, sys\n"
        "import ogive.cli.command, ogive.cli.topic_commands\n"
        "from ogive.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "sys.exit(main(['topic', 'list', '-n', '127.0.0.1:1']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == EXIT_TRY_LATER
    # behind it asyncio complains about its loop, which is only half made
    assert done.stderr.splitlines()[0] == (
        "ogive: too many files are open: this process may open 3 files; raise the limit (ulimit -n)"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["acl", "delete", "billing", "Topic:A", "-n", "h:1", "Topic:B"],
        ["run", "app:bill", "-v", "--zzz"],
    ],
)
def test_what_no_argument_takes_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert f"unrecognized arguments: {words[-1]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["snd", "Orders"], "there is no 'snd': did you mean send?"),
        (["topic", "lst"], "there is no 'lst': did you mean list?"),
        (["tail", "Orders", "--from", "latst"], "there is no 'latst': did you mean latest?"),
        (["create", "topic", "X"], "there is no 'create': did you mean topic create?"),
        (["verify", "store", "DIR"], "there is no 'verify': did you mean store verify?"),
        (["topic", "xyzzy"], "invalid choice: 'xyzzy'"),
        # `dead-letter send`, the old name of redrive, still works
        (["dead-letter", "snd"], "invalid choice: 'snd' (choose from 'list', 'redrive')."),
        (["completion", "bsh"], "there is no 'bsh': did you mean bash?"),
        (["completion", "tcsh"], "invalid choice: 'tcsh' (choose from 'bash', 'zsh', 'fish')."),
    ],
)
def test_a_misspelt_command_or_choice_is_answered_with_the_nearest_one(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--broker-port", "--name-server-port", "--metrics-port"])
def test_a_port_that_is_none_is_named_as_the_option(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--data", str(tmp_path / "store"), option, "70000"]) == 1
    assert f"{option} 70000: must be between 0 and 65535" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("--keep-hours", "-1", "must be more than 0"),
        ("--keep-hours", "nan", "must be more than 0"),
        ("--delete-at", "25", "hours from 0 to 23"),
        ("--delete-at", "noon", "hours from 0 to 23"),
        ("--delete-above", "0", "must be a percentage"),
        ("--delete-young-above", "101", "must be a percentage"),
        ("--transaction-timeout", "0", "must be more than 0"),
        ("--transaction-check-interval", "0", "must be more than 0"),
        ("--transaction-check-max", "0", "must be more than 0"),
        ("--max-open-transactions", "0", "must be more than 0"),
        ("--max-unanswered-checks", "0", "must be more than 0"),
        ("--max-timer-messages", "0", "must be more than 0"),
        ("--duplicate-window", "-3", "must be 0 seconds or more"),
        ("--default-queues", "0", "must be more than 0"),
        ("--max-timer-delay", "0", "must be more than 0"),
        ("--max-message-size", "0", "must be more than 0"),
        ("--max-message-size", "4194305", "must be at most 4194304 bytes"),
        ("--segment-size", "1000", "must be a multiple of 512"),
    ],
)
def test_a_number_that_cannot_be_is_named_as_the_option(
    option: str, value: str, needed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["up", "--data", str(tmp_path / "store"), "--name-server-port", "0", option, value])
        == 1
    )
    assert capsys.readouterr().err.startswith(f"ogive: {option} {value}: {needed}")


def test_a_first_user_without_access_control_is_no_silent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OGIVE_CREDENTIALS", raising=False)
    assert (
        main(
            [
                "up",
                "--data",
                str(tmp_path / "store"),
                "--credentials",
                "root.yml",
                "--delay-levels",
                "none",
            ]
        )
        == 1
    )
    assert "add --acl" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tls-mode", "enforcing"], "--tls-mode does nothing without --tls-cert and --tls-key"),
        (["--tls-mode", "permissive"], "--tls-mode does nothing without --tls-cert and --tls-key"),
        (
            ["--tls-cert", "c", "--tls-key", "k", "--tls-client-auth", "optional"],
            "--tls-client-auth does nothing without --tls-client-ca",
        ),
        (["--console-name", "host"], "--console-name does nothing without --console-port"),
        (["--console-host", "::1"], "--console-host does nothing without --console-port"),
        (["--metrics-host", "::1"], "--metrics-host does nothing without --metrics-port"),
        (
            ["--no-broker", "--flush", "async"],
            "--flush is about a broker, and --no-broker runs none",
        ),
        (
            ["--no-broker", "--max-open-transactions", "5"],
            "--max-open-transactions is about a broker, and --no-broker runs none",
        ),
        (
            ["--delete-above", "80", "--delete-young-above", "70"],
            "--delete-young-above 70 is below --delete-above 80",
        ),
        (["--default-queues", "100000"], "--default-queues 100000: must be at most 1024 queues"),
        (["--broker-name", "a b/c"], "--broker-name 'a b/c' may hold only letters"),
        (["--broker-name", ""], "--broker-name has 0 characters: must have 1 to 127"),
        (["--cluster", "é"], "--cluster 'é' may hold only letters"),
        (
            ["--advertised-host", "a b"],
            "--advertised-host (brokerIP1) a b: a host name, or an IP address without a zone, is "
            "expected",
        ),
        (
            ["--advertised-host", "1.2.3"],
            "--advertised-host (brokerIP1) 1.2.3: a host name, or an IP address without a zone",
        ),
        (
            ["--advertised-host", "http://broker"],
            "--advertised-host (brokerIP1) http://broker: a host name",
        ),
        (
            ["--advertised-host", "broker:10911"],
            "--advertised-host (brokerIP1) broker:10911: a host name",
        ),
        (
            ["--advertised-host", "fe80::1%lo"],
            "--advertised-host (brokerIP1) fe80::1%lo: a host name, or an IP address without a "
            "zone",
        ),
        (["--insecure-metrics"], "--insecure-metrics does nothing without --metrics-port"),
        (
            ["--metrics-host", "0.0.0.0", "--metrics-port", "0"],
            "--metrics-host 0.0.0.0 is not loopback",
        ),
        (
            ["--advertised-host", "0.0.0.0"],
            "--advertised-host (brokerIP1) 0.0.0.0: the address of this machine to which clients "
            "connect",
        ),
        (
            ["--advertised-host", "ff02::1"],
            "--advertised-host (brokerIP1) ff02::1: the address of this machine to which clients "
            "connect",
        ),
        (["--keep-hours", "inf"], "--keep-hours inf: must be at most 1,000,000"),
        (["--keep-hours", "1e306"], "--keep-hours 1e+306: must be at most 1,000,000"),
        (["--duplicate-window", "inf"], "--duplicate-window inf: must be at most 1,000,000,000"),
        (["--max-timer-delay", "inf"], "--max-timer-delay inf: must be at most"),
        (["--transaction-timeout", "inf"], "--transaction-timeout inf: must be at most"),
        (
            ["--transaction-check-interval", "inf"],
            "--transaction-check-interval inf: must be at most",
        ),
        (
            ["--region", "x\x01y"],
            "--region 'x\\x01y': text in UTF-8 without control characters is expected",
        ),
        (["--region", "\udcff"], "--region '\\udcff': text in UTF-8"),
        (
            ["--data", "d\udcff"],
            "--data 'd\\udcff': a name in UTF-8 without control characters is expected",
        ),
        (
            ["--data", "d\nx"],
            "--data 'd\\nx': a name in UTF-8 without control characters is expected",
        ),
        (["--delay-levels", "x"], "--delay-levels (messageDelayLevel): delay levels 'x'"),
        (["--delete-at", "25"], "--delete-at 25: hours from 0 to 23"),
    ],
)
def test_what_cannot_be_or_would_do_nothing_is_refused_before_anything_is_made(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "up",
                "--data",
                str(tmp_path / "store"),
                "--name-server-port",
                "0",
                "--broker-port",
                "0",
                *words,
            ]
        )
        == 1
    )
    assert capsys.readouterr().err.startswith(f"ogive: {said}")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("switch", ["--insecure-metrics", "--insecure-listen"])
def test_figures_are_shown_to_others_by_a_switch_of_their_own(
    switch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The start goes on, to an address that this machine does not have."""
    words = [
        "up",
        "--data",
        str(tmp_path / "store"),
        "--name-server-port",
        "0",
        "--broker-port",
        "0",
        "--metrics-port",
        "0",
    ]
    assert main([*words, "--metrics-host", "192.0.2.1", switch]) == EXIT_TRY_LATER
    assert "--metrics-host chooses another" in capsys.readouterr().err


def test_a_store_is_not_made_inside_another_one(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    check_place(up("--data", str(tmp_path / "commitlog" / "x")))
    (tmp_path / "checkpoint").touch()
    check_place(up("--data", str(tmp_path)))
    with pytest.raises(InvalidOption, match=f"lies inside a store, that in {tmp_path}: "):
        check_place(up("--data", str(tmp_path / "commitlog")))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), False),
        (("--advertised-host", "192.0.2.2"), True),
        (("--advertised-host", "192.0.2.2", "--host", "192.0.2.1"), False),
        (("--advertised-host", "192.0.2.2", "--host", "0.0.0.0"), False),
        (("--advertised-host", "127.0.0.2"), False),
    ],
)
def test_an_address_for_clients_at_which_nothing_listens_is_told(
    words: tuple[str, ...], told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """brokerIP1 without bindAddress, say: Apache's broker then listens on all addresses."""
    warn_of_addresses(up(*words))
    said = (
        "the broker listens on 127.0.0.1 only, but clients are given the address 192.0.2.2: set "
        "--host (bindAddress in broker.conf)"
    )
    assert [message.startswith(said) for message in caplog.messages] == [True] * told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), ""),
        (("--advertised-host", "192.0.2.2"), "192.0.2.2"),
        (("--host", "192.0.2.1"), "192.0.2.1"),
        (("--host", "0.0.0.0", "--advertised-host", "127.0.0.1"), ""),
        (("--advertised-host", "broker.example"), ""),
    ],
)
def test_a_certificate_that_does_not_name_what_clients_are_told_is_told(
    words: tuple[str, ...], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1", "broker.example")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    warn_of_certificate(
        up(*words), TlsConfig(cert=tmp_path / "server.pem", key=tmp_path / "server.pem")
    )
    said = (
        f"clients are given the address {told}, and those that verify it refuse the certificate in "
        f"{tmp_path}/server.pem: IP address mismatch"
    )
    assert [message.startswith(said) for message in caplog.messages] == [True] * bool(told)


def test_users_that_nobody_asks_for_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = up("--data", str(tmp_path))
    warn_of_users(options)
    assert caplog.messages == []
    AccessTable(tmp_path / "config" / "access")
    warn_of_users(options)
    assert caplog.messages == []
    (tmp_path / "config" / "access" / "access.json").write_text("{}")
    warn_of_users(up("--data", str(tmp_path), "--acl"))
    assert caplog.messages == []
    warn_of_users(options)
    assert "without --acl every client may do everything" in caplog.messages[0]


async def test_another_password_for_the_first_user_is_told_and_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, access = tmp_path / "root.yml", AccessTable()
    options = up("--acl", "--credentials", str(file))
    for secret, told in (("one", 0), ("one", 0), ("two", 1)):
        file.write_text(f"accessKey: root\nsecretKey: {secret}")
        file.chmod(0o600)
        await make_first_user(options, access)
        assert len(caplog.messages) == told
    assert caplog.messages[0].startswith(
        "user root already exists and keeps its password, which differs from the given one"
    )
    assert access.users["root"].password == "one"


def test_what_may_pass_by_itself_has_an_exit_code_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that is taken, and a store that another process still has."""
    words = ["up", "--data", str(tmp_path), "--broker-port", "0"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*words, "--name-server-port", str(taken.getsockname()[1])]) == EXIT_TRY_LATER
    assert "address already in use" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = [
            "up",
            "--data",
            str(tmp_path / "new"),
            "--name-server-port",
            "0",
            "--broker-port",
            str(taken.getsockname()[1]),
        ]
        assert main(other) == EXIT_TRY_LATER
    assert (
        "address already in use, perhaps by a broker that runs already" in capsys.readouterr().err
    )
    assert not (tmp_path / "new").exists()
    lock = OsFs().lock(tmp_path / "lock")
    try:
        assert main([*words, "--name-server-port", "0"]) == EXIT_TRY_LATER
    finally:
        OsFs().close(lock)
    assert "in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--name-server-port", "--broker-port", "--metrics-port", "--console-port"]
)
def test_a_port_that_is_taken_is_told_with_the_option_that_asked_for_it(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = {"--name-server-port": "0", "--broker-port": "0"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[option] = str(taken.getsockname()[1])
        words = [word for pair in ports.items() for word in pair]
        assert main(["up", "--data", str(tmp_path / "store"), *words]) == EXIT_TRY_LATER
    said = capsys.readouterr().err
    assert said.endswith(f"; {option} chooses another (0: a free one)\n")
    assert said.count("--") == 1
    assert ("perhaps by a broker" in said) == (option in ("--name-server-port", "--broker-port"))


def test_a_start_from_apaches_file_says_what_it_does_not_listen_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.conf"
    # so that it ends
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text(
            f"storePathRootDir={tmp_path / 'store'}\nbrokerIP1=192.0.2.2\nlistenPort=0\n"
        )
        words = [
            "--config",
            str(file),
            "--name-server-port",
            "0",
            "--metrics-port",
            str(taken.getsockname()[1]),
        ]
        assert main(["up", *words]) == EXIT_TRY_LATER
    assert [
        message
        for message in caplog.messages
        if message.startswith("the broker listens on 127.0.0.1 only")
    ]


async def test_a_new_certificate_that_clients_refuse_is_told_when_it_is_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "server.pem"
    options = up("--tls-cert", str(file), "--tls-key", str(file))
    trustme.CA().issue_cert("192.0.2.2").private_key_and_cert_chain_pem.write_to_path(file)
    await _reload(
        options, None, None, GrpcPort(options, None, folder=tmp_path, host="127.0.0.1"), None
    )
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "clients are given the address 127.0.0.1",
        "the certificates were reloaded",
    ]


def test_an_address_of_another_machine_is_told_with_the_option_that_asked_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "up",
        "--data",
        str(tmp_path / "store"),
        "--broker-port",
        "0",
        "--name-server-port",
        "0",
        "--insecure-listen",
    ]
    assert main([*words, "--host", "192.0.2.1"]) == EXIT_TRY_LATER
    assert capsys.readouterr().err.endswith("; --host chooses another\n")
    assert main([*words, "--metrics-port", "0", "--metrics-host", "192.0.2.1"]) == EXIT_TRY_LATER
    assert capsys.readouterr().err.endswith("; --metrics-host chooses another\n")


def test_a_full_disk_may_pass_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(fs: OsFs, path: Path) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(OsFs, "lock", full)
    assert (
        main(["up", "--data", str(tmp_path), "--broker-port", "0", "--name-server-port", "0"])
        == EXIT_TRY_LATER
    )
    assert "its disk is full" in capsys.readouterr().err


def test_a_log_of_json_ends_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"storePathRootDir={tmp_path / 'lock'}\nhaListenPort=1\nlistenPort=0\n")
    (tmp_path / "lock").touch()
    assert (
        main(["up", "--config", str(file), "--log-format", "json", "--name-server-port", "0"]) == 1
    )
    said = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (said["level"], said["logger"]) == ("CRITICAL", "ogive")
    assert said["message"].startswith(f"the store cannot be kept in {tmp_path / 'lock'}: ")


def test_the_end_of_input_is_no_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended() -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(InvalidOption, match="nothing was changed"):
        confirm("delete?", yes=False)


async def test_a_group_that_nobody_knows_is_told_from_one_that_brokers_say_nothing_of() -> None:
    class Answers:
        def __init__(self, fault: Exception) -> None:
            self.fault = fault

        async def group(self, _: str) -> None:
            raise self.fault

    with pytest.raises(GroupNotExist):
        await refuse_unknown(cast(Admin, Answers(GroupNotExist(26, "bilin"))), "bilin")
    await refuse_unknown(cast(Admin, Answers(NoPermission(16, "no"))), "billing")


@pytest.mark.parametrize(
    "option",
    [
        ["--once"],
        ["--checkpoint", "there"],
        ["--master", "local[2]"],
        ["--memory", "2g"],
        ["--py-files", "a.py"],
    ],
)
def test_an_option_of_the_other_engine_is_refused(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With --once in this process a job for cron would never end."""
    assert main(["run", "no_such_app", *option]) == 1
    assert capsys.readouterr().err == f"ogive: {option[0]}: only with --engine spark\n"
    assert main(["run", "no_such_app", *option, "--engine", "spark"]) == 1
    assert "no_such_app" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--instance-name", "--offsets-dir"])
def test_an_option_of_this_process_is_refused_on_spark(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "no_such_app", option, "x", "--engine", "spark"]) == 1
    assert capsys.readouterr().err == f"ogive: {option}: only with --engine local\n"


def test_a_spark_job_is_not_reloaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no_such_app", "--reload", "--engine", "spark"]) == 1
    assert capsys.readouterr().err.startswith("ogive: --reload: only with --engine local")


@pytest.mark.parametrize(
    "words",
    [
        ["tail", "T", "--tag", "\udcff"],
        ["message", "\udcff"],
        ["send", "T", "--body", "x", "--key", "\udcff"],
    ],
)
def test_names_that_are_no_text_are_refused_before_anybody_is_asked(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    assert capsys.readouterr().err.endswith("'\\udcff' is not text in UTF-8\n")


def test_a_measurement_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("produce", "consume"):
        assert main(["bench", command, "--count", "0"]) == 1
        assert capsys.readouterr().err == "ogive: --count 0: must be at least 1\n"
