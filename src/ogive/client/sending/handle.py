"""Handles of submitted messages, and the outcome of the batch that they travel in.

A batch has one outcome: a result, or an error. A handle holds the batch and its place in it, and
makes a SendResult only when asked. What waits for a message waits at its handle.

The loop never waits for a lock of a user's thread: each waiting thread sleeps on a lock of its own.
A lock that threads share, such as that of ``concurrent.futures.Future``, is held for moments. A
signal in such a moment stops more than one thread: Ctrl-C leaves the lock taken for ever.
"""

import asyncio
import concurrent.futures
import contextlib
import inspect
import logging
import os
import queue
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ogive.client.instrumentation import call_in_fresh_context, on_a_loop
from ogive.errors import IllegalStateError, OgiveError
from ogive.model import SendResult
from ogive.native import native
from ogive.wire.message import MAX_PROPERTIES_BYTES, encode_batch

log = logging.getLogger(__name__)

IDLE_S: Final = 10.0
# between the first process and this one
_forks = 0
# what a message takes in a batch, beside its body and the properties that are its own
KEY_BYTES: Final = 42
ITEM_BYTES: Final = 22 + KEY_BYTES
MAX_TEXT_BYTES: Final = MAX_PROPERTIES_BYTES - KEY_BYTES


class BatchOutcome:
    """Outcome of the messages that travel together. The loop sets it once.

    The unique keys of the messages are consecutive: *prefix*, then a number of 12 digits.
    """

    __slots__ = (
        "_ids",
        "_number",
        "_prefix",
        "_result",
        "_trace",
        "count",
        "ended",
        "error",
        "forks",
        "handles",
        "loop",
        "seen",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, prefix: str = "", number: int = 0, count: int = 1
    ) -> None:
        self.loop = loop
        self.forks = _forks
        self._prefix, self._number = prefix, number
        self.count = count
        # held until the end
        self.handles: list[SendHandle] = []
        self.ended = False
        self.error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._result: SendResult | None = None
        self._ids: list[str] | None = None
        # messages whose error somebody has asked for
        self.seen: set[int] = set()

    def done(self) -> bool:
        return self.ended

    def set_result(self, result: SendResult) -> None:
        self._result = result
        self._end()

    def set_exception(self, exception: BaseException) -> None:
        self.error, self._trace = exception, exception.__traceback__
        self._end()

    def _end(self) -> None:
        handles, self.handles = self.handles, []
        # whoever begins to wait after this line looks at it once more
        self.ended = True
        for handle in handles:
            if handle._waiters:
                handle._call_back()

    def result_of(self, index: int) -> SendResult:
        """Return the result of one message of a batch without an error."""
        whole = self._result
        assert whole is not None
        if self.count == 1:
            return whole
        ids = self._ids
        if ids is None:
            ids = whole.offset_id.split(",")
            # a topic that keeps batches whole has one id for all
            self._ids = ids = ids if len(ids) == self.count else ids[:1] * self.count
        return SendResult(
            whole.status, self.key_of(index), ids[index], whole.queue, whole.queue_offset + index
        )

    def error_of(self, index: int) -> BaseException | None:
        """Return the error of the batch, for somebody who asked for that of one message.

        It is a copy. Who raises the error adds their frame to it, and the frame holds the handle: a
        cycle, which no collection finds, because handles of the compiled part are not looked at.
        """
        if self.error is None:
            return None
        self.seen.add(index)
        return _copy(self.error).with_traceback(self._trace)

    def check(self) -> None:
        """Raise IllegalStateError where the outcome will never be known: in a forked child, and
        after the loop's end.
        """
        if self.forks != _forks:
            raise IllegalStateError(
                "this message was submitted in a parent process, which alone learns its outcome"
            )
        if self.loop.is_closed():
            raise IllegalStateError(
                "the event loop of this message's producer is closed: its outcome is lost, and it "
                "may or may not be stored"
            )

    def key_of(self, index: int) -> str:
        """Return the unique key of one message of several."""
        return f"{self._prefix}{self._number + index:012X}"

    def __del__(self) -> None:
        if self.error is None or (unseen := self.count - len(self.seen)) <= 0:
            return
        if unseen == 1:
            log.error(
                "a submitted message failed, and the exception of its handle was never retrieved: "
                "%s",
                self.error,
            )
        else:
            log.error(
                "%d submitted messages failed, and the exceptions of their handles were never "
                "retrieved: %s",
                unseen,
                self.error,
            )


def _copy(error: BaseException) -> BaseException:
    """Return a copy of an error of ogive's, whose state is in Python; others as they are."""
    if not isinstance(error, OgiveError):
        return error
    kind = type(error)
    made = kind.__new__(kind, *error.args)
    made.__dict__.update(error.__dict__)
    # what is noted about one is not about the others
    notes: list[str] | None = getattr(error, "__notes__", None)
    if notes is not None:
        made.__notes__ = list(notes)
    made.__cause__, made.__context__ = error.__cause__, error.__context__
    made.__suppress_context__ = error.__suppress_context__
    return made


class Handle:
    """State of a SendHandle, and the messages of many as one batch.

    Body and text, the properties without the unique key, are gone once they are in a batch. *since*
    is the time of the call, of a monotonic clock.
    """

    __slots__ = ("_batch", "_body", "_index", "_since", "_text", "_waiters")

    _body: bytes | None
    _text: bytes | None

    def __init__(
        self,
        batch: BatchOutcome,
        body: bytes,
        text: bytes,
        since: float,
        waiters: "list[Callable[[SendHandle], object]] | None",
    ) -> None:
        self._batch = batch
        self._body = body
        self._text = text
        self._index = 0
        self._since = since
        self._waiters = waiters

    @classmethod
    def _fill(
        cls,
        handles: "list[Self]",
        batch: BatchOutcome,
        prefix: str,
        number: int,
        most_bytes: int,
        most: int,
    ) -> tuple[bytes, int]:
        """Return the body of a batch of the first *handles*, and how many they are: at least one,
        at most *most*, and several at most *most_bytes*.

        Their batch is that one from now on, and their unique keys are consecutive.
        """
        items: list[tuple[int, bytes, bytes]] = []
        size = 0
        for handle in handles[:most]:
            if handle._body is None or handle._text is None or len(handle._text) > MAX_TEXT_BYTES:
                raise ValueError("this handle's message cannot stand in a batch")
            size += ITEM_BYTES + len(handle._body) + len(handle._text)
            if items and size > most_bytes:
                break
            key = f"UNIQ_KEY\x01{prefix}{number + len(items):012X}\x02".encode()
            items.append((0, handle._body, key + handle._text))
        for index, handle in enumerate(handles[: len(items)]):
            handle._index = index
            handle._body = handle._text = None
            handle._batch = batch
        return encode_batch(items), len(items)


# type checkers see the twin, whose attributes have types
if TYPE_CHECKING or native is None:  # noqa: SIM108
    _Base = Handle
else:
    _Base = native.Handle


class SendHandle(_Base):
    """Handle of a submitted message: its result, once the broker has answered.

    ``await`` it or call ``result()``. ``future()`` makes a ``concurrent.futures.Future`` for
    ``concurrent.futures.wait`` and the like. A failure that is never looked at is logged.
    """

    __slots__ = ()
    # only a producer makes them
    __signature__: Final = inspect.Signature()

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self._batch.ended

    def running(self) -> bool:
        """Return True until the outcome is known."""
        return not self._batch.ended

    def cancelled(self) -> bool:
        """Return False: a message that was submitted cannot be taken back."""
        return False

    def cancel(self, msg: object = None) -> bool:
        """Do nothing and return False: a message that was submitted cannot be taken back."""
        return False

    def result(self, timeout: float | None = None) -> SendResult:
        """Wait for the result, at most *timeout* seconds.

        Raises what ``send`` raises, TimeoutError, and in a coroutine of the producer's own loop
        ``asyncio.InvalidStateError`` while there is none: await the handle there. Raises
        IllegalStateError in a forked child, and when that loop has ended without an outcome.
        """
        error = self.exception(timeout)
        if error is None:
            return self._batch.result_of(self._index)
        try:
            raise error
        finally:
            # else the error would hold this frame, and this frame the error
            del error, self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as ``result`` does, and return the error, or None if the message is stored."""
        if not self._batch.ended:
            self._sleep(timeout)
        return self._batch.error_of(self._index)

    def add_done_callback(
        self, fn: "Callable[[SendHandle], object]", *, context: object = None
    ) -> None:
        """Call *fn* with this handle when the outcome is known, or now if it is.

        It runs on the producer's loop and must not block: all other sends wait for it.
        """
        self._watch(fn)
        # both threads may now call back, each callback is taken by one of them
        if self._batch.ended:
            self._call_back()

    def remove_done_callback(self, fn: "Callable[[SendHandle], object]") -> int:
        """Remove all of *fn*, and return how many there were."""
        removed = 0
        with contextlib.suppress(ValueError):
            while self._waiters:
                self._waiters.remove(fn)
                removed += 1
        return removed

    def future(self) -> concurrent.futures.Future[SendResult]:
        """Return a future that gets the outcome; it cannot be cancelled."""
        future = _Future()
        self.add_done_callback(future.take)
        return future

    def __await__(self) -> Generator[Any, Any, SendResult]:
        if not self._batch.ended:
            self._batch.check()
            loop = asyncio.get_running_loop()
            is_own = loop is self._batch.loop
            woken = loop.create_future()

            def wake(_: object) -> None:
                if is_own:
                    _set(woken)
                else:
                    loop.call_soon_threadsafe(_set, woken)

            self._watch(wake)
            try:
                if not self._batch.ended:
                    yield from woken
            finally:
                self.remove_done_callback(wake)
        try:
            return self.result()
        finally:
            # as in result()
            del self

    def _watch(self, waiter: "Callable[[SendHandle], object]") -> None:
        made: list[Callable[[SendHandle], object]] = []
        # no call comes between these lines, and so no other thread and no signal handler
        if self._waiters is None:
            self._waiters = made
        self._waiters.append(waiter)

    def _sleep(self, timeout: float | None) -> None:
        self._batch.check()
        if on_a_loop() and asyncio.get_running_loop() is self._batch.loop:
            raise asyncio.InvalidStateError("the outcome is not known yet: await the handle")
        sleeper = threading.Lock()
        sleeper.acquire()

        def wake(_: object) -> None:
            sleeper.release()

        self._watch(wake)
        try:
            if not self._batch.ended and not sleeper.acquire(
                timeout=-1 if timeout is None else max(0.0, timeout)
            ):
                raise TimeoutError
        finally:
            self.remove_done_callback(wake)

    def _call_back(self) -> None:
        """Call what waits. The outcome is known."""
        batch = self._batch
        while waiters := self._waiters:
            try:
                waiter = waiters.pop(0)
            except IndexError:
                return
            if batch.error is not None:
                batch.seen.add(self._index)
            try:
                call_in_fresh_context(waiter, self)
            except BaseException:
                # the outcome was known already: this is the thread that adds the callback
                if not on_a_loop():
                    raise
                # other messages' outcomes wait to be reported here
                log.exception("the callback %r of a submitted message failed", waiter)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _Future(concurrent.futures.Future[SendResult]):
    """Future that gets the outcome of a handle, on a thread of its own: its lock may be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._handle: SendHandle | None = None

    def take(self, handle: SendHandle) -> None:
        self._handle = handle
        if on_a_loop():
            _completions.put(self)
        else:
            self.complete()

    def complete(self) -> None:
        """Set the outcome, which may block."""
        handle, self._handle = self._handle, None
        assert handle is not None
        error = handle.exception()
        if error is None:
            self.set_result(handle.result())
        else:
            self.set_exception(error)


class _Completions:
    """Threads that complete futures, and end when idle.

    A thread that is stuck on a lock holds up no other future: another one is started.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without a thread, as in a forked child."""
        self._futures: queue.SimpleQueue[_Future] = queue.SimpleQueue()
        # held for moments, and never by a thread that signals interrupt
        self._lock = threading.Lock()
        self._idle = 0

    def put(self, future: _Future) -> None:
        """Complete *future* soon. Called on a loop."""
        self._futures.put(future)
        if self._make_sure():
            return
        # the loop may have to wait for a lock here: without a thread nobody else would complete it
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


_completions: Final = _Completions()


def _begin_in_child() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1
    _completions.reset()


# Windows has no fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
