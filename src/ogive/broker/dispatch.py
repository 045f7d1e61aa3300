"""From a request to its handler, and from what goes wrong there to an answer."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from ogive.broker.context import Context
from ogive.broker.replies import Rejected, refuse, reply
from ogive.broker.routes import NOT_SUPPORTED, ROUTES, Direct, Route
from ogive.errors import OgiveError, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import decode_header


def dispatch(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Carry out one request; its answer leaves now or later, and a one-way request has none."""
    route = ROUTES.get(command.code)
    try:
        if type(route) is Direct:
            route.handle(ctx, connection, command)
        elif type(route) is Route:
            _serve(ctx, connection, command, route)
        else:
            raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _not_supported(command.code))
    except OgiveError as exc:
        refuse(connection, command, exc)


def _not_supported(code: int) -> str:
    """Java's words, its leading space too, and the reason where there is one."""
    reason = _REASONS.get(code)
    return f" request type {code} not supported" + (f": {reason}" if reason else "")


_REASONS: Final[Mapping[int, str]] = {int(code): reason for code, reason in NOT_SUPPORTED.items()}


def _serve(ctx: Context, connection: Connection, command: RemotingCommand, route: Route[Any]) -> None:
    answer = route.handle(ctx, connection, decode_header(route.header, command.ext_fields), command.body)
    if isinstance(answer, RemotingCommand):
        reply(connection, command, answer)
    else:
        assert inspect.isawaitable(answer)
        ctx.spawn(_serve_later(connection, command, answer), f"request {command.code} of {connection.remote_address}")


async def _serve_later(connection: Connection, command: RemotingCommand, answer: Awaitable[RemotingCommand]) -> None:
    try:
        reply(connection, command, await answer)
    except OgiveError as exc:
        refuse(connection, command, exc)
    except BaseException:
        connection.abort(f"request {command.code} of {connection.remote_address} ended without an answer")
        raise
