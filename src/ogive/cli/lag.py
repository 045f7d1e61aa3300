"""``ogive lag``: how far a group is behind."""

import argparse
import asyncio
import sys

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_json, print_table
from ogive.client.admin import QueueLag

WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"


async def run(options: argparse.Namespace) -> int:
    """1 when the group has never committed an offset, which a misspelt name looks like."""
    async with aio.Admin(client=client_config(options)) as admin:
        while True:
            rows = await admin.lag(options.group, options.topic)
            if options.watch and not options.json and sys.stdout.isatty():
                print(CLEAR, end="")
            _show(rows, as_json=options.json)
            if not options.watch:
                break
            await asyncio.sleep(WATCH_S)
    if rows:
        return 0
    print(
        f"ogive: group {options.group} has no position in any queue{f' of {options.topic}' if options.topic else ''}: nothing consumed yet",
        file=sys.stderr,
    )
    return 1


def _show(rows: list[QueueLag], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            queue = row.queue
            where = {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id}
            print_json(where | {"offset": row.consumer_offset, "max_offset": row.max_offset, "lag": row.lag, "member": row.member})
    elif rows:
        table = [
            (row.queue.topic, row.queue.broker_name, row.queue.queue_id, row.consumer_offset, row.max_offset, row.lag, row.member)
            for row in rows
        ]
        print_table(("topic", "broker", "queue", "offset", "end", "lag", "member"), table)
        print(f"total lag {sum(row.lag for row in rows):,}", flush=True)
