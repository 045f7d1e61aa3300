"""``ogive topic update``: says what would change and what that means for senders and groups, then
changes it.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_changes
from ogive.client.admin import BrokerTopic, Topic
from ogive.errors import InvalidOption
from ogive.words import counted


async def run(options: argparse.Namespace) -> int:
    """Asks before messages are given up that a group has not consumed."""
    wanted = settings(options)
    async with aio.Admin(client=client_config(options)) as admin:
        topic = await admin.topic(options.topic)
        reads, writes = wanted.get("read_queues"), wanted.get("write_queues")
        check_queues(topic.brokers, reads, writes)
        changes = await admin.update_topic(options.topic, **wanted, dry_run=True)
        lost = await _unread(admin, topic, reads) if reads is not None else ""
        if changes and not options.dry_run and lost:
            confirm(
                f"{lost}: they will not be consumed any more. Change topic {options.topic} all the "
                "same?",
                yes=options.yes,
            )
        if not options.dry_run:
            await admin.update_topic(options.topic, **wanted)
    print_changes(changes, f"topic {options.topic}", as_json=options.json, dry_run=options.dry_run)
    if options.dry_run and lost:
        print(f"note: {lost}: they would not be consumed any more", file=sys.stderr)
    for note in notes(topic, reads, writes):
        print(f"note: {note}", file=sys.stderr)
    return 0


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of ``Admin.update_topic``. Raises InvalidOption."""
    if options.queues is not None and (
        options.read_queues is not None or options.write_queues is not None
    ):
        raise InvalidOption("--queues is --read-queues and --write-queues in one: give it alone")
    named = {
        "read_queues": options.read_queues if options.queues is None else options.queues,
        "write_queues": options.write_queues if options.queues is None else options.queues,
        "perm": options.perm,
        "message_type": options.message_type,
    }
    wanted = {name: value for name, value in named.items() if value is not None}
    if not wanted:
        raise InvalidOption(
            "nothing to change: --queues, --read-queues, --write-queues, --perm or --message-type "
            "is needed"
        )
    return wanted


def check_queues(rows: Sequence[BrokerTopic], reads: int | None, writes: int | None) -> None:
    """Raises InvalidOption if senders would fill queues that are not read."""
    if reads is None and writes is None:
        return
    for row in rows:
        to_read, to_write = reads or row.read_queues, writes or row.write_queues
        if to_write > to_read:
            raise InvalidOption(
                f"{to_write} queues to write and {to_read} to read on {row.broker}: nobody would "
                "get what is sent to the others. "
                "--queues changes both; to have fewer, take --write-queues down first"
            )


def notes(topic: Topic, reads: int | None, writes: int | None) -> list[str]:
    """What a user should know about these numbers of queues."""
    said = []
    if writes is not None and any(row.write_queues != writes for row in topic.brokers):
        said.append(
            "with another number of queues a sharding key may go to another queue, while its older "
            "messages are not consumed yet"
        )
    if writes is not None and any(row.write_queues < writes for row in topic.brokers):
        said.append("groups that run take over new queues within about a minute")
    if (
        writes is not None
        and reads is None
        and any(row.write_queues > writes for row in topic.brokers)
    ):
        said.append(
            f"what the queues from {writes} on hold is still consumed. When `ogive lag GROUP` "
            "shows nothing there: "
            f"`ogive topic update {topic.name} --read-queues {writes}`"
        )
    if (
        writes is not None
        and reads is not None
        and any(reads < row.read_queues and writes < row.write_queues for row in topic.brokers)
    ):
        said.append(
            "senders that know the old queues are refused there for up to 30 s; --write-queues "
            "first, --read-queues later spares them that"
        )
    return said


async def _unread(admin: aio.Admin, topic: Topic, reads: int) -> str:
    """The unread messages in queues from *reads* on, in words; empty if there are none."""
    if all(row.read_queues <= reads for row in topic.brokers):
        return ""
    where = f"in the queues from {reads} on"
    if not topic.groups:
        held = sum(
            r.max_offset - r.min_offset
            for r in await admin.offsets(topic.name)
            if r.queue.queue_id >= reads
        )
        return f"{counted(held, 'message')} {where}, consumed by nobody yet" if held else ""
    behind = {
        group: sum(
            row.lag
            for row in await admin.lag(group, topic.name, members=False)
            if row.queue.queue_id >= reads
        )
        for group in topic.groups
    }
    said = ", ".join(f"{lag:,} by {group}" for group, lag in behind.items() if lag)
    return f"messages {where} are not consumed yet ({said})" if said else ""
