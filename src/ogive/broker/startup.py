"""Open and recover everything that a broker keeps in files, before it serves.

``apache-broker.conf`` in the broker's directory, with which Apache's broker starts on this
store.

Apache's broker refuses files of any size but the configured ones, so this file has the sizes of the
store. Ours reads them from the files themselves; what it reads here are the delay levels, see
store/queue_rebuild.py.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.broker.config import BrokerConfig, RemoteSettings
from ogive.broker.deferred.delay_levels import is_level
from ogive.broker.deferred.timer_queue import TimerProgressFile
from ogive.broker.deferred.timers import Timers
from ogive.broker.state.group_table import GroupTable
from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.state.topic_table import TopicTable, keeps_batches
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import StoreUnusable
from ogive.model import SCHEDULE_TOPIC
from ogive.store.clock import now_ms
from ogive.store.fs import Fs, OsFs, reason
from ogive.store.message_store import MessageStore
from ogive.store.missing_log import refuse_emptied
from ogive.store.queue_rebuild import LevelTables
from ogive.store.repair import completed, places_of_waiting, topic_table
from ogive.store.tables import JsonTable, read_file, replace_file
from ogive.store.types import APACHE_CONF, StoreConfig
from ogive.store.writer import MakeWriter, WriterThread
from ogive.wire.bodies.json_fields import PERM_WRITE

_HEAD: Final = """\
# Apache RocketMQ's broker starts on this directory:
#   mqbroker -c apache-broker.conf -n HOST:PORT-OF-A-NAME-SERVER
# after ogive's broker has stopped. Where the directory is a copy, adapt the paths; the sizes must
# stay. Written at each start.
"""


def settings(config: BrokerConfig, store: MessageStore) -> dict[str, object]:
    """What Apache's broker must know, by its names."""
    root = config.data.resolve()
    sizes = store.file_sizes
    return {
        "brokerClusterName": config.cluster,
        "brokerName": config.name,
        "brokerId": config.broker_id,
        "storePathRootDir": root,
        "storePathCommitLog": root / "commitlog",
        "mappedFileSizeCommitLog": sizes.segment,
        "mappedFileSizeConsumeQueue": sizes.queue_file,
        "mapperFileSizeBatchConsumeQueue": sizes.batch_queue_file,
        "maxHashSlotNum": sizes.keys.slots,
        "maxIndexNum": sizes.keys.items,
        "messageDelayLevel": config.delay_levels,
        "flushDiskType": f"{config.flush.upper()}_FLUSH",
        "fileReservedTime": max(1, round(config.retention.keep_s / 3600)),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in config.retention.hours),
        "autoCreateTopicEnable": str(config.auto_create_topics).lower(),
        "autoCreateSubscriptionGroup": str(config.auto_create_groups).lower(),
    }


def write(fs: Fs, config: BrokerConfig, store: MessageStore) -> None:
    """Only where it says something else. Raises OSError."""
    path, stats = config.data / APACHE_CONF, store.stats()
    levels = LevelTables.read(fs, config.data).followed_by(
        config.levels, stats.commitlog_start, stats.commitlog_end
    )
    text = (
        _HEAD
        + "".join(f"{name}={value}\n" for name, value in settings(config, store).items())
        + levels.lines()
    ).encode()
    if read_file(fs, path) != text:
        replace_file(fs, path, text)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a broker takes from the machine it runs on. A simulation gives it another one."""

    fs: Fs = field(default_factory=OsFs)
    writer: MakeWriter = WriterThread
    store: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of StoreConfig."""


@dataclass(slots=True, kw_only=True)
class Opened:
    """What a broker keeps on disk, recovered.

    A *_file* is where what stands before or after it is saved.
    """

    remote_settings: RemoteSettings
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    offsets_file: JsonTable
    delays_file: JsonTable
    delays: dict[str, Any]
    transactions: Transactions
    timers_file: TimerProgressFile
    timers: Timers
    ages_file: JsonTable
    ages: dict[str, Any]
    locks_file: JsonTable
    locks: dict[str, Any]


def open_all(config: BrokerConfig, machine: Machine) -> Opened:
    """Open and recover everything in the data directory.

    Blocking. Raises StoreError, ProtocolError.
    """
    fs, folder = machine.fs, config.data / "config"
    store_config = StoreConfig(
        root=config.data,
        flush=config.flush,
        segment_bytes=config.segment_bytes,
        delay_levels=config.levels,
        **machine.store,
    )
    if not config.empty_log:
        # opening meets it again, and says what it means
        with suppress(OSError):
            refuse_emptied(fs, store_config)
    store = MessageStore.open(store_config, fs=fs, clock_ms=now_ms, monotonic=time.monotonic)

    def loud(table: JsonTable) -> JsonTable:
        table.on_broken = store.fail
        return table

    try:
        remote_settings = RemoteSettings(
            loud(JsonTable(fs, folder / "remoteSettings.json")), config, now_ms
        )
        config = remote_settings.config
        write(fs, config, store)
        topics = TopicTable(
            loud(topic_table(fs, config.data)),
            cluster=config.cluster,
            broker_name=config.name,
            auto_create=config.auto_create_topics,
            now_ms=now_ms,
            default_queues=config.default_topic_queues,
            max_topics=config.max_topics,
            complete=lambda stored: completed(
                stored,
                {*store.queues, *places_of_waiting(fs, config.data)},
                store.topics.has_batches,
            ),
            check_made=lambda made: store.topics.check(
                made.name, batches=keeps_batches(made.attributes)
            ),
            on_made=lambda made: store.topics.make(
                made.name, batches=keeps_batches(made.attributes)
            ),
        )
        groups = GroupTable(
            loud(JsonTable(fs, folder / "subscriptionGroup.json")),
            auto_create=config.auto_create_groups,
            now_ms=now_ms,
            max_groups=config.max_groups,
        )
        offsets = OffsetTable(config.max_offsets, away_s=config.client_expiry_s)
        offsets_file = loud(JsonTable(fs, folder / "consumerOffset.json"))
        offsets.load(offsets_file.load() or {})
        delays_file = loud(JsonTable(fs, folder / "delayOffset.json"))
        delays = delays_file.load() or {}
        _cut_progress(store, topics, offsets, offsets_file, delays, delays_file)
        if store.may_be_torn:
            offsets.doubt()
        locks_file = loud(JsonTable(fs, folder / "queueLocks.json"))
        locks = locks_file.load() or {}
        timers_file = TimerProgressFile(fs, config.data)
        loud(timers_file)
        timers = Timers(store, now_ms, config.timer_max_waiting)
        timers.recover(timers_file.progress())
        timers_file.take_over(timers.snapshot()())
        transactions = Transactions(
            store, store.now_ms, config.max_open_transactions, topics.served
        )
        transactions.recover(offsets)
        ages_file = loud(JsonTable(fs, folder / "retention.json"))
        ages = ages_file.load() or {}
    except BaseException as exc:
        store.close()
        if isinstance(exc, OSError):
            raise StoreUnusable(
                f"the broker's tables cannot be kept in {folder}: {reason(exc)}"
            ) from exc
        raise
    return Opened(
        store=store,
        topics=topics,
        groups=groups,
        offsets=offsets,
        offsets_file=offsets_file,
        delays_file=delays_file,
        delays=delays,
        transactions=transactions,
        timers_file=timers_file,
        timers=timers,
        locks_file=locks_file,
        locks=locks,
        ages_file=ages_file,
        ages=ages,
        remote_settings=remote_settings,
    )


def _cut_progress(
    store: MessageStore,
    topics: TopicTable,
    offsets: OffsetTable,
    offsets_file: JsonTable,
    delays: dict[str, Any],
    delays_file: JsonTable,
) -> None:
    """Cut offsets beyond the end of their queue, and save that before new messages make the queue
    grow past them.
    """

    def end_of(topic: str, queue_id: int) -> int | None:
        config = topics.get(topic)
        # no messages come there
        return (
            store.max_offset(topic, queue_id)
            if config is None or config.perm & PERM_WRITE
            else None
        )

    cut = offsets.cut(end_of)
    if cut:
        log.warning(
            "%d offsets of groups were beyond the end of their queue and are set to it", cut
        )
        offsets_file.save(offsets.snapshot()())
    table = delays.get("offsetTable")
    if not isinstance(table, dict):
        return
    beyond = {}
    for level, at in table.items():
        if is_level(level) and isinstance(at, int):
            end = store.max_offset(SCHEDULE_TOPIC, int(level) - 1)
            if at > end:
                beyond[level] = end
    if beyond:
        log.warning(
            "the progress of delay levels %s was beyond the end of their queues and is set to it",
            ", ".join(beyond),
        )
        delays_file.save(delays | {"offsetTable": table | beyond})
        table |= beyond
