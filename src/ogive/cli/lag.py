"""``ogive lag``: how far a group is behind."""

import argparse
import asyncio
import sys
from typing import NoReturn

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_json, print_table
from ogive.client.admin import QueueLag
from ogive.errors import (
    BrokerError,
    GroupNotExist,
    NoNameServer,
    NoRoute,
    ProtocolError,
    TransportError,
)
from ogive.harmless import harmless_text

WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"


async def run(options: argparse.Namespace) -> int:
    """1 when the group has never committed an offset, or no broker knows it."""
    async with aio.Admin(client=client_config(options)) as admin:
        rows = await admin.lag(options.group, options.topic)
        if not rows:
            await check_topic(admin, options.topic)
        if options.watch:
            await _watch(admin, rows, options)
    _show(rows, options)
    return 0 if rows else 1


async def _watch(admin: aio.Admin, rows: list[QueueLag], options: argparse.Namespace) -> NoReturn:
    while True:
        if not options.json and sys.stdout.isatty():
            print(CLEAR, end="")
        _show(rows, options)
        await asyncio.sleep(WATCH_S)
        rows = await _rows_again(admin, options)


async def _rows_again(admin: aio.Admin, options: argparse.Namespace) -> list[QueueLag]:
    """As soon as there is an answer: a broker that restarts does not end the watching."""
    while True:
        try:
            return await admin.lag(options.group, options.topic)
        except (TransportError, NoNameServer, NoRoute) as exc:
            print(f"ogive: {harmless_text(str(exc))}", file=sys.stderr)
            await asyncio.sleep(WATCH_S)


async def check_topic(admin: aio.Admin, topic: str | None) -> None:
    """Raise TopicNotExist, which names similar topics, if the topic does not exist."""
    if topic is not None:
        await admin.topic(topic)


async def refuse_unknown(admin: aio.Admin, group: str) -> None:
    """Raise GroupNotExist if no broker has the group. If brokers list no groups, do nothing."""
    try:
        await admin.group(group)
    except GroupNotExist:
        raise
    except (BrokerError, ProtocolError):
        pass


def nothing_consumed(options: argparse.Namespace) -> str:
    of = f" of {options.topic}" if options.topic else ""
    return f"ogive: group {options.group} has no position in any queue{of}: nothing consumed yet"


def _show(rows: list[QueueLag], options: argparse.Namespace) -> None:
    if not rows:
        print(nothing_consumed(options), file=sys.stderr)
    elif options.json:
        for row in rows:
            queue = row.queue
            where = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
            print_json(
                where
                | {
                    "offset": row.consumer_offset,
                    "max_offset": row.max_offset,
                    "lag": row.lag,
                    "member": row.member,
                }
            )
    else:
        table = [
            (
                row.queue.topic,
                row.queue.broker_name,
                row.queue.queue_id,
                row.consumer_offset,
                row.max_offset,
                row.lag,
                row.member,
            )
            for row in rows
        ]
        print_table(("topic", "broker", "queue", "offset", "end", "lag", "member"), table)
        print(f"total lag {sum(row.lag for row in rows):,}", flush=True)
