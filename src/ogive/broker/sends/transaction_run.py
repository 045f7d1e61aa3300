"""Half messages (310) and ends of transactions (37) that came together, in any order, in one read
of a connection.

Behaviour
- What send.py and transaction.py do with each of them, for all of them at once: one call of the
  compiled part reads them, one builds all their records, which are one write. Without the compiled
  part there are no runs.
- A half message belongs here that is stored as producers send it; an end, one-way or answered, of a
  transaction whose message is in memory. Anything else ends the run and goes the usual way, and so
  do all of a run that the store refuses; the rest may be a run again.
"""

from functools import partial
from typing import Any, Final, NamedTuple

from ogive.broker.replies import refuse, success_frame
from ogive.broker.sends.commit import Stored, commit
from ogive.broker.sends.send_run import open_queues
from ogive.broker.services import Context
from ogive.broker.transactions.state import OpenTransaction
from ogive.errors import OgiveError, StoreError
from ogive.model import HALF_TOPIC
from ogive.native import native
from ogive.store.types import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.codes import Decision, RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import SendAnswer

_SEND_MESSAGE_V2: Final = int(RequestCode.SEND_MESSAGE_V2)
# of the bodies of a run
MAX_BYTES: Final = 256 * 1024
_DECISIONS: Final = {int(decision): decision for decision in (Decision.COMMIT, Decision.ROLLBACK)}


class _Half(NamedTuple):
    answer: SendAnswer
    transaction: OpenTransaction
    ready: NewMessage


class _End(NamedTuple):
    # None: no answer is wanted
    opaque: int | None
    place: int
    transaction: OpenTransaction
    messages: list[NewMessage]


def take_transactions(ctx: Context, connection: Connection, frames: list[bytes], at: int) -> int:
    """Carry out the half messages and ends from frames[at] on, as far as they follow each other;
    how many they are.
    """
    if native is None or ctx.guard is not None:
        return 0
    config = ctx.config
    steps = native.transaction_steps(
        frames,
        at,
        config.max_sends_waiting - ctx.sends_waiting,
        min(config.max_message_bytes, MAX_BYTES),
        HALF_TOPIC,
        ctx.own_properties,
        ctx.born_hosts[connection],
        ctx.store_host,
        NewMessage,
    )
    if steps is None:
        return 0
    messages: list[NewMessage] = []
    run = _begin(ctx, steps, messages)
    if not run:
        return 0
    answers = [one.answer for one in run if type(one) is _Half]
    try:
        commit(
            ctx,
            connection,
            _SEND_MESSAGE_V2,
            answers,
            [HALF_TOPIC] * len(answers),
            lambda done: ctx.put_now(messages, partial(_stored, ctx, connection, run, done)),
        )
    except OgiveError:
        # perhaps because of one of them: each by itself is answered
        for one in run:
            if type(one) is _End:
                ctx.transactions.take_back_end(one.transaction)
        return 0
    ends = [one for one in run if type(one) is _End and one.opaque is not None]
    connection.take_requests(len(answers) + len(ends))
    return len(run)


def _begin(
    ctx: Context, steps: list[tuple[Any, ...]], messages: list[NewMessage]
) -> list[_Half | _End]:
    """Return the steps that are carried out; append the messages that they store to *messages*."""
    transactions = ctx.transactions
    run: list[_Half | _End] = []
    size = 0
    for opaque, group, *rest in steps:
        if type(rest[0]) is str:
            key, half, ready = rest
            size += len(half.body)
            if ready.queue_id >= open_queues(ctx, ready.topic) or size > MAX_BYTES:
                break
            try:
                transaction = transactions.opening(half, ready, key, group)
            except OgiveError:
                break
            messages.append(half)
            answer = SendAnswer(opaque, ready.queue_id, key)
            run.append(_Half(answer, transaction, ready))
        else:
            place, offset, decision = rest
            found = transactions.at(place, offset)
            if found is None or found.group != group or found.moving or len(found.places) > 1:
                break
            stored = transactions.begin_end(found, _DECISIONS[decision])
            size += len(stored[0].body)
            if size > MAX_BYTES and run:
                transactions.take_back_end(found)
                break
            messages += stored
            run.append(_End(opaque, place, found, stored))
    return run


def _stored(
    ctx: Context,
    connection: Connection,
    run: list[_Half | _End],
    halves_stored: Stored,
    result: list[PutResult] | OgiveError,
) -> None:
    if isinstance(result, OgiveError):
        _refuse(ctx, connection, run, result)
        halves_stored(result)
        return
    transactions, traffic = ctx.transactions, ctx.traffic
    halves: list[PutResult] = []
    answers: list[bytes] = []
    at = 0
    for one in run:
        if type(one) is _Half:
            stored = result[at]
            at += 1
            transactions.opened(one.transaction, one.ready, stored)
            halves.append(stored)
        elif type(one) is _End:
            ended = result[at : at + len(one.messages)]
            at += len(ended)
            for message, put in zip(one.messages, ended, strict=True):
                traffic.count_put(message.topic, 1, put.size)
            transactions.end_stored(one.transaction, one.place, ended)
            if one.opaque is not None:
                answers.append(success_frame(one.opaque))
    if answers:
        connection.reply(b"".join(answers), len(answers))
    if halves:
        halves_stored(halves)


def _refuse(
    ctx: Context, connection: Connection, run: list[_Half | _End], error: OgiveError
) -> None:
    failed = error if isinstance(error, StoreError) else StoreError(str(error))
    for one in run:
        if type(one) is _End:
            ctx.transactions.end_failed(one.transaction, failed)
            if one.opaque is not None:
                refuse(connection, RemotingCommand(0, opaque=one.opaque), failed)
