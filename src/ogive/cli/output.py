"""Tables for people, JSON lines for programs."""

import json
import signal
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from ogive.errors import InvalidOption
from ogive.model import MessageExt


def print_json(record: dict[str, Any]) -> None:
    """One line, flushed: a reader of the pipe sees it at once."""
    print(json.dumps(record, ensure_ascii=False), flush=True)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their content; numbers right-aligned with thousands separated."""
    cells = [[_cell(value) for value in row] for row in rows]
    numeric = [all(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)] if cells else [False] * len(heads)
    widths = [max(len(head), *(len(row[i]) for row in cells)) if cells else len(head) for i, head in enumerate(heads)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if right else v.ljust(w) for v, w, right in zip(values, widths, numeric, strict=True)).rstrip()

    print(line([head.upper() for head in heads]))
    for row in cells:
        print(line(row))
    sys.stdout.flush()


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees. Raises InvalidOption otherwise; where nobody can be asked, only --yes agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidOption(f"{question} Nobody can be asked here: add --yes")
    try:
        answer = _ask(f"{question} [y/N] ")
    except EOFError:  # Ctrl-D
        print()
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidOption("nothing was changed")


def _ask(question: str) -> str:
    """A line of the user's. Inside asyncio.run the first Ctrl-C only cancels the task, which hears of it when the line is there: here it
    ends the command, as elsewhere."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input(question)
    finally:
        signal.signal(signal.SIGINT, before)


def print_message(message: MessageExt, *, as_json: bool, with_id: bool = False) -> None:
    """One line."""
    body = _text(message)
    if not as_json:
        shown = repr(message.body) if body is None else body
        marks = " ".join(word for word in (message.tag and f"tag={message.tag}", *(f"key={key}" for key in message.keys)) if word)
        where = f"{message.queue.queue_id}/{message.queue_offset}"
        name = f"id={message.id} " if with_id else ""
        print(f"{_utc(message.stored_at)} {where} {name}{marks}{' ' if marks else ''}{shown}", flush=True)
        return
    print_json(
        {
            "topic": message.topic,
            "broker": message.queue.broker_name,
            "queue": message.queue.queue_id,
            "offset": message.queue_offset,
            "id": message.id,
            "tag": message.tag,
            "keys": list(message.keys),
            "properties": dict(message.properties),
            "born_at": message.born_at.isoformat(),
            "stored_at": message.stored_at.isoformat(),
            "reconsume_times": message.reconsume_times,
            **({"body": body} if body is not None else {"body_hex": message.body.hex()}),
        }
    )


def print_message_whole(message: MessageExt) -> None:
    """All of it, for people."""
    body = _text(message)
    heads = {
        "id": message.id,
        "offset id": message.offset_id,
        "place": f"{message.queue} offset {message.queue_offset}",
        "born": f"{_utc(message.born_at)} at {message.born_host}",
        "stored": f"{_utc(message.stored_at)} at {message.store_host}",
        "tag": message.tag,
        "keys": " ".join(message.keys),
        "retries": message.reconsume_times or None,
    }
    for name, value in heads.items():
        if value:
            print(f"{name + ':':<11}{value}")
    for name, value in sorted(message.properties.items()):
        print(f"  {name} = {value}")
    print()
    print(repr(message.body) if body is None else body)
    sys.stdout.flush()


def _text(message: MessageExt) -> str | None:
    """None for a body that is no text."""
    try:
        return message.text
    except UnicodeDecodeError:
        return None


def _utc(at: datetime) -> str:
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
