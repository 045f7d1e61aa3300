"""Pass requests to their handlers, and turn the handlers' errors into answers."""

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ogive.access.audit import AuditEntry, requester
from ogive.broker.large_replies import InPieces, LargeReply
from ogive.broker.replies import Rejected, code_and_remark, refuse, reply
from ogive.broker.routes import CHANGES, NOT_SUPPORTED, ROUTES, Direct, Route
from ogive.broker.sends.commit import fields_of_refusal, refuse_send, store_sends
from ogive.broker.services import Context
from ogive.errors import OgiveError, ResponseCode, StoreError
from ogive.store.file_reader import Cold
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.sends import End, Send, SendKind, read_sends

# limit of sends that are stored in one step
MAX_SENDS: Final = 256
# limit of the bytes of their frames: with flush=async a power cut may take all of one write
MAX_SENDS_BYTES: Final = 1024 * 1024
# for 3.11, where attributes of an enumeration are slow
_HALF: Final = int(SendKind.HALF)
_END: Final = int(SendKind.END)


def on_frames(ctx: Context, connection: Connection, frames: list[bytes], at: int) -> int:
    """Handle the requests from frames[at] on: consecutive sends in one step, any other request by
    itself. Return the number of handled frames.
    """
    origin = ctx.origins[connection]
    sends = read_sends(frames, at, MAX_SENDS, MAX_SENDS_BYTES, ctx.config.max_message_bytes, origin)
    if not sends:
        connection.take_frame(frames[at])
        return 1
    if sends[0][1] == _END or sends[0][1] == _HALF:
        sends = _until_look_up(ctx, sends)
    # a one-way send has no opaque; reading fields by number costs less than by name
    connection.take_requests(len(sends) - [send[3][0] for send in sends].count(None))
    if _all_admitted(ctx, connection, sends):
        store_sends(ctx, connection, sends, partial(dispatch, ctx, connection))
        return len(sends)
    for send in sends:
        dispatch(ctx, connection, send.command)
        if connection.closed:
            break
    return len(sends)


def _until_look_up(ctx: Context, sends: list[Send | End]) -> list[Send | End]:
    """Return *sends* up to the first end of a transaction that has to be looked up in the log.

    Such an end takes as long as many sends, so it is handled by itself, with a slice after it.
    """
    for at, send in enumerate(sends):
        if isinstance(send, End) and ctx.transactions.in_memory(send.ending) is None:
            return sends[: max(at, 1)]
    return sends


def _all_admitted(ctx: Context, connection: Connection, sends: Sequence[Send | End]) -> bool:
    """Return False if dispatch() has to find out which of *sends* access control refuses, or has to
    read the message of a transaction from disk.
    """
    if ctx.guard is None:
        return True
    try:
        with ctx.store.without_waiting():
            admitted = ctx.guard.admits(sends, connection.remote_address)
    except (Cold, StoreError):
        return False
    if admitted:
        connection.trust()
    return admitted


def dispatch(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Handle one request; its answer is sent now or later, and a one-way request has none.

    A request that needs data from the disk is handled again after that was read: handlers change
    nothing before they have read.
    """
    try:
        _carry_out(ctx, connection, command)
    except OgiveError as exc:
        _refuse(ctx, connection, command, exc)
    except Cold as cold:
        _later(
            ctx,
            connection,
            command,
            partial(_from_disk, ctx, connection, command, cold.with_traceback(None)),
            ", from disk",
        )


def _refuse(
    ctx: Context, connection: Connection, command: RemotingCommand, error: OgiveError
) -> None:
    if command.code in ctx.traffic.send_times:
        refuse_send(ctx, connection, command, error)
    else:
        refuse(connection, command, error, fields_of_refusal(ctx, command.code, error))


async def _from_disk(
    ctx: Context, connection: Connection, command: RemotingCommand, cold: Cold
) -> None:
    """Handle a request that needs the disk."""
    try:
        carry_out = partial(_carry_out, ctx, connection, command)
        await ctx.cold_reads.read(ctx.store, carry_out, cold)
    except OgiveError as exc:
        _refuse(ctx, connection, command, exc)


def _carry_out(
    ctx: Context, connection: Connection, command: RemotingCommand, *, in_turn: bool = False
) -> InPieces[Any] | None:
    """Handle the request. Return the rest of the work for a large reply.

    Raises OgiveError for a request that is refused, and Cold.
    """
    route = ROUTES.get(command.code)
    # before the guard, which may have to read it
    if type(route) is Route and len(command.body) > route.max_body_bytes:
        remark = f"a body of {len(command.body)} bytes, {route.max_body_bytes} are allowed"
        raise Rejected(ResponseCode.INVALID_PARAMETER, remark)
    if ctx.guard is not None:
        # it may look up whose message is at an offset of the log
        with ctx.store.without_waiting():
            ctx.guard.check(command, connection.remote_address)
        connection.trust()
    if type(route) is Direct:
        route.handle(ctx, connection, command)
    elif type(route) is Route and route.listing and not in_turn:
        work = partial(_listing, ctx, connection, command)
        make = partial(ctx.large_replies.make, connection, work)
        _later(ctx, connection, command, make, ", in turn")
    elif type(route) is Route:
        return _serve(ctx, connection, command, route)
    else:
        raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _not_supported(command.code))
    return None


def _later(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    work: Callable[[], Coroutine[Any, Any, None]],
    how: str = "",
) -> bool:
    """Handle the request in a task of its own.

    If waiting requests use too much memory, it is refused, and *work* does not begin.
    """
    begun = ctx.carry_out_later(
        connection, command, partial(_answered, connection, command, work), how
    )
    if not begun:
        remark = "[REJECTREQUEST]system busy: requests that wait hold too much memory already"
        refuse(connection, command, Rejected(ResponseCode.SYSTEM_BUSY, remark))
    return begun


async def _answered(
    connection: Connection,
    command: RemotingCommand,
    work: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Do *work*; if it fails without an answer, end the connection.

    asyncio does the same for a request that fails while it is read.
    """
    try:
        await work()
    except BaseException:
        connection.abort(
            f"request {command.code} of {connection.remote_address} ended without an answer"
        )
        raise


def _not_supported(code: int) -> str:
    """Return Java's text, with its leading space, and the reason if there is one."""
    reason = _REASONS.get(code)
    return f" request type {code} not supported" + (f": {reason}" if reason else "")


_REASONS: Final[Mapping[int, str]] = {int(code): reason for code, reason in NOT_SUPPORTED.items()}


async def _listing(
    ctx: Context, connection: Connection, command: RemotingCommand, large: LargeReply
) -> None:
    """Build and send a large reply in its turn, or refuse the request."""
    try:
        pieces = await large.read(partial(_carry_out, ctx, connection, command, in_turn=True))
        if pieces is not None:
            reply(connection, command, pieces.finish(await large.each(pieces.reads)))
    except OgiveError as exc:
        refuse(connection, command, exc)


def _serve(
    ctx: Context, connection: Connection, command: RemotingCommand, route: Route[Any]
) -> InPieces[Any] | None:
    header = decode_header(route.header, command.ext_fields)
    with ctx.store.without_waiting():
        entry = _entry(ctx, connection, command)
        # else it begins in its turn, see _serve_later()
        if entry is not None and not inspect.iscoroutinefunction(route.handle):
            entry.begin()
        try:
            answer = route.handle(ctx, connection, header, command.body)
        except OgiveError as exc:
            if entry is not None:
                entry.tell(code_and_remark(exc)[0])
            raise
    if isinstance(answer, RemotingCommand):
        if entry is not None:
            entry.tell(answer.code)
        reply(connection, command, answer)
    elif isinstance(answer, InPieces):
        return answer
    else:
        assert inspect.iscoroutine(answer)
        if not _later(
            ctx, connection, command, partial(_serve_later, ctx, connection, command, answer, entry)
        ):
            answer.close()
    return None


async def _serve_later(
    ctx: Context,
    connection: Connection,
    command: RemotingCommand,
    answer: Coroutine[Any, Any, RemotingCommand],
    entry: AuditEntry[Context] | None,
) -> None:
    try:
        await ctx.slices.mine()
        if entry is not None:
            entry.begin()
        done = await answer
        if entry is not None:
            entry.tell(done.code)
        reply(connection, command, done)
    except OgiveError as exc:
        if entry is not None:
            entry.tell(code_and_remark(exc)[0])
        refuse(connection, command, exc, fields_of_refusal(ctx, command.code, exc))
    finally:
        answer.close()


def _entry(
    ctx: Context, connection: Connection, command: RemotingCommand
) -> AuditEntry[Context] | None:
    """Return the log entry of a request that administers the broker."""
    change = CHANGES.get(command.code)
    if change is None:
        return None
    who = requester(command, connection.remote_address, checked=ctx.guard is not None)
    return AuditEntry(change, ctx, command, who, f"broker {ctx.config.name}")
