"""What ``ogive up`` looks at before it takes a port or makes a file: settings that cannot be, or
would be without effect.
"""

import argparse
import logging
import socket
from pathlib import Path
from typing import Final

from ogive.broker.config import check_advertised, check_name, check_region, ip_of, is_host_name
from ogive.broker.state.topic_table import MAX_MADE_QUEUES
from ogive.cli.connect import is_there
from ogive.cli.parser import build_parser
from ogive.errors import ConnectError, InvalidOption
from ogive.model import DEFAULT_DELAY_LEVELS, DelayLevels
from ogive.text import is_line
from ogive.transport.connection import is_loopback, join_address, reason_of
from ogive.transport.tls import TlsConfig

log = logging.getLogger(__name__)

_ABOUT: Final = (
    ("tls_mode", "tls_cert", "--tls-cert and --tls-key"),
    ("tls_client_auth", "tls_client_ca", "--tls-client-ca"),
    ("metrics_host", "metrics_port", "--metrics-port"),
    ("insecure_metrics", "metrics_port", "--metrics-port"),
    ("console_host", "console_port", "--console-port"),
    ("console_name", "console_port", "--console-port"),
    ("console_credentials", "console_port", "--console-port"),
)
"""Options that say something about another one only: (option, the other, how it is asked for)."""

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
)


def check_effect(options: argparse.Namespace) -> None:
    """Raises InvalidOption for an option that would do nothing: a protection that was asked for,
    and is not there, must not look well.
    """
    # without what a file says
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
    """Raises InvalidOption that names the option, and the key of broker.conf where that is another
    word.
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
            f"--default-queues {options.default_queues}: up to {MAX_MADE_QUEUES} queues are "
            "possible"
        )


def check_data(name: str) -> None:
    """Raises InvalidOption for a directory that a line of Apache's broker.conf cannot name."""
    if not name:
        raise InvalidOption("--data is empty: the directory for messages is expected")
    if not is_line(str(Path(name).absolute())):
        raise InvalidOption(
            f"--data {name!r}: a name in UTF-8 without control characters is expected, as files of "
            "settings hold it"
        )


def check_place(options: argparse.Namespace) -> None:
    """Raises InvalidOption for a new store inside another one, as where a directory of it was named
    by mistake.
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
    """Raises ConnectError, before a new store is made: the broker learns it only when it has its
    store.
    """
    if options.no_broker or is_there(Path(options.data) / "commitlog"):
        return
    for host, port in (
        (options.host, options.broker_port),
        (options.console_host, options.console_port),
    ):
        if not port:
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as exc:
                address = join_address(host, port)
                raise ConnectError(
                    f"cannot listen on {address}: {reason_of(exc)}", address
                ) from None


def _is_name(host: str) -> bool:
    """Return True for a name that stands for an address which only a look-up tells."""
    return host != "localhost" and is_host_name(host)


def warn_of_addresses(options: argparse.Namespace) -> None:
    """Apache's broker listens on all addresses unless bindAddress says one; ours does on
    loopback.
    """
    told = options.advertised_host
    if told is not None and is_loopback(options.host) and (_is_name(told) or not is_loopback(told)):
        log.warning(
            "listens on %s only, but clients are told %s: give --host (bindAddress in "
            "broker.conf), unless something forwards the ports",
            options.host,
            told,
        )


def warn_of_certificate(options: argparse.Namespace, tls: TlsConfig) -> None:
    """Raises InvalidOption for files that cannot be used."""
    told = options.advertised_host or options.host
    told = told if _is_name(told) else ip_of(told)
    if why := tls.doubt(told):
        log.warning(
            "clients are told %s, and those that check it refuse the certificate in %s: %s",
            told,
            tls.cert,
            why,
        )


def warn_of_users(options: argparse.Namespace) -> None:
    """Users and rules protect nothing unless somebody asks for it."""
    table = Path(options.data) / "config" / "access" / "access.json"
    if not options.acl and not options.no_broker and is_there(table):
        log.warning(
            "%s holds users and rules, and they are not asked for: everybody may do everything "
            "without --acl",
            table,
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
