"""The brokers behind the service: in this process (local.py), or reached over remoting.

Requests have the form of the remoting protocol: the service makes the same commands for either.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ogive.client.rpc import PopAnswer
from ogive.errors import OgiveError
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.routes import QueueData
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header
from ogive.wire.headers.pull import PopMessageRequest
from ogive.wire.pop import PopHandle

OnRequest = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand]]
"""Callback for a request that a broker sends to the client, with the answer."""
OnNotice = Callable[[RemotingCommand], None]
"""Callback for a one-way request of a broker. Raises ConnectError if the client cannot get it."""

Ack = tuple[str, PopHandle]
"""Topic subscribed to, and handle of one of its messages."""

LATE_S: Final = 30.0
"""Time limit for the answer to a cancelled pop."""
STOP_S: Final = 3.0
"""Time that a stop gives to requests that make messages visible again."""


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client as brokers know it. *user* is empty without access control."""

    client_id: str
    user: str
    address: str
    """``host:port``."""
    language: int
    """One of LanguageCode."""
    version: int
    """The ordinal of MQVersion.java."""


class Link(Protocol):
    """One client's link to the brokers.

    Heartbeats register the client there until the link closes. *address* is a broker's name; an
    empty one means every broker that the client uses. Raises OgiveError if a request is not
    carried out.
    """

    @property
    def closed(self) -> bool: ...

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand: ...

    async def pop(self, address: str, header: PopMessageRequest) -> PopAnswer:
        """Pop messages. A cancelled call loses none: they become visible again at once."""

    async def release(
        self, address: str, group: str, acks: Iterable[Ack], invisible_ms: int
    ) -> None:
        """Make messages visible again after a time, without counting a try. A closed link can do
        it, too; a message for which it fails stays invisible until its lease ends.
        """

    def check(self, header: Header) -> None:
        """Raise AccessRefused if the client may not send a request with *header*."""

    def close(self) -> None: ...


class Releases:
    """Tasks that make messages visible again. They outlive their client; a stop waits for them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait for all tasks, at most STOP_S; leases that are left end by themselves."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)


class LatePops:
    """Pops of one link. Messages of a cancelled pop become visible again."""

    def __init__(self, link: Link, releases: Releases) -> None:
        self._link, self._releases = link, releases
        self._late: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of cancelled pops without an answer yet."""
        return len(self._late)

    async def take(
        self, pop: Coroutine[Any, Any, PopAnswer], address: str, header: PopMessageRequest
    ) -> PopAnswer:
        """Return the answer of *pop*."""
        popping = asyncio.create_task(pop, name="pop")
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            late = self._releases.spawn(self._give_back(popping, address, header), "late pop")
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            raise

    async def _give_back(
        self, popping: "asyncio.Task[PopAnswer]", address: str, header: PopMessageRequest
    ) -> None:
        """Make messages visible again that were popped for a client that is gone."""
        try:
            async with asyncio.timeout(LATE_S):
                answer = await popping
        except (TimeoutError, OgiveError):
            # nothing was popped for it
            return
        acks = [(header.topic, handle) for _, handle in answer.messages]
        await self._link.release(address, header.consumer_group, acks, 0)


class Backend(Protocol):
    """The brokers that serve gRPC clients.

    Topics and groups are looked up with the server's own rights: check the client's rights first.
    """

    @property
    def releases(self) -> Releases: ...

    @property
    def guarded(self) -> bool:
        """Return True if clients need credentials."""

    async def has_signed(self, user: str, text: str, signature: str) -> bool:
        """Return True if *signature*, in hex, is that of an enabled user over *text*."""

    def refused(self, user: str, address: str, reason: str) -> None:
        """Record that a client was not let in."""

    def link(
        self,
        client: ClientIdentity,
        on_request: OnRequest,
        on_notice: OnNotice,
        on_close: Callable[[], None],
    ) -> Link:
        """Return a new link. *on_close* is called when it closes, whoever closes it."""

    async def route(self, topic: str) -> Sequence[QueueData]:
        """Return the queues of a topic. If it does not exist, return none or raise NoRoute."""

    async def message_type(self, topic: str) -> str:
        """Return the attribute message.type of a topic; empty if it has none."""

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration."""
