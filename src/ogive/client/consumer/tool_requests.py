"""Requests of brokers and tools that push consumers answer.

Behaviour
- RESET_CONSUMER_CLIENT_OFFSET (220, one-way): held queues go on at the given offsets, also at lower
  ones, and so does the progress.
- GET_CONSUMER_STATUS_FROM_CLIENT (221): how far the group got in the queues that are held here.
- CONSUME_MESSAGE_DIRECTLY (309): a listener gets one message outside of any queue.

Differs from Java
- A reset does not stop the other queues, and takes no ten seconds.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Protocol, runtime_checkable

from ogive.client import rpc
from ogive.client.instance import ClientInstance
from ogive.errors import IllegalStateError
from ogive.model import MessageExt, MessageQueue
from ogive.transport.connection import Connection
from ogive.wire.bodies.clients import (
    ConsumeDirectlyResult,
)
from ogive.wire.bodies.stats import consumer_status_dumps, offset_table_loads
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.clients import (
    ConsumeMessageDirectlyRequest,
    GetConsumerStatusRequest,
    ResetConsumerOffsetRequest,
)
from ogive.wire.headers.codec import decode_header
from ogive.wire.message import decode_message


@runtime_checkable
class AskedMember(Protocol):
    """Protocol of a member that can answer."""

    async def reset_offsets(self, offsets: Mapping[MessageQueue, int]) -> None: ...
    def offsets(self, topic: str) -> Mapping[MessageQueue, int]: ...
    async def consume_directly(self, message: MessageExt) -> ConsumeDirectlyResult: ...


Answer = Callable[[ClientInstance, RemotingCommand], Awaitable[RemotingCommand | None]]


def answer_requests(instance: ClientInstance) -> None:
    """Let the push consumers of *instance* answer. Does nothing when repeated."""
    for code, answer in _ANSWERS.items():
        instance.requests.serve(code, partial(_answer, instance, answer))


async def _answer(
    instance: ClientInstance, answer: Answer, _: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    return await answer(instance, request)


def _member(instance: ClientInstance, group: str) -> AskedMember:
    """Return the group's push consumer. Raises IllegalStateError, which the broker gets as
    SYSTEM_ERROR.
    """
    member = instance.consumer(group)
    if not isinstance(member, AskedMember):
        raise IllegalStateError(f"group {group} has no push consumer in this client")
    return member


async def _reset(instance: ClientInstance, request: RemotingCommand) -> None:
    header = decode_header(ResetConsumerOffsetRequest, request.ext_fields)
    offsets = offset_table_loads(request.body)
    await _member(instance, header.group).reset_offsets(
        {queue: at for queue, at in offsets.items() if queue.topic == header.topic}
    )


async def _status(instance: ClientInstance, request: RemotingCommand) -> RemotingCommand:
    header = decode_header(GetConsumerStatusRequest, request.ext_fields)
    return rpc.success(
        body=consumer_status_dumps(_member(instance, header.group).offsets(header.topic))
    )


async def _consume(instance: ClientInstance, request: RemotingCommand) -> RemotingCommand:
    header = decode_header(ConsumeMessageDirectlyRequest, request.ext_fields)
    member = _member(instance, header.consumer_group)
    result = await member.consume_directly(decode_message(request.body, header.broker_name or ""))
    return rpc.success(body=result.encode())


_ANSWERS: Final[Mapping[int, Answer]] = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _status,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume,
}
