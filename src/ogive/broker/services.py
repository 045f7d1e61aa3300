"""The broker's state for handlers. The event loop owns all of it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ogive.access.guard import Guard
from ogive.broker.config import BrokerConfig, RemoteSettings
from ogive.broker.deferred.timers import Timers
from ogive.broker.large_replies import LargeReplies
from ogive.broker.maintenance import Retention
from ogive.broker.off_loop_reads import ColdReads
from ogive.broker.pop.leases import LeaseBook
from ogive.broker.pop.waiting import PopHolds
from ogive.broker.pulls.long_polling import PullHolds, SlowReaders
from ogive.broker.quota import FilterQuota, ReplyQuota, RequestQuota, size_of
from ogive.broker.registration import Registration
from ogive.broker.replies import refusal
from ogive.broker.sends.duplicates import Duplicates
from ogive.broker.state.client_table import ClientTable
from ogive.broker.state.config_table import GroupTable, RequestModes
from ogive.broker.state.offset_table import OffsetTable
from ogive.broker.state.queue_locks import QueueLocks
from ogive.broker.state.topic_table import TopicTable
from ogive.broker.traffic import Traffic
from ogive.broker.transactions.transaction_table import Transactions
from ogive.errors import OgiveError, StoreBusy, StoreError
from ogive.store.message_store import MessageStore
from ogive.store.types import Messages, NewMessage, PutDone, PutResult, QueueKey, bytes_of
from ogive.transport.connection import Connection
from ogive.transport.event_loop import Slices, Turn
from ogive.wire.bodies.configs import DelayLevels
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import Origin

# each may hold max_large_pull_bytes
MAX_SEARCHES: Final = 16


async def _not_started() -> None:
    raise AssertionError("nothing is saved before the broker is started")


@dataclass(slots=True)
class PopFigures:
    """Messages since the start: acknowledged, given out again, and gone before they were."""

    acknowledged: int = 0
    revived: int = 0
    gone: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class Context:
    """One broker.

    *address* is the one for clients; *store_host* the same in the form of records.
    """

    config: BrokerConfig
    """The configuration, with the changes in remote_settings."""
    remote_settings: RemoteSettings
    levels: DelayLevels
    loop: asyncio.AbstractEventLoop
    turn: Turn
    now_ms: Callable[[], int]
    started_ms: int
    address: str
    store_host: bytes
    store: MessageStore
    topics: TopicTable
    groups: GroupTable
    offsets: OffsetTable
    clients: ClientTable
    locks: QueueLocks
    holds: PullHolds
    slow_readers: SlowReaders
    leases: LeaseBook
    """Messages that were given out by POP."""
    pop_holds: PopHolds
    notify_holds: PopHolds
    modes: RequestModes
    registration: Registration
    transactions: Transactions
    timers: Timers
    duplicates: Duplicates | None
    """None unless messages that are sent twice are stored once."""
    traffic: Traffic
    cold_reads: ColdReads
    large_replies: LargeReplies
    retention: Retention
    guard: Guard | None
    """None: no credentials are required."""
    own_properties: bytes
    """Properties that the broker adds to each message, in the form of the record."""
    origins: dict[Connection, Origin] = field(default_factory=dict)
    """Properties that are added to each message of a client."""
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SEARCHES))
    """Limit of the searches by key under way."""
    slices: Slices = field(default_factory=Slices)
    """For requests that need more than one step: each begins in a slice, like requests of one
    step.
    """
    request_quota: RequestQuota = field(default_factory=RequestQuota)
    filter_quota: FilterQuota = field(default_factory=FilterQuota)
    pop_figures: PopFigures = field(default_factory=PopFigures)
    deletions: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock while topics are deleted: one request at a time."""
    sends_waiting: int = 0
    reply_quota: ReplyQuota = field(default_factory=ReplyQuota)
    """Separate from the sends: a client that accepts no reply must not block sends."""
    delivered: Callable[[int], int] = lambda level: 0
    """Return the offset up to which a delay level's queue is delivered."""
    save_offsets: Callable[[], Awaitable[None]] = _not_started
    """Return when the current offsets of groups are on stable storage.

    Raises StoreError.
    """
    _held: dict[str, list[tuple[int, Callable[[], object], Callable[[OgiveError], object]]]] = (
        field(default_factory=dict)
    )
    """Messages that wait until their topic is saved, in order.

    For each: bytes, the function that stores them, and the one that gets an error.
    """
    _held_bytes: int = 0
    _submit_due: bool = False
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def put(self, messages: Messages, topic: str, done: PutDone) -> None:
        """Store messages of *topic*, all or none; everything put in one loop iteration is handed to
        the writer together.

        A new topic is saved first: if that fails, *done* gets the error, or this raises it, and
        nothing is stored.
        """
        if self.is_saved(topic):
            self.put_now(messages, done)
        else:
            self.once_saved(topic, messages, partial(self.put_now, messages, done), done)

    async def stored(self, messages: Messages, topic: str) -> list[PutResult]:
        """Call put(), and return the places of the messages when they are safe. Raises
        OgiveError.
        """
        stored: asyncio.Future[list[PutResult]] = self.loop.create_future()

        def done(result: list[PutResult] | OgiveError) -> None:
            if stored.done():
                return  # cancelled
            if isinstance(result, OgiveError):
                stored.set_exception(result)
            else:
                stored.set_result(result)

        self.put(messages, topic, done)
        return await stored

    def is_saved(self, topic: str) -> bool:
        """Return True if messages of *topic* may be stored at once.

        Then the topic is on stable storage, and no message waits for that any more.
        """
        return topic not in self._held and (
            topic not in self.topics.pending or self.topics.is_saved(topic)
        )

    def once_saved(
        self,
        topic: str,
        messages: Messages,
        put: Callable[[], object],
        fail: Callable[[OgiveError], object],
    ) -> None:
        """Call *put*, which stores *messages*, when *topic* is on stable storage, in the order of
        these calls; call *fail* with the error if it cannot be saved, or *put* raises one. Raises
        StoreError if the last try to save it has failed, StoreBusy.
        """
        self.topics.check_saved(topic)
        size = bytes_of(messages)
        if self._held_bytes + size > self.store.config.max_waiting_bytes:
            raise StoreBusy(f"{self._held_bytes} bytes wait until their topics are saved")
        self._held_bytes += size
        held = self._held.setdefault(topic, [])
        held.append((size, put, fail))
        if len(held) == 1:
            self.spawn(self._put_held(topic), f"save topic {topic}")

    async def _put_held(self, topic: str) -> None:
        error: StoreError | None = None
        try:
            await self.topics.safe(topic)
        except StoreError as exc:
            error = exc
        held = self._held.pop(topic)
        self._held_bytes -= sum([size for size, _, _ in held])
        for _, put, fail in held:
            if error is not None:
                fail(error)
                continue
            try:
                put()
            except Exception as exc:  # noqa: BLE001  whatever it is, others wait behind it
                fail(refusal(exc))

    def put_now(self, messages: Messages, done: PutDone) -> None:
        """Call put() without checking the topic: *done* is called in the order of the messages'
        offsets.
        """
        self.store.put(messages, done)
        self._submit_soon()

    def arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Answer requests that wait for messages of queues that have grown."""
        if self.holds.by_queue:
            self.holds.arrived(ends)
        if self.pop_holds.by_key:
            self.pop_holds.arrived(ends)
        if self.notify_holds.by_key:
            self.notify_holds.arrived(ends)

    def put_counted(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """Call put_now() for messages that waited in a topic of the broker's own: each is stored in
        a queue that its topic serves now, and counts for its topic. That was on stable storage
        before the sender was answered.
        """
        messages = [
            message
            if (queue_id := self.topics.served(message.topic, message.queue_id)) == message.queue_id
            else message._replace(queue_id=queue_id)
            for message in messages
        ]
        self.put_now(messages, self.traffic.counted(messages, done))

    async def synced(self) -> None:
        """Return when everything put before is on stable storage. Raises StoreError."""
        done = asyncio.Event()
        self.store.sync(done.set)
        await done.wait()
        if self.store.failed is not None:
            raise self.store.failed

    def _submit_soon(self) -> None:
        if not self._submit_due:
            self._submit_due = True
            self.turn.add(self._submit)

    def _submit(self) -> None:
        self._submit_due = False
        self.store.submit()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Return a task that is referenced here, and awaited when the broker stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def carry_out_later(
        self,
        connection: Connection,
        command: RemotingCommand,
        work: Callable[[], Coroutine[Any, Any, None]],
        how: str = "",
    ) -> bool:
        """Begin *work*, which answers *command*, in a task of its own.

        Return False, and begin nothing, if waiting requests use too much memory.
        """
        size = size_of(command)
        if not self.request_quota.acquire(connection, size):
            return False
        task = self.spawn(work(), f"request {command.code} of {connection.remote_address}{how}")
        task.add_done_callback(lambda _: self.request_quota.release(connection, size))
        return True

    async def finish_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))
