"""Routes of topics, and repeating calls while a broker or name server is away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from ogive.client import rpc
from ogive.client.routes import MASTER_ID, broker_addresses
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    NoNameServer,
    NoPermission,
    NoRoute,
    NotANameServer,
    OgiveError,
    ServiceNotAvailable,
    TopicNotExist,
    TransportError,
)
from ogive.model import MessageQueue
from ogive.spark.options import DEFAULT_POLL_TIMEOUT_S
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.routes import ClusterInfo, TopicRouteData

log = logging.getLogger(__name__)

T = TypeVar("T")

ROUTE_AGE_S: Final = 30.0
CALL_TIMEOUT_S: Final = 5.0
RETRY_WINDOW_S: Final = DEFAULT_POLL_TIMEOUT_S
"""Time for which one call is tried again while its broker is away.

Longer outages end the task; Spark then tries the task again.
"""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
_UNSEEN: Final = frozenset({"unseen"})
"""The brokers of a cluster that this user may not list.

Taken to be there: else a topic that does not exist would be waited for.
"""


class Retry:
    """One call that is tried again within *window_s* from now, at most *limit* times.

    Its pauses grow from FIRST_PAUSE_S to LONGEST_PAUSE_S, or are all of *pause_s*.
    """

    def __init__(
        self, window_s: float, *, limit: int | None = None, pause_s: float | None = None
    ) -> None:
        self._clock = asyncio.get_running_loop()
        self._deadline = self._clock.time() + window_s
        self._left = limit
        self._longest_s = LONGEST_PAUSE_S if pause_s is None else pause_s
        self.pause_s = FIRST_PAUSE_S if pause_s is None else pause_s

    @property
    def over(self) -> bool:
        """True if no attempt is left, or the window ends before the next pause does."""
        return self._left == 0 or self._clock.time() + self.pause_s > self._deadline

    async def pause(self) -> None:
        """Sleep until the next attempt."""
        await asyncio.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, self._longest_s)
        if self._left is not None:
            self._left -= 1


@dataclass(frozen=True, slots=True)
class Patience:
    """Rule for repeating a call while its broker is away: for *window_s*, or at most *retries*
    times, with pauses of *pause_s* or growing.

    *settled*: the name servers have answered before, perhaps another process, so that their silence
    is temporary; otherwise the address is probably wrong, which is reported at once. For all calls
    of a process: `Routes.settled`. *doubtful*: the broker of a topic without route may be away,
    although the name servers know others. *known*: the topic was there, so a broker that does not
    have it is behind.
    """

    window_s: float = RETRY_WINDOW_S
    retries: int | None = None
    pause_s: float | None = None
    settled: bool = False
    doubtful: bool = False
    known: bool = False

    async def insist(
        self,
        call: Callable[[], Awaitable[T]],
        forget: Callable[[], None],
        settled: Callable[[], bool] = lambda: False,
    ) -> T:
        """Repeat *call* while its failure may pass, each time after *forget*, which expires the
        route.
        """
        retry = Retry(self.window_s, limit=self.retries, pause_s=self.pause_s)
        while True:
            try:
                return await call()
            except OgiveError as exc:
                if retry.over or not self.waits_for(exc, settled=settled()):
                    raise
                log.warning("trying again in %.2f s: %s", retry.pause_s, exc)
            await retry.pause()
            forget()

    def waits_for(self, failure: OgiveError, *, settled: bool = False) -> bool:
        if isinstance(failure, NoNameServer):
            return (self.settled or settled) and not isinstance(failure, NotANameServer)
        return (
            isinstance(failure, PASSING)
            or (self.doubtful and isinstance(failure, NoRoute))
            or (self.known and isinstance(failure, TopicNotExist))
        )


USUAL: Final = Patience()
DOUBTFUL: Final = Patience(doubtful=True)


class BrokerAway(NoRoute):
    """Error for something that may come back with its broker: a route without the broker of a
    queue, or name servers that know no broker at all.
    """


PASSING: Final = (TransportError, BrokerBusy, BrokerInternalError, ServiceNotAvailable, BrokerAway)


class Routes:
    """The routes in use, each at most ROUTE_AGE_S old. Belongs to one event loop."""

    def __init__(self, pool: ConnectionPool, name_servers: tuple[str, ...]) -> None:
        self.name_servers = name_servers
        self._pool = pool
        self._known: dict[str, tuple[TopicRouteData, float]] = {}
        self.settled = False
        """The name servers have answered before: every call waits while they are silent."""

    async def address(self, queue: MessageQueue) -> str:
        """Return the address from which to read *queue*. Raises BrokerAway."""
        addresses = broker_addresses((await self.route(queue.topic),)).get(queue.broker_name)
        if addresses is None:
            self.expire(queue.topic)
            raise BrokerAway(f"queue {queue} has no broker in the route of its topic")
        return reading_address(addresses)

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of *topic*, at most ROUTE_AGE_S old."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(topic)
        if known is not None and now - known[1] < ROUTE_AGE_S:
            return known[0]
        try:
            route = await self._ask_name_servers(topic)
        except (NoNameServer, NoRoute):
            if known is None:
                raise
            # a name server or broker that restarts: the addresses are likely still right
            return known[0]
        self._known[topic] = (route, now)
        return route

    def expire(self, topic: str) -> None:
        """Fetch the route of *topic* again at its next use; the known one stays in case nobody
        answers.
        """
        known = self._known.get(topic)
        if known is not None:
            self._known[topic] = (known[0], -ROUTE_AGE_S)

    async def _ask_name_servers(self, topic: str) -> TopicRouteData:
        """Ask all name servers before a topic counts as missing: one that restarts learns of its
        brokers again in 30 s.
        """

        async def ask(address: str) -> TopicRouteData | Set[str]:
            """The route, or if there is none, the names of the known brokers."""
            try:
                return await rpc.get_route(self._pool, address, topic, timeout_s=CALL_TIMEOUT_S)
            except TopicNotExist:
                pass
            try:
                return (
                    await rpc.get_cluster_info(self._pool, address, timeout_s=CALL_TIMEOUT_S)
                ).brokers.keys()
            except NoPermission:
                return _UNSEEN

        without: list[str] = []
        brokers: set[str] = set()
        silent: list[str] = []
        for address in self.name_servers:
            try:
                answer = await ask(address)
            except TransportError as exc:
                silent.append(str(exc))
                continue
            if isinstance(answer, TopicRouteData):
                return answer
            without.append(address)
            brokers |= answer
        if not without:
            raise NoNameServer("; ".join(silent))
        place = f"topic {topic!r} has no route on {', '.join(without)}"
        if not brokers:
            raise BrokerAway(f"{place}: no broker is known there")
        raise NoRoute(f"{place}: it does not exist, or its broker is down")

    async def cluster_info(self) -> ClusterInfo:
        """Return the brokers that the first name server knows. Raises NoNameServer."""
        return await self.ask_one(
            lambda address: rpc.get_cluster_info(self._pool, address, timeout_s=CALL_TIMEOUT_S)
        )

    async def ask_one(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """Return the answer of the first name server that gives one. Raises NoNameServer."""
        failures: list[str] = []
        for address in self.name_servers:
            try:
                return await ask(address)
            except TransportError as exc:
                failures.append(str(exc))
        raise NoNameServer("; ".join(failures))

    async def insist(
        self, topic: str, call: Callable[[], Awaitable[T]], patience: Patience = USUAL
    ) -> T:
        """Repeat *call* while its failure may pass."""
        return await patience.insist(call, lambda: self.expire(topic), lambda: self.settled)


def reading_address(addresses: Mapping[int, str]) -> str:
    """Return the master's address, or the first slave's while there is no master."""
    return addresses.get(MASTER_ID) or addresses[min(addresses)]
