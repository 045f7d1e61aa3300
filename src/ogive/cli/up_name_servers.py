"""The name servers of ``ogive up``: its own, and others at which its broker registers."""

import argparse
import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from ssl import SSLContext

from ogive.broker.registration import Dial
from ogive.client.config import parse_name_servers
from ogive.client.credential_files import read_credentials, trusting
from ogive.errors import InvalidOption
from ogive.namesrv.server import NameServer
from ogive.transport.connection import Connection, connect, is_loopback, join_address, split_address
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Name servers of other processes, and how they are asked."""

    addresses: tuple[str, ...] = ()
    credentials: Credentials | None = None
    ssl: SSLContext | None = None


def check(options: argparse.Namespace) -> None:
    """Raises InvalidOption for options that exclude or need each other."""
    if options.no_broker and options.no_name_server:
        raise InvalidOption("--no-broker and --no-name-server together leave nothing to run")
    if options.no_name_server and not options.name_servers:
        raise InvalidOption(
            "--no-name-server: say with --name-servers HOST:PORT,... where the broker registers; "
            "clients find it there"
        )
    if options.no_broker and options.name_servers:
        raise InvalidOption(
            "--name-servers says where a broker registers, and --no-broker runs none: leave one of "
            "them out"
        )
    if options.no_broker and options.acl:
        raise InvalidOption(
            "--no-broker with --acl: users and rules are kept by a broker, a name server alone has "
            "none; "
            "with --tls-cert, --tls-key and --tls-client-ca it serves only who has a certificate"
        )
    if options.console_port is not None and (options.no_broker or options.no_name_server):
        raise InvalidOption(
            "--console-port needs broker and name server in one process; `ogive console -n "
            "HOST:PORT` shows any cluster"
        )
    for name in ("name_servers_credentials", "name_servers_cafile"):
        if getattr(options, name) and not options.name_servers:
            raise InvalidOption(
                f"--{name.replace('_', '-')} is about the name servers of --name-servers: add "
                "them, or leave it out"
            )


def others(options: argparse.Namespace) -> Others:
    """Raises InvalidOption."""
    if not options.name_servers:
        return Others()
    file, cafile = options.name_servers_credentials, options.name_servers_cafile
    return Others(
        addresses=parse_name_servers(options.name_servers.replace(",", ";")),
        credentials=read_credentials(file) if file else options.name_servers_user,
        ssl=trusting(cafile) if cafile else None,
    )


def of_broker(own: NameServer | None, others: Others) -> tuple[str, ...]:
    """Where the broker registers, its own name server first: that one is not asked twice for being
    named again.
    """
    if own is None:
        return others.addresses
    return tuple(
        dict.fromkeys(
            (own.local_address, *(address for address in others.addresses if not _is(own, address)))
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
    others: Others,
    tls: TlsConfig | None,
    timeout_s: float,
) -> Dial:
    """*internal*: what the own name server is asked with.

    *tls*: whose certificate is shown to the others where they ask for one.
    """

    async def connected(address: str) -> Connection:
        if own is not None and address == own.local_address:
            return await own.connect_here(internal)
        host, port = split_address(address)
        if others.ssl is not None and tls is not None:
            await asyncio.to_thread(_show, others.ssl, tls)
        return await connect(
            host, port, timeout_s=timeout_s, credentials=others.credentials, ssl=others.ssl
        )

    return connected


def _show(context: SSLContext, tls: TlsConfig) -> None:
    """Read it each time, as it may have been renewed.

    If it is wrong, the one before stays: the listening side says why.
    """
    with suppress(OSError, ValueError):
        context.load_cert_chain(tls.cert, tls.key, password="")


def warn_of_loopback(broker_host: str, others: Others) -> None:
    """Clients that find the broker at a name server elsewhere could not reach it."""
    far = [address for address in others.addresses if not _is_near(split_address(address)[0])]
    if far and _is_near(broker_host):
        log.warning(
            "clients that ask %s are told to find this broker at %s, which is their own machine: "
            "give --host or --advertised-host",
            ", ".join(far),
            broker_host,
        )


def _is_near(host: str) -> bool:
    with suppress(ValueError):
        return is_loopback(host)
    return False  # a name
