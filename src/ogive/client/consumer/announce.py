"""Tells the application when the queues of its consumer change."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from ogive.client.user_code import await_in_fresh_context, must_pass
from ogive.model import RETRY_PREFIX, MessageQueue

log = logging.getLogger(__name__)

OnChange = Callable[[list[MessageQueue], list[MessageQueue]], Any]
"""(taken over, given up). A plain function is called in a thread, an ``async def`` on the loop."""


class Announcer:
    """Calls *on_change*, one call at a time.

    Changes during a call are reported together in the next one; retry topics are left out.
    """

    def __init__(
        self,
        on_change: OnChange,
        held: Mapping[MessageQueue, object],
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]],
    ) -> None:
        self._on_change = on_change
        self._held = held
        self._spawn = spawn
        self._told: set[MessageQueue] = set()
        self._telling: asyncio.Task[Any] | None = None

    def look(self) -> None:
        """The queues may have changed."""
        if self._telling is None or self._telling.done():
            self._telling = self._spawn(self._tell(), "queues changed")

    async def _tell(self) -> None:
        while (
            held := {queue for queue in self._held if not queue.topic.startswith(RETRY_PREFIX)}
        ) != self._told:
            taken, given_up = sorted(held - self._told), sorted(self._told - held)
            self._told = held
            try:
                if inspect.iscoroutinefunction(self._on_change):
                    await await_in_fresh_context(self._on_change, taken, given_up)
                else:
                    await asyncio.to_thread(self._on_change, taken, given_up)
            except BaseException as exc:
                # user code: the consumer goes on without it
                if must_pass(exc, asyncio.current_task()):
                    raise
                log.exception("on_change failed for +%d -%d queues", len(taken), len(given_up))
