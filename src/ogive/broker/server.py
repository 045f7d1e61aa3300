"""The broker: opens the store, listens, registers, and stops in reverse order."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from ogive.access.guard import Guard
from ogive.access.permissions import to_send
from ogive.access.user_table import AccessTable
from ogive.broker.config import LOOPBACK, BrokerConfig, ip_of, is_host_name
from ogive.broker.deferred.delay_levels import Schedule
from ogive.broker.deferred.timers import Timers
from ogive.broker.dispatch import dispatch
from ogive.broker.handlers.clients import notify_members
from ogive.broker.maintenance import Retention, Scrubbing, disk_used
from ogive.broker.metrics_page import metrics
from ogive.broker.off_loop_reads import ColdReads
from ogive.broker.pulls.long_polling import PullHolds, SlowReaders
from ogive.broker.registration import Dial, Registration
from ogive.broker.sends.batch_run import take_batches
from ogive.broker.sends.duplicates import Duplicates
from ogive.broker.sends.send import own_properties
from ogive.broker.sends.send_answer import answer_template, message_id_format
from ogive.broker.sends.send_run import take_sends
from ogive.broker.sends.transaction_run import take_transactions
from ogive.broker.services import Context
from ogive.broker.startup import Machine, Opened, open_all
from ogive.broker.state.client_table import Client, ClientTable
from ogive.broker.state.config_table import ProgressSaver
from ogive.broker.state.queue_locks import QueueLocks
from ogive.broker.traffic import SAMPLE_S, Traffic
from ogive.broker.transactions.checks import TransactionChecks
from ogive.errors import IllegalStateError, OgiveError, StoreError
from ogive.model import WAITING_TOPICS, PropertyName
from ogive.native import build
from ogive.store.clock import now_ms
from ogive.store.message_store import MessageStore
from ogive.store.types import QueueKey
from ogive.transport.connection import Connection, join_address
from ogive.transport.event_loop import cancel_all, every
from ogive.transport.monitoring import CONTENT_TYPE, Page
from ogive.transport.server import Server, ServerConnection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_stored, encode_host, raw_property

log = logging.getLogger(__name__)


class Broker:
    """One broker on the running event loop. ``failed`` gets the error when the store cannot go on:
    the process should end then.

    After a failure sends are refused (14), and reads go on.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine | None = None,
        *,
        access: AccessTable | None = None,
        dial: Dial | None = None,
    ) -> None:
        """*access*: the users who may ask, and for what; None: anybody may do anything.

        *dial* leads to name servers in this process.
        """
        self._dial = dial
        self.config = config
        self._machine = machine or Machine()
        self._access = access
        # why stop() could not save everything
        self.unsaved: StoreError | None = None
        self.failed: asyncio.Future[OgiveError] = asyncio.get_running_loop().create_future()
        self._server = Server(
            self._handle,
            self._take_run,
            host=config.host,
            port=config.port,
            tls=config.tls,
            limits=config.server,
            on_open=self._opened,
            busy_poll_s=config.busy_poll_s,
            guarded=access is not None,
        )
        self._ctx: Context | None = None
        self._schedule: Schedule | None = None
        self._saves: list[_Job] = []
        self._jobs: list[asyncio.Task[None]] = []
        self._to_notify: set[str] = set()
        self._stopping = False
        self._record_host = LOOPBACK

    @property
    def address(self) -> str:
        """What clients connect to, ``host:port``; the port is known once the broker has started."""
        return join_address(self.config.advertised_host or self.config.host, self._server.port)

    @property
    def context(self) -> Context:
        if self._ctx is None:
            raise IllegalStateError("this broker is not running")
        return self._ctx

    # --- start ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Return once the broker serves and is registered.

        Raises StoreError, ConnectError; then nothing runs.
        """
        opened = await self._open()
        self._record_host = await _record_host(self.config)
        ctx = self._ctx = self._context(opened)
        ctx.duplicates = _duplicates(ctx)
        schedule = self._schedule = _schedule(ctx, opened)
        ctx.delivered = schedule.delivered
        ctx.retention.needed += [
            schedule.needed_from,
            ctx.timers.needed_from,
            ctx.transactions.needed_from,
        ]
        self._saves = _saves(ctx, opened, schedule)
        self._start_store(ctx, schedule)
        self._start_jobs([*self._saves, *_jobs(ctx)])
        await ctx.registration.start()
        log.info(
            "broker %s serves on %s, store %s; ogive %s",
            self.config.name,
            self.address,
            self.config.data,
            build,
        )

    async def _open(self) -> Opened:
        """Open the store, the tables and the port, whose number is part of the broker's address."""
        opened = await asyncio.to_thread(open_all, self.config, self._machine)
        try:
            await opened.topics.saved()
            await opened.groups.saved()
            await opened.remote_settings.saved()
            await self._server.start()
        except BaseException:
            opened.store.close()
            raise
        return opened

    def _start_store(self, ctx: Context, schedule: Schedule) -> None:
        """Messages can be stored from here on; those that waited are delivered."""
        ctx.store.on_arrival = partial(_arrived, ctx.holds, schedule, ctx.timers)
        ctx.store.on_failure = self._fail
        ctx.store.start(ctx.turn.call_from_thread, writer=self._machine.writer)
        schedule.start()
        ctx.timers.start(ctx.put_counted, ctx.cold_reads.fetch, ctx.store_host)
        ctx.transactions.start(ctx.put_counted, ctx.store_host)

    def _context(self, opened: Opened) -> Context:
        config, loop = opened.remote_settings.config, asyncio.get_running_loop()
        store_host = encode_host(self._record_host, self._server.port)
        cold_reads = ColdReads(opened.store.bring_in, loop)
        return Context(
            config=config,
            remote_settings=opened.remote_settings,
            levels=config.levels,
            loop=loop,
            turn=self._server.turn,
            now_ms=now_ms,
            started_ms=now_ms(),
            address=self.address,
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
                changed=self._members_changed,
            ),
            locks=_locks(config, opened, loop),
            holds=PullHolds(config.max_held_pulls, config.max_held_pulls_per_connection),
            slow_readers=SlowReaders(config.server.max_write_buffer_bytes, self._server.unread),
            registration=Registration(
                opened.topics,
                name_servers=config.name_servers,
                cluster=config.cluster,
                broker_name=config.name,
                broker_id=config.broker_id,
                address=self.address,
                period_s=config.register_period_s,
                timeout_s=config.name_server_timeout_s,
                credentials=config.credentials,
                dial=self._dial,
            ),
            transactions=opened.transactions,
            timers=opened.timers,
            duplicates=None,
            retention=_retention(config, opened, cold_reads),
            cold_reads=cold_reads,
            traffic=Traffic(
                puts=lambda: opened.store.stats().puts,
                is_system=opened.topics.is_system,
                now=loop.time,
                now_ms=now_ms,
                timers=lambda: (opened.timers.taken_up, opened.timers.delivered),
            ),
            guard=None
            if self._access is None
            else _guard(self._access, config.cluster, f"broker {config.name}", opened),
            own_properties=own_properties(config.region, config.cluster),
            send_answer=answer_template(config.region, message_id_format(store_host)),
            batch_answer=answer_template(config.region, "%b"),
            keyless_batch_answer=answer_template(config.region, "%b", keyed=False),
        )

    def _start_jobs(self, jobs: Iterable["_Job"]) -> None:
        for job in jobs:
            work: Coroutine[Any, Any, None] = every(
                job.period_s, job.work, name=job.name, first_after_s=job.period_s
            )
            task = asyncio.create_task(work, name=job.name)
            task.add_done_callback(self._job_ended)
            self._jobs.append(task)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        """Jobs run until they are cancelled: any other end is a bug, and a broker without the job
        would be no broker.
        """
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("job %r ended", task.get_name(), exc_info=exc)
            self._fail(IllegalStateError(f"job {task.get_name()!r} ended: {exc!r}"))

    async def metrics_page(self) -> Page:
        """For Prometheus."""
        if self._ctx is not None:
            # it stops meanwhile
            with suppress(StoreError):
                return Page(200, await metrics(self._ctx), CONTENT_TYPE)
        return Page(503, "this broker does not serve\n")

    def health_page(self) -> Page:
        """Whether the process is worth keeping: not once the store has failed."""
        return (
            Page(503, f"failed: {self.failed.result()}\n")
            if self.failed.done()
            else Page(200, "ok\n")
        )

    def ready_page(self) -> Page:
        """Whether clients should come: not before the start, after a failure, while it stops, or
        where no name server leads them here.
        """
        if self._ctx is None or self._stopping or self.failed.done():
            return Page(503, "not ready\n")
        known = self._ctx.registration.known()
        if known and not any(known.values()):
            return Page(503, f"not ready: not registered at {', '.join(known)}\n")
        return Page(200, "ready\n")

    async def reload_certificates(self) -> None:
        """See Server.reload_certificates."""
        await self._server.reload_certificates()

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Take leave of the name servers, answer what is in flight, save everything, close the
        store. A second call does nothing.
        """
        ctx = self._ctx
        if ctx is None or self._stopping:
            return
        self._stopping = True
        await ctx.registration.stop()
        ctx.holds.close()
        await self._server.stop(self.config.stop_grace_s)
        self._ctx = None
        if self._schedule is not None:
            await self._schedule.stop()
        await ctx.timers.stop()
        await cancel_all(self._jobs)
        await ctx.slow_readers.close()
        await ctx.finish_tasks()
        await asyncio.to_thread(ctx.cold_reads.close)
        try:
            ctx.transactions.write_marks()
            await ctx.synced()
            for save in self._saves:
                await save.work()
            await ctx.topics.saved()
            await ctx.groups.saved()
            await ctx.locks.saved()
            await ctx.retention.save()
        except StoreError as exc:
            log.error(
                "broker %s: its progress since the last save is lost: %s", self.config.name, exc
            )
            self.unsaved = exc
        ctx.store.close()

    # --- events -----------------------------------------------------------------------------------

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        if self._ctx is None:
            # the answer would come from a broker that is not there yet, or any more
            connection.abort("")
        else:
            dispatch(self._ctx, connection, command)

    def _take_run(self, connection: Connection, frames: list[bytes], at: int) -> int:
        ctx = self._ctx
        if ctx is None or connection.closed:
            return 0
        return (
            take_sends(ctx, connection, frames, at)
            or take_batches(ctx, connection, frames, at)
            or take_transactions(ctx, connection, frames, at)
        )

    def _opened(self, connection: ServerConnection) -> None:
        ctx = self._ctx
        if ctx is None:
            connection.abort("")
            return
        ctx.born_hosts[connection] = _host_bytes(connection.remote_address)
        connection.on_close.append(partial(_connection_closed, ctx))

    def _members_changed(self, group: str) -> None:
        """However many members come and go in one turn of the loop, each member is notified
        once.
        """
        if not self._to_notify:
            asyncio.get_running_loop().call_soon(self._notify)
        self._to_notify.add(group)

    def _notify(self) -> None:
        groups, self._to_notify = self._to_notify, set()
        if self._ctx is not None:
            for group in groups:
                notify_members(self._ctx, group)

    def _fail(self, error: OgiveError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)


# --- what a start builds --------------------------------------------------------------------------


class _Job(NamedTuple):
    """Runs every *period_s* for as long as the broker does."""

    period_s: float
    work: Callable[[], Awaitable[None]]
    name: str


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


def _schedule(ctx: Context, opened: Opened) -> Schedule:
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


def _saves(ctx: Context, opened: Opened, schedule: Schedule) -> list[_Job]:
    """Each runs once more when the broker stops."""
    config = ctx.config
    offsets = ProgressSaver("consumer offsets", ctx.offsets, opened.offsets_file, ctx.synced)
    delays = ProgressSaver("delay offsets", schedule, opened.delays_file, ctx.synced)
    timers = ProgressSaver(
        "the progress of timer messages", ctx.timers, opened.timers_file, ctx.synced
    )
    ctx.save_offsets = partial(_save_offsets, ctx, offsets)
    return [
        _Job(config.offsets_persist_s, ctx.save_offsets, "save consumer offsets"),
        _Job(config.delay_persist_s, delays.save, "save delay offsets"),
        _Job(config.delay_persist_s, timers.save, "save the progress of timer messages"),
    ]


def _jobs(ctx: Context) -> list[_Job]:
    config = ctx.config
    jobs = [
        _Job(
            config.transaction_check_interval_s, _transaction_checks(ctx).run, "check transactions"
        ),
        _Job(
            config.client_scan_s,
            partial(_look_after, ctx),
            "expire clients and locks, save tables again, tell of refusals",
        ),
        _Job(config.retention_check_s, ctx.retention.run, "remove old messages"),
        _Job(SAMPLE_S, ctx.traffic.sample, "sample traffic"),
    ]
    if config.scrub_bytes_per_s:
        jobs.append(
            _Job(
                1.0,
                Scrubbing(ctx.store, config.scrub_bytes_per_s, ctx.loop.time).run,
                "read the log again",
            )
        )
    return jobs


def _transaction_checks(ctx: Context) -> TransactionChecks:
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


# --- what happens meanwhile -----------------------------------------------------------------------


def _may_send(guard: Guard | None, client: Client, topic: str) -> bool:
    return guard is None or guard.may(client.user, client.connection.remote_address, to_send(topic))


def _topic_at(store: MessageStore, commitlog_offset: int) -> str | None:
    """The topic that a message belongs to; a half message and a delayed one wait elsewhere, and
    belong to where they will go.
    """
    record = store.record_at(commitlog_offset)
    if record is None:
        return None
    stored = decode_stored(record)
    real = raw_property(stored.properties, PropertyName.REAL_TOPIC.encode())
    return real.decode() if real is not None and stored.topic in WAITING_TOPICS else stored.topic


def _arrived(
    holds: PullHolds, schedule: Schedule, timers: Timers, ends: dict[QueueKey, int]
) -> None:
    holds.arrived(ends)
    schedule.arrived(ends)
    timers.arrived(ends)


async def _save_offsets(ctx: Context, saver: ProgressSaver) -> None:
    """The broker's own progress, and that of all groups."""
    ctx.transactions.note_progress(ctx.offsets)
    await saver.save()


async def _look_after(ctx: Context) -> None:
    """Let go of clients and locks that have expired, save the tables that could not be saved, and
    tell of refusals.
    """
    if ctx.guard is not None:
        ctx.guard.table.refusals.tell()
    for connection in ctx.clients.expired():
        log.info(
            "client %s is dropped: no heartbeat for %g s",
            connection.remote_address,
            ctx.config.client_expiry_s,
        )
        connection.close()
    ctx.offsets.resets.forget_old()
    ctx.locks.expire()
    ctx.locks.save_soon()
    ctx.topics.save_again()
    ctx.groups.save_again()


def _connection_closed(ctx: Context, connection: Connection) -> None:
    ctx.holds.drop(connection)
    ctx.clients.drop(connection)
    ctx.filter_quota.drop(connection)
    ctx.born_hosts.pop(connection, None)


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
            "advertised host %s cannot be resolved (%s): the ids of messages stored until the next "
            "start hold %s",
            host,
            exc,
            own,
        )
        return own
    return ip_of(
        str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0]).partition("%")[0]
    )


_V4_IN_V6: Final = "::ffff:"


def _host_bytes(address: str) -> bytes:
    """A peer's address as records hold it; one that is IPv4 behind an IPv6 socket counts as
    IPv4.
    """
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]").removeprefix(_V4_IN_V6).partition("%")[0], int(port))
