"""Consumer groups, and the offsets of groups and queues.

Consumer groups: 200 and 225 create or change, 207 delete, 201 and 352 show; 353 forbids one to
read a topic, allows or shows it.

Source: AdminBrokerProcessor.java, 5.5.

Behaviour
- A created, changed or deleted group is on stable storage before the answer leaves.
- 207 removes the group's offsets where asked to (cleanOffset, removeOffset in 4.9), also on stable
  storage; its own retry topic and its dead letters stay. What was popped, and the retry topics of
  that, go with it.
- The attributes of a request are changes, "+name" or "-name": those that it does not name stay.
- 201 answers by pages where the request asks for them (5.4 and later).

Differs from Java
- 225 changes all groups of its list or, where one is refused, none.
- 352 shows a group and never makes one.
- 353 is about groups and topics that there are; allowing one topic leaves what is forbidden of
  others, and is kept over a restart.
- Deleting what is not there succeeds without a change of the table's version.

Offsets of queues and groups: QUERY (14) and UPDATE_CONSUMER_OFFSET (15), SEARCH_OFFSET_BY_TIMESTAMP
(29), GET_MAX (30) and GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32),
INVOKE_BROKER_TO_RESET_OFFSET (222), CLONE_GROUP_OFFSET (314); and VIEW_MESSAGE_BY_ID (33).

Source: ConsumerManageProcessor.java, AdminBrokerProcessor.java, QueryMessageProcessor.java, 5.3.

Behaviour
- No progress of a group in a queue: 22, unless the queue is there and still starts at 0; then
  offset 0, so that a new group misses nothing.
- Offsets of a queue that does not exist are 0. The maximum counts what consumers can see.
- Progress beyond the end of its queue is answered and not taken: the next messages would be passed
  over. Not so in a topic without write permission, where none come: such offsets are numbers that a
  program keeps at the broker.
- 222 and 314 put a group elsewhere at once. Members that are online learn it with their next pull
  (see broker/pulls/pull.py), each of them, as around a rebalance two may stand in one queue; until
  the pull after that, what they commit is answered and not taken. For client_expiry_s so does
  whoever else comes with a place that was not given to it since: members may be away for a moment.
  Who has asked (14) and goes on from there is left alone.

Differs from Java
- 222 for one queue refuses an offset that the queue does not have, and a queue that the topic does
  not have.
- A group that nobody has been online for since longer is only put elsewhere: a member that starts
  asks (14). Java tells that one, too, with its first pull, which costs it a rebalance; and only the
  first pull of a queue is told, whoever it is of.
- 314 needs the target group to exist, takes all topics of the source unless one is named, and does
  not look at "offline".
- "Starts at 0" does not ask whether the first messages are still in memory.
- VIEW_MESSAGE_BY_ID answers only where a whole record starts; Java trusts the offset.
"""

from dataclasses import replace
from functools import partial

from ogive.broker.handlers.topics import delete_retry_topics
from ogive.broker.replies import Rejected, success
from ogive.broker.services import Context
from ogive.broker.state.topic_table import change_group_attributes
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.store.file_reader import each_or_cold
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig, group_configs_loads
from ogive.wire.bodies.json_fields import PERM_WRITE, dumps, loads_object
from ogive.wire.bodies.stats import offset_table_dumps
from ogive.wire.codes import BEYOND_THE_END
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    AllGroupsResponse,
    CreateGroupListRequest,
    CreateGroupRequest,
    DeleteGroupRequest,
    GetAllGroupsRequest,
    GetGroupConfigRequest,
    UpdateGroupForbiddenRequest,
)
from ogive.wire.headers.pull import (
    CloneGroupOffsetRequest,
    GetEarliestStoreTimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    ResetOffsetRequest,
    SearchOffsetRequest,
    TimestampResponse,
    UpdateConsumerOffsetRequest,
    ViewMessageRequest,
)


async def create(
    ctx: Context, connection: Connection, header: CreateGroupRequest, body: bytes
) -> RemotingCommand:
    wanted = SubscriptionGroupConfig.from_json(loads_object(body))
    ctx.groups.create_or_update(_after(ctx.groups.get(wanted.name), wanted))
    await ctx.groups.saved()
    return success()


async def create_all(
    ctx: Context, connection: Connection, header: CreateGroupListRequest, body: bytes
) -> RemotingCommand:
    configs: dict[str, SubscriptionGroupConfig] = {}
    for wanted in group_configs_loads(body):
        configs[wanted.name] = _after(
            configs.get(wanted.name) or ctx.groups.get(wanted.name), wanted
        )
        ctx.groups.check(configs[wanted.name])
    for config in configs.values():
        ctx.groups.create_or_update(config)
    await ctx.groups.saved()
    return success()


def _after(
    current: SubscriptionGroupConfig | None, wanted: SubscriptionGroupConfig
) -> SubscriptionGroupConfig:
    """Return *wanted*, with the *current* attributes after its changes.

    Raises InvalidOption.
    """
    return replace(
        wanted,
        attributes=change_group_attributes(
            current.attributes if current else None, wanted.attributes
        ),
    )


async def delete(
    ctx: Context, connection: Connection, header: DeleteGroupRequest, body: bytes
) -> RemotingCommand:
    ctx.groups.delete(header.group_name)
    await ctx.groups.saved()
    for holds in (ctx.pop_holds, ctx.notify_holds):
        holds.answer_group(header.group_name)
    ctx.leases.forget(lambda group, _topic: group == header.group_name)
    await delete_retry_topics(ctx, header.group_name)
    ctx.modes.forget(lambda _topic, group: group == header.group_name)
    await ctx.modes.saved()
    if header.clean_offset or header.remove_offset:
        # many may have waited for the same save
        await ctx.slices.mine()
        ctx.offsets.remove_group(header.group_name)
        await ctx.save_offsets()
    ctx.traffic.forget_group(header.group_name)
    return success()


def show_all(
    ctx: Context, connection: Connection, header: GetAllGroupsRequest, body: bytes
) -> RemotingCommand:
    count = len(ctx.groups)
    first = min(max(0, header.group_seq or 0), count)
    end = None if header.max_group_num is None else first + min(max(1, header.max_group_num), count)
    return success(AllGroupsResponse(total_group_num=count), dumps(ctx.groups.to_json(first, end)))


def show(
    ctx: Context, connection: Connection, header: GetGroupConfigRequest, body: bytes
) -> RemotingCommand:
    return success(body=dumps(_existing(ctx, header.group).to_json()))


async def forbid_or_allow(
    ctx: Context, connection: Connection, header: UpdateGroupForbiddenRequest, body: bytes
) -> RemotingCommand:
    group = _existing(ctx, header.group).name
    if header.topic not in ctx.topics:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:256]}] not exist")
    if header.readable is not None:
        ctx.groups.forbid_or_allow(group, header.topic, may_read=header.readable)
        await ctx.groups.saved()
    return success(
        body=dumps(
            {
                "group": group,
                "readable": ctx.groups.may_read(group, header.topic),
                "topic": header.topic,
            }
        )
    )


def _existing(ctx: Context, group: str) -> SubscriptionGroupConfig:
    """Return the group's settings. Raises Rejected if it does not exist."""
    config = ctx.groups.get(group)
    if config is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"No group in this broker. group: {group[:256]}",
        )
    return config


def query_consumer_offset(
    ctx: Context, connection: Connection, header: QueryConsumerOffsetRequest, body: bytes
) -> RemotingCommand:
    offset = ctx.offsets.get(header.consumer_group, header.topic, header.queue_id)
    if offset is None:
        topic = ctx.topics.get(header.topic)
        there = topic is not None and 0 <= header.queue_id < max(
            topic.read_queues, topic.write_queues
        )
        if (
            not there
            or header.set_zero_if_not_found is False
            or ctx.store.min_offset(header.topic, header.queue_id) > 0
        ):
            raise Rejected(
                ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
            )
        offset = 0
    ctx.offsets.resets.give(
        header.consumer_group,
        header.topic,
        header.queue_id,
        ctx.clients.asker(header.consumer_group, connection),
        offset,
    )
    return success(OffsetResponse(offset=offset))


def update_consumer_offset(
    ctx: Context, connection: Connection, header: UpdateConsumerOffsetRequest, body: bytes
) -> RemotingCommand:
    _check_group(ctx, header.consumer_group)
    topic = _existing_topic(ctx, header.topic)
    if header.commit_offset < 0 or not 0 <= header.queue_id < max(
        topic.read_queues, topic.write_queues
    ):
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"Offset {header.commit_offset} of queue {header.queue_id} is not progress in "
            f"{topic.name}",
        )
    asker = ctx.clients.asker(header.consumer_group, connection)
    if ctx.offsets.resets.is_untold(header.consumer_group, header.topic, header.queue_id, asker):
        return success(remark="Offset has been previously reset")
    if (
        header.commit_offset > ctx.store.max_offset(header.topic, header.queue_id)
        and topic.perm & PERM_WRITE
    ):
        return success(remark=BEYOND_THE_END)
    ctx.offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return success()


def reset(
    ctx: Context, connection: Connection, header: ResetOffsetRequest, body: bytes
) -> RemotingCommand:
    topic = _existing_topic(ctx, header.topic)
    _check_group(ctx, header.group)
    targets = _reset_targets(ctx, topic, header)
    for queue_id, offset in targets.items():
        _put_elsewhere(ctx, header.group, topic.name, queue_id, offset)
    return success(
        body=offset_table_dumps(
            {
                MessageQueue(topic.name, ctx.config.name, queue_id): at
                for queue_id, at in targets.items()
            }
        )
    )


def _reset_targets(ctx: Context, topic: TopicConfig, header: ResetOffsetRequest) -> dict[int, int]:
    if header.queue_id < 0:
        reads = (
            partial(_offset_at, ctx, topic.name, queue_id, header.timestamp)
            for queue_id in range(topic.read_queues)
        )
        return dict(enumerate(each_or_cold(reads)))
    if header.queue_id >= topic.read_queues:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"{topic.name} has {topic.read_queues} read queues, none with id {header.queue_id}",
        )
    if header.offset is None or header.offset == -1:
        return {header.queue_id: _offset_at(ctx, topic.name, header.queue_id, header.timestamp)}
    first = ctx.store.min_offset(topic.name, header.queue_id)
    end = ctx.store.max_offset(topic.name, header.queue_id)
    if not first <= header.offset <= end:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"Target offset {header.offset} not in the offset range [{first}-{end}] of queue "
            f"{header.queue_id}",
        )
    return {header.queue_id: header.offset}


def _offset_at(ctx: Context, topic: str, queue_id: int, timestamp_ms: int) -> int:
    return (
        ctx.store.max_offset(topic, queue_id)
        if timestamp_ms < 0
        else ctx.store.offset_by_time(topic, queue_id, timestamp_ms)
    )


def clone(
    ctx: Context, connection: Connection, header: CloneGroupOffsetRequest, body: bytes
) -> RemotingCommand:
    _check_group(ctx, header.dest_group)
    topics = ctx.offsets.topics_to_clone(header.src_group)
    for topic in [topic for topic in topics if topic == header.topic] if header.topic else topics:
        for queue_id, offset in dict(ctx.offsets.queues_of(header.src_group, topic)).items():
            _put_elsewhere(ctx, header.dest_group, topic, queue_id, offset)
    return success()


def _put_elsewhere(ctx: Context, group: str, topic: str, queue_id: int, offset: int) -> None:
    ctx.leases.put_elsewhere((group, topic, queue_id), offset)
    ctx.offsets.reset(group, topic, queue_id, offset, ctx.clients.audience(group))
    ctx.holds.answer_all((topic, queue_id))
    ctx.pop_holds.wake_queue(group, topic, queue_id)


def _existing_topic(ctx: Context, name: str) -> TopicConfig:
    topic = ctx.topics.get(name)
    if topic is None:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {name[:256]} not exist!")
    return topic


def _check_group(ctx: Context, group: str) -> None:
    if ctx.groups.get(group) is None:
        raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group[:256]} not exist!")


def search_offset(
    ctx: Context, connection: Connection, header: SearchOffsetRequest, body: bytes
) -> RemotingCommand:
    upper = (header.boundary_type or "").upper() == "UPPER"
    return success(
        OffsetResponse(
            offset=ctx.store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper)
        )
    )


def max_offset(
    ctx: Context, connection: Connection, header: GetMaxOffsetRequest, body: bytes
) -> RemotingCommand:
    return success(OffsetResponse(offset=ctx.store.max_offset(header.topic, header.queue_id)))


def min_offset(
    ctx: Context, connection: Connection, header: GetMinOffsetRequest, body: bytes
) -> RemotingCommand:
    return success(OffsetResponse(offset=ctx.store.min_offset(header.topic, header.queue_id)))


def earliest_store_time(
    ctx: Context, connection: Connection, header: GetEarliestStoreTimeRequest, body: bytes
) -> RemotingCommand:
    first = ctx.store.min_offset(header.topic, header.queue_id)
    return success(
        TimestampResponse(timestamp=ctx.store.store_time(header.topic, header.queue_id, first))
    )


def view_message(
    ctx: Context, connection: Connection, header: ViewMessageRequest, body: bytes
) -> RemotingCommand:
    record = ctx.store.record_at(header.offset) if header.offset >= 0 else None
    if record is None:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}"
        )
    return success(body=record)
