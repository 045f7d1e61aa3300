"""The broker of this process as the backend: its handlers are called without sockets."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from ogive.broker import Broker
from ogive.broker.state.topic_table import MESSAGE_TYPE
from ogive.client import rpc
from ogive.client.rpc import PopAnswer
from ogive.errors import ConnectError, ConnectionLost, OgiveError, RequestTimeout
from ogive.proxy.backend import Ack, ClientIdentity, LatePops, OnNotice, OnRequest, Releases
from ogive.transport.connection import Connection
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.routes import QueueData
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand, decode_command
from ogive.wire.headers.codec import Header
from ogive.wire.headers.pull import PopMessageRequest
from ogive.wire.signing import ACCESS_KEY


class LocalConnection(Connection):
    """A client's connection without a socket: the broker's handlers answer into futures."""

    def __init__(self, link: "LocalLink", broker: Broker) -> None:
        super().__init__()
        self._link, self._broker = link, broker
        self._asked: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.remote_address = link.client.address
        self.trusted = True
        broker.admit(self)

    def ask(self, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """Have the broker handle a request of the client. Raises ConnectError."""
        if self.closed:
            raise ConnectError(f"{self!r} is closed", self.remote_address)
        command.opaque = self.next_opaque()
        answered = self._asked[command.opaque] = self._loop.create_future()
        try:
            self._broker.handle(self, command)
        except BaseException:
            del self._asked[command.opaque]
            raise
        return answered

    def reply(self, answer: RemotingCommand | bytes, requests: int = 1) -> None:
        if isinstance(answer, bytes):
            answer = decode_command(answer[4:])
        waiting = self._asked.pop(answer.opaque, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def call(
        self, command: RemotingCommand, timeout_s: float, *, as_view: bool = False
    ) -> RemotingCommand:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._link.on_request(command)
        except TimeoutError:
            raise RequestTimeout(
                f"no answer from {self.remote_address} within {timeout_s} s", self.remote_address
            ) from None

    def send_nowait(self, command: RemotingCommand) -> None:
        self._link.on_notice(command)

    def close(self) -> None:
        self._finish("closed")

    def leave(self) -> None:
        self._finish("closed")

    def abort(self, reason: str, *, level: int = 0) -> None:
        self._finish(reason or "aborted")
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            if not waiting.done():
                waiting.set_exception(ConnectionLost(reason, self.remote_address))


class LocalLink:
    """See Link."""

    def __init__(
        self,
        broker: Broker,
        releases: Releases,
        client: ClientIdentity,
        on_request: OnRequest,
        on_notice: OnNotice,
        on_close: Callable[[], None],
    ) -> None:
        self.client, self.on_request, self.on_notice = client, on_request, on_notice
        self._broker = broker
        self._connection = LocalConnection(self, broker)
        self._connection.on_close.append(lambda _: on_close())
        self._late = LatePops(self, releases)

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def close(self) -> None:
        self._connection.close()

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        return await _call(self._connection, self._signed(command), address, timeout_s)

    async def pop(self, address: str, header: PopMessageRequest) -> PopAnswer:
        # one connection for each pop, because closing it ends the wait
        waiter = _Waiter(self, LocalConnection(self, self._broker))
        popping = rpc.pop_message(waiter, address, header, broker_name=address)
        try:
            return await self._late.take(popping, address, header)
        finally:
            waiter.connection.close()

    async def release(
        self, address: str, group: str, acks: Iterable[Ack], invisible_ms: int
    ) -> None:
        try:
            waiter = _Waiter(self, LocalConnection(self, self._broker))
        except OgiveError:
            # the broker has stopped: the leases end by themselves
            return
        for ack in acks:
            # the lease of one that fails ends by itself
            with suppress(OgiveError):
                await rpc.change_invisible_time(
                    waiter, address, group, ack, invisible_ms, suspend=True
                )
        waiter.connection.close()

    def check(self, header: Header) -> None:
        guard = self._broker.context.guard
        if guard is not None:
            guard.check(self._signed(rpc.request(header)), self.client.address)

    def _signed(self, command: RemotingCommand) -> RemotingCommand:
        command.language, command.version = self.client.language, self.client.version
        guard = self._broker.context.guard
        if guard is not None and (found := guard.table.find(self.client.user)) is not None:
            command.ext_fields = found[1].sign(command.ext_fields, command.body)
        return command


class _Waiter:
    """The way of one pop to the broker."""

    def __init__(self, link: LocalLink, connection: LocalConnection) -> None:
        self._link, self.connection = link, connection

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        return await _call(self.connection, self._link._signed(command), address, timeout_s)


async def _call(
    connection: LocalConnection, command: RemotingCommand, address: str, timeout_s: float
) -> RemotingCommand:
    answered = connection.ask(command)
    if answered.done():
        return answered.result()
    try:
        async with asyncio.timeout(timeout_s):
            return await answered
    except TimeoutError:
        raise RequestTimeout(f"no answer from {address} within {timeout_s} s", address) from None


class LocalBackend:
    """See Backend."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.releases = Releases()

    @property
    def guarded(self) -> bool:
        return self._broker.context.guard is not None

    async def has_signed(self, user: str, text: str, signature: str) -> bool:
        guard = self._broker.context.guard
        return guard is not None and guard.table.has_signed(user, text, signature)

    def refused(self, user: str, address: str, reason: str) -> None:
        guard = self._broker.context.guard
        if guard is not None:
            command = RemotingCommand(RequestCode.HEART_BEAT, {ACCESS_KEY: user} if user else {})
            guard.table.refusals.note(command, address.rpartition(":")[0], guard.server, reason)

    def link(
        self,
        client: ClientIdentity,
        on_request: OnRequest,
        on_notice: OnNotice,
        on_close: Callable[[], None],
    ) -> LocalLink:
        return LocalLink(self._broker, self.releases, client, on_request, on_notice, on_close)

    async def route(self, topic: str) -> Sequence[QueueData]:
        config = self._broker.context.topics.get(topic)
        if config is None:
            return ()
        return (
            QueueData(
                broker_name=self._broker.config.name,
                read_queues=config.read_queues,
                write_queues=config.write_queues,
                perm=config.perm,
            ),
        )

    async def message_type(self, topic: str) -> str:
        config = self._broker.context.topics.get(topic)
        return "" if config is None else config.attributes.get(MESSAGE_TYPE, "")

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        return self._broker.context.groups.get(name)
