"""The gRPC port of ``ogive up`` and ``ogive proxy``: if it is served, with which certificate, and
at which address.

Without --grpc-port it is an offer: a missing package, or a port that is in use, only turn it off.
"""

import argparse
import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ogive.cli.grpc_certificate import MISSING, OwnCertificate
from ogive.errors import ConnectError, InvalidOption
from ogive.transport.connection import join_address, split_address
from ogive.transport.event_loop import every, watch
from ogive.transport.limits import ServerLimits
from ogive.transport.tls import TlsConfig

if TYPE_CHECKING:
    from ogive.proxy.endpoint import Endpoint
    from ogive.proxy.service import Service

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 8081
CERTIFICATE: Final = "grpc-certificate.pem"
_DAY_S: Final = 86_400.0
Build = Callable[[], "Service"]
"""Function that returns the service of the port."""
# the packages of the extra that the endpoint needs
_EXTRA: Final = "google"


def check(options: argparse.Namespace) -> None:
    """Raise InvalidOption for options that exclude each other, or an address without a port."""
    if options.no_grpc and options.grpc_port is not None:
        raise InvalidOption("--no-grpc and --grpc-port exclude each other: leave one of them out")
    if options.grpc_advertised is not None:
        if options.no_grpc:
            raise InvalidOption("--grpc-advertised does nothing with --no-grpc: leave it out")
        advertised(options)
    if options.grpc_port is not None and _missing():
        raise InvalidOption("the gRPC port needs protobuf: pip install 'ogive[grpc]'")


def advertised(options: argparse.Namespace) -> tuple[str, int] | None:
    """Return the address for routes, None if they name the one that each client used."""
    if options.grpc_advertised is None:
        return None
    try:
        return split_address(options.grpc_advertised)
    except ConnectError as exc:
        raise InvalidOption(f"--grpc-advertised: {exc}") from None


def _missing() -> bool:
    """Return True if the extra is not installed."""
    try:
        import ogive.proxy.service  # noqa: F401
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != _EXTRA:
            raise
        return True
    return False


class GrpcPort:
    """The gRPC port of a process. ``says``: what the ready line says of it."""

    def __init__(
        self, options: argparse.Namespace, tls: TlsConfig | None, *, folder: Path, host: str
    ) -> None:
        """*folder* keeps the certificate that is made without *tls*, for *host*."""
        self.says = ""
        self._options = options
        self._tls = tls
        self._host = host
        self._own = OwnCertificate(folder / CERTIFICATE, host)
        self._endpoint: Endpoint | None = None

    async def start(self, build: Build, limits: ServerLimits, running: AsyncExitStack) -> None:
        """Serve what *build* returns until *running* ends. Raises ConnectError for a given port
        that is in use, and InvalidOption for a certificate that cannot be used.
        """
        options = self._options
        if options.no_grpc:
            return
        if _missing():
            self.says = " grpc: off (pip install 'ogive[grpc]')"
            return
        # imported on demand: without the port a broker starts sooner
        from ogive.proxy.advertised import advertise
        from ogive.proxy.config import EndpointConfig
        from ogive.proxy.endpoint import Endpoint
        from ogive.proxy.reflection import reflection

        port = DEFAULT_PORT if options.grpc_port is None else options.grpc_port
        config = EndpointConfig(host=options.host, port=port, server=limits)
        service = build()
        running.push_async_callback(service.close)
        methods = service.methods()
        methods = {**methods, **reflection(methods)}
        if (place := advertised(options)) is not None:
            methods = advertise(methods, *place)
        context = await asyncio.to_thread(self._context)
        if context is None:
            log.warning("gRPC clients that use TLS cannot connect: %s", MISSING)
        endpoint = Endpoint(
            methods,
            config,
            tls=context,
            plain_too=self._tls is None or self._tls.mode == "permissive",
            no_tls_reason=MISSING,
        )
        try:
            await endpoint.start()
        except ConnectError as exc:
            number = exc.__context__.errno if isinstance(exc.__context__, OSError) else None
            if options.grpc_port is not None or number != errno.EADDRINUSE:
                raise
            log.warning(
                "no gRPC port for clients of RocketMQ 5: %s; --grpc-port chooses another (0: a "
                "free one), --no-grpc serves none",
                exc,
            )
            self.says = f" grpc: off (port {port} is in use)"
            return
        running.push_async_callback(endpoint.stop)
        self._endpoint = endpoint
        if self._tls is None:
            renewing = asyncio.create_task(
                every(_DAY_S, self.reload, name="renew certificate", first_after_s=_DAY_S)
            )
            watch(renewing)
            running.callback(renewing.cancel)
        at = options.grpc_advertised or join_address(self._host, endpoint.port)
        plain_only = " (without TLS)" if context is None else ""
        self.says = f" grpc={at}{plain_only}"

    def _context(self) -> ssl.SSLContext | None:
        source: TlsConfig | OwnCertificate = self._tls or self._own
        context = source.context()
        if context is not None:
            context.set_alpn_protocols(["h2"])
        return context

    async def reload(self) -> None:
        """Use the current certificate for new connections. Raises InvalidOption."""
        if self._endpoint is not None:
            context = await asyncio.to_thread(self._context)
            if context is not None:
                self._endpoint.use_certificate(context)

    def metrics(self) -> str:
        """Return the figures as lines for Prometheus."""
        return "" if self._endpoint is None else self._endpoint.metrics()
