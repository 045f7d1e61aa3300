"""Topics: 17 and 18 create or change, 215 delete, 21, 351 and 305 show, 202 statistics, 300 who
consumes, 343 and 345 what a group consumes, 316 forget what has no topic.

Source: AdminBrokerProcessor.java, 5.3.

Behaviour
- A created or changed topic is on stable storage, and the name servers that can be reached know it,
  before the answer leaves.
- Deleting a topic removes its configuration, its queues and every group's offsets, for good before
  the answer leaves; its messages stay in the log, unseen. Until then nobody can make it again (14).
  Deleting what is not there succeeds. Members of groups that are online are told to begin anew with
  the first pull of a topic that is made again, also after a restart; where they broadcast, each of
  them.
- 21 answers by pages where the request asks for them (5.4 and later).
- The retry topics of groups that pop the topic go with it.
- What waits for a deleted topic is not cancelled: delayed and timed messages are stored under it
  when they are due, and so is what is committed (with SUCCESS); the log tells it once. They are in
  queue 0 if the topic is made again, with however many queues, as a topic without
  queue.type=BatchCQ; as one of whole batches it cannot be made while there are such messages.
- In a topic that has fewer queues than when they were sent, they go to a queue that is read.
- 316 removes queues and offsets of topics that are not there, such as a table that was edited by
  hand leaves behind, with what came after a deletion.

Differs from Java
- 18 changes all topics of its list or, where one is refused, none; Java stops at the first that it
  knows already.
- A topic may have no write or no read queues, as in Java, but not the permission bit of 5.5's
  priority topics (8).
- An unchanged update is a success that changes nothing.
- 202 shows every queue that can be read or written; Java only those that can be written.
- Java stores what waited for a queue that nobody may read any more there.
- Java's members go on from their old places in a topic that was deleted and made again, and pass
  over its first messages.
- Queue mappings of static topics do not exist here: the request's "lo" is ignored.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from ogive.broker.pop.topics import retry_topics_of_all, retry_topics_of_group
from ogive.broker.replies import Rejected, success
from ogive.broker.services import Context
from ogive.broker.state.topic_table import change_attributes
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.store.file_reader import each_or_cold
from ogive.store.message_store import MessageStore
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import group_list_dumps, group_subscription_dumps
from ogive.wire.bodies.configs import DataVersion, TopicConfig, topic_configs_loads
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.routes import topic_list_dumps
from ogive.wire.bodies.stats import TopicOffset, topic_stats_dumps
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    AllTopicConfigResponse,
    CleanUnusedTopicRequest,
    CreateTopicListRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    GetAllTopicConfigRequest,
    GetTopicConfigRequest,
    GetTopicStatsRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicConsumeByWhoRequest,
    QueryTopicsByConsumerRequest,
)
from ogive.wire.headers.name_server import GetBrokerSystemTopicListRequest


async def create(
    ctx: Context, connection: Connection, header: CreateTopicRequest, body: bytes
) -> RemotingCommand:
    known = ctx.topics.get(header.topic)
    ctx.topics.create_or_update(
        TopicConfig(
            name=header.topic,
            read_queues=header.read_queue_nums,
            write_queues=header.write_queue_nums,
            perm=header.perm,
            filter_type=header.topic_filter_type,
            sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=change_attributes(known.attributes if known else None, header.attributes),
        )
    )
    await ctx.topics.saved()
    await ctx.registration.registered()
    return success()


async def create_all(
    ctx: Context, connection: Connection, header: CreateTopicListRequest, body: bytes
) -> RemotingCommand:
    configs = topic_configs_loads(body)
    for config in configs:
        ctx.topics.check(config)
    for config in configs:
        known = ctx.topics.get(config.name)
        changes = ",".join(
            f"{name}={value}" if value else name for name, value in config.attributes.items()
        )
        ctx.topics.create_or_update(
            replace(
                config, attributes=change_attributes(known.attributes if known else None, changes)
            )
        )
    await ctx.topics.saved()
    await ctx.registration.registered()
    return success()


async def delete(
    ctx: Context, connection: Connection, header: DeleteTopicRequest, body: bytes
) -> RemotingCommand:
    if not header.topic.strip():
        raise Rejected(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    async with ctx.deletions:
        retries = _read_queues(ctx, retry_topics_of_all(ctx, header.topic))
        with ctx.topics.kept_out({header.topic, *retries}):
            known = ctx.topics.get(header.topic)
            ctx.topics.delete(header.topic)
            for name in retries:
                ctx.topics.delete(name)
            # first: queues without a topic are invisible, while a topic that lost its queues would
            # start over
            await ctx.topics.saved()
            if known is not None or _has_left_something(ctx, header.topic):
                queues = known.read_queues if known is not None else 0
                await _forget(ctx, {header.topic: queues, **retries})
            else:
                # a deletion before this one may not have been able to
                await ctx.save_offsets()
        ctx.modes.forget(lambda topic, _group: topic == header.topic)
        await ctx.modes.saved()
    return success()


async def delete_retry_topics(ctx: Context, group: str) -> None:
    """Delete the retry topics of a group that popped, durably. Raises StoreError."""
    async with ctx.deletions:
        retries = _read_queues(ctx, retry_topics_of_group(ctx, group))
        if retries:
            with ctx.topics.kept_out(retries):
                for name in retries:
                    ctx.topics.delete(name)
                await ctx.topics.saved()
                await _forget(ctx, retries)


def _read_queues(ctx: Context, names: Iterable[str]) -> dict[str, int]:
    """Return those of *names* that are topics, with their numbers of read queues."""
    configs = {name: ctx.topics.get(name) for name in names}
    return {name: config.read_queues for name, config in configs.items() if config is not None}


def _has_left_something(ctx: Context, topic: str) -> bool:
    """Return True if a deletion may have stopped half-way, or something was stored after it."""
    return (
        ctx.store.topics.was_deleted(topic)
        or ctx.offsets.has_topic(topic)
        or ctx.store.topics.has(topic)
    )


async def _forget(ctx: Context, topics: Mapping[str, int]) -> None:
    """Remove the rest of *topics*, which do not exist any more, durably: names with their numbers
    of read queues.

    Raises StoreError; a second call does the rest.
    """
    queues = {topic: set(range(count)) for topic, count in topics.items()}
    for topic, queue_id in ctx.store.queues:
        if topic in queues:
            queues[topic].add(queue_id)
    # first: a read on its way would move the offset in a topic made again
    ctx.leases.forget(lambda _group, topic: topic in queues)
    for topic, queue_ids in queues.items():
        groups = [group for group in ctx.clients.consumers.values() if topic in group.subscriptions]
        ctx.offsets.remove_topic(topic, {group.name: group.audience for group in groups}, queue_ids)
    # then the queues: progress that outlived them would pass over the first messages of a topic
    # made again
    await ctx.save_offsets()
    for topic, queue_ids in queues.items():
        # each looks at all queues
        await ctx.slices.mine()
        ctx.pop_holds.answer_all(topic)
        ctx.notify_holds.answer_all(topic)
        ctx.store.topics.delete(topic)
        ctx.traffic.forget_topic(topic)
        ctx.timers.by_topic.forget(topic)
        ctx.transactions.ended.forget(topic)
        if ctx.duplicates is not None:
            ctx.duplicates.forget_topic(topic)
        for queue_id in queue_ids:
            ctx.holds.answer_all((topic, queue_id))
    for topic in queues:
        while not ctx.store.topics.is_deletion_saved(topic):
            await ctx.synced()


def show_all(
    ctx: Context, connection: Connection, header: GetAllTopicConfigRequest, body: bytes
) -> RemotingCommand:
    count = len(ctx.topics)
    first = min(max(0, header.topic_seq or 0), count)
    end = None if header.max_topic_num is None else first + min(max(1, header.max_topic_num), count)
    page = itertools.islice(ctx.topics.all().items(), first, end)
    answer = {
        "dataVersion": ctx.topics.data_version.to_json(),
        "mappingDataVersion": DataVersion().to_json(),
        "topicConfigTable": {name: config.to_json() for name, config in page},
    }
    return success(AllTopicConfigResponse(total_topic_num=count), dumps(answer))


def show(
    ctx: Context, connection: Connection, header: GetTopicConfigRequest, body: bytes
) -> RemotingCommand:
    return success(body=dumps(_existing(ctx, header.topic).to_json()))


def show_system_topics(
    ctx: Context, connection: Connection, header: GetBrokerSystemTopicListRequest, body: bytes
) -> RemotingCommand:
    return success(body=topic_list_dumps(ctx.topics.system_topics()))


def statistics(
    ctx: Context, connection: Connection, header: GetTopicStatsRequest, body: bytes
) -> RemotingCommand:
    config = _existing(ctx, header.topic)
    queue_ids = range(max(config.read_queues, config.write_queues))
    offsets = each_or_cold(
        partial(_offsets, ctx.store, config.name, queue_id) for queue_id in queue_ids
    )
    table = {
        MessageQueue(config.name, ctx.config.name, queue_id): each
        for queue_id, each in enumerate(offsets)
    }
    return success(body=topic_stats_dumps(table, ctx.traffic.puts.rate(config.name, "")))


def _offsets(store: MessageStore, topic: str, queue_id: int) -> TopicOffset:
    first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    stored_ms = max(0, store.store_time(topic, queue_id, end - 1)) if end else 0
    return TopicOffset(min_offset=first, max_offset=end, last_update_timestamp=stored_ms)


def who_consumes(
    ctx: Context, connection: Connection, header: QueryTopicConsumeByWhoRequest, body: bytes
) -> RemotingCommand:
    online = (
        name for name, group in ctx.clients.consumers.items() if header.topic in group.subscriptions
    )
    return success(body=group_list_dumps(sorted({*online, *ctx.offsets.groups_of(header.topic)})))


def topics_of_group(
    ctx: Context, connection: Connection, header: QueryTopicsByConsumerRequest, body: bytes
) -> RemotingCommand:
    return success(body=topic_list_dumps(sorted(ctx.offsets.topics_of(header.group))))


def subscription_of_group(
    ctx: Context, connection: Connection, header: QuerySubscriptionByConsumerRequest, body: bytes
) -> RemotingCommand:
    group = ctx.clients.consumer_group(header.group)
    subscription = group.subscriptions.get(header.topic) if group is not None else None
    data = subscription.data if subscription is not None else None
    return success(body=group_subscription_dumps(header.group, header.topic, data))


async def clean_unused(
    ctx: Context, connection: Connection, header: CleanUnusedTopicRequest, body: bytes
) -> RemotingCommand:
    async with ctx.deletions:
        kept = [*ctx.store.queues, *ctx.offsets.pairs()]
        unused = {topic: 0 for topic, _ in kept if topic not in ctx.topics}
        with ctx.topics.kept_out(unused):
            await _forget(ctx, unused)
    return success()


def _existing(ctx: Context, name: str) -> TopicConfig:
    config = ctx.topics.get(name)
    if config is None:
        raise Rejected(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name[:256]}"
        )
    return config
