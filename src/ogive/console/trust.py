"""TLS between the console and the broker of its own process, which is recognised by its
certificate, whatever names that has.
"""

import ssl
from pathlib import Path

from ogive.transport.tls import first_certificate


def only_trusting(certificate: Path) -> ssl.SSLContext:
    """Only the first of a chain: its authorities vouch for others, too. Raises InvalidOption."""
    context = ssl.create_default_context(cadata=first_certificate(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trust_also(context: ssl.SSLContext, certificate: Path) -> None:
    """The broker has a new one. Raises InvalidOption."""
    context.load_verify_locations(cadata=first_certificate(certificate))
