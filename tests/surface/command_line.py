"""Commands, their options and arguments.

    ogive group reset                        a command
    ogive group reset argument 1             arguments by their place
    ogive group reset --to VALUE             an option with a value; one without is a switch
    ogive up --flush: choice async           one line for each value that it takes
    ogive send --key: repeatable
    ogive topic create --queues: default 8
    ogive group reset needs --to

The placeholders that help texts show, such as PLACE, are no promise.
"""

import argparse
from collections.abc import Iterator

from tests.surface import inside
from tests.surface.lines import plain_environment

REPEATABLE = (argparse._AppendAction, argparse._CountAction)


def lines() -> set[str]:
    """Return the lines of the command line."""
    with plain_environment():
        return set(_of_command("ogive", inside.command_line()))


def _of_command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield name
    place = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, inner in action.choices.items():
                yield from _of_command(f"{name} {command}", inner)
        elif action.option_strings:
            for option in action.option_strings:
                yield from _of_option(name, option, action)
        else:
            place += 1
            yield from _of_argument(name, f"argument {place}", action)
    for group in parser._mutually_exclusive_groups:
        options = sorted(action.option_strings[-1] for action in group._group_actions)
        for at, one in enumerate(options):
            for other in options[at + 1 :]:
                yield f"{name} forbids {one} with {other}"


def _of_option(name: str, option: str, action: argparse.Action) -> Iterator[str]:
    yield f"{name} {option}{'' if action.nargs == 0 else ' VALUE'}"
    if isinstance(action, REPEATABLE):
        yield f"{name} {option}: repeatable"
    for choice in action.choices or ():
        yield f"{name} {option}: choice {choice}"
    if action.nargs != 0 and action.default not in (None, argparse.SUPPRESS, []):
        yield f"{name} {option}: default {action.default}"
    if action.required and option == action.option_strings[-1]:
        yield f"{name} needs {option}"


def _of_argument(name: str, place: str, action: argparse.Action) -> Iterator[str]:
    yield f"{name} {place}"
    if action.nargs in ("*", "+"):
        yield f"{name} {place}: repeatable"
    if action.nargs not in ("*", "?"):
        yield f"{name} needs {place}"


def names_with(option: str) -> set[str]:
    """Return the commands that have *option*."""
    ending = f" {option}"
    return {line.removesuffix(ending) for line in lines() if line.endswith(ending)}
