"""``ogive message``: one message by id, or those with a key."""

import argparse
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_message, print_message_whole
from ogive.errors import InvalidOption, OgiveError
from ogive.model import MessageExt, MessageQueue

_IN_BATCHES: Final = (
    ". It keeps batches whole, and the keys of messages in them are in no index: look by --queue and --offset, or in `ogive tail`"
)


async def run(options: argparse.Namespace) -> int:
    """1 when nothing is found."""
    ways = sum(value is not None for value in (options.id, options.key, options.offset))
    if ways != 1:
        raise InvalidOption("say which message: ID, or --topic with --key, or --topic with --queue and --offset")
    if options.id is None and options.topic is None:
        raise InvalidOption("--key and --offset are looked up in a topic: add --topic")
    async with aio.Admin(client=client_config(options)) as admin:
        found = await _find(admin, options)
        whole = not found and await keeps_batches_whole(admin, options.topic)
    for number, message in enumerate(found):
        if options.json:
            print_message(message, as_json=True)
            continue
        if number:
            print()
        print_message_whole(message)
    if not found:
        raise InvalidOption(f"topic {options.topic} has no message with the key {options.key}{_IN_BATCHES if whole else ''}")
    return 0


async def keeps_batches_whole(admin: aio.Admin, topic: str) -> bool:
    """False also where the brokers do not say it to this user: it is for a hint."""
    try:
        return (await admin.topic(topic)).whole_batches
    except OgiveError:
        return False


async def _find(admin: aio.Admin, options: argparse.Namespace) -> list[MessageExt]:
    if options.id is not None:
        return [await admin.message(options.id, topic=options.topic)]
    if options.key is not None:
        return await admin.messages(options.topic, key=options.key)
    return [await admin.message_at(await named_queue(admin, options), options.offset)]


async def named_queue(admin: aio.Admin, options: argparse.Namespace) -> MessageQueue:
    """The one that *options* name by topic, queue and perhaps broker."""
    brokers = [row.broker for row in (await admin.topic(options.topic)).brokers]
    if len(brokers) > 1 and options.broker is None:
        raise InvalidOption(f"{options.topic} is on several brokers: say which with --broker ({', '.join(brokers)})")
    return MessageQueue(options.topic, options.broker or brokers[0], options.queue)
