"""Commit of sends: how many wait to be stored, and what happens to each once it is.

Every send is counted, answered or refused here, whatever it brings.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ogive.broker.replies import ONEWAY, code_and_remark, refuse
from ogive.broker.services import Context
from ogive.errors import OgiveError, ProtocolError, StoreError
from ogive.store.types import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.codes import VERSION, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import SendAnswer, encode_answers

Stored = Callable[[list[PutResult] | OgiveError], None]
"""Called once: where the messages are, or why nothing was stored."""


def answer_to(command: RemotingCommand, queue_id: int, key: str | None) -> SendAnswer:
    """The answer of a send that becomes one record."""
    return SendAnswer(None if command.flag & ONEWAY else command.opaque, queue_id, key)


def commit(
    ctx: Context,
    connection: Connection,
    code: int,
    answers: list[SendAnswer],
    topics: Sequence[str],
    put: Callable[[Stored], object],
    messages: int = 0,
) -> None:
    """Have sends of request *code* stored by *put*, and answer them when that is safe.

    *topics* are those that the sends count for, one for each answer. *messages* is how many a batch
    holds, which comes alone. Raises what *put* raises; then nothing waits.
    """
    put(partial(_committed, ctx, connection, code, answers, topics, messages, ctx.loop.time()))
    ctx.sends_waiting += len(answers)


def _committed(
    ctx: Context,
    connection: Connection,
    code: int,
    answers: list[SendAnswer],
    topics: Sequence[str],
    messages: int,
    started: float,
    result: list[PutResult] | OgiveError,
) -> None:
    ctx.sends_waiting -= len(answers)
    if isinstance(result, OgiveError):
        for opaque, *_ in answers:
            flag = ONEWAY if opaque is None else 0
            command = RemotingCommand(code, opaque=opaque or 0, flag=flag)
            refuse_send(ctx, connection, command, result)
        return
    seconds = ctx.loop.time() - started
    if len(answers) == 1:
        size = result[0][2] if len(result) == 1 else sum([stored[2] for stored in result])
        ctx.traffic.stored(topics[0], messages or 1, size, seconds, code)
        wanted = 0 if answers[0][0] is None else 1
    else:
        ctx.traffic.stored_run(topics, [stored[2] for stored in result], seconds, code)
        wanted = sum([answer[0] is not None for answer in answers])
    if wanted:
        frames = encode_answers(answers, result, ctx.config.region, ctx.store_host, VERSION)
        connection.reply(frames, wanted)


def put_once(
    ctx: Context,
    messages: Sequence[NewMessage],
    answers: list[SendAnswer],
    topic: str,
    command: RemotingCommand,
    done: Stored,
) -> None:
    """Store those of *messages*, one send's, that the window of duplicates does not hold yet.

    Where they were stored before, perhaps in another queue, the answer tells that.
    """

    def placed(queue_id: int, result: list[PutResult] | OgiveError) -> None:
        answers[0] = answers[0]._replace(queue_id=queue_id)
        done(result)

    ctx.put_once(messages, placed, topic, command)


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
    """Count a send that is not stored, and say why."""
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
