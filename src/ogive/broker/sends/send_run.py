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
from itertools import accumulate, islice, takewhile
from typing import Final

from ogive.broker.sends.commit import commit, refuse_send
from ogive.broker.services import Context
from ogive.errors import InvalidOption, StoreError
from ogive.model import NO_SEND_TOPICS
from ogive.native import native
from ogive.store.types import NewMessage
from ogive.transport.connection import Connection
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import SendAnswer

# of frames that are stored together; their records are at most twice as large
MAX_RUN_BYTES: Final = 1024 * 1024
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
        min(config.max_sends_waiting - ctx.sends_waiting, _in_one_write(frames, at)),
        config.max_message_bytes,
        partial(open_queues, ctx),
        ctx.own_properties,
        ctx.born_hosts[connection],
        ctx.store_host,
        NewMessage,
        SendAnswer,
    )
    if run is None:
        return 0
    messages, answers = run
    topics = [message[0] for message in messages]
    try:
        commit(ctx, connection, _SEND_MESSAGE_V2, answers, topics, partial(ctx.put_now, messages))
    except InvalidOption:
        # because of one of them: each by itself is answered
        return 0
    except StoreError as exc:
        # it takes nothing now
        connection.take_requests(len(answers))
        for answer in answers:
            command = RemotingCommand(_SEND_MESSAGE_V2, opaque=answer.opaque or 0)
            refuse_send(ctx, connection, command, exc)
        return len(answers)
    connection.take_requests(len(messages))
    return len(messages)


def _in_one_write(frames: list[bytes], at: int) -> int:
    """Return how many of the frames from frames[at] on are stored together, at least one.

    They become one write, and with flush=async a power cut may take all of it.
    """
    if sum(map(len, frames)) <= MAX_RUN_BYTES:
        return len(frames)
    sizes = accumulate(map(len, islice(frames, at, None)))
    return max(1, sum(1 for _ in takewhile(lambda size: size <= MAX_RUN_BYTES, sizes)))


def open_queues(ctx: Context, topic: str) -> int:
    """Return the number of queues of a topic that takes plain messages without a further check; 0
    for any other.
    """
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
