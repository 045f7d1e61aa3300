"""Backend of the gRPC service for a cluster of ogive's or Apache's brokers, over remoting.

Source: ClusterMessageService.java, ClusterMetadataService.java, ClusterTransactionService.java,
5.5.

Behaviour
- Each client has connections of its own to the brokers that it uses. So brokers treat it as a
  remoting client: they list it, ask it about transactions, and forget it when it disconnects.
- With credentials every client is a user of the cluster. Users and rules are read from a broker.
  Each request is signed with the credentials of the client's user, and the brokers check it, too.
- ogive's brokers list no passwords: they compare the signatures of clients themselves, and the
  super user of the proxy signs on behalf of the client's user.
- Messages that a broker delivers to a cancelled receive become visible again.

Differs from Apache's proxy
- A user's rules with source addresses must allow the proxy's address, because the brokers see it.
- Proxies do not exchange lists of their clients, because the brokers have these lists.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar

from ogive.access.guard import NOBODY_KNOWN, Guard
from ogive.access.policy import AccessRefused
from ogive.access.user_table import AccessTable
from ogive.broker.state.topic_table import MESSAGE_TYPE
from ogive.client import rpc
from ogive.client.broker_requests import BrokerRequests
from ogive.client.config import ClientConfig, tls_context
from ogive.client.instance import ClientInstance
from ogive.client.routes import MASTER_ID
from ogive.client.rpc import PopAnswer
from ogive.errors import (
    ConnectError,
    GroupNotExist,
    InvalidOption,
    NoRoute,
    NotSupported,
    OgiveError,
    RequestTimeout,
    ResponseCode,
    TooManyRequests,
    TopicNotExist,
    TransportError,
)
from ogive.proxy.backend import Ack, ClientIdentity, LatePops, OnNotice, OnRequest, Releases
from ogive.transport.connection import Connection
from ogive.transport.event_loop import every
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.acls import ENABLED
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.routes import QueueData, TopicRouteData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header
from ogive.wire.headers.pull import PopMessageRequest
from ogive.wire.signing import ACCESS_KEY, Credentials

log = logging.getLogger(__name__)

RECENT_S: Final = 10.0
"""Age at which settings of topics, groups and users are read again."""
MAX_RECENT: Final = 10_000
"""Limit of answers that one table keeps."""
DOUBTED_AGAIN_S: Final = 1.0
"""Pause between two reads of the routes of a broker that cannot be reached."""
ANSWER_S: Final = 10.0
"""Limit for a client's answer to a question; Apache's brokers wait as long."""
MAX_LATE: Final = 1024
"""Limit of cancelled receives of one client that still wait: brokers cannot end them early."""
MAX_SIGNED: Final = 512
"""Limit for the user, the text and the signature that a broker is asked about, in characters."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """Cache of answers of the cluster. Concurrent callers share one request."""

    def __init__(self, ask: Callable[[K], Coroutine[Any, Any, T]]) -> None:
        self._ask = ask
        # the newest last, each with the time of its request
        self._answers: dict[K, tuple[float, asyncio.Task[T]]] = {}

    async def get(self, name: K) -> T:
        """Return an answer that is at most RECENT_S old. Raises OgiveError."""
        now = asyncio.get_running_loop().time()
        asked_at, task = self._answers.get(name, (0.0, None))
        if task is None or now - asked_at >= RECENT_S or _has_failed(task):
            self._answers.pop(name, None)
            if len(self._answers) >= MAX_RECENT:
                del self._answers[next(iter(self._answers))]
            task = asyncio.create_task(self._ask(name), name="ask the cluster")
            # all callers may have been cancelled; marks the exception as retrieved
            task.add_done_callback(_has_failed)
            self._answers[name] = now, task
        return await asyncio.shield(task)


def _has_failed(task: "asyncio.Task[Any]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class ClusterLink:
    """See Link. Its connections open when the first request needs them."""

    def __init__(
        self,
        backend: "ClusterBackend",
        client: ClientIdentity,
        on_request: OnRequest,
        on_notice: OnNotice,
        on_close: Callable[[], None],
    ) -> None:
        self.client = client
        self._backend = backend
        self._on_request, self._on_notice, self._on_close = on_request, on_notice, on_close
        requests = self._requests = BrokerRequests({})
        requests.serve(RequestCode.CHECK_TRANSACTION_STATE, self._check_transaction)
        requests.serve(RequestCode.GET_CONSUMER_RUNNING_INFO, self._question)
        requests.serve(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._question)
        self._pool = backend.pool(requests)
        self._signs_with: Credentials | None = None
        self._late = LatePops(self, backend.releases)
        self.closed = False

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._backend.leave(self, self._disconnect())
        self._on_close()

    async def _disconnect(self) -> None:
        await self._requests.close()
        await self._pool.close()

    # --- requests to brokers ----------------------------------------------------------------------

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if self.closed:
            raise ConnectError(f"client {self.client.client_id} has left", address)
        command.language, command.version = self.client.language, self.client.version
        credentials = self._backend.signature_of(self.client)
        if credentials is not None and credentials != self._signs_with:
            self._signs_with = credentials
            self._pool.sign_with(credentials)
        if not address:
            return await self._call_all(command, timeout_s)
        return await self._backend.call_broker(self._pool, address, command, timeout_s)

    async def _call_all(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Call the brokers of the client's topics, and those that it is connected to.

        One that is away does not fail the call: the next heartbeat reaches it. Nor does one that
        refuses it, for example because the group is missing there, while another accepts it.
        """
        addresses = set(self._pool.addresses())
        if command.code == RequestCode.HEART_BEAT:
            data = HeartbeatData.decode(command.body)
            topics = {one.topic for group in data.consumers for one in group.subscriptions}
            addresses |= await self._backend.masters_of(topics.union(data.producers))
        answers = await asyncio.gather(
            *(self._pool.call(one, replace(command), timeout_s) for one in addresses),
            return_exceptions=True,
        )
        errors = [one for one in answers if isinstance(one, BaseException)]
        replies = [one for one in answers if isinstance(one, RemotingCommand)]
        if errors and not replies:
            raise errors[0]
        refusals = [one for one in replies if one.code != ResponseCode.SUCCESS]
        if refusals and len(refusals) == len(replies):
            return refusals[0]
        for refusal in refusals:
            log.debug("a broker refuses client %s: %s", self.client.client_id, refusal.remark)
        return rpc.success()

    async def pop(self, address: str, header: PopMessageRequest) -> PopAnswer:
        if len(self._late) >= MAX_LATE:
            raise TooManyRequests(
                f"{MAX_LATE} cancelled receives of this client still wait at the brokers"
            )
        popping = rpc.pop_message(self, address, header, broker_name=address)
        return await self._late.take(popping, address, header)

    async def release(
        self, address: str, group: str, acks: Iterable[Ack], invisible_ms: int
    ) -> None:
        for ack in acks:
            # if a request fails, the lease ends by itself
            with suppress(OgiveError):
                await rpc.change_invisible_time(
                    self._backend, address, group, ack, invisible_ms, suspend=True
                )

    def check(self, header: Header) -> None:
        self._backend.check(self.client, header)

    # --- requests of brokers ----------------------------------------------------------------------

    async def _question(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await self._on_request(command)
        except TimeoutError:
            client = self.client
            raise RequestTimeout(
                f"no answer from {client.client_id} within {ANSWER_S} s", client.address
            ) from None

    async def _check_transaction(self, connection: Connection, command: RemotingCommand) -> None:
        if not command.ext_fields.get("bname"):
            # brokers before 5.3 do not send their name
            name = self._backend.broker_at(connection.remote_address)
            command.ext_fields = {**command.ext_fields, "bname": name}
        self._on_notice(command)


class ClusterBackend:
    """See Backend. Call ``start()`` before use and ``close()`` after it.

    With credentials in *config* the cluster has access control, and they must be allowed to read
    its users and rules. *cluster* is the name of the only cluster that is served, of those that the
    name servers know; without it all are, as one.
    """

    def __init__(self, config: ClientConfig, cluster: str | None = None) -> None:
        self.client = ClientInstance(config, proxying=True)
        self._config = config
        self._cluster = cluster
        self._ssl = tls_context(config.ssl)
        self.releases = Releases()
        self._links: set[ClusterLink] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._masters: Recent[str, Mapping[str, str]] = Recent(self._read_masters)
        self._types = Recent(self._read_type)
        self._groups = Recent(self._read_group)
        self._signed = Recent(self._ask_signed)
        self._passwords_listed = True
        self._doubted_at: dict[str, float] = {}
        self._guard = (
            None
            if config.credentials is None
            else Guard(AccessTable(), cluster="", server="the proxy")
        )

    async def start(self) -> None:
        """Read the list of brokers and, with credentials, the users. Raises NoNameServer,
        InvalidOption, and the error of a broker that refuses.
        """
        await self.client.start()
        await self._masters.get("")
        if self._guard is not None:
            await self._read_users()
            self.client.spawn(
                every(RECENT_S, self._read_users, name="users", first_after_s=RECENT_S), "users"
            )

    async def close(self) -> None:
        """Close all links, and the connections."""
        for link in list(self._links):
            link.close()
        await asyncio.gather(*self._leaving)
        await self.client.close()

    # --- users ------------------------------------------------------------------------------------

    async def _read_users(self) -> None:
        """Read users and rules from one broker, because all brokers of a cluster should have the
        same. Log the counts of repeated denials.
        """
        assert self._guard is not None
        self._guard.table.refusals.tell()
        assert self._config.credentials is not None
        users = await self._of_any_broker(rpc.list_users)
        if not users:
            raise InvalidOption("the cluster has no users")
        self._passwords_listed = all(user.password for user in users)
        reader = self._config.credentials
        self._guard.table.mirror(users, await self._of_any_broker(rpc.list_acls), reader)
        if not self._passwords_listed and not self._guard.table.is_super(reader.access_key):
            raise InvalidOption(
                f"user {reader.access_key} is no super user: --credentials must be a super user's, "
                "because the brokers list no passwords, and only super users sign for others"
            )

    @property
    def guarded(self) -> bool:
        return self._guard is not None

    async def has_signed(self, user: str, text: str, signature: str) -> bool:
        if self._guard is None:
            return False
        if self._passwords_listed:
            return self._guard.table.has_signed(user, text, signature)
        if len(user) + len(text) + len(signature) > MAX_SIGNED:
            return False
        return await self._signed.get((user, text, signature))

    async def _ask_signed(self, call: tuple[str, str, str]) -> bool:
        user, text, signature = call
        return await self._of_any_broker(
            lambda pool, address: rpc.has_signed(pool, address, user, text, signature)
        )

    def signature_of(self, client: ClientIdentity) -> Credentials | None:
        """Return the credentials that sign a client's requests, None without access control.
        Raises AccessRefused if the user has been deleted or disabled.
        """
        if self._guard is None:
            return None
        found = self._guard.table.find(client.user)
        if found is None or found[0].status != ENABLED:
            raise AccessRefused(NOBODY_KNOWN)
        return found[1]

    def check(self, client: ClientIdentity, header: Header) -> None:
        """Raise AccessRefused if the client may not send a request with *header*."""
        credentials = self.signature_of(client)
        if self._guard is not None and credentials is not None:
            command = rpc.request(header)
            command.ext_fields = credentials.sign(command.ext_fields, command.body)
            self._guard.check(command, client.address)

    def refused(self, user: str, address: str, reason: str) -> None:
        if self._guard is not None:
            command = RemotingCommand(RequestCode.HEART_BEAT, {ACCESS_KEY: user} if user else {})
            host = address.rpartition(":")[0]
            self._guard.table.refusals.note(command, host, self._guard.server, reason)

    # --- clients ----------------------------------------------------------------------------------

    def link(
        self,
        client: ClientIdentity,
        on_request: OnRequest,
        on_notice: OnNotice,
        on_close: Callable[[], None],
    ) -> ClusterLink:
        link = ClusterLink(self, client, on_request, on_notice, on_close)
        self._links.add(link)
        return link

    def leave(self, link: ClusterLink, disconnecting: Coroutine[Any, Any, None]) -> None:
        """Forget a link that closes."""
        self._links.discard(link)
        task = asyncio.create_task(disconnecting, name=f"disconnect {link.client.client_id}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def pool(self, requests: BrokerRequests) -> ConnectionPool:
        """Return a client's connections to the brokers."""
        return ConnectionPool(
            connect_timeout_s=self._config.connect_timeout_s,
            ssl=self._ssl,
            on_request=requests.on_request,
            request_fields=self._config.request_fields,
        )

    # --- brokers ----------------------------------------------------------------------------------

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Call a broker by its name, with the proxy's own connections and credentials."""
        return await self.call_broker(self.client.pool, address, command, timeout_s)

    async def call_broker(
        self, pool: ConnectionPool, name: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Call a broker by its name. Raises NoRoute for one that no name server knows, or that is
        of another cluster.
        """
        address = None if self._cluster is not None else self.client.routes.find_address(name)
        if address is None:
            address = (await self._masters.get("")).get(name)
        if address is None:
            raise NoRoute(f'broker "{name}" is not known to {self.client.name_servers}')
        try:
            return await pool.call(address, command, timeout_s)
        except ConnectError:
            self._doubt(name)
            raise

    def _doubt(self, name: str) -> None:
        """Mark the routes that name a broker to be read again, because it may have moved."""
        now = asyncio.get_running_loop().time()
        recent = {one: at for one, at in self._doubted_at.items() if now - at < DOUBTED_AGAIN_S}
        if name not in recent:
            recent[name] = now
            self.client.routes.doubt_broker(name)
        self._doubted_at = recent

    def broker_at(self, address: str) -> str:
        """Return the name of the broker at *address*; empty if it is unknown."""
        brokers = self.client.routes.brokers.items()
        return next((name for name, ids in brokers if address in ids.values()), "")

    async def masters_of(self, topics: Iterable[str]) -> set[str]:
        """Return the addresses of the brokers of all topics that there are."""
        found = await asyncio.gather(*map(self._find, topics), return_exceptions=True)
        addresses: set[str] = set()
        for route in found:
            if isinstance(route, BaseException):
                if not isinstance(route, NoRoute):
                    raise route
            else:
                addresses.update(
                    broker.addresses[MASTER_ID]
                    for broker in route.brokers
                    if MASTER_ID in broker.addresses
                )
        return addresses

    async def _read_masters(self, _: str) -> Mapping[str, str]:
        info = await self.client.ask_name_server(rpc.get_cluster_info)
        masters = {
            name: broker.addresses[MASTER_ID]
            for name, broker in sorted(info.brokers.items())
            if MASTER_ID in broker.addresses and self._cluster in (None, broker.cluster)
        }
        if self._cluster is not None and not masters:
            known = ", ".join(sorted(info.clusters)) or "none"
            raise NoRoute(
                f'{self.client.name_servers} knows no broker of cluster "{self._cluster}"; '
                f"clusters: {known}"
            )
        return masters

    async def _find(self, topic: str) -> TopicRouteData:
        """Return the route of a topic, with the brokers that are served. Raises OgiveError."""
        route = await self.client.routes.find(topic)
        if self._cluster is None:
            return route
        served = tuple(one for one in route.brokers if one.cluster == self._cluster)
        return replace(route, brokers=served)

    async def _of_any_broker(self, ask: Callable[[ConnectionPool, str], Awaitable[T]]) -> T:
        """Return the answer of the first broker, by name, that can be reached and does not raise
        GroupNotExist. Raises OgiveError.
        """
        error: OgiveError = NoRoute(f"{self.client.name_servers} knows no broker")
        for address in (await self._masters.get("")).values():
            try:
                return await ask(self.client.pool, address)
            except (TransportError, GroupNotExist) as exc:
                error = exc
        raise error

    # --- topics and groups ------------------------------------------------------------------------

    async def route(self, topic: str) -> Sequence[QueueData]:
        route = await self._find(topic)
        masters = {one.broker_name for one in route.brokers if MASTER_ID in one.addresses}
        rows = [row for row in route.queues if row.broker_name in masters]
        if not rows:
            raise NoRoute(f'topic "{topic}" has no broker at present that can be written to')
        return rows

    async def message_type(self, topic: str) -> str:
        return await self._types.get(topic)

    async def _read_type(self, topic: str) -> str:
        route = await self._find(topic)
        error: OgiveError | None = None
        for address in self.client.routes.group_brokers(route):
            try:
                config = await rpc.topic_config(self.client.pool, address, topic)
            except NotSupported:
                # a broker of 4.x, whose topics have no attributes
                return ""
            except (TransportError, TopicNotExist) as exc:
                error = exc
            else:
                return config.attributes.get(MESSAGE_TYPE, "")
        assert error is not None
        raise error

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return await self._groups.get(name)

    async def _read_group(self, name: str) -> SubscriptionGroupConfig | None:
        try:
            return await self._of_any_broker(
                lambda pool, address: rpc.group_config(pool, address, name)
            )
        except GroupNotExist:
            return None
