"""Plain sends that came together: SEND_MESSAGE_V2 (310), one behind the other in one read of a
connection.

Behaviour
- What send.py does with each of them, for all of them at once: one call of the compiled part reads
  them, one builds their records, and one their answers. Without the compiled part there are no
  runs.
- A message is plain that is stored just where it was sent, as it came. Any other ends the run and
  goes the way of send.py, and so does one that has to be refused for what it is; the rest may be a
  run again.
"""

from functools import partial
from typing import Final

from ogive.broker.replies import framed
from ogive.broker.sends.send_answer import json_text, refuse_send
from ogive.broker.services import Context
from ogive.errors import OgiveError
from ogive.model import NO_SEND_TOPICS
from ogive.native import native
from ogive.store.types import NewMessage, PutResult
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand

_SEND_MESSAGE_V2: Final = int(RequestCode.SEND_MESSAGE_V2)


def take_sends(ctx: Context, connection: Connection, frames: list[bytes], at: int) -> int:
    """Store the plain sends from frames[at] on, as far as they follow each other; how many they
    are.
    """
    if native is None or ctx.guard is not None or ctx.duplicates is not None:
        return 0
    config = ctx.config
    run = native.plain_sends(
        frames,
        at,
        config.max_sends_waiting - ctx.sends_waiting,
        config.max_message_bytes,
        partial(open_queues, ctx),
        ctx.own_properties,
        ctx.born_hosts[connection],
        ctx.store_host,
        NewMessage,
    )
    if run is None:
        return 0
    messages, keys, opaques, _ = run
    try:
        ctx.put_now(
            messages, partial(_stored, ctx, connection, messages, keys, opaques, ctx.loop.time())
        )
    except OgiveError:
        # perhaps because of one of them: each by itself is answered
        return 0
    connection.take_requests(len(messages))
    ctx.sends_waiting += len(messages)
    return len(messages)


def open_queues(ctx: Context, topic: str) -> int:
    """Of a topic that takes plain messages without a further look at them; 0 of any other."""
    config = ctx.topics.get(topic)
    if (
        config is None
        or config.attributes
        or config.filter_type == "MULTI_TAG"
        or topic in NO_SEND_TOPICS
        or not ctx.is_saved(topic)
    ):
        return 0
    return config.write_queues


def _stored(
    ctx: Context,
    connection: Connection,
    messages: list[NewMessage],
    keys: list[str],
    opaques: list[int],
    started: float,
    result: list[PutResult] | OgiveError,
) -> None:
    ctx.sends_waiting -= len(messages)
    if isinstance(result, OgiveError):
        _refuse(ctx, connection, opaques, result)
        return
    ctx.traffic.stored_run(
        [message[0] for message in messages],
        [stored[2] for stored in result],
        ctx.loop.time() - started,
        _SEND_MESSAGE_V2,
    )
    answers = (
        None
        if native is None
        else native.send_answers(ctx.send_answer, messages, keys, result, opaques)
    )
    if answers is None:
        answers = b"".join(
            framed(
                ctx.send_answer
                % (
                    message.queue_id,
                    json_text(key),
                    stored.commitlog_offset,
                    stored.queue_offset,
                    opaque,
                )
            )
            for message, key, stored, opaque in zip(messages, keys, result, opaques, strict=True)
        )
    connection.reply(answers, len(messages))


def _refuse(ctx: Context, connection: Connection, opaques: list[int], error: OgiveError) -> None:
    for opaque in opaques:
        refuse_send(ctx, connection, RemotingCommand(_SEND_MESSAGE_V2, opaque=opaque), error)
