"""The certificate that ``ogive up`` makes for its gRPC port: SDKs use TLS by default.

They trust any. It is made by cryptography or the program openssl, and kept with its key in one
file, which only this user can read.
"""

import contextlib
import datetime
import ipaddress
import logging
import shutil
import ssl
import subprocess
import time
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption
from ogive.files import replace_file

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
