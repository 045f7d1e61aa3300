"""Waiting for what is still under way in a queue that is given up."""

import asyncio
from collections.abc import Callable
from typing import Final

from ogive.client.consumer.process_queue import ProcessQueue

_LOOK_S: Final = 0.01


async def until_quiet(
    is_busy: Callable[[ProcessQueue], bool], process_queue: ProcessQueue, timeout_s: float
) -> bool:
    """Wait until *process_queue* is not busy any more.

    Return False if it still is after *timeout_s*.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while is_busy(process_queue):
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True
