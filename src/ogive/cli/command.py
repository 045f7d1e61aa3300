"""Parse the arguments, and run the command that they name."""

import argparse
import errno
import importlib
import resource
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from ogive.cli.colour import red
from ogive.cli.exits import EXIT_ERROR, EXIT_TRY_LATER, EXIT_USAGE, TryLater
from ogive.cli.parser import build_parser, normalize_arguments, parse
from ogive.errors import InvalidOption, OgiveError
from ogive.text import escape_lines

Run = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]
"""A function that carries out a command and returns its exit code."""


def run(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code, see main(). Raises SystemExit for wrong usage and
    after --help.
    """
    arguments = normalize_arguments(arguments)
    parser = build_parser(arguments)
    options = parse(parser, arguments)
    if not hasattr(options, "module"):
        getattr(options, "group_parser", parser).print_help()
        return EXIT_USAGE
    try:
        _check_names(options)
        if getattr(options, "config", None):
            config_file = importlib.import_module("ogive.cli.config_file")
            in_file = config_file.read(options.config, options.command_parser)
            options.command_parser.set_defaults(**in_file, in_file=in_file)
            options = parse(parser, arguments)
        carry_out: Run = getattr(importlib.import_module(options.module), options.function)
        code = carry_out(options)
        if isinstance(code, int):
            return code
        # imported here: it takes longer to load than the help takes to print
        import asyncio

        try:
            return asyncio.run(code)
        finally:
            # without a loop, as where no file can be opened, it was never begun
            code.close()
    except OSError as exc:
        if exc.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        where = f"this process may open {limit} files" if exc.errno == errno.EMFILE else ""
        _complain(
            f"too many files are open: {where or 'this machine opens no more'}; raise the limit "
            f"({'ulimit -n' if where else 'fs.file-max'})",
            options,
        )
        return EXIT_TRY_LATER
    except OgiveError as exc:
        from ogive.cli.connect import advice_for

        # a server may have written a part of the text
        text, advice = escape_lines(str(exc)), advice_for(exc, options)
        _complain(
            f"{text.rstrip('.')}{'' if text.endswith('?') else '.'} {advice}" if advice else text,
            options,
        )
        return EXIT_TRY_LATER if isinstance(exc, TryLater) else EXIT_ERROR


_NAMES: Final = (
    "topic",
    "topics",
    "group",
    "cluster",
    "broker",
    "broker_name",
    "tag",
    "keys",
    "properties",
    "sharding_key",
    "key",
    "id",
    "ids",
    "trace_topic",
    "source",
    "user",
    "resource",
    "instance_name",
    "sql",
)


def _check_names(options: argparse.Namespace) -> None:
    """Raise InvalidOption for bytes on the command line that are not text, because no request can
    have them. Names of files may.
    """
    for name in _NAMES:
        given = getattr(options, name, None)
        for text in given if isinstance(given, list) else [given]:
            if isinstance(text, str) and any("\ud800" <= char <= "\udfff" for char in text):
                raise InvalidOption(f"{name.replace('_', '-')} {text!r} is not text in UTF-8")


def _complain(text: str, options: argparse.Namespace) -> None:
    # a JSON log must hold JSON lines only
    if getattr(options, "log_format", "text") == "json":
        from ogive.cli.logs import last_line

        text = last_line(text)
    else:
        text = f"{red('ogive:', sys.stderr)} {text}"
    print(text, file=sys.stderr)
