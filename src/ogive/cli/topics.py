"""``ogive topic list`` and ``ogive topic create``."""

import argparse
import asyncio

from ogive import aio
from ogive.cli.output import print_json, print_table
from ogive.client.admin import TopicSummary
from ogive.errors import NoRoute, TopicNotExist


def list_topics(options: argparse.Namespace) -> int:
    return asyncio.run(_list_topics(options))


async def _list_topics(options: argparse.Namespace) -> int:
    async with aio.Admin(options.name_server) as admin:
        topics = await admin.topics(system=options.all)
        counts = [await _messages(admin, topic) for topic in topics]
    if options.json:
        for topic, count in zip(topics, counts, strict=True):
            print_json({"topic": topic.name, "queues": topic.read_queues, "messages": count})
    else:
        rows = [(topic.name, topic.read_queues, count, " ".join(topic.brokers)) for topic, count in zip(topics, counts, strict=True)]
        print_table(("topic", "queues", "messages", "brokers"), rows)
    return 0


async def _messages(admin: aio.Admin, topic: TopicSummary) -> int:
    """How many messages the topic holds now; none where it was deleted since it was listed."""
    try:
        return sum(row.max_offset - row.min_offset for row in await admin.offsets(topic.name))
    except (NoRoute, TopicNotExist):
        return 0


def create_topic(options: argparse.Namespace) -> int:
    return asyncio.run(_create_topic(options))


async def _create_topic(options: argparse.Namespace) -> int:
    async with aio.Admin(options.name_server) as admin:
        await admin.create_topic(options.topic, queues=options.queues)
    print(f"topic {options.topic} has {options.queues} queues on each broker")
    return 0
