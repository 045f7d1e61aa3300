"""Server of the console, in a thread and event loop of its own, so that neither a page nor a broker
in the same process waits for the other.

For TLS between the console and the broker of its own process, the console recognises the broker's
certificate itself, whatever names it has.
"""

import asyncio
import logging
import os
import socket
import ssl
import threading
from pathlib import Path
from typing import Final

import uvicorn

from ogive.console.app import console_app
from ogive.console.config import ConsoleConfig, check_clusters
from ogive.console.guard import MAX_VISITS, BrowserConnection
from ogive.errors import ConnectError
from ogive.transport.connection import join_address
from ogive.transport.event_loop import new_event_loop
from ogive.transport.tls import first_certificate

log = logging.getLogger(__name__)


def only_trusting(certificate: Path) -> ssl.SSLContext:
    """Return a context that trusts only the first certificate of a chain: its authorities vouch for
    others, too. Raises InvalidOption.
    """
    context = ssl.create_default_context(cadata=first_certificate(certificate))
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def trust_also(context: ssl.SSLContext, certificate: Path) -> None:
    """Trust the broker's new certificate, too. Raises InvalidOption."""
    context.load_verify_locations(cadata=first_certificate(certificate))


# limit for pages in progress; a page continues for a while after its reader has left
MAX_PAGES: Final = 2 * MAX_VISITS
MAX_HEAD_BYTES: Final = 16 * 1024
KEEP_ALIVE_S: Final = 15
# time for pages in progress at a stop
GRACE_S: Final = 2
STOP_S: Final = 10.0


class Console:
    """A console. Call ``start`` and ``stop`` from any thread but its own."""

    def __init__(self, config: ConsoleConfig, *others: ConsoleConfig) -> None:
        """*others*: more clusters, with the same address. Raises InvalidOption."""
        check_clusters((config, *others))
        self._config, self._others = config, others
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._tls: ssl.SSLContext | None = None
        self.address = ""

    @property
    def url(self) -> str:
        return f"{self._config.scheme}://{self.address}/"

    def start(self) -> None:
        """Listen; this queries nothing. Raises ConnectError if the address is in use, InvalidOption
        for certificates that cannot be used.
        """
        config = self._config
        self._tls = None if config.tls is None else config.tls.context()
        settings = uvicorn.Config(
            console_app(config, *self._others),
            http=BrowserConnection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_PAGES,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        settings.load()
        settings.ssl = self._tls
        listening = _listen(config.host, config.port)
        port = listening.getsockname()[1]
        self.address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
        self._server = uvicorn.Server(settings)
        self._thread = threading.Thread(
            target=self._run, args=(self._server, listening), name="console", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop, and return when no page is in progress any more. May be called again."""
        if self._server is None or self._thread is None:
            return
        self._server.should_exit = True
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            log.warning("the console did not stop within %.0f s and is abandoned", STOP_S)
        self._server = self._thread = None

    def reload_certificates(self, *, trust: bool = True) -> None:
        """Read the files again. *trust*: they also have the new certificate of the broker beside
        the console.

        Raises InvalidOption, and then the old one stays.
        """
        tls, trusting = self._config.tls, self._config.client.ssl
        if tls is None or self._tls is None:
            return
        tls.context()
        self._tls.load_cert_chain(tls.cert, tls.key)
        if trust and isinstance(trusting, ssl.SSLContext):
            trust_also(trusting, tls.cert)

    def _run(self, server: uvicorn.Server, listening: socket.socket) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner, listening:
                runner.run(server.serve(sockets=[listening]))
        except Exception:
            # a bug in the console must not end the broker beside it
            log.exception("the console has failed; a broker beside it goes on")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(MAX_VISITS)
    except OSError as exc:
        listening.close()
        text = os.strerror(exc.errno).lower() if exc.errno else str(exc)
        address = join_address(host, port)
        raise ConnectError(f"the console cannot listen on {address}: {text}", address) from None
    return listening
