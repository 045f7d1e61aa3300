"""Code of the application's that ogive calls: what it raises, and whose that is."""

import asyncio
import threading
from typing import Any


def must_pass(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether what came out of code of the application's that *task* awaited, or called, is not of its making.

    So are our own cancellation, the end of a coroutine that its loop left behind, and Ctrl-C, which Python gives to the main thread. All
    else is a failure of that code, and no reason to end who calls it: also ``sys.exit()``, and what is raised past ``Exception``.
    """
    if isinstance(error, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return running_task() is not task
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


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
