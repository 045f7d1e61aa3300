"""Settings and limits of the gRPC endpoint."""

from dataclasses import dataclass, field
from typing import Final

from ogive.errors import InvalidOption
from ogive.transport.limits import ServerLimits
from ogive.wire.command import MAX_FRAME_BYTES

DEFAULT_PORT: Final = 8081


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """Settings of an endpoint. Times in seconds.

    Of *server* the limits of connections, of waiting data and of slow clients apply here too.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """grpcServerPort; 0: a free port."""
    server: ServerLimits = field(default_factory=ServerLimits)
    max_streams: int = 1024
    """Calls at once on one connection; a client keeps one open for each queue."""
    max_calls: int = 65_536
    """Calls at once on all connections."""
    max_request_bytes: int = MAX_FRAME_BYTES
    """grpcMaxInboundMessageSize, 130 MiB; a message of a request, as on the remoting port."""
    max_deadline_s: float = 24 * 3600.0
    """A longer grpc-timeout counts as this."""
    idle_s: float = 120.0
    """Time after which a connection without calls is closed; grpcClientIdleTimeMills."""
    stop_grace_s: float = 1.0
    """Time for calls in progress at a stop."""

    def __post_init__(self) -> None:
        sizes = (self.max_streams, self.max_calls, self.max_request_bytes)
        if min(*sizes, self.max_deadline_s, self.idle_s) <= 0:
            raise InvalidOption("every limit of the gRPC endpoint must be above zero")
