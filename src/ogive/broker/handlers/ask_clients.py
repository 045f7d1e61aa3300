"""Requests that a broker passes on to its clients: GET_CONSUMER_RUNNING_INFO (307),
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
from dataclasses import replace
from functools import partial
from typing import Final

from ogive.broker.replies import MAX_QUEUES_SHOWN, Rejected, success
from ogive.broker.services import Context
from ogive.broker.state.client_table import Client
from ogive.errors import OgiveError, RequestTimeout, ResponseCode, TransportError
from ogive.model import MessageQueue
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import ProducerInfo, producer_table_dumps
from ogive.wire.bodies.stats import consumer_status_loads, group_status_dumps
from ogive.wire.codes import LanguageCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import GetAllProducerInfoRequest, InvokeGetConsumerStatusRequest
from ogive.wire.headers.clients import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    GetConsumerStatusRequest,
)
from ogive.wire.headers.codec import encode_header
from ogive.wire.message import parse_offset_message_id

log = logging.getLogger(__name__)

CLIENT_ANSWER_S: Final = 10.0
STATUS_ANSWER_S: Final = 5.0
ANSWERS_RUNNING_INFO_SINCE: Final = 62  # 3.1.8-SNAPSHOT
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
