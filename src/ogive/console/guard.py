"""Checks before every page, and the limit of browser connections.

- GET and HEAD only, which change nothing. With actions also POST, if the browser says that a page
  of the console has sent it (Origin); a page of another site cannot make it change anything.
- The Host header must be an IP address, ``localhost`` or the configured name. A page of another
  site whose name points to this machine (DNS rebinding) sends its own name.
- With credentials, HTTP basic; compared in constant time.

Browsers may open many connections and leave them silent: their number is limited, and so is the
time without an answer.
"""

import asyncio
import base64
import binascii
import hmac
import logging
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from ogive.transport.monitoring import LOCAL_NAMES, names_this_server
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

MAX_VISITS: Final = 64
# time from one answer to the next, or to the end of the connection
PATIENCE_S: Final = 60.0


class BrowserConnection(H11Protocol):
    """A connection of a browser.

    uvicorn's own limit refuses requests, and counts connections that never send one, so a few
    silent ones could keep all others out. Here a new connection replaces the one that has gone
    without an answer for longest; connections that wait for no page go first. A connection without
    an answer for PATIENCE_S is closed, whether it sends or reads too little.
    """

    _patience: asyncio.TimerHandle
    # time of the last answer, or of the connect
    since = 0.0

    # the signature is uvicorn's
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()
        others = [
            visit
            for visit in self.connections
            if isinstance(visit, BrowserConnection) and visit is not self
        ]
        if len(others) >= MAX_VISITS:
            min(others, key=lambda visit: (visit.waits, visit.since)).end()

    def on_response_complete(self) -> None:
        self._patience.cancel()
        self._begin()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        super().connection_lost(exc)

    @property
    def waits(self) -> bool:
        """Return True while the browser waits for a page, or reads one."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def end(self) -> None:
        self._patience.cancel()
        # at once: connection_lost is called in a later iteration of the loop
        self.connections.discard(self)
        self.transport.abort()

    def _begin(self) -> None:
        self.since = self.loop.time()
        self._patience = self.loop.call_later(PATIENCE_S, self.end)


HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src "
    "'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestGuard:
    """ASGI application in front of *app*, which checks each request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str | None = None,
        context: str = "",
        credentials: Credentials | None = None,
        accepts_posts: bool = False,
        https: bool = False,
    ) -> None:
        """Names, credentials and HTTPS are those of the console; *credentials* are passed on as
        the scope's ``user``. *context*: the cluster that they are for, if there are several.
        """
        self._realm = f"ogive console {quote(context)}".rstrip()
        self._app = app
        self._credentials, self._accepts_posts, self._https = credentials, accepts_posts, https
        self._names = LOCAL_NAMES | ({name.lower()} if name else set())
        self._expected = (
            None
            if credentials is None
            else f"{credentials.access_key}:{credentials.secret_key}".encode()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("Referrer-Policy", "no-referrer")
            await send(message)

        scope["user"] = self._credentials
        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        methods = ("GET", "HEAD", "POST") if self._accepts_posts else ("GET", "HEAD")
        if scope["method"] not in methods:
            return PlainTextResponse(
                "The console only shows things; the command line changes them.\n",
                405,
                {"Allow": ", ".join(methods)},
            )
        if not names_this_server(headers.get("host", ""), self._names):
            return PlainTextResponse(
                "This host name is not one of the console's: use its address, or give the console "
                "this one.\n",
                421,
            )
        if self._expected is not None and not _basic(
            headers.get("authorization", ""), self._expected
        ):
            return PlainTextResponse(
                "Credentials are needed.\n",
                401,
                {"WWW-Authenticate": f'Basic realm="{self._realm}", charset="UTF-8"'},
            )
        if scope["method"] == "POST" and not self._is_own(headers):
            log.warning("refused a change that a page of another site has sent")
            return PlainTextResponse(
                "A page of another site has sent this: nothing was changed.\n", 403
            )
        return None

    def _is_own(self, headers: Headers) -> bool:
        """Return True if a page of this console has sent the request, by the browser's word."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        scheme, _, place = headers.get("origin", "").partition("://")
        # a proxy may speak HTTPS for a console that does not
        schemes = ("https",) if self._https else ("http", "https")
        return scheme in schemes and place.lower() == headers.get("host", "").lower()


def _basic(header: str, expected: bytes) -> bool:
    scheme, _, encoded = header.partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        given = b""
    return hmac.compare_digest(given, expected) and scheme.lower() == "basic"
