"""TLS at a listening socket: which connections must speak it, and the certificates. Source: TlsSystemConfig.java, TlsMode.java, 5.3.

Differs from Java
- Nothing is generated: without a certificate there is no TLS. With one, connections that do not speak TLS are closed, unless the mode is
  "permissive" (Java's default).
- TLS 1.2 and 1.3, no renegotiation.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ogive.errors import InvalidOption

TlsMode = Literal["permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "required"]

HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection. A frame begins with its length, whose first byte is 0 or 1."""
_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files in PEM form. *mode* permissive: TLS and plain connections on one port."""

    cert: Path  # tls.server.certPath; with the chain of its authorities
    key: Path  # tls.server.keyPath
    mode: TlsMode = "enforcing"  # tls.server.mode, permissive
    client_ca: Path | None = None  # tls.server.trustCertPath; authorities of clients' certificates
    client_auth: ClientAuth = "none"  # tls.server.need.client.auth

    def __post_init__(self) -> None:
        if self.mode not in get_args(TlsMode):
            raise InvalidOption(f"TLS mode {self.mode!r} is none of {', '.join(get_args(TlsMode))}")
        if self.client_auth not in get_args(ClientAuth):
            raise InvalidOption(f"TLS client certificates {self.client_auth!r}: {', '.join(get_args(ClientAuth))} are possible")
        if (self.client_auth != "none") != (self.client_ca is not None):
            raise InvalidOption("asking clients for certificates needs both the authorities to trust and whether they are required")

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises InvalidOption that names the one that is wrong."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        for path in filter(None, (self.cert, self.key, self.client_ca)):
            try:
                path.open("rb").close()
            except OSError as exc:
                raise InvalidOption(f"TLS: {path} cannot be read: {(exc.strerror or str(exc)).lower()}") from None
        try:
            context.load_cert_chain(self.cert, self.key, password=refuse_password)
        except (ssl.SSLError, ValueError) as exc:
            reason = getattr(exc, "reason", None) or exc
            raise InvalidOption(f"TLS: {self.cert} and {self.key} are no certificate and its key: {reason}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as exc:
                raise InvalidOption(f"TLS: {self.client_ca} holds no certificate of an authority: {exc.reason or exc}") from None
        context.verify_mode = _VERIFY[self.client_auth]
        return context


def refuse_password() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; a key without password is needed")
