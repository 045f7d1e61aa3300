"""What stands before every page: methods, host names, credentials, and the headers that tell a
browser what a page may do.

- GET and HEAD only: the console changes nothing, so no other site can have it changed.
- The Host header must be an address, ``localhost`` or the configured name. A page of another site
  whose name is made to point here (DNS rebinding) sends its own.
- With credentials, HTTP basic; compared in constant time.
"""

import base64
import binascii
import hmac
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ogive.transport.http import LOCAL_NAMES, names_this_server
from ogive.wire.acl import Credentials

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src "
    "'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """An ASGI application in front of *app*."""

    def __init__(
        self, app: ASGIApp, *, name: str | None = None, credentials: Credentials | None = None
    ) -> None:
        self._app = app
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
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse(
                "The console only shows things; the command line changes them.\n",
                405,
                {"Allow": "GET, HEAD"},
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
                {"WWW-Authenticate": 'Basic realm="ogive console", charset="UTF-8"'},
            )
        return None


def _basic(header: str, expected: bytes) -> bool:
    scheme, _, encoded = header.partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        given = b""
    return hmac.compare_digest(given, expected) and scheme.lower() == "basic"
