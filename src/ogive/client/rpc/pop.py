"""Requests about popped messages: pop, wait, acknowledge, change the lease, ask who pops."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ogive.client.rpc.calling import REQUEST_TIMEOUT_S, Caller, check, request
from ogive.errors import BrokerBusy, NotSupported, ProtocolError, ResponseCode
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.wire.bodies.clients import AssignmentQuery, RequestMode, assignments_loads
from ogive.wire.command import RemotingCommand, parse_long
from ogive.wire.headers.admin import QueryAssignmentRequest, SetMessageRequestModeRequest
from ogive.wire.headers.codec import Header, decode_header
from ogive.wire.headers.pull import (
    AckMessageRequest,
    BatchAckMessageRequest,
    ChangeInvisibleTimeRequest,
    ChangeInvisibleTimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from ogive.wire.message import DamagedMessage, decode_messages
from ogive.wire.pop import (
    MAX_POP_MESSAGES,
    ORDERLY_QUEUE,
    BatchAck,
    BatchAckBody,
    PopHandle,
    read_offset_infos,
    read_topic,
    retry_flag,
)

POLL_MARGIN_S: Final = 10.0
"""Time that a request may take in addition to its wait at the broker."""
MAX_BITS: Final = 8192
"""Distance of a message from the beginning of its batch that a batch acknowledgement can name."""


@dataclass(frozen=True, slots=True)
class PopAnswer:
    """Messages of one pop, each with its handle.

    *damaged*: why others cannot be read; they come again when their lease ends. *is_full*: too many
    requests wait at the broker already, so that this one did not.
    """

    messages: Sequence[tuple[MessageExt, PopHandle]] = ()
    damaged: Sequence[DamagedMessage] = ()
    is_full: bool = False


_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


async def _ask(
    pool: Caller, address: str, header: Header, timeout_s: float, body: bytes = b""
) -> RemotingCommand:
    """Send a request. Raises NotSupported, with the cause, from a broker that does not pop."""
    reply = await pool.call(address, request(header, body), timeout_s)
    if reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        raise NotSupported(
            reply.code,
            f"{reply.remark or 'no remark'}. This broker does not serve this request of pop "
            'consumption; Apache\'s do from 5.0 on. A PushConsumer with mode="pull" and a '
            "PullConsumer do without",
            address,
        )
    return reply


async def pop_message(
    pool: Caller, address: str, header: PopMessageRequest, *, broker_name: str
) -> PopAnswer:
    """Pop: take messages that nobody else gets until their lease ends.

    *broker_name* goes into their queues and handles. Raises ProtocolError, too.
    """
    reply = await _ask(pool, address, header, header.poll_time_ms / 1000 + POLL_MARGIN_S)
    if reply.code in _NOTHING:
        return PopAnswer()
    if reply.code == ResponseCode.POLLING_FULL:
        return PopAnswer(is_full=True)
    check(reply, address)
    answer = decode_header(PopMessageResponse, reply.ext_fields)
    messages, damaged = _decode(reply.body, broker_name)
    if len(messages) > MAX_POP_MESSAGES:
        raise ProtocolError(
            f"{address} answered a pop of {header.max_msg_nums} messages with {len(messages)}"
        )
    return PopAnswer(_with_handles(messages, header.topic, answer, broker_name), damaged)


def _decode(body: bytes, broker_name: str) -> tuple[list[MessageExt], list[DamagedMessage]]:
    """Decode the records; a damaged one does not hold up the others."""
    try:
        return decode_messages(body, broker_name), []
    except DamagedMessage:
        messages: list[MessageExt] = []
        damaged: list[DamagedMessage] = []
        at = 0
        while at < len(body):
            # of size 0 there is no record: what is left is refused
            size = int.from_bytes(body[at : at + 4]) or len(body) - at
            try:
                messages += decode_messages(body[at : at + size], broker_name)
            except DamagedMessage as exc:
                damaged.append(exc)
            at += size
        return messages, damaged


def _with_handles(
    messages: Sequence[MessageExt], topic: str, answer: PopMessageResponse, broker_name: str
) -> list[tuple[MessageExt, PopHandle]]:
    """Return the messages under the *topic* that was asked for, each with its handle.

    A broker puts the handle into messages of a retry topic, which come under the original one. A
    property that does not fit the answer is not believed: any sender may have put it there.
    """
    offsets = read_offset_infos(answer.start_offset_info or "", answer.msg_offset_info or "")
    starts = {(one.flag, one.queue_id): one.start for one in offsets}
    counts = _order_counts(answer.order_count_info or "")
    found = []
    for message in messages:
        flag = retry_flag(message.topic)
        queue_id, offset = message.queue.queue_id, message.queue_offset
        handle = PopHandle(
            starts.get((flag, queue_id), offset),
            answer.pop_time_ms,
            answer.invisible_time_ms,
            answer.revive_queue_id,
            flag,
            broker_name,
            queue_id,
            offset,
        )
        given = message.properties.get(PropertyName.POP_CK)
        if given is not None:
            handle = _believed(given, handle, starts)
        count = counts.get((queue_id, offset), 0)
        if message.topic != topic or count > message.reconsume_times:
            message = replace(
                message, topic=topic, reconsume_times=max(count, message.reconsume_times)
            )
        found.append((message, handle))
    return found


def _believed(text: str, made: PopHandle, starts: dict[tuple[int, int], int]) -> PopHandle:
    """Return the handle in *text* if the answer that it came with says the same, else the one that
    was *made*.
    """
    try:
        given = PopHandle.read(text)
    except ProtocolError:
        return made
    fits = (
        given.flag
        and not made.flag
        and starts.get((given.flag, given.queue_id)) == given.start
        and given._replace(start=0, flag=0, broker="") == made._replace(start=0, broker="")
    )
    return given._replace(broker=made.broker) if fits else made


def _order_counts(text: str) -> dict[tuple[int, int], int]:
    """Read orderCountInfo: how often the message at (queue, offset) was delivered before.

    Entries for whole queues, which old clients read, are left out. Raises ProtocolError.
    """
    counts: dict[tuple[int, int], int] = {}
    try:
        for entry in filter(None, text.split(";")):
            _, key, count = entry.split(" ")
            if key.startswith("qo"):
                queue_id, offset = key[2:].split("%")
                counts[parse_long(queue_id), parse_long(offset)] = parse_long(count)
    except ValueError:
        raise ProtocolError(f"invalid counts of an answer: {text[:80]!r}") from None
    return counts


async def await_message(pool: Caller, address: str, header: NotificationRequest) -> bool:
    """Wait until there is something to pop. Return False if the time is over.

    Raises BrokerBusy if too many requests wait at the broker.
    """
    reply = await _ask(pool, address, header, header.poll_time_ms / 1000 + POLL_MARGIN_S)
    answer = decode_header(NotificationResponse, check(reply, address).ext_fields)
    if answer.polling_full:
        raise BrokerBusy(ResponseCode.POLLING_FULL, "too many requests wait for messages", address)
    return answer.has_message


Ack = tuple[str, PopHandle]
"""Topic subscribed to, and handle of one of its messages."""


async def ack_message(
    pool: Caller,
    address: str,
    group: str,
    ack: Ack,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Acknowledge one message."""
    topic, handle = ack
    header = AckMessageRequest(
        consumer_group=group,
        topic=read_topic(group, topic, handle.flag),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.offset,
        broker_name=handle.broker,
    )
    check(await _ask(pool, address, header, timeout_s), address)


def fits_batch(handle: PopHandle) -> bool:
    """Return True if a batch acknowledgement can name the message."""
    return 0 <= handle.offset - handle.start < MAX_BITS


async def ack_messages(
    pool: Caller,
    address: str,
    broker_name: str,
    group: str,
    acks: Iterable[Ack],
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Acknowledge messages of one broker. Raises NotSupported from one before 5.1.2."""
    bits: dict[tuple[str, PopHandle], int] = {}
    for topic, handle in acks:
        key = topic, handle._replace(offset=0)
        bits[key] = bits.get(key, 0) | 1 << (handle.offset - handle.start)
    body = BatchAckBody(
        broker_name=broker_name,
        acks=tuple(
            BatchAck(
                group=group,
                topic=topic,
                retry=str(batch.flag),
                start=batch.start,
                queue_id=batch.queue_id,
                revive_queue=batch.revive_queue,
                pop_time_ms=batch.pop_time_ms,
                invisible_ms=batch.invisible_ms,
                bits=some,
            )
            for (topic, batch), some in bits.items()
        ),
    )
    header = BatchAckMessageRequest(broker_name=broker_name)
    check(await _ask(pool, address, header, timeout_s, body.encode()), address)


async def change_invisible_time(
    pool: Caller,
    address: str,
    group: str,
    ack: Ack,
    invisible_ms: int,
    *,
    suspend: bool = False,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> PopHandle:
    """Begin a new lease of the message in place of the present one. Return its handle.

    *suspend* (5.5): the delivery after it does not count as another try.
    """
    topic, handle = ack
    header = ChangeInvisibleTimeRequest(
        consumer_group=group,
        topic=read_topic(group, topic, handle.flag),
        queue_id=handle.queue_id,
        extra_info=str(handle),
        offset=handle.offset,
        invisible_time_ms=invisible_ms,
        suspend=suspend,
        broker_name=handle.broker,
    )
    reply = check(await _ask(pool, address, header, timeout_s), address)
    answer = decode_header(ChangeInvisibleTimeResponse, reply.ext_fields)
    return handle._replace(
        # An orderly batch stays as it is, with another time for this message.
        start=handle.start if answer.revive_queue_id == ORDERLY_QUEUE else handle.offset,
        pop_time_ms=answer.pop_time_ms,
        invisible_ms=answer.invisible_time_ms,
        revive_queue=answer.revive_queue_id,
    )


async def query_assignment(
    pool: Caller,
    address: str,
    question: AssignmentQuery,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> list[tuple[MessageQueue, str]] | None:
    """Return the queues that the broker assigns to the client, each with PULL or POP.

    None: what it has stays as it is.
    """
    header = QueryAssignmentRequest()
    reply = check(await _ask(pool, address, header, timeout_s, question.encode()), address)
    return assignments_loads(reply.body)


async def set_request_mode(
    pool: Caller,
    address: str,
    mode: RequestMode,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    """Set whether clients that ask the broker pop or pull a topic for a group."""
    header = SetMessageRequestModeRequest()
    check(await _ask(pool, address, header, timeout_s, mode.encode()), address)
