"""Commit of sends: the number of sends that wait to be stored, and the answer to each once it is.

Every send is counted, answered or refused here, whatever its kind is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ogive.broker.replies import ONEWAY, code_and_remark, refuse, success_frame
from ogive.broker.sends.checks import check_room
from ogive.broker.sends.duplicates import OnPlaced
from ogive.broker.sends.plan import Put, plan, plan_together
from ogive.broker.services import Context
from ogive.errors import OgiveError, ProtocolError, StoreError
from ogive.store.types import NewBatch, NewMessage, PutResult, joined
from ogive.transport.connection import Connection
from ogive.wire.codes import VERSION, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import End, Send, SendAnswer, Signed, encode_answers, read_send

Stored = Callable[[list[PutResult] | OgiveError], None]
"""Called once: with the places of the messages, or the reason why nothing was stored."""


def handle(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """Store a send that comes alone: read_sends() did not read it, or access control did not admit
    it together with others. Raises OgiveError.
    """
    check_room(ctx)
    send = read_send(command, ctx.origins[connection])
    commit(ctx, connection, plan(ctx, send), send.signed)


def store_sends(
    ctx: Context,
    connection: Connection,
    sends: Sequence[Send | End],
    look_up: Callable[[RemotingCommand], None],
) -> None:
    """Store sends that arrived together, and answer each when that is safe, or refuse it.

    They are stored in one step as far as possible. *look_up* carries out the end of a transaction
    that has to be looked up in the log.
    """
    while sends and len(sends) <= ctx.config.max_sends_waiting - ctx.sends_waiting:
        put, taken = plan_together(ctx, sends)
        if put is None:
            break
        try:
            commit(ctx, connection, put)
        except OgiveError as exc:
            if put.undo is not None:
                put.undo()
            elif isinstance(exc, StoreError):
                # it takes nothing now
                for send in sends:
                    _refuse(ctx, connection, put.code, send.answer, exc)
                return
            # perhaps because of one of them: each by itself is answered
            break
        sends = sends[taken:]
    for send in sends:
        if connection.closed:
            # by what waits for it to read: the others would go unanswered
            return
        if isinstance(send, End):
            look_up(send.command)
            continue
        try:
            check_room(ctx)
            commit(ctx, connection, plan(ctx, send), send.signed)
        except OgiveError as exc:
            _refuse(ctx, connection, send.code, send.answer, exc)


def commit(ctx: Context, connection: Connection, put: Put, signed: Signed | None = None) -> None:
    """Store *put*, and answer its sends. *signed* is the sender.

    Raises OgiveError if the store refuses everything, or these messages; then nothing waits.
    """
    code, _, answers, topics, _, batched, _, ends, *_ = put
    # without the messages, which the store holds as records
    done = partial(
        _committed, ctx, connection, code, answers, topics, batched, ends, ctx.loop.time()
    )
    messages, fail = put.messages, done
    if put.once and ctx.duplicates is not None:
        # the permission was checked before this, and with it the signature
        user = None if ctx.guard is None or signed is None else signed.access_key
        messages, placed = _one_by_one(put, done)
        store = partial(ctx.duplicates.put, ctx.put_now, messages, placed, user)
        fail = partial(placed, messages[0].queue_id)
    else:
        store = partial(_put_now, ctx, put, done)
    if ctx.is_saved(put.saved):
        store()
    else:
        ctx.once_saved(put.saved, messages, store, fail)
    ctx.sends_waiting += len(put.answers)


async def store_one(ctx: Context, message: NewMessage) -> PutResult:
    """Store a message that is not from a send; it counts as waiting. Raises OgiveError."""
    ctx.sends_waiting += 1
    try:
        (stored,) = await ctx.stored((message,), message.topic)
        return stored
    finally:
        ctx.sends_waiting -= 1


def _put_now(ctx: Context, put: Put, done: Stored) -> None:
    ctx.put_now(put.messages, done if put.opening is None else put.opening(done))


def _one_by_one(put: Put, done: Stored) -> tuple[Sequence[NewMessage], OnPlaced]:
    """Return the messages of one send for the window of duplicates, and the callback for their
    places.

    If they were stored before, perhaps in another queue, the answer has that place.
    """

    def placed(queue_id: int, result: list[PutResult] | OgiveError) -> None:
        put.answers[0] = put.answers[0]._replace(queue_id=queue_id)
        done([joined(result)] if isinstance(result, list) and batched else result)

    batched = isinstance(put.messages[0], NewBatch)
    messages = [
        message
        for one in put.messages
        for message in (one.each() if isinstance(one, NewBatch) else (one,))
    ]
    return messages, placed


def _committed(
    ctx: Context,
    connection: Connection,
    code: int,
    answers: list[SendAnswer],
    topics: list[str],
    batched: int,
    ends: Sequence[int],
    started: float,
    result: list[PutResult] | OgiveError,
) -> None:
    ctx.sends_waiting -= len(answers)
    if isinstance(result, OgiveError):
        for opaque in ends:
            refuse(connection, RemotingCommand(0, opaque=opaque), result)
        for answer in answers:
            _refuse(ctx, connection, code, answer, result)
        return
    seconds = ctx.loop.time() - started
    if len(answers) > 1 and [answer[3] for answer in answers].count(1) == len(answers):
        ctx.traffic.stored_run(topics, [stored[2] for stored in result], seconds, code)
    else:
        for topic, answer, stored in zip(topics, answers, result, strict=True):
            ctx.traffic.stored(topic, batched or answer[3], stored[2], seconds, code)
    wanted = len(answers) - [answer[0] for answer in answers].count(None)
    if wanted:
        frames = encode_answers(answers, result, ctx.config.region, ctx.store_host, VERSION)
        connection.reply(frames, wanted)
    if ends:
        connection.reply(b"".join(map(success_frame, ends)), len(ends))


def _refuse(
    ctx: Context, connection: Connection, code: int, answer: SendAnswer, error: OgiveError
) -> None:
    command = RemotingCommand(
        code, opaque=answer.opaque or 0, flag=ONEWAY if answer.opaque is None else 0
    )
    refuse_send(ctx, connection, command, error)


_WITH_REGION: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
    )
)


def refuse_send(
    ctx: Context, connection: Connection, command: RemotingCommand, error: OgiveError
) -> None:
    """Count a send that is not stored, and answer with the reason."""
    ctx.traffic.refused(
        command.code, code_and_remark(error)[0], by_store=isinstance(error, StoreError)
    )
    refuse(connection, command, error, fields_of_refusal(ctx, command.code, error))


def fields_of_refusal(ctx: Context, code: int, error: OgiveError) -> dict[str, str]:
    """Return the headers that the answer to a refused send, reply or recall has in Java, too.

    A request that could not be read has none.
    """
    if isinstance(error, ProtocolError) or code not in _WITH_REGION:
        return {}
    region = {"MSG_REGION": ctx.config.region}
    return region if code == RequestCode.RECALL_MESSAGE else region | {"TRACE_ON": "true"}
