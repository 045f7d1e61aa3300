"""``ogive send``, ``ogive message``, ``ogive trace`` and ``ogive dead-letter``."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from ogive import aio, model
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_INTERRUPTED
from ogive.cli.message_options import LISTED
from ogive.cli.options import sql_filter
from ogive.cli.output import (
    confirm,
    interruptible,
    period,
    print_done,
    print_json,
    print_message,
    print_message_whole,
    print_rows,
    say,
    say_if_more,
)
from ogive.client.admin.message_admin import MAX_MESSAGES
from ogive.client.admin.redrive import ChosenLetters, LetterFilter, choose_letters, send_letters
from ogive.errors import BrokerError, InvalidOption, OgiveError, ProtocolError
from ogive.model import Message, MessageExt, MessageQueue, SendResult, check_tag, parse_tags
from ogive.text import pluralize
from ogive.wire.trace import TraceRecord

# ``ogive message`` and ``ogive trace``: find messages.
#
# ``ogive message``: one message by id or place, or those with a key or of a time.
#
# ``ogive trace``: the history of a message, from the traces of producers and consumers.


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


# ``ogive dead-letter``: list the messages that a group could not consume, and send them again.
#
# ``redrive`` selects the letters first, asks, and then sends one after the other.

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
