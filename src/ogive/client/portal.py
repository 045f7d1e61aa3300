"""The way from blocking code into asyncio: one background thread with one event loop per process, started on first use."""

import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from ogive.errors import IllegalStateError, OgiveError
from ogive.transport.loop import new_event_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0


class Closable(Protocol):
    def close_at_exit(self) -> None: ...


class Portal:
    """Runs coroutines and short functions on its loop for other threads. Belongs to the process that made it: a fork has none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=new_event_loop)
        self.loop = self._runner.get_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._draining = False
        self._open: set[Closable] = set()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ogive", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        with self._runner:  # cancels what still runs at the end
            while not self._stopped:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of a listener or callback; whoever waits for its task gets the exception, too
                    log.exception("code on ogive's loop tried to end the program: that ends only its task")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* on the loop and wait for its result. An interrupt (Ctrl-C) cancels it."""
        try:
            self.check()
        except IllegalStateError:
            work.close()
            raise
        if self._inbox:  # what was posted before comes first, and whoever is to wake the loop for it may be held up
            self.loop.call_soon_threadsafe(self._drain)
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Run *function* on the loop soon, in the order of posting. Many posts share one wake-up of the loop."""
        self._inbox.append((function, args))
        if not self._draining:
            self._draining = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except BaseException:  # Ctrl-C: whoever goes on after it would wait for a loop that nobody woke
                self._draining = False
                raise

    @property
    def posted(self) -> int:
        """Posts that have not run yet."""
        return len(self._inbox)

    def _drain(self) -> None:
        self._draining = False  # first: what is appended from here on schedules the next round
        inbox = self._inbox
        for _ in range(len(inbox)):
            function, args = inbox.popleft()
            function(*args)

    def check(self) -> None:
        """Raises IllegalStateError in a forked child, on the loop itself, where waiting would never end, and after the loop's end."""
        if self.pid != os.getpid():
            raise IllegalStateError(
                f"this object was made in process {self.pid} and cannot be used in its forked child {os.getpid()}: make a new one here"
            )
        if threading.get_ident() == self._thread.ident:
            raise IllegalStateError("a blocking call inside a coroutine of ogive's own loop would never end: use ogive.aio there")
        if self._stopped:
            raise IllegalStateError("the program is ending, and ogive's loop has stopped: nothing can be sent or asked any more")

    @property
    def alive(self) -> bool:
        """False in a forked child, and after the loop's end: what lived here is not this process's any more, or closed already."""
        return self.pid == os.getpid() and not self._stopped

    def keep(self, closable: Closable) -> None:
        """Close *closable* when the interpreter exits, unless it is let go before: nobody else may hold it, but messages wait in it."""
        self._open.add(closable)

    def let_go(self, closable: Closable) -> None:
        self._open.discard(closable)

    def stop(self) -> None:
        """Close what is open, end the loop and its thread."""
        if not self.alive:
            return
        for closable in list(self._open):
            try:
                closable.close_at_exit()
            except OgiveError as exc:
                log.warning("at exit: %s", exc)
        self._stopped = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)


_lock = threading.Lock()
_portal: Portal | None = None


def portal() -> Portal:
    """This process's portal; a forked child gets one of its own."""
    global _portal  # noqa: PLW0603  one per process is the point
    with _lock:
        if _portal is None or _portal.pid != os.getpid():
            if _portal is None:
                atexit.register(_stop_at_exit)
                os.register_at_fork(after_in_child=_forget)
            _portal = Portal()
        return _portal


def _stop_at_exit() -> None:
    if _portal is not None:
        _portal.stop()


def _forget() -> None:
    """In a forked child: another thread may have held the lock at that moment."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()


class Outcome(Generic[T]):
    """What one thread waits for, and the loop sets once. A future, which many may wait for and hang callbacks on, costs 20 µs more."""

    __slots__ = ("_error", "_result", "_set", "_waiting")
    _result: T

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._set = False
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def done(self) -> bool:
        return self._set

    def set_result(self, result: T) -> None:
        self._result = result
        self._set = True
        self._waiting.release()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._set = True
        self._waiting.release()

    def result(self) -> T:
        """Wait, once. An interrupt (Ctrl-C) ends the waiting."""
        self._waiting.acquire()
        if self._error is None:
            return self._result
        error, self._error = self._error, None
        try:
            raise error
        finally:
            del error  # else the error would hold this frame, and this frame the error


class SubmitFuture(concurrent.futures.Future[T]):
    """A future that complains, like asyncio's, when it ends with an error that nobody ever looks at."""

    _unseen: BaseException | None = None

    def set_exception(self, exception: BaseException | None) -> None:
        self._unseen = exception
        super().set_exception(exception)

    def result(self, timeout: float | None = None) -> T:
        self._unseen = None
        try:
            return super().result(timeout)
        finally:
            self._unseen = None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            return super().exception(timeout)
        finally:
            self._unseen = None

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[T]], object]) -> None:
        super().add_done_callback(fn)
        self._unseen = None

    def __del__(self) -> None:
        if self._unseen is not None:
            log.error("a submitted message failed and nobody looked at its future: %s", self._unseen)
