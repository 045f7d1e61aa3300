"""An event loop whose time passes only when nothing is left to do, and the nodes whose work it
carries out, holds back or forgets.
"""

import asyncio
import contextvars
import heapq
import inspect
import itertools
import os
import random
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

from ogive.transport.connection import Connection

EPOCH_S: Final = 1_700_000_000.0
MIN_TIMERS: Final = 100
# of more timers than that: the heap is made anew without them
CANCELLED: Final = 0.5


class Deadlock(Exception):
    """Nothing is left that could ever run."""


@dataclass(slots=True, eq=False)
class Node:
    """A process of the simulated cluster.

    Everything that it starts inherits it; a dead one's callbacks are never called.
    """

    name: str
    dead: bool = False
    paused: bool = False
    held: deque["Turn"] = field(default_factory=deque)


class Turn(asyncio.TimerHandle):
    """A callback at its time, and the node that it belongs to.

    Cancelled while its node is paused, it is not called afterwards either.
    """

    __slots__ = ("node",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: contextvars.Context | None,
    ) -> None:
        context = context if context is not None else contextvars.copy_context()
        super().__init__(when, callback, args, loop, context)
        self.node = context.get(_node)

    def _run(self) -> None:
        node = self.node
        if node is None or not (node.dead or node.paused):
            super()._run()
        elif not node.dead:
            node.held.append(self)


_node: Final[contextvars.ContextVar[Node | None]] = contextvars.ContextVar("node", default=None)


def current_node() -> Node | None:
    return _node.get()


class VirtualSocket:
    """A listening socket, which a server makes before it asks the loop to listen."""

    def __init__(self, host: str, port: int, *, v6_only: bool = False) -> None:
        self._address = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._address


class VirtualLoop(asyncio.BaseEventLoop):
    """``now`` is the monotonic clock, ``wall_offset_s`` how far the wall clock has been set forward
    or back.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.now = 1000.0
        self.wall_offset_s = 0.0
        self._timers: list[tuple[float, Turn]] = []
        self._cancelled_timers = 0  # among them
        self.set_exception_handler(_raise_what_nobody_caught)
        self.faults: list[BaseException] = []
        """What a callback raised, or a task whose result nobody asked for: a bug of the code under
        test.
        """

    # --- what BaseEventLoop asks of its parts -----------------------------------------------------

    def time(self) -> float:
        return self.now

    def remove_reader(self, fd: object) -> bool:
        """Return False: no descriptor is watched."""
        return False

    def _run_once(self) -> None:
        """As BaseEventLoop's.

        A third of a story's time is the loop's, so that this one leaves out what has no meaning
        here.
        """
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        if len(timers) > MIN_TIMERS and self._cancelled_timers / len(timers) > CANCELLED:
            timers[:] = [timer for timer in timers if not timer[1].cancelled()]
            heapq.heapify(timers)
            self._cancelled_timers = 0
        while timers and timers[0][1].cancelled():
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Deadlock("every task waits for another, and no timer runs")
            self.now += max(0.0, timers[0][0] - self.now)
        due = self.now + self._clock_resolution  # type: ignore[attr-defined]
        while timers and timers[0][0] < due:
            _, timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            ready.append(timer)
        for _ in range(len(ready)):
            turn = ready.popleft()
            if not turn._cancelled:
                turn._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += handle._scheduled  # type: ignore[attr-defined]

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """What would run in a thread runs here, a little later, in one piece."""
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as exc:  # noqa: BLE001
                # whatever it is, it belongs to whoever awaits the future
                future.set_exception(exc)
            else:
                future.set_result(result)

        self.call_later(self.rng.random() * 0.01, run)
        return future

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Generators are closed where they are used; what the collector finds belonged to a dead
        node.
        """
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]

    # --- nodes ------------------------------------------------------------------------------------

    def call_soon(  # type: ignore[override]  # the callback's arguments need no checking here
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        turn = Turn(self.now, callback, args, self, context)
        self._ready.append(turn)  # type: ignore[attr-defined]
        return turn

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        turn = Turn(when, callback, args, self, context)
        turn._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._timers, (when, turn))
        return turn

    def spawn(self, node: Node, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin *work* on *node*."""
        context = contextvars.copy_context()
        context.run(_node.set, node)
        return self.create_task(work, context=context)

    def resume(self, node: Node) -> None:
        node.paused = False
        while node.held:
            self._ready.append(node.held.popleft())  # type: ignore[attr-defined]


def _raise_what_nobody_caught(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tasks of a dead node are destroyed while they wait; that is what dying means here."""
    assert isinstance(loop, VirtualLoop)
    if "was destroyed but it is pending" in context["message"]:
        return
    loop.faults.append(context.get("exception") or RuntimeError(context["message"]))


@contextmanager
def virtual_world(seed: int) -> Iterator[VirtualLoop]:
    """The loop, with every clock and every source of chance of the process replaced: two worlds of
    one seed are equal.
    """
    rng = random.Random(seed)
    loop = VirtualLoop(rng)
    chance = random.Random(seed + 1)
    known = random.getstate()
    random.seed(seed)

    numbers = itertools.count()

    def number_of(thing: Any) -> int:
        """In the order of first use, where an address would do elsewhere: sets keep an order that
        no run repeats.
        """
        number: int = thing.__dict__.setdefault("_simulated_hash", next(numbers))
        return number

    def wall_s() -> float:
        return EPOCH_S + loop.now + loop.wall_offset_s

    def wall_ns() -> int:
        return int(wall_s() * 1e9)

    def monotonic_ns() -> int:
        return int(loop.now * 1e9)

    def machine_s(clock: int) -> float:
        return loop.now

    def token_bytes(count: int = 32) -> bytes:
        return chance.randbytes(count)

    def token_hex(count: int = 32) -> str:
        return chance.randbytes(count).hex()

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    with (
        mock.patch.object(time, "time", wall_s),
        mock.patch.object(time, "time_ns", wall_ns),
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(time, "monotonic_ns", monotonic_ns),
        # the machine's uptime
        mock.patch.object(time, "clock_gettime", machine_s),
        mock.patch.object(Connection, "__hash__", number_of),
        mock.patch("ogive.transport.server.listening_socket", VirtualSocket),
        mock.patch.object(os, "getpid", return_value=4242),
        mock.patch.object(secrets, "randbits", chance.getrandbits),
        mock.patch.object(secrets, "token_bytes", token_bytes),
        mock.patch.object(secrets, "token_hex", token_hex),
        mock.patch.object(uuid, "uuid4", uuid4),
    ):
        try:
            yield loop
        finally:
            random.setstate(known)
            for task in asyncio.all_tasks(loop):
                # the world ends with whatever runs in it
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                assert inspect.iscoroutine(coroutine)
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    # else a warning in whichever test runs when it is collected
                    coroutine.close()
            loop.close()
