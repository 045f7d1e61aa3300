"""Workers that call the listener: threads for a plain function, tasks for an async one. Both serve one queue, first come first served.

Thousands of tasks a millisecond must cost next to nothing beyond the call itself, so results are collected and handed to the loop with one
wake-up for all that finished since the last one.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from ogive.client.user_code import must_pass

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

Finished = Callable[[Sequence[tuple[T, R, float]]], None]

_RUN_BEFORE_YIELD = 32  # tasks that one async worker finishes without letting the loop turn
_NOTICE_S: Final = 1.0  # from the beginning of a stop until it is told what is waited for
_REPLACE_S: Final = 1.0  # after a worker was cancelled: a loop that ends cancels everything, and is gone by then


class Workers(Protocol[T]):
    """Calls ``run(task)`` for each submitted task, and hands (task, result, seconds that it took) to ``finished`` on the loop.

    ``run`` should not raise; where it does, that is logged, and the result is ``failed``.
    """

    def start(self) -> None: ...
    def submit(self, tasks: Iterable[T]) -> None: ...
    def running(self) -> list[tuple[float, T]]:
        """When each task that runs now was begun (the loop's time), and the task."""
        ...

    def collect(self) -> None:
        """Pass on the results at once, without waiting for the loop's next turn."""
        ...

    def forget_waiting(self) -> None:
        """Begin no more tasks."""
        ...

    async def stop(self, timeout_s: float, caller: object = None) -> int:
        """Start no more tasks, and wait at most *timeout_s* for the running ones; returns how many still run.

        *caller* is the thread ident or the task that asked to stop: if it is one of the workers, it is not waited for.
        """
        ...


@contextmanager
def _told(workers: Workers[T], timeout_s: float) -> Iterator[None]:
    """While it lasts somebody waits for running calls: if that is for longer than a moment, the log says so."""

    def tell() -> None:
        if running := len(workers.running()):
            log.warning("waiting up to %.0f s for %d listener calls that still run", timeout_s, running)

    notice = asyncio.get_running_loop().call_later(_NOTICE_S, tell)
    try:
        yield
    finally:
        notice.cancel()


class ThreadWorkers(Generic[T, R]):
    """Daemon threads: one that hangs in a listener for ever does not keep the process alive."""

    def __init__(self, run: Callable[[T], R], finished: Finished[T, R], *, failed: R, count: int, name: str) -> None:
        self._run = run
        self._finished = finished
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._tasks: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._results: deque[tuple[T, R, float]] = deque()
        self._told = False  # the loop knows that there are results
        self._stopping = False
        self._slots: list[tuple[float, T] | None] = [None] * count
        self._gone = asyncio.Event()
        self._threads = [threading.Thread(target=self._work, args=(i,), name=f"{name}-{i}", daemon=True) for i in range(count)]
        self._left: set[int] = set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, tasks: Iterable[T]) -> None:
        put = self._tasks.put
        for task in tasks:
            put(task)

    def running(self) -> list[tuple[float, T]]:
        return [slot for slot in self._slots if slot is not None]

    def forget_waiting(self) -> None:
        self._stopping = True

    async def stop(self, timeout_s: float, caller: object = None) -> int:
        self.forget_waiting()
        for _ in self._threads:
            self._tasks.put(None)
        waited_for = {i for i, thread in enumerate(self._threads) if thread.ident not in (caller, None)}  # None: never started
        try:
            with _told(self, timeout_s):
                async with asyncio.timeout(timeout_s):
                    while not waited_for <= self._left:
                        self._gone.clear()
                        await self._gone.wait()
        except TimeoutError:
            log.warning("%d listener calls still run after %.1f s and are left behind", len(waited_for - self._left), timeout_s)
        self.collect()
        for i in waited_for & self._left:
            self._threads[i].join()  # it has said goodbye: only its last instructions are left
        return len(waited_for - self._left)

    # --- in the threads ----------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        get, run, results, slots, clock = self._tasks.get, self._run, self._results, self._slots, time.monotonic
        while (task := get()) is not None:
            if self._stopping:
                continue
            begun = clock()
            slots[index] = (begun, task)
            try:
                result = run(task)
            except BaseException:  # whatever it is, the messages behind it need their worker
                log.exception("a worker failed on what it had in hand")
                result = self._failed
            results.append((task, result, clock() - begun))
            slots[index] = None
            if not self._told:
                self._told = True
                self._tell(self.collect)
        self._tell(lambda: self._say_goodbye(index))

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: this thread was left behind, and its result counts no more
            log.debug("a listener call ended after its loop")

    # --- on the loop -------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        self._told = False  # first: a result that comes while we collect tells again
        results = self._results
        batch = [results.popleft() for _ in range(len(results))]
        if batch:
            self._finished(batch)

    def _say_goodbye(self, index: int) -> None:
        self._left.add(index)
        self._gone.set()


class LoopWorkers(Generic[T, R]):
    """Tasks on the loop: *count* calls of an async listener at a time.

    A listener may leave its worker's task cancelled: with a count of cancellations that it took for its own and did not take back, as some
    libraries do for a timeout, or with one that strikes once it is over. The first is forgotten before the next call; the second ends the
    task, and another one takes its place.
    """

    def __init__(self, run: Callable[[T], Awaitable[R]], finished: Finished[T, R], *, failed: R, count: int, name: str) -> None:
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
        worker.add_done_callback(lambda _: None if self._stopping else self._loop.call_later(_REPLACE_S, self._replace, index))
        return worker

    def _replace(self, index: int) -> None:
        if self._stopping:
            return
        log.warning("worker %s-%d was cancelled by somebody else, and is replaced", self._name, index)
        slot, self._slots[index] = self._slots[index], None
        if slot is not None:
            self._finish(slot[1], self._failed, slot[0])
        self._workers[index] = self._worker(index)

    def submit(self, tasks: Iterable[T]) -> None:
        self._tasks.extend(tasks)
        self._wake(len(self._tasks))

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                count -= 1

    def running(self) -> list[tuple[float, T]]:
        return [slot for slot in self._slots if slot is not None]

    def forget_waiting(self) -> None:
        self._stopping = True
        self._tasks.clear()

    async def stop(self, timeout_s: float, caller: object = None) -> int:
        """Calls that still run in the end are cancelled."""
        self.forget_waiting()
        self._wake(self._count)
        waited_for = [worker for worker in self._workers if worker is not caller]
        late: set[asyncio.Task[None]] = set()
        if waited_for:
            with _told(self, timeout_s):
                _, late = await asyncio.wait(waited_for, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        if late:
            log.warning("%d listener calls still run after %.1f s and are cancelled", len(late), timeout_s)
            await asyncio.wait(late, timeout=1.0)
        self.collect()
        return len(late)

    async def _work(self, index: int) -> None:
        done_in_a_row, worker = 0, asyncio.current_task()
        assert worker is not None
        while not self._stopping:
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
            except BaseException as exc:  # whatever it is, the messages behind it need their worker
                if must_pass(exc, worker):
                    raise
                log.exception("a worker failed on what it had in hand")
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
