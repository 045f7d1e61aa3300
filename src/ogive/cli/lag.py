"""``ogive lag``: how far a group is behind."""

import argparse
import asyncio
import sys

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_json, print_table
from ogive.client.admin import QueueLag
from ogive.errors import BrokerError, GroupNotExist, ProtocolError

WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"


async def run(options: argparse.Namespace) -> int:
    """1 when the group has never committed an offset, or no broker knows it."""
    async with aio.Admin(client=client_config(options)) as admin:
        while True:
            rows = await admin.lag(options.group, options.topic)
            if not rows and not options.watch:
                await refuse_unknown(admin, options.group)
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


async def refuse_unknown(admin: aio.Admin, group: str) -> None:
    """Raises GroupNotExist with the names that are similar. Where brokers do not tell, the group counts as known."""
    try:
        await admin.group(group)
    except GroupNotExist:
        raise
    except (BrokerError, ProtocolError):
        return


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
