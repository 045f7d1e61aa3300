"""Settings of a name server."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption
from ogive.transport.limits import ServerLimits
from ogive.transport.tls import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Settings of a name server. Times are in seconds.

    The comment of each setting has its name in Apache's namesrv.conf, and its default there if that
    differs.
    """

    host: str = "127.0.0.1"  # bindAddress, 0.0.0.0
    port: int = 9876
    """listenPort; 0 chooses a free port."""
    advertised_host: str | None = None
    """Host in `address`; required if host is a wildcard."""
    cluster: str = "DefaultCluster"
    """rocketmqClusterName has no use there; here it is the server's own cluster for access control.
    """
    kv_path: Path | None = None
    """kvConfigPath; None keeps KV settings in memory only."""
    broker_expiry_s: float = 120.0
    """Time without a sign of life after which a broker is removed, unless it sends
    heartbeatTimeoutMillis.
    """
    scan_s: float = 5.0  # scanNotActiveBrokerInterval
    order_messages: bool = False
    """orderMessageEnable: routes carry ORDER_TOPIC_CONFIG."""
    max_brokers: int = 1_000  # addresses
    max_topics: int = 100_000
    """A topic counts once for each broker that has it."""
    max_kv_entries: int = 10_000
    stop_grace_s: float = 1.0
    tls: TlsConfig | None = None
    """tls.server.*; None: connections without TLS."""
    server: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InvalidOption(f"port={self.port}: must be between 0 and 65535")
        if self.host in ("0.0.0.0", "::") and not self.advertised_host:
            raise InvalidOption(
                f"host={self.host}: give advertised_host too, the address at which clients reach "
                "this name server"
            )
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name}={getattr(self, name)}: must be more than 0")


_POSITIVE: Final = (
    "broker_expiry_s",
    "scan_s",
    "max_brokers",
    "max_topics",
    "max_kv_entries",
    "stop_grace_s",
)
