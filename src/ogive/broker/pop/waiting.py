"""POP requests that wait for a message.

A new message wakes the oldest request of each group that waits for its queue or for all queues of
the topic; so does one in a retry topic of that group.

Source: PopLongPollingService.java, 5.5, which looks at every request every 20 ms.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from ogive.broker.pulls.long_polling import SLICE_S
from ogive.store.types import QueueKey
from ogive.transport.connection import Connection

Key = tuple[str, str, int]
"""group, topic, queue id of the request; -1: all queues."""

# requests go without a look at the clock
_AT_ONCE: Final = 8


class WaitingPop(Protocol):
    """A request that can be tried again.

    *topics* are those whose messages it waits for. *more*: the last try has not seen all messages,
    so that this request, or the next one of its key, has to be tried again.
    """

    @property
    def connection(self) -> Connection: ...
    @property
    def key(self) -> Key: ...
    @property
    def topics(self) -> Iterable[str]: ...
    @property
    def more(self) -> bool: ...

    def try_answer(self, *, final: bool = False) -> bool:
        """Answer if there is something, or in any case if *final*. Return False to keep waiting."""


class PopHolds:
    """Waiting requests by key, within limits. Owner: the event loop."""

    def __init__(
        self, per_key: int, keys: int, total: int, per_connection: int, *, newest: bool = False
    ) -> None:
        """*newest*: a message wakes the newest request instead of the oldest."""
        self._loop = asyncio.get_running_loop()
        self._per_key, self._keys, self._total = per_key, keys, total
        self._per_connection, self._newest = per_connection, newest
        self.by_key: dict[Key, OrderedDict[WaitingPop, asyncio.TimerHandle]] = {}
        self._by_topic: dict[str, dict[Key, None]] = {}
        self._by_connection: dict[Connection, dict[WaitingPop, None]] = {}
        self._count = 0
        # keys whose oldest request is to be tried
        self._due: OrderedDict[Key, None] = OrderedDict()
        self._slice_is_due = False
        self.closed = False

    def __len__(self) -> int:
        return self._count

    def count(self, key: Key) -> int:
        return len(self.by_key.get(key, ()))

    def hold(self, pop: WaitingPop, timeout_s: float) -> bool:
        """Hold the request until a message comes, or for *timeout_s*.

        False if there is no room, or at the close: then the caller answers.
        """
        mine = self._by_connection.get(pop.connection, {})
        waiting = self.by_key.get(pop.key)
        if (
            self.closed
            or self._count >= self._total
            or len(mine) >= self._per_connection
            or (len(self.by_key) >= self._keys if waiting is None else False)
            or (waiting is not None and len(waiting) >= self._per_key)
        ):
            return False
        if waiting is None:
            waiting = self.by_key[pop.key] = OrderedDict()
            for topic in pop.topics:
                self._by_topic.setdefault(topic, {})[pop.key] = None
        waiting[pop] = self._loop.call_later(timeout_s, self._expired, pop)
        self._by_connection.setdefault(pop.connection, mine)[pop] = None
        self._count += 1
        return True

    def arrived(self, ends: Mapping[QueueKey, int]) -> None:
        """Queues have grown."""
        for topic, queue_id in ends:
            for key in self._by_topic.get(topic, ()):
                if key[2] in (-1, queue_id) or key[1] != topic:
                    self.wake(key)

    def wake(self, key: Key) -> None:
        """Try the oldest request of *key*, soon."""
        if key in self.by_key:
            self._due[key] = None
            if not self._slice_is_due:
                self._slice_is_due = True
                self._loop.call_soon(self._slice)

    def wake_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Try the oldest requests of a group for a queue, and for all queues of its topic."""
        self.wake((group, topic, queue_id))
        self.wake((group, topic, -1))

    def drop(self, connection: Connection) -> None:
        """The client is gone: forget its requests."""
        for pop in list(self._by_connection.get(connection, ())):
            self._forget(pop)

    def answer_all(self, topic: str) -> None:
        """Answer every request for a topic, which is deleted."""
        for key in list(self._by_topic.get(topic, ())):
            for pop in list(self.by_key.get(key, ())):
                self._expired(pop)

    def answer_group(self, group: str) -> None:
        """Answer every request of a group, which is deleted."""
        for key in [key for key in self.by_key if key[0] == group]:
            for pop in list(self.by_key.get(key, ())):
                self._expired(pop)

    def close(self) -> None:
        """Answer all, and hold no more."""
        self.closed = True
        for waiting in list(self.by_key.values()):
            for pop in list(waiting):
                self._expired(pop)

    def _expired(self, pop: WaitingPop) -> None:
        if self._forget(pop):
            pop.try_answer(final=True)

    def _slice(self) -> None:
        self._slice_is_due = False
        until, tried = time.monotonic() + SLICE_S, 0
        while self._due:
            key, _ = self._due.popitem(last=False)
            waiting = self.by_key.get(key, OrderedDict())
            pop = next(reversed(waiting) if self._newest else iter(waiting), None)
            if pop is None:
                continue
            if pop.try_answer():
                self._forget(pop)
            if pop.more:
                self._due[key] = None
            tried += 1
            if (pop.more or tried % _AT_ONCE == 0) and time.monotonic() > until:
                break
        if self._due:
            self._slice_is_due = True
            self._loop.call_soon(self._slice)

    def _forget(self, pop: WaitingPop) -> bool:
        """Return False if the request does not wait any more."""
        waiting = self.by_key.get(pop.key, OrderedDict())
        timer = waiting.pop(pop, None)
        if timer is None:
            return False
        timer.cancel()
        self._count -= 1
        if not waiting:
            del self.by_key[pop.key]
            for topic in pop.topics:
                keys = self._by_topic[topic]
                del keys[pop.key]
                if not keys:
                    del self._by_topic[topic]
        mine = self._by_connection[pop.connection]
        del mine[pop]
        if not mine:
            del self._by_connection[pop.connection]
        return True
