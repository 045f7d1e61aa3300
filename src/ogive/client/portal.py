"""Calls of asyncio from blocking code: one background thread with an event loop per process,
started on first use.
"""

import asyncio
import atexit
import concurrent.futures
import functools
import inspect
import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
)

from ogive.errors import IllegalStateError, OgiveError
from ogive.keywords import explain
from ogive.transport.event_loop import new_event_loop

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 10.0


class Closable(Protocol):
    def close_at_exit(self) -> None: ...


class Waiter(Protocol):
    """Something to wait for: a ``OneShot``, or a future."""

    def done(self) -> bool: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Portal:
    """Event loop in a thread, which runs coroutines and short functions for other threads.

    Belongs to the process that made it: a fork has none.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        # not in a forked child, and not after the loop's end: what lives on it belongs to another
        # process, or is closed
        self.alive = True
        self.loop = new_event_loop()
        # what was posted and has not run yet
        self.inbox: deque[tuple[Callable[..., None], tuple[Any, ...], Waiter | None]] = deque()
        self._draining = False
        # threads that are about to wake the loop
        self._wakers: list[int] = []
        # whether it closes first
        self._open: dict[Closable, bool] = {}
        self._stopped = False
        self._unclaimed = ["the loop"]
        self._thread: threading.Thread | None = None
        _made.add(self)

    def forked(self) -> None:
        """Record that this is the portal of a parent process."""
        self.alive = False

    def ensure_running(self) -> None:
        """Start the loop's thread, unless it was started.

        An interrupt of an earlier call may have kept it from starting.
        """
        if self._unclaimed:
            threading.Thread(target=self._run, name="ogive", daemon=True).start()

    def _run(self) -> None:
        # Two threads were started if an interrupt struck in between.
        try:
            self._unclaimed.pop()
        except IndexError:
            return
        self._thread = threading.current_thread()
        asyncio.set_event_loop(self.loop)
        while not self._stopped:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # of a listener or callback; whoever awaits its task gets the exception, too
                log.exception(
                    "code on ogive's event loop raised SystemExit or KeyboardInterrupt: only its "
                    "task ends"
                )
        self._end()

    def _end(self) -> None:
        """Close the loop as asyncio.Runner does, but leave the threads of its executor alone: at
        exit they have ended, and 3.12 starts none to wait for them.
        """
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    def call(
        self,
        work: Coroutine[Any, Any, T],
        take_back: Callable[[T], None] | None = None,
        *,
        timeout_s: float = -1,
    ) -> T:
        """Run *work* on the loop and wait for its result. An interrupt (Ctrl-C) cancels it.

        Raises TimeoutError after *timeout_s*, if that is not -1, and cancels it.
        *take_back* is called on the loop with a result that an interrupt kept from the caller.
        """
        try:
            self.check()
        except IllegalStateError:
            work.close()
            raise
        # what was posted before comes first, and the thread that should wake the loop for it may be
        # delayed
        if self.inbox:
            self.loop.call_soon_threadsafe(self._drain)
        running = _Running(work, take_back)
        try:
            self.loop.call_soon_threadsafe(running.start)
            if not running.outcome.wait(timeout_s):
                raise TimeoutError
            return running.outcome.result()
        except BaseException:
            self.loop.call_soon_threadsafe(running.cancel)
            raise

    def post(self, function: Callable[..., None], *args: Any, waiter: Waiter | None = None) -> None:
        """Run *function* on the loop soon, in the order of posting.

        Many posts share one wake-up of the loop.

        If it raises, whatever it is, *waiter* gets the exception; without one it is logged.
        """
        self.inbox.append((function, args, waiter))
        wakers = self._wakers
        # this may be a signal handler: who wakes waits for it
        if not self._draining or (wakers and threading.get_ident() in wakers):
            wakers.append(threading.get_ident())
            self._draining = True
            try:
                self.loop.call_soon_threadsafe(self._drain)
            except BaseException:
                # Ctrl-C: later callers would wait for a loop that was never woken
                self._draining = False
                # and so would those that posted in between
                if self.inbox:
                    self.loop.call_soon_threadsafe(self._drain)
                raise
            finally:
                wakers.remove(threading.get_ident())

    def _drain(self) -> None:
        # first: anything appended from now on schedules the next round
        self._draining = False
        inbox = self.inbox
        for _ in range(len(inbox)):
            # stays until it has run: what is submitted meanwhile must not overtake it
            function, args, waiter = inbox[0]
            try:
                function(*args)
            except BaseException as exc:
                # even SystemExit: a thread waits for this one, and others for those behind it
                if waiter is None:
                    log.exception("%r, posted to ogive's event loop, failed", function)
                elif not waiter.done():
                    waiter.set_exception(exc)
            finally:
                inbox.popleft()

    def check(self) -> None:
        """Raise IllegalStateError in a forked child, on the loop itself, where waiting would never
        end, and after the loop's end.
        """
        if self.alive and (self._thread is None or threading.get_ident() != self._thread.ident):
            return
        if self.pid != os.getpid():
            raise IllegalStateError(
                f"this object was made in process {self.pid} and cannot be used in its forked "
                f"child {os.getpid()}: make a new one here"
            )
        if self.alive:
            raise IllegalStateError(
                "a blocking call inside a coroutine of ogive's own loop would never end: use "
                "ogive.aio there"
            )
        raise IllegalStateError(
            "the program is ending, and ogive's loop has stopped: nothing can be sent or asked "
            "any more"
        )

    def register(self, closable: Closable, *, first: bool = False) -> None:
        """Close *closable* when the interpreter exits, unless it is unregistered before.

        Nobody else may hold it, but messages wait in it. *first*: before all others, which its
        listeners may use.
        """
        self._open[closable] = first

    def unregister(self, closable: Closable) -> None:
        self._open.pop(closable, None)

    def stop(self) -> None:
        """Close what is open, end the loop and its thread."""
        if not self.alive:
            return
        for closable in sorted(self._open, key=self._open.__getitem__, reverse=True):
            try:
                closable.close_at_exit()
            except OgiveError as exc:
                log.warning("at exit: %s", exc)
        self._stopped, self.alive = True, False
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)


_portals: dict[int, Portal] = {}
_made: weakref.WeakSet[Portal] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for made in _made:
        made.forked()


# Windows has no fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def portal() -> Portal:
    """Return this process's portal. A forked child gets one of its own.

    No lock is held: the handler of a signal may need the portal while the code that it interrupts
    makes it.
    """
    pid = os.getpid()
    existing = _portals.get(pid)
    if existing is None:
        if not _portals:
            atexit.register(_stop_at_exit)
        made = Portal()
        existing = _portals.setdefault(pid, made)
        if existing is not made:
            made.loop.close()
    existing.ensure_running()
    return existing


def _stop_at_exit() -> None:
    existing = _portals.get(os.getpid())
    if existing is not None:
        existing.stop()


class OneShot(Generic[T]):
    """Result that the loop sets once, and one thread waits for.

    A future, for which many may wait and which runs callbacks, costs 20 µs more.
    """

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
        self._end()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._end()

    def _end(self) -> None:
        self._set = True
        self._waiting.release()

    def wait(self, timeout_s: float = -1) -> bool:
        """Wait, once, and return False after *timeout_s*; -1 waits without end.

        An interrupt (Ctrl-C) ends the waiting.
        """
        return self._waiting.acquire(timeout=timeout_s)

    def result(self) -> T:
        """Return the result, or raise the error, once it is set."""
        if self._error is None:
            return self._result
        error, self._error = self._error, None
        try:
            raise error
        finally:
            # else the error would hold this frame, and this frame the error
            del error


class _Running(Generic[T]):
    """A coroutine on the loop that a thread waits for.

    Not a future of concurrent.futures: Ctrl-C in the wrong moment leaves its lock taken, and the
    loop, which wants to tell the outcome, waits for that lock for ever, with all that lives on it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], take_back: Callable[[T], None] | None) -> None:
        self.outcome: OneShot[T] = OneShot()
        self._work: Coroutine[Any, Any, T] | None = work
        self._take_back = take_back
        self._task: asyncio.Task[T] | None = None

    def start(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self._task = asyncio.ensure_future(work)
            self._task.add_done_callback(self._done)

    def cancel(self) -> None:
        """End the coroutine: nobody waits for it any more."""
        work, self._work = self._work, None
        if work is not None:
            work.close()
        task = self._task
        if task is None or task.cancel() or self._take_back is None:
            return
        if not task.cancelled() and task.exception() is None:
            self._take_back(task.result())

    def _done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.outcome.set_exception(concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(task.result())


# --- base of the blocking classes -----------------------------------------------------------------

P = ParamSpec("P")


class OnlyWith:
    """Base class of blocking objects: ``async with`` raises TypeError with advice. Type checkers
    refuse it by themselves.
    """

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} blocks and takes `with`; the one for `async with` is "
                "in ogive.aio"
            )

        def __aexit__(self, *_: object) -> NoReturn:
            self.__aenter__()


class Facade(OnlyWith, ABC):
    """Blocking object on the portal of its process, from ``start`` to ``close``."""

    _consumes = False

    def __init__(self) -> None:
        self._portal: Portal | None = None
        self._starting: _Starting | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the object. ``with`` does it."""

    @abstractmethod
    def close(self) -> None:
        """Close the object. ``with`` does it."""

    def close_at_exit(self) -> None:
        """Close an object that is still open at the interpreter's exit."""
        self.close()

    def __enter__(self) -> Self:
        try:
            self.start()
            # An interrupt after this line finds the block entered.
            return self
        except BaseException as exc:
            self._undo_start(exc)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: it holds connections; make one where it is "
            "used"
        )

    def _live(self) -> Portal:
        if self._portal is None:
            raise IllegalStateError(
                f"this {type(self).__name__} is not started: start it, or use it in a `with` block"
            )
        return self._portal

    def _begin(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        close: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Start on the portal of this process, which closes the object at the interpreter's exit.

        If an interrupt keeps the start from the caller, it is undone in the background. A start
        that fails undoes itself.
        """
        if self._portal is None:
            self._portal = portal()
        self._starting = starting = _Starting(start, close)
        try:
            self._portal.call(starting.run())
            self._portal.register(self, first=self._consumes)
        except BaseException as exc:
            self._undo_start(exc)
            raise

    def _undo_start(self, error: BaseException) -> None:
        """Close what the last start has started, unless *error* comes from that start."""
        if self._portal is None or not self._portal.alive or self._starting is None:
            return
        if error is not self._starting.failure:
            self._portal.unregister(self)
            self._portal.loop.call_soon_threadsafe(self._starting.undo)

    def _end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, unless it was never started, or its loop has ended or belongs to the parent
        process.

        After an interrupt (Ctrl-C) the interpreter's exit does not wait for the close again.
        """
        if self._portal is not None and self._portal.alive:
            try:
                self._portal.call(close())
            except Exception:
                # the exit tries again
                raise
            except BaseException:
                self._portal.unregister(self)
                raise
            self._portal.unregister(self)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, take_back: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """Return a coroutine of an asyncio class as a method that blocks, for a Facade with the object
    as *_asyncio*. Signature and docstring stay.

    *take_back*: the object's ``take_back`` gets a result that an interrupt keeps from the caller.
    """
    name, signature = method.__name__, inspect.signature(method)

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._portal is None:
            # a wrong argument comes before the start that is missing
            try:
                signature.bind(self, *args, **kwargs)
            except TypeError:
                explain(method, f"{type(self).__name__}.{name}", kwargs)
                raise
        here, there = self._live(), self._asyncio
        result: T = here.call(
            getattr(there, name)(*args, **kwargs), there.take_back if take_back else None
        )
        return result

    functools.update_wrapper(call, method)
    call.__dict__["__signature__"] = signature
    # else inspect would find a coroutine
    del call.__dict__["__wrapped__"]
    return call


class _Starting:
    """Start on the loop, which can be undone whatever became of it."""

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        close: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._start, self._close = start, close
        self._task: asyncio.Task[Any] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._start()
        except BaseException as exc:
            self.failure = exc
            raise

    def undo(self) -> None:
        """Close what was started, once the start has ended. Runs on the loop."""
        if self._task is not None:
            undoing = asyncio.create_task(self._undo(self._task), name="undo an interrupted start")
            _undoing.add(undoing)
            undoing.add_done_callback(_undoing.discard)

    async def _undo(self, starting: asyncio.Task[Any]) -> None:
        await asyncio.wait((starting,))
        try:
            await self._close()
        except OgiveError as exc:
            log.warning("after an interrupted start: %s", exc)


_undoing: set[asyncio.Task[None]] = set()
