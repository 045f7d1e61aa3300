"""``ogive message`` and ``ogive trace``: find messages.

``ogive message``: one message by id or place, or those with a key or of a time.

``ogive trace``: the history of a message, from the traces of producers and consumers.
"""

import argparse
from dataclasses import asdict
from datetime import datetime
from typing import Final

from ogive import aio, model
from ogive.cli.connect import client_config
from ogive.cli.message_options import LISTED
from ogive.cli.output import (
    period,
    print_message,
    print_message_whole,
    print_rows,
    say_if_more,
)
from ogive.errors import InvalidOption, OgiveError
from ogive.model import MessageExt, MessageQueue
from ogive.wire.trace import TraceRecord

_IN_BATCHES: Final = (
    ". It keeps batches whole, and the keys of messages in them are in no index: "
    "look by --queue and --offset, or in `ogive tail`"
)


async def find_message(options: argparse.Namespace) -> int:
    """Show or list messages. Raises InvalidOption if none is found."""
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
    if by_time:
        say_if_more(len(found), options.limit)
    return 0


def _check(options: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    """Return the limits of the storage time.

    Raises InvalidOption if the options exclude each other.
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
    return period(options)


async def keeps_batches_whole(admin: aio.Admin, topic: str) -> bool:
    """Return True if the topic keeps batches whole. Return False also if brokers do not report it
    to this user: it is only for a hint.
    """
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
    """Return the queue of *options*, by topic, queue and, if necessary, broker."""
    brokers = [row.broker for row in (await admin.topic(options.topic)).brokers]
    if len(brokers) > 1 and options.broker is None:
        raise InvalidOption(
            f"{options.topic} is on several brokers: say which with --broker ({', '.join(brokers)})"
        )
    return MessageQueue(options.topic, options.broker or brokers[0], options.queue)


async def show_trace(options: argparse.Namespace) -> int:
    """Show the traces of a message. Raises InvalidOption if none is found."""
    async with aio.Admin(client=client_config(options)) as admin:
        records = await admin.trace(options.key, trace_topic=options.trace_topic)
    if not records:
        raise InvalidOption(
            f"no trace of {options.key} was found: clients write traces only with trace=True, a "
            "few seconds after "
            "the event, and leave some out under heavy load; old traces are deleted like other "
            "messages"
        )
    print_rows(
        options,
        ("time", "step", "topic", "group", "client", "cost ms", "outcome"),
        [(asdict(record), _line(record)) for record in records],
    )
    return 0


def _line(record: TraceRecord) -> tuple[object, ...]:
    at = model.instant(record.at_ms or 0).replace(tzinfo=None).isoformat(timespec="milliseconds")
    outcome = record.transaction_state or {True: "ok", False: "failed", None: None}[record.success]
    retried = f"retry {record.retries}" if record.retries else None
    words = " ".join(word for word in (outcome, retried, record.error) if word)
    return (
        f"{at}Z" if record.at_ms is not None else None,
        record.step,
        record.topic,
        record.group,
        record.client,
        record.cost_ms,
        words,
    )
