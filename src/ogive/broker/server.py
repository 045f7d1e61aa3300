"""The broker: opens the store, listens, registers, and stops in reverse order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from ogive.access.user_table import AccessTable
from ogive.broker.config import BrokerConfig
from ogive.broker.deferred.delay_levels import Schedule
from ogive.broker.dispatch import dispatch, on_frames
from ogive.broker.handlers.clients import notify_members
from ogive.broker.maintenance import Scrubbing, machine_time_s
from ogive.broker.metrics_page import metrics
from ogive.broker.pop import checkpoints
from ogive.broker.pop.order import Unlocks
from ogive.broker.pop.revive import Reviver
from ogive.broker.registration import Dial
from ogive.broker.services import Context
from ogive.broker.startup import (
    Machine,
    Opened,
    build_context,
    build_schedule,
    open_all,
    transaction_checks,
)
from ogive.broker.state.config_table import ProgressSaver
from ogive.broker.traffic import SAMPLE_S
from ogive.errors import IllegalStateError, OgiveError, StoreError
from ogive.native import build
from ogive.transport.connection import Connection, join_address
from ogive.transport.event_loop import cancel_all, every
from ogive.transport.monitoring import CONTENT_TYPE, Response
from ogive.transport.server import Server, ServerConnection
from ogive.wire.command import RemotingCommand
from ogive.wire.message import encode_host
from ogive.wire.sends import Origin

log = logging.getLogger(__name__)


class Broker:
    """Broker on the running event loop.

    ``failed`` gets the error when the store fails: the process should end then. After a failure
    sends are refused (14), and reads continue.
    """

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine | None = None,
        *,
        access: AccessTable | None = None,
        dial: Dial | None = None,
    ) -> None:
        """*access* checks requests; with None every request is allowed.

        *dial* connects to name servers in this process.
        """
        self._dial = dial
        self.config = config
        self._machine = machine or Machine()
        self._access = access
        # why stop() could not save everything
        self.unsaved: StoreError | None = None
        # and why not all leases are checkpoints, which only another broker misses
        self.unexported: StoreError | None = None
        self.failed: asyncio.Future[OgiveError] = asyncio.get_running_loop().create_future()
        self._server = Server(
            _too_early,
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
        self._reviver: Reviver | None = None
        self._unlocks: Unlocks | None = None
        self._saves: list[_Job] = []
        self._jobs: list[asyncio.Task[None]] = []
        self._to_notify: set[str] = set()
        self._stopping = False

    @property
    def address(self) -> str:
        """Address for clients, ``host:port``. The port is known after start()."""
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
        ctx = self._ctx = await build_context(
            opened,
            self._server,
            access=self._access,
            dial=self._dial,
            members_changed=self._members_changed,
        )
        self._server.handle = partial(dispatch, ctx)
        self._server.on_frames = partial(on_frames, ctx)
        schedule = self._schedule = build_schedule(ctx, opened)
        ctx.delivered = schedule.delivered
        ctx.retention.needed += [
            schedule.needed_from,
            ctx.timers.needed_from,
            ctx.transactions.needed_from,
        ]
        self._saves = _saves(ctx, opened, schedule)
        self._start_store(ctx, schedule, opened)
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

    def _start_store(self, ctx: Context, schedule: Schedule, opened: Opened) -> None:
        """Let messages be stored, and deliver those that waited."""
        ctx.store.on_arrival = ctx.arrived
        ctx.store.on_failure = self._fail
        ctx.store.start(ctx.turn.call_from_thread, writer=self._machine.writer)
        ctx.store.journal.start(ctx.turn.add)
        self._reviver = Reviver(ctx)
        self._reviver.start()
        self._unlocks = Unlocks(ctx.leases.orders, machine_time_s, partial(_unlocked, ctx))
        self._unlocks.begin(timed=ctx.config.pop.notify_unlocks)
        ctx.leases.on_order = self._unlocks.watch
        checkpoints.cancel(ctx, opened.checkpoints)
        schedule.start()
        ctx.timers.start(ctx.put_counted, ctx.cold_reads.fetch, ctx.store_host)
        ctx.transactions.start(ctx.put_counted, ctx.store_host)

    def _start_jobs(self, jobs: Iterable["_Job"]) -> None:
        for job in jobs:
            work: Coroutine[Any, Any, None] = every(
                job.period_s, job.work, name=job.name, first_after_s=job.period_s
            )
            task = asyncio.create_task(work, name=job.name)
            task.add_done_callback(self._job_ended)
            self._jobs.append(task)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        """Fail if a job ended without being cancelled, which is a bug."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("task %r has ended", task.get_name(), exc_info=exc)
            self._fail(IllegalStateError(f"job {task.get_name()!r} ended: {exc!r}"))

    async def metrics_page(self) -> Response:
        """Return the metrics for Prometheus."""
        if self._ctx is not None:
            # it stops meanwhile
            with suppress(StoreError):
                return Response(200, await metrics(self._ctx), CONTENT_TYPE)
        return Response(503, "this broker does not serve\n")

    def health_page(self) -> Response:
        """Return 200 until the store fails; then the process should be restarted."""
        return (
            Response(503, f"failed: {self.failed.result()}\n")
            if self.failed.done()
            else Response(200, "ok\n")
        )

    def ready_page(self) -> Response:
        """Return 200 while clients should connect.

        They should not before the start, after a failure, during the stop, or while this broker is
        registered at none of its name servers.
        """
        if self._ctx is None or self._stopping or self.failed.done():
            return Response(503, "not ready\n")
        known = self._ctx.registration.known()
        if known and not any(known.values()):
            return Response(503, f"not ready: not registered at {', '.join(known)}\n")
        return Response(200, "ready\n")

    async def reload_certificates(self) -> None:
        """Read the files of certificates again, see Server.reload_certificates."""
        await self._server.reload_certificates()

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Unregister, answer the requests in flight, save everything and close the store.

        A second call does nothing.
        """
        ctx = self._ctx
        if ctx is None or self._stopping:
            return
        self._stopping = True
        await ctx.registration.stop()
        ctx.holds.close()
        ctx.pop_holds.close()
        ctx.notify_holds.close()
        await self._server.stop(self.config.stop_grace_s)
        self._ctx = None
        if self._schedule is not None:
            await self._schedule.stop()
        if self._reviver is not None:
            self._reviver.stop()
        if self._unlocks is not None:
            self._unlocks.close()
        await ctx.timers.stop()
        await cancel_all(self._jobs)
        await ctx.slow_readers.close()
        await ctx.finish_tasks()
        await asyncio.to_thread(ctx.cold_reads.close)
        try:
            ctx.transactions.write_marks()
            await ctx.synced()
            await self._export(ctx)
            for save in self._saves:
                await save.work()
            await ctx.topics.saved()
            await ctx.groups.saved()
            await ctx.locks.saved()
            await ctx.retention.save()
        except StoreError as exc:
            log.error(
                "broker %s: could not save its progress, the next start continues from the last "
                "save: %s",
                self.config.name,
                exc,
            )
            self.unsaved = exc
        ctx.store.close()

    async def _export(self, ctx: Context) -> None:
        """Write the leases as Apache's broker keeps them. Raises StoreError if the store failed."""
        try:
            await checkpoints.export(ctx)
        except StoreError as exc:
            if ctx.store.failed is not None:
                raise
            # Apache's broker, which cannot read the journal, would give their messages again
            log.error("not all leases could be written as checkpoints: %s", exc)
            self.unexported = exc
        else:
            # the offsets are those that Apache's broker has
            ctx.offsets.lowest_leased = dict

    # --- clients without a socket ----------------------------------------------------------------

    def admit(self, connection: Connection) -> None:
        """Serve *connection*, whose requests come through handle(), until it closes.

        Its remote_address must be ``host:port``. Raises IllegalStateError if this broker is not
        running.
        """
        ctx = self.context
        ctx.origins[connection] = Origin(
            ctx.own_properties, _host_bytes(connection.remote_address), ctx.store_host
        )
        connection.on_close.append(partial(_connection_closed, ctx))

    def handle(self, connection: Connection, command: RemotingCommand) -> None:
        """Handle a request of an admitted connection. Raises IllegalStateError as admit() does."""
        dispatch(self.context, connection, command)

    # --- events -----------------------------------------------------------------------------------

    def _opened(self, connection: ServerConnection) -> None:
        if self._ctx is None:
            connection.abort("")
        else:
            self.admit(connection)

    def _members_changed(self, group: str) -> None:
        """Notify each member once, however many members join and leave in one iteration of the
        loop.
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


# --- jobs -----------------------------------------------------------------------------------------


class _Job(NamedTuple):
    """Periodic work of a running broker."""

    period_s: float
    work: Callable[[], Awaitable[None]]
    name: str


def _saves(ctx: Context, opened: Opened, schedule: Schedule) -> list[_Job]:
    """Return the jobs that save progress, which run once more when the broker stops."""
    config = ctx.config
    offsets = ProgressSaver("consumer offsets", ctx.offsets, opened.offsets_file, ctx.synced)
    delays = ProgressSaver("delay offsets", schedule, opened.delays_file, ctx.synced)
    timers = ProgressSaver(
        "the progress of timer messages", ctx.timers, opened.timers_file, ctx.synced
    )
    orders = ProgressSaver("orderly batches", ctx.leases.orders, opened.orders_file, ctx.synced)
    ctx.save_offsets = partial(_save_offsets, ctx, offsets)
    return [
        _Job(config.offsets_persist_s, ctx.save_offsets, "save consumer offsets"),
        _Job(config.offsets_persist_s, orders.save, "save orderly batches"),
        _Job(config.delay_persist_s, delays.save, "save delay offsets"),
        _Job(config.delay_persist_s, timers.save, "save the progress of timer messages"),
    ]


def _jobs(ctx: Context) -> list[_Job]:
    config = ctx.config
    jobs = [
        _Job(
            config.transaction_check_interval_s, transaction_checks(ctx).run, "check transactions"
        ),
        _Job(
            config.client_scan_s,
            partial(_look_after, ctx),
            "expire clients and locks, save tables again, log refusals",
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


# --- what happens meanwhile -----------------------------------------------------------------------


def _too_early(connection: Connection, _command: RemotingCommand) -> None:
    """End a connection that was accepted before there was a broker to answer."""
    connection.abort("")


def _unlocked(ctx: Context, group: str, topic: str, queue_id: int) -> None:
    """Wake requests for a queue, popped in order, that is free again."""
    ctx.pop_holds.wake_queue(group, topic, queue_id)
    ctx.notify_holds.wake_queue(group, topic, queue_id)


async def _save_offsets(ctx: Context, saver: ProgressSaver) -> None:
    """Save the broker's own progress, and that of all groups."""
    ctx.transactions.note_progress(ctx.offsets)
    await saver.save()


async def _look_after(ctx: Context) -> None:
    """Drop clients and locks that have expired, save the tables that could not be saved, and log
    refused requests.
    """
    if ctx.guard is not None:
        ctx.guard.table.refusals.tell()
    for connection in ctx.clients.expired():
        log.info(
            "dropped client %s: no heartbeat for %g s",
            connection.remote_address,
            ctx.config.client_expiry_s,
        )
        connection.close()
    ctx.offsets.resets.forget_old()
    ctx.leases.forget_old_orders()
    ctx.locks.expire()
    ctx.locks.save_soon()
    ctx.topics.save_again()
    ctx.groups.save_again()


def _connection_closed(ctx: Context, connection: Connection) -> None:
    ctx.holds.drop(connection)
    ctx.pop_holds.drop(connection)
    ctx.notify_holds.drop(connection)
    ctx.clients.drop(connection)
    ctx.filter_quota.drop(connection)
    ctx.origins.pop(connection, None)


_V4_IN_V6: Final = "::ffff:"


def _host_bytes(address: str) -> bytes:
    """Return a peer's address as records hold it.

    One that is IPv4 behind an IPv6 socket counts as IPv4.
    """
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]").removeprefix(_V4_IN_V6).partition("%")[0], int(port))
