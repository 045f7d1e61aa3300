"""The broker's state as handlers see it. The event loop owns all of it."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ogive.access.guard import Guard
from ogive.broker.clients import ClientTable
from ogive.broker.cold_reads import ColdReads
from ogive.broker.config import BrokerConfig
from ogive.broker.duplicates import Duplicates
from ogive.broker.groups import GroupTable
from ogive.broker.locks import QueueLocks
from ogive.broker.offsets import OffsetTable
from ogive.broker.pull_hold import PullHolds, SlowReaders
from ogive.broker.registration import Registration
from ogive.broker.retention import Retention
from ogive.broker.stats import Traffic
from ogive.broker.timers import Timers
from ogive.broker.topics import TopicTable
from ogive.broker.transactions import Transactions
from ogive.errors import StoreError
from ogive.model import DelayLevels
from ogive.store.model import NewBatch, NewMessage, PutDone, PutResult
from ogive.store.store import MessageStore
from ogive.transport.connection import Connection
from ogive.transport.turn import Turn

MAX_SEARCHES: Final = 16  # each may hold max_large_pull_bytes


@dataclass(slots=True, kw_only=True, eq=False)
class Context:
    """One broker. *address* is what clients connect to; *store_host* the same as stored in every record."""

    config: BrokerConfig
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
    registration: Registration
    transactions: Transactions
    timers: Timers
    duplicates: Duplicates | None
    """None unless messages that are sent twice are to be stored once."""
    traffic: Traffic
    cold_reads: ColdReads
    retention: Retention
    guard: Guard | None
    """None: nobody is asked for credentials."""
    own_properties: str
    """What the broker adds to each message, as it stands in the record."""
    send_answer: bytes
    """The header of a send's answer, see handlers/send_answer.py."""
    batch_answer: bytes
    """The same for a batch."""
    born_hosts: dict[Connection, bytes] = field(default_factory=dict)
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SEARCHES))
    """Those for messages by key that may still begin."""
    listings: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one that is made."""
    sends_waiting: int = 0
    delivered: Callable[[int], int] = lambda level: 0
    """How far a delay level's queue is delivered."""
    _submit_due: bool = False
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def put(self, messages: Sequence[NewMessage] | NewBatch, done: PutDone) -> None:
        """Store messages, all or none; everything put in one loop turn goes to the writer together. Raises StoreError.

        *done* is called when they are safe: with the topics they are in, so a topic made a moment ago is waited for.
        """
        self.put_now(messages, partial(self._once_saved, done) if self.topics.unsaved else done)

    def once_saved(self, done: PutDone) -> PutDone:
        """*done*, called no sooner than the topics that there are now are safe."""
        return partial(self._once_saved, done) if self.topics.unsaved else done

    def put_now(self, messages: Sequence[NewMessage] | NewBatch, done: PutDone) -> None:
        """The same, but *done* waits for no topic: it is called in the order of the messages' offsets."""
        self.store.put(messages, done)
        if not self._submit_due:
            self._submit_due = True
            self.turn.add(self._submit)

    def put_counted(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """put() for what the broker itself stores."""
        self.put(messages, self.traffic.counted(messages, done))

    def put_counted_now(self, messages: Sequence[NewMessage], done: PutDone) -> None:
        """put_now() for what the broker itself stores."""
        self.put_now(messages, self.traffic.counted(messages, done))

    async def synced(self) -> None:
        """Return when everything put before is on stable storage. Raises StoreError."""
        done = asyncio.Event()
        self.store.sync(done.set)
        await done.wait()
        if self.store.failed is not None:
            raise self.store.failed

    def _submit(self) -> None:
        self._submit_due = False
        self.store.submit()

    def _once_saved(self, done: PutDone, result: list[PutResult] | StoreError) -> None:
        if self.topics.unsaved:
            self.spawn(self._save_topics(done, result), "save topics")
        else:
            done(result)

    async def _save_topics(self, done: PutDone, result: list[PutResult] | StoreError) -> None:
        try:
            await self.topics.saved()
        except StoreError as exc:
            done(exc)
        else:
            done(result)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """A task that is kept alive here and awaited when the broker stops."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish_tasks(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))
