"""Commands and options as values, from which the parser is built; the options that many commands
share.
"""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ogive.errors import InvalidExpression, InvalidOption

if TYPE_CHECKING:
    from ogive.sql92.expression import Expression

# argparse gives these types no public names
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
_Container: TypeAlias = "argparse._ActionsContainer"


class _ExampleHelp(argparse.HelpFormatter):
    """Help that keeps the line breaks of long texts: a wrapped example cannot be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


@dataclass(frozen=True, slots=True)
class Option:
    """An option or argument: the parameters of ``add_argument``."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    def add_to(self, command: _Container) -> None:
        command.add_argument(*self.names, **self.settings)


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options with a *title* in the help; without one, options that exclude each other."""

    title: str | None
    options: tuple[Option, ...]

    def add_to(self, command: _Container) -> None:
        group: _Container = (
            command.add_argument_group(self.title)
            if self.title
            else command.add_mutually_exclusive_group()
        )
        for one in self.options:
            one.add_to(group)


@dataclass(frozen=True, slots=True)
class Command:
    """A command, carried out by *function*, ``module:function`` under ogive.cli.

    *more* and *example* are shown only in its own help. *defaults* are for attributes that no
    option sets, or not always; *environment* names the variables that set others. *old_name* still
    works, and neither help nor errors show it.
    """

    name: str
    function: str
    text: str
    more: str = ""
    parts: tuple[Option | OptionGroup, ...] = ()
    example: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    old_name: str = ""

    def add_to(self, commands: Commands) -> None:
        command = commands.add_parser(
            self.name, help=self.text, description=_description(self.text, self.more)
        )
        if self.example:
            command.epilog = f"example:\n  ogive {self.example}"
            command.formatter_class = _ExampleHelp
        for part in self.parts:
            part.add_to(command)
        module, _, function = self.function.partition(":")
        command.set_defaults(
            **self.defaults,
            **{name: os.environ.get(variable) for name, variable in self.environment.items()},
            module=f"ogive.cli.{module}",
            function=function,
            command_parser=command,
        )
        if self.old_name:
            commands.choices[self.old_name] = command


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The commands ``ogive NAME ...``; *name* alone prints their help."""

    name: str
    text: str
    more: str = ""
    commands: tuple[Command, ...] = ()

    def add_to(self, commands: Commands) -> None:
        group = commands.add_parser(
            self.name, help=self.text, description=_description(self.text, self.more)
        )
        group.set_defaults(group_parser=group)
        inner = group.add_subparsers(metavar="COMMAND")
        for command in self.commands:
            command.add_to(inner)


def _description(text: str, more: str) -> str:
    return f"{text[0].upper()}{text[1:]}. {more}"


def option(*names: str, **settings: Any) -> Option:
    """Return an option or argument for the parameters of ``add_argument``."""
    return Option(names, settings)


def titled(title: str, *options: Option) -> OptionGroup:
    """Return options that the help lists under *title*."""
    return OptionGroup(title, options)


def either(*options: Option) -> OptionGroup:
    """Return options that exclude each other."""
    return OptionGroup(None, options)


def host(text: str) -> str:
    """Read an option whose value is a host without a port. An IPv6 address may have brackets."""
    # slow to import, and most commands do not need it
    from ogive.transport.connection import without_brackets

    return without_brackets(text)


def sql_filter(option: str, text: str) -> "Expression":
    """Compile an SQL92 filter. Raises InvalidOption, which names the *option*."""
    # most commands do not need it
    from ogive.sql92.expression import compile_expression

    try:
        return compile_expression(text)
    except InvalidExpression as exc:
        raise InvalidOption(f"{option}: {exc}") from None


def check_count(count: int | None) -> None:
    """Raise InvalidOption for a --count below 1."""
    if count is not None and count < 1:
        raise InvalidOption(f"--count {count}: must be at least 1")


def check_port(option: str, port: int | None) -> None:
    """Raise InvalidOption unless *port*, which *option* names, is None or between 0 and 65535."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidOption(f"{option} {port}: must be between 0 and 65535")


YES: Final = option("-y", "--yes", action="store_true", help="do it without asking")
JSON: Final = option("--json", action="store_true", help="one JSON object a line instead of text")
VERBOSE: Final = option(
    "-v", "--verbose", action="count", default=0, help="log more; twice for details"
)
SECRETS: Final = (
    option(
        "--credentials",
        metavar="FILE",
        help="a file with the lines accessKey: NAME and secretKey: SECRET (default: "
        "OGIVE_CREDENTIALS from the environment)",
    ),
    option(
        "--cafile",
        metavar="FILE",
        help="use TLS, and trust the authorities in this file (default: OGIVE_CAFILE from the "
        "environment)",
    ),
    option(
        "--certfile",
        metavar="FILE",
        help="use TLS, and show the certificate in this file to servers that ask for one (default: "
        "OGIVE_CERTFILE from the environment)",
    ),
    option(
        "--keyfile",
        metavar="FILE",
        help="its key, if that is in a file of its own (default: OGIVE_KEYFILE)",
    ),
)
CLUSTER: Final = (
    option(
        "-n",
        "--name-server",
        metavar="HOST:PORT",
        help="name servers, separated by ';' (default: NAMESRV_ADDR from the environment, else "
        "those of the context in use, see "
        "`ogive context`, else 127.0.0.1:9876)",
    ),
    *SECRETS,
)
"""The cluster, and the user: the options that ``connect.client_config`` reads."""
