"""Interface for telemetry of all clients of this process, used by ogive.otel.

A producer looks for the instrumentation once, when it is made, and a push consumer when it starts
or gets a listener. Pull and simple consumers look at each call. Without an instrumentation nothing
is observed, and messages cost nothing more.
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
    """Outcome of messages that travelled in one request."""

    results: Sequence[SendResult] | None
    """One result for each message; None after an error, and for one-way sends."""
    error: BaseException | None
    """Reason why the messages are not stored, or may not be; None after a success."""
    address: str
    """Address of the broker as ``host:port``; empty if no broker was chosen."""
    client_id: str
    """Client id of the producer."""
    namespace: str
    """Namespace of 4.x; empty if there is none."""
    is_batch: bool
    """True for ``send_batch``."""
    is_transaction: bool
    """True for a half message."""


class Instrumentation(Protocol):
    """Observer of sends, receives and listener calls. Its methods must neither raise nor block."""

    def send_begins(self, message: Message, *, in_batch: bool) -> tuple[Message, Any]:
        """Return the message to send, and an object that is passed to ``send_ended``. Called in the
        sender's thread and context, after the hooks.
        """
        ...

    def send_ended(self, begun: Sequence[Any], end: SendEnd) -> None:
        """Observe the outcome of messages that travelled in one request. Called on the loop."""
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
        """Observe the end of a pull or simple consumer's call. It began at *since_ns*, in
        nanoseconds since 1970. Called in the context of the caller.
        """
        ...

    def interceptor(
        self, *, in_batches: bool, broadcast: bool, namespace: str, inherits: bool
    ) -> Callable[[Any], AbstractContextManager[Any]]:
        """Return the outermost interceptor of one listener.

        *inherits* is True for an iterated consumer: the interceptor then runs around the
        application's ``process()`` block, so a span that is current there is the parent.
        """
        ...


_current: Instrumentation | None = None


def instrumentation() -> Instrumentation | None:
    """Return the instrumentation of this process, or None."""
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
    """Await *work*, and report it unless it returns no messages or is cancelled."""
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
