"""One parser for all commands. A command's own module is imported only when it runs, so that ``ogive up`` starts at once."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Final

from ogive import __version__
from ogive.cli import access_options, admin_options, message_options, pipeline_options, run_options
from ogive.cli.options import Commands, add_command, add_json

_FIRST_STEPS: Final = (
    "First steps: `ogive up` in one terminal; in another `ogive send Orders --body hello`, then `ogive tail Orders --from earliest`. "
    "`ogive COMMAND --help` says more."
)


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options and help."""
    parser = argparse.ArgumentParser(
        prog="ogive", description="Apache RocketMQ for Python: broker, name server and tools.", epilog=_FIRST_STEPS
    )
    parser.add_argument("--version", action="version", version=f"ogive {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    run_options.up(commands)
    run_options.demo(commands)
    admin_options.topic(commands)
    admin_options.group(commands)
    admin_options.broker(commands)
    admin_options.lag(commands)
    admin_options.check(commands)
    run_options.run(commands)
    message_options.send(commands)
    message_options.tail(commands)
    message_options.message(commands)
    message_options.trace(commands)
    message_options.dead_letter(commands)
    pipeline_options.pipeline(commands)
    message_options.bench(commands)
    access_options.context(commands)
    access_options.user(commands)
    access_options.acl(commands)
    admin_options.store(commands)
    _errors(commands)
    return parser


def _errors(commands: Commands) -> None:
    command = add_command(commands, "errors", "codes:run", "explain a response code of brokers and name servers; without one list all")
    command.add_argument("code", nargs="?", metavar="CODE", help="a number or name, such as 17 or TOPIC_NOT_EXIST")
    add_json(command)


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """As parse_args; but what a command does not know is shown with that command's usage and the nearest option that it has."""
    options, unknown = parser.parse_known_args(arguments)
    command: argparse.ArgumentParser = getattr(options, "command_parser", getattr(options, "group_parser", parser))
    if unknown:
        known = [option for action in command._actions for option in action.option_strings]
        near = [f"{word} (is {match[0]} meant?)" if (match := _nearest(word, known)) else word for word in unknown]
        command.error(f"unrecognized arguments: {' '.join(near)}")
    return options


def _nearest(word: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word.partition("=")[0], known, n=1) if word.startswith("--") else []
