"""``ogive dead-letter``: list the messages that a group could not consume, and send them again.

``redrive`` selects the letters first, asks, and then sends one after the other.
"""

import argparse
import asyncio
import signal
import time
from collections.abc import Collection
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_INTERRUPTED
from ogive.cli.options import sql_filter
from ogive.cli.output import (
    confirm,
    period,
    print_done,
    print_message,
    say,
    say_if_more,
)
from ogive.client.admin.message_admin import MAX_MESSAGES
from ogive.client.admin.redrive import ChosenLetters, LetterFilter, choose_letters, send_letters
from ogive.errors import InvalidOption
from ogive.model import MessageExt, parse_tags
from ogive.text import pluralize

PAGE: Final = 1_000
"""Number of letters read at a time."""
REPORT_S: Final = 5.0
"""Time between two lines of progress."""
_FILTERS: Final = ("since", "until", "tag", "where", "limit")


async def list_letters(options: argparse.Namespace) -> int:
    start, _ = period(argparse.Namespace(since=options.since, until=None))
    async with aio.Admin(client=client_config(options)) as admin:
        letters = await admin.dead_letters(options.group, start=start, limit=options.limit)
    for letter in letters:
        print_message(letter, as_json=options.json, dead_letter=True)
    if not letters:
        say(f"group {options.group} has no dead letters{' since then' if options.since else ''}")
    else:
        say_if_more(len(letters), options.limit)
    return 0


async def redrive(options: argparse.Namespace) -> int:
    """Send dead letters again. If an id is not among them, raise InvalidOption and send nothing."""
    wanted = _chosen_by(options)
    async with aio.Admin(client=client_config(options)) as admin:
        chosen = await _choose(admin, options, wanted)
        letters, sent_before = chosen.letters, chosen.sent_before
        if letters and not (options.ids or options.dry_run):
            oldest = min(letter.stored_at for letter in letters).date()
            confirm(
                f"give {pluralize(len(letters), 'dead letter')}, the oldest of {oldest}, to "
                f"{options.group} again? "
                "It gets those that it has consumed meanwhile, too; --since TIME leaves older ones "
                "out.",
                yes=options.yes,
            )
        sent = len(letters) if options.dry_run else await _send(admin, options, letters)
    if sent_before and not options.json:
        say(
            f"{pluralize(sent_before, 'dead letter')} left out, sent before: --again sends "
            "them once more"
        )
    if options.dry_run:
        for letter in letters:
            print_message(letter, as_json=options.json, dead_letter=True)
    if letters or options.json:
        count = "1 dead letter" if sent == 1 else f"{sent:,} dead letters"
        verb = "would be" if options.dry_run else "was" if sent == 1 else "were"
        print_done(
            options,
            f"{count} {verb} given to {options.group} again; "
            f"{'it stays' if sent == 1 else 'they stay'} in the list",
            group=options.group,
            sent=sent,
            sent_before=sent_before,
            dry_run=options.dry_run,
        )
    elif not sent_before:
        match = "" if options.all else " that match"
        say(f"group {options.group} has no dead letters{match}")
    return EXIT_INTERRUPTED if sent < len(letters) else 0


def _chosen_by(options: argparse.Namespace) -> LetterFilter:
    """Return the filter that selects letters. Raises InvalidOption for invalid options."""
    if options.ids and options.all:
        raise InvalidOption(
            "--all sends all dead letters, and ids select some: leave one of them out"
        )
    filters = [name for name in _FILTERS if getattr(options, name) is not None]
    if not (options.ids or options.all or filters):
        raise InvalidOption(
            "select the dead letters to send again: give ids (`ogive dead-letter list` shows "
            "them), --since, --until, --tag, --where or --limit, or --all"
        )
    for name in filters if options.ids else ():
        if name not in ("since", "until"):
            raise InvalidOption(
                f"--{name} selects dead letters, and so do ids: leave one of them out"
            )
    limit = MAX_MESSAGES if options.limit is None else options.limit
    if not 1 <= limit <= MAX_MESSAGES:
        raise InvalidOption(
            f"--limit {limit}: must be between 1 and {MAX_MESSAGES}; run the same command "
            "again to send the next ones"
        )
    if options.rate is not None and not 0 < options.rate < 1e9:
        raise InvalidOption(f"--rate {options.rate:g}: must be more than 0 messages a second")
    start, end = period(options)
    return LetterFilter(
        ids=frozenset(options.ids),
        start=start,
        end=end,
        tags=() if options.tag is None else parse_tags(options.tag),
        where=None if options.where is None else sql_filter("--where", options.where),
        limit=limit,
        again=options.again,
    )


async def _choose(
    admin: aio.Admin, options: argparse.Namespace, wanted: LetterFilter
) -> ChosenLetters:
    progress = _Progress()
    chosen = await choose_letters(
        admin,
        options.group,
        wanted,
        page=PAGE,
        report=lambda read, count: progress.show(
            f"looked at {pluralize(read, 'dead letter')}, {count:,} to send"
        ),
    )
    if chosen.full:
        way = "use --since" if options.again else "run the same command again"
        say(f"selected the first {wanted.limit:,}; {way} to send the next ones")
    return chosen


async def _send(
    admin: aio.Admin, options: argparse.Namespace, letters: Collection[MessageExt]
) -> int:
    """Send the letters, and return how many were sent. After SIGINT or SIGTERM the send that has
    begun is finished, and no other begins.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    progress = _Progress()
    sent = 0
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)

    def report(count: int) -> None:
        nonlocal sent
        sent = count
        progress.show(f"sent {sent:,} of {pluralize(len(letters), 'dead letter')}")

    try:
        await send_letters(admin, options.group, letters, stop, rate=options.rate, report=report)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
        if sent < len(letters):
            rest = "all once more, because of --again" if options.again else "the rest"
            say(
                f"sent {sent:,} of {pluralize(len(letters), 'dead letter')}; the same command "
                f"sends {rest}"
            )
    return sent


class _Progress:
    """Lines of progress, at most one every REPORT_S."""

    def __init__(self) -> None:
        self._next = time.monotonic() + REPORT_S

    def show(self, text: str) -> None:
        if time.monotonic() >= self._next:
            say(text)
            self._next = time.monotonic() + REPORT_S
