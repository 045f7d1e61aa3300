"""``ogive dead-letter``: what a group could not consume, and sending it again."""

import argparse
import sys

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_done, print_message
from ogive.cli.times import instant
from ogive.client.admin.messages import MAX_MESSAGES
from ogive.errors import InvalidOption
from ogive.model import MessageExt
from ogive.words import counted


async def list_letters(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        letters = await _letters(admin, options, options.limit)
    for letter in letters:
        print_message(letter, as_json=options.json, dead_letter=True)
    if not letters:
        _say_none(options)
    elif len(letters) == options.limit:
        print(f"ogive: there may be more; --limit shows more than {options.limit}", file=sys.stderr)
    return 0


async def send(options: argparse.Namespace) -> int:
    """1 when an id is not among the dead letters: nothing is sent then."""
    if options.ids and options.all:
        raise InvalidOption(
            "--all means every dead letter, and ids only some: leave one of them out"
        )
    if not options.ids and not options.all:
        raise InvalidOption(
            "say which dead letters are sent again: their ids (`ogive dead-letter list`), or --all"
        )
    async with aio.Admin(client=client_config(options)) as admin:
        # each once, however often it came back
        letters = {letter.id: letter for letter in await _letters(admin, options, MAX_MESSAGES)}
        missing = set(options.ids) - letters.keys()
        if missing:
            raise InvalidOption(
                f"group {options.group} has no dead letter {min(missing)} (`ogive dead-letter list "
                f"{options.group}` shows their ids)"
            )
        chosen = [letter for letter in letters.values() if options.all or letter.id in options.ids]
        if options.all and chosen:
            oldest = min(letter.stored_at for letter in chosen).date()
            confirm(
                f"give {counted(len(chosen), 'dead letter')}, the oldest of {oldest}, to "
                f"{options.group} again? "
                "It gets those that it has consumed meanwhile, too; --since TIME leaves older ones "
                "out.",
                yes=options.yes,
            )
        for letter in chosen:
            await admin.send_again(options.group, letter)
    if not chosen and not options.json:
        _say_none(options)
        return 0
    count = "1 dead letter was" if len(chosen) == 1 else f"{len(chosen):,} dead letters were"
    print_done(
        options,
        f"{count} given to {options.group} again; they stay in the list",
        group=options.group,
        sent=len(chosen),
    )
    return 0


def _say_none(options: argparse.Namespace) -> None:
    print(
        f"ogive: group {options.group} has no dead letters{' since then' if options.since else ''}",
        file=sys.stderr,
    )


async def _letters(admin: aio.Admin, options: argparse.Namespace, limit: int) -> list[MessageExt]:
    since = None if options.since is None else instant("--since", options.since)
    return await admin.dead_letters(options.group, start=since, limit=limit)
