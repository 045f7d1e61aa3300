"""Register this broker and its topics at name servers.

Source: BrokerController.java, BrokerOuterAPI.java, 5.3.

Behaviour
- The whole topic table is sent to each name server at the start, after changes (several in one),
  and whenever the name server reports that it has another one; in between, the query for this is
  the sign of life.
- Each name server has its own connection and task: one that is down or slow delays no other.
- A table of COMPRESSED_FROM topics or more is sent compressed. A name server that refuses this gets
  the JSON form, until the next connection.
- Topics in ORDER_TOPIC_CONFIG of the first name server become ordered, as by Java since 5.0; 4.9
  makes all others unordered, too.

Differs from Java
- A lost connection is noticed and replaced after FIRST_RETRY_S (then with growing pauses), so a
  restarted name server has its routes back in seconds. A server that accepts connections and drops
  them is not tried more often either.
- Java's option for compression, compressedRegister, does not set the header field for it, so no
  name server can read such a table.
- Changes send the whole table, never a table of one topic, which a name server would refuse from an
  unknown broker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from ogive.broker.state.topic_table import TopicTable
from ogive.errors import BrokerError, OgiveError, broker_error
from ogive.transport.connection import Connection, connect, split_address
from ogive.transport.event_loop import watch
from ogive.wire.bodies.configs import DataVersion
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.bodies.routes import RegisterBrokerBody, TopicRouteData
from ogive.wire.bodies.stats import kv_table_loads
from ogive.wire.checksum import crc32
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header, decode_header, encode_header
from ogive.wire.headers.name_server import (
    GetRouteInfoRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
)
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 1.0
# Apache's default; more where the period asks for it
EXPIRY_MS: Final = 120_000
COMPRESSED_FROM: Final = 1_000
"""Topics from which on the table is compressed. With fewer the JSON form, 160 bytes a topic, is
cheap enough.
"""


class _Table(NamedTuple):
    version: DataVersion
    body: bytes
    compressed: bool
    crc: int


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
        """*address* is where clients connect to the broker; *credentials* sign the requests to name
        servers; *dial* replaces TCP.
        """
        self.credentials = credentials
        self.dial = dial or self._dial
        self.cluster = cluster
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.address = address
        self.topics = topics
        self.period_s, self.timeout_s = period_s, timeout_s
        # by whether they may be compressed
        self._tables: dict[bool, _Table] = {}
        self._encoding = asyncio.Lock()
        self._peers = [
            _NameServer(self, name_server, first=i == 0)
            for i, name_server in enumerate(dict.fromkeys(name_servers))
        ]

    async def _dial(self, name_server: str) -> Connection:
        host, port = split_address(name_server)
        return await connect(host, port, timeout_s=self.timeout_s, credentials=self.credentials)

    async def start(self) -> None:
        """Return when every name server has answered once or cannot be reached; those are tried
        again in the background.
        """
        self.topics.changed.append(self._topics_changed)
        await asyncio.gather(*(peer.attempt() for peer in self._peers))
        for peer in self._peers:
            peer.start()

    async def stop(self) -> None:
        """Notify every name server that the broker stops; those that do not answer in time notice
        the lost connection.
        """
        if self._topics_changed in self.topics.changed:
            self.topics.changed.remove(self._topics_changed)
        await asyncio.gather(*(peer.stop() for peer in self._peers))

    async def registered(self) -> None:
        """Return when every name server that can be reached has the current topics."""
        wanted = self.topics.data_version.counter
        await asyncio.gather(*(peer.wait_for(wanted) for peer in self._peers))

    def known(self) -> dict[str, bool]:
        """Return for each name server whether it knows this broker, as far as is known here."""
        return {peer.address: peer.known for peer in self._peers}

    async def route(self, topic: str) -> TopicRouteData | None:
        """Return the topic's route from the first name server that answers.

        Return None if none answers or knows the topic.
        """
        for peer in self._peers:
            with suppress(OgiveError):
                return await peer.route(topic)
        return None

    def _topics_changed(self) -> None:
        for peer in self._peers:
            peer.wake()

    async def table(self, *, compress: bool) -> _Table:
        """Return the topic table in the form of a registration.

        Built in a thread (20,000 topics take 0.16 s), once for each version.

        *compress*: compress it if this is useful and possible.
        """
        async with self._encoding:
            known = self._tables.get(compress)
            if known is None or known.version != self.topics.data_version:
                body = RegisterBrokerBody(
                    data_version=self.topics.data_version, topics=dict(self.topics.all())
                )
                known = self._tables[compress] = await asyncio.to_thread(_encode, body, compress)
            return known


def _encode(body: RegisterBrokerBody, compress: bool) -> _Table:
    compressed = compress and len(body.topics) >= COMPRESSED_FROM and body.fits_compressed
    encoded = body.encode(compressed=compressed)
    return _Table(body.data_version, encoded, compressed, crc32(encoded) & 0x7FFFFFFF)


class _NameServer:
    """One name server: its last known state, and the task that keeps it up to date."""

    def __init__(self, registration: Registration, address: str, *, first: bool) -> None:
        self._registration = registration
        self.address = address
        self._first = first
        self._connection: Connection | None = None
        # what it holds, as far as we know
        self._known: DataVersion | None = None
        self._registered_on: Connection | None = None
        self._failures = 0
        self._plain_only = False
        self._wake = asyncio.Event()
        # replaced after each attempt: waiters hold the one they wait for
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        return self._known is not None

    def wake(self) -> None:
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"register at {self.address}")
        watch(self._task)

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
        """Return when version *counter* of the table is known there, an attempt has failed, or no
        more attempts are made.
        """
        while (
            self._task is not None
            and not self._failures
            and (self._known is None or self._known.counter < counter)
        ):
            await self._tried.wait()

    async def _run(self) -> None:
        while True:
            if self._failures:
                # in full: what would wake us may be the very connection that was lost
                await asyncio.sleep(self._pause_s())
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._registration.period_s):
                        await self._wake.wait()
            await self.attempt()

    def _pause_s(self) -> float:
        return min(self._registration.period_s, FIRST_RETRY_S * 2.0 ** (self._failures - 1))

    async def attempt(self) -> None:
        """Bring the name server up to date once; a failure is logged when it is the first in a
        row.
        """
        self._wake.clear()
        try:
            await self._update()
        except OgiveError as exc:
            log.log(
                logging.DEBUG if self._failures else logging.WARNING,
                "name server %s: %s",
                self.address,
                exc,
            )
            self._failures = min(self._failures + 1, 10)
            self._known = None
        else:
            if self._failures:
                log.info("name server %s answers again", self.address)
            self._failures = 0
        finally:
            tried, self._tried = self._tried, asyncio.Event()
            tried.set()

    async def _update(self) -> None:
        about, version = self._registration, self._registration.topics.data_version
        if self._known == version:
            if not await self._holds_something_else(version):
                return
            # it was not restarted
            if self._registered_on is self._connection:
                log.warning(
                    "name server %s has lost the registration of broker %s. Every broker needs a "
                    "name of its own: check that no other broker has this one",
                    self.address,
                    about.broker_name,
                )
        reply = await self._register()
        if self._first and reply.body and (ordered := kv_table_loads(reply.body)):
            self._registration.topics.mark_ordered(ordered)

    async def _register(self) -> RemotingCommand:
        """Return the answer. Raises OgiveError.

        The compressed form is not tried twice in a row: a server that drops the connection because
        of it could never be reached.
        """
        table = await self._registration.table(
            compress=not self._plain_only and self._failures % 2 == 0
        )
        try:
            reply = await self._call(self._register_header(table), table.body)
        except BrokerError as exc:
            if not table.compressed:
                raise
            table = await self._registration.table(compress=False)
            reply = await self._call(self._register_header(table), table.body)
            log.info(
                "name server %s does not accept a compressed registration, sending it "
                "uncompressed: %s",
                self.address,
                exc,
            )
            self._plain_only = True
        self._known, self._registered_on = table.version, self._connection
        return reply

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of *topic* at the name server. Raises OgiveError."""
        answer = await self._call(
            GetRouteInfoRequest(topic=topic, accept_standard_json_only=True), b""
        )
        return TopicRouteData.from_json(loads_object(answer.body))

    async def _holds_something_else(self, version: DataVersion) -> bool:
        about = self._registration
        header = QueryDataVersionRequest(
            broker_name=about.broker_name,
            broker_addr=about.address,
            cluster_name=about.cluster,
            broker_id=about.broker_id,
        )
        reply = await self._call(header, dumps(version.to_json()))
        return decode_header(QueryDataVersionResponse, reply.ext_fields).changed

    def _register_header(self, table: _Table) -> RegisterBrokerRequest:
        about = self._registration
        return RegisterBrokerRequest(
            broker_name=about.broker_name,
            broker_addr=about.address,
            cluster_name=about.cluster,
            broker_id=about.broker_id,
            compressed=table.compressed,
            body_crc32=table.crc,
            heartbeat_timeout_ms=max(EXPIRY_MS, round(about.period_s * 4000)),
        )

    def _unregister_command(self) -> RemotingCommand:
        about = self._registration
        header = UnregisterBrokerRequest(
            broker_name=about.broker_name,
            broker_addr=about.address,
            cluster_name=about.cluster,
            broker_id=about.broker_id,
        )
        return RemotingCommand(header.code, encode_header(header))

    async def _call(self, header: Header, body: bytes) -> RemotingCommand:
        """Return the answer, if it is SUCCESS. Raises OgiveError."""
        connection = await self._connected()
        reply = await connection.call(
            RemotingCommand(header.code, encode_header(header), body), self._registration.timeout_s
        )
        if reply.code != ResponseCode.SUCCESS:
            raise broker_error(reply.code, reply.remark, self.address)
        return reply

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._registration.dial(self.address)
            self._connection.on_close.append(self._lost)
        return self._connection

    def _lost(self, _: Connection) -> None:
        # the next one may be of another release
        self._plain_only = False
        asyncio.get_running_loop().call_later(FIRST_RETRY_S, self._wake.set)
