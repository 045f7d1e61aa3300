"""One connection per address, opened when first needed and replaced when it is closed.

A server that is shutting down answers GO_AWAY instead of carrying a request out (Apache's from
5.3.2 on, with enableShutdownGracefully). Its connection then accepts no new requests, and closes
after the outstanding answers. The request is sent once more, on a new connection, because there may
be several servers behind one address. As in Java, this happens at most once a minute for an
address.
"""

import asyncio
import logging
import ssl as tls
from collections.abc import Callable, Mapping
from typing import Final

from ogive.errors import ConnectError
from ogive.transport.connection import (
    Connection,
    RequestHandler,
    connect,
    refuse_requests,
    split_listed_address,
)
from ogive.transport.event_loop import cancel_all
from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

# time for a peer to read the written data after its connection is closed here
LINGER_S: Final = 1.0
# least time between two reconnections because of GO_AWAY; maxReconnectIntervalTimeSeconds
STAY_S: Final = 60.0


class ConnectionPool:
    """Pool of connections, one per address.

    Callers of one address share one attempt to connect. A dead address delays no other address.
    """

    def __init__(
        self,
        *,
        connect_timeout_s: float = 3.0,
        ssl: tls.SSLContext | None = None,
        on_request: RequestHandler = refuse_requests,
        credentials: Credentials | None = None,
        request_fields: Mapping[str, str] | None = None,
        on_open: Callable[[str], None] | None = None,
    ) -> None:
        """*on_open* is called with the address of each new connection."""
        self._connect_timeout_s = connect_timeout_s
        self._ssl = ssl
        self._on_request = on_request
        self._credentials = credentials
        self._request_fields = request_fields
        self._on_open = on_open
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._leaving: set[Connection] = set()
        # by address: time of the last reconnection because of GO_AWAY
        self._left_at: dict[str, float] = {}
        self.closed = False

    def sign_with(self, credentials: Credentials) -> None:
        """Sign further requests with *credentials*, on open connections too."""
        self._credentials = credentials
        for connection in self._open.values():
            connection.credentials = credentials

    def existing(self, address: str) -> Connection | None:
        """Return the open connection to *address*, None if there is none, without waiting."""
        connection = self._open.get(address)
        return connection if connection is not None and not connection.closed else None

    def _go_away(self, address: str, connection: Connection) -> None:
        now = asyncio.get_running_loop().time()
        if connection.leaving or now - self._left_at.get(address, -STAY_S) < STAY_S:
            return
        self._left_at = {known: at for known, at in self._left_at.items() if now - at < STAY_S} | {
            address: now
        }
        log.info("%s is going away: new requests use a new connection", address)
        self._forget(address, connection)
        self._leaving.add(connection)
        connection.on_close.append(self._leaving.discard)
        connection.leave()

    async def get(self, address: str) -> Connection:
        """Return an open connection to ``host:port``. Raises ConnectError."""
        connection = self.existing(address)
        if connection is not None:
            return connection
        if self.closed:
            raise ConnectError(f"no new connection to {address}: the client is closed", address)
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(
                self._connect(address), name=f"connect {address}"
            )
            # perhaps no caller waits for it any more
            opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            # the cancellation of one caller must not cancel the connection of the others
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # the pool was closed, and the caller itself was not cancelled
            if opening.cancelled() and (task is None or not task.cancelling()):
                raise ConnectError(
                    f"no connection to {address}: the client was closed meanwhile", address
                ) from None
            raise

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float, *, as_view: bool = False
    ) -> RemotingCommand:
        """Connect if necessary and send the request, within one time budget. See Connection.call.

        Raises TransportError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self.get(address)
        except TimeoutError:
            raise ConnectError(
                f"no connection to {address} within {timeout_s:.1f} s", address
            ) from None
        left_s = max(0.001, deadline - loop.time())
        answer = await connection.call(command, left_s, as_view=as_view)
        if answer.code == ResponseCode.GO_AWAY and connection.leaving and loop.time() < deadline:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self.get(address)
                left_s = max(0.001, deadline - loop.time())
                answer = await connection.call(command, left_s, as_view=as_view)
            except (ConnectError, TimeoutError):
                # the connection cannot be replaced again so soon; the answer says that the request
                # was not carried out
                return answer
        return answer

    async def send(self, address: str, command: RemotingCommand) -> None:
        """Send one-way. Raises TransportError."""
        await (await self.get(address)).send(command)

    async def _connect(self, address: str) -> Connection:
        try:
            host, port = split_listed_address(address)
            connection = await connect(
                host,
                port,
                timeout_s=self._connect_timeout_s,
                ssl=self._ssl,
                on_request=self._on_request,
                credentials=self._credentials,
                request_fields=self._request_fields,
            )
            if self.closed:
                connection.close()
                raise ConnectError(f"no new connection to {address}: the client is closed", address)
            self._open[address] = connection
            connection.on_close.append(lambda gone: self._forget(address, gone))
            connection.on_go_away = lambda tired: self._go_away(address, tired)
            if self._on_open is not None:
                self._on_open(address)
            return connection
        finally:
            del self._opening[address]

    def _forget(self, address: str, gone: Connection) -> None:
        if self._open.get(address) is gone:
            del self._open[address]

    def addresses(self) -> list[str]:
        return list(self._open)

    async def close(self) -> None:
        """Close every connection, and wait until they are closed.

        The connection of a peer that does not read its data is aborted.
        """
        self.closed = True
        opening, connections = list(self._opening.values()), [*self._open.values(), *self._leaving]
        await cancel_all(opening)
        for connection in connections:
            connection.close()
        try:
            async with asyncio.timeout(LINGER_S):
                await asyncio.gather(*(connection.wait_closed() for connection in connections))
        except TimeoutError:
            for connection in connections:
                connection.abort("")
