"""The threads of a process that call plain listeners and checks, shared by all of them.

- A thread starts when there is a task and no thread is idle, and ends after IDLE_S without a task.
- Each client of the pool has at most as many threads at a time as it has slots.
- Beyond MAX_THREADS in the process, a client gets another thread only if it has none. What waits
  then gets the next thread that finishes a task, in turn, those first that have none: clients whose
  calls hang would otherwise get the threads of all others.
"""

import logging
import os
import queue
import threading
from typing import Final, Protocol

log = logging.getLogger(__name__)

MAX_THREADS: Final = 1000
IDLE_S: Final = 60.0
IDLE_NAME: Final = "ogive-idle"


class PoolClient(Protocol):
    """Something with tasks for threads. The pool changes its fields."""

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
        """A slot is free again. Called in the thread."""
        ...


Job = tuple[PoolClient, int]


class ThreadPool:
    """A pool of daemon threads: one that hangs in a listener does not keep the process alive."""

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
    global _pool  # noqa: PLW0603  one per process is the point
    if _pool is None or _pool.pid != os.getpid():
        _pool = ThreadPool()
    return _pool
