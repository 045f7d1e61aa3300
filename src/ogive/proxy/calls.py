"""The seam between the gRPC endpoint and the service: methods, the context of a call, errors.

The endpoint cancels the handler of a call (or closes its generator) when the caller cancels it,
goes away, or its deadline passes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol, Self


class GrpcStatus(IntEnum):
    """``grpc-status`` of a call. Source: gRPC's statuscodes.md."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """The call ends with this gRPC status. Most errors are a status in the response instead."""

    def __init__(self, code: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def _keep(_: int) -> None:
    """Count nothing: the call came from nowhere."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The metadata, client and deadline of a call."""

    metadata: Mapping[str, str]
    """The request's headers, with keys in lower case."""
    peer: tuple[str, int]
    """Address of the client; a load balancer's PROXY header names it."""
    tls: bool
    deadline: float | None
    """Time of the loop's clock when the caller gives up, None if it never does."""
    through: tuple[str, int] | None = None
    """Address of the load balancer if one named the client. Rules about addresses apply to it:
    anyone can send a PROXY header.
    """
    keep: Callable[[int], None] = _keep
    """Count more bytes, or less, that the handler keeps for the client. All are given back at the
    end of the call.
    """


class WireMessage(Protocol):
    """A message, as protobuf's generated classes are."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name

    @classmethod
    def FromString(cls, s: bytes, /) -> Self: ...  # noqa: N802


class CallKind(Enum):
    """The sides of a call that are streams."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BOTH_STREAMS = "both streams"


Unary = Callable[[Any, CallContext], Awaitable[WireMessage]]
ServerStream = Callable[[Any, CallContext], AsyncIterator[WireMessage]]
BothStreams = Callable[[AsyncIterator[Any], CallContext], AsyncIterator[WireMessage]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method that the endpoint serves. A service is ``Mapping[path, Method]``.

    *handler* is a Unary, ServerStream or BothStreams, as *kind* says.
    """

    name: str
    kind: CallKind
    request: type[WireMessage]
    handler: Unary | ServerStream | BothStreams
