"""``ogive up``: a name server and a broker in one process."""

import argparse
import asyncio
import errno
import gc
import ipaddress
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ogive.access.table import AccessTable
from ogive.broker.config import DEFAULT_DELAY_LEVELS, BrokerConfig
from ogive.broker.server import Broker
from ogive.cli.logs import set_up
from ogive.client.credentials import read_credentials
from ogive.errors import ConnectError, InvalidOption, OgiveError, StoreLocked, StoreUnusable
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.store.retention import RetentionConfig
from ogive.transport.http import PageServer
from ogive.transport.loop import new_event_loop
from ogive.transport.tls import TlsConfig
from ogive.wire.bodies.access import SUPER, User

if TYPE_CHECKING:
    from ogive.console.config import ConsoleConfig
    from ogive.console.server import Console

log = logging.getLogger(__name__)

EXIT_STORE_FAILED: Final = 74  # EX_IOERR
OPEN_FILES: Final = 65_536  # more than the connections and files that name server, broker and store hold at most


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes. 0 after a clean stop, 74 when the store failed."""
    set_up(options.verbose, options.log_format)
    if not options.data:
        raise InvalidOption("--data is empty: the directory for messages is expected")
    check_host(options.host, options.insecure_listen or options.acl, options.advertised_host)
    check_ports(options)
    check_numbers(options)
    if options.credentials and not options.acl and options.credentials != os.environ.get("OGIVE_CREDENTIALS"):
        raise InvalidOption("--credentials names the first super user of a broker with access control: add --acl, or leave it out")
    if options.metrics_port is not None:
        check_metrics_host(options.metrics_host, options.insecure_listen)
    raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(serve(options))
        except ConnectError as exc:
            taken = isinstance(exc.__context__, OSError) and exc.__context__.errno == errno.EADDRINUSE
            raise OgiveError(
                f"{exc}{', perhaps by a broker that runs already (`ogive broker list`)' if taken else ''}; --host, --name-server-port, "
                "--broker-port, --metrics-port and --console-port choose another (port 0: a free one)"
            ) from None
        except StoreLocked as exc:
            raise OgiveError(f"{exc}; stop that one, or choose another directory with --data") from None
        except StoreUnusable as exc:
            raise OgiveError(f"{exc}; fix that, or choose another directory with --data") from None


def raise_open_files() -> None:
    """Let the process open as many files as its user may: shells and systemd start it with 1,024, which a thousand clients use up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as exc:
            log.warning("at most %d files and connections can be open: %s", soft, exc)


def check_ports(options: argparse.Namespace) -> None:
    """Raises InvalidOption."""
    for name in ("name-server", "broker", "metrics", "console"):
        port = getattr(options, f"{name.replace('-', '_')}_port")
        if port is not None and not 0 <= port <= 65535:
            raise InvalidOption(f"--{name}-port {port}: 0 to 65535 is needed")


def check_numbers(options: argparse.Namespace) -> None:
    """Raises InvalidOption that names the option: what is made of them further in has other names, and partly other units."""
    for name in ("keep_hours", "transaction_timeout", "transaction_check_interval", "transaction_check_max"):
        _require(options, name, lambda value: value > 0, "more than 0 is needed")
    for name in ("delete_above", "delete_young_above"):
        _require(options, name, lambda value: 0 < value <= 100, "a percentage, more than 0 and up to 100, is needed")
    _require(options, "duplicate_window", lambda value: value >= 0, "0 seconds or more are needed")


def _require(options: argparse.Namespace, name: str, holds: Callable[[float], bool], needed: str) -> None:
    value = getattr(options, name)
    if value is not None and not holds(value):
        raise InvalidOption(f"--{name.replace('_', '-')} {value:g}: {needed}")


def check_metrics_host(host: str, insecure_listen: bool) -> None:
    """Raises InvalidOption. Credentials do not help, as this port does not require them."""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidOption(f"--metrics-host {host}: an IP address is expected") from None
    if not loopback and not insecure_listen:
        raise InvalidOption(
            f"--metrics-host {host} is not loopback, everybody who reaches it can read the figures; add --insecure-listen if that is meant"
        )


def check_host(host: str, insecure_listen: bool, advertised_host: str | None = None) -> None:
    """Raises InvalidOption for an address that others reach, unless that was asked for in so many words; and for a wildcard alone."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise InvalidOption(f"--host {host}: an IP address is expected") from None
    if not loopback and not insecure_listen:
        raise InvalidOption(
            f"--host {host} is not loopback, and without credentials everybody who reaches it can administer the broker; "
            "switch access control on with --acl, or add --insecure-listen if that is meant"
        )
    if host in ("0.0.0.0", "::") and advertised_host is None:
        raise InvalidOption(f"--host {host} is every address of this machine: say with --advertised-host at which clients reach it")


async def serve(options: argparse.Namespace) -> int:
    """Start both, say so on standard output in one line, wait for a signal or for the store to fail."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    access = await asyncio.to_thread(open_access, options) if options.acl else None
    tls = tls_config(options)
    console_config = await asyncio.to_thread(_console_config, options, access, tls)
    reloads: set[asyncio.Future[None]] = set()  # kept alive here
    name_server = NameServer(
        NameServerConfig(
            host=options.host, port=options.name_server_port, advertised_host=options.advertised_host, cluster=options.cluster, tls=tls
        ),
        access=access,
    )
    await name_server.start()
    try:
        credentials = None if access is None else access.internal
        broker = Broker(
            broker_config(options, name_server.local_address, tls),
            access=access,
            dial=lambda _: name_server.connect_here(credentials),
        )
        await broker.start()
        pages: PageServer | None = None
        console: Console | None = None
        try:
            if tls is not None:
                loop.add_signal_handler(signal.SIGHUP, lambda: reloads.add(asyncio.ensure_future(_reload(name_server, broker, console))))
            if access is not None:
                await make_first_user(options, access)
            pages = await _serve_pages(options, broker)
            console = _start_console(console_config, name_server)
            print(f"ready name-server={name_server.address} broker={broker.address}", flush=True)
            _greet(options.data)
            if pages is not None:
                print(f"metrics http://{pages.address}/metrics", flush=True)
            if console is not None:
                print(f"console {console.url}", flush=True)
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 100)  # what lives on is in tables that rarely change; messages come and go by reference count
            await _until_stopped(stop, broker.failed)
        finally:
            if console is not None:
                await asyncio.to_thread(console.stop)
            await broker.stop()
            if pages is not None:
                await pages.stop()
    finally:
        await name_server.stop()
    if broker.failed.done():
        print(f"ogive: the store failed, nothing more was acknowledged: {broker.failed.result()}", file=sys.stderr)
        return EXIT_STORE_FAILED
    return 0


def _greet(data: str) -> None:
    """What programs that wait for the line before need not hear."""
    if sys.stdout.isatty():
        print(f"messages are kept in {Path(data).absolute()}; Ctrl-C stops the broker", flush=True)


async def _serve_pages(options: argparse.Namespace, broker: Broker) -> PageServer | None:
    if options.metrics_port is None:
        return None
    pages = PageServer(
        {"/metrics": broker.metrics_page, "/health": broker.health_page, "/ready": broker.ready_page},
        host=options.metrics_host,
        port=options.metrics_port,
    )
    await pages.start()
    return pages


def _console_config(options: argparse.Namespace, access: AccessTable | None, tls: TlsConfig | None) -> "ConsoleConfig | None":
    """Raises InvalidOption."""
    if options.console_port is None:
        return None
    from ogive.cli.console import beside_broker  # only if asked for: without it a broker starts in half the time

    return beside_broker(options, None if access is None else access.internal, tls)


def _start_console(config: "ConsoleConfig | None", name_server: NameServer) -> "Console | None":
    """Raises ConnectError when its address is taken."""
    if config is None:
        return None
    from ogive.console.server import Console

    console = Console(replace(config, client=replace(config.client, name_server=name_server.local_address)))
    console.start()
    return console


async def _until_stopped(stop: asyncio.Event, failed: "asyncio.Future[OgiveError]") -> None:
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(stop.wait()), failed]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    waiting[0].cancel()


def open_access(options: argparse.Namespace) -> AccessTable:
    """The users of this broker. Raises InvalidOption if there is no administrator."""
    access = AccessTable(Path(options.data) / "config" / "access")
    if not access.has_super_user and not options.credentials and not options.first_user:
        raise InvalidOption(
            "--acl needs a first super user: --credentials FILE (or OGIVE_CREDENTIALS) names a file with the lines "
            "accessKey: NAME and secretKey: SECRET"
        )
    return access


async def make_first_user(options: argparse.Namespace, access: AccessTable) -> None:
    """The user of --credentials, unless there is one of that name: then its password, kind and rules are what they became since."""
    if options.credentials:
        first = await asyncio.to_thread(read_credentials, options.credentials)
    elif options.first_user:
        first = options.first_user
    else:
        return
    if first.access_key not in access.users:
        await access.create_user(User(username=first.access_key, password=first.secret_key, user_type=SUPER))
        log.info("super user %s is made", first.access_key)


def retention(options: argparse.Namespace) -> RetentionConfig:
    """How long messages are kept. Raises InvalidOption."""
    try:
        hours = tuple([int(hour) for hour in options.delete_at.split(",")])
    except ValueError:
        hours = ()
    if not hours or not all(0 <= hour < 24 for hour in hours):
        raise InvalidOption(f"--delete-at {options.delete_at}: hours from 0 to 23 are expected, such as 4 or 4,16")
    return RetentionConfig(
        keep_s=options.keep_hours * 3600,
        hours=hours,
        disk_share=options.delete_above / 100,
        force_share=options.delete_young_above / 100 if options.delete_young_above is not None else 1.0,
    )


def tls_config(options: argparse.Namespace) -> TlsConfig | None:
    """Raises InvalidOption."""
    if not options.tls_cert or not options.tls_key:
        if options.tls_cert or options.tls_key or options.tls_client_ca:
            raise InvalidOption("TLS needs both --tls-cert and --tls-key")
        return None
    return TlsConfig(
        cert=Path(options.tls_cert),
        key=Path(options.tls_key),
        mode=options.tls_mode,
        client_ca=Path(options.tls_client_ca) if options.tls_client_ca else None,
        client_auth=options.tls_client_auth if options.tls_client_ca else "none",
    )


async def _reload(name_server: NameServer, broker: Broker, console: "Console | None") -> None:
    try:
        await name_server.reload_certificates()
        await broker.reload_certificates()
        if console is not None:
            await asyncio.to_thread(console.reload_certificates)
    except InvalidOption as exc:
        log.error("the certificates stay as they were: %s", exc)
    else:
        log.warning("the certificates were read again")


def broker_config(options: argparse.Namespace, name_server: str, tls: TlsConfig | None = None) -> BrokerConfig:
    """The broker's settings as the command line gives them."""
    return BrokerConfig(
        data=Path(options.data),
        host=options.host,
        advertised_host=options.advertised_host,
        port=options.broker_port,
        name_servers=(name_server,),
        name=options.broker_name,
        cluster=options.cluster,
        flush=options.flush,
        auto_create_topics=not options.no_auto_create_topics,
        delay_levels=options.delay_levels or DEFAULT_DELAY_LEVELS,
        retention=retention(options),
        transaction_timeout_s=options.transaction_timeout,
        transaction_check_interval_s=options.transaction_check_interval,
        transaction_check_max=options.transaction_check_max,
        duplicate_window_s=options.duplicate_window,
        busy_poll_s=options.busy_poll / 1e6,
        tls=tls,
    )
