"""The contents of one request: a message, a batch from the caller, or a run of messages that are
sent together.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ogive.client.ids import UniqueKeys
from ogive.client.sending.frame import SendFrames
from ogive.client.sending.outgoing import Answer, Outgoing, Target
from ogive.client.sending.properties import with_unique_key
from ogive.transport.connection import Connection
from ogive.wire.message import encode_batch

MAX_RUN: Final = 256
BATCH_PROPERTIES: Final = b"WAIT\x01true\x02"


def form(
    outgoing: Outgoing, keys: UniqueKeys, now: float, timeout_s: float, *, whole: bool = False
) -> None:
    """Give an accepted message, or each of a batch, its key, and its time: *now* is one of the
    loop's clock. Raises MessageIllegal.

    With *whole* a batch gets a key of its own, too, see ProducerConfig.whole_batches.
    """
    now_ms = int(time.time() * 1000)
    if outgoing.batch is None:
        outgoing.key = key = keys.next(now_ms)
        outgoing.properties = with_unique_key(key, outgoing.text)
    else:
        names = [keys.next(now_ms) for _ in outgoing.batch]
        rows = zip(names, outgoing.batch, strict=True)
        outgoing.body = encode_batch(
            (flag, body, with_unique_key(key, text)) for key, (flag, body, text) in rows
        )
        outgoing.key = ",".join(names)
        outgoing.properties = (
            with_unique_key(keys.next(now_ms), BATCH_PROPERTIES.decode())
            if whole
            else BATCH_PROPERTIES
        )
    outgoing.born_ms = now_ms
    outgoing.started = now
    outgoing.deadline = now + timeout_s


def may_share(outgoing: Outgoing) -> bool:
    """Whether the message may travel in a run: brokers take no compressed, delayed or retry-topic
    messages in a batch.
    """
    if (
        outgoing.alone
        or outgoing.batch is not None
        or outgoing.sys_flag
        or outgoing.topic.startswith("%")
    ):
        return False
    return (
        "DELAY\x01" not in outgoing.text
        and "WAIT\x01" not in outgoing.text
        and "TIMER_DEL" not in outgoing.text
    )


def next_run(
    waiting: deque[Outgoing], max_bytes: int, now: float, max_count: int = MAX_RUN
) -> list[Outgoing]:
    """Take from the front what one request can carry.

    One whose time is up is dropped: it ends by its deadline.
    """
    run: list[Outgoing] = []
    total = 0
    max_count = min(max_count, MAX_RUN)
    while waiting and len(run) < max_count:
        outgoing = waiting[0]
        if not outgoing.finished and outgoing.deadline > now:
            total += outgoing.size
            if run and (total > max_bytes or not may_share(outgoing)):
                break
            run.append(outgoing)
        waiting.popleft()
        if run and not may_share(run[0]):
            break
    return run


def start_run(
    run: Sequence[Outgoing],
    target: Target,
    connection: Connection,
    on_answer: Callable[[Answer], None],
    now: float,
) -> None:
    """Send *run* in one request, as a try of each.

    The answer may take as long as the most patient waits. Raises TransportError.
    """
    latest = now
    for outgoing in run:
        outgoing.target = target
        outgoing.tries += 1
        outgoing.sent_at = now
        outgoing.on_way = True
        if outgoing.deadline > latest:
            latest = outgoing.deadline
    opaque = connection.next_opaque()
    connection.start_frame(opaque, frame_of(run, target.frames, opaque), on_answer, latest - now)


def frame_of(run: Sequence[Outgoing], frames: SendFrames, opaque: int) -> bytes:
    """The request that carries *run*."""
    first = run[0]
    if len(run) > 1:
        body = encode_batch([(one.flag, one.body, one.properties) for one in run])
        return frames.batch(opaque, first.born_ms, BATCH_PROPERTIES, body)
    if first.batch is not None:
        return frames.batch(opaque, first.born_ms, first.properties, first.body)
    return frames.single(
        opaque, first.born_ms, first.properties, first.body, first.sys_flag, first.flag
    )
