"""Name server: start and stop, connections, and dispatch.

Source: NamesrvController.java, DefaultRequestProcessor.java, 5.3.
"""

import asyncio
import dataclasses
import inspect
import itertools
import logging
from collections.abc import Coroutine
from typing import Any, Final

from ogive.access.audit import AuditEntry, requester
from ogive.access.guard import Guard
from ogive.access.user_table import AccessTable
from ogive.errors import OgiveError, ProtocolError, Refused
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.handlers import CHANGES, ROUTES, Call, NameServerState
from ogive.namesrv.kv_config import KvConfig
from ogive.namesrv.route_table import BrokerIdentity, RegistrationRefused, RouteTable
from ogive.transport.connection import Connection, join_address
from ogive.transport.event_loop import Slices, cancel_all, every, watch
from ogive.transport.server import Server, ServerConnection
from ogive.wire.codes import Flag, ResponseCode
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.headers.codec import decode_header
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

# name in the log
_CALLED: Final = "the name server"
_LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NameServer:
    """A name server: ``await start()``, pass ``address`` to brokers and clients, ``await
    stop()``.
    """

    def __init__(
        self, config: NameServerConfig | None = None, *, access: AccessTable | None = None
    ) -> None:
        """Create a server that is not started. *access* checks requests; with None every request is
        allowed.
        """
        self.config = config or NameServerConfig()
        self._guard = (
            None if access is None else Guard(access, cluster=self.config.cluster, server=_CALLED)
        )
        self._server = Server(
            self._handle,
            host=self.config.host,
            port=self.config.port,
            tls=self.config.tls,
            limits=self.config.server,
            on_open=self._opened,
            guarded=access is not None,
        )
        self._context: NameServerState | None = None
        self._numbers = itertools.count(1)
        # open connections, numbered in the order of their arrival
        self._owners: dict[Connection, int] = {}
        self._slices = Slices()
        # bounded by each connection's limit of requests in flight
        self._answering: set[asyncio.Task[None]] = set()
        self._scan: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Address at which brokers and clients can connect."""
        return join_address(self.config.advertised_host or self.config.host, self._server.port)

    @property
    def local_address(self) -> str:
        """Address at which programs on this machine can connect: behind NAT it differs from
        ``address``.
        """
        return join_address(_LOOPBACK_OF.get(self.config.host, self.config.host), self._server.port)

    async def start(self) -> None:
        """Listen; the server is ready when this returns. Raises ConnectError if the address is in
        use.
        """
        config = self.config
        table = RouteTable(
            expiry_s=config.broker_expiry_s,
            max_brokers=config.max_brokers,
            max_topics=config.max_topics,
        )
        kv = KvConfig(config.kv_path, max_entries=config.max_kv_entries)
        loop = asyncio.get_running_loop()
        self._context = NameServerState(config=config, routes=table, kv=kv, now=loop.time)
        await self._server.start()
        self._context = dataclasses.replace(
            self._context, config=dataclasses.replace(config, port=self._server.port)
        )
        self._scan = asyncio.create_task(
            every(config.scan_s, self._expire, name="scan for silent brokers"),
            name="name server scan",
        )
        watch(self._scan)
        log.info("name server listens on %s", self.address)

    async def stop(self) -> None:
        """Answer the requests in progress, and close every connection. Do nothing before a
        start.
        """
        if self._scan is not None:
            await cancel_all([self._scan])
            self._scan = None
        await self._server.stop(self.config.stop_grace_s)

    async def reload_certificates(self) -> None:
        """See Server.reload_certificates."""
        await self._server.reload_certificates()

    async def connect_here(self, credentials: Credentials | None = None) -> Connection:
        """See Server.connect_here."""
        return await self._server.connect_here(credentials)

    # --- connections ------------------------------------------------------------------------------

    def _opened(self, connection: ServerConnection) -> None:
        self._owners[connection] = next(self._numbers)
        connection.on_close.append(self._closed)

    def _closed(self, connection: Connection) -> None:
        gone = self._running.routes.disconnected(self._owners.pop(connection))
        _log_gone(gone, "its connection closed")

    async def _expire(self) -> None:
        context = self._running
        _log_gone(context.routes.expire(context.now()), "it gave no sign of life")
        if self._guard is not None:
            self._guard.table.refusals.tell()

    @property
    def _running(self) -> NameServerState:
        assert self._context is not None, "connections exist only while the name server runs"
        return self._context

    # --- dispatch ---------------------------------------------------------------------------------

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        route = ROUTES.get(command.code)
        entry: AuditEntry[NameServerState] | None = None
        try:
            # checked before the guard reads the body
            if route is not None and len(command.body) > route.max_body_bytes:
                remark = f"a body of {len(command.body)} bytes, {route.max_body_bytes} are allowed"
                raise Refused(ResponseCode.INVALID_PARAMETER, remark)
            if self._guard is not None:
                self._guard.check(command, connection.remote_address)
                connection.trust()
            if route is None:
                raise Refused(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            call = Call(self._owners[connection], command.version, command.body)
            header = decode_header(route.header, command.ext_fields)
            entry = self._entry(connection, command)
            # a coroutine begins later, see _answer_later()
            if entry is not None and not inspect.iscoroutinefunction(route.handle):
                entry.begin()
            answer = route.handle(self._running, call, header)
        except (Refused, RegistrationRefused, ProtocolError) as exc:
            answer = _refusal(exc)
        if isinstance(answer, RemotingCommand):
            _reply(connection, command, answer, entry)
        else:
            task = asyncio.create_task(
                self._answer_later(connection, command, answer, entry),
                name=f"request {command.code}",
            )
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer_later(
        self,
        connection: Connection,
        command: RemotingCommand,
        pending: Coroutine[Any, Any, RemotingCommand],
        entry: AuditEntry[NameServerState] | None,
    ) -> None:
        try:
            await self._slices.mine()
            if entry is not None:
                entry.begin()
            answer = await pending
        except OgiveError as exc:
            answer = _refusal(exc)
        except BaseException:
            connection.abort(
                f"request {command.code} of {connection.remote_address} ended without an answer"
            )
            raise
        finally:
            pending.close()
        _reply(connection, command, answer, entry)

    def _entry(
        self, connection: Connection, command: RemotingCommand
    ) -> AuditEntry[NameServerState] | None:
        """Return the log entry of a request that administers the name server; None for any
        other.
        """
        change = CHANGES.get(command.code)
        if change is None:
            return None
        who = requester(command, connection.remote_address, checked=self._guard is not None)
        return AuditEntry(change, self._running, command, who, _CALLED)


def _refusal(exc: OgiveError) -> RemotingCommand:
    if isinstance(exc, Refused):
        return RemotingCommand(exc.code, remark=exc.remark)
    return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=str(exc))


def _reply(
    connection: Connection,
    command: RemotingCommand,
    answer: RemotingCommand,
    entry: AuditEntry[NameServerState] | None,
) -> None:
    """Write *answer*, and log the change."""
    if entry is not None:
        entry.tell(answer.code)
    if not command.is_oneway:
        connection.reply(_frame(command, answer))


def _frame(command: RemotingCommand, answer: RemotingCommand) -> bytes:
    """Return the answer to *command* as a frame.

    An answer that the protocol cannot carry (for example a list that is too long) becomes an error.
    """
    answer.opaque, answer.flag = command.opaque, int(Flag.RESPONSE)
    try:
        return encode_command(answer)
    except ProtocolError as exc:
        return _frame(
            command,
            RemotingCommand(ResponseCode.SYSTEM_ERROR, remark=f"the answer cannot be sent: {exc}"),
        )


def _log_gone(brokers: list[BrokerIdentity], why: str) -> None:
    for broker in brokers:
        log.warning("broker %s at %s is gone: %s", broker.name, broker.address, why)
