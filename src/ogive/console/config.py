"""Settings of the console."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ogive.client.config import ClientConfig
from ogive.errors import InvalidOption
from ogive.transport.connection import is_loopback
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

DEFAULT_PORT: Final = 8090
# clusters of one console: each has connections, queries and samples of its own
MAX_CLUSTERS: Final = 8
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
    """Settings of a console. *client* connects to the cluster.

    *credentials*: the user and password that browsers must send by HTTP basic; None: none.

    *name*: a host name that browsers may use, in addition to IP addresses and localhost. *tls*:
    serve HTTPS with that certificate.

    *context*: the cluster's name on pages, needed if the console shows several.

    *actions*: offer changes. With access control they are signed with the user and password that
    the browser sends; without, the console must listen on loopback and have *credentials*.
    """

    client: ClientConfig
    context: str = ""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 chooses a free port."""
    name: str | None = None
    credentials: Credentials | None = None
    tls: TlsConfig | None = None
    actions: bool = False

    def __post_init__(self) -> None:
        if "/" in self.context or self.context in (".", ".."):
            raise InvalidOption(
                f"context {self.context}: its name cannot be a part of the address of a page"
            )
        try:
            loopback = is_loopback(self.host)
        except ValueError:
            raise InvalidOption(f"host {self.host}: an IP address is expected") from None
        if not loopback and self.credentials is None:
            raise InvalidOption(
                f"host {self.host} is not loopback, and anyone who can reach it could read all "
                "messages: give credentials that browsers must enter"
            )
        if self.client.credentials is not None and self.credentials is None:
            raise InvalidOption(
                "the cluster asks for credentials, and anyone on this machine could use the "
                "console's: give credentials that browsers must enter"
            )
        if self.actions and self.credentials is None:
            raise InvalidOption(
                "anyone on this machine could change the cluster: actions need credentials that "
                "browsers must enter"
            )
        if self.actions and self.client.credentials is None and not loopback:
            raise InvalidOption(
                f"host {self.host} is not loopback, and without access control no broker checks "
                "who changes what: actions need one of the two"
            )

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"


def check_clusters(configs: Sequence[ConsoleConfig]) -> None:
    """Raise InvalidOption if a console cannot show these clusters side by side."""
    if len(configs) > MAX_CLUSTERS:
        raise InvalidOption(
            f"{len(configs)} clusters: a console shows at most {MAX_CLUSTERS}; start another one"
        )
    names = [config.context for config in configs]
    if len(configs) > 1 and (len(set(names)) < len(names) or not all(names)):
        raise InvalidOption("each cluster of a console needs a context of its own")
