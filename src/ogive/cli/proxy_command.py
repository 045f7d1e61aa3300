"""``ogive proxy``: a gRPC port for the official SDKs, in front of the brokers of a cluster."""

import argparse
import asyncio
import logging
import signal
import ssl
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ogive.cli import connect, probes, up, up_checks, up_grpc
from ogive.cli.hang_up import CertificateFiles, at_hang_up, hang_up
from ogive.cli.logs import set_up_logging
from ogive.cli.options import check_port
from ogive.cli.probes import ServiceManager
from ogive.client.config import ClientConfig
from ogive.errors import ConnectError, InvalidOption, OgiveError
from ogive.transport.connection import is_loopback
from ogive.transport.event_loop import new_event_loop
from ogive.transport.limits import ServerLimits
from ogive.transport.monitoring import Response
from ogive.transport.tls import TlsConfig

if TYPE_CHECKING:
    from ogive.proxy.cluster import ClusterBackend
    from ogive.proxy.service import Service

log = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal arrives. Return 0 after a clean stop.

    Raises TryLater if a port is in use.
    """
    set_up_logging(options.verbose, options.log_format)
    place = connect.place(options)
    certificates = CertificateFiles(
        *up.certificate_files(options),
        *filter(None, (place.cafile, place.certfile, place.keyfile)),
    )
    client = connect.client_config(options)
    tls = up.tls_config(options)
    _check(options, client, tls)
    up.raise_open_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_serve(options, client, tls, certificates))


def _check(options: argparse.Namespace, client: ClientConfig, tls: TlsConfig | None) -> None:
    """Raise InvalidOption for a setting that is invalid, would have no effect, or would admit
    everyone without an explicit --insecure-listen.
    """
    check_port("--grpc-port", options.grpc_port)
    up_grpc.check(options)
    if options.tls_mode and tls is None:
        raise InvalidOption("--tls-mode does nothing without --tls-cert and --tls-key")
    up_checks.check_probes(options)
    check_port("--http-port", options.http_port)
    try:
        loopback = is_loopback(options.host)
    except ValueError:
        raise InvalidOption(
            f"--host {options.host}: an IP address or localhost is expected"
        ) from None
    if loopback or options.insecure_listen:
        return
    if client.credentials is None:
        raise InvalidOption(
            f"--host {options.host} is not loopback, and without access control everyone who "
            "reaches it can send and receive; give --credentials of a cluster with access "
            "control, or add --insecure-listen if you want that"
        )
    if tls is None or tls.mode == "permissive":
        raise InvalidOption(
            f"--host {options.host} is not loopback, and anyone who can read a connection without "
            "TLS can repeat its signed requests; add --tls-cert and --tls-key (--tls-mode "
            "enforcing), or --insecure-listen if nobody else can read the connections"
        )


async def _serve(
    options: argparse.Namespace,
    client: ClientConfig,
    tls: TlsConfig | None,
    certificates: CertificateFiles,
) -> int:
    # imported after the check that its packages are installed
    from ogive.proxy.cluster import ClusterBackend

    stop, draining = asyncio.Event(), asyncio.Event()
    loop, manager = asyncio.get_running_loop(), ServiceManager()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up, stop)
    failed: asyncio.Future[OgiveError] = loop.create_future()

    def ready() -> Response:
        return (
            Response(503, "not ready: stopping\n")
            if draining.is_set()
            else Response(200, "ready\n")
        )

    async with AsyncExitStack() as running:
        # until everything else has stopped
        running.callback(asyncio.create_task(manager.watch(), name="watchdog").cancel)
        backend = ClusterBackend(client, options.cluster)
        running.push_async_callback(backend.close)
        backend.client.on_failure.append(lambda error: _fail(failed, error))
        await backend.start()
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="ogive-proxy-"))
        grpc = up_grpc.GrpcPort(options, tls, folder=Path(folder), host=options.host)
        metrics = await probes.serve(options, ready, grpc.metrics, running)
        try:
            await grpc.start(lambda: _service(backend), ServerLimits(), running)
        except ConnectError as exc:
            raise probes.cannot_listen(exc, "--grpc-port") from None
        at_hang_up(stop, certificates, lambda: _reload(options, client, grpc))
        print(f"ready name-server={backend.client.name_servers}{grpc.says}", flush=True)
        if metrics is not None:
            print(f"metrics {metrics}", flush=True)
        manager.notify("READY=1")
        await up.until_stopped(stop, failed)
        manager.notify("STOPPING=1")
        draining.set()
        await up.drain(options.drain_delay or 0.0, stop, failed)
    if failed.done():
        raise failed.result()
    return 0


def _fail(failed: "asyncio.Future[OgiveError]", error: BaseException) -> None:
    if not failed.done():
        failed.set_result(OgiveError(f"the proxy stops after an unexpected error: {error!r}"))


def _service(backend: "ClusterBackend") -> "Service":
    from ogive.proxy.service import Service

    return Service(backend)


async def _reload(
    options: argparse.Namespace, client: ClientConfig, grpc: up_grpc.GrpcPort
) -> bool:
    """Read the certificates again: those for SDKs, and those for the brokers. Return False if they
    cannot be used, and the old ones stay.
    """
    try:
        if isinstance(client.ssl, ssl.SSLContext):
            await asyncio.to_thread(
                connect.read_certificates_again, connect.place(options), client.ssl
            )
        await grpc.reload()
    except InvalidOption as exc:
        log.error("the certificates were not reloaded: %s", exc)
        return False
    log.warning("the certificates were reloaded")
    return True
