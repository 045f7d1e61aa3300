"""``ogive tail``: show the messages of a topic, without a consumer group."""

import argparse
import asyncio
import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ogive import aio
from ogive.cli.broker_clock import behind
from ogive.cli.connect import client_config
from ogive.cli.message_commands import keeps_batches_whole
from ogive.cli.message_options import FORMAT_LETTERS
from ogive.cli.options import check_count, sql_filter
from ogive.cli.output import end_interrupted_line, period, print_message, say
from ogive.client.consumer.filter import validate_filter
from ogive.client.listener import Start
from ogive.errors import InvalidOption
from ogive.model import MessageExt, MessageQueue
from ogive.text import escape_lines

_LOOK_S: Final = 0.1
"""Interval at which a command that ends by itself checks if it has read everything."""
STALLED_S: Final = 15.0
"""Time without progress after which such a command asks the brokers itself; a pull may take as
long.
"""
MAX_SKEW: Final = timedelta(seconds=5)
"""Time for which --until waits for each broker's clock, beyond what the broker says of it.
`ogive doctor` warns if a clock is further behind.
"""

_FORMAT: Final = re.compile(r"%(?P<letter>.?)|\\(?P<escape>x[0-9A-Fa-f]{2}|.?)", re.DOTALL)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\"}
_FIELDS: Final[dict[str, Callable[[MessageExt], object]]] = {
    "t": lambda message: message.queue.topic,
    "p": lambda message: message.queue.queue_id,
    "o": lambda message: message.queue_offset,
    "k": lambda message: " ".join(message.keys),
    "s": lambda message: message.body,
    "S": lambda message: len(message.body),
    "T": lambda message: message.store_timestamp_ms,
    "h": lambda message: ",".join(f"{name}={text}" for name, text in message.properties.items()),
    "%": lambda _: "%",
}
_Part = bytes | Callable[[MessageExt], object]


async def tail(options: argparse.Namespace) -> int:
    """Print messages until Ctrl-C, until the end that the options set, or until the reader of the
    output closes it.
    """
    check_count(options.count)
    for one, other, given in (
        ("--from", "--since", options.start and options.since),
        ("--json", "--format", options.json and options.format is not None),
    ):
        if given:
            raise InvalidOption(f"{one} and {other} exclude each other: leave one of them out")
    if options.sql is not None:
        sql_filter("--sql", options.sql)
    validate_filter(options.tag, options.sql)
    start, until = period(options)
    matches, show = _matcher(options.grep), _printer(options)
    endless = options.follow and until is None and options.count is None

    async def read() -> int:
        begin: Start = "latest" if options.follow and until is None else "earliest"
        left = options.count
        async with aio.PullConsumer(
            client=client_config(options),
            tags=options.tag,
            sql=options.sql,
            start=start or options.start or begin,
        ) as consumer:
            queues = await _checked_queues(consumer, options)
            async for message in _messages(consumer, queues, until, options):
                if not matches(message):
                    continue
                show(message)
                if left is not None and (left := left - 1) == 0:
                    break
        return 0

    return await _while_read(read(), endless=endless)


async def _checked_queues(
    consumer: aio.PullConsumer, options: argparse.Namespace
) -> list[MessageQueue]:
    """Return the queues to read. Raises InvalidOption for a queue that does not exist, and the
    error of a broker that refuses to serve one.

    Each broker gets one pull to find that out: the consumer itself would try for ever, because the
    missing permission may be granted later.
    """
    queues = await consumer.queues(options.topic)
    known = sorted({queue.queue_id for queue in queues})
    for number in options.queues:
        if number not in known:
            raise InvalidOption(
                f"--queue {number}: {options.topic} has {', '.join(map(str, known))}"
            )
    queues = [queue for queue in queues if not options.queues or queue.queue_id in options.queues]
    if options.tag != "*" or options.sql is not None:
        await _say_what_filters_do_not_find(options)
    for queue in {queue.broker_name: queue for queue in queues}.values():
        await consumer.pull(
            queue,
            await consumer.beginning_offset(queue),
            max_messages=1,
            tags=options.tag,
            sql=options.sql,
        )
    return queues


async def _say_what_filters_do_not_find(options: argparse.Namespace) -> None:
    async with aio.Admin(client=client_config(options)) as admin:
        if await keeps_batches_whole(admin, options.topic):
            name = "--tag" if options.sql is None else "--sql"
            say(
                f"{options.topic} keeps batches whole: brokers compare {name} with a batch, "
                f"which has none, and pass over its messages. Leave out {name} to see them."
            )


async def _messages(
    consumer: aio.PullConsumer,
    queues: Sequence[MessageQueue],
    until: datetime | None,
    options: argparse.Namespace,
) -> AsyncIterator[MessageExt]:
    """Yield messages. With --no-follow, yield those that the queues hold now; with *until*, those
    that were stored before it.

    With an end, raise the error of a broker that answers nothing any more: the consumer, which
    reads ahead, would try again for ever.
    """
    loop = asyncio.get_running_loop()
    endless = options.follow and until is None
    ends = None if options.follow else {queue: await consumer.end_offset(queue) for queue in queues}
    await consumer.assign(queues)
    reached: dict[MessageQueue, int] = {}
    moved_at = loop.time()
    slowness: timedelta | None = None
    while True:
        if ends is None and until is not None and datetime.now(UTC) - MAX_SKEW >= until:
            if slowness is None:
                slowness = await behind(options, {queue.broker_name for queue in queues})
            if datetime.now(UTC) - MAX_SKEW - slowness >= until:
                ends = {queue: await consumer.offset_at(queue, until) for queue in queues}
        if ends is not None:
            before, reached = reached, {queue: await consumer.position(queue) for queue in queues}
            missing = [queue for queue in queues if reached[queue] < ends[queue]]
            if not missing:
                return
            if reached != before:
                moved_at = loop.time()
            elif loop.time() - moved_at >= STALLED_S:
                for queue in missing:
                    await consumer.pull(queue, reached[queue], max_messages=1)
                moved_at = loop.time()
        for message in await consumer.poll(None if endless else _LOOK_S):
            if (ends is None or message.queue_offset < ends[message.queue]) and (
                until is None or message.stored_at < until
            ):
                yield message


def _matcher(pattern: str | None) -> Callable[[MessageExt], bool]:
    """Return a function that tests a body. Raises InvalidOption for a bad pattern."""
    if pattern is None:
        return lambda _: True
    try:
        search = re.compile(pattern).search
    except re.error as exc:
        raise InvalidOption(f"--grep {pattern}: {exc}; a regular expression is expected") from None
    return lambda message: search(message.body.decode(errors="replace")) is not None


def _printer(options: argparse.Namespace) -> Callable[[MessageExt], None]:
    """Return the function that prints a message. Raises InvalidOption for a bad --format."""
    if options.format is None:
        return lambda message: print_message(message, as_json=options.json)
    parts = _parse_format(options.format)

    def show(message: MessageExt) -> None:
        for part in parts:
            sys.stdout.buffer.write(part if isinstance(part, bytes) else _bytes(part(message)))
        sys.stdout.buffer.flush()

    return show


def _bytes(value: object) -> bytes:
    """Return a field as it is printed: escaped on a terminal, unchanged for a pipe or file."""
    if sys.stdout.isatty():
        text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
        return escape_lines(text).encode()
    return value if isinstance(value, bytes) else str(value).encode()


def _parse_format(text: str) -> list[_Part]:
    """Return the parts of a --format. Raises InvalidOption for an unknown letter or escape."""
    parts: list[_Part] = []
    at = 0
    for found in _FORMAT.finditer(text):
        parts.append(os.fsencode(text[at : found.start()]))
        at = found.end()
        letter, escaped = found["letter"], found["escape"]
        if letter is not None:
            if letter not in _FIELDS:
                known = ", ".join(f"%{one} {what}" for one, what in FORMAT_LETTERS.items())
                raise InvalidOption(f"--format: there is no {found[0]!r}; known: {known}")
            parts.append(_FIELDS[letter])
        elif escaped in _ESCAPES:
            parts.append(_ESCAPES[escaped])
        elif len(escaped) == 3:
            parts.append(bytes.fromhex(escaped[1:]))
        else:
            raise InvalidOption(
                f"--format: there is no '{found[0]}'; known: \\n, \\t, \\r, \\\\, \\x00 to \\xff"
            )
    parts.append(os.fsencode(text[at:]))
    return parts


async def _while_read(work: Coroutine[Any, Any, int], *, endless: bool) -> int:
    """Return the result of *work*, or 0 after Ctrl-C if *work* is *endless*.

    Raises BrokenPipeError as soon as the reader of standard output closes it, as in ``ogive tail
    Orders | head``. A write would notice that only with the next message, which may never come.
    """
    task, gone = asyncio.ensure_future(work), False

    def leave() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    output = _pipe()
    if output is not None:
        # the loop wakes up on the error; there is never anything to read
        asyncio.get_running_loop().add_reader(output, leave)
    try:
        return await task
    except asyncio.CancelledError:
        if gone:
            raise BrokenPipeError from None
        if not endless:
            raise
        end_interrupted_line()
        return 0
    finally:
        if output is not None:
            asyncio.get_running_loop().remove_reader(output)


def _pipe() -> int | None:
    """Return the descriptor of standard output if it is a pipe."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        # standard output was replaced by an object without a descriptor
        return None
    return output if stat.S_ISFIFO(os.fstat(output).st_mode) else None
