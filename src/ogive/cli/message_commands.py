"""``ogive send``."""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import interruptible, print_json, say
from ogive.errors import BrokerError, InvalidOption, OgiveError, ProtocolError
from ogive.model import Message, SendResult, check_tag
from ogive.text import pluralize

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
