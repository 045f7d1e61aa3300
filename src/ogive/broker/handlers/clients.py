"""Clients and their groups: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP
(38), CHECK_CLIENT_CONFIG (46).

Source: ClientManageProcessor.java, ConsumerManageProcessor.java, 5.3.

Behaviour
- A consumer's heartbeat makes its group (if allowed) and the group's retry topic, and replaces the
  group's subscriptions.
- A heartbeat that made a retry topic is answered once the name servers know it, or could not be
  told: clients ask them for it next.
- A member that comes or goes, or a change of topics, notifies every member of a group that is not
  broadcasting (code 40).
- Heartbeats with a fingerprint may leave the subscriptions out (withoutSub); IS_SUB_CHANGE=true
  asks for the next one in full.

Differs from Java
- Names, sizes and counts are checked, and a heartbeat with a bad one is refused as a whole.
- A heartbeat without subscriptions from a group that has none here is answered IS_SUB_CHANGE=true,
  so that a restarted broker learns them.
- It waits for name servers for REGISTRATION_WAIT_S at most, and not at all where too much waits
  already.
- A bad SQL92 expression is kept as Java keeps it, and CHECK_CLIENT_CONFIG and the pulls say at
  which character it goes wrong.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from ogive.broker.clients import Client, check_client_id, check_subscription
from ogive.broker.context import Context
from ogive.broker.filtering import wanted_by
from ogive.broker.groups import NONE_IS_MADE
from ogive.broker.replies import Rejected, reply, success
from ogive.errors import ConnectError, InvalidOption, ResponseCode
from ogive.model import validate_group, validate_topic
from ogive.transport.connection import Connection
from ogive.wire.acl import ACCESS_KEY
from ogive.wire.bodies import (
    ConsumerData,
    HeartbeatData,
    SubscriptionData,
    consumer_ids_dumps,
    loads_object,
)
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    CheckClientConfigRequest,
    GetConsumerListRequest,
    HeartbeatResponse,
    NotifyConsumerIdsChangedRequest,
    UnregisterClientRequest,
    encode_header,
)

MAX_HEARTBEAT_BYTES: Final = 1024 * 1024
MAX_GROUPS_PER_HEARTBEAT: Final = 256
REGISTRATION_WAIT_S: Final = 1.0


def heartbeat(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    if len(command.body) > MAX_HEARTBEAT_BYTES:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"a heartbeat of {len(command.body)} bytes is over the limit of {MAX_HEARTBEAT_BYTES}",
        )
    data = HeartbeatData.decode(command.body)
    _check(data)
    user = command.ext_fields.get(ACCESS_KEY, "") if ctx.guard is not None else ""
    client = Client(
        data.client_id, connection, command.language, command.version, ctx.loop.time(), user
    )
    changed, known = False, ctx.topics.data_version
    for consumer in data.consumers:
        changed |= _register_consumer(ctx, consumer, client, data)
    for producer in data.producers:
        ctx.clients.register_producer(producer, client)
    # a heartbeat without fingerprint is the old kind, whose sender does not look at the answer
    answer = success(
        HeartbeatResponse(supports_v2=True, subscription_changed=changed or not data.fingerprint)
    )
    waits = ctx.topics.data_version is not known and ctx.carry_out_later(
        connection, command, partial(_once_registered, ctx, connection, command, answer)
    )
    if not waits:
        reply(connection, command, answer)


async def _once_registered(
    ctx: Context, connection: Connection, command: RemotingCommand, answer: RemotingCommand
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(REGISTRATION_WAIT_S):
            await ctx.registration.registered()
    reply(connection, command, answer)


def _check(data: HeartbeatData) -> None:
    check_client_id(data.client_id)
    if len(data.consumers) + len(data.producers) > MAX_GROUPS_PER_HEARTBEAT:
        raise InvalidOption(f"a heartbeat names more than {MAX_GROUPS_PER_HEARTBEAT} groups")
    for group in (*data.producers, *(consumer.group for consumer in data.consumers)):
        validate_group(group)
    for consumer in data.consumers:
        for subscription in consumer.subscriptions:
            validate_topic(subscription.topic)
            check_subscription(subscription)


def _register_consumer(
    ctx: Context, consumer: ConsumerData, client: Client, data: HeartbeatData
) -> bool:
    """Whether the client should send its subscriptions in full next time."""
    config = ctx.groups.find_or_create(consumer.group)
    if config is None:
        ctx.groups.miss(consumer.group)
        # Java's way: what is asked next says so
        return False
    ctx.topics.ensure_retry(consumer.group, config.retry_queues)
    ctx.clients.register_consumer(consumer, client, with_subscriptions=not data.without_sub)
    group = ctx.clients.consumers[consumer.group]
    changed = group.note_fingerprint(data.fingerprint)
    return changed or (data.without_sub and not group.subscriptions)


def unregister(
    ctx: Context, connection: Connection, header: UnregisterClientRequest, body: bytes
) -> RemotingCommand:
    if header.producer_group:
        ctx.clients.unregister_producer(header.producer_group, connection)
    if header.consumer_group:
        ctx.clients.unregister_consumer(header.consumer_group, connection)
    return success()


def consumer_list(
    ctx: Context, connection: Connection, header: GetConsumerListRequest, body: bytes
) -> RemotingCommand:
    name = header.consumer_group
    group = ctx.clients.consumer_group(name)
    if group is None:
        why = (
            ""
            if ctx.groups.auto_create or name in ctx.groups
            else f": it does not exist, and {NONE_IS_MADE}"
        )
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}{why}")
    return success(body=consumer_ids_dumps(group.client_ids))


def check_config(
    ctx: Context, connection: Connection, header: CheckClientConfigRequest, body: bytes
) -> RemotingCommand:
    data = SubscriptionData.from_json(loads_object(body).get("subscriptionData"))
    wanted_by(data.expression_type, data.expression, sql=ctx.config.property_filter)
    return success()


def notify_members(ctx: Context, name: str) -> None:
    """Tell every member of a group that its members or topics changed."""
    config, group = ctx.groups.get(name), ctx.clients.consumer_group(name)
    if (
        group is None
        or group.is_broadcasting
        or (config is not None and not config.notify_consumer_ids_changed)
    ):
        return
    request = NotifyConsumerIdsChangedRequest(consumer_group=name)
    for connection in list(group.members):
        try:
            connection.send_nowait(RemotingCommand(request.code, encode_header(request)))
        except ConnectError:
            # it is about to be dropped, which notifies the others again
            continue
