"""Clients of groups: heartbeats, queue locks, assignment of queues, requests passed on to them.

Clients and their groups: HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP
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

Which member consumes which queues, for clients that leave that to the broker: QUERY_ASSIGNMENT
(400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE (402).

Source: QueryAssignmentProcessor.java, 5.5.

Behaviour
- 400 divides the topic's queues, on all brokers that the name server knows of, among the group's
  members; a broadcasting member gets all. A client that is no member, and a topic without queues,
  get none.
- A group that pops, as 401 says of a topic, gets all queues of each broker for each member, or its
  own share and those of the next members.

Differs from Java
- What 401 sets is on stable storage before the answer leaves, and goes with its topic or group.
- A broker without a name server divides its own queues. Strategies are AVG and AVG_BY_CIRCLE.

LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): orderly consumers take and give back queues.

Source: AdminBrokerProcessor.java, RebalanceLockManager.java, 5.3.

Behaviour
- A lock is given if the queue is free, the client's own, or its lease is over; each call renews the
  lease.

Differs from Java
- Who holds a queue is on stable storage before the answer leaves, so that a restart gives no queue
  to a second member. A lease that is renewed needs no disk: a full one stops no orderly consumer.
- Only queues that this broker has can be locked; the others are left out of the answer.

Requests that a broker passes on to its clients: GET_CONSUMER_RUNNING_INFO (307),
CONSUME_MESSAGE_DIRECTLY (309), INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223); and the producers that
are online, GET_ALL_PRODUCER_INFO (328).

Source: AdminBrokerProcessor.java, Broker2Client.java, 5.5.

Behaviour
- 307 and 309 go to the client named in them and its answer goes back as it came, within 10 s; 309
  takes the message along, found by its offset message id.
- 223 asks every member of the group, or the one that is named, for its progress (221). If none
  answers, the broker's answer is empty: a member that asked goes on waiting for the named one.

Differs from Java
- By a 307 with a body a member asks another one which queues it holds. Permission to consume is
  enough for that, so stacks are never part of it.
- 223 asks all members at once, and leaves out those that do not answer; Java asks one after the
  other.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from ogive.broker.filters import wanted_by
from ogive.broker.replies import MAX_QUEUES_SHOWN, Rejected, reply, success
from ogive.broker.services import Context
from ogive.broker.state.client_table import Client, check_client_id, check_subscription
from ogive.broker.state.config_table import NONE_IS_MADE, POP, PULL
from ogive.errors import (
    ConnectError,
    InvalidOption,
    OgiveError,
    RequestTimeout,
    ResponseCode,
    TransportError,
)
from ogive.model import RETRY_PREFIX, MessageQueue, validate_group, validate_topic
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import (
    AssignmentQuery,
    ConsumerData,
    HeartbeatData,
    LockBatchBody,
    ProducerInfo,
    RequestMode,
    SubscriptionData,
    assignments_dumps,
    consumer_ids_dumps,
    locked_queues_dumps,
    producer_table_dumps,
)
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ, dumps, loads_object
from ogive.wire.bodies.routes import QueueData
from ogive.wire.bodies.stats import consumer_status_loads, group_status_dumps
from ogive.wire.codes import LanguageCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    GetAllMessageRequestModeRequest,
    GetAllProducerInfoRequest,
    InvokeGetConsumerStatusRequest,
    QueryAssignmentRequest,
    SetMessageRequestModeRequest,
)
from ogive.wire.headers.clients import (
    CheckClientConfigRequest,
    ConsumeMessageDirectlyRequest,
    GetConsumerListRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
    HeartbeatResponse,
    LockBatchRequest,
    NotifyConsumerIdsChangedRequest,
    UnlockBatchRequest,
    UnregisterClientRequest,
)
from ogive.wire.headers.codec import encode_header
from ogive.wire.message import parse_offset_message_id
from ogive.wire.signing import ACCESS_KEY

Share = Callable[[Sequence[MessageQueue], int, int], Sequence[MessageQueue]]


def _average(queues: Sequence[MessageQueue], members: int, place: int) -> Sequence[MessageQueue]:
    """Neighbouring queues; if they cannot be divided evenly, the first members get one more."""
    size, more = divmod(len(queues), members)
    start = place * size + min(place, more)
    return queues[start : start + size + (place < more)]


def _by_circle(queues: Sequence[MessageQueue], members: int, place: int) -> Sequence[MessageQueue]:
    return queues[place::members]


STRATEGIES: Final[dict[str, Share]] = {"": _average, "AVG": _average, "AVG_BY_CIRCLE": _by_circle}


async def query(
    ctx: Context, connection: Connection, header: QueryAssignmentRequest, body: bytes
) -> RemotingCommand:
    asked = AssignmentQuery.decode(body)
    share = STRATEGIES.get(asked.strategy)
    if share is None:
        known = ", ".join(filter(None, STRATEGIES))
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"AllocateMessageQueueStrategy {asked.strategy[:80]!r} is not known: {known} are",
        )
    queues = await _queues(ctx, asked.topic)
    if asked.message_model == "BROADCASTING":
        return success(body=assignments_dumps(queues))
    group = ctx.clients.consumer_group(asked.group)
    members = group.client_ids if group is not None else []
    if asked.client_id not in members:
        return success(body=assignments_dumps(()))
    place, mode = members.index(asked.client_id), ctx.modes.get(asked.topic, asked.group)
    if mode is None or mode.mode != POP or asked.topic.startswith(RETRY_PREFIX):
        return success(body=assignments_dumps(share(queues, len(members), place)))
    popped = to_pop(queues, len(members), place, mode.share_queues, share)
    return success(body=assignments_dumps(popped, POP))


def to_pop(
    queues: Sequence[MessageQueue], members: int, place: int, others: int, share: Share
) -> list[MessageQueue]:
    """Return the queues of the member at *place* of a popping group.

    They are its own and those of the next *others* members; with 0, or all of them, every queue of
    each broker, which is one entry with queue id -1.
    """
    if others <= 0 or others >= members - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(*broker, -1) for broker in brokers]
    if members > len(queues):
        return [queues[place % len(queues)]] if queues else []
    found: dict[MessageQueue, None] = {}
    for at in range(place, place + others + 1):
        found |= dict.fromkeys(share(queues, members, at % members))
    return list(found)


async def _queues(ctx: Context, topic: str) -> list[MessageQueue]:
    """Return all readable queues in Java's order: topic, broker, id."""
    route = await ctx.registration.route(topic)
    # many routes may have come with one read
    await ctx.slices.mine()
    if route is not None:
        found: Sequence[QueueData] = route.queues
    else:
        config = ctx.topics.get(topic)
        found = [] if config is None else [_own(ctx, config)]
    readable = (data for data in found if data.perm & PERM_READ)
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in readable
        for queue_id in range(data.read_queues)
    )


def _own(ctx: Context, config: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=ctx.config.name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        perm=config.perm,
    )


async def set_mode(
    ctx: Context, connection: Connection, header: SetMessageRequestModeRequest, body: bytes
) -> RemotingCommand:
    asked = RequestMode.decode(body)
    if asked.topic.startswith(RETRY_PREFIX):
        raise Rejected(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if ctx.topics.get(asked.topic) is None:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"Topic {asked.topic[:256]} not exist!")
    if ctx.groups.get(asked.group) is None:
        raise Rejected(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {asked.group[:256]} not exist!"
        )
    if asked.mode not in (PULL, POP):
        raise Rejected(
            ResponseCode.INVALID_PARAMETER, f"mode {asked.mode[:40]!r}: must be PULL or POP"
        )
    ctx.modes.set(asked)
    await ctx.modes.saved()
    return success()


def show_modes(
    ctx: Context, connection: Connection, header: GetAllMessageRequestModeRequest, body: bytes
) -> RemotingCommand:
    return success(body=dumps(ctx.modes.to_json()))


async def lock(
    ctx: Context, connection: Connection, header: LockBatchRequest, body: bytes
) -> RemotingCommand:
    request = _decode(body)
    queues = [queue for queue in request.queues if _is_ours(ctx, queue)]
    held = ctx.locks.lock(request.group, request.client_id, queues)
    await ctx.locks.safe(request.group, held)
    return success(body=locked_queues_dumps(held))


def unlock(
    ctx: Context, connection: Connection, header: UnlockBatchRequest, body: bytes
) -> RemotingCommand:
    request = _decode(body)
    ctx.locks.unlock(request.group, request.client_id, request.queues)
    ctx.locks.save_soon()
    return success()


def _decode(body: bytes) -> LockBatchBody:
    request = LockBatchBody.decode(body)
    validate_group(request.group)
    check_client_id(request.client_id)
    return request


def _is_ours(ctx: Context, queue: MessageQueue) -> bool:
    topic = ctx.topics.get(queue.topic)
    return (
        topic is not None
        and queue.broker_name == ctx.config.name
        and 0 <= queue.queue_id < max(topic.read_queues, topic.write_queues)
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
    """Return True if the client should send its subscriptions in full next time."""
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
    """Notify every member of a group that its members or topics changed."""
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


log = logging.getLogger(__name__)

CLIENT_ANSWER_S: Final = 10.0
STATUS_ANSWER_S: Final = 5.0
# 3.1.8-SNAPSHOT
ANSWERS_RUNNING_INFO_SINCE: Final = 62
MAX_CLIENTS_ASKED: Final = 1_000


async def running_info(
    ctx: Context, connection: Connection, header: GetConsumerRunningInfoRequest, body: bytes
) -> RemotingCommand:
    """Pass the request on to the client, and return its answer."""
    if body and header.jstack_enable:
        header = replace(header, jstack_enable=False)
    return await _call(
        ctx,
        header.consumer_group,
        header.client_id,
        RemotingCommand(header.code, encode_header(header), body),
    )


async def consume_directly(
    ctx: Context, connection: Connection, header: ConsumeMessageDirectlyRequest, body: bytes
) -> RemotingCommand:
    try:
        _, offset = parse_offset_message_id(header.msg_id or "")
    except OgiveError as exc:
        raise Rejected(ResponseCode.INVALID_PARAMETER, str(exc)) from None
    record = await ctx.cold_reads.read(ctx.store, partial(ctx.store.record_at, offset))
    if record is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
    fields = encode_header(header) | {"brokerName": ctx.config.name}
    return await _call(
        ctx,
        header.consumer_group,
        header.client_id or "",
        RemotingCommand(header.code, fields, record),
    )


async def _call(
    ctx: Context, group_name: str, client_id: str, command: RemotingCommand
) -> RemotingCommand:
    name = f"<{group_name[:256]}> <{client_id[:256]}>"
    group = ctx.clients.consumer_group(group_name)
    client = (
        next((c for c in group.members.values() if c.client_id == client_id), None)
        if group is not None
        else None
    )
    if client is None:
        raise Rejected(ResponseCode.SYSTEM_ERROR, f"The Consumer {name} not online")
    if client.version < ANSWERS_RUNNING_INFO_SINCE:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer {name} Version too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
        )
    try:
        return await client.connection.call(command, CLIENT_ANSWER_S)
    except RequestTimeout as exc:
        raise Rejected(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer {name} Timeout: {exc}"
        ) from None
    except TransportError as exc:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR, f"The Consumer {name} not online: {exc}"
        ) from None


async def consumer_status(
    ctx: Context, connection: Connection, header: InvokeGetConsumerStatusRequest, body: bytes
) -> RemotingCommand:
    group = ctx.clients.consumer_group(header.group)
    if group is None:
        raise Rejected(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"No Any Consumer online in the consumer group: [{header.group[:256]}]",
        )
    members = [
        client
        for client in group.members.values()
        if not header.client_addr or client.client_id == header.client_addr
    ]
    if len(members) > MAX_CLIENTS_ASKED:
        remark = (
            f"group {header.group[:256]} has {len(members)} members, {MAX_CLIENTS_ASKED} can "
            "be asked at once: name one"
        )
        raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
    if not members:
        client_id = (header.client_addr or "")[:256]
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"no member of {header.group[:256]} has the client id {client_id}",
        )
    found: dict[str, dict[MessageQueue, int]] = {}
    await asyncio.gather(*(_ask(client, header, found) for client in members))
    return success(body=group_status_dumps(found))


async def _ask(
    client: Client,
    header: InvokeGetConsumerStatusRequest,
    found: dict[str, dict[MessageQueue, int]],
) -> None:
    """Add the client's progress to *found*, by client id, if it answers and there is room: members
    may answer anything.
    """
    table = await _status(client, header)
    if table is None:
        return
    if sum(map(len, found.values())) + len(table) > MAX_QUEUES_SHOWN:
        log.warning(
            "left out the progress of client %s in %d queues: the answer is full",
            client.client_id,
            len(table),
        )
        return
    found[client.client_id] = table


async def _status(
    client: Client, asked: InvokeGetConsumerStatusRequest
) -> dict[MessageQueue, int] | None:
    """Return the progress of one client; None if it does not answer."""
    header = GetConsumerStatusRequest(topic=asked.topic, group=asked.group)
    try:
        answer = await client.connection.call(
            RemotingCommand(header.code, encode_header(header)), STATUS_ANSWER_S
        )
        return consumer_status_loads(answer.body) if answer.code == ResponseCode.SUCCESS else None
    except OgiveError:
        return None


def show_all_producers(
    ctx: Context, connection: Connection, header: GetAllProducerInfoRequest, body: bytes
) -> RemotingCommand:
    now, now_ms = ctx.loop.time(), ctx.now_ms()

    def info(client: Client) -> ProducerInfo:
        return ProducerInfo(
            client_id=client.client_id,
            address=client.connection.remote_address,
            language=LanguageCode(client.language).name,
            version=client.version,
            seen_ms=now_ms - round((now - client.seen_at) * 1000),
        )

    return success(
        body=producer_table_dumps(
            {
                name: [info(c) for c in members.values()]
                for name, members in ctx.clients.producers.items()
            }
        )
    )
