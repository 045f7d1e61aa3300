"""State that the parts of a member share: queues, progress, calls to brokers.

The application is told here when the queues of its consumer change.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.offset_store import OffsetStore
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.running_info import Statistics
from ogive.client.hooks import await_in_fresh_context, must_pass
from ogive.client.instance import ClientInstance
from ogive.client.trace import ConsumeObserver
from ogive.model import RETRY_PREFIX, MessageExt, MessageQueue
from ogive.transport.event_loop import every

log = logging.getLogger(__name__)

OnChange = Callable[[list[MessageQueue], list[MessageQueue]], Any]
"""(taken over, given up). A plain function is called in a thread, an ``async def`` on the loop."""


class Announcer:
    """Calls *on_change*, one call at a time.

    Changes during a call are reported together in the next one; retry topics are left out.
    """

    def __init__(
        self,
        on_change: OnChange,
        held: Mapping[MessageQueue, object],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]],
    ) -> None:
        self._on_change = on_change
        self._held = held
        self._spawn = spawn
        self._told: set[MessageQueue] = set()
        self._telling: asyncio.Task[Any] | None = None

    def look(self) -> None:
        """The queues may have changed."""
        if self._telling is None or self._telling.done():
            self._telling = self._spawn(self._tell(), "queues changed")

    async def _tell(self) -> None:
        while (
            held := {queue for queue in self._held if not queue.topic.startswith(RETRY_PREFIX)}
        ) != self._told:
            taken, given_up = sorted(held - self._told), sorted(self._told - held)
            self._told = held
            try:
                if inspect.iscoroutinefunction(self._on_change):
                    await await_in_fresh_context(self._on_change, taken, given_up)
                else:
                    await asyncio.to_thread(self._on_change, taken, given_up)
            except BaseException as exc:
                # user code: the consumer goes on without it
                if must_pass(exc, asyncio.current_task()):
                    raise
                log.exception("on_change failed for +%d -%d queues", len(taken), len(given_up))


SOONER: Final = 5
"""Progress is committed after a fifth of the usual period if a queue has no messages left."""


@dataclass(slots=True, eq=False)
class MemberContext:
    """State that the parts of one group member share. *held* are the queues assigned to it.

    Without *auto_commit* only the application moves the progress of a queue.
    """

    name: str
    instance: ClientInstance
    calls: GroupClient
    store: OffsetStore
    statistics: Statistics
    broadcast: bool = False
    auto_commit: bool = True
    held: dict[MessageQueue, ProcessQueue] = field(default_factory=dict)
    # of the listeners' calls
    observer: ConsumeObserver | None = None
    _soon_s: float | None = None
    """Time from the end of a queue's last message to its commit. None: only the application
    commits."""
    _soon: asyncio.TimerHandle | None = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Background work that ends with the client; a bug in it stops the client, loudly."""
        return self.instance.spawn(work, f"{self.name}: {name}")

    def every(
        self, period_s: float, job: Callable[[], Awaitable[None]], name: str
    ) -> asyncio.Task[Any]:
        return self.spawn(
            every(period_s, job, name=f"{name} of {self.name}", first_after_s=period_s), name
        )

    def keep_progress(self, config: ConsumerConfig) -> list[asyncio.Task[Any]]:
        """Start the jobs that commit the progress of the held queues.

        A queue without unfinished messages is committed sooner: if few messages come, a killed
        member then repeats next to nothing.
        """
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
            [queue for queue, held in self.held.items() if not held.doubted], again=again
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
        if self.held:
            self.spawn(self._persist(again=False), "persist offsets soon")

    def finish_message(self, process_queue: ProcessQueue, message: MessageExt) -> None:
        self.finish(process_queue, (message.queue_offset,))


class ConsumeService(Protocol):
    """Brings the messages of process queues to one listener."""

    def start(self) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: Sequence[MessageExt]) -> None:
        """*messages* were put into the process queue."""
        ...

    async def quiet(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Wait at most *timeout_s* until the queue may be given to another member."""
        ...

    async def stop(self, timeout_s: float, caller: object) -> None:
        """Begin no new call; wait for the running ones. *caller*: see Workers.stop."""
        ...
