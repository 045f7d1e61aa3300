"""Output of commands: tables for people, JSON lines for programs; times in options."""

import argparse
import contextlib
import json
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

from ogive.cli.colour import bold
from ogive.client.admin.records import SettingChange, SettingValue, body_text, message_record
from ogive.errors import InvalidOption
from ogive.model import DLQ_PREFIX, MessageExt, PropertyName
from ogive.text import escape, escape_json, escape_lines
from ogive.wire.codes import SysFlag

_AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
_AGE_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def instant(
    option: str, text: str, expected: str = "a time such as 2026-11-01T08:00 is expected"
) -> datetime:
    """Return a time; one without a zone is local. Raises InvalidOption."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidOption(f"{option} {text}: {expected}") from None


def instant_or_age(
    option: str, text: str, expected: str = "a time such as 2026-11-01T08:00, or 2h, is expected"
) -> datetime:
    """Return a time, or one as long ago as *text* says: ``90s``, ``15m``, ``2h`` or ``7d``.

    Raises InvalidOption.
    """
    age = _AGE.fullmatch(text)
    if age is None:
        return instant(option, text, expected)
    try:
        return datetime.now(UTC) - timedelta(seconds=int(age[1]) * _AGE_UNITS_S[age[2]])
    except OverflowError:
        raise InvalidOption(f"{option} {text}: {expected}") from None


def period(options: argparse.Namespace) -> tuple[datetime | None, datetime | None]:
    """Return --since and --until. Raises InvalidOption if they are no times, or out of order."""
    start = None if options.since is None else instant_or_age("--since", options.since)
    end = None if options.until is None else instant_or_age("--until", options.until)
    if start is not None and end is not None and start >= end:
        raise InvalidOption(f"--until {options.until} is not after --since {options.since}")
    return start, end


def print_json(record: dict[str, Any]) -> None:
    """Print one line and flush it: a reader of the pipe sees it at once."""
    print(escape_json(json.dumps(record, ensure_ascii=False)), flush=True)


def say(text: str) -> None:
    """Print a line for people on standard error, where it does not mix with the output."""
    print(f"ogive: {text}", file=sys.stderr, flush=True)


def end_interrupted_line() -> None:
    """End the line on which a terminal shows ^C."""
    if sys.stderr.isatty():
        print(file=sys.stderr)


def say_if_more(shown: int, limit: int) -> None:
    """Say that a list may be incomplete, if as many items as its *limit* were shown."""
    if shown == limit:
        say(f"there may be more; --limit shows more than {limit}")


def print_done(options: argparse.Namespace, text: str, **record: Any) -> None:
    """Report what a command did: a sentence, or with --json *record*."""
    if options.json:
        print_json(record)
    else:
        print(text, flush=True)


def print_rows(
    options: argparse.Namespace,
    heads: Sequence[str],
    rows: Sequence[tuple[dict[str, Any], Sequence[object]]],
) -> None:
    """Print a list: a table with the cells of *rows*, or with --json the record of each row."""
    if options.json:
        for record, _ in rows:
            print_json(record)
    else:
        print_table(heads, [cells for _, cells in rows])


_BARS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Collection[int]) -> str:
    """Return a bar for each value, as high as its share of the highest one."""
    highest = max(1, *values)
    return "".join(_BARS[round(value / highest * (len(_BARS) - 1))] for value in values)


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], file: TextIO | None = None
) -> None:
    """Print columns as wide as their content; numbers are right-aligned with thousands separated,
    fractions have one decimal place.
    """
    out = sys.stdout if file is None else file
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = (
        [_is_numeric(column) for column in zip(*rows, strict=True)]
        if cells
        else [False] * len(heads)
    )
    widths = [
        max(len(head), *(len(row[i]) for row in cells)) if cells else len(head)
        for i, head in enumerate(heads)
    ]

    def line(values: Sequence[str]) -> str:
        return "  ".join(
            v.rjust(w) if right else v.ljust(w)
            for v, w, right in zip(values, widths, numeric, strict=True)
        ).rstrip()

    print(bold(line([head.upper() for head in heads]), out), file=out)
    for row in cells:
        print(line(row), file=out)
    out.flush()


def print_changes(
    changes: Sequence[SettingChange], of: str, *, as_json: bool, dry_run: bool
) -> None:
    """Print the settings *of* a topic or group that were changed, or would be."""
    if as_json:
        for row in changes:
            print_json(
                {
                    "broker": row.broker,
                    "setting": row.setting,
                    "before": row.before,
                    "after": row.after,
                    "dry_run": dry_run,
                }
            )
        return
    if not changes:
        print(f"{of} is like that already")
        return
    rows = [
        (row.broker, row.setting.replace("_", " "), _word(row.before), _word(row.after))
        for row in changes
    ]
    print_table(("broker", "setting", "before", "after"), rows)
    if dry_run:
        print("nothing was changed; leave out --dry-run to do it", file=sys.stderr)


def _word(value: SettingValue | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def _is_numeric(column: Sequence[object]) -> bool:
    """Return True for a column of numbers, some of which may be missing."""
    return all(value is None or isinstance(value, int | float) for value in column) and any(
        value is not None for value in column
    )


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else "" if value is None else escape(str(value))


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees.

    Raises InvalidOption otherwise; without a terminal only --yes agrees.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidOption(f"{question} There is nobody to ask here: add --yes")
    try:
        # input() would write its prompt to standard output, which may be a file or a pipe
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        with interruptible():
            answer = input()
    except EOFError:  # Ctrl-D
        print(file=sys.stderr)
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidOption("nothing was changed")


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the reading of the user's input.

    Inside asyncio.run the first Ctrl-C only cancels the task, which notices it when the read is
    over: here it ends the command, as elsewhere.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def print_message(
    message: MessageExt, *, as_json: bool, with_id: bool = False, dead_letter: bool = False
) -> None:
    """Print a message on one line, except for line breaks in the body.

    *dead_letter*: with its id, its original topic, and the number of tries.
    """
    body = body_text(message)
    if not as_json:
        shown = _shown(message, body)
        marks = " ".join(
            word
            for word in (
                message.tag and f"tag={message.tag}",
                *(f"key={key}" for key in message.keys),
            )
            if word
        )
        where = f"{message.queue.queue_id}/{message.queue_offset}"
        name = f"id={message.id} " if with_id or dead_letter else ""
        if dead_letter:
            name += _origin(message)
        print(
            f"{utc_text(message.stored_at)} {where} "
            f"{escape(name + marks)}{' ' if marks else ''}{shown}",
            flush=True,
        )
        return
    print_json(message_record(message))


def _origin(letter: MessageExt) -> str:
    """Return ``from Orders after 3 tries ``; empty for a message that a producer sent to the dead
    letters.
    """
    topic, tries = letter.properties.get(PropertyName.RETRY_TOPIC), letter.reconsume_times
    origin = f"from {topic} after {tries} {'try' if tries == 1 else 'tries'} " if topic else ""
    removed = letter.properties.get(PropertyName.REMOVED_PROPERTIES)
    original = letter.properties.get(PropertyName.ORIGIN_MESSAGE_ID)
    return (
        f"{origin}(without its properties {removed}; whole: `ogive message {original}`) "
        if removed
        else origin
    )


def print_message_whole(message: MessageExt) -> None:
    """Print a whole message, for people."""
    body = body_text(message)
    heads = {
        "id": message.id,
        "offset id": message.offset_id,
        "place": f"{message.queue} offset {message.queue_offset}",
        "born": f"{utc_text(message.born_at)} at {message.born_host}",
        "stored": f"{utc_text(message.stored_at)} at {message.store_host}",
        "tag": message.tag,
        "keys": " ".join(message.keys),
        # the last try of a dead letter was no retry
        "tries" if message.queue.topic.startswith(DLQ_PREFIX) else "retries": (
            message.reconsume_times or None
        ),
    }
    for name, value in heads.items():
        if value:
            print(f"{name + ':':<11}{escape(str(value))}")
    for name, value in sorted(message.properties.items()):
        print(escape(f"  {name} = {value}"))
    print()
    print(_batch(message) or _shown(message, body))
    sys.stdout.flush()


def _batch(message: MessageExt) -> str:
    """Return a text instead of the body of a batch that its topic keeps as one record."""
    count = message.properties.get("INNER_NUM", "")
    if not (message.sys_flag & SysFlag.NEED_UNWRAP and count.isdecimal()):
        return ""
    first, queue = message.queue_offset, message.queue
    place = f"--topic {queue.topic} --queue {queue.queue_id} --offset {first}"
    return (
        f"a batch of {count} messages, offsets {first} to {first + int(count) - 1}; the first "
        f"one: ogive message {place}"
    )


def _shown(message: MessageExt, body: str | None) -> str:
    """Return the body made readable for a terminal; unchanged for a pipe or file."""
    if body is None:
        return repr(message.body)
    return escape_lines(body) if sys.stdout.isatty() else body


def utc_text(at: datetime) -> str:
    """Return a time in UTC, to the millisecond, as all commands print it."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
