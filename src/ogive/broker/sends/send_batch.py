"""Batches: messages of one queue, stored all or none.

Source: SendMessageProcessor.sendBatchMessage, 5.5.

In a topic of batches (queue.type=BatchCQ) one with a unique key of its own, such as Java's
MessageBatch has, is one record with all messages in its body. Any other batch, and one for any
other topic, is as many records as it has messages.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ogive.broker.replies import Rejected
from ogive.broker.sends.checks import NOT_PLAIN, check_plain, encoded
from ogive.broker.sends.commit import answer_to, commit, put_once
from ogive.broker.services import Context
from ogive.broker.state.topic_table import keeps_batches
from ogive.errors import ResponseCode
from ogive.model import RETRY_PREFIX, PropertyName
from ogive.native import native
from ogive.store.types import NewBatch, NewMessage, PutDone
from ogive.transport.connection import Connection
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.message import (
    MAX_BATCH_MESSAGES,
    MAX_INNER_MESSAGES,
    MAX_PROPERTIES_BYTES,
    WRAPPED,
    BatchItem,
    decode_batch,
    decode_properties,
    encode_properties,
)

_OURS: Final = frozenset(
    (
        PropertyName.MSG_REGION,
        PropertyName.TRACE_ON,
        PropertyName.CLUSTER,
        "INNER_NUM",
        "INNER_BASE",
    )
)
"""Properties that a broker sets."""
BARRED_STARTS: Final = (b"DELAY\x01", b"TRAN_MSG\x01", b"TIMER_", b"INNER_NUM\x01")
"""Beginnings of properties that no message in a batch may have."""


def put_batch(
    ctx: Context, connection: Connection, command: RemotingCommand, draft: NewMessage, text: str
) -> None:
    """*draft* holds what all items share.

    Stored all or none, with offsets that follow each other.
    """
    own = decode_properties(encoded(text))
    if draft.topic.startswith(RETRY_PREFIX):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"batch request does not support retry group {draft.topic}",
        )
    key = own.get(PropertyName.UNIQ_KEY)
    whole = (
        bool(key)
        and (topic := ctx.topics.get(draft.topic)) is not None
        and keeps_batches(topic.attributes)
    )
    batch = _checked(draft, command.body, MAX_INNER_MESSAGES if whole else MAX_BATCH_MESSAGES)
    if any(name in own for name in NOT_PLAIN):
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither delayed nor transactional"
        )
    answer = answer_to(command, draft.queue_id, key)
    stored: Sequence[NewMessage | NewBatch] = (batch,)
    if whole:
        stored = (_whole(ctx, draft, command.body, own, batch.number),)
        answer = answer._replace(more=("batchUniqId", str(key)))
    else:
        answer = answer._replace(records=batch.number)
    answers = [answer]
    put: Callable[[PutDone], object] = partial(ctx.put, stored, draft.topic)
    if ctx.duplicates is not None:
        each = [
            message
            for one in stored
            for message in (one.each() if isinstance(one, NewBatch) else (one,))
        ]
        put = partial(put_once, ctx, each, answers, draft.topic, command)
    commit(ctx, connection, command.code, answers, [draft.topic], put, batch.number)


def _checked(draft: NewMessage, body: bytes, most: int) -> NewBatch:
    """Raises ProtocolError and Rejected."""
    count = None if native is None else native.plain_batch(body, BARRED_STARTS, most)
    if count is not None:
        return NewBatch(draft, body, 0, count)
    items = decode_batch(body, most)
    if not items:
        raise Rejected(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
    _check_items(items)
    return NewBatch(draft, body, 0, len(items))


def _whole(
    ctx: Context, draft: NewMessage, body: bytes, own: dict[str, str], count: int
) -> NewMessage:
    """The batch as one record: as a message with the properties of the batch, and with its
    count.
    """
    if draft.sys_flag & SysFlag.COMPRESSED:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL, "a batch that stays whole cannot be compressed"
        )
    text = encode_properties(
        {name: value for name, value in own.items() if name not in _OURS}
    ).decode()
    stored = encoded(f"{text}{ctx.own_properties}INNER_NUM\x01{count}\x02")
    return draft._replace(body=body, properties=stored, sys_flag=draft.sys_flag | WRAPPED)


def _check_items(items: list[BatchItem]) -> None:
    if max([len(properties) for _, _, properties in items]) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"properties in a batch are over the limit of {MAX_PROPERTIES_BYTES} bytes",
        )
    # to be searched at once, for what nearly no batch has
    texts = b"\x02".join([properties for _, _, properties in items])
    if any(start in texts for start in BARRED_STARTS):
        for item in items:
            check_plain("a message in a batch", decode_properties(item.properties))
