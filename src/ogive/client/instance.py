"""Client of a cluster: connections, routes, heartbeats.

Source: MQClientInstance.java, 5.3.

Behaviour
- Nothing touches the network before the first call that needs it. A call waits for an unreachable
  name server or broker within its time budget, and the next one finds it again: a client never
  needs a restart.
- Routes of all topics in use are read again every 30 s, see ``route_cache.py``; what brokers ask is
  answered in ``broker_requests.py``.
- Heartbeats go to every broker of these routes every 30 s, when ``heartbeat_now`` is called, and
  when a connection is made again. A group is left only when the heartbeat under way that names it
  has been answered. The periodic ones may be short, see ``heartbeats.py``.

Differs from Java
- One instance per producer or consumer unless they are given a common one; its client id holds 64
  random bits.
- A name-server call tries the other servers within its own time.
- A background task that ends with an unexpected error stops the client: it is logged, every later
  call says so, and the connections are closed, so that brokers give its queues to others.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar

from ogive.client import rpc
from ogive.client.broker_requests import BrokerRequests, RegisteredConsumer
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, tls_context
from ogive.client.heartbeats import Heartbeats
from ogive.client.ids import make_client_id
from ogive.client.metrics import ClientMetrics
from ogive.client.namespace import Namespace
from ogive.client.route_cache import NameServers, RouteCache
from ogive.client.routes import MASTER_ID
from ogive.errors import (
    GroupNotExist,
    IllegalStateError,
    InvalidOption,
    MessageIllegal,
    NoPermission,
    OgiveError,
    SubscriptionInvalid,
)
from ogive.transport.event_loop import every
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.bodies.routes import check_brokers

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S: Final = 1.0

REFUSALS: Final = (GroupNotExist, MessageIllegal, NoPermission, SubscriptionInvalid)
"""Answers to a heartbeat that stay the same until the client, or a rule of the broker, changes."""

T = TypeVar("T")


class OnlyAsyncWith:
    """Base class of objects for asyncio: ``with`` raises TypeError with advice. Type checkers
    refuse it by themselves.
    """

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is for asyncio and takes `async with`; the one that "
                "blocks is in ogive, not ogive.aio"
            )

        def __exit__(self, *_: object) -> NoReturn:
            self.__enter__()


class StartedByWith(OnlyAsyncWith, ABC):
    """Base class of objects that ``async with`` starts and closes."""

    @abstractmethod
    async def start(self) -> object:
        """Begin; called at the start of the block."""

    @abstractmethod
    async def close(self) -> None:
        """End, however the block is left."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class ClientInstance(StartedByWith):
    """``async with ClientInstance(config) as client``, or ``start()`` and ``close()``.

    Used on one event loop only. *proxying*: other programs name the topics, see ``route_cache.py``.
    """

    def __init__(self, config: ClientConfig | None = None, *, proxying: bool = False) -> None:
        self.config = config or ClientConfig()
        self.client_id = make_client_id(self.config.instance_name)
        self.metrics = ClientMetrics(self.client_id)
        self.namespace = Namespace(self.config.namespace or "")
        self.name_servers = NameServers(self.config.name_servers, self.config.name_server_source)
        self._consumers: dict[str, RegisteredConsumer] = {}
        self.requests = BrokerRequests(self._consumers)
        self.pool = ConnectionPool(
            connect_timeout_s=self.config.connect_timeout_s,
            ssl=tls_context(self.config.ssl),
            on_request=self.requests.on_request,
            credentials=self.config.credentials,
            request_fields=self.config.request_fields,
            on_open=self._on_open,
        )
        self._heartbeats = Heartbeats(self.pool)
        self.routes = RouteCache(
            self.name_servers,
            self.ask_name_server,
            self.config.request_timeout_s,
            proxying=proxying,
        )
        self.routes.on_change.append(self._wake_readers)
        self.on_failure: list[Callable[[BaseException], None]] = []
        self.failure: BaseException | None = None
        self._producer_groups: Counter[str] = Counter()
        # as in routes.brokers; all there are, once somebody wants to meet them
        self._cluster: dict[str, dict[int, str]] = {}
        # by address of the broker
        self._turns: dict[str, asyncio.Lock] = {}
        # Those that have not left yet, by address.
        self._full_beats: dict[str, _FullBeat] = {}
        self._unreachable: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        # after a failure
        self._leaving: asyncio.Task[None] | None = None
        self._state = "new"
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the periodic jobs. Sends nothing yet."""
        if self._state != "new":
            raise IllegalStateError(f"client {self.client_id} was started before; make a new one")
        self._state = "running"
        self._loop = asyncio.get_running_loop()
        self.metrics.show()
        config = self.config
        self.spawn(
            every(
                config.route_period_s,
                self._refresh_routes,
                name="routes",
                first_after_s=config.route_period_s,
            ),
            "routes",
        )
        if config.name_server_source is not None:
            period = config.name_server_period_s
            self.spawn(
                every(period, self.name_servers.find, name="name servers", first_after_s=period),
                "name servers",
            )
        self.spawn(
            every(
                config.heartbeat_period_s,
                self._beat_all,
                name="heartbeat",
                first_after_s=config.heartbeat_period_s,
            ),
            "heartbeat",
        )

    async def close(self) -> None:
        """Tell the brokers, stop the jobs, close the connections. Does nothing when repeated."""
        if self._state != "running":
            self._state = "closed"
            return
        self._state = "closed"
        self.metrics.hide()
        try:
            await asyncio.gather(
                *(self._unregister(producer_group=group) for group in self._producer_groups),
                *(self._unregister(consumer_group=group) for group in self._consumers),
            )
        finally:
            # a cancelled close only leaves out the farewell
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(
                *tasks, self.routes.close(), self.requests.close(), return_exceptions=True
            )
            await self.pool.close()
            if self._leaving is not None:
                await self._leaving

    @property
    def running(self) -> bool:
        return self._state == "running" and self.failure is None

    def check_running(self) -> None:
        """Raise IllegalStateError unless the client is started, not closed, and has not failed."""
        if self.failure is not None:
            raise IllegalStateError(
                f"client {self.client_id} stopped after an unexpected error: {self.failure!r}"
            ) from self.failure
        if self._state != "running":
            advice = (
                "start it, or use it in an `async with` block"
                if self._state == "new"
                else "make a new one"
            )
            raise IllegalStateError(
                f"client {self.client_id} is "
                f"{'not started' if self._state == 'new' else 'closed'}: {advice}"
            )

    def check_loop(self) -> None:
        """Raise IllegalStateError on another event loop than that of ``start``.

        The jobs of the client run on that one: a call from another would wait for them for ever,
        or run beside them on another thread.
        """
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise IllegalStateError(
                f"client {self.client_id} was started on another event loop: objects of ogive.aio "
                "belong to one loop. Make a new one on this loop, or use those of ogive, which may "
                "be called from anywhere"
            )

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run background work until it ends or the client closes.

        Work that ends with an error stops the client, loudly.
        """
        task = asyncio.create_task(work, name=f"{name} {self.client_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.critical(
            "client %s stops because its task %r failed",
            self.client_id,
            task.get_name(),
            exc_info=error,
        )
        if self.failure is None:
            self.failure = error
            for callback in list(self.on_failure):
                callback(error)
            if self._state == "running":
                self._leaving = asyncio.create_task(self._leave(), name=f"leave {self.client_id}")

    async def _leave(self) -> None:
        """Stop a client that has failed: half of it would keep queues from others who could consume
        them.
        """
        for task in list(self._tasks):
            task.cancel()
        await self.pool.close()

    # --- name servers and routes ------------------------------------------------------------------

    async def ask_name_server(
        self,
        rpc: Callable[..., Awaitable[T]],
        *arguments: object,
        timeout_s: float | None = None,
        doubted: bool = False,
    ) -> T:
        """Return the result of a coroutine of ``rpc``, called with pool, address and *arguments*,
        from any name server. Raises NoNameServer.

        *doubted*: see ``NameServers.ask``.
        """
        self.check_running()
        budget = self.config.request_timeout_s if timeout_s is None else timeout_s
        return await self.name_servers.ask(
            lambda address, left: rpc(self.pool, address, *arguments, timeout_s=left),
            budget,
            doubted=doubted,
        )

    async def _refresh_routes(self) -> None:
        """Refresh every topic in use, then close connections to brokers that are in no route any
        more. A periodic job.
        """
        await self.routes.refresh_all()
        wanted = {
            address
            for addresses in self._known_brokers().values()
            for address in addresses.values()
        }
        wanted.update(self.name_servers.addresses)
        for address in self.pool.addresses():
            connection = self.pool.existing(address)
            if address not in wanted and connection is not None and connection.calls_in_flight == 0:
                log.info("broker %s is no longer in any route: closed its connection", address)
                connection.close()
        self._turns = {
            address: turn
            for address, turn in self._turns.items()
            if address in wanted or turn.locked()
        }
        self._heartbeats.forget_all_but(wanted)

    def _wake_readers(self, topic: str) -> None:
        """Let the consumers of a topic rebalance, because its route has changed."""
        for consumer in self._consumers.values():
            if any(
                subscription.topic == topic
                for subscription in consumer.consumer_data().subscriptions
            ):
                consumer.on_consumer_ids_changed()

    # --- groups and heartbeats --------------------------------------------------------------------

    def register_producer(self, group: str) -> None:
        """Make heartbeats name *group*; several producers of one client may share it."""
        self._producer_groups[group] += 1

    async def unregister_producer(self, group: str) -> None:
        self._producer_groups[group] -= 1
        if self._producer_groups[group] <= 0:
            del self._producer_groups[group]
            await self._unregister(producer_group=group)

    def register_consumer(self, consumer: RegisteredConsumer) -> None:
        """Make heartbeats carry the consumer's subscriptions.

        Raises IllegalStateError where the client has a member of the group.
        """
        if consumer.group in self._consumers:
            raise IllegalStateError(
                f'client {self.client_id} has a consumer of group "{consumer.group}" already'
            )
        self._consumers[consumer.group] = consumer

    async def unregister_consumer(self, consumer: RegisteredConsumer) -> None:
        """Forget the consumer and tell the brokers, so that others take over at once.

        Does nothing if another one represents its group.
        """
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            self.metrics.groups.pop(consumer.group, None)
            await self._unregister(consumer_group=consumer.group)

    def consumer(self, group: str) -> RegisteredConsumer | None:
        """Return the member of *group* in this client."""
        return self._consumers.get(group)

    async def heartbeat_now(self) -> int:
        """Send a heartbeat to every known broker. Return the number that answered.

        Failures are logged, and made good by the next one.
        """
        return (await self._beat_everywhere()).count(True)

    async def announce(self) -> None:
        """Send a heartbeat as ``heartbeat_now``, and raise the BrokerError of a broker that refuses
        it for what it says.

        Brokers that are away, busy or failing are ignored: the next heartbeat reaches them. A
        heartbeat that is refused once is refused each time, and ends all groups of the client
        there.
        """
        for answer in await self._beat_everywhere():
            if isinstance(answer, REFUSALS):
                raise answer

    async def _beat_everywhere(self) -> list[bool | OgiveError]:
        self.check_running()
        if not (self._producer_groups or self._consumers):
            return []
        return await asyncio.gather(*map(self._beat_fully, self.heartbeat_addresses()))

    async def _beat_fully(self, address: str) -> bool | OgiveError:
        """Send a full heartbeat. All callers before it leaves share it: a client may have a
        thousand groups.
        """
        beat = self._full_beats.get(address)
        if beat is None:
            task = self.spawn(self._beat(address, full=True), f"full heartbeat to {address}")
            beat = self._full_beats[address] = _FullBeat(task)
        beat.waiting += 1
        try:
            # Not awaited itself: the end of the client cancels it, which is no cancellation of the
            # caller.
            await asyncio.wait((beat.task,))
        finally:
            beat.waiting -= 1
            if not beat.waiting:
                # It may name a member that gave up its start.
                beat.task.cancel()
                if self._full_beats.get(address) is beat:
                    del self._full_beats[address]
        return not beat.task.cancelled() and beat.task.result()

    async def _beat_all(self) -> None:
        """Send heartbeats without waiting: a broker that does not answer must not delay the
        others.
        """
        if self._producer_groups or self._consumers:
            for address in self.heartbeat_addresses():
                self._beat_soon(address)

    def _beat_soon(self, address: str) -> None:
        turn = self._turns.get(address)
        # else one is under way
        if turn is None or not turn.locked():
            self.spawn(self._beat(address, full=False), f"heartbeat to {address}")

    def _heartbeat_data(self) -> HeartbeatData:
        consumers = tuple(consumer.consumer_data() for consumer in self._consumers.values())
        return HeartbeatData(
            client_id=self.client_id, producers=tuple(self._producer_groups), consumers=consumers
        )

    async def meet_all_brokers(self) -> None:
        """Send heartbeats to every broker of the cluster from now on, also to those without a topic
        in use: one may have a question for us.
        """
        info = await self.ask_name_server(rpc.get_cluster_info)
        check_brokers(info.brokers.values())
        self._cluster = {name: dict(broker.addresses) for name, broker in info.brokers.items()}
        await self.heartbeat_now()

    def _known_brokers(self) -> dict[str, dict[int, str]]:
        return self._cluster | self.routes.brokers

    @property
    def is_connected(self) -> bool:
        """True while a broker of the topics in use is known and answers heartbeats."""
        return not self._unreachable.issuperset(self.heartbeat_addresses())

    def heartbeat_addresses(self) -> list[str]:
        """Return the addresses of masters, and with consumers of slaves as well."""
        brokers = self._known_brokers().values()
        if self._consumers:
            return [address for addresses in brokers for address in addresses.values()]
        return [addresses[MASTER_ID] for addresses in brokers if MASTER_ID in addresses]

    async def _beat(self, address: str, *, full: bool) -> bool | OgiveError:
        """Send a heartbeat.

        Return True if the broker has accepted it, the error if not, and False if there was nothing
        to send.
        """
        try:
            async with self._turn(address):
                if full:
                    self._full_beats.pop(address, None)
                # in our turn: what was unregistered while we waited is not named again
                data = self._heartbeat_data()
                if self._state != "running" or not (data.producers or data.consumers):
                    return False
                await self._heartbeats.tell(
                    address, data, full=full, timeout_s=self.config.request_timeout_s
                )
        except OgiveError as exc:
            # once per outage
            level = logging.DEBUG if address in self._unreachable else logging.WARNING
            self._unreachable.add(address)
            log.log(level, "heartbeat of %s: %s", self.client_id, exc)
            return exc
        if address in self._unreachable:
            self._unreachable.discard(address)
            log.info("broker %s is back", address)
        return True

    def _on_open(self, address: str) -> None:
        """Send a heartbeat at once on a new connection: a restarted broker knows no client, and a
        consumer's next rebalance asks it for the members.
        """
        if self.running and address in self.heartbeat_addresses():
            self._beat_soon(address)

    @asynccontextmanager
    async def _turn(self, address: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """Enter one change of our membership at a time at a broker, which may process two in the
        wrong order.

        After *patience_s* it is said anyway.
        """
        turn = self._turns.setdefault(address, asyncio.Lock())
        got = False
        try:
            try:
                async with asyncio.timeout(patience_s):
                    got = await turn.acquire()
            except TimeoutError:
                log.debug("broker %s has not answered a heartbeat yet", address)
            yield
        finally:
            if got:
                turn.release()

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister at brokers with an open connection: any other forgets us by itself."""
        addresses = [
            address
            for address in self.heartbeat_addresses()
            if self.pool.existing(address) is not None
        ]
        await asyncio.gather(
            *(self._unregister_at(address, producer_group, consumer_group) for address in addresses)
        )

    async def _unregister_at(
        self, address: str, producer_group: str | None, consumer_group: str | None
    ) -> None:
        try:
            async with self._turn(address, UNREGISTER_TIMEOUT_S):
                await rpc.unregister(
                    self.pool,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout_s=UNREGISTER_TIMEOUT_S,
                )
        except OgiveError as exc:
            log.debug("unregister at %s: %s", address, exc)


@dataclass(slots=True, eq=False)
class _FullBeat:
    """Heartbeat, and the number of callers that wait for it."""

    task: asyncio.Task[bool | OgiveError]
    waiting: int = 0


class ClientOwner:
    """Client of one *user* (a producer, say): its own, which starts and closes with it, or a shared
    one, which it leaves alone.
    """

    def __init__(
        self, user: str, name_server: str, client: ClientConfig | ClientInstance | None
    ) -> None:
        """Own a new client, or use a shared one. *client*: a running client to share, or the
        settings of an own one (instead of *name_server*). Raises InvalidOption for both.
        """
        if not isinstance(client, ClientConfig | ClientInstance | None):
            raise TypeError(f"client must be an ogive.ClientConfig, not {type(client).__name__}")
        if client is not None and name_server != DEFAULT_NAME_SERVER:
            raise InvalidOption(
                f"name server {name_server!r} is given beside client=, which has one itself: "
                "ClientConfig(name_server=...)"
            )
        self._user = user
        self._shared = client if isinstance(client, ClientInstance) else None
        self._config = (
            client if isinstance(client, ClientConfig) else ClientConfig(name_server=name_server)
        )
        self._client: ClientInstance | None = None

    @property
    def started(self) -> bool:
        return self._client is not None

    @property
    def namespace(self) -> Namespace:
        return (
            self._shared.namespace
            if self._shared is not None
            else Namespace(self._config.namespace or "")
        )

    @property
    def client(self) -> ClientInstance:
        """Client to use. Raises IllegalStateError before the start."""
        if self._client is None:
            raise IllegalStateError(
                f"the {self._user} is not started: start it, or use it in an `async with` block"
            )
        return self._client

    async def start(self) -> ClientInstance:
        """Start the own client. Raises IllegalStateError the second time."""
        if self._client is not None:
            raise IllegalStateError(f"this {self._user} was started before; make a new one")
        self._client = self._shared or ClientInstance(self._config)
        if self._shared is None:
            await self._client.start()
        return self._client

    async def close(self) -> None:
        """Close the own client. Does nothing when repeated."""
        if self._client is not None and self._shared is None:
            await self._client.close()
