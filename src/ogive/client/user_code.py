"""Code of the application's that ogive calls: what it raises, and whose that is."""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import coroutine
from typing import Any, ParamSpec, TypeVar

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
    """Whether what came out of code of the application's that *task* awaited, or called, is not of
    its making.

    So are our own cancellation, the end of a coroutine that its loop left behind, and Ctrl-C, which
    Python gives to the main thread. All else is a failure of that code, and no reason to end who
    calls it: also ``sys.exit()``, and what is raised past ``Exception``.
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
    """None outside of any."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def on_a_loop() -> bool:
    """Whether this runs in some event loop's thread, called by that."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
