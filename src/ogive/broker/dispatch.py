"""From a request to its handler, and from what goes wrong there to an answer."""

import inspect
from collections.abc import Awaitable
from typing import Any

from ogive.broker.context import Context
from ogive.broker.replies import Rejected, refuse, reply
from ogive.broker.routes import ROUTES, Direct, Route
from ogive.errors import OgiveError, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import decode_header


def dispatch(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Carry out one request; its answer leaves now or later, and a one-way request has none."""
    route = ROUTES.get(command.code)
    try:
        if ctx.guard is not None:
            ctx.guard.check(command, connection.remote_address)
        if type(route) is Direct:
            route.handle(ctx, connection, command)
        elif type(route) is Route:
            _serve(ctx, connection, command, route)
        else:
            # the leading space is Java's
            raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")
    except OgiveError as exc:
        refuse(connection, command, exc)


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
