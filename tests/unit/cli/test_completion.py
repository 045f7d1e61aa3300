"""``ogive completion``: the words it offers, and its script in the shells that are installed."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.cli.completion import candidates
from ogive.cli.main import main
from ogive.cli.parser import build_parser


def offered(*words: str) -> list[str]:
    return [word for word, _ in candidates(words)]


def every_parser(
    parser: argparse.ArgumentParser, *words: str
) -> Iterator[tuple[list[str], argparse.ArgumentParser]]:
    yield list(words), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from every_parser(inner, *words, name)


def test_every_command_and_every_long_option_is_offered_with_a_description() -> None:
    for words, parser in every_parser(build_parser()):
        names = {name for name in parser._option_string_actions if name.startswith("--")}
        assert {word for word, _ in candidates([*words, "--"])} == names
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found = dict(candidates([*words, ""]))
                # an old name, which is no name of its parser, still works and is not offered
                names = {inner.prog.split()[-1] for inner in action.choices.values()}
                assert found.keys() == names
                assert all(found.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ta"], ["tail"]),
        (["topic", "cr"], ["create"]),
        (["nonsense", ""], []),
        # options: each once, unless it is repeatable
        (["tail", "Orders", "--fr"], ["--from"]),
        (["tail", "Orders", "--from", "latest", "--fr"], []),
        (["tail", "Orders", "--queue", "1", "--qu"], ["--queue"]),
        # values
        (["tail", "Orders", "--from", ""], ["earliest", "latest"]),
        (["tail", "Orders", "--from=l"], ["--from=latest"]),
        (["tail", "Orders", "--tag", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
        # only the user knows the topic; after it come the options
        (["tail", ""], []),
        (["-n", "h:1", "topic", "li"], ["list"]),
        (["help", "ta"], ["tail"]),
    ],
)
def test_what_may_replace_the_last_word(words: list[str], expected: list[str]) -> None:
    assert offered(*words) == expected


def test_options_are_offered_where_no_argument_is_left() -> None:
    assert "--json" in offered("topic", "list", "")
    assert "--from" in offered("tail", "Orders", "")
    # it takes any number of arguments
    assert offered("topic", "export", "") == []


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "earliest"),
        ("zsh", "earliest"),
        ("fish", "earliest"),
    ],
)
def test_each_shell_gets_its_form(
    shell: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell, "--", "tail", "Orders", "--from", "e"]) == 0
    assert capsys.readouterr().out == f"{line}\n"
    assert main(["completion", shell, "--", "topic", "cr"]) == 0
    text = capsys.readouterr().out
    described = {"bash": "create\n", "zsh": "create:create a topic", "fish": "create\tcreate a"}
    assert text.startswith(described[shell])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["tai"], ["tail"]),
        (["tail", "Orders", "--from", "=", "e"], ["earliest"]),
        (["tail", "Orders", "--from", "="], ["earliest", "latest"]),
        (["-n", "127.0.0.1", ":", "9876", "topic", "sh"], ["show"]),
        (["tail", "a $(false) word", "--gre"], ["--grep"]),
    ],
)
def test_bash_completes_with_the_script(line: list[str], expected: list[str]) -> None:
    """*line* is split as bash does it: ":" and "=" are words of their own."""
    assert ask("bash", BASH, *line).splitlines() == expected


def test_zsh_and_fish_complete_with_the_script() -> None:
    shells = [shell for shell in ("zsh", "fish") if shutil.which(shell)]
    if not shells:
        pytest.skip("neither zsh nor fish is installed")
    for shell in shells:
        text = ask(shell, {"zsh": ZSH, "fish": FISH}[shell], "tail", "Orders", "--fr")
        assert text.startswith("--from"), shell


BASH = """source <(ogive completion bash)
COMP_WORDS=(ogive "$@") COMP_CWORD=$#
_ogive ogive
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """compdef() { }
_describe() { print -l -- $found }
eval "$(ogive completion zsh)"
words=(ogive "$@") CURRENT=$#words
_ogive
"""
FISH = """ogive completion fish | source
complete --do-complete "ogive $argv"
"""


def ask(shell: str, script: str, *words: str) -> str:
    """Return what the shell offers for the last of *words*."""
    folder = Path(sys.executable).parent
    done = subprocess.run(
        [shell, "-c", script, *([] if shell == "fish" else [shell]), *words],
        env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout
