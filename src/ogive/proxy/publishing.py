"""Sends, ends of transactions, recalls.

Source: SendMessageActivity.java, EndTransactionActivity.java, RecallMessageActivity.java, 5.5.

Behaviour
- The first message decides the topic. Several messages are one batch, stored all or none.
- Messages with the same message group go to one queue, the one that Apache's proxy chooses.
- The topic's message.type must be the message's; topics without one are for NORMAL messages.
- A message of a transaction registers its producer, so that the broker can ask it.
"""

import itertools
from collections.abc import Sequence
from typing import Final

from ogive.broker.deferred.timer_properties import read_handle
from ogive.client import rpc
from ogive.errors import BrokerError, ResponseCode
from ogive.model import DLQ_PREFIX, RETRY_PREFIX, SendResult
from ogive.proxy import rocketmq_pb2 as pb
from ogive.proxy.backend import Backend
from ogive.proxy.messages import (
    PRIORITY,
    check_message,
    stored_body,
    to_properties,
    topic_of,
    type_of,
)
from ogive.proxy.sessions import Session, read_transaction_id, transaction_id
from ogive.proxy.status import Illegal, ok, status_of_send
from ogive.wire.bodies.json_fields import PERM_WRITE
from ogive.wire.codes import Decision, SysFlag
from ogive.wire.command import MAX_FRAME_BYTES
from ogive.wire.headers.send import (
    EndTransactionRequest,
    RecallMessageRequest,
    SendMessageRequestV2,
)
from ogive.wire.message import (
    BatchItem,
    encode_batch,
    java_hash,
    join_properties,
    parse_offset_message_id,
)
from ogive.wire.sends import split_result

SEND_TIMEOUT_S: Final = 10.0
MAX_BATCH: Final = 4096
MAX_BATCH_BYTES: Final = MAX_FRAME_BYTES
"""Bodies of one batch: what compressed ones inflate to is as much as plain ones could be."""
_MASK: Final = (1 << 64) - 1
_DECISIONS: Final = {pb.COMMIT: Decision.COMMIT, pb.ROLLBACK: Decision.ROLLBACK}
Properties = dict[str, str]


class PublishingMethods:
    """The methods with which producers send messages and end transactions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._turn = itertools.count()

    async def send(
        self, session: Session, request: pb.SendMessageRequest
    ) -> pb.SendMessageResponse:
        messages = request.messages
        topic = _one_topic(messages)
        session.check_send(topic)
        for message in messages:
            check_message(message)
        properties = [to_properties(one, topic, session.client.address) for one in messages]
        await self._check_types(topic, messages, properties)
        broker, queue_id = await self._queue(topic, properties)
        is_transaction = messages[0].system_properties.message_type == pb.TRANSACTION
        if is_transaction and not session.is_producer_of(topic):
            await session.register(topics=(topic,))
        try:
            if len(messages) == 1:
                results = [
                    await _send_one(session, topic, (broker, queue_id), messages[0], properties[0])
                ]
            else:
                results = await _send_batch(
                    session, topic, (broker, queue_id), messages, properties
                )
        except BrokerError as exc:
            if exc.code == ResponseCode.MESSAGE_ILLEGAL and any(
                one.system_properties.HasField("delivery_timestamp") for one in messages
            ):
                raise Illegal(pb.ILLEGAL_DELIVERY_TIME, exc.remark) from None
            raise
        return _response(broker, results, is_transaction=is_transaction)

    async def _check_types(
        self, topic: str, messages: Sequence[pb.Message], properties: Sequence[Properties]
    ) -> None:
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return
        expected = await self._backend.message_type(topic)
        if expected in ("", "UNSPECIFIED"):
            expected = "NORMAL"
        for one in properties:
            actual = type_of(one)
            if expected not in (actual, "MIXED"):
                raise Illegal(
                    pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"a message of type {actual} does not fit topic {topic}, which is for "
                    f"{expected} messages: `ogive topic create {topic} --message-type {actual}`, "
                    "or MIXED",
                )
        if len(messages) > 1 and any(
            type_of(one) in ("TRANSACTION", "DELAY") for one in properties
        ):
            raise Illegal(
                pb.BAD_REQUEST, "messages of a batch are neither delayed nor transactional"
            )

    async def _queue(self, topic: str, properties: Sequence[Properties]) -> tuple[str, int]:
        """Return broker and queue for messages. Raises Illegal."""
        queues = [
            (data.broker_name, queue_id)
            for data in sorted(await self._backend.route(topic), key=lambda one: one.broker_name)
            if data.perm & PERM_WRITE
            for queue_id in range(data.write_queues)
        ]
        if not queues:
            raise Illegal(
                *(pb.FORBIDDEN, f"no writable queue in topic {topic}")
                if await self._backend.route(topic)
                else (
                    pb.TOPIC_NOT_FOUND,
                    f"topic {topic} does not exist: create it with `ogive topic create {topic}`",
                )
            )
        first = properties[0]
        key = first.get("__SHARDINGKEY") or first.get("__LITE_TOPIC")
        if key:
            return queues[consistent_hash(java_hash(key), len(queues))]
        if PRIORITY in first:
            broker = queues[next(self._turn) % len(queues)][0]
            own = [queue for queue in queues if queue[0] == broker]
            return own[min(int(first[PRIORITY]), len(own) - 1)]
        # one broker after the other: a client's next try goes to another one
        queues.sort(key=lambda queue: (queue[1], queue[0]))
        return queues[next(self._turn) % len(queues)]

    async def end_transaction(
        self, session: Session, request: pb.EndTransactionRequest
    ) -> pb.EndTransactionResponse:
        topic = topic_of(request.topic)
        if not request.transaction_id.strip():
            raise Illegal(pb.INVALID_TRANSACTION_ID, "a transaction id is needed")
        broker, queue_offset, commitlog_offset = read_transaction_id(request.transaction_id)
        header = EndTransactionRequest(
            producer_group=topic,
            tran_state_table_offset=queue_offset,
            commit_log_offset=commitlog_offset,
            commit_or_rollback=_DECISIONS.get(request.resolution, Decision.UNKNOWN),
            msg_id=request.message_id,
            transaction_id=request.message_id,
            from_transaction_check=request.source == pb.SOURCE_SERVER_CHECK,
            topic=topic,
            broker_name=broker,
        )
        await rpc.end_transaction(session.link, broker, header)
        return pb.EndTransactionResponse(status=ok())

    async def recall(
        self, session: Session, request: pb.RecallMessageRequest
    ) -> pb.RecallMessageResponse:
        topic = topic_of(request.topic)
        header = RecallMessageRequest(
            topic=topic, recall_handle=request.recall_handle, producer_group=topic
        )
        session.link.check(header)
        try:
            broker = read_handle(request.recall_handle).broker_name
        except ValueError as exc:
            raise Illegal(pb.BAD_REQUEST, str(exc)) from None
        result = await rpc.recall_message(session.link, broker, header)
        return pb.RecallMessageResponse(status=ok(), message_id=result.id)


def _one_topic(messages: Sequence[pb.Message]) -> str:
    """Return the topic of all messages. Raises Illegal."""
    if not messages:
        raise Illegal(pb.MESSAGE_CORRUPTED, "a send needs at least one message")
    if len(messages) > MAX_BATCH:
        raise Illegal(pb.BAD_REQUEST, f"{len(messages)} messages in one send: at most {MAX_BATCH}")
    topics = {topic_of(message.topic) for message in messages}
    if len(topics) > 1:
        raise Illegal(
            pb.MESSAGE_CORRUPTED,
            f"messages of one send have one topic, not {len(topics)}: {', '.join(sorted(topics))}",
        )
    return topics.pop()


async def _send_one(
    session: Session,
    topic: str,
    queue: tuple[str, int],
    message: pb.Message,
    properties: Properties,
) -> SendResult:
    body, flags = stored_body(message)
    if message.system_properties.message_type == pb.TRANSACTION:
        flags |= SysFlag.TRANSACTION_PREPARED
    header = _header(topic, queue[1], message, flags, join_properties(properties).decode())
    return await rpc.send_message(
        session.link,
        queue[0],
        header,
        body,
        broker_name=queue[0],
        message_id=message.system_properties.message_id,
        timeout_s=SEND_TIMEOUT_S,
    )


async def _send_batch(
    session: Session,
    topic: str,
    queue: tuple[str, int],
    messages: Sequence[pb.Message],
    properties: Sequence[Properties],
) -> list[SendResult]:
    items, size = [], 0
    for message, own in zip(messages, properties, strict=True):
        body, flags = stored_body(message)
        size += len(body)
        if size > MAX_BATCH_BYTES:
            raise Illegal(
                pb.MESSAGE_BODY_TOO_LARGE, f"bodies of more than {MAX_BATCH_BYTES} bytes in a batch"
            )
        if flags:
            raise Illegal(pb.BAD_REQUEST, "messages of a batch cannot be compressed")
        items.append(BatchItem(0, body, join_properties(own)))
    result = await rpc.send_message(
        session.link,
        queue[0],
        _header(topic, queue[1], messages[0], 0, None),
        encode_batch(items),
        broker_name=queue[0],
        batch=True,
        timeout_s=SEND_TIMEOUT_S,
    )
    return split_result(result, [one.system_properties.message_id for one in messages])


def _header(
    topic: str, queue_id: int, message: pb.Message, flags: int, properties: str | None
) -> SendMessageRequestV2:
    return SendMessageRequestV2(
        producer_group=topic,
        topic=topic,
        queue_id=queue_id,
        sys_flag=flags,
        born_timestamp=max(0, message.system_properties.born_timestamp.ToMilliseconds()),
        properties=properties,
    )


def _response(
    broker: str, results: Sequence[SendResult], *, is_transaction: bool
) -> pb.SendMessageResponse:
    response = pb.SendMessageResponse(status=status_of_send(results[0].status))
    for result in results:
        entry = response.entries.add(
            status=status_of_send(result.status),
            message_id=result.id,
            offset=result.queue_offset,
            recall_handle=result.recall_handle or "",
        )
        if is_transaction:
            _, commitlog_offset = parse_offset_message_id(result.offset_id)
            entry.transaction_id = transaction_id(broker, result.queue_offset, commitlog_offset)
    return response


def consistent_hash(value: int, buckets: int) -> int:
    """Return the bucket of *value*, as Guava's Hashing.consistentHash does."""
    state, candidate = value & _MASK, 0
    while True:
        state = (2862933555777941757 * state + 1) & _MASK
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if not 0 <= following < buckets:
            return candidate
        candidate = following
