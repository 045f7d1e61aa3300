"""TLS at a listening socket: which connections must speak it, and the certificates.

Source: TlsSystemConfig.java, TlsMode.java, 5.3.

Differs from Java
- No certificate is generated: without one there is no TLS. With one, connections that do not speak
  TLS are closed, unless the mode is "permissive" (Java's default).
- TLS 1.2 and 1.3, no renegotiation.
"""

import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ogive.errors import InvalidOption

TlsMode = Literal["permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "required"]

HANDSHAKE: Final = 0x16
"""The first byte of a TLS connection.

A frame begins with its length, whose first byte is 0 or 1.
"""
_END: Final = "-----END CERTIFICATE-----"
_KEY: Final = b"PRIVATE KEY-----"
_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Files in PEM form. *mode* permissive: TLS and plain connections on one port."""

    cert: Path
    """tls.server.certPath; with the chain of its authorities."""
    key: Path  # tls.server.keyPath
    mode: TlsMode = "enforcing"  # tls.server.mode, permissive
    client_ca: Path | None = None
    """tls.server.trustCertPath; authorities of clients' certificates."""
    client_auth: ClientAuth = "none"  # tls.server.need.client.auth

    def __post_init__(self) -> None:
        if self.mode not in get_args(TlsMode):
            raise InvalidOption(
                f"TLS mode {self.mode!r} is not one of {', '.join(get_args(TlsMode))}"
            )
        if self.client_auth not in get_args(ClientAuth):
            raise InvalidOption(
                f"TLS client certificates {self.client_auth!r}: must be one of "
                f"{', '.join(get_args(ClientAuth))}"
            )
        if (self.client_auth != "none") != (self.client_ca is not None):
            raise InvalidOption(
                "asking clients for certificates needs both the authorities to trust and whether "
                "they are required"
            )

    def context(self) -> ssl.SSLContext:
        """Read the files. Raises InvalidOption that names the wrong one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        for path in filter(None, (self.cert, self.key, self.client_ca)):
            if path.exists() and not path.is_file():
                # opening a pipe, for example, could block for ever
                raise InvalidOption(f"TLS: {path} is not a file")
            try:
                path.open("rb").close()
            except OSError as exc:
                raise InvalidOption(
                    f"TLS: {path} cannot be read: {(exc.strerror or str(exc)).lower()}"
                ) from None
        try:
            context.load_cert_chain(self.cert, self.key, password=refuse_password)
        except (ssl.SSLError, ValueError) as exc:
            raise InvalidOption(f"TLS: {fault_of(self.cert, self.key, exc)}") from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as exc:
                raise InvalidOption(
                    f"TLS: {self.client_ca} holds no certificate of an authority: "
                    f"{exc.reason or exc}"
                ) from None
        context.verify_mode = _VERIFY[self.client_auth]
        return context

    def doubt(self, host: str) -> str:
        """Return why a client that connects to *host* would refuse the certificate, its authority
        aside; an empty text if it would accept it, or if that is unknown.

        Reads the files: the handshake of such a client is done in memory. Raises InvalidOption for
        files that cannot be used.
        """
        server = self.context()
        try:
            client = ssl.create_default_context(cadata=first_certificate(self.cert))
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
            asks = client.wrap_bio(to_client, to_server, server_hostname=host)
            answers = server.wrap_bio(to_server, to_client, server_side=True)
            # hello, certificate, verification
            for side in (asks, answers, asks):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        except ssl.SSLCertVerificationError as exc:
            return exc.verify_message
        except (ssl.SSLError, InvalidOption):
            # for example a form of PEM that only the server side reads
            pass
        return ""


def first_certificate(path: Path) -> str:
    """Return the first certificate of a chain, its owner's, as PEM. Raises InvalidOption."""
    try:
        first, end, _ = path.read_text("ascii", "ignore").partition(_END)
    except OSError as exc:
        raise InvalidOption(f"TLS: {path} cannot be read: {exc}") from None
    if not end:
        raise InvalidOption(f"TLS: {path} holds no certificate")
    return first + end


def fault_of(cert: Path, key: Path, exc: Exception) -> str:
    """Return the fault of a certificate and key for which OpenSSL raised only *exc*."""
    in_cert = cert.read_bytes()
    if b"CERTIFICATE-----" not in in_cert:
        return (
            f"{cert} holds no certificate in PEM "
            f"form{'; are certificate and key swapped?' if _KEY in in_cert else ''}"
        )
    if _KEY not in key.read_bytes():
        return f"{key} holds no key in PEM form"
    return f"{cert} and {key} are no certificate and its key: {getattr(exc, 'reason', None) or exc}"


def refuse_password() -> str:
    """Refuse an encrypted key: OpenSSL would ask for the password at the terminal."""
    raise ValueError("the key is encrypted; a key without password is needed")
