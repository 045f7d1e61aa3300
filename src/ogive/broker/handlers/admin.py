"""The broker and its clients as operators see them: 25, 26, 28, 203, 204, 208.

Source: AdminBrokerProcessor.java, 5.3.

Behaviour
- What 25 changed is on stable storage before the answer leaves, and outlives the broker.
- 26 shows every setting that stands in broker.conf, but secrets, and what some of Apache's tools
  cannot do without.
- 28 shows what mqadmin's clusterList and brokerStatus print and Apache's exporter reads, with true
  values.
- 208 shows a group's position on one topic, some topics, or all on which it has committed; topics
  that an online group does not subscribe to are left out.

Differs from Java
- 25 changes the few settings that remote_config.py names, and refuses every other by name, where
  Java changes or ignores it.
- What has no counterpart here is 0 or left out: thread-pool queues other than those of sends and of
  ends of transactions.
- pullOffset is the committed offset; pulls that are not committed yet are not noted.
- 208 of more than 50,000 queues is refused: such an answer may fit no frame.
- 208 shows each topic as it is when it is looked at, and not one that is deleted before that:
  others have their turn in between.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ogive.broker.clients import Client
from ogive.broker.context import Context
from ogive.broker.replies import MAX_QUEUES_SHOWN, Rejected, success
from ogive.broker.runtime_info import runtime_info, settings
from ogive.errors import ResponseCode
from ogive.model import MessageQueue
from ogive.store.disk import Pieces, each_in_pieces, each_or_cold
from ogive.transport.connection import Connection
from ogive.wire.bodies import Connection as ConnectionInfo
from ogive.wire.bodies import (
    ConsumerConnection,
    OffsetWrapper,
    TopicConfig,
    consume_stats_dumps,
    dumps,
    kv_table_dumps,
    producer_connections_dumps,
)
from ogive.wire.codes import LanguageCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    BrokerConfigResponse,
    GetBrokerConfigRequest,
    GetBrokerRuntimeInfoRequest,
    GetConsumerConnectionListRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
    UpdateBrokerConfigRequest,
)

MAX_TOPICS_ASKED: Final = 1000

Positions = dict[MessageQueue, OffsetWrapper]


# --- the broker -----------------------------------------------------------------------------------


def show_runtime_info(
    ctx: Context, connection: Connection, header: GetBrokerRuntimeInfoRequest, body: bytes
) -> RemotingCommand:
    return success(body=kv_table_dumps(runtime_info(ctx)))


def show_config(
    ctx: Context, connection: Connection, header: GetBrokerConfigRequest, body: bytes
) -> RemotingCommand:
    text = "".join(f"{name}={value}\n" for name, value in settings(ctx).items())
    return success(
        BrokerConfigResponse(version=dumps(ctx.remote_settings.version.to_json()).decode()),
        text.encode(),
    )


async def update_config(
    ctx: Context, connection: Connection, header: UpdateBrokerConfigRequest, body: bytes
) -> RemotingCommand:
    config = ctx.config = ctx.remote_settings.change(body)
    ctx.groups.auto_create = config.auto_create_groups
    ctx.topics.switch_auto_create(config.auto_create_topics, config.default_topic_queues)
    await ctx.remote_settings.saved()
    return success()


# --- its clients ----------------------------------------------------------------------------------


def show_consumers(
    ctx: Context, connection: Connection, header: GetConsumerConnectionListRequest, body: bytes
) -> RemotingCommand:
    group = ctx.clients.consumer_group(header.consumer_group)
    if group is None:
        raise Rejected(
            ResponseCode.CONSUMER_NOT_ONLINE,
            f"the consumer group[{header.consumer_group[:256]}] not online",
        )
    answer = ConsumerConnection(
        connections=tuple(_info(client) for client in group.members.values()),
        subscriptions={
            topic: subscription.data for topic, subscription in group.subscriptions.items()
        },
        consume_type=group.consume_type,
        message_model=group.message_model,
        consume_from_where=group.consume_from_where,
    )
    return success(body=answer.encode())


def show_producers(
    ctx: Context, connection: Connection, header: GetProducerConnectionListRequest, body: bytes
) -> RemotingCommand:
    members = ctx.clients.producers.get(header.producer_group)
    if not members:
        raise Rejected(
            ResponseCode.SYSTEM_ERROR,
            f"the producer group[{header.producer_group[:256]}] not exist",
        )
    return success(body=producer_connections_dumps(_info(client) for client in members.values()))


def _info(client: Client) -> ConnectionInfo:
    return ConnectionInfo(
        client_id=client.client_id,
        address=client.connection.remote_address,
        language=LanguageCode(client.language).name,
        version=client.version,
    )


# --- progress -------------------------------------------------------------------------------------


def consume_stats(
    ctx: Context, connection: Connection, header: GetConsumeStatsRequest, body: bytes
) -> Pieces[RemotingCommand]:
    group = header.consumer_group
    topics = [
        config
        for config in map(ctx.topics.get, _topics_asked_for(ctx, header))
        if config is not None
    ]
    check_shown(sum([config.read_queues for config in topics]), "name fewer topics")
    places = yield from each_in_pieces([positions_later(ctx, group, config) for config in topics])
    table = {queue: place for of_topic in places for queue, place in of_topic.items()}
    return success(
        body=consume_stats_dumps(table, ctx.traffic.group_rate(group, header.topic or None))
    )


def check_shown(queues: int, instead: str) -> None:
    """Raises Rejected for more queues than one answer shows."""
    if queues > MAX_QUEUES_SHOWN:
        remark = (
            f"the answer would be of {queues} queues, {MAX_QUEUES_SHOWN} can be shown at "
            f"once: {instead}"
        )
        raise Rejected(ResponseCode.INVALID_PARAMETER, remark)


def _topics_asked_for(ctx: Context, header: GetConsumeStatsRequest) -> list[str]:
    named = [
        topic for topic in (header.topic or "", *(header.topic_list or "").split(";")) if topic
    ]
    if len(named) > MAX_TOPICS_ASKED:
        raise Rejected(
            ResponseCode.INVALID_PARAMETER,
            f"{len(named)} topics are asked for, {MAX_TOPICS_ASKED} are allowed",
        )
    online = ctx.clients.consumer_group(header.consumer_group)
    topics = named or ctx.offsets.topics_of(header.consumer_group)
    if online is None or not online.subscriptions:
        return topics
    return [topic for topic in topics if topic in online.subscriptions]


def positions_later(ctx: Context, group: str, topic: TopicConfig) -> Callable[[], Positions]:
    """What shows the group's position in each queue that can be read, and none once the topic is
    deleted. It raises StoreError, Cold.

    Where the group is deleted before it is called, its last position: at 0 it would seem to have
    everything before it.
    """
    return partial(_positions, ctx, ctx.offsets.queues_of(group, topic.name), topic)


def _positions(ctx: Context, offsets: Mapping[int, int], topic: TopicConfig) -> Positions:
    if topic.name not in ctx.topics:
        return {}
    places = each_or_cold(
        partial(_position, ctx, offsets.get(queue_id, 0), topic.name, queue_id)
        for queue_id in range(topic.read_queues)
    )
    return {
        MessageQueue(topic.name, ctx.config.name, queue_id): place
        for queue_id, place in enumerate(places)
    }


def _position(ctx: Context, committed: int, topic: str, queue_id: int) -> OffsetWrapper:
    """The end of the queue and the group's offset; the time is that of the last message that it has
    consumed.
    """
    consumed_at = ctx.store.store_time(topic, queue_id, committed - 1) if committed else 0
    return OffsetWrapper(
        broker_offset=ctx.store.max_offset(topic, queue_id),
        consumer_offset=committed,
        last_timestamp=max(0, consumed_at),
        pull_offset=committed,
    )
