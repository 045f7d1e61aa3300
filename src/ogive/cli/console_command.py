"""``ogive console``, and the console beside the broker of ``ogive up``."""

import argparse
import asyncio
import logging
import signal
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from ogive.cli import connect
from ogive.cli.hang_up import CertificateFiles, at_hang_up
from ogive.cli.logs import set_up_logging
from ogive.cli.options import check_port
from ogive.client.config import ClientConfig, read_credentials
from ogive.console.config import ConsoleConfig, check_clusters, require_extra
from ogive.errors import ConnectError, InvalidOption, OgiveError
from ogive.transport.tls import TlsConfig
from ogive.wire.signing import Credentials

if TYPE_CHECKING:
    from ogive.console.server import Console

log = logging.getLogger(__name__)


async def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    set_up_logging(options.verbose, "text")
    check_port("--port", options.console_port)
    places = await asyncio.to_thread(_places, options)
    files = [path for place in places for path in (place.cafile, place.certfile, place.keyfile)]
    files += [options.tls_cert, options.tls_key]
    certificates = await asyncio.to_thread(CertificateFiles, *filter(None, files))
    configs = await asyncio.to_thread(configs_for_clusters, options)
    # imported after the check that its libraries are installed
    from ogive.console.server import Console

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    console = Console(*configs)
    at_hang_up(stop, certificates, lambda: asyncio.to_thread(_reload, console, configs, places))
    try:
        console.start()
    except ConnectError as exc:
        raise OgiveError(f"{exc}; --port chooses another (0: a free one)") from None
    print(f"console {console.url}", flush=True)
    try:
        await stop.wait()
    finally:
        await asyncio.to_thread(console.stop)
    return 0


def _places(options: argparse.Namespace) -> list[connect.ClusterContext]:
    if not options.contexts:
        return [connect.place(options)]
    contexts = connect.load()
    return [contexts.get(name) for name in options.contexts]


def _reload(
    console: "Console", configs: list[ConsoleConfig], places: list[connect.ClusterContext]
) -> bool:
    """Read the certificates again: the console's, and those for each cluster. Return False if they
    cannot be used, and the old ones stay.
    """
    try:
        for config, place in zip(configs, places, strict=True):
            if isinstance(config.client.ssl, ssl.SSLContext):
                connect.read_certificates_again(place, config.client.ssl)
        console.reload_certificates(trust=False)
    except InvalidOption as exc:
        log.error("the certificates were not reloaded: %s", exc)
        return False
    log.warning("the certificates were reloaded")
    return True


def configs_for_clusters(options: argparse.Namespace) -> list[ConsoleConfig]:
    """Return the console's settings for each --context; without one, for the cluster that the
    options, the environment or the context in use name.

    Raises InvalidOption.
    """
    require_extra()
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InvalidOption("HTTPS needs both --tls-cert and --tls-key")
    tls = (
        TlsConfig(cert=Path(options.tls_cert), key=Path(options.tls_key))
        if options.tls_cert
        else None
    )
    if not options.contexts:
        place, client = connect.place(options), connect.client_config(options)
        return [_config(options, client, place.credentials, tls)]
    for name in ("name_server", "credentials", "cafile", "certfile", "keyfile"):
        if getattr(options, name):
            raise InvalidOption(
                f"--{name.replace('_', '-')} is for one cluster, and a --context has its own"
            )
    found = [
        _config(options, *connect.context_config(name), tls, name) for name in options.contexts
    ]
    check_clusters(found)
    return found


def config_beside_broker(
    options: argparse.Namespace, internal: Credentials | None, tls: TlsConfig | None
) -> ConsoleConfig:
    """Return the console's settings for the broker of this process; the address of its name server
    is set later.

    Raises InvalidOption.
    """
    require_extra()
    # imported after the check that its libraries are installed
    from ogive.console.server import only_trusting

    if tls is not None and tls.client_auth == "required":
        raise InvalidOption(
            "--console-port: the console has no certificate of its own to show; add "
            "--tls-client-auth optional"
        )
    client = ClientConfig(
        credentials=internal, ssl=False if tls is None else only_trusting(tls.cert)
    )
    return _config(
        options,
        client,
        options.credentials if options.acl else None,
        tls and TlsConfig(cert=tls.cert, key=tls.key),
    )


def _config(
    options: argparse.Namespace,
    client: ClientConfig,
    credentials: str | None,
    tls: TlsConfig | None,
    context: str = "",
) -> ConsoleConfig:
    """Return the settings; *credentials* is the file to use if no option names one for the
    console.
    """
    file = options.console_credentials or credentials
    asked = read_credentials(file) if file else None
    try:
        return ConsoleConfig(
            client=client,
            context=context,
            host=options.console_host,
            port=options.console_port,
            name=options.console_name,
            credentials=asked,
            tls=tls,
            actions=options.console_actions,
        )
    except InvalidOption as exc:
        raise InvalidOption(f"{exc} (--console-host IP, --console-credentials FILE)") from None
