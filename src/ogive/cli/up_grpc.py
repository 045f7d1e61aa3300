"""The gRPC port of ``ogive up`` and ``ogive proxy``: if it is served, with which certificate, and
at which address.

Without --grpc-port it is an offer: a missing package, or a port that is in use, only turn it off.

SDKs use TLS by default, and trust any certificate. One is made by cryptography or the program
openssl, and kept with its key in one file, which only this user can read.
"""

import argparse
import asyncio
import contextlib
import datetime
import errno
import ipaddress
import logging
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ogive.errors import ConnectError, InvalidOption
from ogive.files import replace_file
from ogive.transport.connection import join_address, split_address
from ogive.transport.event_loop import every, watch
from ogive.transport.limits import ServerLimits
from ogive.transport.tls import TlsConfig

if TYPE_CHECKING:
    from ogive.proxy.endpoint import Endpoint
    from ogive.proxy.service import Service

log = logging.getLogger(__name__)

VALID_DAYS: Final = 397
RENEWED_DAYS: Final = 300
"""Age at which a certificate is replaced."""
_OPENSSL_S: Final = 30.0
MISSING: Final = (
    "no certificate can be made: install cryptography (pip install 'ogive[grpc]') or openssl, or "
    "give --tls-cert and --tls-key"
)


class OwnCertificate:
    """A self-signed certificate in a file, made when it is missing, damaged or old."""

    def __init__(self, path: Path, host: str) -> None:
        """*host*: address or name for which it is made."""
        self.path = path
        self._host = host

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a server; None if no certificate can be made.

        Raises InvalidOption if the file cannot be written.
        """
        age_s = None
        with contextlib.suppress(OSError):
            age_s = time.time() - self.path.stat().st_mtime
        if age_s is not None and 0 <= age_s < RENEWED_DAYS * 86_400:
            with contextlib.suppress(OSError, ssl.SSLError):
                return self._load()
            log.warning("%s is not a certificate with its key: it is made again", self.path)
        made = _by_cryptography(self._host) or _by_openssl(self._host)
        if made is None:
            return None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, made, mode=0o600)
        except OSError as exc:
            raise InvalidOption(f"{self.path} cannot be written: {exc.strerror}") from None
        log.info("made a self-signed certificate for gRPC clients: %s", self.path)
        return self._load()

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.load_cert_chain(self.path)
        return context


def _by_cryptography(host: str) -> bytes | None:
    """Return key and certificate as PEM; None if cryptography is not installed."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        return None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ogive")])
    place: x509.GeneralName = x509.DNSName(host)
    with contextlib.suppress(ValueError):
        place = x509.IPAddress(ipaddress.ip_address(host))
    # clocks of clients may be behind
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([place]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _by_openssl(host: str) -> bytes | None:
    """Return the same by openssl; None if it is not installed, or fails."""
    program = shutil.which("openssl")
    if program is None:
        return None
    kind = "DNS"
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        kind = "IP"
    words = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-days", str(VALID_DAYS), "-subj", "/CN=ogive"]
    words += ["-addext", f"subjectAltName={kind}:{host}", "-keyout", "-", "-out", "-"]
    try:
        # a fixed program; the host was checked
        done = subprocess.run(  # noqa: S603
            words, capture_output=True, stdin=subprocess.DEVNULL, timeout=_OPENSSL_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as exc:
        log.warning("openssl made no certificate: %s", exc)
        return None
    return done.stdout


DEFAULT_PORT: Final = 8081
CERTIFICATE: Final = "grpc-certificate.pem"
_DAY_S: Final = 86_400.0
Build = Callable[[], "Service"]
"""Function that returns the service of the port."""
# the packages of the extra that the endpoint needs
_EXTRA: Final = "google"


def check(options: argparse.Namespace) -> None:
    """Raise InvalidOption for options that exclude each other, or an address without a port."""
    if options.no_grpc and options.grpc_port is not None:
        raise InvalidOption("--no-grpc and --grpc-port exclude each other: leave one of them out")
    if options.grpc_advertised is not None:
        if options.no_grpc:
            raise InvalidOption("--grpc-advertised does nothing with --no-grpc: leave it out")
        advertised(options)
    if options.grpc_port is not None and _missing():
        raise InvalidOption("the gRPC port needs protobuf: pip install 'ogive[grpc]'")


def advertised(options: argparse.Namespace) -> tuple[str, int] | None:
    """Return the address for routes, None if they name the one that each client used."""
    if options.grpc_advertised is None:
        return None
    try:
        return split_address(options.grpc_advertised)
    except ConnectError as exc:
        raise InvalidOption(f"--grpc-advertised: {exc}") from None


def _missing() -> bool:
    """Return True if the extra is not installed."""
    try:
        import ogive.proxy.service  # noqa: F401
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != _EXTRA:
            raise
        return True
    return False


class GrpcPort:
    """The gRPC port of a process. ``says``: what the ready line says of it."""

    def __init__(
        self, options: argparse.Namespace, tls: TlsConfig | None, *, folder: Path, host: str
    ) -> None:
        """*folder* keeps the certificate that is made without *tls*, for *host*."""
        self.says = ""
        self._options = options
        self._tls = tls
        self._host = host
        self._own = OwnCertificate(folder / CERTIFICATE, host)
        self._endpoint: Endpoint | None = None

    async def start(self, build: Build, limits: ServerLimits, running: AsyncExitStack) -> None:
        """Serve what *build* returns until *running* ends. Raises ConnectError for a given port
        that is in use, and InvalidOption for a certificate that cannot be used.
        """
        options = self._options
        if options.no_grpc:
            return
        if _missing():
            self.says = " grpc: off (pip install 'ogive[grpc]')"
            return
        # imported on demand: without the port a broker starts sooner
        from ogive.proxy.advertised import advertise
        from ogive.proxy.config import EndpointConfig
        from ogive.proxy.endpoint import Endpoint
        from ogive.proxy.reflection import reflection

        port = DEFAULT_PORT if options.grpc_port is None else options.grpc_port
        config = EndpointConfig(host=options.host, port=port, server=limits)
        service = build()
        running.push_async_callback(service.close)
        methods = service.methods()
        methods = {**methods, **reflection(methods)}
        if (place := advertised(options)) is not None:
            methods = advertise(methods, *place)
        context = await asyncio.to_thread(self._context)
        if context is None:
            log.warning("gRPC clients that use TLS cannot connect: %s", MISSING)
        endpoint = Endpoint(
            methods,
            config,
            tls=context,
            plain_too=self._tls is None or self._tls.mode == "permissive",
            no_tls_reason=MISSING,
        )
        try:
            await endpoint.start()
        except ConnectError as exc:
            number = exc.__context__.errno if isinstance(exc.__context__, OSError) else None
            if options.grpc_port is not None or number != errno.EADDRINUSE:
                raise
            log.warning(
                "no gRPC port for clients of RocketMQ 5: %s; --grpc-port chooses another (0: a "
                "free one), --no-grpc serves none",
                exc,
            )
            self.says = f" grpc: off (port {port} is in use)"
            return
        running.push_async_callback(endpoint.stop)
        self._endpoint = endpoint
        if self._tls is None:
            renewing = asyncio.create_task(
                every(_DAY_S, self.reload, name="renew certificate", first_after_s=_DAY_S)
            )
            watch(renewing)
            running.callback(renewing.cancel)
        at = options.grpc_advertised or join_address(self._host, endpoint.port)
        plain_only = " (without TLS)" if context is None else ""
        self.says = f" grpc={at}{plain_only}"

    def _context(self) -> ssl.SSLContext | None:
        source: TlsConfig | OwnCertificate = self._tls or self._own
        context = source.context()
        if context is not None:
            context.set_alpn_protocols(["h2"])
        return context

    async def reload(self) -> None:
        """Use the current certificate for new connections. Raises InvalidOption."""
        if self._endpoint is not None:
            context = await asyncio.to_thread(self._context)
            if context is not None:
                self._endpoint.use_certificate(context)

    def metrics(self) -> str:
        """Return the figures as lines for Prometheus."""
        return "" if self._endpoint is None else self._endpoint.metrics()
