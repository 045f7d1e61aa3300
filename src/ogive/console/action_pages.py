"""Pages of actions: the form with its preview (GET), and the confirmation (POST).

A preview comes with a token, which stands for exactly what it showed. The token works once, for the
person who was shown the preview, and for ten minutes; so a request that is sent twice, or made up
by another site, changes nothing.

Everything here, the preview included, is asked of the brokers as the person who has signed in, not
as the console.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from ogive.access.audit import RequestSource
from ogive.client.admin import Admin
from ogive.client.config import ClientConfig
from ogive.console.actions import ACTIONS, Action, Given, Preview
from ogive.console.audit import record
from ogive.console.failures import UnknownToken, status_of
from ogive.console.queries import CALL_S, reason
from ogive.errors import InvalidOption, OgiveError
from ogive.wire.signing import Credentials

TOKEN_S: Final = 600.0
MAX_TOKENS: Final = 256
# actions and previews in progress: each has connections of its own
AT_ONCE: Final = 4
# time for an action; sending dead letters ends itself before
ACTION_S: Final = 30.0
MAX_BODY_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class _Issued:
    action: str
    person: str
    preview: Preview
    until: float


class Confirmations:
    """Tokens of the previews that were shown: at most MAX_TOKENS, the oldest go first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._issued: dict[str, _Issued] = {}

    def issue(self, action: str, person: str, preview: Preview) -> str:
        now = self._clock()
        self._issued = {token: one for token, one in self._issued.items() if now < one.until}
        while len(self._issued) >= MAX_TOKENS:
            del self._issued[next(iter(self._issued))]
        token = secrets.token_urlsafe(24)
        # rows are for the eye only, and may be many
        self._issued[token] = _Issued(action, person, replace(preview, rows=()), now + TOKEN_S)
        return token

    def redeem(self, token: str, action: str, person: str) -> Preview:
        """Return the preview of a token, which is used up by this. Raises UnknownToken."""
        one = self._issued.get(token)
        if one is None or (one.action, one.person) != (action, person):
            raise UnknownToken(
                "this confirmation was used before, or is not yours, or is too old: nothing was "
                "done now"
            )
        del self._issued[token]
        if self._clock() >= one.until:
            raise UnknownToken("this confirmation is older than ten minutes: nothing was done")
        return one.preview


class ActionPages:
    """Views of the actions. *client* connects to the cluster; *changed* is called after a
    change; *path* returns the address of a page.
    """

    def __init__(
        self, client: ClientConfig, changed: Callable[[], None], path: Callable[..., str]
    ) -> None:
        self._path = path
        self._client = replace(client, request_timeout_s=CALL_S, connect_timeout_s=CALL_S)
        self._changed = changed
        self._confirmations = Confirmations()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def form(self, request: Request) -> dict[str, Any]:
        """Return the values of the form's page, with the preview if the form was sent."""
        name, action = _action_of(request)
        query = request.query_params
        given = {
            field.name: query.get(field.name, "" if query.get("preview") else field.value)
            for field in action.fields
        }
        values: dict[str, Any] = {
            "action": action,
            "given": given,
            "preview": None,
            "token": "",
            "here": self._path("act", name),
            "trouble": None,
        }
        if not query.get("preview"):
            return values
        person = _person(request)
        try:
            preview = await self._preview(action, given, person)
        except OgiveError as exc:
            # shown beside the form, so that the input can be corrected
            return values | {"trouble": reason(exc), "status": status_of(exc)[0]}
        if preview.carry_out is not None:
            values["token"] = self._confirmations.issue(name, person.access_key, preview)
        return values | {"preview": preview}

    async def _preview(self, action: Action, given: Given, person: Credentials) -> Preview:
        for field in action.fields:
            if field.required and not given[field.name]:
                raise InvalidOption(f"{field.label} is needed")
            allowed = [value for value, _ in field.choices]
            if field.choices and given[field.name] not in allowed:
                raise InvalidOption(f"{field.label}: one of {', '.join(allowed)} is expected")
        async with self._turns, Admin(client=self._signed(person)) as admin:
            return await action.preview(admin, given)

    async def confirm(self, request: Request) -> dict[str, Any]:
        """Carry out what a preview showed, and return the values of the page with the result."""
        name, action = _action_of(request)
        person = _person(request)
        source = RequestSource(person.access_key, _address(request))
        preview = self._confirmations.redeem(await _token(request), name, person.access_key)
        assert preview.carry_out is not None
        try:
            async with asyncio.timeout(ACTION_S), self._turns:
                text, status = await preview.carry_out(self._signed(person)), 200
        except OgiveError as exc:
            text, status = reason(exc), status_of(exc)[0]
        except TimeoutError:
            text, status = f"not done within {ACTION_S:.0f} s; a part may be done", 504
        except asyncio.CancelledError:
            record(
                source,
                action.operation,
                preview.about,
                "interrupted; a part may be done",
                done=False,
            )
            raise
        finally:
            self._changed()
        record(source, action.operation, preview.about, text, done=status == 200)
        return {
            "action": action,
            "about": preview.about,
            "text": text,
            "failed": status != 200,
            "status": status,
        }

    def _signed(self, person: Credentials) -> ClientConfig:
        """Return settings with the person's credentials; unsigned if the cluster asks for none."""
        if self._client.credentials is None:
            return self._client
        return replace(self._client, credentials=person)


def _action_of(request: Request) -> tuple[str, Action]:
    name = request.path_params["name"]
    if name not in ACTIONS:
        raise HTTPException(404)
    return name, ACTIONS[name]


def _person(request: Request) -> Credentials:
    person = request.scope["user"]
    assert isinstance(person, Credentials)
    return person


def _address(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else "unknown"


async def _token(request: Request) -> str:
    """Return the token in the body of a POST. Raises InvalidOption."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise InvalidOption(f"a confirmation has at most {MAX_BODY_BYTES} bytes")
    except ClientDisconnect:
        raise InvalidOption("the browser has left before it sent the confirmation") from None
    try:
        tokens = parse_qs(body.decode("ascii"), max_num_fields=1).get("token", [])
    except ValueError:
        tokens = []
    if len(tokens) != 1:
        raise InvalidOption("the confirmation lacks its token: nothing was done")
    return tokens[0]
