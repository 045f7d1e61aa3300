"""Seam for telemetry of all clients of the process, see ogive.otel.

A producer, a push consumer and a listener ask for the instrumentation once, when they are made;
pull consumers and simple consumers ask at each call. Without one nothing else happens.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ogive.model import Message, MessageExt, SendResult

M = TypeVar("M", bound=Sequence[MessageExt])


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEnd:
    """Outcome of the messages of one call that went together."""

    results: Sequence[SendResult] | None
    """One for each message; None after an error, and if one-way."""
    error: BaseException | None
    """Why they are not stored, or perhaps not."""
    address: str
    """Broker's address as ``host:port``; empty if none was chosen."""
    client_id: str
    """Name of the producer at the brokers."""
    namespace: str
    """Namespace of 4.x; empty without one."""
    is_batch: bool
    """True for ``send_batch``."""
    is_transaction: bool
    """True for a half message."""


class Instrumentation(Protocol):
    """Observer of sends, receives and listener calls. Its methods must neither raise nor block."""

    def send_begins(self, message: Message, *, in_batch: bool) -> tuple[Message, Any]:
        """Return the message to send, and what ``send_ended`` gets for it. Called in the sender's
        thread and context, after the hooks.
        """
        ...

    def send_ended(self, begun: Sequence[Any], end: SendEnd) -> None:
        """Observe the outcome of messages that went together. Called on the loop."""
        ...

    def client_operation(
        self,
        operation: str,
        group: str | None,
        topics: Iterable[str],
        messages: Sequence[MessageExt],
        since_ns: int,
        error: Exception | None,
    ) -> None:
        """Observe the end of a call of a consumer, which began at *since_ns* since 1970. Called in
        the context of the caller.
        """
        ...

    def interceptor(
        self, *, in_batches: bool, broadcast: bool, namespace: str, inherits: bool
    ) -> Callable[[Any], AbstractContextManager[Any]]:
        """Return the outermost interceptor of one listener. *inherits*: it runs in a context of the
        application's, around a message of an iterated consumer.
        """
        ...


_current: Instrumentation | None = None


def instrumentation() -> Instrumentation | None:
    """Return what observes the clients of this process, or None."""
    return _current


def set_instrumentation(instrumentation: Instrumentation | None) -> None:
    global _current  # noqa: PLW0603
    _current = instrumentation


async def observed(
    operation: str,
    group: str | None,
    topics: Iterable[str],
    work: Awaitable[M],
) -> M:
    """Await *work*, and report it unless it finds nothing or is cancelled."""
    observer = _current
    if observer is None:
        return await work
    since_ns = time.time_ns()
    try:
        messages = await work
    except Exception as exc:
        observer.client_operation(operation, group, topics, (), since_ns, exc)
        raise
    if messages:
        observer.client_operation(operation, group, topics, messages, since_ns, None)
    return messages
