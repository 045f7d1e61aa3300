"""Consumer groups: 200 and 225 create or change, 207 delete, 201 and 352 show; 353 forbids one to
read a topic, allows or shows it.

Source: AdminBrokerProcessor.java, 5.5.

Behaviour
- A created, changed or deleted group is on stable storage before the answer leaves.
- 207 removes the group's offsets where asked to (cleanOffset, removeOffset in 4.9), also on stable
  storage; its retry and dead-letter topics stay.
- The attributes of a request are changes, "+name" or "-name": those that it does not name stay.
- 201 answers by pages where the request asks for them (5.4 and later).

Differs from Java
- 225 changes all groups of its list or, where one is refused, none.
- 352 shows a group and never makes one.
- 353 is about groups and topics that there are; allowing one topic leaves what is forbidden of
  others, and is kept over a restart.
- Deleting what is not there succeeds without a change of the table's version.
"""

from dataclasses import replace

from ogive.broker.attributes import change_group_attributes
from ogive.broker.context import Context
from ogive.broker.replies import Rejected, success
from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.bodies import SubscriptionGroupConfig, dumps, group_configs_loads, loads_object
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    AllGroupsResponse,
    CreateGroupListRequest,
    CreateGroupRequest,
    DeleteGroupRequest,
    GetAllGroupsRequest,
    GetGroupConfigRequest,
    UpdateGroupForbiddenRequest,
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
    """*wanted*, with the attributes that its changes make of the *current* ones.

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
    """Raises Rejected."""
    config = ctx.groups.get(group)
    if config is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"No group in this broker. group: {group[:256]}",
        )
    return config
