"""Keeping name servers informed of this broker and its topics. Source: BrokerController.java, BrokerOuterAPI.java, 5.3.

Behaviour
- The whole topic table goes to each name server at the start, after changes (several in one), and whenever the name server says that
  it holds something else; in between, asking it whether it does is the sign of life.
- Each name server has its own connection and task: one that is dead or slow holds up no other.
- ORDER_TOPIC_CONFIG of the first name server decides which topics are ordered.

Differs from Java
- A lost connection is noticed and mended after FIRST_RETRY_S (then with growing pauses), so a restarted name server has its routes back in
  seconds. A server that accepts connections and drops them is not tried more often either.
- Changes send the whole table, never a table of one topic, which a name server that does not know the broker would refuse.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from ogive.broker.topics import TopicTable
from ogive.errors import OgiveError, broker_error
from ogive.transport.connection import Connection, connect, split_address
from ogive.wire.acl import Credentials
from ogive.wire.bodies import DataVersion, RegisterBrokerBody, TopicRouteData, dumps, kv_table_loads, loads_object
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import (
    GetRouteInfoRequest,
    Header,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
    decode_header,
    encode_header,
)

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 1.0
EXPIRY_MS: Final = 120_000  # Apache's default; more where the period asks for it


Dial = Callable[[str], Awaitable[Connection]]
"""A connection to a name server, by its address. Raises ConnectError."""


class Registration:
    """This broker at all its name servers."""

    def __init__(
        self,
        topics: TopicTable,
        *,
        name_servers: tuple[str, ...],
        cluster: str,
        broker_name: str,
        broker_id: int,
        address: str,
        period_s: float = 30.0,
        timeout_s: float = 3.0,
        credentials: Credentials | None = None,
        dial: Dial | None = None,
    ) -> None:
        """*address* is where clients reach the broker; *credentials* sign what name servers are asked; *dial* takes the place of TCP."""
        self.credentials = credentials
        self.dial = dial or self._dial
        self.cluster, self.broker_name, self.broker_id, self.address = cluster, broker_name, broker_id, address
        self.topics = topics
        self.period_s, self.timeout_s = period_s, timeout_s
        self._table: tuple[DataVersion, bytes] | None = None
        self._encoding = asyncio.Lock()
        self._peers = [_NameServer(self, name_server, first=i == 0) for i, name_server in enumerate(dict.fromkeys(name_servers))]

    async def _dial(self, name_server: str) -> Connection:
        host, port = split_address(name_server)
        return await connect(host, port, timeout_s=self.timeout_s, credentials=self.credentials)

    async def start(self) -> None:
        """Return when every name server has answered once or cannot be reached; those are tried again in the background."""
        self.topics.changed.append(self._topics_changed)
        await asyncio.gather(*(peer.attempt() for peer in self._peers))
        for peer in self._peers:
            peer.start()

    async def stop(self) -> None:
        """Tell every name server that the broker goes; those that do not answer in time find out by the lost connection."""
        if self._topics_changed in self.topics.changed:
            self.topics.changed.remove(self._topics_changed)
        await asyncio.gather(*(peer.stop() for peer in self._peers))

    async def registered(self) -> None:
        """Return when every name server that can be reached knows the topics as they are now."""
        wanted = self.topics.data_version.counter
        await asyncio.gather(*(peer.wait_for(wanted) for peer in self._peers))

    async def route(self, topic: str) -> TopicRouteData | None:
        """What the first name server that answers knows of the topic; None where none answers, or knows it."""
        for peer in self._peers:
            with suppress(OgiveError):
                return await peer.route(topic)
        return None

    def _topics_changed(self) -> None:
        for peer in self._peers:
            peer.wake()

    async def table(self) -> tuple[DataVersion, bytes]:
        """The topic table as it is registered, and its version. Made in a thread (20,000 topics take 0.16 s), once for each version."""
        async with self._encoding:
            version, topics = self.topics.data_version, dict(self.topics.all())
            if self._table is None or self._table[0] != version:
                body = RegisterBrokerBody(data_version=version, topics=topics)
                self._table = version, await asyncio.to_thread(body.encode)
            return self._table


class _NameServer:
    """One name server: what it knows, and the task that keeps it right."""

    def __init__(self, registration: Registration, address: str, *, first: bool) -> None:
        self._registration = registration
        self._address = address
        self._first = first
        self._connection: Connection | None = None
        self._known: DataVersion | None = None  # what it holds, as far as we know
        self._failures = 0
        self._wake = asyncio.Event()
        self._tried = asyncio.Event()  # replaced after each attempt: waiters hold the one they wait for
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"register at {self._address}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """It runs until it is cancelled: any other end is a bug."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("registration at %s ended", self._address, exc_info=exc)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
            self._tried.set()
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            with suppress(OgiveError):
                await connection.call(self._unregister_command(), self._registration.timeout_s)
            connection.close()
            await connection.wait_closed()

    async def wait_for(self, counter: int) -> None:
        """Return when version *counter* of the table is known there, an attempt has failed, or none is made any more."""
        while self._task is not None and not self._failures and (self._known is None or self._known.counter < counter):
            await self._tried.wait()

    async def _run(self) -> None:
        while True:
            if self._failures:
                await asyncio.sleep(self._pause_s())  # in full: what would wake us may be the very connection that was lost
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._registration.period_s):
                        await self._wake.wait()
            await self.attempt()

    def _pause_s(self) -> float:
        return min(self._registration.period_s, FIRST_RETRY_S * 2.0 ** (self._failures - 1))

    async def attempt(self) -> None:
        """Bring the name server up to date once; a failure is logged when it is the first in a row."""
        self._wake.clear()
        try:
            await self._update()
        except OgiveError as exc:
            log.log(logging.DEBUG if self._failures else logging.WARNING, "name server %s: %s", self._address, exc)
            self._failures = min(self._failures + 1, 10)
            self._known = None
        else:
            if self._failures:
                log.info("name server %s answers again", self._address)
            self._failures = 0
        finally:
            tried, self._tried = self._tried, asyncio.Event()
            tried.set()

    async def _update(self) -> None:
        version = self._registration.topics.data_version
        if self._known == version and not await self._holds_something_else(version):
            return
        version, body = await self._registration.table()
        reply = await self._call(self._register_header(), body)
        self._known = version
        if self._first and reply.body and (ordered := kv_table_loads(reply.body)):
            self._registration.topics.set_order(frozenset(ordered))

    async def route(self, topic: str) -> TopicRouteData:
        """Raises OgiveError."""
        answer = await self._call(GetRouteInfoRequest(topic=topic, accept_standard_json_only=True), b"")
        return TopicRouteData.from_json(loads_object(answer.body))

    async def _holds_something_else(self, version: DataVersion) -> bool:
        about = self._registration
        header = QueryDataVersionRequest(
            broker_name=about.broker_name, broker_addr=about.address, cluster_name=about.cluster, broker_id=about.broker_id
        )
        reply = await self._call(header, dumps(version.to_json()))
        return decode_header(QueryDataVersionResponse, reply.ext_fields).changed

    def _register_header(self) -> RegisterBrokerRequest:
        about = self._registration
        return RegisterBrokerRequest(
            broker_name=about.broker_name,
            broker_addr=about.address,
            cluster_name=about.cluster,
            broker_id=about.broker_id,
            heartbeat_timeout_ms=max(EXPIRY_MS, round(about.period_s * 4000)),
        )

    def _unregister_command(self) -> RemotingCommand:
        about = self._registration
        header = UnregisterBrokerRequest(
            broker_name=about.broker_name, broker_addr=about.address, cluster_name=about.cluster, broker_id=about.broker_id
        )
        return RemotingCommand(header.code, encode_header(header))

    async def _call(self, header: Header, body: bytes) -> RemotingCommand:
        """The answer, if it is SUCCESS. Raises OgiveError."""
        connection = await self._connected()
        reply = await connection.call(RemotingCommand(header.code, encode_header(header), body), self._registration.timeout_s)
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, self._address)
        return reply

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._registration.dial(self._address)
            self._connection.on_close.append(self._lost)
        return self._connection

    def _lost(self, _: Connection) -> None:
        asyncio.get_running_loop().call_later(FIRST_RETRY_S, self._wake.set)
