"""``ogive topic``: list, create, update, show and delete topics.

``ogive topic update`` shows the changes and their effect on senders and groups, then carries them
out.
"""

import argparse
import sys
from typing import Any

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_changes, print_done, print_json, print_rows, print_table
from ogive.client.admin import TopicSummary
from ogive.client.admin.effects import (
    check_new_topic,
    check_queues,
    queue_notes,
    unread_messages,
)
from ogive.errors import InvalidOption, NoRoute, TopicNotExist
from ogive.text import pluralize
from ogive.transport.event_loop import each


async def list_topics(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        topics = await admin.topics(system=options.all)
        counts = await each(topics, lambda topic: _messages(admin, topic))
    rows = [
        (
            {
                "topic": topic.name,
                "queues": topic.read_queues,
                "messages": count,
                "kind": topic.kind,
            },
            (topic.name, topic.read_queues, count, " ".join(topic.brokers)),
        )
        for topic, count in zip(topics, counts, strict=True)
    ]
    print_rows(options, ("topic", "queues", "messages", "brokers"), rows)
    return 0


async def _messages(admin: aio.Admin, topic: TopicSummary) -> int:
    """Return the number of messages in the topic now; 0 if it was deleted since the list was
    read.
    """
    try:
        return sum(row.max_offset - row.min_offset for row in await admin.offsets(topic.name))
    except (NoRoute, TopicNotExist):
        return 0


async def create_topic(options: argparse.Namespace) -> int:
    check_new_topic(options.topic)
    async with aio.Admin(client=client_config(options)) as admin:
        await admin.create_topic(
            options.topic,
            queues=options.queues,
            cluster=options.cluster,
            perm=options.perm,
            message_type=options.message_type,
            whole_batches=options.whole_batches,
        )
    whole = ", and keeps batches whole" if options.whole_batches else ""
    of = f" of {options.cluster}" if options.cluster else ""
    text = (
        f"topic {options.topic} has {pluralize(options.queues, 'queue')} on each broker{of}{whole}"
    )
    print_done(options, text, topic=options.topic, queues=options.queues, cluster=options.cluster)
    return 0


async def show_topic(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        topic = await admin.topic(options.topic)
        offsets = await admin.offsets(options.topic)
    if options.json:
        print_json(
            {
                "topic": topic.name,
                "kind": topic.kind,
                "message_type": topic.message_type,
                "groups": list(topic.groups),
                "brokers": [
                    {
                        "broker": row.broker,
                        "cluster": row.cluster,
                        "address": row.address,
                        "read_queues": row.read_queues,
                        "write_queues": row.write_queues,
                        "perm": row.perm,
                        "order": row.order,
                        "attributes": dict(row.attributes),
                    }
                    for row in topic.brokers
                ],
                "queues": [
                    {
                        "broker": r.queue.broker_name,
                        "queue": r.queue.queue_id,
                        "min_offset": r.min_offset,
                        "max_offset": r.max_offset,
                    }
                    for r in offsets
                ],
            }
        )
        return 0
    whole = ", keeps batches whole" if topic.whole_batches else ""
    print(
        f"topic {topic.name}, "
        f"{topic.kind}{f', {topic.message_type} messages' if topic.message_type else ''}{whole}"
    )
    print(f"consumed by {', '.join(topic.groups) or 'nobody yet'}")
    print()
    rows = [
        (row.broker, row.address, row.cluster, row.read_queues, row.write_queues, row.perm)
        for row in topic.brokers
    ]
    print_table(("broker", "address", "cluster", "read queues", "write queues", "perm"), rows)
    print()
    print_table(
        ("broker", "queue", "first", "end", "messages"),
        [
            (
                r.queue.broker_name,
                r.queue.queue_id,
                r.min_offset,
                r.max_offset,
                r.max_offset - r.min_offset,
            )
            for r in offsets
        ],
    )
    return 0


async def delete_topic(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        try:
            # brokers accept the deletion of an unknown topic: a misspelt name would look deleted
            topic = await admin.topic(options.topic)
        except NoRoute as exc:
            # without the advice to create the topic
            raise NoRoute(exc.fact) from None
        consumed = f", consumed by {', '.join(topic.groups)}" if topic.groups else ""
        confirm(f"delete topic {options.topic} with all its messages{consumed}?", yes=options.yes)
        await admin.delete_topic(options.topic)
    print_done(options, f"topic {options.topic} is deleted", topic=options.topic, deleted=True)
    return 0


async def update_topic(options: argparse.Namespace) -> int:
    """Change a topic. Ask before messages become unreadable that a group has not consumed."""
    wanted = settings(options)
    async with aio.Admin(client=client_config(options)) as admin:
        topic = await admin.topic(options.topic)
        reads, writes = wanted.get("read_queues"), wanted.get("write_queues")
        check_queues(topic.brokers, reads, writes)
        changes = await admin.update_topic(options.topic, **wanted, dry_run=True)
        lost = await unread_messages(admin, topic, reads) if reads is not None else ""
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
    for note in queue_notes(topic, reads, writes):
        print(f"note: {note}", file=sys.stderr)
    return 0


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of ``Admin.update_topic``. Raises InvalidOption."""
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
