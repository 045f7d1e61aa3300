"""What the producers and consumers of one client share: connections, routes, heartbeats. Source: MQClientInstance.java, 5.3.

Behaviour
- Nothing touches the network before the first call that needs it; a name server or broker that is away is waited for within that call's
  time budget, and found again by the next one: no restart of a client is ever needed.
- Routes of all topics in use are read again every 30 s. A topic that vanished from the name server keeps its last route: a name server that
  has just restarted knows no topic yet.
- Heartbeats go to every broker of these routes every 30 s, when ``heartbeat_now`` is called, and when a connection is made again. A group
  is left only when the heartbeat under way that names it has been answered. The periodic ones may be short, see ``heartbeats.py``.

Differs from Java
- One instance per producer or consumer unless they are given a common one; its client id holds 64 random bits.
- A name-server call tries the other servers within its own time.
- A background task that ends with an unexpected error stops the client: it is logged, and every later call says so.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ogive.client import api
from ogive.client.config import ClientConfig, tls_context
from ogive.client.heartbeats import Heartbeats
from ogive.client.ids import make_client_id
from ogive.client.name_servers import NameServers
from ogive.client.namespace import Namespace
from ogive.client.replies import ReplyTable
from ogive.client.routes import MASTER_ID, NotWritable, broker_addresses, publish_queues, similar_topics, subscribe_queues
from ogive.client.stacks import stacks
from ogive.errors import IllegalStateError, NoNameServer, NoRoute, OgiveError, ResponseCode, TopicNotExist
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.transport.connection import Connection, refuse_requests
from ogive.transport.pool import ConnectionPool
from ogive.transport.tasks import every
from ogive.wire.bodies import PERM_WRITE, ConsumerData, HeartbeatData, TopicRouteData, check_brokers, dumps
from ogive.wire.codes import Flag, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    CheckTransactionStateRequest,
    GetConsumerRunningInfoRequest,
    NotifyConsumerIdsChangedRequest,
    decode_header,
)
from ogive.wire.message import decode_messages

log = logging.getLogger(__name__)

MAX_TOPICS: Final = 10_000  # routes held; the one that has gone longest without an answer goes first
MAX_SERVED: Final = 256  # requests of brokers that are being answered at a time
UNREGISTER_TIMEOUT_S: Final = 1.0
ADVICE_TIMEOUT_S: Final = 1.0

T = TypeVar("T")

ServerRequestHandler = Callable[[Connection, RemotingCommand], Awaitable[RemotingCommand | None]]
"""Answers one request of a broker; None is a bare SUCCESS. A one-way request gets no answer whatever the handler returns."""

TransactionCheck = Callable[[Connection, CheckTransactionStateRequest, MessageExt], None]
"""Takes a broker's question about a half message, and must not block."""


class GroupMember(Protocol):
    """A consumer as its client sees it. All methods are called on the loop and must not block."""

    @property
    def group(self) -> str: ...

    def consumer_data(self) -> ConsumerData:
        """For the heartbeat; its subscriptions name the topics whose route changes matter."""
        ...

    def on_consumer_ids_changed(self) -> None:
        """Members or queues of the group changed: rebalance soon."""
        ...

    def running_info(self) -> bytes:
        """The body that answers GET_CONSUMER_RUNNING_INFO (JSON)."""
        ...


class ClientInstance:
    """``async with ClientInstance(config) as client``, or ``start()`` and ``close()``. Used on one event loop only."""

    def __init__(self, config: ClientConfig | None = None) -> None:
        self.config = config or ClientConfig()
        self.client_id = make_client_id(self.config.instance_name)
        self.namespace = Namespace(self.config.namespace or "")
        self.name_servers = NameServers(self.config.name_servers, self.config.name_server_source)
        self.pool = ConnectionPool(
            connect_timeout_s=self.config.connect_timeout_s,
            ssl=tls_context(self.config.ssl),
            on_request=self._on_request,
            credentials=self.config.credentials,
            request_fields=self.config.request_fields,
            on_open=self._on_open,
        )
        self._heartbeats = Heartbeats(self.pool)
        self.replies = ReplyTable()
        self.broker_versions: dict[str, int] = {}  # address -> version, from its last heartbeat answer
        self.on_route_change: list[Callable[[str], None]] = []  # called with the topic
        self.on_failure: list[Callable[[BaseException], None]] = []
        self.failure: BaseException | None = None
        self._routes: dict[str, TopicRouteData | None] = {}  # topics in use, the latest answer last; None: asked for, not known yet
        self._brokers: dict[str, dict[int, str]] = {}  # name -> id -> address, of all routes
        self._refreshing: dict[str, asyncio.Task[TopicRouteData]] = {}
        self._producer_groups: Counter[str] = Counter()
        self._consumers: dict[str, GroupMember] = {}
        self._checks: dict[str, list[TransactionCheck]] = {}  # by producer group
        self._cluster: dict[str, dict[int, str]] = {}  # like _brokers; all that the name server knows, once somebody wants to meet them
        self._turns: dict[str, asyncio.Lock] = {}  # by address of the broker
        self._unreachable: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._handlers: dict[int, ServerRequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._consumer_ids_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CHECK_TRANSACTION_STATE: self._transaction_state,
        }
        self._state = "new"

    # --- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the periodic jobs. Asks nobody anything yet."""
        if self._state != "new":
            raise IllegalStateError(f"client {self.client_id} was started before; make a new one")
        self._state = "running"
        config = self.config
        self.spawn(every(config.route_period_s, self._refresh_routes, name="routes", first_after_s=config.route_period_s), "routes")
        if config.name_server_source is not None:
            period = config.name_server_period_s
            self.spawn(every(period, self.name_servers.find, name="name servers", first_after_s=period), "name servers")
        self.spawn(every(config.heartbeat_period_s, self._beat_all, name="heartbeat", first_after_s=config.heartbeat_period_s), "heartbeat")

    async def close(self) -> None:
        """Tell the brokers, stop the jobs, close the connections. Harmless when repeated."""
        if self._state != "running":
            self._state = "closed"
            return
        self._state = "closed"
        try:
            await asyncio.gather(
                *(self._unregister(producer_group=group) for group in self._producer_groups),
                *(self._unregister(consumer_group=group) for group in self._consumers),
            )
        finally:  # a cancelled close only leaves out the farewell
            tasks = [*self._tasks, *self._serving, *self._refreshing.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.pool.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    @property
    def running(self) -> bool:
        return self._state == "running" and self.failure is None

    def check_running(self) -> None:
        """Raises IllegalStateError unless started, not closed, and whole."""
        if self.failure is not None:
            raise IllegalStateError(f"client {self.client_id} stopped after an unexpected error: {self.failure!r}") from self.failure
        if self._state != "running":
            advice = "start it, or use it in an `async with` block" if self._state == "new" else "make a new one"
            raise IllegalStateError(f"client {self.client_id} is {'not started' if self._state == 'new' else 'closed'}: {advice}")

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run background work until it ends or the client closes. Work that ends with an error stops the client, loudly."""
        task = asyncio.create_task(work, name=f"{name} {self.client_id}")
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.critical("client %s stops: its task %r failed", self.client_id, task.get_name(), exc_info=error)
        if self.failure is None:
            self.failure = error
            for callback in self.on_failure:
                callback(error)

    # --- name servers and routes -------------------------------------------------------------------------------------

    async def ask_name_server(
        self, rpc: Callable[..., Awaitable[T]], *arguments: object, timeout_s: float | None = None, doubted: bool = False
    ) -> T:
        """The result of a coroutine of ``api``, called with pool, address and *arguments*, from any name server. Raises NoNameServer.

        *doubted*: see ``NameServers.ask``.
        """
        self.check_running()
        budget = self.config.request_timeout_s if timeout_s is None else timeout_s
        return await self.name_servers.ask(
            lambda address, left: rpc(self.pool, address, *arguments, timeout_s=left), budget, doubted=doubted
        )

    async def route(self, topic: str, *, timeout_s: float | None = None) -> TopicRouteData:
        """Where *topic* lives, from the cache if it is known. Raises NoRoute, NoNameServer."""
        return self._routes.get(topic) or await self.refresh_route(topic, timeout_s=timeout_s)

    async def refresh_route(self, topic: str, *, timeout_s: float | None = None, doubted: bool = False) -> TopicRouteData:
        """Ask a name server now; callers of one topic share one question. Raises NoRoute, NoNameServer.

        *doubted*: a broker is not where the route says. If there are several name servers another one is asked first: the last may have an
        old route, which it keeps for two minutes when the broker has moved and cannot reach it.
        """
        self.check_running()
        task = self._refreshing.get(topic)
        if task is None:
            task = self._refreshing[topic] = asyncio.create_task(self._fetch_route(topic, doubted), name=f"route {topic}")
            task.add_done_callback(self._route_fetched(topic))
        budget = self.config.request_timeout_s if timeout_s is None else timeout_s
        await asyncio.wait([task], timeout=budget)  # neither a timeout nor a cancellation here ends the question for the others
        if not task.done():
            reason = f": {self.name_servers.trouble}" if self.name_servers.trouble else ""
            raise NoNameServer(f"no name server answered at {self.name_servers} within {budget:.1f} s{reason}")
        if task.cancelled():
            raise IllegalStateError(f"client {self.client_id} was closed")
        return task.result()

    def _route_fetched(self, topic: str) -> Callable[[asyncio.Task[TopicRouteData]], None]:
        def done(task: asyncio.Task[TopicRouteData]) -> None:
            del self._refreshing[topic]
            if not task.cancelled():
                task.exception()  # perhaps nobody waits for it any more

        return done

    async def publish_queues(self, topic: str, *, timeout_s: float | None = None) -> tuple[MessageQueue, ...]:
        """Queues to send to. Raises NoRoute, also where the topic lives but nothing may be written."""
        route = await self.route(topic, timeout_s=timeout_s)
        queues = publish_queues(topic, route)
        if not queues and not any(row.perm & PERM_WRITE for row in route.queues):
            raise NotWritable(f'topic "{topic}" may not be written to: no broker that holds it permits that (`ogive topic show {topic}`)')
        if not queues:
            raise NoRoute(f'topic "{topic}" has a route on {self.name_servers}, but no broker that may be written to')
        return queues

    async def subscribe_queues(self, topic: str, *, timeout_s: float | None = None) -> tuple[MessageQueue, ...]:
        """Queues to read, sorted. Raises NoRoute."""
        return subscribe_queues(topic, await self.route(topic, timeout_s=timeout_s))

    def broker_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str:
        """``ip:port`` of exactly this broker. Raises NoRoute where no route in use names it."""
        address = self.find_address(broker_name, broker_id)
        if address is None:
            raise NoRoute(f'broker "{broker_name}" (id {broker_id}) stands in no route of {self.name_servers}')
        return address

    def find_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The same without raising."""
        return self._brokers.get(broker_name, {}).get(broker_id)

    def known_route(self, topic: str) -> TopicRouteData | None:
        """The route in the cache, if the topic is in use and its route is known."""
        return self._routes.get(topic)

    def readable_broker(self, broker_name: str, preferred_id: int = MASTER_ID) -> tuple[str, int]:
        """Address and id of the broker to read from: the preferred one, else the next slave, else any. Raises NoRoute."""
        addresses = self._brokers.get(broker_name)
        if not addresses:
            raise NoRoute(f'broker "{broker_name}" stands in no route of {self.name_servers}')
        next_slave = preferred_id + 1 if preferred_id != MASTER_ID else preferred_id
        broker_id = next((i for i in (preferred_id, next_slave) if i in addresses), min(addresses))
        return addresses[broker_id], broker_id

    def any_broker(self, route: TopicRouteData) -> str:
        """A broker of the topic that knows its groups: the first master, else the first slave. Raises NoRoute."""
        for broker in route.brokers:
            if MASTER_ID in broker.addresses:
                return broker.addresses[MASTER_ID]
        for broker in route.brokers:
            if broker.addresses:
                return broker.addresses[min(broker.addresses)]
        raise NoRoute(f"the route names no broker with an address on {self.name_servers}")

    async def _fetch_route(self, topic: str, doubted: bool) -> TopicRouteData:
        while len(self._routes) >= MAX_TOPICS and topic not in self._routes:
            del self._routes[next(iter(self._routes))]
        known = self._routes.setdefault(topic, None)
        try:
            route = await self.ask_name_server(api.get_route, topic, doubted=doubted)
        except TopicNotExist:
            raise NoRoute(await self._no_route_text(topic)) from None
        self._routes.pop(topic, None)
        self._routes[topic] = route  # behind all others: where routes disagree about a broker's address, the latest answer is right
        if route != known:
            self._brokers = broker_addresses(route for route in self._routes.values() if route is not None)
            if known is not None:
                log.info(
                    "route of %s changed: %s", topic, ", ".join(f"{row.write_queues} queues on {row.broker_name}" for row in route.queues)
                )
            self._tell_route_changed(topic)
        return route

    async def _no_route_text(self, topic: str) -> str:
        text = f'topic "{topic}" has no route on {self.name_servers}.'
        if topic.startswith("%"):
            return text
        try:
            known = await self.ask_name_server(api.topic_list, timeout_s=ADVICE_TIMEOUT_S)
        except OgiveError:
            known = []  # the advice is a courtesy; the error is the missing route
        if topic in known:
            return f"{text[:-1]}: the name server knows the topic, but at present no broker that holds it (`ogive broker list` shows them)."
        similar = similar_topics(topic, known)
        hint = f" Similar topics: {', '.join(similar)}." if similar else ""
        return f"{text}{hint} Create it with `ogive topic create {topic}`, or switch auto-create on at the broker."

    def _tell_route_changed(self, topic: str) -> None:
        for callback in self.on_route_change:
            callback(topic)
        for consumer in self._consumers.values():
            if any(subscription.topic == topic for subscription in consumer.consumer_data().subscriptions):
                consumer.on_consumer_ids_changed()

    async def _refresh_routes(self) -> None:
        """The periodic job: every topic in use, then the end of connections to brokers that stand in no route any more."""
        for topic in list(self._routes):
            try:
                await self.refresh_route(topic)
            except NoNameServer:
                raise
            except OgiveError as exc:
                log.log(logging.DEBUG if isinstance(exc, NoRoute) else logging.WARNING, "route of %s: %s", topic, exc)
        wanted = {address for addresses in self._known_brokers().values() for address in addresses.values()}
        wanted.update(self.name_servers.addresses)
        for address in self.pool.addresses():
            connection = self.pool.existing(address)
            if address not in wanted and connection is not None and connection.calls_in_flight == 0:
                log.info("broker %s stands in no route any more: its connection is closed", address)
                connection.close()
        self._turns = {address: turn for address, turn in self._turns.items() if address in wanted or turn.locked()}
        self._heartbeats.forget_all_but(wanted)

    # --- groups and heartbeats ---------------------------------------------------------------------------------------

    def register_producer(self, group: str) -> None:
        """Make heartbeats name *group*; several producers of one client may share it."""
        self._producer_groups[group] += 1

    async def unregister_producer(self, group: str) -> None:
        self._producer_groups[group] -= 1
        if self._producer_groups[group] <= 0:
            del self._producer_groups[group]
            await self._unregister(producer_group=group)

    def register_consumer(self, consumer: GroupMember) -> None:
        """Make heartbeats carry the consumer's subscriptions. Raises IllegalStateError where the client has a member of the group."""
        if consumer.group in self._consumers:
            raise IllegalStateError(f'client {self.client_id} has a consumer of group "{consumer.group}" already')
        self._consumers[consumer.group] = consumer

    async def unregister_consumer(self, consumer: GroupMember) -> None:
        """Forget the consumer and tell the brokers, so that the others take over at once. Nothing, if another one stands for its group."""
        if self._consumers.get(consumer.group) is consumer:
            del self._consumers[consumer.group]
            await self._unregister(consumer_group=consumer.group)

    def add_check(self, group: str, check: TransactionCheck) -> None:
        """Let *check* take the questions about half messages of the producer group; if there are several, the first one does."""
        self._checks.setdefault(group, []).append(check)

    def remove_check(self, group: str, check: TransactionCheck) -> None:
        self._checks[group].remove(check)
        if not self._checks[group]:
            del self._checks[group]

    async def heartbeat_now(self) -> int:
        """Send a heartbeat to every known broker; returns how many answered. Failures are logged, and made good by the next one."""
        self.check_running()
        if not (self._producer_groups or self._consumers):
            return 0
        return sum(await asyncio.gather(*(self._beat(address, full=True) for address in self.heartbeat_addresses())))

    async def _beat_all(self) -> None:
        """Waits for nobody: a broker that does not answer must not hold up the heartbeats of the others."""
        if self._producer_groups or self._consumers:
            for address in self.heartbeat_addresses():
                self._beat_soon(address)

    def _beat_soon(self, address: str) -> None:
        turn = self._turns.get(address)
        if turn is None or not turn.locked():  # else one is under way
            self.spawn(self._beat(address, full=False), f"heartbeat to {address}")

    def _heartbeat_data(self) -> HeartbeatData:
        consumers = tuple(consumer.consumer_data() for consumer in self._consumers.values())
        return HeartbeatData(client_id=self.client_id, producers=tuple(self._producer_groups), consumers=consumers)

    async def meet_all_brokers(self) -> None:
        """Heartbeats go to every broker of the cluster from now on, also where no topic in use lives: one may have a question for us."""
        info = await self.ask_name_server(api.get_cluster_info)
        check_brokers(info.brokers.values())
        self._cluster = {name: dict(broker.addresses) for name, broker in info.brokers.items()}
        await self.heartbeat_now()

    def _known_brokers(self) -> dict[str, dict[int, str]]:
        return self._cluster | self._brokers

    def heartbeat_addresses(self) -> list[str]:
        """Masters; slaves as well if anybody reads."""
        brokers = self._known_brokers().values()
        if self._consumers:
            return [address for addresses in brokers for address in addresses.values()]
        return [addresses[MASTER_ID] for addresses in brokers if MASTER_ID in addresses]

    async def _beat(self, address: str, *, full: bool) -> bool:
        try:
            async with self._turn(address):
                data = self._heartbeat_data()  # in our turn: what was unregistered while we waited is not named again
                if self._state != "running" or not (data.producers or data.consumers):
                    return False
                self.broker_versions[address] = await self._heartbeats.tell(
                    address, data, full=full, timeout_s=self.config.request_timeout_s
                )
        except OgiveError as exc:
            level = logging.DEBUG if address in self._unreachable else logging.WARNING  # once per outage
            self._unreachable.add(address)
            log.log(level, "heartbeat of %s: %s", self.client_id, exc)
            return False
        if address in self._unreachable:
            self._unreachable.discard(address)
            log.info("broker %s is back", address)
        return True

    def _on_open(self, address: str) -> None:
        """A broker that restarted knows nobody: tell it at once, before a consumer's next rebalance asks it who is there."""
        if self.running and address in self.heartbeat_addresses():
            self._beat_soon(address)

    @asynccontextmanager
    async def _turn(self, address: str, patience_s: float | None = None) -> AsyncIterator[None]:
        """One word to a broker about who is here at a time: it may take two the other way round. After *patience_s* it is said anyway."""
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

    async def _unregister(self, *, producer_group: str | None = None, consumer_group: str | None = None) -> None:
        """Only brokers with an open connection: one that is away forgets us by itself."""
        addresses = [address for address in self.heartbeat_addresses() if self.pool.existing(address) is not None]
        await asyncio.gather(*(self._unregister_at(address, producer_group, consumer_group) for address in addresses))

    async def _unregister_at(self, address: str, producer_group: str | None, consumer_group: str | None) -> None:
        try:
            async with self._turn(address, UNREGISTER_TIMEOUT_S):
                await api.unregister(
                    self.pool,
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                    timeout_s=UNREGISTER_TIMEOUT_S,
                )
        except OgiveError as exc:
            log.debug("unregister at %s: %s", address, exc)

    # --- requests of brokers -----------------------------------------------------------------------------------------

    def serve(self, code: int, handler: ServerRequestHandler) -> None:
        """Let *handler* answer requests of brokers with this code; any other code is answered with REQUEST_CODE_NOT_SUPPORTED."""
        self._handlers[code] = handler

    def consumer(self, group: str) -> GroupMember | None:
        """The member of *group* in this client."""
        return self._consumers.get(group)

    def consumers(self) -> Iterable[GroupMember]:
        return self._consumers.values()

    def _on_request(self, connection: Connection, command: RemotingCommand) -> None:
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            _reply(connection, command, self.replies.take(command))  # without a task: a burst of replies must not meet their limit
            return
        handler = self._handlers.get(command.code)
        if handler is None:
            refuse_requests(connection, command)
        elif len(self._serving) >= MAX_SERVED:
            _reply(connection, command, api.refusal(ResponseCode.SYSTEM_BUSY, f"{MAX_SERVED} requests are being answered already"))
        else:
            task = asyncio.create_task(self._answer(connection, command, handler), name=f"request {command.code}")
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _answer(self, connection: Connection, command: RemotingCommand, handler: ServerRequestHandler) -> None:
        try:
            reply = await handler(connection, command) or api.success()
        except OgiveError as exc:
            reply = api.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        except Exception as exc:  # a broker's odd request must not take the client down; the broker learns of it
            log.exception("request %d of %s failed", command.code, connection.remote_address)
            reply = api.refusal(ResponseCode.SYSTEM_ERROR, f"{type(exc).__name__}: {exc}")
        _reply(connection, command, reply)

    async def _consumer_ids_changed(self, _: Connection, command: RemotingCommand) -> None:
        """All groups look again, as in Java: the group that the broker names is only the likeliest."""
        log.debug("members of %s changed", decode_header(NotifyConsumerIdsChangedRequest, command.ext_fields).consumer_group)
        for consumer in list(self._consumers.values()):
            consumer.on_consumer_ids_changed()

    async def _transaction_state(self, connection: Connection, command: RemotingCommand) -> None:
        """One-way: the answer is an END_TRANSACTION of ours, later."""
        header = decode_header(CheckTransactionStateRequest, command.ext_fields)
        for message in decode_messages(command.body, header.broker_name or ""):
            group = message.properties.get(PropertyName.PRODUCER_GROUP, "")
            checks = self._checks.get(group)
            if checks:
                checks[0](connection, header, message)
            else:
                log.warning("%s asks about transaction %s, and group %s has no check here", connection.remote_address, message.id, group)

    async def _running_info(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        header = decode_header(GetConsumerRunningInfoRequest, command.ext_fields)
        consumer = self._consumers.get(header.consumer_group)
        if consumer is None:
            return api.refusal(ResponseCode.SYSTEM_ERROR, f"group {header.consumer_group} has no consumer in this client")
        body = consumer.running_info()
        if header.jstack_enable:  # the process's, not the group's: the last member of the object
            body = body[:-1] + b',"jstack":' + dumps(stacks()) + b"}"
        return api.success(body=body)


def _reply(connection: Connection, command: RemotingCommand, reply: RemotingCommand) -> None:
    if not command.is_oneway:
        reply.opaque = command.opaque
        reply.flag = Flag.RESPONSE
        connection.reply(reply)
