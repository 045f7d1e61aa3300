"""A broker's figures and settings under the names that Apache's tools use.

"Free" in commitLogDirCapacity is the space that may still be written; Java counts the system's
reserve for root, too.

Source: BrokerRuntimeInfo in AdminBrokerProcessor.java and StoreStatsService.java, 5.3;
BrokerConfig.java, MessageStoreConfig.java.
"""

import shutil
from collections.abc import Mapping
from typing import Final

from ogive.broker.maintenance import disk_used
from ogive.broker.services import Context
from ogive.broker.traffic import Traffic
from ogive.model import SCHEDULE_TOPIC, TRACE_TOPIC
from ogive.store.message_store import MessageStore
from ogive.store.types import StoreStats
from ogive.version import __version__
from ogive.wire.codes import OWN_VERSION_FIGURE, VERSION, version_name
from ogive.wire.message import decode_stored

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
