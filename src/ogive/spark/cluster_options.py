"""Connection options of a Spark job, shared by source and sink.

Hashable, and pickled to executors; connections live in cluster.py.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ogive.client.config import (
    DEFAULT_NAME_SERVER,
    ClientConfig,
    parse_name_servers,
    read_credentials,
    trusting,
)
from ogive.client.namespace import Namespace, validate_namespace
from ogive.errors import InvalidOption
from ogive.wire.signing import Credentials

NAMES: Final = (
    "nameServer",
    "namespace",
    "credentials",
    "accessKey",
    "secretKey",
    "securityToken",
    "tls",
    "tls.ca",
    "tls.certificate",
    "tls.key",
    "tls.verify",
)
ALIASES: Final = {"rocketmq.namesrv": "nameserver", "nameserveraddress": "nameserver"}

Given = Mapping[str, str]
"""Options in lower case, aliases resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Addresses, credentials and TLS.

    Files are read by the process that connects: they must exist on every executor.
    """

    name_servers: tuple[str, ...]
    credentials: Credentials | None = field(default=None, repr=False)
    credentials_file: str | None = None
    namespace: Namespace = field(default_factory=Namespace)
    tls: bool = False
    # None: the system's authorities
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = field(default=None, repr=False)
    tls_verify: bool = True

    @classmethod
    def parse(cls, given: Given, flag: Callable[[str, bool], bool]) -> "Access":
        """Read the options. *flag* reads one that is true or false. Raises InvalidOption."""
        parts = {
            name: given[name]
            for name in ("tls.ca", "tls.certificate", "tls.key", "tls.verify")
            if name in given
        }
        access = cls(
            name_servers=parse_name_servers(given.get("nameserver", DEFAULT_NAME_SERVER)),
            credentials=_credentials(given),
            credentials_file=given.get("credentials"),
            namespace=_namespace(given),
            tls=flag("tls", False),
            tls_ca=parts.get("tls.ca"),
            tls_certificate=parts.get("tls.certificate"),
            tls_key=parts.get("tls.key"),
            tls_verify=flag("tls.verify", True),
        )
        if parts and not access.tls:
            raise InvalidOption(
                f"{next(iter(parts))} needs the option tls=true: without it connections are not "
                "encrypted"
            )
        if access.tls_key is not None and access.tls_certificate is None:
            raise InvalidOption("tls.key needs the option tls.certificate")
        if access.credentials is not None and access.credentials_file is not None:
            raise InvalidOption(
                "credentials are given twice: the option credentials names a file that holds "
                "accessKey and secretKey"
            )
        return access

    @classmethod
    def of(cls, client: ClientConfig) -> "Access":
        """Return the options of *client*. Raises InvalidOption for what cannot be sent to other
        processes.
        """
        if client.name_server_source is not None:
            raise InvalidOption(
                f"{client.name_server}: Spark's processes fetch no list of name servers, give it "
                "as host:port;host:port"
            )
        if client.namespace_v2 is not None:
            raise InvalidOption(
                "a namespace of 5.x (namespace_v2) is not known on Spark: use --engine local"
            )
        if isinstance(client.ssl, ssl.SSLContext):
            raise InvalidOption(
                "an SSLContext cannot be sent to executors: give an Access(tls=True, tls_ca=...), "
                "whose files they read"
            )
        return cls(
            name_servers=client.name_servers,
            credentials=client.credentials,
            namespace=Namespace(client.namespace or ""),
            tls=client.ssl,
        )

    def options(self) -> dict[str, str]:
        """Return the options from which ``parse`` creates this object.

        They include a secret that was not in a file, under names that Spark hides in its texts.
        """
        user = self.credentials
        said = {
            "nameServer": ";".join(self.name_servers),
            "namespace": self.namespace.name or None,
            "credentials": self.credentials_file,
            "accessKey": user.access_key if user else None,
            "secretKey": user.secret_key if user else None,
            "securityToken": user.security_token if user else None,
            "tls": "true" if self.tls else None,
            "tls.ca": self.tls_ca,
            "tls.certificate": self.tls_certificate,
            "tls.key": self.tls_key,
            "tls.verify": None if self.tls_verify else "false",
        }
        return {name: text for name, text in said.items() if text is not None}

    def client(self, others: ClientConfig | None = None) -> ClientConfig:
        """Return settings for a client in this process; *others* are its further settings.

        Raises InvalidOption for a file that cannot be read.
        """
        return replace(
            others or ClientConfig(),
            name_server=";".join(self.name_servers),
            credentials=(
                read_credentials(self.credentials_file)
                if self.credentials_file is not None
                else self.credentials
            ),
            ssl=self.ssl_context() or False,
            namespace=self.namespace.name or None,
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS settings, or None if connections are not encrypted.

        Raises InvalidOption for a file that cannot be read.
        """
        if not self.tls:
            return None
        context = trusting(self.tls_ca, self.tls_certificate, self.tls_key)
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _namespace(given: Given) -> Namespace:
    name = given.get("namespace")
    validate_namespace(name)
    return Namespace(name or "")


def _credentials(given: Given) -> Credentials | None:
    access_key, secret_key = given.get("accesskey"), given.get("secretkey")
    if access_key is None and secret_key is None and "securitytoken" not in given:
        return None
    if access_key is None or secret_key is None:
        raise InvalidOption("credentials are two options: accessKey and secretKey")
    return Credentials(
        access_key=access_key, secret_key=secret_key, security_token=given.get("securitytoken")
    )
