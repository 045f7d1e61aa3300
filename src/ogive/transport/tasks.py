"""Periodic jobs, and ending tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, NoReturn, TypeVar

from ogive.errors import OgiveError

log = logging.getLogger(__name__)

AT_ONCE: Final = 32

T = TypeVar("T")
R = TypeVar("R")


async def every(
    period_s: float, job: Callable[[], Awaitable[None]], *, name: str, first_after_s: float = 0.0
) -> NoReturn:
    """Run *job* every *period_s*, start to start, until cancelled.

    An OgiveError is logged, one of the same kind not again until the job has worked; any other
    error is a bug and ends the task.
    """
    loop, failing = asyncio.get_running_loop(), None
    await asyncio.sleep(first_after_s)
    while True:
        started = loop.time()
        try:
            await job()
        except OgiveError as exc:
            level = logging.DEBUG if type(exc) is failing else logging.WARNING
            failing = type(exc)
            log.log(level, "%s: failed, tried again every %.1f s: %s", name, period_s, exc)
        else:
            if failing is not None:
                log.info("%s: works again", name)
            failing = None
        await asyncio.sleep(max(0.0, started + period_s - loop.time()))


def watch(task: asyncio.Task[None]) -> None:
    """Log it when *task*, which runs until it is cancelled, ends otherwise: that is a bug, and
    nobody awaits the task before its stop.
    """
    task.add_done_callback(_log_end)


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (exc := task.exception()) is not None:
        log.critical("task %r ended", task.get_name(), exc_info=exc)


async def cancel_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel *tasks*, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def each(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """Ask for all *items*, a bounded number at a time; the answers in their order.

    The first failure ends it.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> R:
        async with turns:
            return await ask(item)

    try:
        async with asyncio.TaskGroup() as tasks:
            answers = [tasks.create_task(one(item)) for item in items]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [answer.result() for answer in answers]
