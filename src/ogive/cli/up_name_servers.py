"""Name servers of ``ogive up``: its own, and others at which its broker registers."""

import argparse
import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext

from ogive.broker.registration import Dial
from ogive.client.config import parse_name_servers, read_credentials, trusting
from ogive.namesrv.server import NameServer
from ogive.transport.connection import Connection, connect, is_loopback, join_address, split_address
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNameServers:
    """Name servers of other processes, and the credentials and TLS for them."""

    addresses: tuple[str, ...] = ()
    credentials: Credentials | None = None
    ssl: SSLContext | None = None


def others(options: argparse.Namespace) -> OtherNameServers:
    """Read the options about other name servers. Raises InvalidOption."""
    if not options.name_servers:
        return OtherNameServers()
    file, cafile = options.name_servers_credentials, options.name_servers_cafile
    return OtherNameServers(
        addresses=parse_name_servers(options.name_servers.replace(",", ";")),
        credentials=read_credentials(file) if file else options.name_servers_user,
        ssl=trusting(cafile) if cafile else None,
    )


def addresses_for_broker(own: NameServer | None, others: OtherNameServers) -> tuple[str, ...]:
    """Return the addresses at which the broker registers, its own name server first. If that one is
    named again, it is in the list once.
    """
    if own is None:
        return others.addresses
    return tuple(
        dict.fromkeys(
            (
                own.local_address,
                *(address for address in others.addresses if not _is(own, address)),
            )
        )
    )


def _is(own: NameServer, address: str) -> bool:
    host, port = split_address(address)
    return join_address("127.0.0.1" if host == "localhost" else host, port) in (
        own.local_address,
        own.address,
    )


def dial(
    own: NameServer | None,
    internal: Credentials | None,
    others: OtherNameServers,
    tls: TlsConfig | None,
    timeout_s: float,
) -> Dial:
    """Return the function that connects the broker to a name server; *internal* are the credentials
    for the own one.

    *tls*: the certificate for other name servers that require one.
    """

    async def connected(address: str) -> Connection:
        if own is not None and address == own.local_address:
            return await own.connect_here(internal)
        host, port = split_address(address)
        if others.ssl is not None and tls is not None:
            await asyncio.to_thread(_show, others.ssl, tls)
        return await connect(
            host,
            port,
            timeout_s=timeout_s,
            credentials=others.credentials,
            ssl=others.ssl,
        )

    return connected


def _show(context: SSLContext, tls: TlsConfig) -> None:
    """Load the certificate each time, because it may have been renewed.

    If it is wrong, the previous one stays in use: the listening side reports the reason.
    """
    with suppress(OSError, ValueError):
        context.load_cert_chain(tls.cert, tls.key, password="")


def warn_of_loopback(broker_host: str, others: OtherNameServers) -> None:
    """Warn if clients that find the broker at a name server on another machine could not connect to
    it.
    """
    far = [address for address in others.addresses if not _is_near(split_address(address)[0])]
    if far and _is_near(broker_host):
        log.warning(
            "clients of name server %s are given the address %s for this broker, which is their "
            "own machine: set --host or --advertised-host",
            ", ".join(far),
            broker_host,
        )


def _is_near(host: str) -> bool:
    with suppress(ValueError):
        return is_loopback(host)
    # a name
    return False
