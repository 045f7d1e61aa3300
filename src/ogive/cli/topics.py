"""``ogive topic ...``."""

import argparse

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_done, print_json, print_table
from ogive.client.admin import TopicSummary
from ogive.client.admin.records import topic_kind
from ogive.errors import InvalidOption, NoRoute, TopicNotExist
from ogive.words import counted


async def list_topics(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        topics = await admin.topics(system=options.all)
        counts = [await _messages(admin, topic) for topic in topics]
    if options.json:
        for topic, count in zip(topics, counts, strict=True):
            print_json(
                {
                    "topic": topic.name,
                    "queues": topic.read_queues,
                    "messages": count,
                    "kind": topic.kind,
                }
            )
    else:
        rows = [
            (topic.name, topic.read_queues, count, " ".join(topic.brokers))
            for topic, count in zip(topics, counts, strict=True)
        ]
        print_table(("topic", "queues", "messages", "brokers"), rows)
    return 0


async def _messages(admin: aio.Admin, topic: TopicSummary) -> int:
    """How many messages the topic holds now; none where it was deleted since it was listed."""
    try:
        return sum(row.max_offset - row.min_offset for row in await admin.offsets(topic.name))
    except (NoRoute, TopicNotExist):
        return 0


async def create_topic(options: argparse.Namespace) -> int:
    if topic_kind(options.topic) == "system":
        raise InvalidOption(
            f"topic {options.topic}: the name is one of the brokers' own, which `ogive topic list` "
            "leaves out"
        )
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
    text = f"topic {options.topic} has {counted(options.queues, 'queue')} on each broker{of}{whole}"
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
            # brokers delete what is not there without a word: a misspelt name would look done
            topic = await admin.topic(options.topic)
        except NoRoute as exc:
            # nobody who wants it gone is to create it
            raise NoRoute(exc.fact) from None
        consumed = f", consumed by {', '.join(topic.groups)}" if topic.groups else ""
        confirm(f"delete topic {options.topic} with all its messages{consumed}?", yes=options.yes)
        await admin.delete_topic(options.topic)
    print_done(options, f"topic {options.topic} is deleted", topic=options.topic, deleted=True)
    return 0
