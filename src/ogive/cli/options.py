"""Building blocks of the parser: commands, groups of commands, and shared options."""

import argparse
from typing import TypeAlias

# argparse gives these types no public names
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Options: TypeAlias = "argparse._ActionsContainer"
"""A command, or a titled group of its options."""


def add_command(
    commands: Commands, name: str, function: str, text: str, more: str = ""
) -> argparse.ArgumentParser:
    """*function* is ``module:function`` under ogive.cli; *more* is shown only in the command's own
    help.
    """
    module, _, attribute = function.partition(":")
    command = commands.add_parser(name, help=text, description=_description(text, more))
    command.set_defaults(module=f"ogive.cli.{module}", function=attribute, command_parser=command)
    return command


def add_group(commands: Commands, name: str, text: str, more: str = "") -> Commands:
    """Where the commands ``ogive NAME ...`` go; *name* alone prints their help."""
    group = commands.add_parser(name, help=text, description=_description(text, more))
    group.set_defaults(group_parser=group)
    return group.add_subparsers(metavar="COMMAND")


def _description(text: str, more: str) -> str:
    return f"{text[0].upper()}{text[1:]}. {more}"


def host(text: str) -> str:
    """Read an option whose value is a host without a port. An IPv6 address may have brackets."""
    # not needed by most commands, and slow to import
    from ogive.transport.connection import without_brackets

    return without_brackets(text)


def add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("-y", "--yes", action="store_true", help="do it without asking")


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true", help="one JSON object a line instead of text"
    )


def add_cluster(command: argparse.ArgumentParser) -> None:
    """Which cluster, and as whom: what ``connect.client_config`` reads."""
    command.add_argument(
        "-n",
        "--name-server",
        metavar="HOST:PORT",
        help="name servers, separated by ';' (default: NAMESRV_ADDR from the environment, else "
        "those of the context in use, see "
        "`ogive context`, else 127.0.0.1:9876)",
    )
    add_secrets(command)


def add_secrets(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--credentials",
        metavar="FILE",
        help="a file with the lines accessKey: NAME and secretKey: SECRET (default: "
        "OGIVE_CREDENTIALS from the environment)",
    )
    command.add_argument(
        "--cafile",
        metavar="FILE",
        help="use TLS, and trust the authorities in this file (default: OGIVE_CAFILE from the "
        "environment)",
    )
    command.add_argument(
        "--certfile",
        metavar="FILE",
        help="use TLS, and show the certificate in this file to servers that ask for one (default: "
        "OGIVE_CERTFILE from the environment)",
    )
    command.add_argument(
        "--keyfile",
        metavar="FILE",
        help="its key, if that is in a file of its own (default: OGIVE_KEYFILE)",
    )
