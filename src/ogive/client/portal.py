"""The way from blocking code into asyncio: one background thread with one event loop per process, started on first use."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from ogive.errors import IllegalStateError, OgiveError
from ogive.transport.loop import new_event_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0


class Closable(Protocol):
    def close(self) -> None: ...


class Portal:
    """Runs coroutines and short functions on its loop for other threads. Belongs to the process that made it: a fork has none."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._draining = False
        self._open: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._run, name="ogive", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

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
            self.loop.call_soon_threadsafe(self._drain)

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
        """Raises IllegalStateError in a forked child, and on the loop itself, where waiting would never end."""
        if self.pid != os.getpid():
            raise IllegalStateError(
                f"this object was made in process {self.pid} and cannot be used in its forked child {os.getpid()}: make a new one here"
            )
        if threading.get_ident() == self._thread.ident:
            raise IllegalStateError("a blocking call inside a coroutine of ogive's own loop would never end: use ogive.aio there")

    def keep(self, closable: Closable) -> None:
        """Close *closable* when the interpreter exits, unless it is gone by then."""
        self._open.add(closable)

    def stop(self) -> None:
        """Close what is open, end the loop and its thread."""
        if self.pid != os.getpid() or not self._thread.is_alive():
            return
        for closable in list(self._open):
            try:
                closable.close()
            except OgiveError as exc:
                log.warning("at exit: %s", exc)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
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
