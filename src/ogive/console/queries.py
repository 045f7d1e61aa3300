"""Queries of the cluster for pages: with a time limit, a bounded number of calls at once, and
answers cached for a moment.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

from ogive.client.admin import Admin
from ogive.client.config import ClientConfig
from ogive.errors import BrokerError, NoNameServer, OgiveError, TransportError

CALL_S: Final = 2.0
# time for which an answer is reused
KEEP_S: Final = 2.0
# time for which a server that did not answer is not queried again
AVOID_S: Final = 5.0
AT_ONCE: Final = 32
MAX_KEPT: Final = 4096

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class Queries:
    """Queries on one event loop. Call ``start`` first and ``close`` at the end."""

    def __init__(
        self, config: ClientConfig, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.admin = Admin(
            client=replace(config, request_timeout_s=CALL_S, connect_timeout_s=CALL_S)
        )
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE)
        # the answers, each with the time until which it is reused
        self._kept: OrderedDict[Hashable, tuple[asyncio.Task[Any], float]] = OrderedDict()
        # servers that did not answer: until when to avoid them, and the error
        self._away: dict[str, tuple[float, OgiveError]] = {}

    async def start(self) -> None:
        await self.admin.start()

    async def close(self) -> None:
        asked = [task for task, _ in self._kept.values()]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await self.admin.close()

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(self.admin.client.name_servers.addresses)

    async def name_server(self, rpc: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Return the answer of any name server. Raises NoNameServer."""
        async with self._room:
            self._check("")
            try:
                return await self.admin.client.ask_name_server(rpc, *arguments)
            except NoNameServer as exc:
                self._avoid("", exc)
                raise

    async def server(
        self,
        address: str,
        rpc: Callable[..., Awaitable[T]],
        *arguments: object,
        judged: bool = True,
        **options: Any,
    ) -> T:
        """Return the answer of the broker or name server at *address* to a coroutine of ``rpc``.

        Raises OgiveError.

        *judged* False: a missing answer is not the server's fault, because it asks a client for us.
        """
        async with self._room:
            self._check(address)
            try:
                return await rpc(
                    self.admin.client.pool, address, *arguments, timeout_s=CALL_S, **options
                )
            except TransportError as exc:
                if judged:
                    self._avoid(address, exc)
                raise

    async def bounded(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer of *ask*, which counts as one of the calls at once."""
        async with self._room:
            return await ask()

    def _check(self, address: str) -> None:
        until, error = self._away.get(address, (0.0, None))
        if error is not None and self._clock() < until:
            raise error.with_traceback(None)

    def _avoid(self, address: str, error: OgiveError) -> None:
        now = self._clock()
        self._away = {known: row for known, row in self._away.items() if now < row[0]} | {
            address: (now + AVOID_S, error)
        }

    async def once(
        self, key: Hashable, ask: Callable[[], Awaitable[T]], keep_s: float | None = None
    ) -> T:
        """Return the answer of *ask*, or its recent answer for the same *key*; pages that wait for
        it share one call.
        """
        task, until = self._kept.get(key, (None, 0.0))
        if task is None or (task.done() and self._clock() >= until):
            task = asyncio.create_task(_awaited(ask))
            # perhaps no page awaits the task any more
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._kept[key] = (task, self._clock() + (KEEP_S if keep_s is None else keep_s))
            self._kept.move_to_end(key)
            self._forget()
        # a page whose reader has left must not cancel the query for the others
        answer: T = await asyncio.shield(task)
        return answer

    def forget(self) -> None:
        """Reuse no answer that has come: something was changed."""
        for key in [key for key, (task, _) in self._kept.items() if task.done()]:
            del self._kept[key]

    def _forget(self) -> None:
        while len(self._kept) > MAX_KEPT and next(iter(self._kept.values()))[0].done():
            self._kept.popitem(last=False)


async def _awaited(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


async def gather_answers(
    items: Iterable[K], ask: Callable[[K], Awaitable[R]]
) -> tuple[dict[K, R], dict[K, OgiveError]]:
    """Return the answer or the error for each item: an error of one leaves the others intact."""
    keys = list(items)
    answers = await asyncio.gather(*map(ask, keys), return_exceptions=True)
    told: dict[K, R] = {}
    troubles: dict[K, OgiveError] = {}
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, OgiveError):
            troubles[key] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            told[key] = answer
    return told, troubles


def reason(error: OgiveError) -> str:
    """Return the reason of *error*, for a page that names the broker already."""
    if not isinstance(error, BrokerError) or not error.remark:
        return str(error)
    return f"{error.remark} (code {error.code})" if error.address else error.remark
