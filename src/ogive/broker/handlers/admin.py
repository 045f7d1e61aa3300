"""The broker as operators see it: settings, clients, statistics, old files.

The broker and its clients as operators see them: 25, 26, 28, 203, 204, 208.

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
- 25 changes the few settings that broker/config.py names, and refuses every other by name, where
  Java changes or ignores it.
- What has no counterpart here is 0 or left out: thread-pool queues other than those of sends and of
  ends of transactions.
- pullOffset is the committed offset; pulls that are not committed yet are not noted.
- 208 of more than 50,000 queues is refused: such an answer may fit no frame.
- 208 shows each topic as it is when it is looked at, and not one that is deleted before that:
  others have their turn in between.

Old files: DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306).

Source: AdminBrokerProcessor.java, 5.5.

Behaviour
- 329 makes the next checks remove segments that are old enough, whatever the hour. Younger ones
  stay.
- 306 finds nothing to do: the files of a queue are removed together with the segments that they
  refer to.

Differs from Java
- 306 looks for queue files that were left over; here there are none.

Figures by topic and group: VIEW_BROKER_STATS_DATA (315), GET_BROKER_CONSUME_STATS (317),
QUERY_CONSUME_TIME_SPAN (303).

Source: AdminBrokerProcessor.java, BrokerStatsManager.java, 5.5.

Behaviour
- 315 knows TOPIC_PUT_NUMS and TOPIC_PUT_SIZE by topic, GROUP_GET_NUMS, GROUP_GET_SIZE and
  SNDBCK_PUT_NUMS by "topic@group", BROKER_PUT_NUMS and BROKER_GET_NUMS by cluster, each for the
  last minute, hour and day. A key without counts is answered SYSTEM_ERROR, which every tool takes
  for none.
- 317 shows every group's position in each topic where it has one; on request, in ordered topics
  only.
- 303 shows for each queue the times of its first and last message and of the one that the group
  consumed last.

Differs from Java
- 315 does not know Java's figures of latency (TOPIC_PUT_LATENCY, GROUP_GET_LATENCY), nor
  BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC and BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC; 28 has these two
  for the day.
- 317 of more than 50,000 queues is refused, with what to ask for instead. As with 208, others have
  their turn while it is made.
- 315 counts what is stored and delivered, not what is requested; its windows end now, see
  broker/traffic.py.
"""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ogive.broker.large_replies import InPieces
from ogive.broker.maintenance import disk_used
from ogive.broker.pop.leases import Place
from ogive.broker.replies import MAX_QUEUES_SHOWN, Rejected, success
from ogive.broker.services import Context
from ogive.broker.state.client_table import Client
from ogive.broker.traffic import Counts, Traffic, WindowDelta
from ogive.errors import ResponseCode
from ogive.model import SCHEDULE_TOPIC, TRACE_TOPIC, MessageQueue, pop_retry_topics
from ogive.store.file_reader import each_or_cold
from ogive.store.message_store import MessageStore
from ogive.store.types import StoreStats
from ogive.transport.connection import Connection
from ogive.version import __version__
from ogive.wire.bodies.clients import ConnectionInfo, ConsumerConnection, producer_connections_dumps
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.stats import (
    ConsumeTimeSpan,
    OffsetWrapper,
    StatsItem,
    StatsOfGroup,
    broker_consume_stats_dumps,
    consume_stats_dumps,
    consume_time_spans_dumps,
    kv_table_dumps,
    stats_dumps,
)
from ogive.wire.codes import OWN_VERSION_FIGURE, VERSION, LanguageCode, version_name
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    BrokerConfigResponse,
    CleanExpiredQueuesRequest,
    DeleteExpiredLogRequest,
    GetBrokerConfigRequest,
    GetBrokerConsumeStatsRequest,
    GetBrokerRuntimeInfoRequest,
    QueryConsumeTimeSpanRequest,
    UpdateBrokerConfigRequest,
    ViewBrokerStatsRequest,
)
from ogive.wire.headers.clients import (
    GetConsumerConnectionListRequest,
    GetConsumeStatsRequest,
    GetProducerConnectionListRequest,
)
from ogive.wire.message import decode_stored

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
    ctx: Context,
    connection: Connection,
    header: GetConsumerConnectionListRequest,
    body: bytes,
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
    ctx: Context,
    connection: Connection,
    header: GetProducerConnectionListRequest,
    body: bytes,
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
) -> InPieces[Positions]:
    group = header.consumer_group
    topics = [
        config
        for config in map(ctx.topics.get, _topics_asked_for(ctx, header))
        if config is not None
    ]
    check_shown(sum([config.read_queues for config in topics]), "name fewer topics")

    def finish(places: list[Positions]) -> RemotingCommand:
        table = {queue: place for of_topic in places for queue, place in of_topic.items()}
        return success(
            body=consume_stats_dumps(table, ctx.traffic.group_rate(group, header.topic or None))
        )

    return InPieces([positions_later(ctx, group, config) for config in topics], finish)


def check_shown(queues: int, instead: str) -> None:
    """Check that one answer can show so many queues. Raises Rejected."""
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
    # members that pop read their retry topics without naming them
    popped = {
        name
        for topic in online.subscriptions
        for name in pop_retry_topics(header.consumer_group, topic)
    }
    return [topic for topic in topics if topic in online.subscriptions or topic in popped]


def positions_later(ctx: Context, group: str, topic: TopicConfig) -> Callable[[], Positions]:
    """Return a function that reads the group's position in each queue that can be read.

    It returns nothing after the topic was deleted. If the group is deleted before the call, it
    returns the last position: with 0 the group would seem to have the whole queue before it. It
    raises StoreError, Cold.
    """
    return partial(_positions, ctx, group, ctx.offsets.queues_of(group, topic.name), topic)


def _positions(
    ctx: Context, group: str, offsets: Mapping[int, int], topic: TopicConfig
) -> Positions:
    if topic.name not in ctx.topics:
        return {}
    places = each_or_cold(
        partial(_position, ctx, offsets.get(queue_id, 0), (group, topic.name, queue_id))
        for queue_id in range(topic.read_queues)
    )
    return {
        MessageQueue(topic.name, ctx.config.name, queue_id): place
        for queue_id, place in enumerate(places)
    }


def _position(ctx: Context, committed: int, place: Place) -> OffsetWrapper:
    """The end of the queue and the group's offset; the time is that of the last message that it has
    consumed.

    Messages that were popped and are not acknowledged count as not consumed.
    """
    _, topic, queue_id = place
    leased, ordered = ctx.leases.out.get(place, 0), ctx.leases.orders.open_batch(place)
    consumed_at = ctx.store.store_time(topic, queue_id, committed - 1) if committed else 0
    return OffsetWrapper(
        broker_offset=ctx.store.max_offset(topic, queue_id),
        consumer_offset=max(0, committed - leased),
        last_timestamp=max(0, consumed_at),
        # of a queue that is popped in order the offset moves by acknowledgements
        pull_offset=committed + (ordered.open_count() if ordered else 0),
        pop_timestamp=ctx.leases.oldest_ms(place),
    )


def delete_expired_log(
    ctx: Context, connection: Connection, header: DeleteExpiredLogRequest, body: bytes
) -> RemotingCommand:
    ctx.retention.at_once = True
    return success()


def clean_expired_queues(
    ctx: Context, connection: Connection, header: CleanExpiredQueuesRequest, body: bytes
) -> RemotingCommand:
    return success()


PassedAll = tuple[WindowDelta, ...]


def _by_topic(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.puts.passed(key, "")


def _by_group(ctx: Context, key: str) -> PassedAll | None:
    topic, _, group = key.partition("@")
    return ctx.traffic.gets.passed(group, topic)


def _sent_back(ctx: Context, key: str) -> PassedAll | None:
    topic, _, group = key.partition("@")
    return ctx.traffic.sent_back.passed(group, topic)


def _put_by_all(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.total("put") if key == ctx.config.cluster else None


def _got_by_all(ctx: Context, key: str) -> PassedAll | None:
    return ctx.traffic.total("got") if key == ctx.config.cluster else None


def _messages(counts: Counts) -> int:
    return counts.messages


def _size(counts: Counts) -> int:
    return counts.size


_STATISTICS: Final[
    Mapping[str, tuple[Callable[[Context, str], PassedAll | None], Callable[[Counts], int]]]
] = {
    "TOPIC_PUT_NUMS": (_by_topic, _messages),
    "TOPIC_PUT_SIZE": (_by_topic, _size),
    "GROUP_GET_NUMS": (_by_group, _messages),
    "GROUP_GET_SIZE": (_by_group, _size),
    "SNDBCK_PUT_NUMS": (_sent_back, _messages),
    "BROKER_PUT_NUMS": (_put_by_all, _messages),
    "BROKER_GET_NUMS": (_got_by_all, _messages),
}


def view(
    ctx: Context, connection: Connection, header: ViewBrokerStatsRequest, body: bytes
) -> RemotingCommand:
    find, figure = _STATISTICS.get(header.stats_name, (None, None))
    passed = find(ctx, header.stats_key) if find is not None else None
    if passed is None or figure is None:
        remark = f"The stats <{header.stats_name[:80]}> <{header.stats_key[:600]}> not exist"
        raise Rejected(ResponseCode.SYSTEM_ERROR, remark)
    return success(body=stats_dumps(*(_item(figure(part.counts), part) for part in passed)))


def _item(total: int, passed: WindowDelta) -> StatsItem:
    return StatsItem(
        total=total,
        per_second=total / passed.elapsed_s,
        per_call=total / max(1, passed.counts.calls),
    )


def consume_stats_of_all(
    ctx: Context, connection: Connection, header: GetBrokerConsumeStatsRequest, body: bytes
) -> InPieces[StatsOfGroup | None]:
    groups: dict[str, list[TopicConfig]] = {name: [] for name in ctx.groups.all()}
    for topic, group in ctx.offsets.pairs():
        config = ctx.topics.get(topic)
        if group in groups and config is not None and (config.order or not header.is_order):
            groups[group].append(config)
    check_shown(
        sum([config.read_queues for topics in groups.values() for config in topics]),
        "ask for one group after the other (208)",
    )
    pairs = [(group, config) for group, topics in groups.items() for config in topics]

    def finish(each: list[StatsOfGroup | None]) -> RemotingCommand:
        stats: dict[str, list[StatsOfGroup]] = {group: [] for group in groups}
        for (group, _), of_topic in zip(pairs, each, strict=True):
            if of_topic is not None:
                stats[group].append(of_topic)
        return success(body=broker_consume_stats_dumps(ctx.address, stats))

    return InPieces(
        [partial(_stats, ctx, *pair, positions_later(ctx, *pair)) for pair in pairs], finish
    )


def _stats(
    ctx: Context, group: str, topic: TopicConfig, positions: Callable[[], Positions]
) -> StatsOfGroup | None:
    """Return the group's progress; None after the topic was deleted. Raises StoreError, Cold."""
    return (
        StatsOfGroup.of(positions(), ctx.traffic.group_rate(group, topic.name))
        if topic.name in ctx.topics
        else None
    )


def consume_time_spans(
    ctx: Context, connection: Connection, header: QueryConsumeTimeSpanRequest, body: bytes
) -> RemotingCommand:
    config = ctx.topics.get(header.topic)
    if config is None:
        raise Rejected(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:256]}] not exist")
    return success(
        body=consume_time_spans_dumps(
            each_or_cold(
                partial(_span, ctx, header.group, config.name, queue_id)
                for queue_id in range(config.write_queues)
            )
        )
    )


def _span(ctx: Context, group: str, topic: str, queue_id: int) -> ConsumeTimeSpan:
    """Return times in ms; -1 if there is no message."""
    first, end = ctx.store.min_offset(topic, queue_id), ctx.store.max_offset(topic, queue_id)
    at = ctx.offsets.get(group, topic, queue_id) or 0
    first_ms = ctx.store.store_time(topic, queue_id, first)
    next_ms = ctx.store.store_time(topic, queue_id, at) if at < end else -1
    return ConsumeTimeSpan(
        queue=MessageQueue(topic, ctx.config.name, queue_id),
        first_ms=first_ms,
        last_ms=ctx.store.store_time(topic, queue_id, end - 1),
        consumed_ms=ctx.store.store_time(topic, queue_id, at - 1) if at > first else first_ms,
        delay_ms=max(0, ctx.now_ms() - next_ms) if next_ms >= 0 else 0,
    )


# --- figures and settings for Apache's tools ------------------------------------------------------
# A broker's figures and settings under the names that Apache's tools use.
#
# "Free" in commitLogDirCapacity is the space that may still be written; Java counts the system's
# reserve for root, too.
#
# Source: BrokerRuntimeInfo in AdminBrokerProcessor.java and StoreStatsService.java, 5.3;
# BrokerConfig.java, MessageStoreConfig.java.

VERSION_NAME: Final = "V" + version_name(VERSION).replace(".", "_")
"""VERSION as MQVersion.java names it."""
_GIB: Final = 1024**3


def runtime_info(ctx: Context) -> dict[str, str]:
    """Return all figures of GET_BROKER_RUNTIME_INFO.

    There are three of each rate: 10 s, 1 min, 10 min.
    """
    stats = ctx.store.stats()
    values: dict[str, object] = {
        "brokerVersion": VERSION,
        "brokerVersionDesc": VERSION_NAME,
        OWN_VERSION_FIGURE: __version__,
        "brokerActive": "true",
        "bootTimestamp": ctx.started_ms,
        "startAcceptSendRequestTimeStamp": ctx.started_ms,
        "runtime": _duration(ctx.now_ms() - ctx.started_ms),
        "sendThreadPoolQueueSize": ctx.sends_waiting,
        "sendThreadPoolQueueCapacity": ctx.config.max_sends_waiting,
        "earliestMessageTimeStamp": _earliest_ms(ctx.store, stats),
        **_traffic(ctx.traffic),
        **_times(ctx.traffic),
        **_store(stats),
        **_delayed(ctx),
        **_timers(ctx),
        "EndTransactionQueueSize": ctx.transactions.ending,
        **_disk(ctx),
        **_NO_COUNTERPART,
    }
    return {name: str(value) for name, value in values.items()}


# Tools read these and some fail without them. Here no request waits for a thread, no write for a
# lock, and no queue for what is in the log: sends, and the ends of transactions, wait for the disk
# only, and have their figures above.
_NO_COUNTERPART: Final = dict.fromkeys(
    (
        *(
            f"{pool}ThreadPoolQueueHeadWaitTimeMills"
            for pool in ("send", "pull", "litePull", "query", "ack")
        ),
        *(f"{pool}ThreadPoolQueueSize" for pool in ("pull", "litePull", "query", "ack")),
        *(f"{pool}ThreadPoolQueueCapacity" for pool in ("pull", "litePull", "query", "ack")),
        "EndTransactionThreadPoolQueueCapacity",
        "pageCacheLockTimeMills",
        "dispatchBehindBytes",
        "dispatchMaxBuffer",
        "remainTransientStoreBufferNumbs",
    ),
    "0",
)


def _traffic(traffic: Traffic) -> dict[str, object]:
    rates, counts, (today, yesterday) = traffic.rates(), traffic.users_counts(), traffic.mornings

    def three(values: list[float]) -> str:
        return " ".join(f"{value:.4f}" for value in values)

    transferred = three([rate.transferred for rate in rates])
    return {
        "putTps": three([rate.put for rate in rates]),
        "getTransferredTps": transferred,
        # its name until 4.9
        "getTransferedTps": transferred,
        "getFoundTps": three([rate.found for rate in rates]),
        "getMissTps": three([rate.missed for rate in rates]),
        "getTotalTps": three([rate.found + rate.missed for rate in rates]),
        "msgPutTotalTodayNow": counts.put,
        "msgPutTotalTodayMorning": today.put,
        "msgPutTotalYesterdayMorning": yesterday.put,
        "msgGetTotalTodayNow": counts.transferred,
        "msgGetTotalTodayMorning": today.transferred,
        "msgGetTotalYesterdayMorning": yesterday.transferred,
    }


def _times(traffic: Traffic) -> dict[str, object]:
    """Return the durations of sends until their answer, and of reads from the store."""
    puts = traffic.put_times
    return {
        "putMessageEntireTimeMax": int(puts.longest_s * 1000),
        "putMessageDistributeTime": "".join(
            f"[{name}]:{count} " for name, count in puts.table().items()
        ),
        "putLatency99": f"{puts.share_ms(0.99):.2f}",
        "putLatency999": f"{puts.share_ms(0.999):.2f}",
        "getMessageEntireTimeMax": int(traffic.get_times.longest_s * 1000),
        "putMessageFailedTimes": traffic.failed,
    }


def _delayed(ctx: Context) -> dict[str, object]:
    """Return for each delay level in use the numbers of delivered and of stored messages."""
    levels = sorted(queue_id + 1 for topic, queue_id in ctx.store.queues if topic == SCHEDULE_TOPIC)
    ends = {level: ctx.store.max_offset(SCHEDULE_TOPIC, level - 1) for level in levels}
    return {
        f"scheduleMessageOffset_{level}": f"{ctx.delivered(level)},{end}"
        for level, end in ends.items()
        if end
    }


def _timers(ctx: Context) -> dict[str, object]:
    """Return the figures of timer messages: the delay of delivery in seconds, unread messages,
    waiting messages, and rates of arrival and delivery.
    """
    enqueued, dequeued = ctx.traffic.timer_rates()
    return {
        "timerReadBehind": int(ctx.timers.behind_s),
        "timerOffsetBehind": ctx.timers.unread,
        "timerCongestNum": len(ctx.timers),
        "timerEnqueueTps": f"{enqueued:.4f}",
        "timerDequeueTps": f"{dequeued:.4f}",
    }


def _store(stats: StoreStats) -> dict[str, object]:
    return {
        "putMessageTimesTotal": stats.puts,
        "putMessageSizeTotal": stats.put_bytes,
        "putMessageAverageSize": stats.put_bytes / max(1, stats.puts),
        "remainHowManyDataToFlush": f"{stats.waiting_bytes} B",
        "commitLogMinOffset": stats.commitlog_start,
        "commitLogMaxOffset": stats.commitlog_end,
    }


def _disk(ctx: Context) -> dict[str, object]:
    usage = shutil.disk_usage(ctx.config.data)
    ratio = f"{disk_used(ctx.config.data):.2f}"
    return {
        "commitLogDirCapacity": f"Total : {usage.total / _GIB:.1f} GiB, Free : "
        f"{usage.free / _GIB:.1f} GiB.",
        "commitLogDiskRatio": ratio,
        f"commitLogDiskRatio_{ctx.config.data.absolute() / 'commitlog'}": ratio,
        "consumeQueueDiskRatio": ratio,
    }


def _earliest_ms(store: MessageStore, stats: StoreStats) -> int:
    """Return the store time of the first message in the log; -1 if it is empty."""
    record = store.record_at(stats.commitlog_start)
    return decode_stored(record).store_timestamp_ms if record is not None else -1


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def settings(ctx: Context) -> Mapping[str, object]:
    """Return the broker's settings under their names in Apache's broker.conf, in alphabetical
    order.

    Secrets are not included.
    """
    config = ctx.config
    kept = config.retention
    guarded = _java(ctx.guard is not None)
    values: dict[str, object] = {
        "authenticationEnabled": guarded,
        "authorizationEnabled": guarded,
        "autoCreateSubscriptionGroup": _java(config.auto_create_groups),
        "autoCreateTopicEnable": _java(config.auto_create_topics),
        "bindAddress": config.host,
        "brokerClusterName": config.cluster,
        "brokerIP1": ctx.address.rpartition(":")[0],
        "brokerId": config.broker_id,
        "brokerName": config.name,
        "brokerRole": "ASYNC_MASTER" if config.broker_id == 0 else "SLAVE",
        "channelExpiredTimeout": round(config.client_expiry_s * 1000),
        "cleanResourceInterval": round(config.retention_check_s * 1000),
        "defaultTopicQueueNums": config.default_topic_queues,
        "deleteWhen": ";".join(f"{hour:02d}" for hour in kept.hours),
        "diskMaxUsedSpaceRatio": f"{kept.disk_share * 100:g}",
        "diskSpaceCleanForciblyRatio": f"{kept.force_share * 100:g}",
        "enablePropertyFilter": _java(config.property_filter),
        "fileReservedTime": f"{kept.keep_s / 3600:g}",
        "flushConsumerOffsetInterval": round(config.offsets_persist_s * 1000),
        "flushDelayOffsetInterval": round(config.delay_persist_s * 1000),
        "flushDiskType": f"{config.flush.upper()}_FLUSH",
        "listenPort": ctx.address.rpartition(":")[2],
        "mappedFileSizeCommitLog": config.segment_bytes,
        "maxMessageSize": config.max_message_bytes,
        "maxOpenTransactions": config.max_open_transactions,
        "maxTransferBytesOnMessageInMemory": config.max_pull_bytes,
        "maxTransferCountOnMessageInMemory": config.max_pull_messages,
        "maxUnansweredChecks": config.max_unanswered_checks,
        "messageDelayLevel": config.delay_levels,
        "namesrvAddr": ";".join(config.name_servers),
        "regionId": config.region,
        "registerBrokerTimeoutMills": round(config.name_server_timeout_s * 1000),
        "registerNameServerPeriod": round(config.register_period_s * 1000),
        "sendThreadPoolQueueCapacity": config.max_sends_waiting,
        "storeReplyMessageEnable": _java(config.store_replies),
        "storePathCommitLog": config.data.absolute() / "commitlog",
        "storePathRootDir": config.data.absolute(),
        "timerMaxDelaySec": round(config.timer_max_delay_s),
        "timerMaxWaiting": config.timer_max_waiting,
        "transactionCheckInterval": round(config.transaction_check_interval_s * 1000),
        "transactionCheckMax": config.transaction_check_max,
        "transactionTimeOut": round(config.transaction_timeout_s * 1000),
        "enableNotifyAfterPopOrderLockRelease": _java(config.pop.notify_unlocks),
        "enablePopMessageThreshold": _java(config.pop.limit_out),
        "enableRetryTopicV2": _java(config.pop.retry_v2),
        "initPopOffsetByCheckMsgInMem": _java(config.pop.look_in_memory),
        "maxPopLeases": config.pop.max_leases,
        "maxPopPollingSize": config.pop.max_waiting,
        "popFromRetryProbability": config.pop.retry_share,
        "popFromRetryProbabilityForPriority": config.pop.priority_retry_share,
        "popInflightMessageThreshold": config.pop.max_out,
        "popPollingMapSize": config.pop.max_waiting_keys,
        "popPollingSize": config.pop.max_waiting_per_key,
        "popResponseReturnActualRetryTopic": _java(config.pop.actual_retry_topic),
        "priorityOrderAsc": _java(config.pop.priority_ascending),
        "retrieveMessageFromPopRetryTopicV1": _java(config.pop.read_retry_v1),
        "reviveQueueNum": config.pop.revive_queues,
        "useSeparateRetryQueue": _java(config.pop.separate_retry_queues),
        OWN_VERSION_FIGURE: __version__,
        # what is not to be set here, but true; exportConfigs of 4.9 fails without some of them
        # of releases before 5
        "aclEnable": _java(False),
        "filterServerNums": 0,
        "msgTraceTopicName": TRACE_TOPIC,
        "recallMessageEnable": _java(True),
        "slaveReadEnable": _java(False),
        "traceOn": _java(True),
        # it comes with the first trace
        "traceTopicEnable": _java(False),
        # how 222 works here, see handlers/groups.py
        "useServerSideResetOffset": _java(True),
        "useTLS": _java(config.tls is not None),
    }
    if config.tls is not None:
        values |= {
            "tls.server.certPath": config.tls.cert.absolute(),
            "tls.server.keyPath": config.tls.key.absolute(),
            "tls.server.mode": config.tls.mode,
            "tls.server.need.client.auth": "require"
            if config.tls.client_auth == "required"
            else config.tls.client_auth,
            "tls.server.trustCertPath": config.tls.client_ca.absolute()
            if config.tls.client_ca
            else "",
        }
    return dict(sorted(values.items()))


def _java(value: bool) -> str:
    return "true" if value else "false"
