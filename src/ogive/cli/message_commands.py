"""``ogive send``, ``ogive message`` and ``ogive trace``.

``ogive message``: one message by id or place, or those with a key or of a time.

``ogive trace``: the history of a message, from the traces of producers and consumers.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from ogive import aio, model
from ogive.cli.connect import client_config
from ogive.cli.message_options import LISTED
from ogive.cli.output import (
    interruptible,
    period,
    print_json,
    print_message,
    print_message_whole,
    print_rows,
    say,
    say_if_more,
)
from ogive.errors import BrokerError, InvalidOption, OgiveError, ProtocolError
from ogive.model import Message, MessageExt, MessageQueue, SendResult, check_tag
from ogive.text import pluralize
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


_UNITS = ((3_600_000, "h"), (60_000, "min"))


async def send(options: argparse.Namespace) -> int:
    """Send standard input, or --body; print where each message was stored."""
    if options.delay is not None and options.delay < 0:
        raise InvalidOption(f"--delay {options.delay:g}: must be 0 or more seconds")
    if options.tag:
        check_tag(options.tag)
    properties = dict(_property(text) for text in options.properties)
    delay_ms = await _delay_ms(options) if options.delay_level else None
    count, heard = 0, True
    async with aio.Producer(client=client_config(options)) as producer:
        for body in _bodies(options):
            if not heard:
                raise OgiveError(
                    f"standard output is closed: after {pluralize(count, 'message')} nothing more "
                    "of the input was sent"
                )
            message = Message(
                options.topic,
                body,
                tag=options.tag,
                keys=tuple(options.keys),
                properties=properties,
                sharding_key=options.sharding_key,
                delay_level=options.delay_level,
                delay_s=options.delay,
                priority=options.priority,
            )
            sent = await producer.send(message)
            count += 1
            try:
                _tell(sent, options, delay_ms)
            except BrokenPipeError:
                # as with ``| head -2``: messages that are not sent are no success
                heard = False
    return 0


def _tell(sent: SendResult, options: argparse.Namespace, delay_ms: int | None) -> None:
    if options.json:
        place = _place(sent, options, delay_ms)
        print_json({"id": sent.id, "status": sent.status.name, **place})
        return
    where = f"{sent.queue.topic} on {sent.queue.broker_name}"
    if options.delay is not None:
        where += f" in {options.delay:g} s"
    elif options.delay_level:
        when = "later" if delay_ms is None else f"in {_duration(delay_ms)}"
        where += f" {when} (delay level {options.delay_level})"
    else:
        where = f"{sent.queue} offset {sent.queue_offset}"
    print(f"{where} id {sent.id}", flush=True)


async def _delay_ms(options: argparse.Namespace) -> int | None:
    """Return the delay of the level at the topic's brokers; None if they do not report their
    levels.

    Raises InvalidOption for a level that they do not have.

    A broker uses its highest level for a higher one: hours, although the user may have meant
    minutes.
    """
    if options.delay_level < 0:
        raise InvalidOption(
            f"--delay-level {options.delay_level}: 1 is the first level, 0 means at once"
        )
    async with aio.Admin(client=client_config(options)) as admin:
        try:
            levels = await admin.delay_levels(options.topic)
        except (BrokerError, ProtocolError):
            # the settings may be secret; sending does not need them
            return None
    if options.delay_level > (count := len(levels.delays_ms)):
        table = ", ".join(map(_duration, levels.delays_ms))
        raise InvalidOption(
            f"--delay-level {options.delay_level}: the broker has {count} "
            f"level{'s' if count > 1 else ''} ({table})"
        )
    return levels.delay_ms(options.delay_level)


def _place(sent: SendResult, options: argparse.Namespace, delay_ms: int | None) -> dict[str, Any]:
    """Return the JSON keys for the place where a message is stored.

    A delayed message gets its place when it is due: the broker's answer is a place among the
    delayed messages.
    """
    where = {"topic": sent.queue.topic, "broker": sent.queue.broker_name}
    if options.delay is not None:
        return where | {"delay_s": options.delay}
    if options.delay_level:
        delay_s = None if delay_ms is None else delay_ms / 1000
        return where | {"delay_level": options.delay_level, "delay_s": delay_s}
    return where | {"queue": sent.queue.queue_id, "offset": sent.queue_offset}


def _duration(milliseconds: int) -> str:
    """Return milliseconds in words: 120,000 as "2 min"."""
    size, unit = next(
        ((size, unit) for size, unit in _UNITS if milliseconds and milliseconds % size == 0),
        (1000, "s"),
    )
    return f"{milliseconds / size:g} {unit}"


def _bodies(options: argparse.Namespace) -> Iterator[bytes]:
    """Yield the bodies to send. Raises InvalidOption if there is none: an empty message must be
    requested explicitly.
    """
    if options.body is not None:
        # the bytes as they were typed, which may not be text
        yield os.fsencode(options.body)
        return
    if sys.stdin is None:
        raise InvalidOption("standard input is closed: say with --body what to send")
    if options.lines:
        with interruptible():
            _say_that_it_reads("messages from the terminal, one a line")
            line = sys.stdin.buffer.readline()
        while line:
            yield line.rstrip(b"\r\n")
            with interruptible():
                line = sys.stdin.buffer.readline()
        return
    with interruptible():
        _say_that_it_reads("the body from the terminal")
        body = sys.stdin.buffer.read()
    if not body:
        raise InvalidOption(
            "standard input is empty, nothing was sent; --body '' sends an empty message"
        )
    yield body


def _say_that_it_reads(what: str) -> None:
    if sys.stdin.isatty():
        say(f"reading {what}; Ctrl-D at the start of a line ends it, Ctrl-C sends nothing more")


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidOption(f"--property {text}: NAME=VALUE is expected")
    if not value:
        raise InvalidOption(
            f"--property {text}: the value is empty, and the protocol has no empty properties"
        )
    return name, value
