"""Application code around each send, and the border to all code of the application.

Behaviour
- ``before_send`` runs where the message is handed over: in the caller's thread and context, before
  the message waits for anything.
- ``after_send`` runs once per message, when its outcome is known: on ogive's loop, so it must not
  block. A message that is refused as such (a bad topic name, say) has none.
- A hook that raises is logged, and changes nothing.

Differs from Java: once per message, not once per try; the hook gets each message of a batch by
itself.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from types import coroutine
from typing import Any, ParamSpec, Protocol, TypeVar

from ogive.model import Message, SendResult

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
