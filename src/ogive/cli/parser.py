"""Parser of the command line, and the table of all commands.

A command's own module is imported only when it runs, so that ``ogive up`` starts at once.
"""

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn, cast

from ogive import __version__
from ogive.cli import admin_options, message_options, pipeline_options, run_options
from ogive.cli.colour import red
from ogive.cli.exits import EXIT_USAGE
from ogive.cli.options import CLUSTER, JSON, YES, Command, CommandGroup, Commands, option
from ogive.native import build

_FIRST_STEPS: Final = (
    "First steps: `ogive up` in one terminal; in another `ogive send Orders --body hello`, then "
    "`ogive tail Orders --from earliest`. "
    "`ogive help COMMAND` describes a command."
)

ERRORS: Final = Command(
    "errors",
    "broker_commands:explain_errors",
    "explain a response code of brokers and name servers, or list all",
    parts=(
        option(
            "code",
            nargs="?",
            metavar="CODE",
            help="a number or name, such as 17 or TOPIC_NOT_EXIST",
        ),
        JSON,
    ),
)
COMPLETION: Final = Command(
    "completion",
    "completion:complete",
    "print a script that completes commands and options in a shell",
    "bash: add `source <(ogive completion bash)` to ~/.bashrc. zsh: the same with zsh, after "
    "compinit in ~/.zshrc. fish: `ogive completion fish > ~/.config/fish/completions/ogive.fish`.",
    parts=(
        option("shell", choices=("bash", "zsh", "fish")),
        # the words before the cursor, which a script passes
        option("words", nargs="*", help=argparse.SUPPRESS),
    ),
)
COMMANDS: Final[dict[str, Command | CommandGroup]] = {
    command.name: command
    for command in (
        run_options.UP,
        run_options.CONSOLE,
        run_options.PROXY,
        admin_options.TOPIC,
        admin_options.GROUP,
        admin_options.BROKER,
        admin_options.LAG,
        admin_options.CHECK,
        admin_options.DOCTOR,
        run_options.RUN,
        message_options.SEND,
        message_options.TAIL,
        message_options.MESSAGE,
        message_options.TRACE,
        message_options.DEAD_LETTER,
        pipeline_options.PIPELINE,
        pipeline_options.SPARK,
        message_options.BENCH,
        admin_options.CONTEXT,
        admin_options.USER,
        admin_options.ACL,
        admin_options.APPLY,
        admin_options.STORE,
        ERRORS,
        COMPLETION,
    )
}
"""All commands, in the order in which the help lists them."""
_EARLY_OPTIONS: Final = {name for one in CLUSTER for name in one.names}
"""Options with a value that nearly all commands have. They may also precede the command."""
_EARLY_FLAGS: Final = {*JSON.names, *YES.names}
_ADDRESSES: Final = ("--port", "--host", "--namesrv", "--broker", "--server", "--address")
_EXPECTED: Final[dict[Any, str]] = {int: "a whole number", float: "a number"}
_LONE_WORDS: Final = {"lag": "--topic", "send": "--body", "tail": "--from"}
_OTHER_WORDS: Final = {
    "consume": "tail or run",
    "demo": "python -m examples.demo, in a clone of the repository",
    "produce": "send",
    "publish": "send",
    "create": "topic create",
    "delete": "topic delete",
    "list": "topic list",
    "show": "topic show",
    "reset": "group reset",
    "verify": "store verify",
    "repair": "store repair",
}


class Parser(argparse.ArgumentParser):
    """Parser that says in one line what is wrong, and suggests the nearest command or choice for a
    misspelt one.
    """

    def error(self, message: str) -> NoReturn:
        self.exit(
            EXIT_USAGE,
            f"{red('ogive:', sys.stderr)} {message}{'' if message.endswith('?') else '.'} "
            f"`{self.prog} --help` shows what there is\n",
        )

    # private, but the only place where argparse reads values
    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if not action.option_strings or action.type not in _EXPECTED:
                raise
            expected = "a number of bytes" if action.metavar == "BYTES" else _EXPECTED[action.type]
            raise argparse.ArgumentError(
                None, f"{action.option_strings[-1]} {arg_string}: {expected} is expected"
            ) from None

    # private, but the only place where argparse checks choices
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = list(map(str, action.choices or ()))
        if not choices or value in choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            # only what the help lists: an old name still works, but nobody should learn it
            choices = [command.dest for command in action._choices_actions]
        if "tail" in choices and value in _OTHER_WORDS:
            raise argparse.ArgumentError(
                action, f"there is no {value!r}: did you mean {_OTHER_WORDS[value]}?"
            )
        if near := difflib.get_close_matches(str(value), choices, n=1):
            raise argparse.ArgumentError(action, f"there is no {value!r}: did you mean {near[0]}?")
        if action.option_strings:
            raise argparse.ArgumentError(
                None, f"{action.option_strings[-1]} {value}: {' or '.join(choices)} is expected"
            )
        known = ", ".join(map(repr, choices))
        raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {known})")


def build_parser(arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser with every command; only with the first word of *arguments*, if that is a
    command, because all of them take 20 ms.
    """
    parser = Parser(
        prog="ogive",
        description="Apache RocketMQ for Python: broker, name server and tools.",
        epilog=_FIRST_STEPS,
    )
    parser.add_argument("--version", action="version", version=f"ogive {__version__}, {build}")
    commands = cast("Commands", parser.add_subparsers(metavar="COMMAND"))
    only = arguments[0] if arguments and arguments[0] in COMMANDS else None
    for name, command in COMMANDS.items():
        if only in (None, name):
            command.add_to(commands)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse as parse_args does, but show unknown words with the nearest option of the command."""
    if arguments and arguments[0].partition("=")[0] == "--context":
        parser.error(
            "there is no option --context: OGIVE_CONTEXT=NAME before the command, or `ogive "
            "context use`, chooses one"
        )
    options, unknown = parser.parse_known_args(arguments)
    command: argparse.ArgumentParser = getattr(
        options, "command_parser", getattr(options, "group_parser", parser)
    )
    if unknown and not _take_late_words(command, options, unknown):
        if shared := _shared_option(unknown):
            command.error(f"`{command.prog}` takes no {shared}")
        known = [option for action in command._actions for option in action.option_strings]
        names = [word for word in unknown if word.startswith("-")]
        hints = [_nearest(word, known) if names else _meant(command.prog, word) for word in unknown]
        words = [
            f"{word} (did you mean {hint}?)" if hint else word
            for word, hint in zip(unknown, hints, strict=True)
        ]
        command.error(f"unrecognized arguments: {' '.join(words)}")
    return options


def _take_late_words(
    command: argparse.ArgumentParser, options: argparse.Namespace, words: Sequence[str]
) -> bool:
    """Return True if *words* are more values of the command's last argument: argparse gives it only
    the words before the first option.
    """
    arguments = [action for action in command._actions if not action.option_strings]
    if not arguments or any(word.startswith("-") for word in words):
        return False
    last = arguments[-1]
    had = getattr(options, last.dest)
    if last.nargs in ("*", "+"):
        setattr(options, last.dest, [*had, *words])
        return True
    if last.nargs == "?" and had is None and len(words) == 1:
        setattr(options, last.dest, words[0])
        return True
    return False


def normalize_arguments(arguments: Sequence[str]) -> list[str]:
    """Return *arguments* with shared options after the command.

    ``help COMMAND`` becomes ``COMMAND --help``. argparse knows the options of a command only after
    its name.
    """
    early, rest = _split_early_options(arguments)
    depth = 2 if rest and isinstance(COMMANDS.get(rest[0]), CommandGroup) else 1
    if depth == 2:
        more, behind = _split_early_options(rest[1:])
        early, rest = [*early, *more], [rest[0], *behind]
    command = rest[:depth]
    if command and command[0] == "help":
        return [
            *(word for word in rest[1:] if word != "help" and not word.startswith("-")),
            "--help",
        ]
    if command[1:] == ["help"]:
        return [command[0], *rest[2:3], "--help"]
    if len(command) < depth:
        # No command to carry out, so the help is printed.
        return command
    return [*command, *early, *rest[depth:]]


def _split_early_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the shared options at the beginning of *arguments*, and the rest."""
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        if name in _EARLY_OPTIONS:
            at += 1 if equals else 2
        elif name in _EARLY_FLAGS or name.startswith("-n"):
            at += 1
        else:
            break
    return list(arguments[:at]), list(arguments[at:])


def _shared_option(unknown: Sequence[str]) -> str:
    """Return the first of *unknown* that is an option of nearly all commands, or nothing.

    argparse gives its value to the command as an argument, so the other words may mislead.
    """
    for word in unknown:
        name = word.partition("=")[0]
        if name in _EARLY_OPTIONS or name in _EARLY_FLAGS:
            return name
        if name.startswith("-n"):
            return "-n"
    return ""


def _nearest(word: str, known: Sequence[str]) -> str:
    """Return the options that the user perhaps meant: all that end in the same word, else the one
    with the nearest spelling.
    """
    if not word.startswith("--"):
        return ""
    name = word.partition("=")[0]
    if name == "--context":
        return "OGIVE_CONTEXT=NAME before the command"
    alike = [option for option in known if option.endswith(name[1:])] or difflib.get_close_matches(
        name, known, n=1, cutoff=0.7
    )
    if not alike and name in _ADDRESSES and "-n" in known:
        return "-n HOST:PORT"
    return " or ".join(alike)


def _meant(program: str, word: str) -> str:
    """Return the option that the user perhaps meant by a single extra word."""
    command = program.removeprefix("ogive ")
    return f"{_LONE_WORDS[command]} {word}" if command in _LONE_WORDS else ""
