"""Checks of ``ogive up`` before it opens a port or creates a file: for settings that are invalid,
or would have no effect.
"""

import argparse
import itertools
import logging
import operator
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from ogive.broker.config import check_advertised, check_name, check_region, ip_of, is_host_name
from ogive.broker.state.topic_table import MAX_MADE_QUEUES
from ogive.cli import up_grpc
from ogive.cli.connect import is_there
from ogive.cli.options import check_port
from ogive.cli.parser import build_parser
from ogive.errors import ConnectError, InvalidOption
from ogive.model import MAX_BODY_BYTES
from ogive.text import is_line
from ogive.transport.connection import is_loopback, join_address, reason_of
from ogive.transport.event_loop import MAX_BUSY_POLL_S
from ogive.transport.tls import TlsConfig
from ogive.wire.bodies.configs import DEFAULT_DELAY_LEVELS, DelayLevels

log = logging.getLogger(__name__)

_ABOUT: Final = (
    ("tls_mode", "tls_cert", "--tls-cert and --tls-key"),
    ("tls_client_auth", "tls_client_ca", "--tls-client-ca"),
    ("metrics_host", "metrics_port", "--metrics-port"),
    ("insecure_metrics", "metrics_port", "--metrics-port"),
    ("drain_delay", "metrics_port", "--metrics-port"),
    ("console_host", "console_port", "--console-port"),
    ("console_name", "console_port", "--console-port"),
    ("console_credentials", "console_port", "--console-port"),
    ("console_actions", "console_port", "--console-port"),
)
"""Options that only modify another one: (option, the other, how to give it)."""

_OF_A_BROKER: Final = (
    "broker_name",
    "region",
    "flush",
    "segment_size",
    "empty_log",
    "keep_hours",
    "delete_at",
    "delete_above",
    "delete_young_above",
    "no_auto_create_topics",
    "no_auto_create_groups",
    "enforce_message_types",
    "default_queues",
    "max_message_size",
    "no_property_filter",
    "max_timer_delay",
    "delay_levels",
    "duplicate_window",
    "transaction_timeout",
    "transaction_check_interval",
    "transaction_check_max",
    "busy_poll",
    "max_timer_messages",
    "max_open_transactions",
    "max_unanswered_checks",
    "grpc_port",
    "grpc_advertised",
)


def check(options: argparse.Namespace) -> None:
    """Raise InvalidOption for the first setting that is invalid, or would have no effect."""
    check_data(options.data)
    _check_name_servers(options)
    check_host(options)
    _check_ports(options)
    check_numbers(options)
    if (
        options.credentials
        and not options.acl
        and options.credentials != os.environ.get("OGIVE_CREDENTIALS")
    ):
        raise InvalidOption(
            "--credentials names the first super user of a broker with access control: add --acl, "
            "or leave it out"
        )
    if options.metrics_port is not None:
        check_pages_host(
            "metrics",
            options.metrics_host,
            allowed=options.insecure_metrics or options.insecure_listen,
        )
    check_effect(options)
    up_grpc.check(options)
    check_names(options)
    check_place(options)


def _check_name_servers(options: argparse.Namespace) -> None:
    """Raise InvalidOption for options that exclude or need each other."""
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


def check_host(options: argparse.Namespace) -> None:
    """Raise InvalidOption for an address that is reachable from other machines, unless access
    control and TLS protect it or --insecure-listen is given; and for a wildcard without an
    advertised host.
    """
    host = options.host
    try:
        loopback = is_loopback(host)
    except ValueError:
        raise InvalidOption(f"--host {host}: an IP address or localhost is expected") from None
    if not loopback and not options.insecure_listen:
        _check_open_host(options)
    if host in ("0.0.0.0", "::") and options.advertised_host is None:
        raise InvalidOption(
            f"--host {host} is every address of this machine: say with --advertised-host at which "
            "clients reach it"
        )


def _check_open_host(options: argparse.Namespace) -> None:
    enforced = bool(options.tls_cert) and options.tls_mode != "permissive"
    if options.no_broker:
        if not (enforced and options.tls_client_ca and options.tls_client_auth == "required"):
            raise InvalidOption(
                f"--host {options.host} is not loopback, and anyone who can reach a name server "
                "alone can register a broker there; require certificates with --tls-cert, "
                "--tls-key and --tls-client-ca, or add --insecure-listen if you want that"
            )
    elif not options.acl:
        raise InvalidOption(
            f"--host {options.host} is not loopback, and without access control anyone who can "
            "reach it can administer the broker; add --acl, or --insecure-listen if you want that"
        )
    elif not enforced:
        raise InvalidOption(
            f"--host {options.host} is not loopback, and anyone who can read a connection without "
            "TLS can repeat its signed requests, also an administrator's; add --tls-cert and "
            "--tls-key (--tls-mode enforcing), or --insecure-listen if nobody else can read the "
            "connections"
        )


def _check_ports(options: argparse.Namespace) -> None:
    """Raise InvalidOption for a port out of range, or one that two options name."""
    for name in ("name-server", "broker", "metrics", "console", "grpc"):
        check_port(f"--{name}-port", getattr(options, f"{name.replace('-', '_')}_port"))
    for (one, place), (other, same) in itertools.combinations(places(options).items(), 2):
        if place[1] and place == same:
            raise InvalidOption(
                f"{one} and {other} are both {place[1]}: each needs a port of its own (0: a free "
                "one)"
            )


def places(options: argparse.Namespace) -> dict[str, tuple[str, int | None]]:
    """Return the host and port of each option that names a port; None for a port
    that is not used.
    """
    return {
        "--name-server-port": (
            options.host,
            None if options.no_name_server else options.name_server_port,
        ),
        "--broker-port": (options.host, None if options.no_broker else options.broker_port),
        "--metrics-port": (options.metrics_host, options.metrics_port),
        "--console-port": (options.console_host, options.console_port),
        "--grpc-port": (options.host, options.grpc_port),
    }


_ABOVE_ZERO: Final = (
    "keep_hours",
    "transaction_timeout",
    "transaction_check_interval",
    "transaction_check_max",
    "max_open_transactions",
    "max_unanswered_checks",
    "default_queues",
    "max_message_size",
    "max_timer_delay",
    "max_timer_messages",
)
_MOST: Final = {
    "keep_hours": 1e6,
    "duplicate_window": 1e9,
    "max_timer_delay": 1e9,
    "transaction_timeout": 1e9,
    "transaction_check_interval": 1e9,
}
"""More than a century, and decades in seconds: users who mean "for ever" use such a number."""
_MOST_US: Final = MAX_BUSY_POLL_S * 1e6
_PERCENTAGE: Final = "must be a percentage, more than 0 and at most 100"
_RANGES: Final[tuple[tuple[str, Callable[[float], bool], str], ...]] = (
    *((name, lambda value: value > 0, "must be more than 0") for name in _ABOVE_ZERO),
    *(
        (name, partial(operator.ge, most), f"must be at most {most:,.0f}")
        for name, most in _MOST.items()
    ),
    ("delete_above", lambda value: 0 < value <= 100, _PERCENTAGE),
    ("delete_young_above", lambda value: 0 < value <= 100, _PERCENTAGE),
    (
        "segment_size",
        lambda value: value >= 4096 and not value % 512,
        "must be a multiple of 512 and at least 4096",
    ),
    (
        "max_message_size",
        lambda value: value <= MAX_BODY_BYTES,
        f"must be at most {MAX_BODY_BYTES} bytes",
    ),
    (
        "busy_poll",
        lambda value: 0 <= value <= _MOST_US,
        f"must be between 0 and {_MOST_US:g} microseconds",
    ),
    ("duplicate_window", lambda value: value >= 0, "must be 0 seconds or more"),
    ("drain_delay", lambda value: 0 <= value <= 3600, "must be between 0 and 3600 seconds"),
)
"""The range of numbers for each option, and its text for the error."""


def check_numbers(options: argparse.Namespace) -> None:
    """Raise InvalidOption that names the option: the settings that check it later have other names,
    and some have other units.
    """
    for name, holds, needed in _RANGES:
        value = getattr(options, name)
        if value is not None and not holds(value):
            shown = value if isinstance(value, int) else f"{value:g}"
            raise InvalidOption(f"{_option(name)} {shown}: {needed}")


def check_pages_host(kind: str, host: str, *, allowed: bool) -> None:
    """Raise InvalidOption for a --*kind*-port on another address. Credentials do not help, because
    this port does not require them.
    """
    try:
        loopback = is_loopback(host)
    except ValueError:
        raise InvalidOption(
            f"--{kind}-host {host}: an IP address or localhost is expected"
        ) from None
    if not loopback and not allowed:
        raise InvalidOption(
            f"--{kind}-host {host} is not loopback, anyone who can reach it can read the figures; "
            f"add --insecure-{kind} if you want that"
        )


def check_probes(options: argparse.Namespace) -> None:
    """Raise InvalidOption for an option about --http-port that is invalid, or has no effect."""
    if options.drain_delay is not None and not 0 <= options.drain_delay < float("inf"):
        raise InvalidOption(f"--drain-delay {options.drain_delay:g}: must be 0 or more seconds")
    if options.http_port is None:
        for name in ("http_host", "drain_delay"):
            if getattr(options, name) is not None:
                raise InvalidOption(f"{_option(name)} has no effect without --http-port")
    check_pages_host("http", options.http_host or "127.0.0.1", allowed=options.insecure_http)


def check_effect(options: argparse.Namespace) -> None:
    """Raise InvalidOption for an option without effect: a protection that was requested and is
    missing must not go unnoticed.
    """
    # the defaults, without the settings of a file
    unset = build_parser(["up"]).parse_args(["up"])
    for name, other, asked in _ABOUT:
        if getattr(options, name) != getattr(unset, name) and getattr(options, other) is None:
            raise InvalidOption(
                f"{_option(name)} does nothing without {asked}: add that, or leave it out"
            )
    if options.no_broker:
        for name in _OF_A_BROKER:
            if getattr(options, name) != getattr(unset, name):
                raise InvalidOption(
                    f"{_option(name)} is about a broker, and --no-broker runs none: leave one of "
                    "them out"
                )
    if options.delete_young_above is not None and options.delete_young_above < options.delete_above:
        raise InvalidOption(
            f"--delete-young-above {options.delete_young_above:g} is below --delete-above "
            f"{options.delete_above:g}: "
            "young messages would go before old ones are looked at"
        )


def check_names(options: argparse.Namespace) -> None:
    """Raise InvalidOption that names the option, and the key of broker.conf if that has another
    name.
    """
    check_name("--broker-name", options.broker_name)
    check_name("--cluster", options.cluster)
    check_region("--region", options.region)
    if options.advertised_host is not None:
        check_advertised("--advertised-host (brokerIP1) ", options.advertised_host)
    try:
        DelayLevels.parse(
            DEFAULT_DELAY_LEVELS if options.delay_levels is None else options.delay_levels
        )
    except InvalidOption as exc:
        raise InvalidOption(f"--delay-levels (messageDelayLevel): {exc}") from None
    if options.default_queues > MAX_MADE_QUEUES:
        raise InvalidOption(
            f"--default-queues {options.default_queues}: must be at most {MAX_MADE_QUEUES} queues"
        )


def check_data(name: str) -> None:
    """Raise InvalidOption for a directory that a line of Apache's broker.conf cannot name."""
    if not name:
        raise InvalidOption("--data is empty: the directory for messages is expected")
    if not is_line(str(Path(name).absolute())):
        raise InvalidOption(
            f"--data {name!r}: a name in UTF-8 without control characters is expected, as files of "
            "settings hold it"
        )


def check_place(options: argparse.Namespace) -> None:
    """Raise InvalidOption for a new store inside another one, for example if the user named a
    directory of that store by mistake.
    """
    data = Path(options.data).absolute()
    if (
        is_there(data.parent / "commitlog")
        and is_there(data.parent / "checkpoint")
        and not is_there(data / "commitlog")
    ):
        raise InvalidOption(
            f"--data {options.data} lies inside a store, that in {data.parent}: name that "
            "directory, or one elsewhere"
        )


def check_ports_are_free(options: argparse.Namespace) -> None:
    """Raise ConnectError if a port is in use, before a new store is created: the broker listens
    only after it has opened its store.
    """
    if options.no_broker or is_there(Path(options.data) / "commitlog"):
        return
    for host, port in (
        (options.host, options.broker_port),
        (options.console_host, options.console_port),
        (options.host, options.grpc_port),
    ):
        if port:
            check_port_is_free(host, port)


def check_port_is_free(host: str, port: int) -> None:
    """Raise ConnectError, whose context is the OSError, if no server can listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            address = join_address(host, port)
            raise ConnectError(f"cannot listen on {address}: {reason_of(exc)}", address) from None


def _is_name(host: str) -> bool:
    """Return True for a name whose address only a look-up can find."""
    return host != "localhost" and is_host_name(host)


def warn_of_addresses(options: argparse.Namespace) -> None:
    """Warn if clients get an address at which nothing listens: Apache's broker listens on all
    addresses unless bindAddress is set, ours on loopback.
    """
    told = options.advertised_host
    if told is not None and is_loopback(options.host) and (_is_name(told) or not is_loopback(told)):
        log.warning(
            "the broker listens on %s only, but clients are given the address %s: set --host "
            "(bindAddress in broker.conf), unless something forwards the ports",
            options.host,
            told,
        )


def warn_of_certificate(options: argparse.Namespace, tls: TlsConfig) -> None:
    """Warn of a certificate that clients refuse. Raises InvalidOption for files that cannot be
    used.
    """
    told = options.advertised_host or options.host
    told = told if _is_name(told) else ip_of(told)
    if why := tls.doubt(told):
        log.warning(
            "clients are given the address %s, and those that verify it refuse the certificate in "
            "%s: %s",
            told,
            tls.cert,
            why,
        )


def warn_of_users(options: argparse.Namespace) -> None:
    """Warn if users and rules exist but --acl is not given."""
    table = Path(options.data) / "config" / "access" / "access.json"
    if not options.acl and not options.no_broker and is_there(table):
        log.warning(
            "%s has users and rules, but they do not apply: without --acl every client may do "
            "everything",
            table,
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
