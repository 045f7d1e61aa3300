"""``ogive trace``: what happened to a message, from the traces of producers and consumers."""

import argparse
from dataclasses import asdict

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_json, print_table
from ogive.errors import InvalidOption
from ogive.model import instant
from ogive.wire.trace import TraceRecord


async def run(options: argparse.Namespace) -> int:
    """1 when nothing is found."""
    records = await _trace(options)
    if not records:
        raise InvalidOption(
            f"no trace of {options.key} was found: clients write traces only with trace=True, a "
            "few seconds after "
            "the event, and leave some out under heavy load; old traces are deleted like other "
            "messages"
        )
    if options.json:
        for record in records:
            print_json(asdict(record))
    else:
        print_table(
            ("time", "step", "topic", "group", "host", "cost ms", "outcome"),
            [_line(record) for record in records],
        )
    return 0


async def _trace(options: argparse.Namespace) -> list[TraceRecord]:
    async with aio.Admin(client=client_config(options)) as admin:
        return await admin.trace(options.key, trace_topic=options.trace_topic)


def _line(record: TraceRecord) -> tuple[object, ...]:
    at = instant(record.at_ms or 0).replace(tzinfo=None).isoformat(timespec="milliseconds")
    outcome = record.transaction_state or {True: "ok", False: "failed", None: None}[record.success]
    retried = f"retry {record.retries}" if record.retries else None
    words = " ".join(word for word in (outcome, retried) if word)
    return (
        f"{at}Z" if record.at_ms is not None else None,
        record.step,
        record.topic,
        record.group,
        record.host,
        record.cost_ms,
        words,
    )
