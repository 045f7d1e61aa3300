"""``ogive up``: a name server and a broker in one process, or one of the two."""

import argparse
import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Final

from ogive.access.user_table import AccessTable
from ogive.broker.config import BrokerConfig
from ogive.broker.registration import Dial
from ogive.broker.server import Broker
from ogive.cli import up_checks, up_grpc
from ogive.cli.exits import EXIT_STORE_FAILED, TryLater
from ogive.cli.hang_up import CertificateFiles, at_hang_up, hang_up
from ogive.cli.logs import last_line, set_up_logging
from ogive.cli.probes import ServiceManager
from ogive.client.config import parse_name_servers, read_credentials, trusting
from ogive.errors import ConnectError, InvalidOption, OgiveError, StoreLocked, StoreUnusable
from ogive.namesrv.config import NameServerConfig
from ogive.namesrv.server import NameServer
from ogive.store.fs import NO_SPACE
from ogive.store.retention import RetentionConfig
from ogive.transport.connection import Connection, connect, is_loopback, join_address, split_address
from ogive.transport.event_loop import new_event_loop
from ogive.transport.monitoring import Make, PageServer, Response
from ogive.transport.tls import TlsConfig
from ogive.wire.bodies.acls import SUPER, User
from ogive.wire.bodies.configs import DEFAULT_DELAY_LEVELS
from ogive.wire.signing import Credentials

# Name servers of ``ogive up``: its own, and others at which its broker registers.


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNameServers:
    """Name servers of other processes, and the credentials and TLS for them."""

    addresses: tuple[str, ...] = ()
    credentials: Credentials | None = None
    ssl: SSLContext | None = None


def other_name_servers(options: argparse.Namespace) -> OtherNameServers:
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


if TYPE_CHECKING:
    from ogive.console.config import ConsoleConfig
    from ogive.console.server import Console
    from ogive.proxy.service import Service

log = logging.getLogger(__name__)

# temporary errors: another process may end, the network may come up
_PASSING: Final = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
# the option of the host for each option of a port; --host for all others
_HOSTS: Final = {"--metrics-port": "--metrics-host", "--console-port": "--console-host"}
# more than the name server, broker and store ever need
OPEN_FILES: Final = 65_536


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives. Return 0 after a clean stop, 74 if the store failed, or some
    data could not be saved at the stop.

    Raises TryLater for a temporary cause.
    """
    set_up_logging(options.verbose, options.log_format)
    for note in options.config_notes:
        log.warning("%s", note)
    up_checks.check(options)
    # refuse a bad --delete-at before anything starts
    retention(options)
    raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(serve(options))
        except ConnectError as exc:
            raise _cannot_listen(exc, options) from None
        except StoreLocked as exc:
            raise TryLater(
                f"{exc}; stop that one, or choose another directory with --data"
            ) from None
        except StoreUnusable as exc:
            kind = (
                TryLater
                if isinstance(exc.__cause__, OSError) and exc.__cause__.errno in NO_SPACE
                else OgiveError
            )
            raise kind(f"{exc}; fix that, or choose another directory with --data") from None


def _cannot_listen(exc: ConnectError, options: argparse.Namespace) -> OgiveError:
    """Return the error with the option of the address."""
    number = exc.__context__.errno if isinstance(exc.__context__, OSError) else None
    kind = TryLater if number in _PASSING else OgiveError
    places = up_checks.places(options).items()
    option = next(
        (
            option
            for option, (host, port) in places
            if port is not None and exc.address == join_address(host, port)
        ),
        None,
    )
    if option is None:
        return kind(str(exc))
    if number == errno.EADDRNOTAVAIL:
        return kind(f"{exc}; {_HOSTS.get(option, '--host')} chooses another")
    own = number == errno.EADDRINUSE and option not in _HOSTS
    perhaps = ", perhaps by a broker that runs already (`ogive broker list`)" if own else ""
    alone = (
        "; --no-name-server runs none here"
        if option == "--name-server-port" and options.name_servers
        else ""
    )
    return kind(f"{exc}{perhaps}; {option} chooses another (0: a free one){alone}")


def raise_open_files() -> None:
    """Let the process open as many files as its user may: shells and systemd start it with a limit
    of 1,024, which a thousand clients use up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as exc:
            log.warning("the limit of open files and connections is %d: %s", soft, exc)


async def serve(options: argparse.Namespace) -> int:
    """Start the requested servers, print them in one line, and wait for a signal or for a failure
    of the store.
    """
    up_checks.check_ports_are_free(options)
    up_checks.warn_of_users(options)
    up_checks.warn_of_addresses(options)
    stop, draining = asyncio.Event(), asyncio.Event()
    manager = ServiceManager()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up, stop)
    access = await asyncio.to_thread(open_access, options) if options.acl else None
    certificates = await asyncio.to_thread(CertificateFiles, *certificate_files(options))
    tls = await asyncio.to_thread(_checked_tls, options)
    others = await asyncio.to_thread(other_name_servers, options)
    console_config = await asyncio.to_thread(_console_config, options, access, tls)
    broker: Broker | None = None
    console: Console | None = None
    grpc = up_grpc.GrpcPort(
        options,
        tls,
        folder=Path(options.data) / "config",
        host=options.advertised_host or options.host,
    )
    async with AsyncExitStack() as running:
        # until everything else has stopped
        running.callback(asyncio.create_task(manager.watch(), name="watchdog").cancel)
        own = (
            None
            if options.no_name_server
            else await _start_name_server(options, access, tls, running)
        )
        if not options.no_broker:
            broker = _broker(options, own, others, access, tls)
        pages = await _serve_pages(options, broker, grpc, draining, running)
        if broker is not None:
            await broker.start()
            running.push_async_callback(broker.stop)
            await grpc.start(partial(_grpc_service, broker), broker.config.server, running)
        at_hang_up(stop, certificates, lambda: _reload(options, own, broker, grpc, console))
        if access is not None:
            await make_first_user(options, access)
        if console_config is not None and own is not None:
            console = _start_console(console_config, own)
            running.push_async_callback(asyncio.to_thread, console.stop)
        _say_ready(own, others, broker, grpc)
        if pages is not None:
            page = "health" if broker is None else "metrics"
            print(f"{page} http://{pages.address}/{page}", flush=True)
        if console is not None:
            print(f"console {console.url}", flush=True)
        if broker is not None:
            _say_where(options)
        gc.collect()
        gc.freeze()
        # long-lived tables rarely change, and messages are freed by reference count
        gc.set_threshold(50_000, 20, 100)
        manager.notify("READY=1")
        failed = loop.create_future() if broker is None else broker.failed
        await until_stopped(stop, failed)
        manager.notify("STOPPING=1")
        draining.set()
        await drain(options.drain_delay, stop, failed)
    if broker is None or not (broker.failed.done() or broker.unsaved):
        return 0
    if broker.failed.done():
        text = f"the store failed, nothing more was acknowledged: {broker.failed.result()}"
    else:
        text = (
            "not everything could be saved, groups are given again what they had finished "
            f"last: {broker.unsaved}"
        )
    print(last_line(text) if options.log_format == "json" else f"ogive: {text}", file=sys.stderr)
    return EXIT_STORE_FAILED


async def drain(delay_s: float, stop: asyncio.Event, failed: "asyncio.Future[Any]") -> None:
    """Go on for *delay_s*, until a second signal comes or the store fails."""
    if not delay_s or failed.done():
        return
    log.warning("stops in %g s; a second signal stops it at once", delay_s)
    stop.clear()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(until_stopped(stop, failed), delay_s)


async def _start_name_server(
    options: argparse.Namespace,
    access: AccessTable | None,
    tls: TlsConfig | None,
    running: AsyncExitStack,
) -> NameServer:
    server = NameServer(
        NameServerConfig(
            host=options.host,
            port=options.name_server_port,
            advertised_host=options.advertised_host,
            cluster=options.cluster,
            kv_path=Path(options.data) / "config" / "kvConfig.json",
            tls=tls,
        ),
        access=access,
    )
    await server.start()
    running.push_async_callback(server.stop)
    return server


def _broker(
    options: argparse.Namespace,
    own: NameServer | None,
    others: OtherNameServers,
    access: AccessTable | None,
    tls: TlsConfig | None,
) -> Broker:
    config = broker_config(options, addresses_for_broker(own, others), tls)
    warn_of_loopback(config.advertised_host or config.host, others)
    internal = None if access is None else access.internal
    return Broker(
        config,
        access=access,
        dial=dial(own, internal, others, tls, config.name_server_timeout_s),
    )


def _grpc_service(broker: Broker) -> "Service":
    # imported on demand: without the port a broker starts sooner
    from ogive.proxy.service import build

    return build(broker)


def _say_ready(
    own: NameServer | None,
    others: OtherNameServers,
    broker: Broker | None,
    grpc: up_grpc.GrpcPort,
) -> None:
    """Print the addresses. Clients need that of the name server, those of RocketMQ 5 the last."""
    at = ";".join(others.addresses) if own is None else own.address
    of_broker = "" if broker is None else f" broker={broker.address}{grpc.says}"
    print(f"ready name-server={at}{of_broker}", flush=True)


def _say_where(options: argparse.Namespace) -> None:
    # a program may close the pipe after it has read the lines before
    with contextlib.suppress(OSError):
        print(
            "messages are kept in "
            f"{Path(options.data).absolute()}"
            f"{'; Ctrl-C stops the broker' if sys.stdout.isatty() else ''}",
            flush=True,
        )


async def _serve_pages(
    options: argparse.Namespace,
    broker: Broker | None,
    grpc: up_grpc.GrpcPort,
    draining: asyncio.Event,
    running: AsyncExitStack,
) -> PageServer | None:
    if options.metrics_port is None:
        return None

    def ready() -> Response:
        if draining.is_set():
            return Response(503, "not ready: stopping\n")
        return Response(200, "ready\n") if broker is None else broker.ready_page()

    pages: dict[str, Make] = {"/health": lambda: Response(200, "ok\n"), "/ready": ready}
    if broker is not None:
        pages |= {"/metrics": partial(_metrics, broker, grpc), "/health": broker.health_page}
    server = PageServer(pages, host=options.metrics_host, port=options.metrics_port)
    await server.start()
    running.push_async_callback(server.stop)
    return server


async def _metrics(broker: Broker, grpc: up_grpc.GrpcPort) -> Response:
    page = await broker.metrics_page()
    return replace(page, text=page.text + grpc.metrics()) if page.status == 200 else page


def _console_config(
    options: argparse.Namespace, access: AccessTable | None, tls: TlsConfig | None
) -> "ConsoleConfig | None":
    """Return the console's settings, None without --console-port. Raises InvalidOption."""
    if options.console_port is None:
        return None
    # imported on demand: without the console a broker starts in half the time
    from ogive.cli.console_command import config_beside_broker

    return config_beside_broker(options, None if access is None else access.internal, tls)


def _start_console(config: "ConsoleConfig", name_server: NameServer) -> "Console":
    """Start the console. Raises ConnectError if its address is in use."""
    from ogive.console.server import Console

    console = Console(
        replace(config, client=replace(config.client, name_server=name_server.local_address))
    )
    console.start()
    return console


async def until_stopped(stop: asyncio.Event, failed: "asyncio.Future[OgiveError]") -> None:
    stopped = asyncio.ensure_future(stop.wait())
    try:
        waiting: list[asyncio.Future[Any]] = [stopped, failed]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()


def open_access(options: argparse.Namespace) -> AccessTable:
    """Return the users of this broker. Raises InvalidOption if there is no administrator."""
    access = AccessTable(Path(options.data) / "config" / "access")
    if not access.has_super_user and not options.credentials and not options.first_user:
        raise InvalidOption(
            "--acl needs a first super user: --credentials FILE (or OGIVE_CREDENTIALS) names a "
            "file with the lines "
            "accessKey: NAME and secretKey: SECRET"
        )
    return access


async def make_first_user(options: argparse.Namespace, access: AccessTable) -> None:
    """Create the user of --credentials, unless a user of that name exists: then its password, kind
    and rules may have been changed, and stay.
    """
    if options.credentials:
        first = await asyncio.to_thread(read_credentials, options.credentials)
    elif options.first_user:
        first = options.first_user
    else:
        return
    if first.access_key not in access.users:
        await access.create_user(
            User(username=first.access_key, password=first.secret_key, user_type=SUPER)
        )
        log.info("created super user %s", first.access_key)
    elif access.users[first.access_key].password != first.secret_key:
        log.warning(
            "user %s already exists and keeps its password, which differs from the given one; "
            "`ogive user update %s --password` changes it",
            first.access_key,
            first.access_key,
        )


def retention(options: argparse.Namespace) -> RetentionConfig:
    """Read the options of retention. Raises InvalidOption."""
    try:
        hours = tuple([int(hour) for hour in options.delete_at.split(",")])
    except ValueError:
        hours = ()
    if not hours or not all(0 <= hour < 24 for hour in hours):
        raise InvalidOption(
            f"--delete-at {options.delete_at}: hours from 0 to 23 are expected, such as 4 or 4,16"
        )
    return RetentionConfig(
        keep_s=options.keep_hours * 3600,
        hours=hours,
        disk_share=options.delete_above / 100,
        force_share=options.delete_young_above / 100
        if options.delete_young_above is not None
        else 1.0,
    )


def tls_config(options: argparse.Namespace) -> TlsConfig | None:
    """Return the settings of TLS, None without it. Raises InvalidOption."""
    if not options.tls_cert or not options.tls_key:
        if options.tls_cert or options.tls_key or options.tls_client_ca:
            raise InvalidOption("TLS needs both --tls-cert and --tls-key")
        return None
    return TlsConfig(
        cert=Path(options.tls_cert),
        key=Path(options.tls_key),
        mode=options.tls_mode or "enforcing",
        client_ca=Path(options.tls_client_ca) if options.tls_client_ca else None,
        client_auth=options.tls_client_auth if options.tls_client_ca else "none",
    )


def _checked_tls(options: argparse.Namespace) -> TlsConfig | None:
    """Return the settings of TLS, and warn of a certificate that clients would refuse. Raises
    InvalidOption.
    """
    tls = tls_config(options)
    if tls is not None:
        up_checks.warn_of_certificate(options, tls)
    return tls


def certificate_files(options: argparse.Namespace) -> list[str]:
    return [
        path
        for path in (options.tls_cert, options.tls_key, options.tls_client_ca)
        if path is not None
    ]


async def _reload(
    options: argparse.Namespace,
    name_server: NameServer | None,
    broker: Broker | None,
    grpc: up_grpc.GrpcPort,
    console: "Console | None",
) -> bool:
    """Read the certificates again. Return False if they cannot be used, and the old ones stay."""
    try:
        await asyncio.to_thread(_checked_tls, options)
        if name_server is not None:
            await name_server.reload_certificates()
        if broker is not None:
            await broker.reload_certificates()
        await grpc.reload()
        if console is not None:
            await asyncio.to_thread(console.reload_certificates)
    except InvalidOption as exc:
        log.error("the certificates were not reloaded: %s", exc)
        return False
    log.warning("the certificates were reloaded")
    return True


def broker_config(
    options: argparse.Namespace, at: tuple[str, ...], tls: TlsConfig | None = None
) -> BrokerConfig:
    """Return the broker's settings by the command line; *at* are its name servers."""
    settings: dict[str, Any] = options.broker_settings
    return BrokerConfig(
        data=Path(options.data),
        host=options.host,
        advertised_host=options.advertised_host,
        port=options.broker_port,
        name_servers=at,
        name=options.broker_name,
        cluster=options.cluster,
        region=options.region,
        flush=options.flush,
        segment_bytes=options.segment_size,
        empty_log=options.empty_log,
        timer_max_delay_s=options.max_timer_delay,
        timer_max_waiting=options.max_timer_messages,
        auto_create_topics=not options.no_auto_create_topics,
        auto_create_groups=not options.no_auto_create_groups,
        enforce_message_types=options.enforce_message_types,
        default_topic_queues=options.default_queues,
        max_message_bytes=options.max_message_size,
        property_filter=not options.no_property_filter,
        delay_levels=options.delay_levels or DEFAULT_DELAY_LEVELS,
        retention=retention(options),
        transaction_timeout_s=options.transaction_timeout,
        transaction_check_interval_s=options.transaction_check_interval,
        transaction_check_max=options.transaction_check_max,
        max_open_transactions=options.max_open_transactions,
        max_unanswered_checks=options.max_unanswered_checks,
        duplicate_window_s=options.duplicate_window,
        busy_poll_s=options.busy_poll / 1e6,
        tls=tls,
        **settings,
    )
