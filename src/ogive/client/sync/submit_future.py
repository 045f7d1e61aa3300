"""Future of a submitted message, which the loop completes without ever waiting for a lock of a
user's thread.

A plain ``concurrent.futures.Future`` has a lock that a waiting thread holds for moments. A signal
in such a moment stops more than that thread: Ctrl-C leaves the lock taken for ever, and a signal
handler that makes a blocking call waits for the loop while the loop waits for the lock.
"""

import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import _base
from typing import Any, Final, TypeVar

from ogive.client.hooks import call_in_fresh_context, on_a_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

IDLE_S: Final = 10.0

Callback = Callable[[concurrent.futures.Future[T]], object]


class SubmitFuture(concurrent.futures.Future[T]):
    """Future that cannot be cancelled, and that logs an error which is never retrieved, as
    asyncio's do.

    Each waiting thread sleeps on a lock of its own. Only ``concurrent.futures.wait`` and
    ``as_completed`` use the state and the lock of the base class. That state follows the outcome:
    at once if the lock is free and nobody waits so, otherwise on a thread of *completions*.
    """

    def __init__(self, completions: "Completions") -> None:
        super().__init__()
        # set_running_or_notify_cancel() without its lock: nobody else has this future yet.
        self._state = _base.RUNNING
        self._completions = completions

    _ended = False
    _value: Any = None
    _error: BaseException | None = None
    _unseen: BaseException | None = None
    # Most futures have none, so each is made when it is needed.
    _sleepers: dict[threading.Lock, None] | None = None
    _callbacks: deque[Callback[T]] | None = None

    # --- set once, on the loop --------------------------------------------------------------------

    def set_result(self, result: T) -> None:
        self._value = result
        self._end()

    def set_exception(self, exception: BaseException | None) -> None:
        self._error = self._unseen = exception
        self._end()

    def _end(self) -> None:
        self._ended = True
        # Whoever goes to sleep after this line looks at _ended once more before.
        while sleepers := self._sleepers:
            try:
                sleeper, _ = sleepers.popitem()
            except KeyError:
                break
            sleeper.release()
        if not self._complete_at_once():
            self._completions.put(self)
        self._call_back()

    def _complete_at_once(self) -> bool:
        if not self._condition.acquire(blocking=False):
            return False
        try:
            if self._waiters:
                return False
            # set_result() without what it does for waiters, and for callbacks of the base class.
            self._result, self._exception = self._value, self._error
            self._state = _base.FINISHED
            return True
        finally:
            self._condition.release()

    def complete(self) -> None:
        """Set the state of the base class, which may block."""
        if self._error is None:
            super().set_result(self._value)
        else:
            super().set_exception(self._error)

    def _call_back(self) -> None:
        while callbacks := self._callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            try:
                call_in_fresh_context(callback, self)
            except BaseException:
                # The future was done already: this is the thread that adds the callback.
                if not on_a_loop():
                    raise
                # Other messages' outcomes wait to be reported here.
                log.exception("the callback %r of a submitted message failed", callback)

    # --- from any thread --------------------------------------------------------------------------

    def done(self) -> bool:
        return self._ended

    def running(self) -> bool:
        return not self._ended

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> T:
        error = self.exception(timeout)
        if error is None:
            value: T = self._value
            return value
        try:
            raise error
        finally:
            # Otherwise the error would hold this frame, and this frame the error.
            del error, self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._ended:
            self._sleep(timeout)
        self._unseen = None
        return self._error

    def _sleep(self, timeout: float | None) -> None:
        sleeper = threading.Lock()
        sleeper.acquire()
        # Of two threads that make it, both take the first one's.
        sleepers = self.__dict__.setdefault("_sleepers", {})
        sleepers[sleeper] = None
        try:
            if not self._ended and not sleeper.acquire(
                timeout=-1 if timeout is None else max(0.0, timeout)
            ):
                raise TimeoutError
        finally:
            sleepers.pop(sleeper, None)

    def add_done_callback(self, fn: Callback[T]) -> None:
        self._unseen = None
        self.__dict__.setdefault("_callbacks", deque()).append(fn)
        # Both threads may now call back, each callback is taken by one of them.
        if self._ended:
            self._call_back()

    def _get_snapshot(self) -> tuple[bool, bool, Any, BaseException | None]:
        """Return what asyncio.wrap_future asks for from Python 3.14 on."""
        return self._ended, False, self._value, self._error

    def __del__(self) -> None:
        if self._unseen is not None:
            log.error(
                "a submitted message failed, and the exception of its future was never retrieved: "
                "%s",
                self._unseen,
            )


class Completions:
    """Threads that complete futures, and end when idle.

    A thread that is stuck on a lock holds up no other future: another one is started.
    """

    def __init__(self) -> None:
        self._futures: queue.SimpleQueue[SubmitFuture[Any]] = queue.SimpleQueue()
        # Held for moments, and never by a thread that signals interrupt.
        self._lock = threading.Lock()
        self._idle = 0

    def put(self, future: SubmitFuture[Any]) -> None:
        """Complete *future* soon. Called on the loop."""
        self._futures.put(future)
        if self._make_sure():
            return
        # The loop may have to wait for a lock here. Without a thread nobody else would complete it.
        with contextlib.suppress(queue.Empty):
            while True:
                self._futures.get_nowait().complete()

    def _make_sure(self) -> bool:
        """Return False if a thread is needed and none can be started."""
        with self._lock:
            if self._idle or self._futures.empty():
                return True
            self._idle += 1
        try:
            threading.Thread(target=self._work, name="ogive-futures", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._idle -= 1
            return False
        return True

    def _work(self) -> None:
        while True:
            try:
                future = self._futures.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._futures.empty():
                        self._idle -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            self._make_sure()
            future.complete()
            with self._lock:
                self._idle += 1
