"""Interface for telemetry of all clients of this process, used by ogive.otel.

A producer looks for the instrumentation once, when it is made, and a push consumer when it starts
or gets a listener. Pull and simple consumers look at each call. Without an instrumentation nothing
is observed, and messages cost nothing more.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from ogive.model import Message, MessageExt, SendResult

# Application code around each send, and the border to all code of the application.
#
# Behaviour
# - ``before_send`` runs where the message is handed over: in the caller's thread and context,
#   before the message waits for anything.
# - ``after_send`` runs once per message, when its outcome is known: on ogive's loop, so it must
#   not block. A message that is refused as such (a bad topic name, say) has none.
# - A hook that raises is logged, and changes nothing.
#
# Differs from Java: once per message, not once per try; the hook gets each message of a batch by
# itself.


log = logging.getLogger(__name__)


class SendHook(Protocol):
    """Hook around every send, see ``ProducerConfig.hooks``.

    What it raises is logged, and does not affect the send.
    """

    def before_send(self, message: Message) -> Message | None:
        """Return the message to send. Called in the sender's thread.

        Returns the message to send instead, from ``dataclasses.replace``, or None for this one.
        """

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Observe the outcome. Called on ogive's loop, so it must not block.

        *result* if it is stored, *error* if not or unknown, neither if one-way.
        """


def run_before(hooks: Sequence[SendHook], message: Message) -> Message:
    """Return *message* as the hooks leave it; each gets what the one before it returned."""
    for hook in hooks:
        try:
            changed = hook.before_send(message)
        except Exception:
            # user code: it must not break the send
            log.exception(
                "before_send of %r failed: the message for %s is sent unchanged",
                hook,
                message.topic,
            )
            continue
        if isinstance(changed, Message):
            message = changed
        elif changed is not None:
            log.error(
                "ignored the result of before_send of %r, which is neither a Message nor None: "
                "%.200r",
                hook,
                changed,
            )
    return message


def run_after(
    hooks: Sequence[SendHook],
    message: Message,
    result: SendResult | None,
    error: BaseException | None,
) -> None:
    """Call ``after_send`` of all hooks in the opposite order, so that the first is the
    outermost.
    """
    for hook in reversed(hooks):
        try:
            call_in_fresh_context(hook.after_send, message, result, error)
        except BaseException as exc:
            # user code: it must not break the send, nor those whose outcome comes with this one's
            if must_pass(exc, None):
                raise
            log.exception("after_send of %r failed", hook)


P = ParamSpec("P")
T = TypeVar("T")


def call_in_fresh_context(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call *function* in a copy of the context, so that context variables that it sets are gone
    with the call.
    """
    return contextvars.copy_context().run(function, *args, **kwargs)


async def await_in_fresh_context(
    function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call *function*, and await its result, in a copy of the context.

    A cancellation reaches it as if it was awaited directly.
    """

    async def whole() -> T:
        return await function(*args, **kwargs)

    result: T = await _driven(whole(), contextvars.copy_context())
    return result


@coroutine
def _driven(work: Any, context: contextvars.Context) -> Generator[Any, Any, Any]:
    """Await the coroutine *work*, each step of it in *context*."""
    step = partial(work.send, None)
    while True:
        try:
            waits_for = context.run(step)
        except StopIteration as end:
            return end.value
        try:
            step = partial(work.send, (yield waits_for))
        except GeneratorExit:
            context.run(work.close)
            raise
        except BaseException as exc:  # noqa: BLE001
            # whatever comes from outside is for the code inside
            step = partial(work.throw, exc)


def must_pass(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Return True if *error* must propagate because ogive or the interpreter raised it, not the
    user's code.

    These are our own cancellation, the end of a coroutine whose loop is gone, and Ctrl-C, which
    Python raises in the main thread. Everything else is a failure of the code that *task* awaited
    or called, and must not end the caller: also ``sys.exit()``, and other exceptions outside
    ``Exception``.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return running_task() is not task
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


def running_task() -> asyncio.Task[Any] | None:
    """Return the running task, or None outside of any."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def on_a_loop() -> bool:
    """Return True in a thread whose event loop is running this call."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


M = TypeVar("M", bound=Sequence[MessageExt])


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEnd:
    """Outcome of messages that travelled in one request."""

    results: Sequence[SendResult] | None
    """One result for each message; None after an error, and for one-way sends."""
    error: BaseException | None
    """Reason why the messages are not stored, or may not be; None after a success."""
    address: str
    """Address of the broker as ``host:port``; empty if no broker was chosen."""
    client_id: str
    """Client id of the producer."""
    namespace: str
    """Namespace of 4.x; empty if there is none."""
    is_batch: bool
    """True for ``send_batch``."""
    is_transaction: bool
    """True for a half message."""


class Instrumentation(Protocol):
    """Observer of sends, receives and listener calls. Its methods must neither raise nor block."""

    def send_begins(self, message: Message, *, in_batch: bool) -> tuple[Message, Any]:
        """Return the message to send, and an object that is passed to ``send_ended``. Called in the
        sender's thread and context, after the hooks.
        """
        ...

    def send_ended(self, begun: Sequence[Any], end: SendEnd) -> None:
        """Observe the outcome of messages that travelled in one request. Called on the loop."""
        ...

    def client_operation(
        self,
        operation: str,
        group: str | None,
        topics: Iterable[str],
        messages: Sequence[MessageExt],
        since_ns: int,
        error: Exception | None,
    ) -> None:
        """Observe the end of a pull or simple consumer's call. It began at *since_ns*, in
        nanoseconds since 1970. Called in the context of the caller.
        """
        ...

    def interceptor(
        self, *, in_batches: bool, broadcast: bool, namespace: str, inherits: bool
    ) -> Callable[[Any], AbstractContextManager[Any]]:
        """Return the outermost interceptor of one listener.

        *inherits* is True for an iterated consumer: the interceptor then runs around the
        application's ``process()`` block, so a span that is current there is the parent.
        """
        ...


_current: Instrumentation | None = None


def instrumentation() -> Instrumentation | None:
    """Return the instrumentation of this process, or None."""
    return _current


def set_instrumentation(instrumentation: Instrumentation | None) -> None:
    global _current  # noqa: PLW0603
    _current = instrumentation


async def observed(
    operation: str,
    group: str | None,
    topics: Iterable[str],
    work: Awaitable[M],
) -> M:
    """Await *work*, and report it unless it returns no messages or is cancelled."""
    observer = _current
    if observer is None:
        return await work
    since_ns = time.time_ns()
    try:
        messages = await work
    except Exception as exc:
        observer.client_operation(operation, group, topics, (), since_ns, exc)
        raise
    if messages:
        observer.client_operation(operation, group, topics, messages, since_ns, None)
    return messages
