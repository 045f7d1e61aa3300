"""Event loop for everything in ogive: end-of-iteration work, time slices, timeouts, tasks.

Work at the end of an iteration is done once for all events in it: one write to the log, one write
to each socket.

Timeouts are for a great many short calls: adding one costs a list append, and none needs to be
cancelled.
"""

import asyncio

# Otherwise the first thread that looks up a name imports it, and a child that is forked at that
# moment waits for ever for the lock of the import.
import encodings.idna  # noqa: F401
import heapq
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from ogive.errors import OgiveError

log = logging.getLogger(__name__)

Job = Callable[[], None]
T = TypeVar("T")
R = TypeVar("R")

# time for requests of one read before other work of the loop runs
SLICE_S: Final = 0.01
# limit for tasks that are woken in a slice
AT_ONCE: Final = 64
# limit for tasks of one call of each()
TASKS_AT_ONCE: Final = 32
# time between two reports that the process has no free descriptor
REPORT_S: Final = 10.0
# asyncio's text
_NO_DESCRIPTOR: Final = "socket.accept() out of system resource"


class Turn:
    """Jobs for the end of an iteration of the loop, in order.

    Jobs that they add run in the same iteration. The loop runs them after it has read every socket
    that was ready, unless a caller of hold() runs them itself.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[Job] = deque()
        # a caller of hold() runs added jobs, so the loop need not
        self._held = False

    def add(self, job: Job) -> None:
        if not self._jobs and not self._held:
            self._loop.call_soon(self.run)
        self._jobs.append(job)

    def hold(self) -> bool:
        """Return True if the caller is the first in this iteration; it must then call run() at its
        end.
        """
        if self._jobs or self._held:
            return False
        self._held = True
        return True

    def run(self) -> None:
        jobs = self._jobs
        self._held = True
        try:
            while jobs:
                jobs.popleft()()
        finally:
            self._held = False
            # an error of one job must not affect the others
            if jobs:
                self._loop.call_soon(self.run)

    def call_from_thread(self, job: Job) -> None:
        """Call *job* on the loop soon, and then the jobs that it adds. Any thread may call this."""
        self._loop.call_soon_threadsafe(self._run_with, job)

    def _run_with(self, job: Job) -> None:
        self._jobs.append(job)
        self.run()


class Slices:
    """Time slices for tasks that arrive together: between two slices the loop runs other work.

    The tasks continue in order, at least one in each slice.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        # the end of the slice in this iteration, after the first task has continued
        self._until: float | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        # tasks that were woken too late in the slice
        self._again: list[asyncio.Future[None]] = []
        self._turning = False

    async def mine(self) -> None:
        """Wait until the slice has time left."""
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._next)
        if not self._waiting and self._has_time():
            return
        line: deque[asyncio.Future[None]] | list[asyncio.Future[None]] = self._waiting
        while True:
            woken = loop.create_future()
            line.append(woken)
            await woken
            if self._has_time():
                return
            line = self._again

    def _has_time(self) -> bool:
        now = self._now()
        if self._until is None:
            self._until = now + SLICE_S
            return True
        return now < self._until

    def _next(self) -> None:
        self._until = None
        self._waiting.extendleft(reversed(self._again))
        self._again.clear()
        self._turning = bool(self._waiting)
        if self._turning:
            for _ in range(min(AT_ONCE, len(self._waiting))):
                woken = self._waiting.popleft()
                # otherwise its task was cancelled
                if not woken.done():
                    woken.set_result(None)
            asyncio.get_running_loop().call_soon(self._next)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's loop if it is installed (the extra ``fast``), else the standard one.

    uvloop saves about a seventh of a broker's work.
    """
    uvloop = _uvloop()
    if uvloop is not None:
        return uvloop()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_Reports())
    return loop


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None

    class Loop(uvloop.Loop):
        """uvloop's loop with look_up() for host names, in ``sock_connect``, too.

        ``create_connection`` with a name and ``create_server`` with a host still use libuv's
        threads, so they are called with addresses and sockets only.
        """

        async def getaddrinfo(
            self,
            host: Any,
            port: Any,
            *,
            family: int = 0,
            type: int = 0,
            proto: int = 0,
            flags: int = 0,
        ) -> list[Any]:
            return await look_up(host, port, family=family, proto=proto, flags=flags)

    return Loop


class _Reports:
    """Exception handler that reports a process without a free descriptor in one line.

    asyncio would log a thousand tracebacks a second while clients wait to be accepted, and fill the
    disk.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _NO_DESCRIPTOR:
            loop.default_exception_handler(context)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + REPORT_S
            log.error(
                "clients wait to connect: %s; raise the limit (ulimit -n)",
                context.get("exception"),
            )


async def look_up(
    host: Any, port: Any, *, family: int = 0, proto: int = 0, flags: int = 0
) -> list[Any]:
    """Return the result of ``socket.getaddrinfo`` for TCP, called in one of Python's threads.

    uvloop calls it in threads of libuv. When a forked child exits, libuv joins them, although the
    child does not have them, and crashes.

    Raises OSError, ValueError.
    """
    ask = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, proto)
    try:
        return ask(flags | socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await asyncio.get_running_loop().run_in_executor(None, ask, flags)


async def every(
    period_s: float, job: Callable[[], Awaitable[None]], *, name: str, first_after_s: float = 0.0
) -> NoReturn:
    """Run *job* every *period_s*, start to start, until cancelled.

    An OgiveError is logged; another one of the same kind is not logged until the job has succeeded.
    Any other error is a bug and ends the task.
    """
    loop, failing = asyncio.get_running_loop(), None
    await asyncio.sleep(first_after_s)
    while True:
        started = loop.time()
        try:
            await job()
        except OgiveError as exc:
            level = logging.DEBUG if type(exc) is failing else logging.WARNING
            failing = type(exc)
            log.log(level, "%s: failed, tried again every %.1f s: %s", name, period_s, exc)
        else:
            if failing is not None:
                log.info("%s: works again", name)
            failing = None
        await asyncio.sleep(max(0.0, started + period_s - loop.time()))


def watch(task: asyncio.Task[None]) -> None:
    """Log the exception that ends *task*, because it is not awaited before the stop."""
    task.add_done_callback(_log_end)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        log.critical("task %r has ended", task.get_name(), exc_info=exc)


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel *tasks*, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def each(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """Call *ask* for all *items*, at most TASKS_AT_ONCE at a time. Return the answers in their
    order.

    The first failure cancels the other calls, and is raised.
    """
    turns = asyncio.Semaphore(TASKS_AT_ONCE)

    async def one(item: T) -> R:
        async with turns:
            return await ask(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [answer.result() for answer in answers]


# uvloop's timers come up to so much early
EARLY_S = 0.001
TICK_S = 0.02
"""Longest delay of a timeout, without EARLY_S.

The number of an answered call stays until its deadline: eight bytes.
"""


class Deadlines:
    """Calls *expire* with the numbers whose deadline has passed; the owner knows which of them
    still wait.
    """

    __slots__ = ("_buckets", "_expire", "_loop", "_order", "_timer")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, expire: Callable[[list[int]], None]
    ) -> None:
        self._loop = loop
        self._expire = expire
        self._buckets: dict[int, list[int]] = {}
        # heap of the buckets' ticks
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, number: int, deadline: float) -> None:
        """Add a deadline, a time of the loop's clock."""
        tick = int(deadline / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket.append(number)
            return
        self._buckets[tick] = [number]
        heapq.heappush(self._order, tick)
        if self._order[0] == tick:
            self._arm()

    def clear(self) -> None:
        """Drop all deadlines and the owner; nothing may be added afterwards.

        In a reference cycle with this object the owner would stay in memory until a garbage
        collection.
        """
        self._expire = _nothing
        self._buckets.clear()
        self._order.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # a timer that came early would begin again at once, some twenty times
        self._timer = (
            self._loop.call_at(self._order[0] * TICK_S + EARLY_S, self._fire)
            if self._order
            else None
        )

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        due: list[int] = []
        while self._order and self._order[0] * TICK_S <= now:
            due += self._buckets.pop(heapq.heappop(self._order))
        self._arm()
        if due:
            self._expire(due)


def _nothing(due: list[int]) -> None:
    pass


# --- busy polling ---------------------------------------------------------------------------------
# Adaptive busy polling: spin briefly for an event that usually arrives within microseconds.
#
# A processor without work sleeps, and an event 50 µs later waits until it wakes: 20 to 200 µs on a
# virtual machine, as long as all other work for a send. If events follow each other that closely,
# polling costs less than the wake-up.
#
# Behaviour
# - Polling begins after the expected event has arrived quickly several times in a row, and lasts
#   no longer than the limit.
# - Polls that find nothing are paid from a budget: 4 % of a processor, whatever the requests do.
#   After each such poll, more events must arrive quickly in a row before the next one, twice as
#   many each time.
# - If other processes need the processor, it does not sleep, so polling saves nothing: if half of
#   the polls lost the processor to others, there are none for a while.
# - Between two polls other threads and processes may run: threads of this process, or a peer on
#   the same processor. If they run for long, the polling ends; if this happens twice within a
#   short time, there is none for a while.

# for a longer wait polling saves nothing
MAX_BUSY_POLL_S: Final = 0.001
# events that must arrive quickly in a row before the first poll
SOON: Final = 4
# the largest such number
RARELY: Final = 256
# time that a wake-up may add before a sleeping thread sees the event
WAKING_S: Final = 0.0002
# share of a processor for polls that find nothing
SHARE: Final = 0.04
# largest unused budget
SAVED_S: Final = 0.01
# waits between two checks whether others need the processor
ROUND: Final = 16
# a yield that takes this long let others run: alone it takes 1 µs. Virtual machines stop rarely
HELD_UP_S: Final = 100e-6
# number of such yields in a round
HELD_UP: Final = 2
# time without polls while others need the processor
PAUSE_S: Final = 0.1


try:
    # Windows has no such module, macOS no figures of a thread.
    from resource import RUSAGE_THREAD, getrusage
except ImportError:

    def _taken_away() -> int:
        """Return 0: this system does not count it, and the budget alone ends the polling."""
        return 0

else:

    def _taken_away() -> int:
        """Number of times that this thread lost its processor to another one.

        The call takes 0.5 µs.
        """
        return getrusage(RUSAGE_THREAD).ru_nivcsw


# Windows has none
_give_way: Final[Callable[[], None]] = getattr(os, "sched_yield", lambda: None)


class Expectation:
    """Decides, each time that an event is expected, whether to poll for it or to sleep until it
    arrives.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] = time.perf_counter,
        taken_away: Callable[[], int] = _taken_away,
        give_way: Callable[[], None] = _give_way,
    ) -> None:
        """*limit_s*: the longest time to poll."""
        self._limit_s = limit_s
        self._clock = clock
        self._taken_away = taken_away
        self._give_way = give_way
        self._since = self._filled_at = clock()
        # while looking
        self._until = 0.0
        # events in a row that arrived quickly
        self._soon = 0
        self._needed = SOON
        self._budget_s = SAVED_S
        # waits in this round
        self._waits = 0
        # yields in this round that let others run
        self._held_up = 0
        self._taken_before = 0
        self._not_before = 0.0

    def begin(self) -> bool:
        """Begin to expect the event. Return True if the caller should poll for it."""
        now = self._since = self._clock()
        self._until = 0.0
        if self._soon < self._needed or now < self._not_before:
            return False
        self._budget_s = min(SAVED_S, self._budget_s + SHARE * (now - self._filled_at))
        self._filled_at = now
        if self._budget_s < self._limit_s or self._is_wanted(now):
            return False
        self._until = now + self._limit_s
        return True

    def goes_on(self) -> bool:
        """Report that the event has not arrived. Return True if the caller should poll again. Lets
        others run first.
        """
        now = self._clock()
        if now < self._until:
            self._give_way()
            if (back := self._clock()) - now < HELD_UP_S:
                return True
            self._held_up += 1
            if self._held_up >= HELD_UP:
                self._not_before = back + PAUSE_S
        elif self._until:
            self._needed = min(RARELY, 2 * self._needed)
        if self._until:
            self._in_vain(now)
        return False

    def came(self) -> None:
        """Report that the expected event arrived."""
        if self._until:
            self._until = 0.0
            self._needed = SOON
        elif self._clock() - self._since <= self._limit_s + WAKING_S:
            self._soon += 1
        else:
            self._soon = 0

    def disturb(self) -> None:
        """Report that something else happened."""
        if self._until:
            self._in_vain(self._clock())
        self._soon = 0

    def _in_vain(self, now: float) -> None:
        self._budget_s -= now - self._since
        self._until = 0.0
        self._soon = 0

    def _is_wanted(self, now: float) -> bool:
        """Return True if others need the processor."""
        if not self._waits:
            self._taken_before = self._taken_away()
            self._held_up = 0
        self._waits += 1
        if self._waits <= ROUND:
            return False
        self._waits = 0
        if self._taken_away() - self._taken_before < ROUND // 2:
            return False
        self._not_before = now + PAUSE_S
        return True


class Lookout:
    """Makes an event loop poll for the next request.

    All other work of the loop goes on meanwhile: the loop only does not sleep.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expectation: Expectation) -> None:
        self._loop, self._expectation = loop, expectation
        self._looking = False

    def answered(self) -> None:
        """Report that a request was answered whose client has no other in progress."""
        if self._expectation.begin() and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def asked(self, *, again: bool) -> None:
        """Report that data arrived; *again*: from the client that was answered last."""
        if again:
            self._expectation.came()
        else:
            self._expectation.disturb()

    def _look(self) -> None:
        if self._expectation.goes_on():
            self._loop.call_soon(self._look)
        else:
            self._looking = False
