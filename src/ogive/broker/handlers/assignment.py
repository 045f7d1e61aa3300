"""Which member consumes which queues, for clients that leave that to the broker: QUERY_ASSIGNMENT
(400), SET_MESSAGE_REQUEST_MODE (401).

Source: QueryAssignmentProcessor.java, 5.5.

Behaviour
- 400 divides the topic's queues, on all brokers that the name server knows of, among the group's
  members; a broadcasting member gets all. A client that is no member, and a topic without queues,
  get none.
- 401 accepts that a group pulls.

Differs from Java
- Members pull, always: a group is not switched to popping.
- A broker without a name server divides its own queues. Strategies are AVG and AVG_BY_CIRCLE.
"""

from collections.abc import Callable, Sequence
from typing import Final

from ogive.broker.context import Context
from ogive.broker.replies import Rejected, success
from ogive.errors import ResponseCode
from ogive.model import RETRY_PREFIX, MessageQueue
from ogive.transport.connection import Connection
from ogive.wire.bodies import (
    PERM_READ,
    AssignmentQuery,
    QueueData,
    RequestMode,
    TopicConfig,
    pull_assignments_dumps,
)
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import QueryAssignmentRequest, SetMessageRequestModeRequest

Share = Callable[[Sequence[MessageQueue], int, int], Sequence[MessageQueue]]


def _average(queues: Sequence[MessageQueue], members: int, place: int) -> Sequence[MessageQueue]:
    """Neighbouring queues; the first members get one more where it does not come out even."""
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
        return success(body=pull_assignments_dumps(queues))
    group = ctx.clients.consumer_group(asked.group)
    members = group.client_ids if group is not None else []
    if asked.client_id not in members:
        return success(body=pull_assignments_dumps(()))
    return success(
        body=pull_assignments_dumps(share(queues, len(members), members.index(asked.client_id)))
    )


async def _queues(ctx: Context, topic: str) -> list[MessageQueue]:
    """All readable queues in Java's order: topic, broker, id."""
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


def set_mode(
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
    if asked.mode != "PULL":
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"mode {asked.mode[:40]!r}: groups pull on this broker, popping is not supported",
        )
    return success()
