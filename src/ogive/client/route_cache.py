"""Routes of the topics in use, as the name servers reported them last; requests to these.

Source: MQClientInstance.java updateTopicRouteInfoFromNameServer, 5.3.

Behaviour
- A topic is in use from the first question about it on, also while there is no answer. A topic that
  vanished from the name server keeps its last route: a name server that has just restarted knows no
  topic yet.
- In a proxy other programs name the topics. So a topic without a route is forgotten at once, and a
  route that nobody has asked for lately when it would be read again.
- Callers of one topic share one question. Neither a timeout nor a cancellation of one ends it for
  the others.
"""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from ogive.client import rpc
from ogive.client.config import parse_name_servers
from ogive.client.routes import (
    MASTER_ID,
    NotWritable,
    broker_addresses,
    publish_queues,
    similar_topics,
    subscribe_queues,
)
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    IllegalStateError,
    InvalidOption,
    NoNameServer,
    NoPermission,
    NoRoute,
    NotANameServer,
    OgiveError,
    ProtocolError,
    ServiceNotAvailable,
    TopicNotExist,
    TransportError,
)
from ogive.model import MessageQueue
from ogive.wire.bodies.json_fields import PERM_WRITE
from ogive.wire.bodies.routes import TopicRouteData

T = TypeVar("T")

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 3.0
MAX_LIST_BYTES: Final = 64 * 1024
_LIST: Final = re.compile(r"[A-Za-z0-9._:;\[\] -]*")
FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0
LEAST_TRY_S: Final = 0.02
"""A try that fails in less time says nothing about the server."""
# others may do better
_PASSING: Final = (
    NotANameServer,
    BrokerBusy,
    BrokerInternalError,
    ServiceNotAvailable,
    ProtocolError,
)


class NameServers:
    """Name servers of one cluster. Requests stay with the one that answered last.

    When it does not answer, the others get their share of the call's time budget, and all of them
    are tried again until the budget is used up: a name server that is just starting is waited for.

    With *source*, the URL of a list, the addresses come from there. Source: TopAddressing.java,
    5.3.

    With *each_once* nothing is waited for: a question goes to each server once, and a topic counts
    as missing only if none knows it. For callers that repeat their questions themselves.
    """

    def __init__(self, addresses: Sequence[str], source: str | None = None) -> None:
        self.addresses = list(addresses)
        self.each_once = False
        self._source = source
        self._preferred = 0
        # why the last server that was asked did not answer
        self.trouble = ""

    def __str__(self) -> str:
        return ";".join(self.addresses) or str(self._source)

    async def find(self, timeout_s: float = FETCH_TIMEOUT_S) -> None:
        """Fetch the list, if there is a URL to fetch it from.

        Raises NoNameServer; the addresses that are known stay then.
        """
        if self._source is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                addresses = parse_name_servers(
                    await asyncio.to_thread(_fetch, self._source, timeout_s)
                )
        except (OSError, ValueError, InvalidOption) as exc:
            reason = (
                f"no answer within {timeout_s:.1f} s" if isinstance(exc, TimeoutError) else str(exc)
            )
            raise NoNameServer(f"{self._source} gives no list of name servers: {reason}") from None
        if set(addresses) != set(self.addresses):
            log.info("name servers of %s: %s", self._source, ";".join(addresses))
            self.addresses, self._preferred = list(addresses), 0

    async def ask(
        self, call: Callable[[str, float], Awaitable[T]], timeout_s: float, *, doubted: bool = False
    ) -> T:
        """Return the result of ``call(address, timeout_s)`` from the first server that answers.

        Raises NoNameServer, and what the answer says.

        An error of a server that is busy, fails, answers nonsense or is not a name server counts
        only if no other one answers. *doubted*: the last answer of the preferred server turned out
        to be wrong or old. This question goes to another one first, and a topic counts as missing
        only if no other server knows it. Other questions still go to the preferred server, as the
        other one may be dead; if it answers, it becomes the preferred one.
        """
        passing = (*_PASSING, NoRoute, TopicNotExist) if doubted or self.each_once else _PASSING
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + timeout_s
        if not self.addresses:
            await self.find(timeout_s)
        tries, pause = 0, FIRST_PAUSE_S
        while True:
            refusal: OgiveError | None = None
            # other questions may change both while this one waits
            addresses, first = self.addresses, self._preferred + doubted
            for position in range(len(addresses)):
                left = deadline - loop.time()
                if left < LEAST_TRY_S and tries:
                    break
                at = (first + position) % len(addresses)
                tries += 1
                try:
                    result = await call(addresses[at], left / (len(addresses) - position))
                except TransportError as exc:
                    self.trouble = str(exc)
                    continue
                except passing as exc:
                    refusal = exc
                    continue
                if addresses is self.addresses:
                    self._preferred = at
                self.trouble = ""
                return result
            if refusal is not None:
                raise refusal
            left = deadline - loop.time()
            if left < FIRST_PAUSE_S or self.each_once:
                times = "once" if tries == 1 else f"{tries} times"
                waited = loop.time() - started
                raise NoNameServer(
                    f"no name server answered at {self} within {waited:.1f} s; tried {times}, at "
                    f"last: {self.trouble}"
                )
            await asyncio.sleep(min(pause, left - FIRST_PAUSE_S / 2))
            pause = min(2 * pause, MAX_PAUSE_S)


def _fetch(url: str, timeout_s: float) -> str:
    """Return the text behind the URL. Raises OSError, ValueError."""
    # here, because they cost more to import than all the rest of the client
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        # it begins with http:// or https://
        with urlopen(url, timeout=timeout_s) as answer:  # noqa: S310
            text: str = answer.read(MAX_LIST_BYTES).decode("ascii", "replace").strip()
    except HTTPError as exc:
        exc.close()
        raise
    if not _LIST.fullmatch(text):
        raise ValueError(f"host:port;host:port is expected, and {text[:60]!r} came")
    return text


# routes held; the one that has gone longest without an answer goes first
MAX_TOPICS: Final = 10_000
ADVICE_TIMEOUT_S: Final = 1.0
UNUSED_S: Final = 120.0
"""Time since its last use after which a proxy forgets a route."""


class AskNameServer(Protocol):
    """Protocol of ``ClientInstance.ask_name_server``."""

    async def __call__(
        self,
        rpc: Callable[..., Awaitable[T]],
        *arguments: object,
        timeout_s: float | None = None,
        doubted: bool = False,
    ) -> T: ...


class RouteCache:
    """Routes of one client. *timeout_s* is the time of a question whose caller sets none."""

    def __init__(
        self,
        name_servers: NameServers,
        ask: AskNameServer,
        timeout_s: float,
        *,
        proxying: bool = False,
    ) -> None:
        self._name_servers = name_servers
        self._ask = ask
        self._timeout_s = timeout_s
        self._proxying = proxying
        # a refusal is a warning in the server's log, so this client asks once
        self._may_list_topics = not proxying
        # topics in use, the latest answer last; None: not known yet
        self._routes: dict[str, TopicRouteData | None] = {}
        # loop time of the latest answer, by topic; -inf: in doubt
        self._answered_s: dict[str, float] = {}
        # loop time of the latest `find`, by topic
        self._used_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[TopicRouteData]] = {}
        # name -> id -> address, of all routes
        self.brokers: dict[str, dict[int, str]] = {}
        # called with the topic
        self.on_change: list[Callable[[str], None]] = []

    # --- routes -----------------------------------------------------------------------------------

    async def find(
        self, topic: str, *, timeout_s: float | None = None, max_age_s: float = math.inf
    ) -> TopicRouteData:
        """Return the route of *topic*, known or queried. Raises NoRoute, NoNameServer.

        A route of *max_age_s*, or in doubt, is queried again; the known one is returned if no name
        server has one now.
        """
        now = self._used_s[topic] = asyncio.get_running_loop().time()
        known = self._routes.get(topic)
        if known is None:
            return await self.refresh(topic, timeout_s=timeout_s)
        age_s = now - self._answered_s[topic]
        if age_s >= max_age_s:
            try:
                return await self.refresh(topic, timeout_s=timeout_s, doubted=age_s == math.inf)
            except (NoNameServer, NoRoute) as exc:
                # a name server or broker that restarts: the addresses are likely still right
                log.debug("route of %s: %s", topic, exc)
        return known

    def doubt(self, topic: str) -> None:
        """Have the next ``find`` query the route of *topic* again: a call to one of its brokers has
        failed.
        """
        if topic in self._answered_s:
            self._answered_s[topic] = -math.inf

    def doubt_broker(self, broker_name: str) -> None:
        """Doubt all routes that name this broker."""
        for topic, route in self._routes.items():
            if route is not None and any(
                broker.broker_name == broker_name for broker in route.brokers
            ):
                self.doubt(topic)

    def known(self, topic: str) -> TopicRouteData | None:
        """Return the route in the table, if the topic is in use and its route is known."""
        return self._routes.get(topic)

    async def refresh(
        self, topic: str, *, timeout_s: float | None = None, doubted: bool = False
    ) -> TopicRouteData:
        """Ask a name server now.

        Raises NoRoute, NoNameServer, and IllegalStateError where the client does not run.

        *doubted*: a broker is not where the route says. If there are several name servers another
        one is asked first: the last may have an old route, which it keeps for two minutes when the
        broker has moved and cannot reach it.
        """
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(
                self._fetch(topic, doubted), name=f"route {topic}"
            )
            task.add_done_callback(self._fetched(topic))
        budget = self._timeout_s if timeout_s is None else timeout_s
        await asyncio.wait([task], timeout=budget)
        if not task.done():
            reason = f": {self._name_servers.trouble}" if self._name_servers.trouble else ""
            raise NoNameServer(
                f"no name server answered at {self._name_servers} within {budget:.1f} s{reason}"
            )
        if task.cancelled():
            raise IllegalStateError(
                f"the client was closed while it asked for the route of {topic}"
            )
        return task.result()

    async def refresh_all(self) -> None:
        """Ask for every topic in use; what is wrong with one is logged. Raises NoNameServer."""
        if self._proxying:
            self._forget_unused()
        for topic in list(self._routes):
            try:
                await self.refresh(topic)
            except NoNameServer:
                raise
            except OgiveError as exc:
                log.log(
                    logging.DEBUG if isinstance(exc, NoRoute) else logging.WARNING,
                    "route of %s: %s",
                    topic,
                    exc,
                )

    async def close(self) -> None:
        """End the questions; who waits for one gets IllegalStateError."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _fetched(self, topic: str) -> Callable[[asyncio.Task[TopicRouteData]], None]:
        def done(task: asyncio.Task[TopicRouteData]) -> None:
            del self._asking[topic]
            if not task.cancelled():
                # perhaps nobody waits for it any more
                task.exception()

        return done

    def _forget(self, topic: str) -> None:
        for table in (self._routes, self._answered_s, self._used_s):
            table.pop(topic, None)

    def _forget_unused(self) -> None:
        limit_s = asyncio.get_running_loop().time() - UNUSED_S
        for topic in list(self._routes):
            if self._used_s.get(topic, -math.inf) <= limit_s:
                self._forget(topic)
        self._index_brokers()

    def _index_brokers(self) -> None:
        self.brokers = broker_addresses(
            route for route in self._routes.values() if route is not None
        )

    async def _fetch(self, topic: str, doubted: bool) -> TopicRouteData:
        while len(self._routes) >= MAX_TOPICS and topic not in self._routes:
            self._forget(next(iter(self._routes)))
        known = self._routes.setdefault(topic, None)
        try:
            route = await self._ask(rpc.get_route, topic, doubted=doubted)
        except OgiveError as exc:
            if self._proxying and known is None:
                self._forget(topic)
            if not isinstance(exc, TopicNotExist):
                raise
            raise await self._no_route(topic) from None
        self._routes.pop(topic, None)
        # behind all others: where routes disagree about a broker's address, the latest answer is
        # right
        self._routes[topic] = route
        self._answered_s[topic] = asyncio.get_running_loop().time()
        if route != known:
            self._index_brokers()
            if known is not None:
                log.info(
                    "route of %s changed: %s",
                    topic,
                    ", ".join(
                        f"{row.write_queues} queues on {row.broker_name}" for row in route.queues
                    ),
                )
            for callback in self.on_change:
                callback(topic)
        return route

    async def _no_route(self, topic: str) -> NoRoute:
        text = f'topic "{topic}" has no route on {self._name_servers}.'
        if topic.startswith("%"):
            return NoRoute(text)
        known: Collection[str] = ()
        # of the programs that a proxy answers, none corrects its spelling
        if self._may_list_topics:
            # the advice is a courtesy; the error is the missing route
            try:
                known = await self._ask(rpc.topic_list, timeout_s=ADVICE_TIMEOUT_S)
            except NoPermission:
                self._may_list_topics = False
            except OgiveError:
                pass
        if topic in known:
            away = (
                "the name server knows the topic, but at present no broker that holds it "
                "(`ogive broker list` shows them)"
            )
            return NoRoute(f"{text[:-1]}: {away}.")
        similar = similar_topics(topic, known)
        hint = f" Similar topics: {', '.join(similar)}." if similar else ""
        return NoRoute(
            f"{text}{hint}",
            f"Create it with `ogive topic create {topic}`; where auto-create is on, the first "
            "message does.",
        )

    # --- queues -----------------------------------------------------------------------------------

    async def publish_queues(
        self, topic: str, *, timeout_s: float | None = None
    ) -> tuple[MessageQueue, ...]:
        """Return the queues to send to.

        Raises NoRoute, also where the topic lives but nothing may be written.
        """
        known = self._routes.get(topic)
        route = known or await self.refresh(topic, timeout_s=timeout_s)
        queues = publish_queues(topic, route)
        # its master may be back
        if not queues and known is not None:
            route = await self.refresh(topic, timeout_s=timeout_s)
            queues = publish_queues(topic, route)
        if not queues and not any(row.perm & PERM_WRITE for row in route.queues):
            raise NotWritable(
                f'topic "{topic}" may not be written to: no broker that holds it permits that '
                f"(`ogive topic show {topic}`)"
            )
        if not queues:
            raise NoRoute(
                f'topic "{topic}" has a route on {self._name_servers}, but no broker that may be '
                "written to"
            )
        return queues

    async def subscribe_queues(
        self, topic: str, *, timeout_s: float | None = None
    ) -> tuple[MessageQueue, ...]:
        """Return the queues to read, sorted. Raises NoRoute."""
        return subscribe_queues(topic, await self.find(topic, timeout_s=timeout_s))

    # --- brokers ----------------------------------------------------------------------------------

    def broker_address(self, broker_name: str) -> str:
        """Return ``ip:port`` of a master. Raises NoRoute if no route in use names it."""
        address = self.find_address(broker_name)
        if address is None:
            raise NoRoute(
                f'broker "{broker_name}" (id {MASTER_ID}) is in no route of {self._name_servers}'
            )
        return address

    def find_address(self, broker_name: str) -> str | None:
        """Return ``ip:port`` of a master, or None if no route in use names it."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def readable_broker(self, broker_name: str, preferred_id: int = MASTER_ID) -> tuple[str, int]:
        """Return address and id of the broker to read from: the preferred one, else the next slave,
        else any. Raises NoRoute.
        """
        addresses = self.brokers.get(broker_name)
        if not addresses:
            raise NoRoute(f'broker "{broker_name}" is in no route of {self._name_servers}')
        next_slave = preferred_id + 1 if preferred_id != MASTER_ID else preferred_id
        broker_id = next((i for i in (preferred_id, next_slave) if i in addresses), min(addresses))
        return addresses[broker_id], broker_id

    def group_brokers(self, route: TopicRouteData) -> list[str]:
        """Return the brokers of the topic that know its groups, in the route's order: the masters,
        or else a slave of each. Raises NoRoute.
        """
        masters = [
            broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses
        ]
        addresses = masters or [
            broker.addresses[min(broker.addresses)] for broker in route.brokers if broker.addresses
        ]
        if not addresses:
            raise NoRoute(f"the route names no broker with an address on {self._name_servers}")
        return addresses
