"""State that the parts of one group member share: topics, queues, progress, calls to brokers.

The parts that follow a change of the queues observe the state. The application is one of them: it
is told here when the queues of its consumer change.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.offset_store import OffsetStore
from ogive.client.consumer.process_queue import ProcessQueue, QueueState
from ogive.client.consumer.running_info import Statistics
from ogive.client.instance import ClientInstance
from ogive.client.instrumentation import await_in_fresh_context, must_pass
from ogive.client.listener import Start, adapted, is_async
from ogive.client.namespace import Namespace
from ogive.client.trace import ConsumeObserver
from ogive.model import RETRY_PREFIX, MessageExt, MessageQueue
from ogive.transport.event_loop import every
from ogive.wire.bodies.clients import SubscriptionData

log = logging.getLogger(__name__)

OnChange = Callable[[list[MessageQueue], list[MessageQueue]], Any]
"""(taken over, given up). A plain function is called in a thread, an ``async def`` on the loop."""

SOONER: Final = 5
"""Progress is committed after a fifth of the usual period if a queue has no messages left."""


def bare_on_change(on_change: OnChange | None, namespace: Namespace) -> OnChange | None:
    """Return *on_change* for the queues on the wire; it gets those that the application knows."""
    if on_change is None or not namespace:
        return on_change

    def bare(*changes: Iterable[MessageQueue]) -> tuple[list[MessageQueue], ...]:
        return tuple([namespace.strip_queue(queue) for queue in queues] for queues in changes)

    return adapted(on_change, bare)


class QueueObserver:
    """Observer of a member's queues. Methods that a subclass does not define do nothing."""

    def taken(self, process_queue: ProcessQueue) -> None:
        """Begin to use the queue: the member holds it now."""

    def left(self, process_queue: ProcessQueue) -> None:
        """Begin nothing more in the queue: it is being given up, or dropped."""

    def changed(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        """Note the result of a change of the assignment, after its last step."""


class SubscriptionState:
    """Topics of one member, and the queues that it holds.

    Queues are held, released and dropped through methods, which notify the observers.
    """

    def __init__(self) -> None:
        self.topics: dict[str, SubscriptionData] = {}
        """The topics that heartbeats name, each with its filter."""
        self.starts: dict[str, Start] = {}
        """The topics whose queues are shared with the group, and where a new group begins."""
        self.held: dict[MessageQueue, ProcessQueue] = {}
        self.observers: list[QueueObserver] = []

    def hold(self, process_queue: ProcessQueue) -> None:
        """Hold a queue from now on."""
        self.held[process_queue.queue] = process_queue
        for observer in self.observers:
            observer.taken(process_queue)

    def release(self, process_queue: ProcessQueue) -> None:
        """Begin nothing more in a held queue; what runs there still counts."""
        if process_queue.state is QueueState.ACTIVE:
            process_queue.move_to(QueueState.RELEASING)
            self._left(process_queue)

    def drop(self, process_queue: ProcessQueue) -> None:
        """Give up a held queue: from here on nothing of it counts."""
        del self.held[process_queue.queue]
        process_queue.move_to(QueueState.DROPPED)
        self._left(process_queue)

    def _left(self, process_queue: ProcessQueue) -> None:
        for observer in self.observers:
            observer.left(process_queue)

    def report(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        """Tell the observers that a change of the assignment is complete."""
        for observer in self.observers:
            observer.changed(gained, lost)

    def is_held(self, process_queue: ProcessQueue) -> bool:
        return self.held.get(process_queue.queue) is process_queue


@dataclass(slots=True, eq=False)
class MemberContext:
    """Everything that the parts of one group member share.

    Without *auto_commit* only the application moves the progress of a queue.
    """

    name: str
    instance: ClientInstance
    calls: GroupClient
    store: OffsetStore
    statistics: Statistics
    broadcast: bool = False
    locks: bool = False
    """A queue is consumed only under its broker's lock."""
    polled: bool = False
    """The application polls: pulls carry the subscription, and a new offset discards at once what
    was pulled."""
    auto_commit: bool = True
    returns: type[Any] | None = None
    """The kind of SendBack for failed messages. None: the usual one."""
    state: SubscriptionState = field(default_factory=SubscriptionState)
    # of the listeners' calls
    observer: ConsumeObserver | None = None
    _soon_s: float | None = None
    """Time from the end of a queue's last message to its commit. None: only the application
    commits."""
    _soon: asyncio.TimerHandle | None = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run background work until it ends or the client closes. An unexpected error in it stops
        the client.
        """
        return self.instance.spawn(work, f"{self.name}: {name}")

    def every(
        self, period_s: float, job: Callable[[], Awaitable[None]], name: str
    ) -> asyncio.Task[Any]:
        return self.spawn(
            every(period_s, job, name=f"{name} of {self.name}", first_after_s=period_s), name
        )

    def keep_progress(self, config: ConsumerConfig) -> list[asyncio.Task[Any]]:
        """Start the jobs that commit the progress of the held queues, unless the application does.

        A queue without unfinished messages is committed sooner: if few messages come, a killed
        member then repeats next to nothing.
        """
        if not self.auto_commit:
            return []
        if not self.broadcast:
            self._soon_s = config.persist_period_s / SOONER
        return [
            self.every(
                config.persist_period_s, partial(self._persist, again=False), "persist offsets"
            ),
            self.every(
                config.persist_again_s, partial(self._persist, again=True), "persist offsets again"
            ),
        ]

    async def _persist(self, *, again: bool) -> None:
        await self.store.persist(
            [queue for queue, held in self.state.held.items() if not held.doubted], again=again
        )

    def finish(self, process_queue: ProcessQueue, offsets: Iterable[int]) -> None:
        """Forget finished messages, and advance the queue's progress to its lowest unfinished
        one.

        Does nothing for a queue that was dropped: its present holder, even if that is this member
        again, goes by its own results.
        """
        if process_queue.dropped:
            return
        process_queue.consumed_at_ms = time.time_ns() // 1_000_000
        safe_offset = process_queue.ack(offsets)
        if self.auto_commit:
            self.store.update(process_queue.queue, safe_offset)
            if self._soon is None and self._soon_s is not None and not process_queue.count:
                self._soon = asyncio.get_running_loop().call_later(self._soon_s, self._persist_soon)

    def _persist_soon(self) -> None:
        self._soon = None
        if self.state.held:
            self.spawn(self._persist(again=False), "persist offsets soon")

    def finish_message(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        self.finish(process_queue, (message.queue_offset,))


class Announcer(QueueObserver):
    """Calls of *on_change*, one at a time.

    Changes during a call are reported together in the next one; retry topics are left out.
    """

    def __init__(self, on_change: OnChange, group: MemberContext) -> None:
        self._on_change = on_change
        self._group = group
        self._told: set[MessageQueue] = set()
        self._telling: asyncio.Task[Any] | None = None

    def changed(self, gained: Sequence[MessageQueue], lost: Sequence[MessageQueue]) -> None:
        if self._telling is None or self._telling.done():
            self._telling = self._group.spawn(self._tell(), "queues changed")

    async def _tell(self) -> None:
        while (held := self._held()) != self._told:
            taken, given_up = sorted(held - self._told), sorted(self._told - held)
            self._told = held
            try:
                if is_async(self._on_change):
                    await await_in_fresh_context(self._on_change, taken, given_up)
                else:
                    await asyncio.to_thread(self._on_change, taken, given_up)
            except BaseException as exc:
                # user code: the consumer goes on without it
                if must_pass(exc, asyncio.current_task()):
                    raise
                log.exception("on_change failed for +%d -%d queues", len(taken), len(given_up))

    def _held(self) -> set[MessageQueue]:
        held = self._group.state.held
        return {queue for queue in held if not queue.topic.startswith(RETRY_PREFIX)}
