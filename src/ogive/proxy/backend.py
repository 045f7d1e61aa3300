"""The brokers behind the service: in this process (local.py), or reached over remoting.

Requests have the form of the remoting protocol: the service makes the same commands for either.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ogive.client.rpc import PopAnswer
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.routes import QueueData
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header
from ogive.wire.headers.pop import PopMessageRequest
from ogive.wire.pop import PopHandle
from ogive.wire.signing import Credentials

OnRequest = Callable[[RemotingCommand], Coroutine[Any, Any, RemotingCommand]]
"""Callback for a request that a broker sends to the client, with the answer."""
OnNotice = Callable[[RemotingCommand], None]
"""Callback for a one-way request of a broker. Raises ConnectError if the client cannot get it."""

Ack = tuple[str, PopHandle]
"""Topic subscribed to, and handle of one of its messages."""


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


class Backend(Protocol):
    """The brokers that serve gRPC clients."""

    @property
    def guarded(self) -> bool:
        """Return True if clients need credentials."""

    def credentials(self, user: str) -> Credentials | None:
        """Return those of an enabled user."""

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
        """Return the queues of a topic; none if it does not exist."""

    async def message_type(self, topic: str) -> str:
        """Return the attribute message.type of a topic; empty if it has none."""

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration."""
