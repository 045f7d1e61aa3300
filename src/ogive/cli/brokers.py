"""``ogive broker ...``: the brokers of a cluster and what they report."""

import argparse

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import print_json, print_table
from ogive.client.admin import BrokerStatus
from ogive.errors import InvalidOption
from ogive.model import instant


async def list_brokers(options: argparse.Namespace) -> int:
    """1 when one of them does not answer."""
    rows = await _brokers(options)
    if options.json:
        for row in rows:
            print_json(_record(row))
    else:
        heads = (
            "cluster",
            "broker",
            "id",
            "address",
            "version",
            "in/s",
            "out/s",
            "in today",
            "out today",
            "disk",
            "",
        )
        print_table(heads, [_line(row) for row in rows])
    return 1 if any(row.trouble for row in rows) else 0


async def show_broker(options: argparse.Namespace) -> int:
    """1 when it does not answer."""
    rows = await _brokers(options)
    found = [row for row in rows if options.broker in (row.name, row.address)]
    if not found:
        there = ", ".join(sorted({row.name for row in rows}))
        raise InvalidOption(
            f"there is no broker {options.broker}; there are: {there}. `ogive broker list` shows "
            "their addresses, too"
        )
    for row in found:
        if options.json:
            print_json(_record(row) | {"figures": dict(row.figures)})
            continue
        print(
            f"broker {row.name} (id {row.broker_id}) at {row.address}, cluster {row.cluster}, "
            f"version {row.version or 'unknown'}"
        )
        if row.trouble:
            print(f"does not answer: {row.trouble}")
            continue
        if row.oldest_message_ms is not None:
            print(
                f"oldest message {instant(row.oldest_message_ms).replace(tzinfo=None).isoformat()}Z"
            )
        print()
        print_table(("figure", "value"), sorted(row.figures.items()))
    return 1 if any(row.trouble for row in found) else 0


async def _brokers(options: argparse.Namespace) -> list[BrokerStatus]:
    async with aio.Admin(client=client_config(options)) as admin:
        return await admin.brokers()


def _line(row: BrokerStatus) -> tuple[object, ...]:
    disk = None if row.disk_used is None else f"{row.disk_used:.0%}"
    rates = row.puts_per_s, row.gets_per_s
    return (
        row.cluster,
        row.name,
        row.broker_id,
        row.address,
        row.version,
        *rates,
        row.puts_today,
        row.gets_today,
        disk,
        row.trouble,
    )


def _record(row: BrokerStatus) -> dict[str, object]:
    return {
        "cluster": row.cluster,
        "broker": row.name,
        "id": row.broker_id,
        "address": row.address,
        "version": row.version,
        "puts_per_s": row.puts_per_s,
        "gets_per_s": row.gets_per_s,
        "puts_today": row.puts_today,
        "gets_today": row.gets_today,
        "disk_used": row.disk_used,
        "oldest_message_ms": row.oldest_message_ms,
        "trouble": row.trouble,
    }
