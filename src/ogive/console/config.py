"""Settings of the console."""

import importlib.util
from dataclasses import dataclass
from typing import Final

from ogive.client.config import ClientConfig
from ogive.errors import InvalidOption
from ogive.transport.connection import is_loopback
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

DEFAULT_PORT: Final = 8090
_EXTRA: Final = ("jinja2", "starlette", "uvicorn")


def require_extra() -> None:
    """Raise InvalidOption that says what to install, if something is missing."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidOption(
            f"the web console needs {', '.join(missing)}: pip install 'ogive[console]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Settings of a console. *client* reaches the cluster.

    *credentials*: what a browser is asked for, as HTTP basic; None: nothing.

    *name*: a host name under which browsers reach the console, beside addresses and localhost.
    *tls*: speak HTTPS with that certificate.
    """

    client: ClientConfig
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes a free one."""
    name: str | None = None
    credentials: Credentials | None = None
    tls: TlsConfig | None = None

    def __post_init__(self) -> None:
        try:
            loopback = is_loopback(self.host)
        except ValueError:
            raise InvalidOption(f"host {self.host}: an IP address is expected") from None
        if not loopback and self.credentials is None:
            raise InvalidOption(
                f"host {self.host} is not loopback, and everybody who reaches it could read all "
                "messages: "
                "credentials to ask them for are needed"
            )
        if self.client.credentials is not None and self.credentials is None:
            raise InvalidOption(
                "the cluster asks for credentials, and everybody on this machine could use the "
                "console's: "
                "credentials to ask them for are needed"
            )

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"
