"""TLS between the console and the broker of its own process, which is recognised by its certificate, whatever names that has."""

import ssl
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption

_END: Final = "-----END CERTIFICATE-----"


def only_trusting(certificate: Path) -> ssl.SSLContext:
    """Raises InvalidOption."""
    context = ssl.create_default_context(cadata=_own(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trust_also(context: ssl.SSLContext, certificate: Path) -> None:
    """The broker has a new one. Raises InvalidOption."""
    context.load_verify_locations(cadata=_own(certificate))


def _own(certificate: Path) -> str:
    """The first of a chain: its authorities vouch for others, too."""
    try:
        first, end, _ = certificate.read_text("ascii").partition(_END)
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption(f"TLS: {certificate} cannot be read: {exc}") from None
    if not end:
        raise InvalidOption(f"TLS: {certificate} holds no certificate")
    return first + end
