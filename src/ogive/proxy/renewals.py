"""Leases that the server prolongs while a push consumer works on the messages (auto_renew).

Source: DefaultReceiptHandleManager.java, RenewStrategyPolicy.java, 5.5.

Behaviour
- A lease is renewed 10 s before it ends, for longer each time. It stops after 3 h, or when the
  client goes: then the message becomes visible again soon.
- An acknowledgement with the first handle is carried out with the newest.

Differs from Apache's proxy: a failed acknowledgement leaves the handle in place, and its renewal.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ogive.client import rpc
from ogive.errors import BrokerError, OgiveError
from ogive.proxy.backend import Ack, Link, Releases
from ogive.wire.pop import PopHandle

AHEAD_S: Final = 10.0
SCAN_S: Final = 5.0
MOST_S: Final = 3 * 3600.0
STEPS_S: Final = (60, 180, 300, 600, 1800, 3600)
TRIES: Final = 3
RELEASED_MS: Final = 1000
MAX_RENEWED: Final = 8192
"""Messages of one client that are renewed; SDKs hold 1,024 for each queue."""

Key = tuple[str, str, str]
"""Group, message id and first handle."""


@dataclass(slots=True, eq=False)
class Renewal:
    """A lease that is prolonged. *last_ms*: how long it lasts once that ends."""

    topic: str
    handle: PopHandle
    began_s: float
    due_s: float
    last_ms: int
    steps: int = 0
    failures: int = 0
    busy: asyncio.Future[None] | None = None
    """Exists while a renewal is under way."""


class Renewals:
    """Renewals of one client's leases. Event-loop only."""

    def __init__(self, link: Link, releases: Releases) -> None:
        self._link, self._releases = link, releases
        self._loop = asyncio.get_running_loop()
        self._renewed: dict[Key, Renewal] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._renewed)

    @property
    def is_full(self) -> bool:
        return len(self._renewed) >= MAX_RENEWED

    def add(self, key: Key, topic: str, handle: PopHandle, last_ms: int) -> None:
        now = self._loop.time()
        due = now + handle.invisible_ms / 1000 - AHEAD_S
        self._renewed[key] = Renewal(topic, handle, now, due, last_ms)
        if self._timer is None:
            self._timer = self._loop.call_later(SCAN_S, self._scan)

    async def newest(self, key: Key, handle: PopHandle) -> PopHandle:
        """Return the newest handle for *handle*, which is itself if it is not renewed."""
        found = self._renewed.get(key)
        if found is None:
            return handle
        if found.busy is not None:
            await asyncio.shield(found.busy)
        return found.handle

    def forget(self, key: Key) -> None:
        self._renewed.pop(key, None)

    def _scan(self) -> None:
        now = self._loop.time()
        for key, renewal in list(self._renewed.items()):
            if renewal.due_s - now < SCAN_S and renewal.busy is None:
                renewal.busy = self._loop.create_future()
                self._spawn(key, renewal)
        self._timer = self._loop.call_later(SCAN_S, self._scan) if self._renewed else None

    def _spawn(self, key: Key, renewal: Renewal) -> None:
        task = asyncio.create_task(self._renew(key, renewal), name="renew a lease")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _renew(self, key: Key, renewal: Renewal) -> None:
        now, group = self._loop.time(), key[0]
        ends = now - renewal.began_s >= MOST_S
        step_ms = renewal.last_ms if ends else STEPS_S[min(renewal.steps, len(STEPS_S) - 1)] * 1000
        try:
            ack: Ack = (renewal.topic, renewal.handle)
            renewal.handle = await rpc.change_invisible_time(
                self._link, renewal.handle.broker, group, ack, step_ms
            )
            renewal.steps, renewal.failures = renewal.steps + 1, 0
            renewal.due_s = self._loop.time() + step_ms / 1000 - AHEAD_S
            if ends:
                self.forget(key)
        except BrokerError:
            # the lease is over
            self.forget(key)
        except OgiveError:
            renewal.failures += 1
            if renewal.failures >= TRIES:
                self.forget(key)
        finally:
            assert renewal.busy is not None
            renewal.busy.set_result(None)
            renewal.busy = None

    def close(self) -> None:
        """Make all messages visible again soon."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        renewed, self._renewed = self._renewed, {}
        self._releases.spawn(self._release(renewed), "release leases")

    async def _release(self, renewed: dict[Key, Renewal]) -> None:
        for one in renewed.values():
            if one.busy is not None:
                # its handle is about to be replaced
                await asyncio.shield(one.busy)
        for place, acks in _by_place(renewed):
            await self._link.release(*place, acks, RELEASED_MS)


def _by_place(renewed: dict[Key, Renewal]) -> Iterator[tuple[tuple[str, str], list[Ack]]]:
    """Yield broker and group, with what the group holds there."""
    places: dict[tuple[str, str], list[Ack]] = {}
    for (group, _, _), one in renewed.items():
        places.setdefault((one.handle.broker, group), []).append((one.topic, one.handle))
    yield from places.items()
