"""``ogive message``: one message by id or place, or those with a key or of a time."""

import argparse
import sys
from datetime import datetime
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.message_options import LISTED
from ogive.cli.output import print_message, print_message_whole
from ogive.cli.times import instant
from ogive.errors import InvalidOption, OgiveError
from ogive.model import MessageExt, MessageQueue

_IN_BATCHES: Final = (
    ". It keeps batches whole, and the keys of messages in them are in no index: "
    "look by --queue and --offset, or in `ogive tail`"
)


async def run(options: argparse.Namespace) -> int:
    """1 when nothing is found."""
    start, end = _check(options)
    by_time = options.id is None and options.key is None and options.offset is None
    async with aio.Admin(client=client_config(options)) as admin:
        found = await _find(admin, options, start, end)
        whole = (
            not found
            and options.key is not None
            and await keeps_batches_whole(admin, options.topic)
        )
    for number, message in enumerate(found):
        if options.json or by_time:
            print_message(message, as_json=options.json, with_id=True)
            continue
        if number:
            print()
        print_message_whole(message)
    if not found:
        wanted = [] if options.key is None else [f"with the key {options.key}"]
        wanted += [
            f"stored {word} {at}"
            for word, at in (("since", options.since), ("before", options.until))
            if at is not None
        ]
        raise InvalidOption(
            f"topic {options.topic} has no message {', '.join(wanted)}".rstrip()
            + (_IN_BATCHES if whole else "")
        )
    if by_time and len(found) == options.limit:
        print(f"ogive: there may be more; --limit shows more than {options.limit}", file=sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    """The times between which messages are wanted.

    Raises InvalidOption where the options do not go together.
    """
    ways = sum(value is not None for value in (options.id, options.key, options.offset))
    timed = options.since is not None or options.until is not None
    if ways > 1 or not (ways or timed):
        raise InvalidOption(
            "say which message: ID, or --topic with --key, with --queue and --offset, or with "
            "--since and --until"
        )
    if options.id is None and options.topic is None:
        raise InvalidOption(
            "--key, --offset, --since and --until are looked up in a topic: add --topic"
        )
    if (options.id is not None or options.offset is not None) and (
        timed or options.limit is not None
    ):
        raise InvalidOption(
            "--since, --until and --limit choose among many messages: leave them out, or give "
            "--topic alone, or with --key"
        )
    if options.limit is None:
        options.limit = LISTED
    start = None if options.since is None else instant("--since", options.since)
    end = None if options.until is None else instant("--until", options.until)
    if start is not None and end is not None and start >= end:
        raise InvalidOption(f"--until {options.until} is not after --since {options.since}")
    return start, end


async def keeps_batches_whole(admin: aio.Admin, topic: str) -> bool:
    """False also where the brokers do not say it to this user: it is for a hint."""
    try:
        return (await admin.topic(topic)).whole_batches
    except OgiveError:
        return False


async def _find(
    admin: aio.Admin, options: argparse.Namespace, start: datetime | None, end: datetime | None
) -> list[MessageExt]:
    if options.id is not None:
        return [await admin.message(options.id, topic=options.topic)]
    if options.offset is not None:
        return [await admin.message_at(await named_queue(admin, options), options.offset)]
    return await admin.messages(
        options.topic, key=options.key, start=start, end=end, limit=options.limit
    )


async def named_queue(admin: aio.Admin, options: argparse.Namespace) -> MessageQueue:
    """The one that *options* name by topic, queue and perhaps broker."""
    brokers = [row.broker for row in (await admin.topic(options.topic)).brokers]
    if len(brokers) > 1 and options.broker is None:
        raise InvalidOption(
            f"{options.topic} is on several brokers: say which with --broker ({', '.join(brokers)})"
        )
    return MessageQueue(options.topic, options.broker or brokers[0], options.queue)
