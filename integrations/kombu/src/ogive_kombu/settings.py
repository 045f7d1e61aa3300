"""Settings of a connection: from kombu's URL and transport options to those of ogive's clients."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ogive import ClientConfig, Credentials, InvalidOption

DEFAULT_PORT: Final = 9876
VISIBILITY_TIMEOUT_S: Final = 60.0
MAX_VISIBILITY_S: Final = 12 * 3600.0
MAX_DELAY_S: Final = 71 * 3600.0
"""An hour less than the brokers' limit, because clocks may differ."""
OPTIONS: Final = ("name_server", "visibility_timeout", "max_delay", "body_encoding")
KOMBU_OPTIONS: Final = frozenset(
    {
        "callback",
        "connect_retries_timeout",
        "errback",
        "interval_max",
        "interval_start",
        "interval_step",
        "max_retries",
        "on_revive",
        "retry_errors",
    }
)
"""Options that kombu itself reads or sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one kombu connection."""

    client: ClientConfig
    visibility_timeout_s: float = VISIBILITY_TIMEOUT_S
    """Lease of a message. The worker renews it until the message is acknowledged, so this is the
    time after which the messages of a killed worker are delivered again."""
    max_delay_s: float = MAX_DELAY_S
    """Longest time for which the broker holds a task. Brokers refuse delays over three days."""

    def __post_init__(self) -> None:
        if not 1 <= self.visibility_timeout_s <= MAX_VISIBILITY_S:
            raise InvalidOption(
                f"transport option visibility_timeout is {self.visibility_timeout_s}: must be "
                f"between 1 and {MAX_VISIBILITY_S:g} seconds"
            )
        if self.max_delay_s < 0:
            raise InvalidOption(
                f"transport option max_delay is {self.max_delay_s}: must be at least 0 seconds"
            )

    @classmethod
    def from_connection(cls, connection: Any) -> Self:
        """Return the settings of a ``kombu.Connection``.

        Raises InvalidOption for an invalid part of the URL or option, and names it.
        """
        options: Mapping[str, Any] = connection.transport_options
        if unknown := sorted(set(options) - set(OPTIONS) - KOMBU_OPTIONS):
            raise InvalidOption(
                f"unknown transport option {', '.join(unknown)}; there are {', '.join(OPTIONS)}"
            )
        host, port = connection.hostname or "127.0.0.1", connection.port or DEFAULT_PORT
        client = ClientConfig(
            name_server=options.get("name_server") or f"{host}:{port}",
            ssl=tls(connection.ssl),
            credentials=credentials(connection.userid, connection.password),
            namespace=(connection.virtual_host or "").strip("/") or None,
            connect_timeout_s=connection.connect_timeout or ClientConfig().connect_timeout_s,
        )
        return cls(
            client=client,
            visibility_timeout_s=seconds(options, "visibility_timeout", VISIBILITY_TIMEOUT_S),
            max_delay_s=seconds(options, "max_delay", MAX_DELAY_S),
        )


def seconds(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"transport option {name} is {value!r}: must be a number of seconds")
    return value


def credentials(user: str | None, password: str | None) -> Credentials | None:
    if bool(user) != bool(password):
        raise InvalidOption(
            "the URL has only one of user and password: access control needs both, "
            "rocketmq://ACCESS_KEY:SECRET_KEY@host:9876//"
        )
    return Credentials(access_key=user, secret_key=password) if user and password else None


def tls(wanted: Any) -> ssl.SSLContext | bool:
    """Return the TLS setting for ``broker_use_ssl`` or the ``ssl_`` parameters of a URL.

    True checks certificates against the system's authorities. A dict may have ca_certs, certfile,
    keyfile, cert_reqs and check_hostname, each with or without the prefix ``ssl_``. Raises
    InvalidOption for any other key, and OSError for a file that cannot be read.
    """
    if wanted is None or isinstance(wanted, bool | ssl.SSLContext):
        return wanted or False
    if isinstance(wanted, str) and wanted.lower() in ("true", "false"):
        return wanted.lower() == "true"
    if not isinstance(wanted, Mapping):
        raise InvalidOption(f"ssl is {wanted!r}: must be True, False, a dict or an ssl.SSLContext")
    given = {str(name).removeprefix("ssl_"): value for name, value in wanted.items()}
    context = ssl.create_default_context(cafile=given.pop("ca_certs", None))
    certificate, key = given.pop("certfile", None), given.pop("keyfile", None)
    if key and not certificate:
        raise InvalidOption("ssl has a keyfile without a certfile")
    if certificate:
        context.load_cert_chain(certificate, key)
    required = given.pop("cert_reqs", ssl.CERT_REQUIRED)
    context.check_hostname = given.pop("check_hostname", required == ssl.CERT_REQUIRED)
    context.verify_mode = required
    if given:
        raise InvalidOption(
            f"unknown key of ssl: {', '.join(sorted(given))}; there are ca_certs, certfile, "
            "keyfile, cert_reqs and check_hostname"
        )
    return context
