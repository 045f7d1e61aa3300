"""Open and recover everything that a broker keeps in files, and build the objects for handlers.

The file ``apache-broker.conf`` is written, with which Apache's broker starts on this directory. It
refuses files of any size but the configured ones, so this file has the sizes of the
store. Ours reads the sizes from the files themselves; what it reads here are the delay levels, see
store/replay.py.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ogive.access.guard import Guard
from ogive.access.permissions import to_send
from ogive.access.user_table import AccessTable
from ogive.broker.config import LOOPBACK, BrokerConfig, RemoteSettings, ip_of, is_host_name
from ogive.broker.deferred.delay_levels import Schedule, is_level
from ogive.broker.deferred.timer_properties import Name
from ogive.broker.deferred.timers import TimerProgressFile, Timers
from ogive.broker.large_replies import LargeReplies
from ogive.broker.maintenance import Retention, disk_used, machine_time_s
from ogive.broker.off_loop_reads import ColdReads
from ogive.broker.pop.checkpoints import take_over
from ogive.broker.pop.leases import LeaseBook
from ogive.broker.pop.waiting import PopHolds
from ogive.broker.pulls.long_polling import PullHolds, SlowReaders
from ogive.broker.registration import Dial, Registration
from ogive.broker.sends.duplicates import Duplicates
from ogive.broker.sends.plan import own_properties
from ogive.broker.services import Context
from ogive.broker.state.client_table import Client, ClientTable
from ogive.broker.state.config_table import GroupTable, RequestModes
from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.state.queue_locks import QueueLocks
from ogive.broker.state.topic_table import TopicTable, keeps_batches
from ogive.broker.traffic import Traffic
from ogive.broker.transactions.checks import TransactionChecks
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import StoreUnusable
from ogive.model import SCHEDULE_TOPIC, WAITING_TOPICS, PropertyName
from ogive.store.clock import now_ms
from ogive.store.fs import Fs, OsFs, reason
from ogive.store.journal import read_journal
from ogive.store.message_store import MessageStore
from ogive.store.recovery import refuse_emptied
from ogive.store.repair import completed, places_of_waiting, topic_table
from ogive.store.replay import LevelTables
from ogive.store.tables import JsonTable, read_file, replace_file
from ogive.store.types import APACHE_CONF, StoreConfig
from ogive.store.writer import MakeWriter, WriterThread
from ogive.transport.connection import join_address
from ogive.transport.server import Server
from ogive.wire.bodies.json_fields import PERM_WRITE
from ogive.wire.message import decode_stored, encode_host, raw_property

log = logging.getLogger(__name__)

_HEAD: Final = """\
# Apache RocketMQ's broker starts on this directory:
#   mqbroker -c apache-broker.conf -n HOST:PORT-OF-A-NAME-SERVER
# after ogive's broker has stopped. Where the directory is a copy, adapt the paths; the sizes must
# stay. Written at each start.
"""


def settings(config: BrokerConfig, store: MessageStore) -> dict[str, object]:
    """Return the settings of Apache's broker for this store, by its names."""
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


def write_apache_conf(fs: Fs, config: BrokerConfig, store: MessageStore) -> None:
    """Write the file, unless it has this text already. Raises OSError."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine that a broker runs on. A simulation passes another one."""

    fs: Fs = field(default_factory=OsFs)
    writer: MakeWriter = WriterThread
    store: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of StoreConfig."""


@dataclass(slots=True, kw_only=True)
class Opened:
    """Recovered state of a broker's directory.

    A *_file* is the file of the field before or after it.
    """

    remote_settings: RemoteSettings
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    offsets_file: JsonTable
    leases: LeaseBook
    orders_file: JsonTable
    modes: RequestModes
    delays_file: JsonTable
    delays: dict[str, Any]
    transactions: Transactions
    timers_file: TimerProgressFile
    timers: Timers
    checkpoints: list[tuple[Name, str]]
    """Timer messages that are leases now."""
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
        write_apache_conf(fs, config, store)
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
        saved_offsets = offsets_file.load()
        offsets.load(saved_offsets or {})
        leases = _leases(fs, config, store, offsets, saved_offsets)
        orders_file = loud(JsonTable(fs, folder / "consumerOrderInfo.json"))
        orders = orders_file.load() or {}
        # else the journal is newer, and has no batch where the file still has one
        is_from_another = "popped" not in (saved_offsets or {})
        if is_from_another:
            leases.orders.load(orders)
        modes = RequestModes(loud(JsonTable(fs, folder / "messageRequestMode.json")))
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
        version = offsets.version
        checkpoints = take_over(store, timers, offsets, leases, config.cluster)
        leases.begin()
        if (is_from_another and saved_offsets is not None) or offsets.version != version:
            # from here on, the journal's positions are newer than the file, and what the revive
            # topic had is in the journal
            offsets_file.save(offsets.snapshot()())
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
        leases=leases,
        orders_file=orders_file,
        modes=modes,
        delays_file=delays_file,
        delays=delays,
        transactions=transactions,
        timers_file=timers_file,
        timers=timers,
        checkpoints=checkpoints,
        locks_file=locks_file,
        locks=locks,
        ages_file=ages_file,
        ages=ages,
        remote_settings=remote_settings,
    )


def _leases(
    fs: Fs,
    config: BrokerConfig,
    store: MessageStore,
    offsets: OffsetTable,
    saved: dict[str, Any] | None,
) -> LeaseBook:
    """Recover the leases of messages. *saved*: the file of *offsets*. Raises OSError."""
    leases = LeaseBook(
        store.journal,
        offsets,
        boot=fs.boot_id(),
        clock_s=machine_time_s,
        now_ms=now_ms,
        max_leases=config.pop.max_leases,
        revive_queues=config.pop.revive_queues,
    )
    number = 0 if saved is None else saved.get("popped")
    leases.recover(
        read_journal(fs, config.data / "leases"),
        store.stats().commitlog_end,
        store.max_offset,
        number if isinstance(number, int) else None,
    )
    offsets.lowest_leased = leases.lowest
    return leases


def _cut_progress(
    store: MessageStore,
    topics: TopicTable,
    offsets: OffsetTable,
    offsets_file: JsonTable,
    delays: dict[str, Any],
    delays_file: JsonTable,
) -> None:
    """Reset offsets beyond the end of their queue to the end, and save that before new messages
    make the queue grow past them.
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
            "set %d consumer offsets back to the end of their queues, which they were beyond", cut
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
            "set the progress of delay levels %s back to the end of their queues, which it was "
            "beyond",
            ", ".join(beyond),
        )
        delays_file.save(delays | {"offsetTable": table | beyond})
        table |= beyond


async def build_context(
    opened: Opened,
    server: Server,
    *,
    access: AccessTable | None,
    dial: Dial | None,
    members_changed: Callable[[str], None],
) -> Context:
    """Build the objects for handlers from the recovered state. *server* listens already."""
    config, loop = opened.remote_settings.config, asyncio.get_running_loop()
    address = join_address(config.advertised_host or config.host, server.port)
    store_host = encode_host(await _record_host(config), server.port)
    cold_reads = ColdReads(opened.store.bring_in, loop)
    slow_readers = SlowReaders(config.server.max_write_buffer_bytes, server.unread)
    ctx = Context(
        config=config,
        remote_settings=opened.remote_settings,
        levels=config.levels,
        loop=loop,
        turn=server.turn,
        now_ms=now_ms,
        started_ms=now_ms(),
        address=address,
        store_host=store_host,
        store=opened.store,
        topics=opened.topics,
        groups=opened.groups,
        offsets=opened.offsets,
        clients=ClientTable(
            expiry_s=config.client_expiry_s,
            max_clients=config.max_clients,
            max_subscriptions=config.max_subscriptions_per_group,
            now=loop.time,
            changed=members_changed,
        ),
        locks=_locks(config, opened, loop),
        holds=PullHolds(config.max_held_pulls, config.max_held_pulls_per_connection),
        slow_readers=slow_readers,
        leases=opened.leases,
        modes=opened.modes,
        pop_holds=_pop_holds(config),
        notify_holds=_pop_holds(config, newest=True),
        registration=Registration(
            opened.topics,
            name_servers=config.name_servers,
            cluster=config.cluster,
            broker_name=config.name,
            broker_id=config.broker_id,
            address=address,
            period_s=config.register_period_s,
            timeout_s=config.name_server_timeout_s,
            credentials=config.credentials,
            dial=dial,
        ),
        transactions=opened.transactions,
        timers=opened.timers,
        duplicates=None,
        retention=_retention(config, opened, cold_reads),
        cold_reads=cold_reads,
        large_replies=LargeReplies(opened.store, cold_reads, slow_readers, loop.time),
        traffic=Traffic(
            puts=lambda: opened.store.stats().puts,
            is_system=opened.topics.is_system,
            now=loop.time,
            now_ms=now_ms,
            timers=lambda: (opened.timers.taken_up, opened.timers.delivered),
        ),
        guard=None
        if access is None
        else _guard(access, config.cluster, f"broker {config.name}", opened),
        own_properties=own_properties(config.region, config.cluster),
    )
    ctx.duplicates = _duplicates(ctx)
    return ctx


def _guard(access: AccessTable, cluster: str, server: str, opened: Opened) -> Guard:
    topic_at = partial(_topic_at, opened.store)
    return Guard(
        access,
        cluster=cluster,
        server=server,
        topic_at=topic_at,
        topics_to_clone=opened.offsets.topics_to_clone,
    )


def _locks(config: BrokerConfig, opened: Opened, loop: asyncio.AbstractEventLoop) -> QueueLocks:
    locks = QueueLocks(
        config.lock_lease_s, config.max_locks, loop.time, opened.locks_file, config.name
    )
    locks.load(opened.locks)
    return locks


def _retention(config: BrokerConfig, opened: Opened, cold_reads: ColdReads) -> Retention:
    used = partial(disk_used, config.data / "commitlog")
    retention = Retention(
        opened.store, opened.ages_file, config.retention, cold_reads.bring_in, used=used
    )
    retention.load(opened.ages)
    return retention


def _pop_holds(config: BrokerConfig, *, newest: bool = False) -> PopHolds:
    return PopHolds(
        config.pop.max_waiting_per_key,
        config.pop.max_waiting_keys,
        config.pop.max_waiting,
        config.max_held_pulls_per_connection,
        newest=newest,
    )


def _duplicates(ctx: Context) -> Duplicates | None:
    config = ctx.config
    if not config.duplicate_window_s:
        return None
    return Duplicates(
        config.duplicate_window_s,
        config.duplicate_max_keys,
        ctx.store,
        ctx.cold_reads.bring_in,
        ctx.spawn,
    )


def build_schedule(ctx: Context, opened: Opened) -> Schedule:
    schedule = Schedule(
        ctx.store,
        ctx.put_counted,
        ctx.cold_reads.fetch,
        ctx.levels,
        ctx.store_host,
        ctx.store.now_ms,
    )
    schedule.load(opened.delays)
    return schedule


def transaction_checks(ctx: Context) -> TransactionChecks:
    read = partial(ctx.cold_reads.read, ctx.store)
    may_send = partial(_may_send, ctx.guard)
    return TransactionChecks(
        ctx.transactions,
        ctx.clients,
        ctx.config,
        ctx.store_host,
        ctx.store.now_ms,
        ctx.loop.time,
        ctx.retention.full_for_s,
        read,
        may_send,
    )


def _may_send(guard: Guard | None, client: Client, topic: str) -> bool:
    return guard is None or guard.may(client.user, client.connection.remote_address, to_send(topic))


def _topic_at(store: MessageStore, commitlog_offset: int) -> str | None:
    """Return the topic of a message; a half message and a delayed one wait in another topic, and
    belong to the one that they will be stored in.
    """
    record = store.record_at(commitlog_offset)
    if record is None:
        return None
    stored = decode_stored(record)
    real = raw_property(stored.properties, PropertyName.REAL_TOPIC.encode())
    return real.decode() if real is not None and stored.topic in WAITING_TOPICS else stored.topic


async def _record_host(config: BrokerConfig) -> str:
    """Return the IP address of this broker for its records.

    If it advertises a name, that is the address to which the name resolves now.
    """
    host = config.advertised_host or config.host
    if host == "localhost" or not is_host_name(host):
        return ip_of(host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        own = LOOPBACK if config.host in ("0.0.0.0", "::") else ip_of(config.host)
        log.warning(
            "advertised host %s cannot be resolved (%s): until the next start, message ids "
            "contain %s",
            host,
            exc,
            own,
        )
        return own
    return ip_of(
        str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0]).partition("%")[0]
    )
