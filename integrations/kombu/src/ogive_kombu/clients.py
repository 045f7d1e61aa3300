"""ogive's clients of one kombu connection, on an event loop in a thread of its own, and the queue
that passes messages to the thread that drains events.
"""

import asyncio
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ogive import GroupNotExist, IllegalStateError, NoRoute
from ogive.aio import Admin, Producer
from ogive_kombu.settings import Settings

T = TypeVar("T")


class Inbox(Generic[T]):
    """Queue between threads, with a socket that is readable while the queue may have an item."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._readable, self._writable = socket.socketpair()
        self._readable.setblocking(False)
        self._writable.setblocking(False)

    def fileno(self) -> int:
        return self._readable.fileno()

    def put(self, item: T) -> None:
        self._items.put(item)
        # a full socket is readable
        with contextlib.suppress(BlockingIOError):
            self._writable.send(b"\0")

    def get(self, timeout_s: float | None) -> T:
        """Return the next item. Raises queue.Empty after *timeout_s* (None: wait forever)."""
        return self._items.get(timeout_s != 0, timeout_s or None)

    def clear_socket(self) -> None:
        """Make the socket unreadable until the next put. Call before taking all items."""
        with contextlib.suppress(BlockingIOError):
            while self._readable.recv(4096):
                pass

    def close(self) -> None:
        self._readable.close()
        self._writable.close()


class Clients:
    """Producer and admin client of one connection, and the event loop that they run on."""

    def __init__(self, settings: Settings) -> None:
        self.producer = Producer(client=settings.client)
        self.admin = Admin(client=settings.client)
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="ogive for kombu", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop, and wait for its result. An interrupt cancels it.

        Raises IllegalStateError in a forked child, where the loop does not run.
        """
        if self._pid != os.getpid():
            work.close()
            raise IllegalStateError(
                f"this kombu connection was made in process {self._pid} and cannot be used in its "
                f"forked child {os.getpid()}: make a new one here"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Call *function* on the loop soon."""
        self._loop.call_soon_threadsafe(function, *args)

    async def start(self) -> None:
        """Connect. Raises OgiveError if no name server answers."""
        await self.producer.start()
        await self.admin.start()

    def close(self) -> None:
        try:
            self.call(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _close(self) -> None:
        await self.producer.close()
        await self.admin.close()

    # --- queues -----------------------------------------------------------------------------------

    async def declare(self, queue: str, max_priority: int | None) -> None:
        """Create the topic of *queue*. Raises InvalidOption if it exists without priorities."""
        if max_priority:
            await self.admin.create_topic(queue, queues=max_priority + 1, message_type="PRIORITY")
            return
        try:
            await self.admin.route(queue)
        except NoRoute:
            await self.admin.create_topic(queue)

    async def size(self, queue: str) -> int:
        """Return the number of messages that are not acknowledged. Raises NoRoute."""
        try:
            return sum(row.lag for row in await self.admin.lag(queue, queue, members=False))
        except GroupNotExist:
            rows = await self.admin.offsets(queue)
            return sum(row.max_offset - row.min_offset for row in rows)

    async def purge(self, queue: str) -> int:
        """Skip all messages that no worker holds. Return the size before that. Raises NoRoute."""
        count = await self.size(queue)
        try:
            await self.admin.skip_backlog(queue, queue)
        except GroupNotExist:
            await self.admin.create_group(queue)
            await self.admin.skip_backlog(queue, queue)
        return count

    async def delete(self, queue: str) -> None:
        """Delete topic and group. Raises InvalidOption while the group has members."""
        with contextlib.suppress(GroupNotExist):
            await self.admin.delete_group(queue, offsets=True)
        with contextlib.suppress(NoRoute):
            await self.admin.delete_topic(queue)
