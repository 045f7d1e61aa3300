"""Plain batches that came together: SEND_BATCH_MESSAGE (320), one behind the other in one read of a
connection.

Behaviour
- What send.py and send_batch.py do with each of them. One call of the compiled part reads and
  checks all; each is stored and answered by itself, its records made from the bytes that came.
  Without the compiled part there are no runs.
- A batch is plain that is as many records as it has messages, stored just where it was sent, as it
  came. Any other request ends the run and goes the usual way, and so does a batch that has to be
  refused for what it is.
"""

from functools import partial
from typing import Final

from ogive.broker.sends.commit import commit, refuse_send
from ogive.broker.sends.send_batch import BARRED_STARTS
from ogive.broker.sends.send_run import open_queues
from ogive.broker.services import Context
from ogive.errors import OgiveError
from ogive.native import native
from ogive.store.types import NewBatch, NewMessage
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import MAX_BATCH_MESSAGES
from ogive.wire.sends import SendAnswer

_SEND_BATCH_MESSAGE: Final = int(RequestCode.SEND_BATCH_MESSAGE)


def take_batches(ctx: Context, connection: Connection, frames: list[bytes], at: int) -> int:
    """Store the plain batches from frames[at] on, as far as they follow each other; how many they
    are.
    """
    if native is None or ctx.guard is not None or ctx.duplicates is not None:
        return 0
    config = ctx.config
    run = native.plain_batches(
        frames,
        at,
        config.max_sends_waiting - ctx.sends_waiting,
        config.max_message_bytes,
        partial(open_queues, ctx),
        BARRED_STARTS,
        MAX_BATCH_MESSAGES,
        ctx.born_hosts[connection],
        ctx.store_host,
        NewMessage,
    )
    if run is None:
        return 0
    connection.take_requests(len(run))
    for frame, (shared, start, count, key, opaque) in zip(
        frames[at : at + len(run)], run, strict=True
    ):
        answer = SendAnswer(opaque, shared.queue_id, key, count)
        put = partial(ctx.put_now, (NewBatch(shared, frame, start, count),))
        try:
            commit(ctx, connection, _SEND_BATCH_MESSAGE, [answer], [shared.topic], put, count)
        except OgiveError as exc:
            refuse_send(ctx, connection, RemotingCommand(_SEND_BATCH_MESSAGE, opaque=opaque), exc)
            # by what waits for it to read: the others would go unanswered
            if connection.closed:
                break
    return len(run)
