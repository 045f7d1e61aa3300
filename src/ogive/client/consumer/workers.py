"""Workers that call the listener: threads for a plain function, tasks for an async one.

Both serve one queue, first come first served.

Thousands of tasks a millisecond must cost next to nothing beyond the call itself, so results are
collected and handed to the loop with one wake-up for all that finished since the last one.

The threads are those of the process's pool, which all listeners and checks share.
- A thread starts when there is a task and no thread is idle, and ends after IDLE_S without a task.
- Each client of the pool has at most as many threads at a time as it has slots.
- Beyond MAX_THREADS in the process, a client gets another thread only if it has none. What waits
  then gets the next thread that finishes a task, in turn, those first that have none: clients whose
  calls hang would otherwise get the threads of all others.
"""

import asyncio
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Generic, Protocol, TypeVar

from ogive.client.instrumentation import must_pass

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

Finished = Callable[[Sequence[tuple[T, R, float]]], None]
Keep = Callable[[T], bool]

# tasks that one async worker finishes without letting the loop turn
_RUN_BEFORE_YIELD = 32
# from the beginning of a stop until it is told what is waited for
_NOTICE_S: Final = 1.0
# after a worker was cancelled: a loop that ends cancels everything, and is gone by then
_REPLACE_S: Final = 1.0


class Callers:
    """Tasks, and threads by ident, that wait for a stop: if they are workers, the stop does not
    wait for them, because they would wait for themselves.
    """

    def __init__(self) -> None:
        self._waiting: list[object] = []
        # called when there is one more
        self.on_more: list[Callable[[], None]] = []

    def __contains__(self, caller: object) -> bool:
        return caller in self._waiting

    @contextmanager
    def waiting(self, caller: object) -> Iterator[None]:
        """Count *caller* during the block."""
        self._waiting.append(caller)
        for callback in self.on_more:
            callback()
        try:
            yield
        finally:
            self._waiting.remove(caller)


class Workers(Protocol[T]):
    """Protocol of workers: they call ``run(task)`` for each submitted task, and hand (task, result,
    seconds that it took) to ``finished`` on the loop.

    ``run`` should not raise; where it does, that is logged, and the result is ``failed``.
    """

    def start(self) -> None: ...
    def submit(self, tasks: Iterable[T]) -> None:
        """Queue *tasks*. Does nothing after ``stop``."""
        ...

    def submit_first(self, tasks: Sequence[T]) -> None:
        """Queue *tasks* before those that wait. A worker may call this, also while they stop."""
        ...

    def running(self) -> list[tuple[float, T]]:
        """Return the running tasks, each with the time of the loop's clock at which it began."""
        ...

    def collect(self) -> None:
        """Pass on the results at once, without waiting for the loop's next turn."""
        ...

    async def stop(
        self, timeout_s: float, callers: Callers | None = None, keep: Keep[T] | None = None
    ) -> int:
        """Forget the tasks that wait, except those that *keep* returns True for, and wait at most
        *timeout_s* for these and the running ones; returns how many still run.

        Workers that are *callers* are not waited for, also if they become so meanwhile.
        """
        ...


@contextmanager
def _told(workers: Workers[T], timeout_s: float) -> Iterator[None]:
    """Log a warning if the block waits for running calls for longer than a moment."""

    def tell() -> None:
        if running := len(workers.running()):
            log.warning(
                "waiting up to %.0f s for %d listener calls that still run", timeout_s, running
            )

    notice = asyncio.get_running_loop().call_later(_NOTICE_S, tell)
    try:
        yield
    finally:
        notice.cancel()


# --- threads --------------------------------------------------------------------------------------

MAX_THREADS: Final = 1000
IDLE_S: Final = 60.0
IDLE_NAME: Final = "ogive-idle"


class PoolClient(Protocol):
    """Protocol of a client of the pool: it has tasks for threads. The pool changes its fields."""

    count: int
    """Limit of its threads."""
    slots: list[int]
    """Numbers from 0 to *count* - 1 that no thread has now."""
    coming: int
    """Threads that were assigned and do not run yet."""

    @property
    def waiting(self) -> int:
        """Number of tasks that wait."""
        ...

    def work(self, slot: int) -> None:
        """Do tasks until there are none, or until somebody else waits for a thread."""
        ...

    def released(self) -> None:
        """Note that a slot is free again. Called in the thread."""
        ...


Job = tuple[PoolClient, int]


class ThreadPool:
    """Pool of daemon threads: a thread that hangs in a listener does not keep the process alive."""

    def __init__(self, max_threads: int = MAX_THREADS, idle_s: float = IDLE_S) -> None:
        self._max_threads, self._idle_s = max_threads, idle_s
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Job]] = []
        self._threads = 0
        # Clients that wait for a thread, in turn; those without any come first.
        self._clients: dict[PoolClient, None] = {}
        self._without: dict[PoolClient, None] = {}
        self.contended = False
        """A client waits for a thread. Read by any thread, after each task."""
        self._no_more = False

    def serve(self, client: PoolClient) -> None:
        """Assign a thread to *client*, which has new tasks. That thread assigns the next one."""
        with self._lock:
            if client.slots and client.waiting and not client.coming:
                self._assign(client)

    def forget(self, client: PoolClient) -> None:
        """Assign no more threads to *client*."""
        with self._lock:
            self._clients.pop(client, None)
            self._without.pop(client, None)
            self._look()

    def _assign(self, client: PoolClient) -> None:
        if self._idle:
            self._idle.pop().put(self._job(client))
        elif (
            self._threads >= self._max_threads and len(client.slots) < client.count
        ) or not self._start(client):
            self._wait(client)
            self._look()

    def _wait(self, client: PoolClient) -> None:
        (self._clients if len(client.slots) < client.count else self._without)[client] = None

    def _look(self) -> None:
        self.contended = bool(self._clients or self._without)

    @staticmethod
    def _job(client: PoolClient) -> Job:
        client.coming += 1
        return client, client.slots.pop()

    def _start(self, client: PoolClient) -> bool:
        inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(inbox,), name=IDLE_NAME, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            if not self._threads:
                raise
            level = logging.DEBUG if self._no_more else logging.WARNING
            log.log(
                level, "listeners share %d threads, no more can be started: %s", self._threads, exc
            )
            self._no_more = True
            return False
        self._no_more = False
        self._threads += 1
        inbox.put(self._job(client))
        return True

    # --- in the threads ---------------------------------------------------------------------------

    def _run(self, inbox: "queue.SimpleQueue[Job]") -> None:
        thread = threading.current_thread()
        job = inbox.get()
        while True:
            client, slot = job
            with self._lock:
                client.coming -= 1
                # Threads are woken one by one: a fast listener is done before the second runs.
                if client.slots and client.waiting > client.coming + 1:
                    self._assign(client)
            client.work(slot)
            thread.name = IDLE_NAME
            following = self._next(client, slot, inbox)
            client.released()
            # An idle thread keeps nothing alive.
            del client, job
            next_job = following or self._sleep(inbox)
            if next_job is None:
                return
            job = next_job

    def _next(self, client: PoolClient, slot: int, inbox: "queue.SimpleQueue[Job]") -> Job | None:
        with self._lock:
            client.slots.append(slot)
            if client.waiting > client.coming:
                self._wait(client)
            while waiting := self._without or self._clients:
                first = next(iter(waiting))
                del waiting[first]
                if first.slots and first.waiting > first.coming:
                    job = self._job(first)
                    if first.slots and first.waiting > first.coming:
                        self._wait(first)
                    self._look()
                    return job
            self._look()
            self._idle.append(inbox)
            return None

    def _sleep(self, inbox: "queue.SimpleQueue[Job]") -> Job | None:
        try:
            return inbox.get(timeout=self._idle_s)
        except queue.Empty:
            with self._lock:
                if inbox in self._idle:
                    self._idle.remove(inbox)
                    self._threads -= 1
                    return None
            # It was assigned in the last moment.
            return inbox.get()


_pool: ThreadPool | None = None


def thread_pool() -> ThreadPool:
    """Return the pool of this process. A forked child has one of its own."""
    # one for each process is the point
    global _pool  # noqa: PLW0603
    if _pool is None or _pool.pid != os.getpid():
        _pool = ThreadPool()
    return _pool


class ThreadWorkers(Generic[T, R]):
    """Workers in up to *count* threads of the process's pool.

    While a thread works here its name is *name* and a number.
    """

    def __init__(
        self,
        run: Callable[[T], R],
        finished: Finished[T, R],
        *,
        failed: R,
        count: int,
        name: str,
        pool: ThreadPool | None = None,
    ) -> None:
        self._run = run
        self._finished = finished
        self._failed = failed
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._pool = pool or thread_pool()
        self._tasks: deque[T] = deque()
        self._results: deque[tuple[T, R, float]] = deque()
        # the loop knows that there are results
        self._told = False
        self._stopping = False
        self._running: list[tuple[float, T] | None] = [None] * count
        self._idents: list[int | None] = [None] * count
        self._gone = asyncio.Event()
        self.count = count
        self.slots = list(reversed(range(count)))
        self.coming = 0

    def start(self) -> None:
        """Do nothing: threads start with the first tasks."""

    def submit(self, tasks: Iterable[T]) -> None:
        # The pool would assign threads for ever to tasks that none of them begins.
        if not self._stopping:
            self._tasks.extend(tasks)
            self._pool.serve(self)

    def submit_first(self, tasks: Sequence[T]) -> None:
        self._tasks.extendleft(reversed(tasks))
        self._pool.serve(self)

    def running(self) -> list[tuple[float, T]]:
        return [slot for slot in self._running if slot is not None]

    async def stop(
        self, timeout_s: float, callers: Callers | None = None, keep: Keep[T] | None = None
    ) -> int:
        self._stopping = True
        self.submit_first(
            [task for task in self._forget_waiting() if keep is not None and keep(task)]
        )
        callers = callers or Callers()
        callers.on_more.append(self._gone.set)
        try:
            with _told(self, timeout_s):
                async with asyncio.timeout(timeout_s):
                    while self._busy > self._count_of(callers) or (self._tasks and self.slots):
                        self._gone.clear()
                        await self._gone.wait()
        except TimeoutError:
            log.warning(
                "%d listener calls still run after %.1f s and are abandoned",
                self._busy - self._count_of(callers),
                timeout_s,
            )
        finally:
            callers.on_more.remove(self._gone.set)
            self._forget_waiting()
            self._pool.forget(self)
        self.collect()
        return max(0, self._busy - self._count_of(callers))

    def _count_of(self, callers: Callers) -> int:
        return sum(ident is not None and ident in callers for ident in self._idents)

    def _forget_waiting(self) -> list[T]:
        forgotten: list[T] = []
        while True:
            # threads take from it, too
            try:
                forgotten.append(self._tasks.popleft())
            except IndexError:
                return forgotten

    @property
    def _busy(self) -> int:
        return self.count - len(self.slots)

    # --- in the threads ---------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of tasks without a thread."""
        return len(self._tasks)

    def work(self, slot: int) -> None:
        """Do tasks until there are none, or until another listener waits for a thread."""
        threading.current_thread().name = f"{self._name}-{slot}"
        self._idents[slot] = threading.get_ident()
        tasks = self._tasks
        run = self._run
        results = self._results
        running = self._running
        clock = time.monotonic
        while True:
            try:
                task = tasks.popleft()
            except IndexError:
                break
            begun = clock()
            running[slot] = (begun, task)
            try:
                result = run(task)
            except BaseException:
                # whatever it is, the messages behind it need their worker
                log.exception("a worker failed on its current messages")
                result = self._failed
            results.append((task, result, clock() - begun))
            running[slot] = None
            if not self._told:
                self._told = True
                self._tell(self.collect)
            if self._pool.contended:
                break
        self._idents[slot] = None

    def released(self) -> None:
        """Note that a thread has left."""
        if self._stopping:
            self._tell(self._gone.set)

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # the loop is closed: this thread was left behind, and its result counts no more
            log.debug("a listener call ended after its loop")

    # --- on the loop ------------------------------------------------------------------------------

    def collect(self) -> None:
        # first: a result that comes while we collect tells again
        self._told = False
        results = self._results
        batch = [results.popleft() for _ in range(len(results))]
        if batch:
            self._finished(batch)


# --- tasks ----------------------------------------------------------------------------------------


class LoopWorkers(Generic[T, R]):
    """Workers on the loop: *count* calls of an async listener at a time.

    A listener may leave its worker's task cancelled: with a count of cancellations that it took for
    its own and did not take back, as some libraries do for a timeout, or with one that strikes once
    it is over. The first is forgotten before the next call; the second ends the task, and another
    one takes its place.
    """

    def __init__(
        self,
        run: Callable[[T], Awaitable[R]],
        finished: Finished[T, R],
        *,
        failed: R,
        count: int,
        name: str,
    ) -> None:
        self._run = run
        self._finished = finished
        self._failed = failed
        self._count = count
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._tasks: deque[T] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._results: list[tuple[T, R, float]] = []
        self._stopping = False
        self._slots: list[tuple[float, T] | None] = [None] * count
        self._workers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._workers = [self._worker(i) for i in range(self._count)]

    def _worker(self, index: int) -> asyncio.Task[None]:
        worker = asyncio.create_task(self._work(index), name=f"{self._name}-{index}")
        worker.add_done_callback(
            lambda _: (
                None if self._stopping else self._loop.call_later(_REPLACE_S, self._replace, index)
            )
        )
        return worker

    def _replace(self, index: int) -> None:
        if self._stopping:
            return
        log.warning("worker %s-%d was cancelled from outside and is replaced", self._name, index)
        slot, self._slots[index] = self._slots[index], None
        if slot is not None:
            self._finish(slot[1], self._failed, slot[0])
        self._workers[index] = self._worker(index)

    def submit(self, tasks: Iterable[T]) -> None:
        if not self._stopping:
            self._tasks.extend(tasks)
            self._wake(len(self._tasks))

    def submit_first(self, tasks: Sequence[T]) -> None:
        self._tasks.extendleft(reversed(tasks))
        self._wake(len(tasks))

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def running(self) -> list[tuple[float, T]]:
        return [slot for slot in self._slots if slot is not None]

    async def stop(
        self, timeout_s: float, callers: Callers | None = None, keep: Keep[T] | None = None
    ) -> int:
        """Stop; calls that still run in the end are cancelled."""
        self._stopping = True
        self._tasks = deque(task for task in self._tasks if keep is not None and keep(task))
        self._wake(self._count)
        callers = callers or Callers()
        changed = asyncio.Event()
        callers.on_more.append(changed.set)
        for worker in self._workers:
            worker.add_done_callback(lambda _: changed.set())
        try:
            with _told(self, timeout_s), suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while self._still_running(callers):
                        changed.clear()
                        await changed.wait()
        finally:
            callers.on_more.remove(changed.set)
        late = self._still_running(callers)
        self._tasks.clear()
        for worker in late:
            worker.cancel()
        if late:
            log.warning(
                "%d listener calls still run after %.1f s and are cancelled", len(late), timeout_s
            )
            await asyncio.wait(late, timeout=1.0)
        self.collect()
        return len(late)

    def _still_running(self, callers: Callers) -> list[asyncio.Task[None]]:
        return [one for one in self._workers if not one.done() and one not in callers]

    async def _work(self, index: int) -> None:
        done_in_a_row, worker = 0, asyncio.current_task()
        assert worker is not None
        while self._tasks or not self._stopping:
            if not self._tasks:
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                await waiting
                continue
            task = self._tasks.popleft()
            begun = self._loop.time()
            self._slots[index] = (begun, task)
            while worker.cancelling():
                worker.uncancel()
            try:
                result = await self._run(task)
            except BaseException as exc:
                # whatever it is, the messages behind it need their worker
                if must_pass(exc, worker):
                    raise
                log.exception("a worker failed on its current messages")
                result = self._failed
            self._slots[index] = None
            self._finish(task, result, begun)
            done_in_a_row += 1
            if done_in_a_row % _RUN_BEFORE_YIELD == 0:
                await asyncio.sleep(0)

    def _finish(self, task: T, result: R, begun: float) -> None:
        if not self._results:
            self._loop.call_soon(self.collect)
        self._results.append((task, result, self._loop.time() - begun))

    def collect(self) -> None:
        batch, self._results = self._results, []
        if batch:
            self._finished(batch)


def make_workers(
    run: Callable[[T], R],
    run_async: Callable[[T], Awaitable[R]],
    finished: Finished[T, R],
    *,
    is_async: bool,
    failed: R,
    count: int,
    name: str,
) -> Workers[T]:
    """Return workers that call *run* in threads, or *run_async* on the loop if *is_async*."""
    if is_async:
        return LoopWorkers(run_async, finished, failed=failed, count=count, name=name)
    return ThreadWorkers(run, finished, failed=failed, count=count, name=name)
